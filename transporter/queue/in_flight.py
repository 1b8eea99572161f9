"""What one consumer has begun and not settled. Pure: time is an argument."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from transporter.queue.message import MessageId, QueueMessage

_MOST_BYTES: Final = 64 * 1024**2
"""Of values that wait to be received, after which nothing more is begun."""


class InFlight:
    """The messages of one consumer: those that wait to be received, and all that are unsettled.

    A message is kept alive for ``hold`` seconds, and given up when the tracker
    will have redelivered it: ``redeliver_after`` seconds later. Not thread-safe.
    """

    def __init__(
        self, limit: int, hold: float, redeliver_after: float, ahead: int | None = None
    ) -> None:
        """Begin with nothing.

        *limit* is how many messages may be unsettled, *ahead* how many of them may wait to
        be received.
        """
        self._limit, self._hold, self._after = limit, hold, redeliver_after
        self._ahead = ahead
        self._waiting: deque[QueueMessage] = deque()
        self._bytes = 0
        """Of the values that wait."""
        self._since: dict[MessageId, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    @property
    def room(self) -> int:
        """How many more may be begun."""
        if self._bytes >= _MOST_BYTES:  # Invariant 17
            return 0
        room = self._limit - len(self._since)
        if self._ahead is not None:
            room = min(room, self._ahead - len(self._waiting))
        return max(0, room)

    @property
    def good_room(self) -> int:
        """How much room is worth a look for messages."""
        return max(1, min(self._limit, self._ahead or self._limit) // 4)

    @property
    def waiting(self) -> int:
        """How many wait to be received."""
        return len(self._waiting)

    @property
    def oldest_sent(self) -> int | None:
        """When the oldest of those that wait was sent, in ms since 1970; ``None`` if unknown."""
        return min((each.sent for each in self._waiting if each.sent >= 0), default=None)

    def add(self, messages: Sequence[QueueMessage], now: float) -> None:
        """Take in *messages*, which were begun at *now*."""
        self._waiting.extend(messages)
        self._bytes += sum(map(_size, messages))
        self._since.update(dict.fromkeys([message.id for message in messages], now))

    def take(self, most: int, most_bytes: int | None = None) -> list[QueueMessage]:
        """Return the next messages to be received, at most *most*; none that was given up.

        Behind *most_bytes* of values comes none; the last one may exceed them.
        """
        waiting, since = self._waiting, self._since
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
        """Forget *ids*."""
        for each in ids:
            self._since.pop(each, None)

    def extend(self, each: MessageId, now: float) -> None:
        """Let the time for which *each* is held begin anew."""
        self._since[each] = now

    def alive(self, now: float, young: float) -> list[MessageId]:
        """Return what is to be kept alive: held still, and begun longer than *young* ago."""
        return [each for each, since in self._since.items() if young <= now - since < self._hold]

    def lapse(self, now: float) -> list[MessageId]:
        """Give up, and return, what the tracker is left to redeliver."""
        limit = self._hold + self._after
        gone = [each for each, since in self._since.items() if now - since >= limit]
        if gone:
            self.settle(gone)
            self._waiting = deque(each for each in self._waiting if each.id in self._since)
            self._bytes = sum(map(_size, self._waiting))
        return gone

    def release(self) -> list[MessageId]:
        """Give back, and return, what waits to be received."""
        ids = [message.id for message in self._waiting if message.id in self._since]
        self._waiting.clear()
        self._bytes = 0
        self.settle(ids)
        return ids

    def unsettled(self) -> Iterator[MessageId]:
        """Return all that is unsettled."""
        return iter(self._since)

    def age(self, now: float) -> float:
        """Return for how long the oldest has been in progress."""
        return max((now - since for since in self._since.values()), default=0.0)


def _size(message: QueueMessage) -> int:
    return len(message.value or b"")
