"""Depth and oldest message of one queue, estimated from offsets instead of a count."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from transporter import kafka_groups
from transporter.queue import clients
from transporter.queue.failures import QueueUnavailable, is_fault, translated
from transporter.queue.progress import latest
from transporter.queue.settings import queue_name

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from transporter.queue.settings import QueueSettings

_LOOKED_AT: Final = 1000
"""Records of other queues that are skipped in one partition to find the oldest of ours."""
_PART: Final = 0.2
_LEAST: Final = 0.05
_FETCH: Final[dict[str, object]] = {
    # One fetch in each partition, and no more of it than a batch: the first record is wanted.
    "fetch.message.max.bytes": 64 * 1024,
    "queued.min.messages": 1,
    "isolation.level": "read_committed",
}


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages of a queue that no consumer has begun: about how many, and the oldest.

    ``depth`` is not too small. It includes what lies behind the oldest and is not ours to read:
    messages of other queues, and the offsets that ends of transactions take.
    """

    depth: int = 0
    oldest: float | None = None
    """When the oldest was sent, in seconds since 1970; ``None`` without any, or without times."""


class BacklogEstimator:
    """Estimates the backlog of one queue. Joins no group and changes nothing.

    Compares the end of each partition with the group's committed offset, and reads the first
    record in between. The cost depends on the number of partitions, not on that of messages.
    Keeps its connections until :meth:`close`. Used by one thread at a time.
    """

    def __init__(self, settings: QueueSettings, queue: str) -> None:
        """Keep *settings*; :meth:`estimate` connects."""
        self._settings, self._queue = settings, queue_name(queue)
        self._asking: Consumer | None = None
        self._reading: Consumer | None = None

    def estimate(self, timeout: float) -> Backlog:
        """Return the backlog as it is now, within *timeout* seconds.

        Raises:
            QueueUnavailable: If the brokers do not answer in time.
            QueueFault: If topic, rights or settings are wrong.
        """
        deadline = time.monotonic() + timeout
        try:
            begins, ends = self._offsets(deadline)
            behind = {each: begins[each] for each in ends if ends[each] > begins[each]}
            looks = self._first(behind, deadline) if behind else {}
        except KafkaException as error:
            raise clients.failure(self._settings, error) from error
        depth = sum(max(0, ends[each] - look.offset) for each, look in looks.items())
        times = [look.sent for look in looks.values() if look.sent is not None]
        return Backlog(depth, min(times) if depth and times else None)

    def close(self) -> None:
        """Disconnect; safe to call twice."""
        for client in (self._asking, self._reading):
            if client is not None:
                client.close()
        self._asking = self._reading = None

    def _offsets(self, deadline: float) -> tuple[dict[int, int], dict[int, int]]:
        """Return where the group is in each partition, and where the partition ends."""
        if self._asking is None:
            self._asking = self._onlooker(**{"isolation.level": "read_uncommitted"})
        client, topic = self._asking, self._settings.queue_topic
        count = self._partitions(client, deadline)
        places = [TopicPartition(topic, each) for each in range(count)]
        # Before the ends, so that no end is before what is committed.
        known = kafka_groups.committed(client, places, deadline)
        begins = {each.partition: max(0, each.offset) for each in known}
        found = latest(client, places, _left(deadline))
        return begins, {each.partition: each.offset for each in found}

    def _partitions(self, client: Consumer, deadline: float) -> int:
        topic = self._settings.queue_topic
        found = client.list_topics(topic, _left(deadline)).topics[topic]
        if found.error is not None:
            raise translated(found.error, f"topic {topic} at {self._settings.bootstrap_servers}")
        return len(found.partitions)

    def _first(self, behind: dict[int, int], deadline: float) -> dict[int, _Look]:
        """Return the first message of ours at or after the offset *behind*, by partition."""
        if self._reading is None:
            self._reading = self._onlooker(**_FETCH)
        client, topic = self._reading, self._settings.queue_topic
        looks = {each: _Look(offset) for each, offset in behind.items()}
        client.assign([TopicPartition(topic, each, offset) for each, offset in behind.items()])
        try:
            while open_ := [each for each, look in looks.items() if not look.done]:
                if time.monotonic() >= deadline:
                    raise QueueUnavailable(
                        f"{self._settings.place}: no answer from partitions {open_} in time"
                    )
                for record in client.consume(_LOOKED_AT, min(_PART, _left(deadline))):
                    self._see(client, looks, record)
        finally:
            client.unassign()
        return looks

    def _see(self, client: Consumer, looks: dict[int, _Look], record: Message) -> None:
        error, look = record.error(), looks.get(_partition(record))
        if error is not None and is_fault(error):
            raise translated(error, self._settings.place)
        if look is None or look.done:
            return
        if error is None:
            look.see(record, ours=record.key() == self._queue.encode())
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - a public code
            look.end(_offset(record))
        if look.done:
            place = TopicPartition(self._settings.queue_topic, _partition(record))
            client.incremental_unassign([place])

    def _onlooker(self, **own: object) -> Consumer:
        group = self._settings.consumer_group(self._queue)
        return clients.onlooker(self._settings, **{"group.id": group, **own})


class _Look:
    """The search for the first message of a queue in one partition."""

    __slots__ = ("done", "offset", "passed", "sent")

    def __init__(self, offset: int) -> None:
        self.offset, self.passed = offset, 0
        self.sent: float | None = None
        self.done = False

    def see(self, record: Message, *, ours: bool) -> None:
        """Take in the next record; end the search at the first of ours, or after too many."""
        self.passed += not ours
        self.done = ours or self.passed >= _LOOKED_AT
        self.offset = _offset(record) + (not ours)
        milliseconds = record.timestamp()[1]
        if self.done and milliseconds >= 0:
            self.sent = milliseconds / 1000

    def end(self, offset: int) -> None:
        """Take in that nothing more can be read before *offset*."""
        self.offset, self.done = offset, True


def _left(deadline: float) -> float:
    return max(_LEAST, deadline - time.monotonic())


def _offset(record: Message) -> Any:  # noqa: ANN401 - never None for a record of a partition
    return record.offset()


def _partition(record: Message) -> Any:  # noqa: ANN401 - the same
    return record.partition()
