"""The housekeeper: compaction, retention and the log's budget, in a thread of its own."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from transporter.errors import LogPoisoned, TransporterError
from transporter.log.commit_log import wall_clock
from transporter.log.compaction import CompactionSettings, compact
from transporter.log.filesystem import RealFileSystem
from transporter.log.reindex import reindex
from transporter.log.retention import RetentionSettings, excess, retain
from transporter.log.sealed import Sealed, sealed_segments

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.engine.events import Observer
    from transporter.log.commit_log import CommitLog
    from transporter.offsets.holds import Hold
    from transporter.pipeline.config import LogConfig

TICK: Final = 10.0
"""Seconds between two looks at the log."""
PRESSED: Final = 0.5
"""The same while readers wait for room."""
STUCK: Final = 5.0
"""Seconds that a route must not have moved, while readers wait, before it is released."""
EARLY: Final = 0.8
"""The share of the budget from which on the log is kept small, and its holder named."""
_ONCE_IN: Final = 8
"""The log is compacted when what was not compacted yet is this fraction of it."""


class Stopped(Exception):
    """The engine ends; what was begun is left as it was."""


class Pace:
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
            raise Stopped


class Housekeeper:
    """Keeps the log as small as its configuration asks (Invariant 11).

    What fails is told and tried again at the next look; only a failed sync ends the engine.
    """

    def __init__(
        self,
        log: CommitLog,
        config: LogConfig,
        hold: Callable[[], Hold],
        release: Callable[[str, int], None],
        observe: Observer,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Prepare to keep *log*.

        Args:
            log: the engine's.
            config: what to keep.
            hold: tells, durably, who needs the oldest entry, and which one.
            release: makes a route give up what it needs up to an offset.
            observe: hears what was done.
            on_failure: hears of a failed sync.

        """
        self._log, self._config, self._files = log, config, RealFileSystem()
        self._hold, self._release = hold, release
        self._observe, self._on_failure = observe, on_failure
        self._stopping = threading.Event()
        self._compacted: frozenset[int] = frozenset()
        self._warned = self._problem = ""
        self._unmoved: tuple[Hold, float] | None = None
        self.thread = threading.Thread(target=self._run, name="housekeeper")

    @property
    def holder(self) -> str:
        """Who holds a log that has nearly spent its budget; empty while it has room."""
        return self._warned

    def configure(self, config: LogConfig) -> None:
        """Keep from the next look on what *config* asks for."""
        self._config = config

    def start(self) -> None:
        """Begin to look."""
        self.thread.start()

    def stop(self) -> None:
        """End, leaving what was begun; return when it is over."""
        self._stopping.set()
        self._log.pressed.set()
        if self.thread.ident is not None:
            self.thread.join()

    def _run(self) -> None:
        try:
            # A power cut may have cost the index of the segment that was being written.
            reindex(self._files, self._log.directory)
            while not self._stopping.is_set():
                self._log.pressed.clear()
                self._look()
                self._log.pressed.wait(PRESSED if self._log.over_budget else TICK)
                if self._log.over_budget:
                    # Refusals come as fast as readers try: one look for many of them.
                    self._stopping.wait(PRESSED)
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            self._on_failure(error)

    def _look(self) -> None:
        try:
            self.keep(wall_clock())
            self._problem = ""
        except LogPoisoned:
            raise
        except (TransporterError, OSError) as error:
            if self._problem != str(error):
                self._problem = str(error)
                self._observe("housekeeping-failed", problem=self._problem)

    def keep(self, now: int) -> None:
        """Do once what is due at the wall time *now*, µs UTC."""
        self._retain(now)
        self._watch_the_budget(now)
        self._compact(now)

    def _through(self) -> int:
        return self._hold().through

    def _retain(self, now: int) -> None:
        budget, wanted = self._config.max_bytes, self._config.retention
        limits = [wanted.bytes, None if budget is None else round(EARLY * budget)]
        least = min((each for each in limits if each is not None), default=None)
        if least is None and wanted.age is None:
            return
        settings = RetentionSettings(least, wanted.age)
        for gone in retain(
            self._log.directory,
            watermark=self._through,
            settings=settings,
            now=now,
            size=self._log.used,
        ):
            self._observe("segment-removed", file=gone.name, through=gone.end, bytes=gone.size)

    def _watch_the_budget(self, now: int) -> None:
        budget = self._config.max_bytes
        if budget is None:
            return
        if self._log.over_budget and self._config.on_full == "stop-route":
            self._release_who_is_stuck(now, budget)
        else:
            self._unmoved = None
        used, hold = self._log.used, self._hold()
        told = str(hold) if used >= EARLY * budget else ""
        if told and told != self._warned:
            self._observe(
                "log-nearly-full",
                used=used,
                max_bytes=budget,
                holder=told,
                needs_from=hold.through + 1,
            )
        elif self._warned and not told:
            self._observe("log-has-room", used=used, max_bytes=budget)
        self._warned = told

    def _release_who_is_stuck(self, now: int, budget: int) -> None:
        """Release the route that holds the log, unless it goes on: then it makes room by itself."""
        hold, moment = self._hold(), time.monotonic()
        if self._unmoved is None or self._unmoved[0] != hold:
            self._unmoved = hold, moment
        if hold.kind == "reader" or moment - self._unmoved[1] < STUCK:
            return
        end = excess(self._log.directory, self._log.used, budget - self._config.segment_bytes)
        if end is not None and end > hold.through:
            self._release(hold.name, end)
            self._retain(now)

    def _compact(self, now: int) -> None:
        config = self._config.compaction
        if config.after is None or not self._due(now, config.after):
            return
        report = compact(
            self._log.directory,
            watermark=self._through,
            settings=CompactionSettings(
                config.after, config.keep, config.tombstones, self._config.codec
            ),
            now=now,
            progress=Pace(config.rate, self._stopping),
        )
        self._compacted = frozenset(each.base for each in self._old(now, config.after))
        for problem in report.problems:
            self._observe("segment-not-compacted", problem=problem)
        if report.segments:
            self._observe(
                "log-compacted",
                segments=len(report.segments),
                dropped=report.dropped,
                freed=report.freed,
            )

    def _due(self, now: int, after: float) -> bool:
        """Tell whether enough is new: each compaction reads all that was compacted before."""
        old = self._old(now, after)
        new = sum(each.size for each in old if each.base not in self._compacted)
        return new > 0 and new * _ONCE_IN >= sum(each.size for each in old)

    def _old(self, now: int, after: float) -> list[Sealed]:
        least, limit = self._through(), now - round(after * 1_000_000)
        found = sealed_segments(self._files, self._log.directory)
        return [each for each in found if each.end <= least and each.newest < limit]
