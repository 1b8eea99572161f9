"""Consumer state that the program, the fetcher thread and the marker writer thread share."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from transporter.queue.failures import QueueClosed
from transporter.queue.markers import Nack
from transporter.queue.metrics import ConsumerMetrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transporter.queue.in_flight import InFlight
    from transporter.queue.message import MessageId, QueueMessage

LINGER: Final = 0.005
"""Seconds during which acks are collected before a write."""


@dataclass(frozen=True, slots=True)
class Work:
    """Message ids to write to the tracker as markers."""

    ended: Sequence[MessageId] = ()
    nacked: Sequence[tuple[MessageId, Nack]] = ()
    alive: Sequence[MessageId] = ()


class ConsumerState:
    """The messages in flight behind one lock. Thread-safe. Every wait has a deadline."""

    def __init__(self, in_flight: InFlight) -> None:
        """Share *in_flight*."""
        self._in_flight = in_flight
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._freed = threading.Condition(self._lock)
        self._work_ready = threading.Condition(self._lock)
        self._written = threading.Condition(self._lock)
        self._ended: list[MessageId] = []
        self._nacked: list[tuple[MessageId, Nack]] = []
        self._extended: list[MessageId] = []
        self._write_at: float | None = None
        self._writing = False
        self._receivers = 0
        self._last_demand_at = self._answered_at = time.monotonic()
        self._closing = self._draining = False
        self._fetch_error: BaseException | None = None
        self._write_error: BaseException | None = None
        self._counts: dict[str, int] = {}

    # Calls of the program.

    def take(self, most: int, timeout: float, most_bytes: int | None = None) -> list[QueueMessage]:
        """Return up to *most* messages as soon as any are there; none after *timeout* seconds."""
        deadline = time.monotonic() + timeout
        with self._lock:
            self._receivers += 1
            self._freed.notify()
            try:
                return self._take(most, deadline, most_bytes)
            finally:
                self._receivers -= 1
                self._last_demand_at = time.monotonic()
                self._freed.notify()

    def _take(self, most: int, deadline: float, most_bytes: int | None) -> list[QueueMessage]:
        while True:
            if self._closing:
                raise QueueClosed("this consumer is closed; create a new one")
            if taken := self._in_flight.take(most, most_bytes):
                self._count(
                    received=len(taken), redelivered=sum(each.redeliveries > 0 for each in taken)
                )
                return taken
            if failure := self._write_error or self._fetch_error:
                raise failure
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            self._arrived.wait(left)

    def ack(self, ids: Sequence[MessageId]) -> None:
        """Settle *ids* as acked."""
        with self._lock:
            self._raise_if_unusable()
            self._in_flight.settle(ids)
            self._ended.extend(ids)
            self._count(acked=len(ids))
            self._schedule_write(LINGER)

    def nack(self, ids: Sequence[MessageId], nack: Nack) -> None:
        """Settle *ids* for a redelivery as described by *nack*."""
        with self._lock:
            self._raise_if_unusable()
            self._in_flight.settle(ids)
            self._nacked.extend((each, nack) for each in ids)
            self._count(nacked=len(ids))
            self._schedule_write(0.0)

    def extend(self, ids: Sequence[MessageId]) -> None:
        """Restart the hold time of *ids*."""
        with self._lock:
            self._raise_if_unusable()
            now = time.monotonic()
            for each in ids:
                self._in_flight.extend(each, now)
            self._extended.extend(ids)
            self._schedule_write(0.0)

    def flush(self, timeout: float) -> bool:
        """Wait until all pending markers are written and return whether they are."""
        deadline = time.monotonic() + timeout
        with self._lock:
            if self._write_at is not None:
                self._write_at = 0.0
                self._work_ready.notify()
            while self._write_at is not None or self._writing:
                left = deadline - time.monotonic()
                if self._write_error or left <= 0:
                    break
                self._written.wait(left)
            if self._write_error:
                raise self._write_error
            return self._write_at is None and not self._writing

    def check(self, silence: float) -> bool:
        """Raise a dead thread's error, or return whether a broker answered within *silence* s."""
        with self._lock:
            if failure := self._write_error or self._fetch_error:
                raise failure
            return time.monotonic() - self._answered_at < silence

    def metrics(self) -> ConsumerMetrics:
        """Return the counters."""
        with self._lock:
            age = self._in_flight.age(time.monotonic())
            held = len(self._in_flight)
            return ConsumerMetrics(in_progress=held, oldest_age=age, **self._counts)

    def oldest_sent(self) -> int | None:
        """Return the send time of the oldest message not yet received, in ms since 1970."""
        with self._lock:
            return self._in_flight.oldest_sent

    # Calls of the fetcher thread.

    @property
    def is_closing(self) -> bool:
        """Whether fetching must stop."""
        return self._closing

    def await_room(self, timeout: float) -> int:
        """Return how many messages may be begun, waiting *timeout* seconds for worthwhile room."""
        with self._lock:
            wanted = self._in_flight.good_room
            self._freed.wait_for(lambda: self._closing or self._in_flight.room >= wanted, timeout)
            return 0 if self._closing else self._in_flight.room

    def count_lost(self, offsets: int) -> None:
        """Count *offsets* offsets that were deleted before they were read."""
        with self._lock:
            self._count(lost=offsets)

    def add(self, messages: Sequence[QueueMessage], now: float) -> None:
        """Make *messages* available, whose Starts were written at *now*."""
        with self._lock:
            self._in_flight.add(messages, now)
            self._arrived.notify_all()

    def has_demand(self, within: float) -> bool:
        """Return whether the program is receiving now, or was *within* so many seconds."""
        with self._lock:
            return self._receivers > 0 or time.monotonic() - self._last_demand_at < within

    def release(self, reason: str) -> None:
        """Release the messages that the program has not received."""
        with self._lock:
            ids = self._in_flight.release()
            nack = Nack(0, (), 0, reason, released=True)
            self._nacked.extend((each, nack) for each in ids)
            self._count(released=len(ids))
            if ids:
                self._schedule_write(0.0)

    def await_demand(self, timeout: float) -> bool:
        """Wait until the program receives and return whether it does."""
        with self._lock:
            self._freed.wait_for(lambda: self._closing or self._receivers > 0, timeout)
            return self._receivers > 0

    def pause(self, seconds: float) -> None:
        """Wait *seconds*, or until the consumer closes."""
        with self._lock:
            self._freed.wait_for(lambda: self._closing, seconds)

    def fail_fetching(self, error: BaseException) -> None:
        """Raise *error* in the program's next receive, because no more messages will come."""
        with self._lock:
            self._fetch_error = error
            self._arrived.notify_all()

    # Calls of the marker writer thread.

    def next_work(self, until: float, min_age: float, timeout: float = math.inf) -> Work | None:
        """Wait for work, or until *until*, when keep-alives are due.

        The work may be empty after *timeout* seconds. Returns ``None`` when everything is
        written and no more work will come.
        """
        soonest = min(until, time.monotonic() + timeout)
        with self._lock:
            while not self._draining:
                at = soonest if self._write_at is None else min(soonest, self._write_at)
                left = at - time.monotonic()
                if left <= 0:
                    break
                self._work_ready.wait(left)
            return self._take_work(time.monotonic(), until, min_age)

    def _take_work(self, now: float, until: float, min_age: float) -> Work | None:
        alive = self._extended
        if now >= until:
            alive = alive + self._in_flight.ids_to_keep_alive(now, min_age)
            if gone := self._in_flight.take_lapsed(now):
                self._count(lapsed=len(gone))
        work = Work(self._ended, self._nacked, alive)
        self._ended, self._nacked, self._extended = [], [], []
        self._write_at = None
        self._writing = bool(work.ended or work.nacked or alive)
        self._freed.notify()
        return work if self._writing or not self._draining else None

    def finish_work(self) -> None:
        """Record that the last work is written."""
        with self._lock:
            if self._writing:
                self._answered_at = time.monotonic()
            self._writing = False
            self._written.notify_all()

    def is_silent(self, seconds: float) -> bool:
        """Return whether no broker has answered for *seconds*."""
        with self._lock:
            return time.monotonic() - self._answered_at >= seconds

    def note_answer(self) -> None:
        """Record that a broker has answered."""
        with self._lock:
            self._answered_at = time.monotonic()

    def fail_writing(self, error: BaseException) -> None:
        """Raise *error* in the program's next call, because acks can no longer be written."""
        with self._lock:
            self._write_error = error
            self._arrived.notify_all()
            self._written.notify_all()

    # Calls of the owner of both threads.

    def close(self) -> None:
        """Stop fetching and receiving."""
        with self._lock:
            self._closing = True
            for condition in (self._arrived, self._freed):
                condition.notify_all()

    def give_back(self, reason: str, *, counted: bool = True) -> None:
        """Release all unsettled messages, which no caller can settle any more."""
        self.release(reason)
        with self._lock:
            left = list(self._in_flight.unsettled_ids())
            self._in_flight.settle(left)
            nack = Nack(0, (), 0, reason, released=not counted)
            self._nacked.extend((each, nack) for each in left)
            self._draining = True
            self._work_ready.notify()

    def _raise_if_unusable(self) -> None:
        if self._draining:
            raise QueueClosed("this consumer is closed; its unsettled messages are redelivered")
        if self._write_error:
            raise self._write_error

    def _schedule_write(self, linger: float) -> None:
        if self._write_at is None or not linger:
            self._write_at = time.monotonic() + linger
            self._work_ready.notify()

    def _count(self, **more: int) -> None:
        for name, number in more.items():
            self._counts[name] = self._counts.get(name, 0) + number
