"""Where a program, the thread that fetches and the thread that writes markers meet."""

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
"""Seconds for which acks are collected before they are written."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be told to the tracker."""

    ended: Sequence[MessageId] = ()
    nacked: Sequence[tuple[MessageId, Nack]] = ()
    alive: Sequence[MessageId] = ()


class Exchange:
    """The messages in flight behind one lock. Thread-safe; nobody waits without a deadline."""

    def __init__(self, in_flight: InFlight) -> None:
        """Share *in_flight*."""
        self._in_flight = in_flight
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._freed = threading.Condition(self._lock)
        self._told = threading.Condition(self._lock)
        self._written = threading.Condition(self._lock)
        self._ended: list[MessageId] = []
        self._nacked: list[tuple[MessageId, Nack]] = []
        self._extended: list[MessageId] = []
        self._write_at: float | None = None
        self._writing = False
        self._asking = 0
        self._asked_at = self._heard_at = time.monotonic()
        self._closing = self._draining = False
        self._fetching_failed: BaseException | None = None
        self._writing_failed: BaseException | None = None
        self._counts: dict[str, int] = {}

    # What the program does.

    def take(self, most: int, timeout: float, most_bytes: int | None = None) -> list[QueueMessage]:
        """Return up to *most* messages as soon as there are any; none after *timeout* seconds."""
        deadline = time.monotonic() + timeout
        with self._lock:
            self._asking += 1
            self._freed.notify()
            try:
                return self._take(most, deadline, most_bytes)
            finally:
                self._asking -= 1
                self._asked_at = time.monotonic()
                self._freed.notify()

    def _take(self, most: int, deadline: float, most_bytes: int | None) -> list[QueueMessage]:
        while True:
            if self._closing:
                raise QueueClosed("this consumer is closed; make a new one")
            if taken := self._in_flight.take(most, most_bytes):
                self._count(
                    received=len(taken), redelivered=sum(each.redeliveries > 0 for each in taken)
                )
                return taken
            if failure := self._writing_failed or self._fetching_failed:
                raise failure
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            self._arrived.wait(left)

    def ack(self, ids: Sequence[MessageId]) -> None:
        """Note that *ids* are done with."""
        with self._lock:
            self._check()
            self._in_flight.settle(ids)
            self._ended.extend(ids)
            self._count(acked=len(ids))
            self._write(LINGER)

    def nack(self, ids: Sequence[MessageId], nack: Nack) -> None:
        """Note that *ids* are to be redelivered as *nack* says."""
        with self._lock:
            self._check()
            self._in_flight.settle(ids)
            self._nacked.extend((each, nack) for each in ids)
            self._count(nacked=len(ids))
            self._write(0.0)

    def extend(self, ids: Sequence[MessageId]) -> None:
        """Hold *ids* from now on anew."""
        with self._lock:
            self._check()
            now = time.monotonic()
            for each in ids:
                self._in_flight.extend(each, now)
            self._extended.extend(ids)
            self._write(0.0)

    def flush(self, timeout: float) -> bool:
        """Wait until all that was noted so far is written; tell whether it is."""
        deadline = time.monotonic() + timeout
        with self._lock:
            if self._write_at is not None:
                self._write_at = 0.0
                self._told.notify()
            while self._write_at is not None or self._writing:
                left = deadline - time.monotonic()
                if self._writing_failed or left <= 0:
                    break
                self._written.wait(left)
            if self._writing_failed:
                raise self._writing_failed
            return self._write_at is None and not self._writing

    def check(self, silence: float) -> bool:
        """Raise why a thread has died; tell whether brokers were heard of *silence* seconds ago."""
        with self._lock:
            if failure := self._writing_failed or self._fetching_failed:
                raise failure
            return time.monotonic() - self._heard_at < silence

    def metrics(self) -> ConsumerMetrics:
        """Return what was counted."""
        with self._lock:
            age = self._in_flight.age(time.monotonic())
            held = len(self._in_flight)
            return ConsumerMetrics(in_progress=held, oldest_age=age, **self._counts)

    def oldest_sent(self) -> int | None:
        """Return when the oldest was sent of what waits to be received, in ms since 1970."""
        with self._lock:
            return self._in_flight.oldest_sent

    # What the thread that fetches does.

    @property
    def closing(self) -> bool:
        """Whether nothing more is to be fetched."""
        return self._closing

    def room(self, timeout: float) -> int:
        """Return how many messages may be begun, waiting *timeout* seconds for a good many."""
        with self._lock:
            wanted = self._in_flight.good_room
            self._freed.wait_for(lambda: self._closing or self._in_flight.room >= wanted, timeout)
            return 0 if self._closing else self._in_flight.room

    def lost(self, offsets: int) -> None:
        """Note that so many *offsets* were deleted before they were read."""
        with self._lock:
            self._count(lost=offsets)

    def add(self, messages: Sequence[QueueMessage], now: float) -> None:
        """Hand over *messages*, whose Starts were written at *now*."""
        with self._lock:
            self._in_flight.add(messages, now)
            self._arrived.notify_all()

    def asked(self, within: float) -> bool:
        """Tell whether the program asks now, or has asked *within* so many seconds."""
        with self._lock:
            return self._asking > 0 or time.monotonic() - self._asked_at < within

    def release(self, reason: str) -> None:
        """Give back what the program has not asked for."""
        with self._lock:
            ids = self._in_flight.release()
            nack = Nack(0, (), 0, reason, released=True)
            self._nacked.extend((each, nack) for each in ids)
            self._count(released=len(ids))
            if ids:
                self._write(0.0)

    def await_demand(self, timeout: float) -> bool:
        """Wait until the program asks for something; tell whether it does."""
        with self._lock:
            self._freed.wait_for(lambda: self._closing or self._asking > 0, timeout)
            return self._asking > 0

    def pause(self, seconds: float) -> None:
        """Wait, unless everything is closed meanwhile."""
        with self._lock:
            self._freed.wait_for(lambda: self._closing, seconds)

    def fetching_failed(self, error: BaseException) -> None:
        """Tell the program, when it asks next, why nothing more will come."""
        with self._lock:
            self._fetching_failed = error
            self._arrived.notify_all()

    # What the thread that writes markers does.

    def work(self, until: float, young: float, patience: float = math.inf) -> Work | None:
        """Wait for something to write, or for *until*, when messages are to be kept alive.

        It may be empty after *patience* seconds; ``None`` when all is written and nothing more
        will come.
        """
        soonest = min(until, time.monotonic() + patience)
        with self._lock:
            while not self._draining:
                at = soonest if self._write_at is None else min(soonest, self._write_at)
                left = at - time.monotonic()
                if left <= 0:
                    break
                self._told.wait(left)
            return self._work(time.monotonic(), until, young)

    def _work(self, now: float, until: float, young: float) -> Work | None:
        alive = self._extended
        if now >= until:
            alive = alive + self._in_flight.alive(now, young)
            if gone := self._in_flight.lapse(now):
                self._count(lapsed=len(gone))
        work = Work(self._ended, self._nacked, alive)
        self._ended, self._nacked, self._extended = [], [], []
        self._write_at = None
        self._writing = bool(work.ended or work.nacked or alive)
        self._freed.notify()
        return work if self._writing or not self._draining else None

    def wrote(self) -> None:
        """Note that the last work is done."""
        with self._lock:
            if self._writing:
                self._heard_at = time.monotonic()
            self._writing = False
            self._written.notify_all()

    def silent(self, seconds: float) -> bool:
        """Tell whether nothing was heard of the brokers for *seconds*."""
        with self._lock:
            return time.monotonic() - self._heard_at >= seconds

    def heard(self) -> None:
        """Note that a broker has answered."""
        with self._lock:
            self._heard_at = time.monotonic()

    def writing_failed(self, error: BaseException) -> None:
        """Tell the program, whatever it does next, why no ack can be written any more."""
        with self._lock:
            self._writing_failed = error
            self._arrived.notify_all()
            self._written.notify_all()

    # What the owner of both threads does.

    def close(self) -> None:
        """Let nothing more be fetched or received."""
        with self._lock:
            self._closing = True
            for condition in (self._arrived, self._freed):
                condition.notify_all()

    def give_back(self, reason: str, *, counted: bool = True) -> None:
        """Give back everything that is unsettled: nobody will settle it now."""
        self.release(reason)
        with self._lock:
            left = list(self._in_flight.unsettled())
            self._in_flight.settle(left)
            nack = Nack(0, (), 0, reason, released=not counted)
            self._nacked.extend((each, nack) for each in left)
            self._draining = True
            self._told.notify()

    def _check(self) -> None:
        if self._draining:
            raise QueueClosed("this consumer is closed; what was unsettled is being redelivered")
        if self._writing_failed:
            raise self._writing_failed

    def _write(self, linger: float) -> None:
        if self._write_at is None or not linger:
            self._write_at = time.monotonic() + linger
            self._told.notify()

    def _count(self, **more: int) -> None:
        for name, number in more.items():
            self._counts[name] = self._counts.get(name, 0) + number
