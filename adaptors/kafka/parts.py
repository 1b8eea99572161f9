"""The rows of a batch, made and sent part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from adaptors.kafka.slice import rows_of
from transporter.message import Entries

if TYPE_CHECKING:
    from collections.abc import Callable

    from adaptors.kafka.slice import Row

_LEAST: Final = 1500
"""Also if one part is not settled yet when the next is on its way, a kill repeats 3000."""
_MOST: Final = 48_000
_TOO_LONG: Final = 0.25
"""Share of the time that the brokers may be waited for."""
_SLOW_PARTS: Final = 32
_QUICK_PARTS: Final = 200


class Outgoing:
    """The rows of a batch, made when they are asked for.

    Those of some 1500 entries fit into the processor's caches and are gone before the next:
    that alone is worth a third of the time.
    """

    def __init__(
        self, batch: Entries, topic_of: Callable[[str], str], *, ids: bool = False
    ) -> None:
        """Make no row yet; *topic_of* names the topic of a namespace, or returns nothing.

        With *ids* the headers of each tell its entry's.
        """
        self.batch, self.offsets = batch, batch.offsets
        self._topic_of, self._ids = topic_of, ids
        self.nameless: int | None = None
        """The first row found to have no topic."""

    def rows(self, first: int, most: int) -> list[Row]:
        """Return about *most* rows from row *first* on, but none of an entry without a topic.

        A part ends with an entry, so that all of it can be acked.
        """
        if self.nameless is not None:
            return []
        end = self._end_of_entry(first + most)
        part = Entries(self.batch.batch.slice(first, end - first), self.batch.log_id)
        made = rows_of(part, self._topic_of, ids=self._ids)
        index = next((index for index, row in enumerate(made) if not row[0]), None)
        if index is None:
            return made
        self.nameless = first + index
        return made[: self.batch.whole(self.nameless) - first]

    def _end_of_entry(self, row: int) -> int:
        offsets = self.offsets
        while row < len(offsets) and offsets[row - 1] == offsets[row]:
            row += 1
        return min(row, len(offsets))


class Pace:
    """Decides how many rows are sent before the brokers are waited for.

    As few as keep the client busy: a kill repeats those on their way. The next rows are
    made meanwhile, which hides a wait of some milliseconds; for brokers that are farther
    away there are more rows in a part.
    """

    def __init__(self) -> None:
        """Begin with few."""
        self.rows = _LEAST
        self._slow = self._quick = 0

    def waited(self, seconds: float, of: float) -> None:
        """Take note that a part was waited for *seconds*, *of* those that all of it took."""
        slow = seconds > of * _TOO_LONG
        self._slow, self._quick = (self._slow + 1, 0) if slow else (0, self._quick + 1)
        if self._slow == _SLOW_PARTS:
            self.rows, self._slow = min(2 * self.rows, _MOST), 0
        elif self._quick == _QUICK_PARTS:
            self.rows, self._quick = max(self.rows // 2, _LEAST), 0
