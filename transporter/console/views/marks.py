"""States of readers, routes and logs, with a word, a sign and a tone: never by colour alone."""

from __future__ import annotations

from typing import Final, NamedTuple


class Mark(NamedTuple):
    """A state as it is shown.

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
