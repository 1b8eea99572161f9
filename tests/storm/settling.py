"""The rest between storms: everything is healed, comes to a standstill, and is judged."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from storm.journal import Journal
from storm.lives import parked_offsets_of
from storm.truth import IGNORED, YEARS, Violation, ranges_of

from transporter.errors import TransporterError
from transporter.offsets.offset_log import is_declared, route_folder
from transporter.offsets.parked import ParkedStore

if TYPE_CHECKING:
    from storm.lives import Engine
    from storm.world import World

QUIET: Final = 60.0
"""Seconds within which everything must come to rest once all faults are healed."""
SILENT: Final = 15.0
"""Seconds for which a stuck part may report no problem."""
PACE: Final = 0.1
"""Seconds between two acts of the same kind on the same route, while all comes to rest."""
_LOOKS: Final = 3
"""Number of busy looks after which an engine counts as one that spins."""
_BUSY: Final = 0.6
"""The share of a core that a quiet engine must not use."""
_WATCHED: Final = 0.2
"""Seconds of that watch, at the end of every storm and in each rest of a short one."""
_NOT_AT_REST: Final = ("stopped", "no space", "retrying", "starting", "ended", "paused")
_SHORT: Final = 3
"""Number of acts below which a storm counts as short."""


class Settling:
    """Heals a world and waits until it is at rest. Any part that is stuck must report a problem."""

    def __init__(self, world: World, *, retry: bool) -> None:
        """Prepare to heal *world*. With *retry* nothing may stay parked, either."""
        self._world, self._retry = world, retry
        self._acted: dict[str, float] = {}
        self._clear_parked = retry
        self._all_noted = False

    def settle(self) -> None:
        """Come to rest, and judge."""
        world = self._world
        self._heal()
        begun = moved = time.monotonic()
        before: Any = None
        while True:
            world.notice_ends()
            for engine in world.engines.values():
                if not engine.runs:
                    world.start(engine)
            blockers, told = self._blockers()
            if not blockers:
                break
            now = time.monotonic()
            if blockers != before:
                before, moved = blockers, now
            if (now - moved > SILENT and not told) or now - begun > QUIET:
                raise Violation(f"not at rest after {now - begun:.1f} s: {blockers[:6]}")
            time.sleep(0.01)
        self._judge()

    def _heal(self) -> None:
        world = self._world
        for route in world.plan.routes:
            world.do_sink_heal(route)
        for source in world.plan.sources:
            world.do_source_heal(source)
        for engine in world.engines.values():
            world.set_fault(engine, {})
        world.do_come_back()
        for engine in world.engines.values():
            if engine.may_fail.startswith("a source has ended"):
                world.stop(engine)  # from now on it may not fail

    def _blockers(self) -> tuple[list[str], bool]:
        """Return the parts not at rest, and whether any of them reports a problem."""
        found, told = self._engines_block()
        if not found:
            found += self._rows_left()
            if found and any(self._parked(each) for each in self._world.plan.routes):
                told = told or self._say_so(found)
        if not found:
            # Routes may still be at entries that were logged since the engines' status.
            return self._engines_block()
        return found, told

    def _engines_block(self) -> tuple[list[str], bool]:
        """Return the engines' unfinished work, and whether any of them reports a problem."""
        found: list[str] = []
        told = False
        for engine in self._world.engines.values():
            status = self._world.ask(engine.name, "status")
            if status is None:
                found.append(f"{engine.name} does not answer")
                continue
            there = {each["name"] for each in (*status["readers"], *status["routes"])}
            plan = self._world.plan
            if missing := [each for each in (*plan.sources, *plan.routes) if each not in there]:
                # A part still leaving when all were requested back is requested again.
                found.append(f"{engine.name} lacks {missing}")
                self._act(engine, "reload", "")
            for route in status["routes"]:
                if (problem := self._route_blocks(engine, route, status["last"])) is not None:
                    found.append(f"{engine.name}/{problem}")
                    told = told or bool(route["problem"])
            for reader in status["readers"]:
                if reader["state"] == "paused":
                    self._world.ask(engine.name, "reader-resume", reader=reader["name"])
                if reader["state"] in _NOT_AT_REST:
                    found.append(
                        f"{engine.name}/{reader['name']} {reader['state']} {reader['problem']}"
                    )
                    told = told or bool(reader["problem"])
                    if reader["state"] in ("stopped", "ended"):
                        # A reader that has ended begins again with its engine.
                        self._restart(engine)
        return found, told

    def _say_so(self, found: list[str]) -> bool:
        """Return true if a reader waiting for parked entries reports it. They are then retried."""
        for engine in self._world.engines.values():
            status = self._world.ask(engine.name, "status")
            for reader in (status or {"readers": ()})["readers"]:
                if reader["problem"]:
                    found.append(f"{reader['name']}: {reader['problem']}")
                    self._clear_parked = True
                    return True
        return False

    def _route_blocks(self, engine: Engine, route: dict[str, Any], last: int) -> str | None:
        """Act as an operator would on an unfinished route, and return its state."""
        name = route["name"]
        state, problem = route["state"], route["problem"]
        if route["paused"]:
            self._act(engine, "resume", name)
        if state == "stopped":
            self._unblock(engine, name, problem)
        if self._clear_parked and route["parked"] and not route["retries"]:
            self._retry_or_skip(engine, name)
        done = route["watermark"] >= last and route["replay"] is None and not route["retries"]
        if (
            done
            and state not in ("stopped", "paused")
            and not (self._clear_parked and route["parked"])
        ):
            return None
        shown = {key: route[key] for key in ("watermark", "replay", "retries", "parked")}
        return f"{name} {state} {shown} of {last} {problem[:200]}"

    def _unblock(self, engine: Engine, name: str, problem: str) -> None:
        if "park" in problem and "limit" in problem:
            self._retry_or_skip(engine, name)
        if "older copy" in problem or "history" in problem:
            self._empty_sink(name)
        if ".entry" in problem or "parked entry" in problem:
            self._mend_parked(engine, name)
        self._act(engine, "resume", name)

    def _retry_or_skip(self, engine: Engine, name: str) -> None:
        """Retry parked entries, then skip those that stay (their reader could not read them)."""
        world = self._world
        known = parked_offsets_of(engine.directory, name)
        if not known:
            return
        mark = f"retried {engine.name} {name}"
        if self._acted.get(mark, 0) < 3:
            self._acted[mark] = self._acted.get(mark, 0) + 1
            self._act(engine, "parked-retry", name)
            return
        mark = f"skipped {engine.name} {name}"
        if time.monotonic() - self._acted.get(mark, 0.0) > PACE:
            self._acted[mark] = time.monotonic()
            world.skip_parked(engine.name, name, 0, known[-1])

    def _mend_parked(self, engine: Engine, name: str) -> None:
        """Remove a damaged parked file, as ``log repair`` would, and skip the entry."""
        for offset in parked_offsets_of(engine.directory, name):
            folder = route_folder(engine.directory, name)
            try:
                ParkedStore.read_entry(folder, offset)
            except TransporterError:
                self._world.truth.passed(engine.name, name, offset, offset, "skipped")
                (folder / "parked" / f"{offset:020}.entry").unlink(missing_ok=True)
                # However soon after another restart: the engine knows only what it has opened.
                self._world.stop(engine)

    def _empty_sink(self, name: str) -> None:
        world = self._world
        journal = Journal(world.folder / f"{name}.journal")
        for shard in range(4):
            journal.write(emptied=True, shard=shard, stored=None)
        journal.close()
        world.truth.inexact[name] = time.monotonic()

    def _act(self, engine: Engine, kind: str, route: str, **fields: Any) -> None:
        mark = f"{kind} {engine.name} {route}"
        now = time.monotonic()
        if now - self._acted.get(mark, 0.0) > PACE:
            self._acted[mark] = now
            named = {"route": route} if route else {}
            self._world.ask(engine.name, kind, **named, **fields)

    def _restart(self, engine: Engine) -> None:
        mark = f"restart {engine.name}"
        now = time.monotonic()
        if now - self._acted.get(mark, 0.0) > 0.5:
            self._acted[mark] = now
            self._world.stop(engine)

    def _rows_left(self) -> list[str]:
        """Return the rows of each source that no log holds yet."""
        world = self._world
        world.truth.read()
        left = []
        if not self._all_noted:
            # Entries of an append that failed, or never returned, are in no journal.
            self._all_noted = True
            for engine in world.engines.values():
                for offset, found in world.rows_of(engine).items():
                    world.truth.note(engine.name, offset, found)
        logged = {found for log in world.truth.logs.values() for found in log.rows.values()}
        for source, count in world.available.items():
            excused = world.truth.forgotten(source)
            missing = [n for n in range(count) if (source, n) not in logged and n not in excused]
            if missing:
                left.append(f"{source}: not logged {ranges_of(missing)}")
        return left

    def _parked(self, route: str) -> set[int]:
        world = self._world
        return {
            offset
            for engine in world.engines.values()
            for offset in parked_offsets_of(engine.directory, route)
        }

    def _judge(self) -> None:
        world, truth = self._world, self._world.truth
        # Before the journals are read, because an engine may still be at released entries. In this
        # order: an entry is parked before a watermark passes it, and noted before either.
        states = {
            (engine, route): world.state(engine, route)
            for engine in world.engines
            for route in world.plan.routes
        }
        aside = {
            (engine.name, route): set(parked_offsets_of(engine.directory, route))
            for engine in world.engines.values()
            for route in world.plan.routes
        }
        truth.read()
        rows: dict[str, set[tuple[str, int]]] = {}
        for engine in world.engines.values():
            marks, parked = {}, {}
            for route in world.plan.routes:
                parked[route] = aside[engine.name, route]
                state = states[engine.name, route]
                if state is None:
                    if is_declared(engine.directory, route):
                        raise Violation(f"{engine.name}/{route}: its offsets cannot be read")
                    continue
                marks[route] = state.watermark
                log = truth.logs[engine.name]
                self._judge_parked(engine, route, parked[route])
                rows.setdefault(route, set()).update(
                    log.rows[o] for o in parked[route] if o in log.rows
                )
            truth.judge(engine.name, marks, parked)
            truth.replays = [each for each in truth.replays if each.engine != engine.name]
            self._judge_files(engine)
            self._judge_clock(engine)
        if self._retry or len(world.plan.acts) < _SHORT:
            self._judge_busy()
        truth.judge_rows(
            world.available, {each: rows.get(each, set()) for each in world.plan.routes}
        )
        truth.judge_told()

    def _judge_parked(self, engine: Engine, route: str, parked: set[int]) -> None:
        """Fail if parked entries wait for a later one, or were superseded."""
        log = self._world.truth.logs[engine.name]
        before, since = log.parked_once[route], log.superseded[route]
        stale = [each for each in parked if since.get(each, 0.0) > before.get(each, 0.0)]
        if stale:
            raise Violation(f"{engine.name}/{route}: superseded, and still parked: {stale}")
        for offset in parked:
            with suppress(TransporterError):
                found = ParkedStore.read_entry(route_folder(engine.directory, route), offset)
                if found.reason.behind is not None and found.reason.behind >= offset:
                    raise Violation(f"{engine.name}/{route}: {offset} waits behind {found.reason}")

    def _judge_clock(self, engine: Engine) -> None:
        """Fail if an engine whose log is years ahead of its clock does not report it."""
        truth = self._world.truth
        told = any("time" in e["event"] or "clock" in e["event"] for e in truth.events[engine.name])
        if truth.logged_ahead[engine.name] and engine.skew < YEARS and not told:
            raise Violation(f"engine {engine.name} has logged in 2100, and nobody is told")

    def _judge_busy(self) -> None:
        """Fail if an engine uses the processor while nothing is left to do.

        The last acts may still be at work, so one quiet look of several is enough.
        """
        busy = None
        for _ in range(_LOOKS):
            busy = self._find_busy()
            if busy is None:
                return
        raise Violation(f"{busy} for nothing")

    def _find_busy(self) -> str | None:
        world = self._world
        begun = time.monotonic()
        before = {each.name: world.command(each, do="look") for each in world.engines.values()}
        time.sleep(_WATCHED)
        for engine in world.engines.values():
            first, last = before[engine.name], world.command(engine, do="look")
            took = time.monotonic() - begun
            if first and last and last["cpu"] - first["cpu"] > _BUSY * took:
                share = (last["cpu"] - first["cpu"]) / took
                return f"engine {engine.name} uses {share:.0%} of a core"
        return None

    def _judge_files(self, engine: Engine) -> None:
        """Fail if an engine keeps removed segments open."""
        if engine.child is not None:
            gone = _deleted_segments(engine.child.pid)
            if gone > 2 * len(self._world.plan.routes) and "removed segments" not in IGNORED:
                raise Violation(f"engine {engine.name} keeps {gone} removed segments open")


def _deleted_segments(pid: int) -> int:
    folder = Path(f"/proc/{pid}/fd")
    count = 0
    with suppress(OSError):
        for each in folder.iterdir():
            with suppress(OSError):
                target = os.readlink(each)  # noqa: PTH115 - of a file that is gone
                count += ".log (deleted)" in target
    return count
