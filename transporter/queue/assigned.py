"""One partition of the markers topic that is assigned to a tracker. Pure: time is an argument."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.queue.tracking import InProgress

if TYPE_CHECKING:
    from transporter.queue.markers import Marker
    from transporter.queue.tracking import Expired


class Assigned:
    """What is in progress there, and whether enough was read to redeliver what is due.

    An End may wait in the topic while its message's deadline passes: at first,
    when all that preceded the assignment is still to be read, and whenever the
    tracker was held up. So before anything is redelivered the topic is read to
    where it ended at some time after the deadline: whoever is told that it is
    *wanted* asks the broker for that end, and says :meth:`ask`.
    """

    def __init__(self, number: int, first: int) -> None:
        """Begin at offset *first* of partition *number*."""
        self.number = number
        self.progress = InProgress(first)
        self.committed = -1
        self._reached = first
        self._through: int | None = None
        self._wrote: int | None = None
        self._asked_at = 0.0

    def see(self, offset: int, marker: Marker | None, now: float) -> int:
        """Take in a marker; see :meth:`InProgress.see`."""
        told = self.progress.see(offset, marker, now)
        self.reach(offset + 1)
        return told

    def reach(self, offset: int) -> None:
        """Note that all before *offset* was read, what is no record for us included."""
        self._reached = max(self._reached, offset)

    def wrote(self, offset: int) -> None:
        """Note that the last record of our last transaction here is at *offset*.

        Once it was read, the transaction's end is behind it, which is no
        record: where the partition ends right there from then on, all was read.
        """
        self._wrote = offset

    @property
    def low(self) -> int:
        """What is to be committed: the smallest Start that still counts, or how far was read."""
        return self.progress.low if len(self.progress) else self._reached

    def low_without(self, expired: list[Expired]) -> int:
        """Return :attr:`low` as it will be without *expired*."""
        low = self.progress.low_without(each.id for each in expired)
        return self._reached if low == self.progress.next else low

    def wanted(self, now: float) -> bool:
        """Tell whether the end of the partition is to be asked for."""
        unread = self._wrote is not None and self._reached <= self._wrote
        if self._through is not None or unread:
            return False
        return not self.progress.caught_up or self.progress.due(now)

    def ask(self, end: int, now: float) -> None:
        """Note that the partition ended at *end*, asked for at *now*."""
        self._through, self._asked_at = end, now

    def due(self, most: int) -> list[Expired]:
        """Take what is to be redelivered now, at most about *most* messages."""
        if self._through is None or self._reached < self._through - self._own_end:
            return []
        self._through = None
        if not self.progress.caught_up:
            self.progress.caught_up = True
            return []
        return self.progress.expired(self._asked_at, most)

    @property
    def _own_end(self) -> int:
        """1 when all that is missing is the end of our own transaction, else 0."""
        return int(self._wrote is not None and self._through == self._wrote + 2)
