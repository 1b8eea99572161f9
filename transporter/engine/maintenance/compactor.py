"""The compactor: paced work on the log, in a thread of its own that blocks no other.

Lost indexes come first, then compaction, and the record of both. Every wait and every read
ends at a stop. Making room is the housekeeper's task.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Protocol

from transporter.errors import Corrupt, LogFull, LogPoisoned, TransporterError
from transporter.log.commit_log import wall_clock
from transporter.log.compaction import CompactionSettings, compact
from transporter.log.filesystem import RealFileSystem, translate_os_errors
from transporter.log.index import reindex
from transporter.log.maintenance import (
    CompactionRules,
    MaintenanceRecord,
    extent_of,
    read_maintenance,
    write_maintenance,
)
from transporter.log.sealed_segments import SealedSegment, iter_sealed
from transporter.log.wall_times import WallTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transporter.engine.events import Observer
    from transporter.log.commit_log import CommitLog
    from transporter.offsets.retention_holds import Hold
    from transporter.pipeline.config import LogConfig

TICK: Final = 10.0
"""Seconds between two looks at the log."""
LONGEST: Final = 600.0
"""Seconds between two tries of a compaction that finds no room, at most."""
_DUE_FRACTION: Final = 8
"""The log is compacted when its uncompacted part is this fraction of it."""


class CompactionStopped(Exception):
    """The engine ends. Unfinished work is left as it was."""


class Throttle:
    """Lets so many bytes a second pass, and nothing once it was stopped."""

    def __init__(self, rate: float, stopping: threading.Event) -> None:
        self._rate, self._stopping = rate, stopping
        self._ahead = 0.0
        self._last = time.monotonic()

    def __call__(self, size: int) -> None:
        """Wait until *size* more bytes may have been read."""
        now = time.monotonic()
        # Idle time is not saved up for later.
        self._ahead = max(0.0, self._ahead - (now - self._last)) + size / self._rate
        self._last = now
        if self._stopping.wait(self._ahead):
            raise CompactionStopped


class FailureReport:
    """Reports recurring failures, each once while it stays the same."""

    def __init__(self, observe: Observer) -> None:
        self._observe, self._problem = observe, ""

    def attempt(self, act: Callable[[], None]) -> None:
        """Call *act*; report a failure that may pass, and raise one that is final."""
        try:
            act()
            self._problem = ""
        except LogPoisoned:
            raise
        except (TransporterError, OSError) as error:
            if self._problem != str(error):
                self._problem = str(error)
                self._observe("housekeeping-failed", problem=self._problem)


class Needs(Protocol):
    """Who needs which entries of the log. Thread-safe."""

    def least_hold(self) -> Hold:
        """Return, durably, who needs the oldest entry, and which one."""

    def acknowledged_offsets(self) -> Mapping[str, int]:
        """Return for each reader an offset up to which its source needs nothing any more."""

    def waiting_offsets(self) -> Mapping[str, int]:
        """Return the same for those that lose what is released, also ones that have left."""


class Compactor:
    """Compacts the log at the rate that its configuration allows (Invariant 11)."""

    def __init__(
        self,
        log: CommitLog,
        config: LogConfig,
        needs: Needs,
        observe: Observer,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Prepare to compact *log*; the arguments are those of the housekeeper."""
        self._log, self._config, self._files = log, config, RealFileSystem()
        self._needs = needs
        self._observe, self._on_failure = observe, on_failure
        self._report = FailureReport(observe)
        self._stopping = threading.Event()
        self._record_lock = threading.Lock()
        self._record = MaintenanceRecord()
        self._saved: MaintenanceRecord | None = None
        self._segments: dict[int, SealedSegment] = {}
        self._waiting, self._delay, self._not_before = False, 0.0, 0.0
        self.idle = True
        """Whether nothing is being compacted or indexed just now."""
        self.thread = threading.Thread(target=self._run, name="compactor")

    def configure(self, config: LogConfig) -> None:
        """Work by *config* from the next pass on."""
        self._config = config

    def begin(self) -> None:
        """Record the rules of this run, durably, before anything is appended.

        Raises:
            UnknownFormat: another version wrote the record.
            LogPoisoned: a sync failed.

        """
        try:
            found = read_maintenance(self._files, self._log.directory)
        except Corrupt:
            found = None
        # A reader that the last engine did not have needs nothing. Without a record of the last
        # engine, its readers are unknown.
        before = self._log.durable if found else -1
        known = {**found.readers, **found.waiting} if found else {}
        readers = {name: known.get(name, before) for name in self._needs.acknowledged_offsets()}
        self._record = replace(found or MaintenanceRecord(), readers=readers)
        self.record_readers()

    def record_readers(self) -> None:
        """Record the present readers, durably. Thread-safe. A failure is reported, and retried.

        Raises:
            LogPoisoned: a sync failed.

        """
        self._report.attempt(self._update_record)

    def start(self) -> None:
        """Begin to look."""
        self.thread.start()

    def request_stop(self) -> None:
        """Let everything that is paced end where it is."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the end, and record how far the sources are."""
        if self.thread.ident is None:
            return
        self.thread.join()
        try:
            self._report.attempt(self._update_record)
        except LogPoisoned as error:
            self._on_failure(error)

    def _run(self) -> None:
        try:
            self.idle = False
            self._report.attempt(self._reindex)
            while not self._stopping.is_set():
                self._report.attempt(lambda: self.run_once(wall_clock()))
                self.idle = True
                self._stopping.wait(TICK)
        except CompactionStopped:
            pass
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            self._on_failure(error)

    def _reindex(self) -> None:
        """Complete the indexes: a power cut may have cost that of the active segment."""
        pace = Throttle(self._config.compaction.rate, self._stopping)
        with translate_os_errors(self._log.directory):
            reindex(self._files, self._log.directory, pace, self._log.gate)

    def run_once(self, now: int) -> None:
        """Run the work that is due at the wall time *now* (µs UTC) once."""
        self._update_record()
        settings = self._settings()
        if settings is None or time.monotonic() < self._not_before:
            return
        if self._is_due(now, settings):
            self.idle = False
            self._compact(now, settings)

    def _settings(self) -> CompactionSettings | None:
        config = self._config.compaction
        if config.after is None:
            return None
        return CompactionSettings(config.after, config.keep, config.tombstones, self._config.codec)

    def _update_record(self) -> None:
        """Record the present rules, and how far each reader's source is."""
        config = self._config.compaction
        rules = CompactionRules(config.after, config.keep, config.tombstones, self._config.codec)
        with self._record_lock:
            known = self._record.readers
            readers, waiting = (
                # A reader that has just begun has not loaded its acknowledgements yet.
                {name: max(through, known.get(name, through)) for name, through in found.items()}
                for found in (self._needs.acknowledged_offsets(), self._needs.waiting_offsets())
            )
            self._save(replace(self._record, rules=rules, readers=readers, waiting=waiting))

    def _save(self, record: MaintenanceRecord) -> None:
        if record != self._saved:
            self._log.check_lock()
            with translate_os_errors(self._log.directory):
                write_maintenance(self._files, self._log.directory, record)
        self._record = self._saved = record

    def _is_due(self, now: int, settings: CompactionSettings) -> bool:
        """Return whether enough is new: each compaction reads all compacted entries again."""
        old = self._old_segments(now, settings.after)
        done = self._record.compacted_through(settings)
        new = sum(each.size for each in old if each.end > done)
        return new > 0 and new * _DUE_FRACTION >= sum(each.size for each in old)

    def _old_segments(self, now: int, after: float) -> list[SealedSegment]:
        least, limit = self._needs.least_hold().through, now - round(after * 1_000_000)
        # Only a compaction changes a sealed segment.
        found = {}
        for each in iter_sealed(self._files, self._log.directory, self._segments):
            if self._stopping.is_set():
                raise CompactionStopped
            found[each.base] = each
        self._segments = found
        times = WallTimes(self._files, self._log.directory, now)
        below = takewhile(lambda each: each.end <= least, found.values())
        return list(takewhile(lambda each: times.newest_time(each) < limit, below))

    def _compact(self, now: int, settings: CompactionSettings) -> None:
        try:
            report = compact(
                self._log.directory,
                self._files,
                watermark=lambda: self._needs.least_hold().through,
                settings=settings,
                now=now,
                progress=self._create_progress(),
                gate=self._log.gate,
            )
        except LogFull as error:
            self._try_later()
            if not self._waiting:
                self._waiting = True
                self._observe("compaction-waiting", problem=str(error))
            return
        except TransporterError:
            self._try_later()
            raise
        finally:
            self._segments = {}
        self._delay = 0.0
        through = max(report.through, self._record.compacted_through(settings))
        with self._record_lock:
            self._save(replace(self._record, compacted=extent_of(through, settings)))
        for problem in report.problems:
            self._observe("segment-not-compacted", problem=problem)
        if report.segments:
            self._observe(
                "log-compacted",
                segments=len(report.segments),
                dropped=report.dropped_entries,
                freed=report.freed_bytes,
            )

    def _create_progress(self) -> Callable[[int], None]:
        pace = Throttle(self._config.compaction.rate, self._stopping)

        def read(size: int) -> None:
            if self._waiting:
                # It reads nothing before it has found room.
                self._waiting = False
                self._observe("compaction-resumed")
            pace(size)

        return read

    def _try_later(self) -> None:
        """Retry with growing delays, because each try reads the segments again."""
        self._delay = min(max(TICK, 2 * self._delay), LONGEST)
        self._not_before = time.monotonic() + self._delay
