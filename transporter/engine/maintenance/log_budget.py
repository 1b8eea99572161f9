"""The housekeeper: retention, the log's budget and the release of a stuck route.

Makes room, in a thread that waits for nothing else: compaction and lost indexes are
the compactor's, which it owns.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from transporter.engine.maintenance.compactor import Compactor, FailureReport, Needs
from transporter.log.commit_log import wall_clock
from transporter.log.retention import RetentionSettings, apply_retention, last_excess_offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.engine.events import Observer
    from transporter.log.commit_log import CommitLog
    from transporter.offsets.retention_holds import Hold
    from transporter.pipeline.config import LogConfig

TICK: Final = 10.0
"""Seconds between two looks at the log."""
PRESSED: Final = 0.5
"""The same while readers wait for room."""
STUCK: Final = 5.0
"""Seconds that a route must not have moved, while readers wait, before it is released."""
EARLY: Final = 0.8
"""The share of the budget from which on the log is kept small, and its holder named."""


class Holds(Needs, Protocol):
    """Who needs which entries of the log, and how a route is made to need them no more."""

    def release_limit(self) -> Hold | None:
        """Return the hold of the reader beyond which nothing is released, or ``None``."""

    def awaits_spark(self, route: str) -> bool:
        """Return whether *route* cannot move before Spark has started a worker for it."""

    def release(self, route: str, through: int) -> None:
        """Release the entries of *route* up to *through*."""


class Housekeeper:
    """Keeps the log as small as its configuration asks (Invariant 11).

    It has two threads, so that making room never waits for paced work. Failures are reported
    and retried at the next pass. Only a failed sync ends the engine.
    """

    def __init__(
        self,
        log: CommitLog,
        config: LogConfig,
        holds: Holds,
        observe: Observer,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Prepare to keep *log*.

        Args:
            log: the engine's log.
            config: the limits.
            holds: the entries that are still needed, by owner.
            observe: receives events.
            on_failure: receives a failed sync.

        """
        self._log, self._config = log, config
        self._holds = holds
        self._observe, self._on_failure = observe, on_failure
        self._report = FailureReport(observe)
        self._stopping = threading.Event()
        self._reported_holder = self._reported_limit = ""
        self._stuck_since: tuple[Hold, float] | None = None
        self.thread = threading.Thread(target=self._run, name="housekeeper")
        self.compactor = Compactor(log, config, holds, observe, on_failure)

    @property
    def holder(self) -> str:
        """The owners of holds while the budget is nearly spent; empty while there is room."""
        return self._reported_holder

    @property
    def release_limit(self) -> str:
        """The reader for which the holder is not released although it could be; else empty."""
        return self._reported_limit

    def configure(self, config: LogConfig) -> None:
        """Apply the limits of *config* from now on."""
        self._config = config
        self.compactor.configure(config)
        self._log.room_wanted.set()

    @property
    def threads(self) -> list[threading.Thread]:
        """Run until :meth:`stop`."""
        return [self.thread, self.compactor.thread]

    def begin(self) -> None:
        """Record this engine's readers durably, before anything is appended."""
        self.compactor.begin()

    def record_readers(self) -> None:
        """Record the present readers durably, before a new one appends anything. Thread-safe."""
        self.compactor.record_readers()

    def start(self) -> None:
        """Begin to look."""
        self.thread.start()
        self.compactor.start()

    def stop(self) -> None:
        """Stop without finishing running work; return when the threads have ended."""
        self._stopping.set()
        self.compactor.request_stop()
        self._log.room_wanted.set()
        if self.thread.ident is not None:
            self.thread.join()
        self.compactor.join()

    def _run(self) -> None:
        try:
            while True:
                # In this order: a stop sets both, the other way round.
                self._log.room_wanted.clear()
                if self._stopping.is_set():
                    return
                self._report.attempt(lambda: self.run_once(wall_clock()))
                if self._log.over_budget:
                    # Refusals come as fast as readers try: one look for many of them.
                    self._stopping.wait(PRESSED)
                else:
                    self._log.room_wanted.wait(TICK)
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            self._on_failure(error)

    def run_once(self, now: int) -> None:
        """Make once the room that is due at the wall time *now*, µs UTC."""
        wanted = self._log.take_refused_bytes()
        self._retain(now, wanted)
        self._check_budget(now, wanted)
        # Last, because it needs room, and fails on a full disk.
        self._log.roll_if_old()

    def _retain(self, now: int, wanted: int) -> None:
        """Remove entries that are due, and as many as an append of *wanted* bytes needs."""
        budget, kept = self._config.max_bytes, self._config.retention
        limits = [] if kept.bytes is None else [kept.bytes]
        if budget is not None:
            limits.append(max(0, min(round(EARLY * budget), budget - wanted)))
        least = min(limits, default=None)
        if least is None and kept.age is None:
            return
        for gone in apply_retention(
            self._log.directory,
            watermark=lambda: self._holds.least_hold().through,
            settings=RetentionSettings(least, kept.age),
            now=now,
            size=self._log.used_bytes,
            gate=self._log.gate,
        ):
            self._observe("segment-removed", file=gone.name, through=gone.end, bytes=gone.size)

    def _check_budget(self, now: int, wanted: int) -> None:
        budget = self._config.max_bytes
        if budget is None:
            return
        if self._log.over_budget and self._config.on_full == "stop-route":
            self._release_stuck_route(now, budget, wanted)
        else:
            self._stuck_since, self._reported_limit = None, ""
        used, hold = self._log.used_bytes, self._holds.least_hold()
        holder = str(hold) if used >= EARLY * budget else ""
        if holder and holder != self._reported_holder:
            self._observe(
                "log-nearly-full",
                used=used,
                max_bytes=budget,
                holder=holder,
                needs_from=hold.through + 1,
            )
        elif self._reported_holder and not holder:
            self._observe("log-has-room", used=used, max_bytes=budget)
        self._reported_holder = holder

    def _release_stuck_route(self, now: int, budget: int, wanted: int) -> None:
        """Release the route that holds the log, unless it goes on: then it makes room by itself."""
        hold, moment = self._holds.least_hold(), time.monotonic()
        since = self._stuck_since
        if since is None or since[0] != hold or self._holds.awaits_spark(hold.name):
            since = self._stuck_since = hold, moment
        if hold.kind == "reader" or moment - since[1] < STUCK:
            return
        limit = self._holds.release_limit()
        end = last_excess_offset(
            self._log.directory,
            self._log.used_bytes,
            max(0, budget - max(self._config.segment_bytes, wanted)),
            through=self._log.durable if limit is None else limit.through,
        )
        before, self._reported_limit = self._reported_limit, ""
        if end is not None and end > hold.through:
            self._holds.release(hold.name, end)
            self._retain(now, wanted)
        elif limit is not None:
            self._reported_limit = str(limit)
            if before != self._reported_limit:
                why = _why(limit)
                self._observe("release-refused", route=hold.name, reader=limit.name, why=why)


def _why(limit: Hold) -> str:
    """Return why the entries of the reader that holds *limit* are taken from no route."""
    gone = "the pipeline no longer has this reader, and " if limit.kind == "removed reader" else ""
    return f"{gone}its source would not give the entries again"
