"""The rows of a batch, made and sent part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from transporter.message import Entries
from transporter_adaptors.kafka.slice import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter_adaptors.kafka.slice import Row

_LEAST: Final = 1500
"""Small enough that a kill repeats at most 3000, the unsettled part and the next one."""
_MOST: Final = 48_000
_TOO_LONG: Final = 0.25
"""Share of the time that may be spent waiting for the brokers."""
_SLOW_PARTS: Final = 32
_QUICK_PARTS: Final = 200


class Outgoing:
    """The rows of a batch, made on demand.

    The rows of about 1500 entries fit into the processor's caches and are gone before the next.
    That alone saves a third of the time.
    """

    def __init__(
        self, batch: Entries, topic_of: Callable[[str], str], *, ids: bool = False
    ) -> None:
        """Make no rows yet. *topic_of* returns a namespace's topic, or an empty text.

        With *ids* each row's headers include its entry's ids.
        """
        self.batch, self.offsets = batch, batch.offsets
        self._topic_of, self._ids = topic_of, ids
        self.row_without_topic: int | None = None
        """The first row found to have no topic."""

    def rows(self, first: int, most: int) -> list[Row]:
        """Return about *most* rows from row *first* on, but none of an entry without a topic.

        A part ends at the end of an entry, so that all of it can be acked.
        """
        if self.row_without_topic is not None:
            return []
        end = self._end_of_entry(first + most)
        part = Entries(self.batch.batch.slice(first, end - first), self.batch.log_id)
        made = rows_of(part, self._topic_of, ids=self._ids)
        index = next((index for index, row in enumerate(made) if not row[0]), None)
        if index is None:
            return made
        self.row_without_topic = first + index
        return made[: self.batch.whole(self.row_without_topic) - first]

    def _end_of_entry(self, row: int) -> int:
        offsets = self.offsets
        while row < len(offsets) and offsets[row - 1] == offsets[row]:
            row += 1
        return min(row, len(offsets))


class PartSize:
    """The number of rows that are sent before a wait for the brokers.

    As few as keep the client busy, because a kill repeats those on their way. The next rows
    are made meanwhile, which hides a wait of some milliseconds. For more distant brokers
    a part has more rows.
    """

    def __init__(self) -> None:
        """Begin with the least rows."""
        self.rows = _LEAST
        self._slow = self._quick = 0

    def record_wait(self, seconds: float, total: float) -> None:
        """Record a wait of *seconds* for a part that took *total* seconds in all."""
        slow = seconds > total * _TOO_LONG
        self._slow, self._quick = (self._slow + 1, 0) if slow else (0, self._quick + 1)
        if self._slow == _SLOW_PARTS:
            self.rows, self._slow = min(2 * self.rows, _MOST), 0
        elif self._quick == _QUICK_PARTS:
            self.rows, self._quick = max(self.rows // 2, _LEAST), 0
