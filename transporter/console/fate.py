"""The fate of one entry in one route, as far as it is recorded. Pure.

Beyond the watermark the offset log knows the kind of each settled range. At or below it only
the fact remains that the entry is settled; parked copies, released ranges, the audit file and
``given-up.jsonl`` add what they know. Nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from transporter.message import NOOP
from transporter.offsets.state import RELEASED, SUPERSEDED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transporter.offsets.parked import ParkReason
    from transporter.offsets.state import RouteState

Kind = Literal[
    "settled", "filtered", "parked", "pending", "replaying", "given up", "operator", "superseded"
]
SHAPES: Final[Mapping[Kind, str]] = {
    "settled": "check",
    "filtered": "point",
    "parked": "flag",
    "pending": "wait",
    "replaying": "again",
    "given up": "cross",
    "operator": "check",
    "superseded": "again",
}
_UNDELIVERED: Final = frozenset({"ack", "parked skip", "release"})
"""Actions of the audit file that settle entries undelivered."""
_GIVEN_UP: Final = {
    "skipped": "dropped after a failure (on_error: skip), or skipped by an operator",
    RELEASED: "taken from this route undelivered, to keep the log within its budget",
}


@dataclass(frozen=True, slots=True)
class RouteFacts:
    """The facts about one route that decide the fate of an entry.

    Attributes:
        takes: whether the filter in the pipeline file takes the entry, ``None`` if unknown.
        parked: the reason in the entry's parked copy, ``None`` if there is none.
        changes: the route's lines of the audit file, the oldest first.
        given_up: the newest line of ``given-up.jsonl`` about the entry, ``None`` without one.

    """

    state: RouteState
    takes: bool | None
    parked: ParkReason | None = None
    changes: Sequence[Mapping[str, Any]] = field(default=())
    given_up: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of an entry, with its explanation for people."""

    kind: Kind
    text: str

    @property
    def shape(self) -> str:
        """The name of the kind's sign, which the templates draw."""
        return SHAPES[self.kind]


def fate_of(offset: int, op: str, facts: RouteFacts) -> Fate:
    """Return the fate of the entry at *offset*."""
    state = facts.state
    if op == NOOP:
        return Fate("filtered", "it is a position of its reader, which no route delivers")
    if facts.parked is not None:
        return _parked_fate(offset, facts.parked, state)
    if _is_being_replayed(offset, facts):
        return Fate("replaying", "a replay will deliver it again")
    kind = _settled_kind(offset, state)
    return _pending_fate(facts) if kind is None else _settled_fate(offset, kind, facts)


def _parked_fate(offset: int, reason: ParkReason, state: RouteState) -> Fate:
    asked = "; a retry is requested" if offset in state.retries else ""
    if reason.behind is not None:
        text = f"parked behind {reason.behind}, an earlier entry of its key{asked}"
        return Fate("parked", text)
    if not reason.attempts:
        return Fate("parked", f"parked{asked}")
    tries = "1 attempt" if reason.attempts == 1 else f"{reason.attempts} attempts"
    return Fate("parked", f"parked after {tries}{asked}")


def _is_being_replayed(offset: int, facts: RouteFacts) -> bool:
    """Return whether a replay of all namespaces will deliver the entry. Another may not."""
    replay = facts.state.replay
    if replay is None or replay.namespace or facts.takes is False:
        return False
    return replay.next <= offset <= replay.last


def _settled_kind(offset: int, state: RouteState) -> str | None:
    """Return how *offset* was settled, ``""`` if only that it was is known, or ``None``."""
    for part in (*state.above, *state.released):
        if part.first <= offset <= part.last:
            return part.kind
    return "" if offset <= state.watermark else None


def _pending_fate(facts: RouteFacts) -> Fate:
    if facts.takes is False:
        return Fate("filtered", "its filter leaves it out")
    mark = facts.state.watermark
    where = f"behind the watermark {mark}" if mark >= 0 else "the route has settled nothing"
    paused = "; the route is paused" if facts.state.paused else ""
    return Fate("pending", f"not settled yet: {where}{paused}")


def _settled_fate(offset: int, kind: str, facts: RouteFacts) -> Fate:
    since = _replayed_since(offset, facts.changes)
    undelivered = _undelivered_fate(kind, _newest_change(offset, facts.changes))
    if undelivered is None and not kind and facts.given_up is not None:
        undelivered = _recorded_fate(facts.given_up)
    if undelivered is not None:
        return Fate(undelivered.kind, f"{undelivered.text}{since}")
    if facts.takes is False:
        return Fate("filtered", "its filter leaves it out")
    if kind == "parked":
        return Fate("settled", f"parked earlier, and delivered or skipped since{since}")
    taken = "its filter takes it" if facts.takes else "its filter is not known here"
    if kind == "acked":
        return Fate("settled", f"acknowledged by the sink, or left out; {taken}{since}")
    where = f"at or below the watermark {facts.state.watermark}"
    return Fate("settled", f"settled: {where}; {taken}{since}")


def _undelivered_fate(kind: str, change: Mapping[str, Any] | None) -> Fate | None:
    """Return the fate of an entry that was settled undelivered, ``None`` for others.

    The offset log decides. The audit file counts only where that no longer has the *kind*.
    """
    action = "" if change is None or kind else change["action"]
    if kind == SUPERSEDED:
        return Fate("superseded", "passed undelivered, because its source gives it again")
    if kind == "operator" or action == "ack":
        return Fate("operator", f"settled undelivered by an operator{_by(change)}")
    if action == "parked skip":
        return Fate("given up", f"parked, then skipped by an operator{_by(change)}")
    if kind in _GIVEN_UP:
        return Fate("given up", _GIVEN_UP[kind])
    return Fate("given up", _GIVEN_UP[RELEASED]) if action == "release" else None


def _recorded_fate(line: Mapping[str, Any]) -> Fate | None:
    """Return the fate that a line of ``given-up.jsonl`` records, without its error's text."""
    match line.get("event"):
        case "entry-skipped":
            return Fate("given up", "dropped after a failure (on_error: skip)")
        case "parked-delivered":
            return Fate("settled", "delivered after it had been parked")
    return None


def _newest_change(offset: int, changes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the newest change that settled *offset* undelivered, if the audit file has one."""
    return next(
        (
            each
            for each in reversed(changes)
            if each.get("action") in _UNDELIVERED and _was_done(each) and _covers(each, offset)
        ),
        None,
    )


def _replayed_since(offset: int, changes: Sequence[Mapping[str, Any]]) -> str:
    """Return a remark if a replay of *offset* began after the last change that settled it."""
    for change in reversed(changes):
        if not _was_done(change) or not _covers(change, offset):
            continue
        if change.get("action") == "replay":
            return f"; a replay of it began later{_by(change)}"
        if change.get("action") in _UNDELIVERED:
            return ""
    return ""


def _was_done(change: Mapping[str, Any]) -> bool:
    return not str(change.get("outcome") or "").startswith("failed")


def _covers(change: Mapping[str, Any], offset: int) -> bool:
    offsets = change.get("offsets")
    if isinstance(offsets, list):
        return offset in offsets
    first, last = change.get("first"), change.get("last")
    return isinstance(first, int) and isinstance(last, int) and first <= offset <= last


def _by(change: Mapping[str, Any] | None) -> str:
    """Return who made a change and why, to be put behind its description."""
    if change is None:
        return ""
    who, reason = change.get("who"), change.get("reason")
    return (f", {who}" if who else "") + (f": {reason}" if reason else "")
