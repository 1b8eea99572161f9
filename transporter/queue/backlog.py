"""Depth and oldest message of one queue, estimated from offsets without counting messages."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from transporter.kafka import groups
from transporter.queue import clients
from transporter.queue.failures import (
    QueueUnavailable,
    is_reading_fault,
    reading_fault,
    translate_error,
)
from transporter.queue.progress import end_offsets
from transporter.queue.settings import check_queue_name

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from transporter.queue.settings import QueueSettings

_MOST_SKIPPED: Final = 1000
"""Records of other queues that are skipped in one partition to find the oldest of ours."""
_POLL: Final = 0.2
_LEAST_TIMEOUT: Final = 0.05
_FETCH: Final[dict[str, object]] = {
    # One fetch for each partition, of one batch at most, because only the first record is needed.
    "fetch.message.max.bytes": 64 * 1024,
    "queued.min.messages": 1,
    "isolation.level": "read_committed",
}


@dataclass(frozen=True, slots=True)
class Backlog:
    """Estimated number and age of the messages of a queue that no consumer has begun.

    ``depth`` is never too small. It includes messages of other queues behind the oldest one, and
    the offsets that transaction end markers occupy.
    """

    depth: int = 0
    oldest: float | None = None
    """Send time of the oldest, in seconds since 1970; ``None`` without messages or timestamps."""


class BacklogEstimator:
    """Estimator of the backlog of one queue. It joins no group and changes nothing.

    It compares the end of each partition with the group's committed offset, and reads the first
    record in between. The cost depends on the number of partitions, not of messages.
    Connections stay open until :meth:`close`. Not thread-safe.
    """

    def __init__(self, settings: QueueSettings, queue: str) -> None:
        """Keep *settings*. :meth:`estimate` connects."""
        self._settings, self._queue = settings, check_queue_name(queue)
        self._offsets_client: Consumer | None = None
        self._records_client: Consumer | None = None

    def estimate(self, timeout: float) -> Backlog:
        """Return the current backlog within *timeout* seconds.

        Raises:
            QueueUnavailable: If the brokers do not answer in time.
            QueueFault: If topic, rights or settings are wrong.
        """
        deadline = time.monotonic() + timeout
        try:
            begins, ends = self._read_offsets(deadline)
            behind = {each: begins[each] for each in ends if ends[each] > begins[each]}
            searches = self._search_first(behind, deadline) if behind else {}
        except KafkaException as error:
            raise clients.kafka_failure(self._settings, error) from error
        depth = sum(max(0, ends[each] - search.offset) for each, search in searches.items())
        times = [search.sent for search in searches.values() if search.sent is not None]
        return Backlog(depth, min(times) if depth and times else None)

    def close(self) -> None:
        """Disconnect. Safe to call twice."""
        for client in (self._offsets_client, self._records_client):
            if client is not None:
                client.close()
        self._offsets_client = self._records_client = None

    def _read_offsets(self, deadline: float) -> tuple[dict[int, int], dict[int, int]]:
        """Return the group's committed offset and the end offset of each partition."""
        if self._offsets_client is None:
            self._offsets_client = self._standalone_consumer(
                **{"isolation.level": "read_uncommitted"}
            )
        client, topic = self._offsets_client, self._settings.queue_topic
        count = self._count_partitions(client, deadline)
        places = [TopicPartition(topic, each) for each in range(count)]
        # Read before the ends, so that no end lies before a committed offset.
        known = groups.committed_offsets(client, places, deadline)
        begins = {each.partition: max(0, each.offset) for each in known}
        found = end_offsets(client, places, _time_left(deadline))
        return begins, {each.partition: each.offset for each in found}

    def _count_partitions(self, client: Consumer, deadline: float) -> int:
        topic = self._settings.queue_topic
        found = client.list_topics(topic, _time_left(deadline)).topics[topic]
        if found.error is not None:
            raise translate_error(
                found.error, f"topic {topic} at {self._settings.bootstrap_servers}"
            )
        return len(found.partitions)

    def _search_first(self, behind: dict[int, int], deadline: float) -> dict[int, _Search]:
        """Find the first message of our queue from the offset *behind* on, by partition."""
        if self._records_client is None:
            self._records_client = self._standalone_consumer(**_FETCH)
        client, topic = self._records_client, self._settings.queue_topic
        searches = {each: _Search(offset) for each, offset in behind.items()}
        client.assign([TopicPartition(topic, each, offset) for each, offset in behind.items()])
        try:
            while open_ := [each for each, search in searches.items() if not search.done]:
                if time.monotonic() >= deadline:
                    raise QueueUnavailable(
                        f"{self._settings.place}: no answer from partitions {open_} in time;"
                        " check whether the brokers are up"
                    )
                for record in client.consume(_MOST_SKIPPED, min(_POLL, _time_left(deadline))):
                    self._handle_record(client, searches, record)
        finally:
            client.unassign()
        return searches

    def _handle_record(
        self, client: Consumer, searches: dict[int, _Search], record: Message
    ) -> None:
        error, search = record.error(), searches.get(_partition(record))
        if error is not None and is_reading_fault(error):
            raise reading_fault(record, self._settings.place)
        if search is None or search.done:
            return
        if error is None:
            search.add(record, ours=record.key() == self._queue.encode())
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - a public code
            search.end(_offset(record))
        if search.done:
            place = TopicPartition(self._settings.queue_topic, _partition(record))
            client.incremental_unassign([place])

    def _standalone_consumer(self, **overrides: object) -> Consumer:
        group = self._settings.consumer_group(self._queue)
        return clients.standalone_consumer(self._settings, **{"group.id": group, **overrides})


class _Search:
    """Search for the first message of a queue in one partition."""

    __slots__ = ("done", "offset", "sent", "skipped")

    def __init__(self, offset: int) -> None:
        self.offset, self.skipped = offset, 0
        self.sent: float | None = None
        self.done = False

    def add(self, record: Message, *, ours: bool) -> None:
        """Process the next record; finish at the first of our queue, or after too many others."""
        self.skipped += not ours
        self.done = ours or self.skipped >= _MOST_SKIPPED
        self.offset = _offset(record) + (not ours)
        milliseconds = record.timestamp()[1]
        if self.done and milliseconds >= 0:
            self.sent = milliseconds / 1000

    def end(self, offset: int) -> None:
        """Finish the search: no record is readable before *offset*."""
        self.offset, self.done = offset, True


def _time_left(deadline: float) -> float:
    return max(_LEAST_TIMEOUT, deadline - time.monotonic())


def _offset(record: Message) -> Any:  # noqa: ANN401 - never None for a record of a partition
    return record.offset()


def _partition(record: Message) -> Any:  # noqa: ANN401 - the same
    return record.partition()
