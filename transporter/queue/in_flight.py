"""What one consumer has begun and not settled. Pure: time is an argument."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from transporter.queue.message import MessageId, QueueMessage


class InFlight:
    """The messages of one consumer: those that wait to be received, and all that are unsettled.

    A message is kept alive for ``hold`` seconds, and given up when the tracker
    will have redelivered it: ``redeliver_after`` seconds later. Not thread-safe.
    """

    def __init__(self, limit: int, hold: float, redeliver_after: float) -> None:
        """Begin with nothing; *limit* is how many messages may be unsettled."""
        self._limit, self._hold, self._after = limit, hold, redeliver_after
        self._waiting: deque[QueueMessage] = deque()
        self._since: dict[MessageId, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    @property
    def room(self) -> int:
        """How many more may be begun."""
        return max(0, self._limit - len(self._since))

    @property
    def waiting(self) -> int:
        """How many wait to be received."""
        return len(self._waiting)

    def add(self, messages: Sequence[QueueMessage], now: float) -> None:
        """Take in *messages*, which were begun at *now*."""
        self._waiting.extend(messages)
        self._since.update(dict.fromkeys([message.id for message in messages], now))

    def take(self, most: int) -> list[QueueMessage]:
        """Return the next messages to be received, at most *most*; none that was given up."""
        waiting, since = self._waiting, self._since
        taken: list[QueueMessage] = []
        while waiting and len(taken) < most:
            message = waiting.popleft()
            if message.id in since:
                taken.append(message)
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
        self.settle(gone)
        return gone

    def release(self) -> list[MessageId]:
        """Give back, and return, what waits to be received."""
        ids = [message.id for message in self._waiting if message.id in self._since]
        self._waiting.clear()
        self.settle(ids)
        return ids

    def unsettled(self) -> Iterator[MessageId]:
        """Return all that is unsettled."""
        return iter(self._since)

    def age(self, now: float) -> float:
        """Return for how long the oldest has been in progress."""
        return max((now - since for since in self._since.values()), default=0.0)
