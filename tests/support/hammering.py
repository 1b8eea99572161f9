"""Four operators act on one engine that is killed now and then, and a model judges the result.

A confirmed action must have been done and stay done. A refused one must not have been done. An
action with unknown outcome may be either.
"""

from __future__ import annotations

import json
import logging
import random
import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_tools import delivered, until
from operator_tools import Operated, command, feed, route, write_file

from transporter.audit import AUDIT
from transporter.offsets.offset_log import read_state, route_folder
from transporter.offsets.parked import ParkedStore

logger = logging.getLogger(__name__)
REFUSED = ("ActionRefused", "OffsetRefused")
MOST = 3_000
"""Entries in all."""
POISON = 13
"""The sink rejects every entry of this rank, for ever."""


@dataclass
class Act:
    """One action: ``result`` is the result its operator got, or ``None`` if the outcome is unknown.

    ``sent`` is the number of entries in the sink before the action was requested.
    """

    words: list[str]
    token: str
    sent: int
    result: dict[str, Any] | None = None
    refused: bool = False


@dataclass
class World:
    """The pipeline, the current engine, and all actions so far."""

    folder: Path
    pipeline: Path
    engine: Operated | None = None
    acts: list[Act] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def sink(self) -> Path:
        """The file that the route delivers to."""
        return self.folder / "out.jsonl"

    def start(self) -> None:
        """Run an engine. Operators may hold the lock for a moment."""
        environment = {"PYTHONPATH": str(Path(__file__).parent)}
        while True:
            self.engine = Operated(self.pipeline, **environment)
            if _listens(self.engine):
                return
            self.engine.wait()
            assert any("LogLocked" in line for line in self.engine.noise), self.engine.noise

    def act(self, *words: str) -> Act:
        """Do something to the route, and record its operator's result."""
        token = f"act-{len(self.acts)}-{random.getrandbits(32):08x}"
        act = Act([*words], token, len(delivered_lines(self.sink)))
        self.acts.append(act)
        names = 2 if words[0] in ("route", "parked") else 1
        rest = [*words[names:], "--reason", token, "--json"]
        said = command(*words[:names], str(self.pipeline), *rest)
        try:
            answer = json.loads(said.stdout)
        except ValueError:
            self.failures.append(f"{words}: {said.stdout} {said.stderr}")
            return act
        if answer["ok"]:
            act.result = answer["result"]
        else:
            act.refused = answer["error"]["type"] in REFUSED
            if answer["error"]["type"] == "InternalError" or "bug" in answer["error"]["message"]:
                self.failures.append(f"{words}: {answer}")
        return act

    def look(self, *words: str) -> Any:
        """Query something, which must always be possible."""
        said = command(*words, "--json")
        answer = json.loads(said.stdout)
        if not answer["ok"]:
            if words[:2] != ("parked", "show"):
                self.failures.append(f"{words}: {answer}")
            return None
        return answer["result"]


