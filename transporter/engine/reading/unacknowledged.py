"""Batches of one reader that are logged and not acknowledged to the source yet. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from transporter.offsets.state import Range


_SPARE: Final = 64
"""Positions that are kept although no commit may name them: so it is rarely looked which."""


class DeliveredPart(NamedTuple):
    """Rows of the batch at ``position`` that every route has delivered."""

    position: str
    rows: Sequence[int]


@dataclass(slots=True)
class _Part:
    """A range of offsets that was appended at once. ``row`` is the row at ``next``."""

    position: str
    row: int
    next: int
    last: int


def ranges_of(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges that *offsets*, which ascend, are made of: first and last of each."""
    numbers = iter(offsets)
    first = last = next(numbers, None)
    for offset in numbers:
        if last is not None and first is not None and offset != last + 1:
            yield first, last
            first = offset
        last = offset
    if first is not None and last is not None:
        yield first, last


class UnacknowledgedBatches:
    """The batches of a reader that waits for their delivery, oldest first. Not thread-safe.

    An entry that some route has parked is *withheld*: it is below the watermark and not
    delivered while it is parked. ``park_limit`` bounds their number. An entry that was released
    from some route is *given up*: it counts among the entries until :meth:`clear`.
    """

    def __init__(self) -> None:
        self._parts: deque[_Part] = deque()
        self._positions: deque[tuple[str, int]] = deque()
        self._withheld: dict[int, tuple[str, int]] = {}
        self.given_up = 0
        # Read before each poll, and there may be as many parts as entries.
        self._count = self._kept = 0

    def __len__(self) -> int:
        """Return how many entries are not delivered."""
        return self._count

    @property
    def waiting_count(self) -> int:
        """How many entries are neither delivered nor withheld."""
        return self._count - len(self._withheld)

    @property
    def first_undelivered(self) -> int | None:
        """The first offset that is neither delivered nor withheld, or ``None``."""
        return self._parts[0].next if self._parts else None

    def add(self, position: str, parts: Sequence[tuple[int, int]]) -> None:
        """Open the batch at *position*, logged as *parts*: first and last offset of each append."""
        row = 0
        for first, last in parts:
            self._parts.append(_Part(position, row, first, last))
            row += last - first + 1
        self._count += row
        self._positions.append((position, parts[-1][1]))

    def deliver(
        self, through: int, parked: AbstractSet[int], released: Sequence[Range] = ()
    ) -> list[DeliveredPart]:
        """Return the entries that are delivered now that all routes have passed *through*.

        Except those that are *parked*, and those that were *released* from some route. A row
        is returned once.
        """
        found = []
        for offset in sorted(self._withheld.keys() - parked):
            position, row = self._withheld.pop(offset)
            if any(first <= offset <= last for first, last, _ in released):
                self.given_up += 1  # Another route has parked it, and settled it since.
            else:
                found.append(DeliveredPart(position, (row,)))
        while (part := self._next_part(through)) is not None:
            end = min(part.last, through)
            rows = self._take_rows(part, end, parked)
            left = _exclude_released(rows, part, released)
            self.given_up += len(rows) - len(left)
            found.append(DeliveredPart(part.position, left))
            part.row += end + 1 - part.next
            part.next = end + 1
            if part.next > part.last:
                self._parts.popleft()
        self._count -= sum(len(each.rows) for each in found)
        return [each for each in found if each.rows]

    def take_whole_position(self) -> str | None:
        """Return the position up to which all is delivered, if that is further than before."""
        # Not by a walk of the parts, because this is read before each poll.
        first = () if self.first_undelivered is None else (self.first_undelivered,)
        limit = min([*self._withheld, *first], default=None)
        position = None
        while self._positions and (limit is None or self._positions[0][1] < limit):
            position = self._positions.popleft()[0]
        if len(self._positions) > 2 * self._kept + _SPARE:
            self._drop_positions()
        return position

    def _drop_positions(self) -> None:
        """Drop positions that no commit can name, because a later one comes before the next limit.

        The kept positions are bounded by the open and withheld entries (Invariant 17).
        """
        limits = sorted([*self._withheld, *(part.next for part in self._parts)])
        places = [bisect_right(limits, last) for _, last in self._positions]
        pairs = zip(self._positions, [*places[1:], None], places, strict=True)
        self._positions = deque(end for end, following, place in pairs if following != place)
        self._kept = len(self._positions)

    def clear(self) -> None:
        """Forget all of it: the source gives it again."""
        self._parts.clear()
        self._positions.clear()
        self._withheld.clear()
        self._count = self._kept = self.given_up = 0

    def _next_part(self, through: int) -> _Part | None:
        part = self._parts[0] if self._parts else None
        return part if part is not None and part.next <= through else None

    def _take_rows(self, part: _Part, end: int, parked: AbstractSet[int]) -> Sequence[int]:
        rows = range(part.row, part.row + end + 1 - part.next)
        aside = sorted(each for each in parked if part.next <= each <= end)
        if not aside:
            return rows
        held = {part.row + each - part.next: each for each in aside}
        self._withheld |= {offset: (part.position, row) for row, offset in held.items()}
        return [row for row in rows if row not in held]


def _exclude_released(rows: Sequence[int], part: _Part, released: Sequence[Range]) -> Sequence[int]:
    """Return those of *rows*, the next ones of *part*, whose offsets were not *released*."""
    for first, last, _ in released:
        low, high = (part.row + offset - part.next for offset in (first, last))
        if rows and low <= rows[-1] and high >= rows[0]:
            rows = [row for row in rows if not low <= row <= high]
    return rows
