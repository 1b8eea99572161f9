"""Warnings about the log: a lost lock, a clock that jumped, and files that do not belong to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.log.clocks import AHEAD
from transporter.log.filesystem import RealFileSystem
from transporter.log.segment import stray_files

if TYPE_CHECKING:
    from transporter.engine.events import Observer
    from transporter.log.commit_log import CommitLog


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
