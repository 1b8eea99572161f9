"""A storm: the driver that performs the acts of a plan on real engines, and has them judged."""

from __future__ import annotations

import math
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from storm.lives import Engine, Lives, parked_offsets_of
from storm.settling import Settling
from storm.truth import Replayed, Violation

from transporter.log.lock import LOCK
from transporter.log.logged_reader import read_last_offset
from transporter.offsets.offset_log import route_folder


class World(Lives):
    """One storm. Each act of a plan is the method ``do_<name>``."""

    def run(self) -> None:
        """Do every act, then let all come to rest, and judge. Raises :class:`Violation`."""
        try:
            begun = time.monotonic()
            for engine in self.engines.values():
                self.start(engine)
            self.took["first start"] = time.monotonic() - begun
            for at, (name, settings, pause) in enumerate(self.plan.acts):
                self.at = at
                begun = time.monotonic()
                getattr(self, f"do_{name}")(**settings)
                self.took[name] += time.monotonic() - begun
                self.done += 1
                for each in self.following.values():
                    each.look()
                time.sleep(pause / 1000)
                self.notice_ends()
            self.at = len(self.plan.acts)
            begun = time.monotonic()
            self.do_settle("", last=True)
            self.close_down()
            self.took["end"] = time.monotonic() - begun
        except Violation:
            self.show_threads()
            raise
        finally:
            for engine in self.engines.values():
                if engine.child is not None:
                    with suppress(AssertionError):
                        engine.child.kill()
                    engine.child.close()
                    engine.child = None
            for each in self.following.values():
                each.close()

    # Acts of sources, sinks and disks.

    def do_produce(self, source: str, rows: int, engine: str = "") -> None:
        self.available[source] += rows
        self.switch(f"{source}.available").set(self.available[source])

    def do_wait(self, milliseconds: int, **_: Any) -> None:
        time.sleep(milliseconds / 1000)

    def do_sink_fault(self, route: str, engine: str = "", **fault: Any) -> None:
        self.switch(f"{route}.fault").set(fault)

    def do_sink_heal(self, route: str, **_: Any) -> None:
        self.switch(f"{route}.fault").set(None)

    def do_source_fault(self, source: str, mode: str, **_: Any) -> None:
        self.switch(f"{source}.fault").set({"mode": mode})
        for engine in self.engines.values():
            engine.may_fail = engine.may_fail or ("a source has ended" if mode == "end" else "")

    def do_source_heal(self, source: str, **_: Any) -> None:
        self.switch(f"{source}.fault").set(None)

    def do_elect(self, engine: str, source: str, **_: Any) -> None:
        self.switch(f"{source}.elected").set(engine)

    def do_disk_fault(self, engine: str, fault: dict[str, Any], **_: Any) -> None:
        self.set_fault(self.engines[engine], fault)

    def do_disk_heal(self, engine: str, **_: Any) -> None:
        self.set_fault(self.engines[engine], {})

    def set_fault(self, engine: Engine, fault: dict[str, Any]) -> None:
        engine.fault = fault if engine.runs else {}
        if not engine.runs:
            return
        if fault.get("mode") == "fail":
            engine.may_fail = engine.may_fail or f"its disk fails: {fault}"
        self.command(engine, do="fault", fault=fault)

    def do_clock(self, engine: str, seconds: int, **_: Any) -> None:
        each = self.engines[engine]
        each.skew += seconds
        if each.runs:
            self.command(each, do="clock", seconds=seconds)

    # Acts of operators.

    def do_pause(self, route: str, engine: str) -> None:
        self.ask(engine, "pause", route=route)

    def do_resume(self, route: str, engine: str) -> None:
        self.ask(engine, "resume", route=route)

    def do_reader_pause(self, source: str, engine: str) -> None:
        # If engines take turns at a source, the journals do not show why it was superseded.
        if not self.plan.sources[source]["turns"]:
            self.ask(engine, "reader-pause", reader=source)

    def do_reader_resume(self, source: str, engine: str) -> None:
        self.ask(engine, "reader-resume", reader=source)

    def do_reader_restart(self, source: str, engine: str) -> None:
        self.ask(engine, "reader-restart", reader=source)

    def do_reader_leave(self, source: str, engine: str) -> None:
        # If engines take turns at a source, the journals do not show why it was superseded.
        staying = [each for each in self.plan.sources if each not in (source, *self.away)]
        if staying and not self.plan.sources[source]["turns"]:
            self._reload_without(engine, source)

    def do_route_leave(self, route: str, engine: str) -> None:
        staying = [each for each in self.plan.routes if each not in (route, *self.away)]
        followed = any(self.plan.routes[each].get("after") == route for each in staying)
        # Otherwise it is refused: a source that waits for deliveries needs every route.
        waited_for = any(each["release"] == "delivered" for each in self.plan.sources.values())
        if staying and not followed and not waited_for:
            self._reload_without(engine, route)

    def _reload_without(self, engine: str, name: str) -> None:
        self.away.add(name)
        self.truth.absences[name].append((time.monotonic(), math.inf))
        self.write_pipelines()
        self.ask(engine, "reload")

    def do_come_back(self, engine: str = "", **_: Any) -> None:
        for name in self.away:
            since, _ = self.truth.absences[name].pop()
            self.truth.absences[name].append((since, time.monotonic()))
        self.away.clear()
        self.write_pipelines()
        for each in [engine] if engine else self.engines:
            self.ask(each, "reload")

    def do_step(self, route: str, engine: str) -> None:
        self.ask(engine, "step", route=route)

    def do_ack(self, route: str, engine: str, ahead: int, count: int) -> None:
        state = self.state(engine, route)
        if state is not None:
            first = state.next_unsettled() + ahead
            self.ask(engine, "ack", route=route, first=first, last=first + count - 1)

    def do_replay(self, route: str, engine: str, **asked: Any) -> None:
        fields = self._range(engine, route, asked)
        if fields is None:
            return
        asked_at = time.monotonic()
        done = self.ask(engine, "replay", **fields)
        if done is not None:
            held = self.rows_of(self.engines[engine])
            pattern = fields["namespace"]
            offsets = {
                offset
                for offset, found in held.items()
                if done["first"] <= offset <= done["last"]
                and self.truth.accepts(route, found)
                and self.matches(pattern, found)
            }
            replay = Replayed(engine, route, done["generation"], offsets, asked_at)
            self.truth.replays.append(replay)

    def do_dry_replay(self, route: str, engine: str, **asked: Any) -> None:
        fields = self._range(engine, route, asked)
        if fields is None:
            return
        # Beside the rest: a query must block no other request.
        thread = threading.Thread(
            target=self._ask_in_background, args=(engine, fields), daemon=True
        )
        self._asking.append(thread)
        thread.start()

    def _ask_in_background(self, engine: str, fields: dict[str, Any]) -> None:
        try:
            self.ask(engine, "replay", dry_run=True, **fields)
        except Violation as violation:
            self.violations.append(violation)

    def do_cancel_replay(self, route: str, engine: str) -> None:
        if self.ask(engine, "replay-cancel", route=route) is not None:
            self.truth.end_replays(engine, route)

    def do_park_retry(self, route: str, engine: str, **asked: Any) -> None:
        only = asked.get("only", False)
        for first, last in self._parked_range(engine, route, asked):
            self.ask(engine, "parked-retry", route=route, first=first, last=last, only=only)

    def do_park_skip(self, route: str, engine: str, **asked: Any) -> None:
        for first, last in self._parked_range(engine, route, asked):
            self.skip_parked(engine, route, first, last, only=asked.get("only", False))

    def skip_parked(
        self, engine: str, route: str, first: int, last: int, *, only: bool = False
    ) -> None:
        # Before it is done, because the outcome of a request without an answer is open.
        known = parked_offsets_of(self.engines[engine].directory, route)
        done = self.ask(engine, "parked-skip", route=route, first=first, last=last, only=only)
        for offset in {*known, *(done or {"offsets": ()})["offsets"]}:
            if first <= offset <= last:
                self.truth.passed(engine, route, offset, offset, "skipped")

    def do_reload(self, route: str, engine: str, change: dict[str, Any]) -> None:
        self._routes[route] |= change
        if "parallelism" in change:
            # An offset stored under another number of shards does not apply to these.
            self.truth.inexact[route] = float("inf")
        self.write_pipelines()
        self.ask(engine, "reload")

    def do_reload_file(self, engine: str, **_: Any) -> None:
        self.ask(engine, "reload")

    def do_forget(self, route: str, engine: str) -> None:
        parked = parked_offsets_of(self.engines[engine].directory, route)
        # Refused where it runs. Without an engine the route begins again with the next one.
        if self.ask(engine, "forget", route=route) is not None:
            self.truth.read()
            self.truth.forgot(engine, route, parked, time.monotonic())

    def do_status(self, engine: str, **_: Any) -> None:
        if self.engines[engine].runs:
            self.ask(engine, "status")

    def do_export(self, engine: str, **_: Any) -> None:
        target = self.folder / f"export-{self.at}.jsonl"
        self.offline(
            engine,
            "command",
            words=["log", "export", str(self.engines[engine].directory), str(target)],
        )
        target.unlink(missing_ok=True)

    def do_verify(self, engine: str, **_: Any) -> None:
        if not self.engines[engine].directory.exists():
            return
        found = self.offline(engine, "verify")
        if found is not None and not found.get("sound", True):
            raise Violation(f"engine {engine}: verify found {found['text'][:600]}")

    def do_compact(self, engine: str, **_: Any) -> None:
        if not self.engines[engine].runs:
            words = ["log", "compact", str(self.engines[engine].pipeline)]
            self.offline(engine, "command", words=words)

    # Acts of the world.

    def do_start(self, engine: str, **_: Any) -> None:
        if not self.engines[engine].runs:
            self.start(self.engines[engine])

    def do_stop(self, engine: str, **_: Any) -> None:
        self.stop(self.engines[engine])

    def do_stop_engine_hung(self, engine: str, **_: Any) -> None:
        """Stop while syncs are slow and a source hangs, so that appends outlive the stop."""
        each = self.engines[engine]
        if each.runs:
            slow = {"mode": "slow", "kinds": ["sync"], "files": ".log", "seconds": 0.5}
            self.set_fault(each, slow)
            for source in self.plan.sources:
                self.do_produce(source, 10)
            time.sleep(0.02)
            self.stop(each)

    def do_kill(self, engine: str, **_: Any) -> None:
        each = self.engines[engine]
        if each.child is not None:
            each.child.kill()
            self.ended(each)

    def do_power_cut(self, engine: str, seed: int, **_: Any) -> None:
        each = self.engines[engine]
        if each.child is None:
            return
        target = self.folder / f"cut-{self.at}"
        if self.command(each, do="cut", seed=seed, target=str(target)) is None:
            shutil.rmtree(target, ignore_errors=True)
            self.notice_ends()
            return
        assert each.child is not None
        each.child.kill()
        self.ended(each)
        time.sleep(0.03)  # its workers see its end
        self.await_dry_runs()  # They would find no log in between.
        shutil.rmtree(each.directory)
        target.rename(each.directory)

    def do_backup(self, engine: str, **_: Any) -> None:
        each = self.engines[engine]
        if not each.runs and each.directory.exists():
            each.backup = self.folder / f"backup-{each.name}"
            shutil.rmtree(each.backup, ignore_errors=True)
            shutil.copytree(each.directory, each.backup, ignore=leave_sockets)

    def do_restore(self, engine: str, **_: Any) -> None:
        each = self.engines[engine]
        if each.runs or each.backup is None:
            return
        time.sleep(0.1)  # a worker of the last engine notices its end
        self.await_dry_runs()
        shutil.rmtree(each.directory)
        shutil.copytree(each.backup, each.directory)
        self.truth.read()
        last = read_last_offset(each.directory)
        self.truth.restored(engine, self.rows_of(each), last, time.monotonic())
        self.following[engine].begin_again()

    def do_remove_lock(self, engine: str, **_: Any) -> None:
        """Remove the lock file, and start another engine. One of the two must end by itself."""
        each = self.engines[engine]
        if not each.runs:
            return
        begun = time.monotonic()
        (each.directory / LOCK).unlink(missing_ok=True)
        first, each.child = each.child, None
        assert first is not None
        self.start(each, may_fail="another engine had its log")
        ended = first.ended(8.0) or not each.runs
        self.truth.shared[engine].append((begun, time.monotonic()))
        self.truth.read()
        if not ended:
            first.kill()
            raise Violation(f"engine {engine}: two engines run on one log, and neither notices")
        if first.ended():
            first.close()
        elif each.runs:
            first.kill()
            first.close()
        else:
            each.child = first
        self.following[engine].begin_again()
        if each.runs and self.ends_by_power_cut(each):
            # Another engine beside it has changed the disk, which its record does not show.
            self.stop(each)
            self.start(each)

    def do_stray(self, engine: str, name: str, **_: Any) -> None:
        directory = self.engines[engine].directory
        if directory.exists():
            (directory / name).write_bytes(b"not ours")

    def do_damage_parked(self, engine: str, route: str, **_: Any) -> None:
        """Damage a parked file while no engine runs. Its route may halt, no other."""
        each = self.engines[engine]
        if each.runs:
            return
        folder = route_folder(each.directory, route) / "parked"
        for path in sorted(folder.glob("*.entry"))[:1]:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0xFF
            path.write_bytes(bytes(data))

    def do_look(self, engine: str, **_: Any) -> None:
        """Read the journals so far. Some promises show in them alone."""
        self.truth.read()

    def do_settle(self, engine: str, *, last: bool = False, **_: Any) -> None:
        """Heal everything, wait until all is at rest, and judge."""
        Settling(self, retry=last).settle()
        for name, each in self.following.items():
            each.judge(self.truth.logs[name].rows)


def leave_sockets(folder: str, names: list[str]) -> list[str]:
    """Leave the sockets of a folder out of a copy, for ``shutil.copytree``."""
    return [name for name in names if (Path(folder) / name).is_socket()]
