"""The committer: makes the progress of all routes durable, at the commit interval."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from transporter.engine.thread_heartbeat import Heartbeat
from transporter.errors import LogFull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transporter.offsets.offset_log import OffsetLog


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
