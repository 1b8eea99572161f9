"""The committer, which makes the progress of all routes durable, and its warnings of the log."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from transporter.engine.thread_heartbeat import Heartbeat
from transporter.errors import LogFull
from transporter.log.clocks import AHEAD
from transporter.log.filesystem import RealFileSystem
from transporter.log.segment import stray_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transporter.engine.events import Observer
    from transporter.log.commit_log import CommitLog
    from transporter.offsets.offset_log import OffsetLog


class LogWarnings:
    """Reports conditions of *log* that concern operators, once each. Belongs to one thread."""

    def __init__(self, log: CommitLog, observe: Observer) -> None:
        """Report to *observe*."""
        self._log, self._observe = log, observe
        self._is_ahead = False

    def begin(self) -> None:
        """Run the checks of a start."""
        for stray in stray_files(RealFileSystem(), self._log.directory):
            self._observe("file-ignored", file=stray.name, problem=stray.problem)
        self._check_clock()

    def check(self) -> None:
        """Check lock and clock again.

        Raises:
            LockLost: another engine can own the log by now (Invariant 12).

        """
        self._log.check_lock()
        self._check_clock()

    def _check_clock(self) -> None:
        if (jump := self._log.take_clock_jump()) > 0:
            self._observe("clock-jumped", seconds=round(jump))
        ahead = self._log.seconds_ahead
        if (is_ahead := ahead > AHEAD) and not self._is_ahead:
            self._observe("log-time-ahead", seconds=round(ahead))
        self._is_ahead = is_ahead


class Committer:
    """Syncs the offset logs again and again, in a thread of its own."""

    def __init__(
        self,
        offset_logs: Callable[[], Iterable[OffsetLog]],
        interval: Callable[[], float],
        before: Callable[[], object],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Prepare to sync what *offset_logs* returns, every *interval* seconds.

        *before* is called first each time. An error of either is passed to *on_failure*, and ends
        the thread.
        """
        self._offset_logs, self._interval = offset_logs, interval
        self._before, self._on_failure = before, on_failure
        self._stopping, self._heartbeat = threading.Event(), Heartbeat()
        self.thread = threading.Thread(target=self._run, name="committer")

    @property
    def is_hung(self) -> bool:
        """Whether a sync has not returned for minutes."""
        return self._heartbeat.is_overdue

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def stop(self) -> None:
        """End, and return when nothing is synced any more. Safe if it never began."""
        self._stopping.set()
        if self.thread.ident is not None:
            self.thread.join()

    def _run(self) -> None:
        try:
            while not self._wait():
                self._before()
                for offsets in self._offset_logs():
                    # Its route shows that it waits for room, and delivers nothing (Invariant 14).
                    with suppress(LogFull):
                        offsets.sync()
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            self._on_failure(error)

    def _wait(self) -> bool:
        """Wait until the next commit; return whether there is none."""
        with self._heartbeat.suspended():
            return self._stopping.wait(self._interval())
