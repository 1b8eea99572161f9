"""Search for the entry that keeps a part of a slice from being applied. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that had no effect. ``place`` is the guilty entry, if it is known."""

    problem: str
    place: int | None = None


def apply_good(
    begin: int, end: int, attempt: Callable[[int, int], Failure | None], failed: Failure
) -> tuple[int, Failure | None]:
    """Apply the entries from *begin* to *end* up to the first that fails alone.

    Parts that succeed are kept, so each entry is applied about twice. If one entry is guilty,
    there are at most ``log2(end - begin) + 1`` attempts.

    Args:
        begin: The place of the first entry.
        end: The place behind the last entry.
        attempt: Applies the entries from a place to another, all of them or none.
        failed: The failure of all of them together.

    Returns:
        The place of the first entry that is not applied, and its failure, or *end* and ``None``.
    """
    good, (bad, until) = begin, _narrow(begin, end, failed)
    while good < end:
        failure = attempt(good, until)
        if failure is None:
            good = until
            # The guilty one is before bad, unless the entries fail together only.
            until = good + max(1, (bad - good) // 2) if good < bad else end
        elif until - good == 1 or failure.place == good:
            return good, failure
        else:
            bad, until = _narrow(good, until, failure)
    return end, None


def _narrow(good: int, until: int, failure: Failure) -> tuple[int, int]:
    """Return the end of the entries that hold the guilty one, and the end of the next attempt."""
    if failure.place is not None:
        return failure.place + 1, max(failure.place, good + 1)
    return until, good + max(1, (until - good) // 2)
