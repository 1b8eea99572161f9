"""A partition of the markers topic that is assigned to a tracker. Pure: time is an argument."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.queue.in_progress import InProgress

if TYPE_CHECKING:
    from transporter.queue.in_progress import Expired
    from transporter.queue.markers import Marker


class AssignedPartition:
    """Messages in progress in one partition, and how far it must be read before a redelivery.

    An End may wait in the topic while its message's deadline passes. This happens
    at first, when the records before the assignment are still unread, and
    whenever the tracker was delayed. Before a redelivery the partition is
    therefore read up to an end that was looked up after the deadline. If
    :meth:`needs_end` returns true, the caller requests that end from the broker
    and passes it to :meth:`set_end`.
    """

    def __init__(self, number: int, first: int) -> None:
        """Start at offset *first* of partition *number*."""
        self.number = number
        self.progress = InProgress(first)
        self.committed = -1
        self._next_unread = first
        self._read_until: int | None = None
        self._last_written: int | None = None
        self._end_set_at = 0.0

    def apply(self, offset: int, marker: Marker | None, now: float) -> int:
        """Apply a marker; see :meth:`InProgress.apply`."""
        affected = self.progress.apply(offset, marker, now)
        self.advance_to(offset + 1)
        return affected

    def advance_to(self, offset: int) -> None:
        """Record that everything before *offset* was read, including records not meant for us."""
        self._next_unread = max(self._next_unread, offset)

    def note_written(self, offset: int) -> None:
        """Record that the last record of our last transaction here is at *offset*.

        The transaction's end marker follows that record and is not a record
        itself. If the partition ends right behind the marker, everything was read.
        """
        self._last_written = offset

    @property
    def low_offset(self) -> int:
        """Offset to commit: the smallest Start that still counts, else the next unread offset."""
        return self.progress.low_offset if len(self.progress) else self._next_unread

    def low_offset_without(self, expired: list[Expired]) -> int:
        """Return :attr:`low_offset` as it will be without *expired*."""
        low = self.progress.low_offset_without(each.id for each in expired)
        return self._next_unread if low == self.progress.next_offset else low

    def needs_end(self, now: float) -> bool:
        """Return whether the caller must look up the end of the partition."""
        unread = self._last_written is not None and self._next_unread <= self._last_written
        if self._read_until is not None or unread:
            return False
        return not self.progress.caught_up or self.progress.has_due(now)

    def set_end(self, end: int, now: float) -> None:
        """Record that the partition ended at *end*, as looked up at *now*."""
        self._read_until, self._end_set_at = end, now

    def take_due(self, most: int) -> list[Expired]:
        """Take the messages to redeliver now, at most about *most*."""
        if (
            self._read_until is None
            or self._next_unread < self._read_until - self._own_commit_marker
        ):
            return []
        self._read_until = None
        if not self.progress.caught_up:
            self.progress.finish_catching_up()
            return []
        return self.progress.take_expired(self._end_set_at, most)

    @property
    def _own_commit_marker(self) -> int:
        """1 if only the end marker of our own transaction is unread, else 0."""
        return int(self._last_written is not None and self._read_until == self._last_written + 2)
