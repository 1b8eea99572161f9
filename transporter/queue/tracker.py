"""Tracker: redelivers messages whose consumers gave no sign of life in time."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from transporter.errors import TransporterError
from transporter.kafka.errors import kafka_error
from transporter.queue import clients
from transporter.queue.failures import (
    BadMarker,
    MessageRefused,
    UnknownMarker,
    is_reading_fault,
    is_stale,
    reading_fault,
)
from transporter.queue.hung_transactions import HungTransactions
from transporter.queue.markers import End, Nack, Start, decode_marker, encode_marker
from transporter.queue.metrics import TrackerMetrics
from transporter.queue.redelivery import (
    Due,
    end_markers,
    group_by_partition,
    redelivery_record,
    restated_markers,
    split_for_transactions,
)
from transporter.queue.start_offsets import StartOffsets
from transporter.queue.topics import retention_problems
from transporter.queue.tracker_partition import AssignedPartition
from transporter.queue.transactions import ANY, Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from confluent_kafka import Consumer, Message

    from transporter.queue.in_progress import Expired
    from transporter.queue.markers import Marker
    from transporter.queue.settings import QueueSettings
    from transporter.queue.transactions import Record

_READ: Final = 500
"""Maximum number of markers in one read."""
_FETCH_WAIT_MS: Final = 20
_WAIT: Final = 0.2
_LEAST: Final = 0.002
_MOST: Final = 1000
"""Maximum number of due messages taken at once from one partition."""
_BACKOFF: Final = 1.0
_REFUSED_BACKOFF: Final = 60.0
_ASK: Final = 5.0
_LATEST: Final = -1
_LOGGER: Final = logging.getLogger(__name__)


class Tracker:
    """Watcher of messages in progress that redelivers those that are due.

    Any number of trackers share the partitions of the markers topic. A tracker
    that takes over a partition reads it from the smallest Start that still
    counts. It redelivers nothing before it has read all existing markers.
    Deadlines count from the tracker's read of a marker, by this process's
    monotonic clock, and start again after every assignment (Invariant 16).

    A redelivery is one transaction: the message, its End and our own offset.
    Before it, the tracker reads everything that the topic held after the
    deadline. An ack in time therefore counts however late the tracker is.

    Call :meth:`run` in your own thread or process until :meth:`stop`, or use the
    tracker as a context manager, which starts a thread and joins it.
    """

    def __init__(
        self, settings: QueueSettings, *, meter: Callable[[TrackerMetrics], None] | None = None
    ) -> None:
        """Keep *settings*. :meth:`run` connects, and calls *meter* each ``commit_interval``."""
        self._settings, self._meter = settings, meter
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._start_offsets = StartOffsets(self._stopping, self._end_lost_transactions)
        self._assigned: dict[int, AssignedPartition] = {}
        self._counts: dict[str, int] = {}
        self._metrics = TrackerMetrics()
        self._commit_at = self._next_end_lookup_at = 0.0

    def __enter__(self) -> Self:
        self._thread = threading.Thread(
            target=self._run_in_thread, name="queue-tracker", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Make :meth:`run` return soon. Safe in any thread or signal handler."""
        self._stopping.set()

    def metrics(self) -> TrackerMetrics:
        """Return the counters as of the last ``commit_interval``."""
        return self._metrics

    def run(self) -> None:
        """Track until :meth:`stop` is called.

        It waits for the end of outages. Call it at most once.

        Raises:
            QueueFault: If topics, rights or settings are wrong.
            QueueUnavailable: If no broker answers at the start.
            UnknownMarker: If a marker is newer than this program.
        """
        settings = self._settings
        self._transactions = Transactions(settings, settings.tracker_group)
        self._hung_transactions = HungTransactions(settings)
        self._consumer: Consumer = clients.consumer(
            settings,
            settings.tracker_group,
            # An empty fetch reveals the partition's end behind a transaction.
            **{"enable.partition.eof": True, "fetch.wait.max.ms": _FETCH_WAIT_MS},
        )
        # Acks may lie behind an open transaction, where they cannot be read yet. The end to read
        # to is therefore the one that read_uncommitted consumers see.
        self._end_reader: Consumer = clients.standalone_consumer(
            settings, **{"isolation.level": "read_uncommitted"}
        )
        try:
            self._subscribe()
            while not self._stopping.is_set():
                self._run_once()
            self._commit(self._assigned.values())
            self._update_metrics(time.monotonic())
        except KafkaException as error:
            if not self._stopping.is_set():
                raise clients.kafka_failure(settings, error) from error
        finally:
            # Partitions that are assigned while the consumer closes are not taken over.
            with suppress(KafkaException):
                self._consumer.close()
            self._end_reader.close()
            self._transactions.close()

    def _run_in_thread(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - every error goes to the thread's owner
            self._failure = error

    def _subscribe(self) -> None:
        _, self._partitions, _ = clients.count_partitions(
            self._consumer, self._settings, self._settings.topics
        )
        for problem in retention_problems(self._settings, self._settings.topics):
            _LOGGER.warning(problem)
        self._transactions.open()
        self._consumer.subscribe(
            [self._settings.markers_topic],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def _run_once(self) -> None:
        for record in self._read_records():
            self._handle_record(record)
        for part in split_for_transactions(self._take_due()):
            self._redeliver(part)
        if time.monotonic() >= self._commit_at:
            self._run_periodic_work()

    def _read_records(self) -> list[Message]:
        records: list[Message] = self._consumer.consume(1, self._poll_timeout())
        if records:
            records += self._consumer.consume(_READ - 1, 0)
        return records

    def _poll_timeout(self) -> float:
        now = time.monotonic()
        known = (each.progress.next_deadline for each in self._assigned.values())
        at = min((each for each in known if each is not None), default=now + _WAIT)
        at = max(at, self._next_end_lookup_at)
        return max(_LEAST, min(_WAIT, at - now, self._commit_at - now))

    def _handle_record(self, record: Message) -> None:
        each = self._assigned.get(record.partition())
        error = record.error()
        if error is not None:
            self._handle_event(record, error, each)
        elif each is not None:  # Otherwise it was revoked after the client had fetched this.
            marker = self._decode_marker(record)
            affected = each.apply(record.offset(), marker, time.monotonic())
            match marker:
                case Start(restated=False):
                    self._count(received=affected)
                case End():
                    self._count(acked=affected)
                case Nack(released=False):
                    self._count(nacked=affected)

    def _decode_marker(self, record: Message) -> Marker | None:
        place = f"{record.topic()}, partition {record.partition()}, offset {record.offset()}"
        try:
            return decode_marker(record.value() or b"")
        except UnknownMarker as error:
            raise UnknownMarker(f"{place}: {error}") from error
        except BadMarker as error:
            # It cannot be read now or later, so stopping here would not help.
            _LOGGER.error("%s: %s; skipped", place, error)  # noqa: TRY400 - not a bug of ours
            self._count(refused=1)
            return None

    def _handle_event(
        self, event: Message, error: KafkaError, each: AssignedPartition | None
    ) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - a public code
            if each is not None:
                each.advance_to(event.offset())
        elif is_reading_fault(error):
            # Behind a damaged batch nothing would be redelivered any more, or without its markers.
            place = f"markers topic {self._settings.markers_topic}"
            raise reading_fault(event, place, self._settings.tracker_group)
        else:
            _LOGGER.warning("tracker: %s", error.str())

    def _take_due(self) -> list[Due]:
        """Take the messages that may be redelivered now."""
        now = time.monotonic()
        assigned = list(self._assigned.values())
        wanted = [
            each for each in assigned if now >= self._next_end_lookup_at and each.needs_end(now)
        ]
        ends = self._end_offsets([each.number for each in wanted]) if wanted else {}
        for each in wanted:
            if each.number in ends:
                each.set_end(ends[each.number], now)
        return [Due(each, expired) for each in assigned for expired in each.take_due(_MOST)]

    def _end_offsets(self, partitions: list[int]) -> dict[int, int]:
        """Return the ends of *partitions* that could be looked up, including open transactions."""
        topic = self._settings.markers_topic
        places = [TopicPartition(topic, each, _LATEST) for each in partitions]
        try:
            # Settle a transaction with an unknown outcome before the lookup.
            self._transactions.open()
            found = self._end_reader.offsets_for_times(places, timeout=_ASK)
        except TransporterError as error:
            self._raise_unless_temporary(error)
            found = []
        except KafkaException as error:
            _LOGGER.warning("tracker: %s", error.args[0].str())
            found = []
        ends = {place.partition: place.offset for place in found if place.error is None}
        if not ends:
            self._next_end_lookup_at = time.monotonic() + _BACKOFF
        return ends

    def _redeliver(self, part: list[Due]) -> None:
        """Send due messages, their Ends and our offsets in one transaction."""
        time_text = datetime.now(UTC).isoformat(timespec="milliseconds")
        found = [redelivery_record(each.expired, self._settings, time_text) for each in part]
        records: list[Record] = [
            (record.topic, record.value, record.queue, ANY, record.headers) for record in found
        ]
        places = []
        for assigned, expired in group_by_partition(part):
            ends = end_markers(each.id for each in expired)
            records += [self._marker_record(assigned, end) for end in ends]
            places.append(self._commit_position(assigned, expired))
        try:
            self._transactions.run(records, self._consumer, places)
        except MessageRefused as error:
            self._redeliver_one_by_one(part, error)
        except TransporterError as error:
            self._raise_unless_temporary(error)
            self._retry(part, _BACKOFF)
        else:
            for assigned, expired in group_by_partition(part):
                for _, message in expired:
                    if message.nack is None:
                        self._hung_transactions.note_overdue(
                            message.queue, assigned.number, message.start
                        )
                assigned.progress.drop(each.id for each in expired)
                wrote = self._transactions.written.get(
                    (self._settings.markers_topic, assigned.number)
                )
                if wrote is not None:
                    assigned.note_written(wrote)
            letters = sum(record.dead for record in found)
            self._count(redelivered=len(found) - letters, dead_lettered=letters)

    def _redeliver_one_by_one(self, part: list[Due], error: MessageRefused) -> None:
        """Isolate the refused message and retry it later, so that it blocks no other."""
        if len(part) > 1:
            for each in part:
                self._redeliver([each])
            return
        _LOGGER.error("a message of queue %s: %s", part[0].expired.message.queue, error)
        self._retry(part, _REFUSED_BACKOFF)

    def _retry(self, part: list[Due], seconds: float) -> None:
        for assigned, expired in group_by_partition(part):
            assigned.progress.retry([each.id for each in expired], time.monotonic() + seconds)

    def _raise_unless_temporary(self, error: TransporterError) -> None:
        cause = kafka_error(error)
        if not error.retriable and not (cause and is_stale(cause)):
            raise error
        _LOGGER.warning("tracker: %s", error)

    def _end_lost_transactions(self) -> None:
        """End transactions whose ends the brokers lost: our own, and those of dead producers."""
        try:
            self._transactions.open()
        except TransporterError as error:
            self._raise_unless_temporary(error)
        else:
            self._hung_transactions.end_all()

    def _run_periodic_work(self) -> None:
        self._end_lost_transactions()
        now = time.monotonic()
        self._commit_at = now + self._settings.commit_interval
        for each in self._assigned.values():
            self._repeat_ends(each)
            self._restate(each, now)
        self._commit(self._assigned.values(), wait=False)
        self._update_metrics(now)

    def _repeat_ends(self, each: AssignedPartition) -> None:
        """Write Ends again that lie before a restated Start, because it outlasts them."""
        ids = list(islice(each.progress.ends_to_repeat, _MOST))
        if not (each.progress.caught_up and ids):
            return
        records = [self._marker_record(each, end) for end in end_markers(ids)]
        try:
            self._transactions.run(records, self._consumer, [self._commit_position(each, [])])
        except TransporterError as error:
            self._raise_unless_temporary(error)
        else:
            each.progress.ends_to_repeat.difference_update(ids)

    def _restate(self, each: AssignedPartition, now: float) -> None:
        """Write old Starts again, so that the topic's retention never deletes one that counts."""
        if not each.progress.caught_up:
            return
        old = each.progress.older_than(now, self._settings.restate_after, _MOST)
        for part in split_for_transactions([Due(each, expired) for expired in old]):
            markers = restated_markers([due.expired for due in part], now)
            records = [self._marker_record(each, marker) for marker in markers]
            try:
                self._transactions.run(records, self._consumer, [self._commit_position(each, [])])
            except TransporterError as error:
                self._raise_unless_temporary(error)
                return
            self._count(restated=len(part))

    def _marker_record(self, each: AssignedPartition, marker: Marker) -> Record:
        return self._settings.markers_topic, encode_marker(marker), None, each.number, ()

    def _commit_position(self, each: AssignedPartition, part: list[Expired]) -> TopicPartition:
        return TopicPartition(
            self._settings.markers_topic, each.number, each.low_offset_without(part)
        )

    def _commit(self, assigned: Iterable[AssignedPartition], *, wait: bool = True) -> None:
        changed = [each for each in assigned if each.low_offset != each.committed]
        places = [self._commit_position(each, []) for each in changed]
        if not places:
            return
        try:
            self._consumer.commit(offsets=places, asynchronous=not wait)
        except KafkaException as error:
            _LOGGER.warning("tracker: %s", error.args[0].str())
        else:
            for each, place in zip(changed, places, strict=True):
                each.committed = place.offset

    def _update_metrics(self, now: float) -> None:
        progress = [each.progress for each in self._assigned.values()]
        oldest = min((each.oldest for each in progress if each.oldest is not None), default=now)
        self._metrics = TrackerMetrics(
            in_progress=sum(map(len, progress)),
            oldest_age=now - oldest,
            partitions=len(progress),
            lost=self._start_offsets.lost,
            **self._counts,
        )
        if self._meter is not None:
            self._meter(self._metrics)

    def _count(self, **more: int) -> None:
        for name, number in more.items():
            self._counts[name] = self._counts.get(name, 0) + number

    def _on_assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        found = self._start_offsets.find(consumer, places)
        for place in found:
            self._assigned[place.partition] = AssignedPartition(place.partition, place.offset)
        consumer.assign(found)

    def _on_revoke(self, _: Consumer, places: list[TopicPartition]) -> None:
        gone = [self._assigned.pop(each.partition, None) for each in places]
        self._commit([each for each in gone if each is not None])

    def _on_lost(self, _: Consumer, places: list[TopicPartition]) -> None:
        for each in places:
            self._assigned.pop(each.partition, None)
