"""A membership in a consumer group: records in, commits of logged places out."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, KafkaException
from confluent_kafka import Message as Record

from transporter.errors import SourceError, SourceUnavailable, TransporterError
from transporter.kafka.groups import committed_offsets
from transporter_adaptors.kafka.cluster import REQUEST_SECONDS, translate_refusal
from transporter_adaptors.kafka.commits import Commits
from transporter_adaptors.kafka.consumer import (
    committed_of,
    make_consumer,
    partition_of,
    place_behind,
)
from transporter_adaptors.kafka.failures import EventKind, is_fault, kind_of, source_error
from transporter_adaptors.kafka.partition import AssignedPartition, Edge, choose_start
from transporter_adaptors.kafka.position import KafkaOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import KafkaError, TopicPartition

    from transporter_adaptors.kafka.cluster import Cluster, Ends
    from transporter_adaptors.kafka.config import KafkaReaderConfig
    from transporter_adaptors.kafka.partition import Committed
    from transporter_adaptors.kafka.position import Position

_LOG: Final = logging.getLogger(__name__)
_CHUNK: Final = 1000
"""Records taken at once. Between two chunks their bytes are counted."""

Key = tuple[str, int]


class TakenRecords(NamedTuple):
    """Records, and the places that they reach in their partitions."""

    records: list[Record]
    steps: list[tuple[AssignedPartition, KafkaOffset]]


class ReaderGroup:
    """A member of the group, which reads its partitions from the log's places.

    Used by one thread at a time. Callbacks run in the calling thread. An error in a callback
    is raised by the method that made it run.
    """

    def __init__(
        self,
        config: KafkaReaderConfig,
        cluster: Cluster,
        position: Callable[[], Position],
        settled: Callable[[], Position],
        place: str,
    ) -> None:
        """Make a consumer. Nothing is read before :meth:`subscribe`.

        *position* is behind all records that were handed out, *settled* behind those that may be
        committed to the group.
        """
        self._config, self._cluster, self._position = config, cluster, position
        self._place = place
        self.partitions: dict[Key, AssignedPartition] = {}
        self.has_assignment = False
        """Whether any assignment has come, even an empty one."""
        self.needs_check = False
        """Whether there is a reason to check the topics."""
        self._kept_records: list[Record] = []
        self._paused = self._closing = False
        self._last_error: TransporterError | None = None
        with translate_refusal(config, place):
            self._consumer: Any = make_consumer(config, self._on_error, self._on_commit)
        self._commits = Commits(config, self._consumer, settled, place, self.partitions)

    # Records

    def subscribe(self, topics: list[str]) -> None:
        """Read *topics*, and no others, from the next rebalance on."""
        with self._translate_errors():
            if not topics:
                self._consumer.unsubscribe()
                return
            self._consumer.subscribe(
                topics,
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )

    def commit_beginnings(self, topics: list[str]) -> None:
        """Commit the beginnings with ``start: latest`` of those of *topics* new to the group.

        This comes before any member joins, and covers all existing partitions. So a partition
        without a place, of a topic that has begun, is a later one for every member.
        """
        known: list[TopicPartition] = []
        if places := self._cluster.partitions(topics):
            with self._translate_errors():
                # A new group may not have a coordinator yet.
                known = committed_offsets(self._consumer, places, monotonic() + REQUEST_SECONDS)
        found = self._select_new_topics(known)
        new = {each.topic for each in found}
        if self._config.pattern is not None and (self._position().topics or len(new) < len(topics)):
            return  # The group has begun, so these topics were found later.
        ids = self._cluster.ids(new)
        starts = [
            AssignedPartition(each.topic, ids[each.topic], each.partition)
            for each in found
            if each.topic in ids
        ]
        self._start_at_end(starts)
        if starts:
            with self._translate_errors():
                self._commits.commit_starts(starts)

    def poll(self, timeout: float) -> TakenRecords:
        """Return the next records, waiting up to *timeout* seconds for the first.

        At most ``batch_rows``, and none behind ``batch_bytes``, except for the rest of one
        chunk of the client's queue.
        """
        with self._translate_errors():
            self._resume()
            found = self._collect_records(timeout)
        self._raise_last_error()
        events: list[Record] = []
        if any(map(Record.error, found)):
            found = self._keep_from_failure(found)
            events = [record for record in found if record.error() is not None]
            found = [record for record in found if record.error() is None]
        taken = self._mark_returned(found)
        for event in events:
            self._handle_event(
                event
            )  # After the records, because an end comes behind the last of them.
        return taken

    def query_ends(self) -> Ends:
        """Query the ends of the partitions, which the client gets from fetches alone."""
        return self._cluster.query_ends(self._client_partitions(), self._config.isolation)

    def known_ends(self) -> dict[Key, int]:
        """Return the ends of partitions at their last fetch, for those that were fetched."""
        found = {}
        for key, held in self.partitions.items():
            with self._translate_errors():
                _, end = self._consumer.get_watermark_offsets(partition_of(held), cached=True)
            if end >= 0:
                found[key] = end
        return found

    def backlog(self, ends: dict[Key, int]) -> int | None:
        """Return the number of offsets to read before *ends*, or ``None`` if that is unknown."""
        if not self.has_assignment:
            return None
        waiting = 0
        for key, held in self.partitions.items():
            if (end := ends.get(key)) is None:
                return None
            waiting += max(0, end - held.next_offset)
        return waiting

    def keep_membership(self) -> None:
        """Stay a member without reading, while the log has no room."""
        with self._translate_errors():
            self._pause(self._client_partitions())
            while (record := self._consumer.poll(0)) is not None:
                if self._kept_records or record.error() is None:
                    self._kept_records.append(record)  # An event keeps its place behind records.
                else:
                    self._handle_event(record)
        self._raise_last_error()

    @property
    def is_at_end(self) -> bool:
        """Whether every assigned partition was read to its end."""
        return self.has_assignment and all(held.is_at_end for held in self.partitions.values())

    def check_topic_id(self, topic: str, topic_id: str) -> None:
        """Read *topic* from its beginning if *topic_id* shows that it is another one now."""
        held = [held for held in self.partitions.values() if held.topic == topic]
        if any(topic_id and each.topic_id and each.topic_id != topic_id for each in held):
            self._restart_topic(held, topic, topic_id)

    def _restart_topic(self, held: list[AssignedPartition], topic: str, topic_id: str) -> None:
        _LOG.warning(
            "%s: topic %s was deleted and created anew (its id is now %s); "
            "it is read from its beginning",
            self._place,
            topic,
            topic_id,
        )
        for each in held:
            self._restart_at(AssignedPartition(topic, topic_id, each.partition), OFFSET_BEGINNING)

    def close(self) -> None:
        """Commit the logged places if the brokers answer, and leave the group.

        With a commit under way to brokers that are away this takes a session's time-out.
        """
        self._closing = True
        if not self.needs_check:
            self._pause(self._client_partitions())
            self._commits.commit_last()
        self._consumer.close()

    # Commits

    def commit_due(self) -> None:
        """Commit logged places that the group does not have. The result comes later."""
        if self.needs_check:
            return  # The client would keep a commit for brokers that are away, and its own close.
        with self._translate_errors():
            self._commits.commit_due()

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Record the result of a commit, and report errors for which there is no remedy."""
        for failed in self._commits.record_result(error, partitions):
            self._keep_error(failed)

    # Callbacks of rebalances

    def _on_assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:  # noqa: ANN401
        self.has_assignment = True
        try:
            starts = self._hold_assigned(partitions)
        except TransporterError as error:
            self._last_error = error
            starts = []
        consumer.incremental_assign(starts)
        self._pause_or_resume(starts)

    def _on_revoke(self, consumer: Any, partitions: list[TopicPartition]) -> None:  # noqa: ANN401
        """Commit logged places of *partitions*, so that their next readers repeat nothing."""
        gone = self._drop_partitions(partitions)
        if not self._closing:
            self._commits.commit_revoked(gone)
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Any, partitions: list[TopicPartition]) -> None:  # noqa: ANN401
        """Drop *partitions*, because other members have them already, and may have committed."""
        self._drop_partitions(partitions)
        consumer.incremental_unassign(partitions)

    def _drop_partitions(self, partitions: list[TopicPartition]) -> list[AssignedPartition]:
        keys = {(each.topic, each.partition) for each in partitions}
        self._kept_records = [each for each in self._kept_records if _key(each) not in keys]
        found = [self.partitions.pop(key, None) for key in keys]
        return [held for held in found if held is not None]

    # Beginnings of partitions

    def _hold_assigned(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Hold *partitions* and return them with the places where they begin."""
        ids = self._cluster.ids(each.topic for each in partitions)
        if gone := sorted({each.topic for each in partitions} - ids.keys()):
            raise SourceUnavailable(
                f"{self._place}: these topics have just disappeared: {', '.join(gone)}; "
                "trying again may help"
            )
        begun = {topic for topic, _ in self.partitions}
        starts, unknown = [], []
        for each in self._committed_places(partitions):
            held = AssignedPartition(each.topic, ids[each.topic], each.partition)
            where = self._choose_start(held, committed_of(each))
            self.partitions[held.topic, held.partition] = held
            if where is Edge.UNKNOWN and each.topic not in begun:
                unknown.append(held)
            else:
                starts.append(partition_of(held, where if isinstance(where, KafkaOffset) else None))
        return starts + self._begin_unknown(unknown)

    def _committed_places(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the group's commits for *partitions*."""
        if not partitions:
            return []
        with self._translate_errors():
            found: list[TopicPartition] = self._consumer.committed(
                partitions, timeout=REQUEST_SECONDS
            )
        for each in found:
            if each.error is not None:
                raise source_error(each.error, self._place)
        return found

    def _begin_unknown(self, unknown: list[AssignedPartition]) -> list[TopicPartition]:
        """Return the beginnings of partitions without a known place.

        They are at the partition's beginning, except with ``start: latest`` for a topic that has
        never begun. Topics that a pattern finds were begun by :meth:`commit_beginnings`, or are
        later.
        """
        latest = self._config.start == "latest" and self._config.pattern is None
        topics = {each.topic for each in unknown} if latest else set()
        found = self._committed_places(self._cluster.partitions(topics)) if topics else []
        new = {each.topic for each in self._select_new_topics(found)}
        at_end = [held for held in unknown if held.topic in new]
        self._start_at_end(at_end)
        return [partition_of(held, held.due) for held in unknown]

    def _select_new_topics(self, found: list[TopicPartition]) -> list[TopicPartition]:
        """Return those of *found*, the group's commits, whose topics have never begun."""
        known = {each.topic for each in found if each.offset >= 0} | self._position().topics.keys()
        return [each for each in found if each.topic not in known]

    def _choose_start(
        self, held: AssignedPartition, committed: Committed | None
    ) -> KafkaOffset | Edge:
        position = self._position()
        topic, topic_id, partition = held.topic, held.topic_id, held.partition
        held.logged = position.place(topic, topic_id, partition)
        where = choose_start(position, topic, topic_id, partition, committed)
        if isinstance(where, KafkaOffset) and where != held.logged:
            held.passed = (held.logged, where.next)
        elif not self._commits.is_settled(held):
            # Invariant 1: an earlier assignment has handed out records that may not be durable,
            # or not delivered where the group waits for that.
            held.logged, held.returned, held.earlier = None, held.logged, held.logged
        if where is Edge.RECREATED:
            _LOG.warning(
                "%s: topic %s is not the one that was read before (its id is now %s); "
                "partition %d is read from its beginning",
                self._place,
                topic,
                topic_id,
                partition,
            )
        return where

    def _start_at_end(self, held: list[AssignedPartition]) -> None:
        """Begin *held* at their present ends."""
        ends = self._cluster.ends(map(partition_of, held), self._config.isolation)
        for each in held:
            each.passed = (None, ends[each.topic, each.partition])

    # Events

    def _handle_event(self, event: Record) -> None:
        error, held = event.error(), self.partitions.get(_key(event))
        match kind_of(error):
            case EventKind.END if held is not None:
                held.record_end(event.offset())
            case EventKind.RANGE if held is not None:
                self._handle_out_of_range(held, event)
            case EventKind.DOUBT:
                self.needs_check = True
            case EventKind.FAILURE:
                raise source_error(error, self._place_of(event))

    def _handle_out_of_range(self, held: AssignedPartition, event: Record) -> None:
        """Stop, or continue elsewhere, because the wanted records are not there."""
        offset = event.offset()
        is_truncated = offset is None or offset < 0  # The place comes in the error's text alone.
        wanted = held.next_offset if is_truncated else offset
        for topic, topic_id in self._cluster.ids([held.topic]).items():
            self.check_topic_id(topic, topic_id)
        if held not in self.partitions.values():
            return  # Another topic has its name now, and is read from its beginning.
        with self._translate_errors():
            bounds = self._consumer.get_watermark_offsets(
                partition_of(held), timeout=REQUEST_SECONDS
            )
        first, end = bounds
        text = (
            f"{self._place}: partition {held.partition} of topic {held.topic} is to be read from "
            f"offset {wanted} on, but the broker has {first} to {end - 1}"
            if end > first
            else f"{self._place}: partition {held.partition} of topic {held.topic} is to be read "
            f"from offset {wanted} on, but the broker has none before {end}"
        )
        if is_truncated:
            text = f"{text}, perhaps not those that were read ({event.error().str()})"
        policy = self._config.on_out_of_range
        if policy == "stop":
            raise SourceError(
                f"{text}: set on_out_of_range to earliest or latest, or reset the group "
                f"{self._config.group} to an offset that exists"
            )
        start = first if policy == "earliest" else end
        _LOG.warning("%s; continuing at %d (on_out_of_range: %s)", text, start, policy)
        moved = AssignedPartition(held.topic, held.topic_id, held.partition, held.logged)
        moved.passed = (held.returned or held.logged, start)
        self._restart_at(moved, start)

    def _restart_at(self, held: AssignedPartition, offset: int) -> None:
        """Begin an assigned partition again at *offset*."""
        partition = partition_of(held, KafkaOffset(offset))
        self._drop_partitions([partition])
        with self._translate_errors():
            # A partition does not accept a seek after an error of its range.
            self._consumer.incremental_unassign([partition])
            self._consumer.incremental_assign([partition])
        self.partitions[held.topic, held.partition] = held
        self._pause_or_resume([partition])

    # The client

    def _collect_records(self, timeout: float) -> list[Record]:
        """Return the kept records, or the client's queue, without waiting for a full batch.

        ``consume`` would wait for the whole number of records, or the whole time.
        """
        if self._kept_records:
            left, self._kept_records = self._kept_records, []
            return left
        first = self._consumer.poll(timeout)
        if first is None:
            return []
        found, rows = [first], self._config.batch_rows
        size = len(first)
        while len(found) < rows and size < self._config.batch_bytes:
            more = self._consumer.consume(min(_CHUNK, rows - len(found)), 0)
            if not more:
                break
            found += more
            size += sum(map(len, more))
        return found

    def _keep_from_failure(self, found: list[Record]) -> list[Record]:
        """Return *found* up to an event that may end the reader, and keep the rest.

        The records before it would otherwise never be handed out, and an operator who moves the
        group past it would skip them.
        """
        has_records = False
        for number, record in enumerate(found):
            if (error := record.error()) is None:
                has_records = True
            elif has_records and kind_of(error) in {EventKind.RANGE, EventKind.FAILURE}:
                self._kept_records = found[number:] + self._kept_records
                return found[:number]
        return found

    def _mark_returned(self, found: list[Record]) -> TakenRecords:
        """Mark *found* as handed out, without records of partitions that were revoked meanwhile."""
        pairs = zip(map(Record.topic, found), map(Record.partition, found), strict=True)
        last = dict(zip(pairs, found, strict=True))
        if last.keys() - self.partitions.keys():
            return self._mark_returned(
                [record for record in found if _key(record) in self.partitions]
            )
        steps = [(self.partitions[key], place_behind(record)) for key, record in last.items()]
        for held, place in steps:
            held.record_returned(place)
        return TakenRecords(found, steps)

    def _pause(self, partitions: list[TopicPartition]) -> None:
        self._paused = True
        if partitions:
            self._consumer.pause(partitions)

    def _pause_or_resume(self, assigned: list[TopicPartition]) -> None:
        """Treat *assigned* partitions like the rest, because a pause outlives an assignment."""
        if assigned:
            (self._consumer.pause if self._paused else self._consumer.resume)(assigned)

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._consumer.resume(self._client_partitions())

    def _client_partitions(self) -> list[TopicPartition]:
        return list(map(partition_of, self.partitions.values()))

    def _on_error(self, error: KafkaError) -> None:
        """Record an error of the brokers as a whole."""
        self._keep_error(error)
        self.needs_check = True

    def _keep_error(self, error: KafkaError) -> None:
        """Keep an error without a remedy, for the current method to raise."""
        if error.fatal() or is_fault(error) or kind_of(error) is EventKind.FAILURE:
            self._last_error = source_error(error, self._place)

    def _raise_last_error(self) -> None:
        trouble, self._last_error = self._last_error, None
        if trouble is not None:
            raise trouble

    def _place_of(self, event: Record) -> str:
        if event.topic() is None or event.partition() < 0:
            return self._place
        place = f"{self._place}: partition {event.partition()} of topic {event.topic()}"
        return place if event.offset() is None else f"{place}, offset {event.offset()}"

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._last_error or source_error(error.args[0], self._place) from error


def _key(record: Record) -> Key:
    return record.topic(), record.partition()
