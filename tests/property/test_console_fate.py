"""The console's fate of an entry, against a model that remembers every event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as some

from transporter.console.fate import RouteFacts, fate_of
from transporter.offsets.parked import ParkReason
from transporter.offsets.state import Range, RouteState, settle

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

OFFSETS = 24
FATES = {
    "acked": "settled",
    "skipped": "given up",
    "operator": "operator",
    "parked": "parked",
    "released": "given up",
}
"""The fate that each kind of event gives, as a person who saw all of them would say."""
RECORDED = {"operator": "ack", "released": "release"}
"""Kinds of which the audit file has a line."""


@some.composite
def histories(draw: DrawFn) -> list[Range]:
    """Draw settled ranges in any order, which never settle an offset twice."""
    cuts = sorted(draw(some.sets(some.integers(1, OFFSETS - 1), max_size=9)))
    starts, ends = [0, *cuts], [*cuts, OFFSETS]
    parts = [
        Range(start, end - 1, draw(some.sampled_from(sorted(FATES))))
        for start, end in zip(starts, ends, strict=True)
    ]
    left = draw(some.permutations(parts))
    return left[: draw(some.integers(0, len(left)))]


def recorded(part: Range) -> dict[str, Any]:
    """Return the line of the audit file about *part*."""
    ends = {"first": part.first, "last": part.last}
    return {"action": RECORDED[part.kind], "who": "ann", "outcome": "done", **ends}


@given(histories(), some.sampled_from([True, False, None]))
def test_the_fate_is_never_better_than_what_happened(
    events: list[Range], takes: bool | None
) -> None:
    """What is said of each offset is what the events did to it, or only that it is settled."""
    state, history, parked, changes = RouteState(), dict[int, str](), set[int](), []
    for part in events:
        state = settle(state, part)
        history |= dict.fromkeys(range(part.first, part.last + 1), part.kind)
        if part.kind == "parked":
            parked |= set(range(part.first, part.last + 1))
        if part.kind in RECORDED:
            changes.append(recorded(part))
    for offset in range(OFFSETS):
        reason = ParkReason("no", 3, 0) if offset in parked else None
        kind = history.get(offset)
        line = {"event": "entry-skipped", "offset": offset} if kind == "skipped" else None
        fate = fate_of(offset, "insert", RouteFacts(state, takes, reason, changes, line))
        if kind is None:
            assert fate.kind == ("filtered" if takes is False else "pending")
        elif kind == "acked":
            assert fate.kind == ("filtered" if takes is False else "settled")
        else:
            assert fate.kind == FATES[kind]
