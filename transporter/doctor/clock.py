"""Checks of the wall clock: its date, and its pace against the uptime of the host."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from transporter.adaptor import Finding
from transporter.log.clocks import uptime

if TYPE_CHECKING:
    from collections.abc import Iterator

_RELEASED: Final = datetime(2026, 11, 28, tzinfo=UTC).timestamp()
"""The date of this version. No right clock is before it."""
_JUMP: Final = 0.5
"""Seconds. A synchronised clock is slewed by less in a minute."""


class Reading(NamedTuple):
    """Wall clock and uptime at one moment, in seconds."""

    wall: float
    uptime: float


def read() -> Reading:
    """Read both clocks."""
    return Reading(time.time(), uptime())


def check(since: Reading, now: Reading) -> Iterator[Finding]:
    """Yield findings about the wall clock, from two readings some time apart."""
    date = datetime.fromtimestamp(now.wall, UTC).strftime("%Y-%m-%d %H:%M UTC")
    passed = now.uptime - since.uptime
    moved = now.wall - since.wall - passed
    if now.wall < _RELEASED:
        yield Finding(
            f"it is {date}, before this version was made: set the clock, and synchronise it "
            "(chrony, systemd-timesyncd)",
            "problem",
        )
    elif abs(moved) > _JUMP:
        yield Finding(
            f"it moved by {moved:+.1f} s against the uptime within {passed:.1f} s: entries get "
            "such log times; let chrony or systemd-timesyncd slew it instead of setting it",
            "warning",
        )
    else:
        yield Finding(f"{date}, steady against the uptime over {passed:.1f} s")
