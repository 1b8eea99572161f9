"""The delivery plan: the offsets that a route delivers next after a failure. Pure.

The plan (docs/design/delivery.md, "Failures"): entries go in bulk until a failure, then in
shorter slices. Suspected entries go one at a time, each announced before its delivery, so that
even the death of a worker identifies the entry. Afterwards slices grow again with each success.
A worker reads all of a slice, though only the beginning of a failed one counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

_FEWEST: Final = 64
"""Offsets that go in bulk at once where many entries fail."""
_MOST: Final = 1 << 16
"""Offsets that go in bulk again after failures before the route's own settings bound them alone."""
_MOST_SINGLY: Final = 1000
"""Offsets that go one at a time in one batch, because entries after a failure are read again."""


@dataclass(frozen=True, slots=True)
class Suspects:
    """Offsets ``first`` to ``last`` are delivered one at a time.

    ``attempts`` counts how often ``first`` has failed alone.
    """

    first: int
    last: int
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class RedeliveryPlan:
    """The suspected offsets; without any, delivery goes in bulk.

    ``first_death`` is the first offset of a bulk slice with which a worker died once, because
    most deaths have other causes, and one at a time is slow. ``bulk_limit`` bounds bulk slices;
    with ``None`` only the route's settings do.
    """

    suspects: Suspects | None = None
    first_death: int | None = None
    bulk_limit: int | None = None

    def cut(self, first: int, last: int) -> tuple[int, bool]:
        """Return the last offset to hand over from *first* on, and whether one at a time.

        *last* bounds the slice in any case.
        """
        suspects = self.suspects
        if suspects is not None and suspects.first <= first <= suspects.last:
            return min(last, suspects.last, first + _MOST_SINGLY - 1), True
        if suspects is not None and first < suspects.first:
            last = min(last, suspects.first - 1)
        return (last if self.bulk_limit is None else min(last, first + self.bulk_limit - 1)), False

    def after_failure(self, first: int, last: int, offset: int | None, *, single: bool) -> Self:
        """Return the plan after the slice from *first* to *last* failed.

        Args:
            first: the first offset that is not settled now.
            last: the slice's last offset.
            offset: the entry that failed, if the failure or an announcement named it.
            single: whether the entries were delivered one at a time.

        """
        if offset is None:
            narrowed = self._with_shorter_slices(first, last)
            # A large slice goes in shorter slices first, because one at a time is slow.
            suspected = replace(self, suspects=Suspects(first, last))
            return suspected if narrowed == self else narrowed
        known = self.suspects
        if not single:
            end = known.last if known and known.first <= offset <= known.last else offset
            return replace(self._with_shorter_slices(first, last), suspects=Suspects(offset, end))
        again = known is not None and known.first == offset
        attempts = known.attempts + 1 if known and again else 1
        end = known.last if known else last
        return replace(self, suspects=Suspects(offset, max(end, offset), attempts))

    def after_death(self, first: int, last: int, announced: int | None, *, single: bool) -> Self:
        """Return the plan after a worker died by itself with this slice.

        In bulk the first death is taken for an accident, the second for the
        slice's doing. One at a time the entry *announced* last is guilty.
        """
        if single:
            return (
                self
                if announced is None
                else self.after_failure(first, last, announced, single=True)
            )
        if self.first_death != first:
            return replace(self, first_death=first)
        return replace(self, suspects=Suspects(first, last), first_death=None)

    def after_success(self) -> Self:
        """Return the plan after a slice in bulk was delivered to its end."""
        if self.bulk_limit is None:
            return self
        return replace(
            self, bulk_limit=2 * self.bulk_limit if 2 * self.bulk_limit < _MOST else None
        )

    def _with_shorter_slices(self, first: int, last: int) -> Self:
        """Return the plan with shorter slices in bulk, as the one from *first* to *last* failed."""
        size = last - first + 1
        return self if size <= _FEWEST else replace(self, bulk_limit=max(_FEWEST, size // 4))

    def attempts(self, offset: int) -> int:
        """Return how often the entry at *offset* has failed alone."""
        known = self.suspects
        return known.attempts if known is not None and known.first == offset else 0

    def after_settling(self, through: int) -> Self:
        """Return the plan once everything up to *through* is settled."""
        known = self.suspects
        if known is None or through < known.first:
            return self
        if through >= known.last:
            return replace(self, suspects=None)
        return replace(self, suspects=Suspects(through + 1, known.last))