def hammer(folder: Path, seed: int, rounds: int, kills: int) -> None:
    """Let four operators act *rounds* times each, kill the engine *kills* times, and judge."""
    logger.warning("seed %d", seed)
    chance = random.Random(seed)
    rejected = list(range(POISON // 2, MOST, POISON))
    keys = {"on_error": "park", "slice_rows": 7, "writer": {"reject": rejected}}
    world = World(folder, write_file(folder, [route(**keys)]))
    world.start()
    operators = [_acker, _replayer, _parker, _viewer]
    threads = [
        threading.Thread(target=_guarded, args=(world, each, random.Random(seed + n), rounds))
        for n, each in enumerate(operators)
    ]
    feeder = threading.Thread(target=_feed, args=(world, random.Random(seed)))
    try:
        for thread in (*threads, feeder):
            thread.start()
        for _ in range(kills):
            world.over.wait(chance.uniform(1.0, 4.0))
            world.engine.kill()
            world.over.wait(chance.uniform(0.0, 0.5))
            world.start()
        for thread in threads:
            thread.join()
        world.over.set()
        feeder.join()
        _settle(world)
        assert world.engine.stop() == 0
    finally:
        world.over.set()
        if world.engine.process.poll() is None:
            world.engine.kill()
    assert not world.failures, world.failures
    Verdict(world).check()


def _listens(engine: Operated) -> bool:
    """Wait until the engine can be operated. Return false if it ended before that."""
    until(lambda: engine.process.poll() is not None or engine.has_told("listening"))
    return engine.has_told("listening")


def _guarded(world: World, operator: Any, chance: random.Random, rounds: int) -> None:
    try:
        for _ in range(rounds):
            operator(world, chance)
    except BaseException as error:  # noqa: BLE001 - the test judges it
        world.failures.append(f"{operator.__name__}: {error!r}")


def _feed(world: World, chance: random.Random) -> None:
    number = 0
    while number < MOST and not world.over.wait(0.3):
        feed(world.folder, *(f"{'ab'[each % 2]} {each}" for each in range(number, number + 10)))
        number += 10


def _acker(world: World, chance: random.Random) -> None:
    """Pause, ack the next entries, and go on."""
    paused = world.act("route", "pause", "out")
    if paused.result is not None:
        shown = world.look("offsets", "show", str(world.pipeline), "out")
        if not shown["paused"]:
            world.failures.append("a pause was lost")
        first = int(shown["watermark"]) + 1
        world.act("ack", "out", f"{first}..{first + chance.randint(0, 3)}")
        if chance.random() < 0.5:
            world.act("route", "step", "out")
    while world.act("route", "resume", "out").result is None:
        pass


def _replayer(world: World, chance: random.Random) -> None:
    """Replay a range, sometimes of one namespace, and sometimes cancel it."""
    while (status := world.look("offsets", "list", str(world.pipeline))[0])["watermark"] < 1:
        if world.over.wait(0.2):
            return
    first = chance.randint(0, status["watermark"])
    last = min(first + chance.randint(0, 30), status["watermark"])
    words = ["replay", "out", "--from", str(first), "--to", str(last)]
    if chance.random() < 0.5:
        words += ["--namespace", "^a$"]
    world.act(*words)
    if chance.random() < 0.3:
        world.act("replay", "out", "--cancel")


def _parker(world: World, chance: random.Random) -> None:
    """Skip or retry one of the parked entries."""
    parked = world.look("parked", "list", str(world.pipeline), "out")
    if not parked:
        time.sleep(0.2)
        return
    offset = str(chance.choice(parked)["offset"])
    world.act("parked", chance.choice(["skip", "retry"]), "out", offset)


def _viewer(world: World, chance: random.Random) -> None:
    """Query everything. No query may fail, even while the engine is down."""
    target = str(world.pipeline)
    status = world.look("status", target)
    if status is not None and [each["name"] for each in status["routes"]] != ["out"]:
        world.failures.append(f"a status without the route: {status}")
    world.look("offsets", "show", target, "out")
    world.look("parked", "show", target, "out", str(POISON // 2))


def _settle(world: World) -> None:
    """Let the route finish all requested work."""
    while world.act("route", "resume", "out").result is None:
        pass

    def at_rest() -> bool:
        (found,) = world.look("status", str(world.pipeline))["routes"]
        return (found["lag"], found["replay"], found["retries"]) == (0, None, 0)

    deadline = time.monotonic() + 120
    while not at_rest():
        assert time.monotonic() < deadline, world.look("status", str(world.pipeline))


def delivered_lines(sink: Path) -> list[bytes]:
    """Return the complete lines of a sink."""
    return sink.read_bytes().splitlines() if sink.exists() else []


class Verdict:
    """The model's judgement of a world at rest."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.state = read_state(world.folder / "log", "out")
        self.sent = delivered(world.sink)
        folder = route_folder(world.folder / "log", "out")
        self.parked = set(ParkedStore(folder).offsets())
        self.audit = (world.folder / "log" / AUDIT).read_text()
        self.possible = [act for act in world.acts if not act.refused]

    def check(self) -> None:
        """Fail where the state differs from the model."""
        confirmed = [act for act in self.possible if act.result is not None]
        logger.warning(
            "%d actions, %d confirmed, %d unknown; %d entries, generation %d",
            len(self.world.acts),
            len(confirmed),
            len(self.possible) - len(confirmed),
            self.state.watermark + 1,
            self.state.generation,
        )
        # There is something to judge.
        assert {act.words[0] for act in confirmed if "--cancel" not in act.words} >= {
            "ack",
            "replay",
        }
        assert not self.state.paused
        self._check_audit(confirmed)
        self._check_nothing_is_missing()
        self._check_generations(confirmed)
        for act in confirmed:
            if act.words[0] == "ack":
                self._check_ack(act)
            elif act.words[0] == "replay" and "--cancel" not in act.words:
                self._check_replay(act)
            elif act.words[:2] == ["parked", "skip"]:
                self._check_skip(act)

    def _check_audit(self, confirmed: list[Act]) -> None:
        for act in confirmed:
            assert self.audit.count(act.token) == 1, act
        for act in self.world.acts:
            assert self.audit.count(act.token) <= 1, act
            assert not (act.refused and act.token in self.audit), act

    def _check_nothing_is_missing(self) -> None:
        """Check that every entry was delivered, acked, parked or skipped, and none silently."""
        settled = {line["offset"] for line in self.sent} | self.parked
        for act in self.possible:
            if act.words[0] == "ack":
                settled |= set(_range(act.words[2]))
            elif act.words[:2] == ["parked", "skip"]:
                settled.add(int(act.words[3]))
        missing = set(range(self.state.watermark + 1)) - settled
        assert not missing, missing
        assert self.parked <= set(range(POISON // 2, self.state.watermark + 1, POISON))

    def _check_generations(self, confirmed: list[Act]) -> None:
        replays = [act for act in self.possible if self._begins_replay(act)]
        told = [act.result["generation"] for act in confirmed if self._begins_replay(act)]
        assert len(set(told)) == len(told)
        assert len(told) <= self.state.generation <= len(replays)

    def _check_ack(self, act: Act) -> None:
        """Check that entries acked while the route was paused came by replays only."""
        for offset in _range(act.words[2]):
            late = [line for line in self.sent[act.sent :] if line["offset"] == offset]
            assert not late or self._replayed(offset), (act, late)

    def _check_replay(self, act: Act) -> None:
        """Check that a range was delivered again, unless its replay may have been cancelled."""
        after = self.world.acts[self.world.acts.index(act) + 1 :]
        if any("--cancel" in each.words and not each.refused for each in after):
            return
        generation = act.result["generation"]
        again = {line["offset"] for line in self.sent if line["generation"] >= generation}
        first, last = act.result["first"], act.result["last"]
        wanted = {
            offset
            for offset in range(first, last + 1)
            if offset % POISON != POISON // 2 and self._matches(act, offset)
        }
        acked = {
            offset
            for each in self.possible
            if each.words[0] == "ack"
            for offset in _range(each.words[2])
        }
        assert wanted <= again | acked, (act, wanted - again - acked)

    def _check_skip(self, act: Act) -> None:
        for offset in act.result["offsets"]:
            assert offset not in self.parked or self._replayed(offset), act

    def _replayed(self, offset: int) -> bool:
        """Return true if some replay may have delivered *offset* again."""
        return any(
            int(act.words[3]) <= offset <= int(act.words[5]) and self._matches(act, offset)
            for act in self.possible
            if self._begins_replay(act)
        )

    def _begins_replay(self, act: Act) -> bool:
        return act.words[0] == "replay" and "--cancel" not in act.words

    def _matches(self, act: Act, offset: int) -> bool:
        pattern = (
            act.words[act.words.index("--namespace") + 1] if "--namespace" in act.words else ""
        )
        return re.search(pattern, "ab"[offset % 2]) is not None


def _range(text: str) -> range:
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)
