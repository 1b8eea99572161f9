"""Search for the entry that keeps a part of a slice from being applied. Pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Units:
    """Entries of which some are applied together or not at all, as those of one TRUNCATE are."""

    def __init__(self, together: Iterable[tuple[int, int]] = ()) -> None:
        """Take the places of the first entry of each unit of several, and behind its last."""
        self._together = sorted(together)

    def end_of(self, place: int) -> int:
        """Return the end of the unit at *place*."""
        _, end = self._find(place)
        return end

    def end_near(self, begin: int, place: int) -> int:
        """Return an end of a unit behind *begin* that is *place*, or near it."""
        if place <= begin:
            return self.end_of(begin)
        start, end = self._find(place)
        return end if start <= begin else start

    def _find(self, place: int) -> tuple[int, int]:
        """Return the unit at *place*."""
        at = bisect_right(self._together, place, key=lambda unit: unit[0]) - 1
        if at >= 0 and place < self._together[at][1]:
            return self._together[at]
        return place, place + 1


ALONE: Final = Units()
"""No entries that are applied together."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that had no effect. ``place`` is the guilty entry, if it is known."""

    problem: str
    place: int | None = None


def apply_good(
    begin: int,
    end: int,
    attempt: Callable[[int, int], Failure | None],
    failed: Failure,
    units: Units = ALONE,
    is_over: Callable[[], bool] = lambda: False,
) -> tuple[int, Failure | None]:
    """Apply the entries from *begin* to *end* up to the first that fails alone.

    Parts that succeed are kept, so each entry is applied about twice. If one entry is guilty,
    there are at most ``log2(end - begin) + 1`` attempts.

    Args:
        begin: The place of the first entry.
        end: The place behind the last entry.
        attempt: Applies the entries from a place to another, all of them or none.
        failed: The failure of all of them together.
        units: The entries that cannot be applied one by one.
        is_over: Whether the time for further attempts is over.

    Returns:
        The place of the first entry that is not applied, and its failure. Without a failure all
        entries before that place are applied, and it is before *end* only if the time was over.
    """
    good, (bad, until) = begin, _narrow(begin, end, failed, units)
    while good < end and not is_over():
        failure = attempt(good, until)
        if failure is None:
            good = until
            # The guilty one is before bad, unless the entries fail together only.
            until = units.end_near(good, good + (bad - good) // 2) if good < bad else end
        elif until <= units.end_of(good) or failure.place == good:
            return good, failure
        else:
            bad, until = _narrow(good, until, failure, units)
    return good, None


def _narrow(good: int, until: int, failure: Failure, units: Units) -> tuple[int, int]:
    """Return the end of the entries that hold the guilty one, and the end of the next attempt."""
    if failure.place is not None:
        return units.end_of(failure.place), units.end_near(good, failure.place)
    return until, units.end_near(good, good + (until - good) // 2)
