"""Watchdog of a worker: ends the process if it hangs for longer than ``slice_timeout``."""

from __future__ import annotations

import faulthandler
import time


class Watchdog:
    """Ends this process unless it is re-armed in time, even if the interpreter hangs.

    Arming starts a thread, which would cost a small slice half its time. It is therefore due
    at most four times in *seconds*, and a hung process ends after three quarters of them at
    the earliest, and after all of them at the latest. One per process.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.patience = seconds / 4
        """Seconds between two armings."""
        self.due = float("-inf")
        """When it is to be armed next, on the monotonic clock."""

    def rearm(self) -> None:
        """Arm it, so that the process may run for *seconds* from now."""
        self.due = time.monotonic() + self.patience
        faulthandler.dump_traceback_later(self.seconds, exit=True)

    def disarm(self) -> None:
        """Let the process run: it may be used again, for another task."""
        faulthandler.cancel_dump_traceback_later()
