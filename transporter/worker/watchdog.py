"""The watchdog of a worker: ends a process that hangs longer than ``slice_timeout``."""

from __future__ import annotations

import faulthandler
import time


class Watchdog:
    """Ends this process unless it is re-armed in time, even if the interpreter hangs.

    Arming starts a thread, which would cost a small slice half its time. It is therefore done
    at most four times in *seconds*, and a hung process ends after three quarters of them at
    the earliest, and after all of them at the latest.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self._armed = seconds, float("-inf")
        self.patience = seconds / 4
        """Seconds between two armings."""

    def rearm(self) -> None:
        """Re-arm, if that is due."""
        now = time.monotonic()
        if now - self._armed >= self.patience:
            faulthandler.dump_traceback_later(self.seconds, exit=True)
            self._armed = now
