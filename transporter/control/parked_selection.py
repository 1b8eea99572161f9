"""The parked entries that a request names, by offsets and ranges. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from transporter.errors import ActionRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from transporter.control.requests import RetryParked, SkipParked

MOST: Final = 10_000
"""Parked entries and ranges that one request may name: as many as a route parks by default."""
MOST_NAMED: Final = 20
"""Offsets that the text of an answer lists; the JSON has all of them."""
_EVERYTHING: Final = 1 << 61
"""A range that ends beyond this names no offset, but all there are."""
Ranges = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ParkedSelection:
    """The parked entries that a request names.

    Attributes:
        chosen: the parked offsets, ascending.
        missing: the named offsets at which nothing is parked, as ranges.
        absent: the named ranges in which nothing is parked at all.
        refused: ranges of parked offsets that the request may not have, each with the reason.

    """

    chosen: list[int]
    missing: Ranges = field(default_factory=list)
    absent: Ranges = field(default_factory=list)
    refused: list[tuple[int, int, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return what was not done, as plain values."""
        return {
            "missing": [list(each) for each in self.missing],
            "refused": [
                {"first": first, "last": last, "reason": reason}
                for first, last, reason in self.refused
            ],
        }


def requested_ranges(request: RetryParked | SkipParked) -> Ranges:
    """Return the ranges that *request* names, joined where they touch, ascending.

    Raises:
        ActionRefused: a range ends before its first offset, or there are too many.

    """
    wanted = request.offsets or ((request.first, request.last),)
    if len(wanted) > MOST:
        raise ActionRefused(
            f"{len(wanted)} ranges of offsets are more than the {MOST:,} that one request may "
            "name; name fewer at once"
        )
    found: Ranges = []
    for first, last in sorted(wanted):
        if not 0 <= first <= last:
            raise ActionRefused(f"{first}..{last} is not an offset range; use 14 or 9..15")
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def select_parked(
    known: Sequence[int], wanted: Ranges, unreadable: Collection[int] = ()
) -> ParkedSelection:
    """Select those of the parked offsets *known*, ascending, that *wanted* names.

    Those that are *unreadable* are refused, and those beyond :data:`MOST`.
    """
    named, missing, absent = list[int](), Ranges(), Ranges()
    for first, last in wanted:
        part = known[bisect_left(known, first) : bisect_right(known, last)]
        named += part
        if last < _EVERYTHING:
            missing += _gaps(first, last, part)
            absent += [] if part else [(first, last)]
    chosen = [each for each in named if each not in unreadable]
    refused = [
        (each, each, "its file cannot be read; skip it, or restore it with 'log repair'")
        for each in named
        if each in unreadable
    ]
    if len(chosen) > MOST:
        text = f"one request has at most {MOST:,} entries; repeat it for these"
        refused.append((chosen[MOST], chosen[-1], text))
    return ParkedSelection(chosen[:MOST], missing, absent, refused)


def _gaps(first: int, last: int, part: Iterable[int]) -> Ranges:
    """Return the ranges from *first* to *last* without the offsets of *part*."""
    found: Ranges = []
    for offset in part:
        if offset > first:
            found.append((first, offset - 1))
        first = offset + 1
    return [*found, (first, last)] if first <= last else found


def range_text(ranges: Iterable[tuple[int, int]]) -> str:
    """Return *ranges* as people write them: ``3, 7..9``."""
    return ", ".join(f"{first}" if first == last else f"{first}..{last}" for first, last in ranges)


def named_offsets(offsets: Sequence[int]) -> str:
    """Return *offsets* as a text answer lists them: ``offsets 3, 7``."""
    named = ", ".join(map(str, offsets[:MOST_NAMED]))
    return f"offset{'' if len(offsets) == 1 else 's'} {named}{more_text(len(offsets))}"


def more_text(count: int) -> str:
    """Return how many of *count* items an answer leaves out, or ""."""
    return f" and {count - MOST_NAMED} more" if count > MOST_NAMED else ""
