"""Messages that one consumer has begun and not settled. Pure: time is an argument."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from transporter.queue.message import MessageId, QueueMessage

_MOST_BYTES: Final = 64 * 1024**2
"""Limit of the waiting values' size; at the limit no more messages are begun."""


class InFlight:
    """The messages of one consumer that wait to be received or are unsettled.

    A message is kept alive for ``hold`` seconds. It is dropped ``redeliver_after``
    seconds later, when the tracker will have redelivered it. Not thread-safe.
    """

    def __init__(
        self, limit: int, hold: float, redeliver_after: float, ahead: int | None = None
    ) -> None:
        """Start empty.

        Args:
            limit: Maximum number of unsettled messages.
            hold: Seconds for which a message is kept alive.
            redeliver_after: Seconds after which the tracker redelivers a silent message.
            ahead: Maximum number of messages that wait to be received; none: *limit*.
        """
        self._limit, self._hold, self._redeliver_after = limit, hold, redeliver_after
        self._ahead = ahead
        self._waiting: deque[QueueMessage] = deque()
        self._bytes = 0
        """Size of the waiting values."""
        self._begun_at: dict[MessageId, float] = {}

    def __len__(self) -> int:
        return len(self._begun_at)

    @property
    def room(self) -> int:
        """Number of further messages that may be begun."""
        if self._bytes >= _MOST_BYTES:  # Invariant 17
            return 0
        room = self._limit - len(self._begun_at)
        if self._ahead is not None:
            room = min(room, self._ahead - len(self._waiting))
        return max(0, room)

    @property
    def good_room(self) -> int:
        """Amount of room that is worth a fetch."""
        return max(1, min(self._limit, self._ahead or self._limit) // 4)

    @property
    def waiting(self) -> int:
        """Number of messages that wait to be received."""
        return len(self._waiting)

    @property
    def oldest_sent(self) -> int | None:
        """Send time of the oldest waiting message, in ms since 1970; ``None`` if unknown."""
        return min((each.sent for each in self._waiting if each.sent >= 0), default=None)

    def add(self, messages: Sequence[QueueMessage], now: float) -> None:
        """Add *messages*, which were begun at *now*."""
        self._waiting.extend(messages)
        self._bytes += sum(map(_size, messages))
        self._begun_at.update(dict.fromkeys([message.id for message in messages], now))

    def take(self, most: int, most_bytes: int | None = None) -> list[QueueMessage]:
        """Take the next messages to be received, at most *most*, without dropped ones.

        No message follows once *most_bytes* of values are reached. The last one may exceed them.
        """
        waiting, since = self._waiting, self._begun_at
        taken: list[QueueMessage] = []
        before = self._bytes
        while waiting and len(taken) < most:
            message = waiting.popleft()
            self._bytes -= _size(message)
            if message.id in since:
                taken.append(message)
            if most_bytes is not None and before - self._bytes >= most_bytes:
                break
        return taken

    def settle(self, ids: Iterable[MessageId]) -> None:
        """Remove *ids*."""
        for each in ids:
            self._begun_at.pop(each, None)

    def extend(self, each: MessageId, now: float) -> None:
        """Restart the hold time of *each*."""
        self._begun_at[each] = now

    def ids_to_keep_alive(self, now: float, min_age: float) -> list[MessageId]:
        """Return the messages that are still held and were begun at least *min_age* ago."""
        return [
            each for each, since in self._begun_at.items() if min_age <= now - since < self._hold
        ]

    def take_lapsed(self, now: float) -> list[MessageId]:
        """Drop and return the messages that are left to the tracker."""
        limit = self._hold + self._redeliver_after
        gone = [each for each, since in self._begun_at.items() if now - since >= limit]
        if gone:
            self.settle(gone)
            self._waiting = deque(each for each in self._waiting if each.id in self._begun_at)
            self._bytes = sum(map(_size, self._waiting))
        return gone

    def release(self) -> list[MessageId]:
        """Drop and return the messages that wait to be received."""
        ids = [message.id for message in self._waiting if message.id in self._begun_at]
        self._waiting.clear()
        self._bytes = 0
        self.settle(ids)
        return ids

    def unsettled_ids(self) -> Iterator[MessageId]:
        """Return the ids of all unsettled messages."""
        return iter(self._begun_at)

    def age(self, now: float) -> float:
        """Return the time that the oldest message has been in progress."""
        return max((now - since for since in self._begun_at.values()), default=0.0)


def _size(message: QueueMessage) -> int:
    return len(message.value or b"")
