"""The engines of a storm: their start, their requests, their stop, and a judgement of their end."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from storm.following import Following
from storm.journal import Switch
from storm.nursery import Child, nursery
from storm.rows import logged_rows, row
from storm.truth import Truth, Violation, parsed

from transporter.control import client
from transporter.control.requests import KINDS
from transporter.errors import TransporterError
from transporter.log.filesystem import RealFileSystem
from transporter.log.inspection import inspect
from transporter.offsets.offset_log import declared_routes, proved_offset, read_state, route_folder
from transporter.offsets.parked import parked_offsets

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from storm.plan import Plan

ANSWER: Final = 20.0
"""Seconds within which an operator gets an answer under any load."""
END: Final = 40.0
"""Seconds within which a stop must end an engine: its own deadlines are shorter."""
_REFUSALS: Final = (
    "ActionRefused",
    "UnknownName",
    "OffsetRefused",
    "EngineUnreachable",
    "LogFull",
    "LogLocked",
)


client._ANSWER = ANSWER + 2  # a missing answer is noticed sooner


class Engine:
    """One engine of the storm, alive or not, with its log directory."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.directory = folder / f"log-{name}"
        self.pipeline = folder / f"{name}.yaml"
        self.child: Child | None = None
        self.fault: dict[str, Any] = {}
        self.skew = 0
        self.may_fail = ""
        """The reason for which it may end by itself, if it may."""
        self.backup: Path | None = None
        self.started = 0.0

    @property
    def runs(self) -> bool:
        """True if its process is there."""
        return self.child is not None


