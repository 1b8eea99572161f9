"""Drawings of the overview: marks of states, never by colour alone, and small charts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from transporter.console.formats import rate_text
from transporter.control.status_texts import duration_text

if TYPE_CHECKING:
    from transporter.console.rates import Series

WIDTH: Final = 120
HEIGHT: Final = 28
_WINDOWS: Final = (120.0, 1800.0)
"""Seconds that a line covers: those of the console's own looks, or of the engine's history."""


class Mark(NamedTuple):
    """A state of a reader, route or log as it is shown: a word, a sign and a tone.

    Attributes:
        shape: the name of a sign, which the templates draw.
        tone: ``good``, ``busy``, ``warn``, ``bad`` or ``idle``.

    """

    word: str
    shape: str
    tone: str


_MARKS: Final = {
    "running": Mark("running", "dot", "good"),
    "starting": Mark("starting", "pie", "busy"),
    "retrying": Mark("retrying", "triangle", "warn"),
    "no space": Mark("no space", "triangle", "warn"),
    "paused": Mark("paused", "pause", "idle"),
    "candidate": Mark("candidate", "diamond", "idle"),
    "stopped": Mark("stopped", "square", "bad"),
    "ended": Mark("ended", "check", "idle"),
    "not running": Mark("not running", "ring", "idle"),
}
TROUBLED: Final = frozenset({"warn", "bad"})

LOOK_MARKS: Final = {
    "live": Mark("engine runs", "dot", "good"),
    "silent": Mark("does not answer", "triangle", "warn"),
    "stopped": Mark("no engine", "ring", "idle"),
    "absent": Mark("no log yet", "ring", "idle"),
    "damaged": Mark("cannot be read", "square", "bad"),
}


def mark_of(state: str) -> Mark:
    """Return the mark of a reader's or route's *state*. A state of a later version is a word."""
    return _MARKS.get(state, Mark(state, "ring", "idle"))


class Sparkline(NamedTuple):
    """A line over the last minutes, with its description for those who do not see it.

    ``points`` and ``area`` are coordinates of an SVG.
    """

    points: str
    area: str
    label: str
    least: str
    most: str


def sparkline(series: Series | None) -> Sparkline | None:
    """Return the line of *series*, or ``None`` while it has fewer than two points."""
    if series is None or len(series.points) < 2:  # noqa: PLR2004 - a line is between two
        return None
    rates = [rate for _, rate in series.points]
    top = max(rates) or 1.0
    oldest = series.points[0][0]
    window = next((each for each in _WINDOWS if oldest <= each), _WINDOWS[-1])
    places = [
        (round(WIDTH - min(ago, window) / window * WIDTH, 1), _height(rate, top))
        for ago, rate in series.points
    ]
    line = " ".join(f"{x:g},{y:g}" for x, y in places)
    area = f"{places[0][0]:g},{HEIGHT} {line} {places[-1][0]:g},{HEIGHT}"
    low, high = rate_text(min(rates)), rate_text(max(rates))
    label = f"last {duration_text(round(oldest))}: {low} to {high}, now {rate_text(series.now)}"
    return Sparkline(line, area, label, low, high)


def _height(rate: float, top: float) -> float:
    return round(HEIGHT - 2 - rate / top * (HEIGHT - 4), 1)