class Lives:
    """The engines of one storm in a *folder*, and the known facts about them."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        folder.mkdir(parents=True, exist_ok=True)
        self.engines = {name: Engine(name, folder) for name in plan.engines}
        self.truth = Truth(folder, plan)
        self.following = {
            each.name: Following(plan, each.name, each.directory) for each in self.engines.values()
        }
        self.available = dict.fromkeys(plan.sources, 0)
        self.took: Counter[str] = Counter()
        """Seconds that acts of each name have taken."""
        self.done, self.at = 0, -1
        self.violations: list[Violation] = []
        self._asking: list[threading.Thread] = []
        self._routes = {name: dict(keys) for name, keys in plan.routes.items()}
        self.away: set[str] = set()
        """The sources and routes that pipeline files do not name."""
        for source in plan.sources:
            self.switch(f"{source}.available").set(0)
            self.switch(f"{source}.elected").set(plan.engines[0])
        self.write_pipelines()

    def show_threads(self) -> None:
        """Make engines write their threads' stacks into the output, to analyse a failure."""
        for engine in self.engines.values():
            if engine.child is not None and not engine.child.ended():
                os.kill(engine.child.pid, signal.SIGUSR1)
                time.sleep(0.1)

    # Lives of engines.

    def start(self, engine: Engine, may_fail: str = "") -> None:
        self.write_pipelines()
        engine.fault, engine.may_fail = {}, may_fail
        if any(
            (self.switch(f"{s}.fault").get() or {}).get("mode") == "end" for s in self.available
        ):
            engine.may_fail = engine.may_fail or "a source has ended"
        self.truth.read()
        begun = time.monotonic()
        engine.child = nursery().bear(
            do="run",
            engine=engine.name,
            world=str(self.folder),
            pipeline=str(engine.pipeline),
            record=self.ends_by_power_cut(engine),
            skew=engine.skew,
        )
        self.truth.lives[engine.name].append((begun, engine.child.pid))
        answer = engine.child.answer(END)
        engine.started = time.monotonic()
        if answer is not None and answer.get("started"):
            self.truth.logs[engine.name].log_id = answer["log"]
            return
        if answer is None or "bug" in answer:
            raise Violation(f"engine {engine.name} did not start: {answer}")
        self.ended(engine)
        if not may_fail and not self._repairable(answer):
            raise Violation(f"engine {engine.name} refused to start: {answer}")

    def _repairable(self, answer: dict[str, Any]) -> bool:
        """Return true if a refusal names an action for the operator."""
        return "restore" in answer["text"] or "remove" in answer["text"]

    def ends_by_power_cut(self, engine: Engine) -> bool:
        ends = ("stop", "stop_engine_hung", "kill", "power_cut", "remove_lock")
        for name, settings, _ in self.plan.acts[self.at + 1 :]:
            if name in ends and settings["engine"] == engine.name:
                return bool(name == "power_cut")
        return False

    def stop(self, engine: Engine) -> None:
        if engine.child is None:
            return
        begun = time.monotonic()
        answer = engine.child.ask(END, do="stop")
        while answer is not None and "ended" not in answer:
            answer = engine.child.answer(END)
        took = time.monotonic() - begun
        child = engine.child
        if not child.ended(END):
            child.kill()
            self.ended(engine)
            raise Violation(f"engine {engine.name} did not end within {END:.0f} s")
        self.ended(engine)
        self.judge_end(engine, answer, f"{took:.1f} s")

    def judge_end(self, engine: Engine, answer: dict[str, Any] | None, took: str) -> None:
        ended = (answer or {}).get("ended")
        if ended is None:
            if engine.may_fail:
                return
            raise Violation(f"engine {engine.name} ended without an answer ({answer})")
        if ended["misused"]:
            raise Violation(f"engine {engine.name}: {ended['misused']}")
        if ended["problem"] and not engine.may_fail:
            raise Violation(f"engine {engine.name} failed by itself: {ended['problem']}")
        if not ended["asked"] and not engine.may_fail:
            raise Violation(f"engine {engine.name} ended by itself, after {took}")

    def notice_ends(self) -> None:
        for engine in self.engines.values():
            if engine.child is not None and engine.child.ended():
                answer = engine.child.answer(0.5)
                while answer is not None and "ended" not in answer:
                    answer = engine.child.answer(0.5)
                self.ended(engine)
                self.judge_end(engine, answer, "a while")
        if self.violations:
            raise self.violations[0]

    def ended(self, engine: Engine) -> None:
        assert engine.child is not None
        engine.child.close()
        engine.child = None
        self.truth.read()

    def await_dry_runs(self) -> None:
        """Wait for the answers to all dry runs."""
        while self._asking:
            thread = self._asking.pop()
            thread.join(ANSWER)
            if thread.is_alive():
                raise Violation("a dry run of a replay never got an answer")

    def close_down(self) -> None:
        """Stop everything in order, and check that no log is damaged then."""
        self.await_dry_runs()
        if self.violations:
            raise self.violations[0]
        for engine in self.engines.values():
            self.stop(engine)
            self.do_verify(engine.name)

    # Requests to engines.

    def command(self, engine: Engine, **command: Any) -> dict[str, Any] | None:
        if engine.child is None:
            return None
        answer = engine.child.ask(END, **command)
        if answer is not None and "bug" in answer:
            raise Violation(f"engine {engine.name}: {answer['bug']}")
        if answer is not None and "ended" in answer:
            self.ended(engine)
            self.judge_end(engine, answer, "a while")
            return None
        return answer

    def ask(self, engine: str, kind: str, **fields: Any) -> dict[str, Any] | None:
        """Act as an operator. Return ``None`` when that is refused, or there is no log."""
        each = self.engines[engine]
        if not each.directory.exists():
            return None
        begun = time.monotonic()
        answer = self._ask_live(each, kind, fields) if each.runs else None
        if not each.runs:
            if kind in ("status", "reload"):
                return None
            answer = self.offline(engine, "perform", kind=kind, fields=fields)
            if answer is not None and kind == "ack" and "result" in answer:
                self.truth.passed(
                    engine, fields["route"], fields["first"], fields["last"], "operator"
                )
        took = time.monotonic() - begun
        if took > ANSWER:
            raise Violation(f"{kind} {fields}: answered after {took:.1f} s")
        return None if answer is None else answer.get("result")

    def _ask_live(self, engine: Engine, kind: str, fields: dict[str, Any]) -> dict[str, Any] | None:
        try:
            with client.EngineClient(engine.directory) as running:
                return {"result": running.call(KINDS[kind](**fields))}
        except client.NoEngine:
            return None
        except TransporterError as error:
            return self._refused(kind, type(error).__name__, str(error), engine)

    def _refused(self, kind: str, name: str, text: str, engine: Engine) -> None:
        if "bug in transporter" in text:
            raise Violation(f"engine {engine.name}: {kind} is answered with {text}")
        if name in _REFUSALS or engine.may_fail or engine.fault:
            return
        if "ended before it answered" in text or "no route of this name" in text:
            return
        if kind == "reload" and "cannot" in text:
            return
        raise Violation(f"engine {engine.name}: {kind} is refused with {name}: {text}")

    def offline(self, engine: str, do: str, **request: Any) -> dict[str, Any] | None:
        """Do something in a process of its own, beside the engine or without one."""
        each = self.engines[engine]
        child = nursery().bear(
            do=do, world=str(self.folder), directory=str(each.directory), **request
        )
        answer = child.answer(60.0)
        child.close()
        if answer is None or "bug" in answer:
            raise Violation(f"{do} {request}: {answer}")
        if "refused" in answer:
            self._refused(request.get("kind", do), answer["refused"], answer["text"], each)
            return None
        if answer.get("code"):
            raise Violation(f"{do} {request}: exit code {answer['code']}, {answer['text']}")
        return answer

    # Observation.

    def switch(self, name: str) -> Switch:
        return Switch(self.folder / name)

    def state(self, engine: str, route: str) -> Any:
        directory = self.engines[engine].directory
        with suppress(TransporterError, OSError, json.JSONDecodeError):
            return read_state(directory, route)
        return None

    def rows_of(self, engine: Engine) -> dict[int, tuple[str, int]]:
        """Return the rows that the log holds now, as any reader of it sees it."""
        found: dict[int, tuple[str, int]] = {}
        last = max(self._last(engine), -1)
        if last < 0:
            return found
        with suppress(TransporterError):  # retention was faster
            for offset, source_id in logged_rows(engine.directory, last):
                found[offset] = parsed(source_id)
        return found

    def _last(self, engine: Engine) -> int:

        with suppress(TransporterError, OSError):
            return inspect(engine.directory, proved_offset(engine.directory)).last
        return -1

    def matches(self, pattern: str, found: tuple[str, int]) -> bool:

        return re.search(pattern, row(self.plan.seed, *found).namespace) is not None

    def _range(self, engine: str, route: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        state = self.state(engine, route)
        if state is None or state.watermark < 0:
            return None
        first = round(asked["from"] * state.watermark)
        last = max(first, round(asked["to"] * state.watermark))
        fields = {"route": route, "first": first, "last": last, "partial": True}
        return fields | {"namespace": asked["namespace"]}

    def _parked_range(
        self, engine: str, route: str, asked: dict[str, Any]
    ) -> list[tuple[int, int]]:
        known = parked_offsets_of(self.engines[engine].directory, route)
        if not known:
            return []
        first = known[int(asked["from"] * (len(known) - 1))]
        last = known[int(asked["to"] * (len(known) - 1))]
        return [(last, last)] if asked["one"] else [(first, last)]

    def write_pipelines(self) -> None:
        for engine in self.engines.values():
            document = {
                "name": "storm",
                "log": {"dir": str(engine.directory), **self.plan.log},
                "readers": [
                    self._reader(name, engine.name)
                    for name in self.plan.sources
                    if name not in self.away
                ],
                "routes": [self._route(name) for name in self._routes if name not in self.away],
                "commit_interval": "50ms",
                "shutdown_timeout": "1s",
            }
            draft = engine.pipeline.with_suffix(".draft")
            draft.write_text(json.dumps(document))
            draft.replace(engine.pipeline)

    def _reader(self, name: str, engine: str) -> dict[str, Any]:
        keys = self.plan.sources[name]
        kind = "OutboxReader" if keys["kind"] == "outbox" else "HistoryReader"
        return {
            "name": name,
            "adaptor": f"storm.sources:{kind}",
            "release": keys["release"],
            "max_in_flight": keys["max_in_flight"],
            "world": str(self.folder),
            "source": name,
            "seed": self.plan.seed,
            "rows": keys["rows"],
            "engine": engine,
            "turns": keys["turns"],
        }

    def _route(self, name: str) -> dict[str, Any]:
        writer = {
            "adaptor": "storm.sinks:StormWriter",
            "world": str(self.folder),
            "sink": name,
            "seed": self.plan.seed,
            **self.plan.sinks[name],
        }
        return {"name": name, "writer": writer, **self._routes[name]}


def parked_offsets_of(directory: Path, route: str) -> list[int]:
    """Return the offsets parked for *route*, read from disk."""
    if route not in declared_routes(directory):
        return []
    return sorted(parked_offsets(route_folder(directory, route), RealFileSystem()))
