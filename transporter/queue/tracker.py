"""Redelivers messages whose consumers were not heard of in time."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from transporter.errors import TransporterError
from transporter.queue import clients
from transporter.queue.assigned import Assigned
from transporter.queue.beginnings import Beginnings
from transporter.queue.failures import (
    BadMarker,
    MessageRefused,
    UnknownMarker,
    is_fault,
    is_stale,
    kafka_error,
    translated,
)
from transporter.queue.hanging import Hanging
from transporter.queue.markers import End, Nack, Start, decode, encode
from transporter.queue.metrics import TrackerMetrics
from transporter.queue.redelivery import Due, by_partition, ends, parts, redelivery, restatements
from transporter.queue.topics import retention_problems
from transporter.queue.transactions import ANY, Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from confluent_kafka import Consumer, Message

    from transporter.queue.markers import Marker
    from transporter.queue.settings import QueueSettings
    from transporter.queue.tracking import Expired
    from transporter.queue.transactions import Record

_READ: Final = 500
"""Markers that are taken at once."""
_FETCH_WAIT_MS: Final = 20
_WAIT: Final = 0.2
_LEAST: Final = 0.002
_MOST: Final = 1000
"""Messages that one transaction redelivers."""
_BACKOFF: Final = 1.0
_REFUSED_BACKOFF: Final = 60.0
_ASK: Final = 5.0
_LATEST: Final = -1
_LOGGER: Final = logging.getLogger(__name__)


class Tracker:
    """Tracks messages in progress, and redelivers those that are due.

    Any number of trackers share the partitions of the markers topic. A tracker
    that takes one over reads it from the smallest Start that still counts, and
    redelivers nothing before it has read all that was there. Deadlines are
    counted by this process's monotonic clock from when a marker was seen, anew
    after every assignment (Invariant 16).

    A redelivery is one transaction: the message, its End and our own offset.
    Before one, everything is read that the topic held after the deadline, so an
    ack that was in time counts however late the tracker is.

    :meth:`run` it in a thread or process of yours until :meth:`stop`; or use it
    as a context manager, which gives it a thread and joins it.
    """

    def __init__(
        self,
        settings: QueueSettings,
        *,
        meter: Callable[[TrackerMetrics], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep *settings*; :meth:`run` connects, and calls *meter* each ``commit_interval``."""
        self._settings, self._meter, self._clock = settings, meter, clock
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._beginnings = Beginnings(self._stopping, self._end_lost)
        self._assigned: dict[int, Assigned] = {}
        self._counts: dict[str, int] = {}
        self._metrics = TrackerMetrics()
        self._commit_at = self._ask_at = 0.0

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._guarded, name="queue-tracker", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Let :meth:`run` return soon; from any thread or signal handler."""
        self._stopping.set()

    def metrics(self) -> TrackerMetrics:
        """Return what was counted, as of the last second."""
        return self._metrics

    def run(self) -> None:
        """Track until :meth:`stop` is called.

        Outages are waited for. Not more than once.

        Raises:
            QueueFault: If topics, rights or settings are wrong.
            QueueUnavailable: If no broker answers at the beginning.
            UnknownMarker: If a marker is newer than this program.
        """
        settings = self._settings
        self._transactions = Transactions(settings, settings.tracker_group)
        self._hanging = Hanging(settings, self._clock)
        self._consumer: Consumer = clients.consumer(
            settings,
            settings.tracker_group,
            # The end behind a transaction is known when a fetch comes back empty.
            **{"enable.partition.eof": True, "fetch.wait.max.ms": _FETCH_WAIT_MS},
        )
        # Acks may lie behind a transaction that is open, where we cannot read them yet: so the end
        # that we read to is the one that those see who do not care for transactions.
        self._asking: Consumer = clients.onlooker(
            settings, **{"isolation.level": "read_uncommitted"}
        )
        try:
            self._open()
            while not self._stopping.is_set():
                self._turn()
            self._commit(self._assigned.values())
            self._measure(self._clock())
        except KafkaException as error:
            if not self._stopping.is_set():
                raise clients.failure(settings, error) from error
        finally:
            # Partitions that come to us while it closes are not taken up any more.
            with suppress(KafkaException):
                self._consumer.close()
            self._asking.close()
            self._transactions.close()

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - the thread's owner is told of any
            self._failure = error

    def _open(self) -> None:
        _, self._partitions, _ = clients.partitions(
            self._consumer, self._settings, self._settings.topics
        )
        for problem in retention_problems(self._settings, self._settings.topics):
            _LOGGER.warning(problem)
        self._transactions.open()
        self._consumer.subscribe(
            [self._settings.markers_topic],
            on_assign=self._take_over,
            on_revoke=self._hand_over,
            on_lost=self._lose,
        )

    def _turn(self) -> None:
        for record in self._read():
            self._see(record)
        for part in parts(self._due()):
            self._redeliver(part)
        if self._clock() >= self._commit_at:
            self._each_interval()

    def _read(self) -> list[Message]:
        records: list[Message] = self._consumer.consume(1, self._patience())
        if records:
            records += self._consumer.consume(_READ - 1, 0)
        return records

    def _patience(self) -> float:
        now = self._clock()
        known = (each.progress.next_deadline for each in self._assigned.values())
        at = min((each for each in known if each is not None), default=now + _WAIT)
        at = max(at, self._ask_at)
        return max(_LEAST, min(_WAIT, at - now, self._commit_at - now))

    def _see(self, record: Message) -> None:
        each = self._assigned.get(record.partition())
        error = record.error()
        if error is not None:
            self._heed(error, each, record.offset())
        elif each is not None:  # else it was revoked after the client had fetched this
            marker = self._decoded(record)
            told = each.see(record.offset(), marker, self._clock())
            match marker:
                case Start(restated=False):
                    self._count(received=told)
                case End():
                    self._count(acked=told)
                case Nack(released=False):
                    self._count(nacked=told)

    def _decoded(self, record: Message) -> Marker | None:
        place = f"{record.topic()}, partition {record.partition()}, offset {record.offset()}"
        try:
            return decode(record.value() or b"")
        except UnknownMarker as error:
            raise UnknownMarker(f"{place}: {error}") from error
        except BadMarker as error:
            # Nothing can be read from it, now or later: to stop here would help nobody.
            _LOGGER.error("%s: %s; passed over", place, error)  # noqa: TRY400 - no bug of ours
            self._count(refused=1)
            return None

    def _heed(self, error: KafkaError, each: Assigned | None, offset: int) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - a public code
            if each is not None:
                each.reach(offset)
        elif is_fault(error):
            raise translated(error, f"markers topic {self._settings.markers_topic}")
        else:
            _LOGGER.warning("tracker: %s", error.str())

    def _due(self) -> list[Due]:
        """Return what may be redelivered now."""
        now = self._clock()
        assigned = list(self._assigned.values())
        wanted = [each for each in assigned if now >= self._ask_at and each.wanted(now)]
        ends = self._ends([each.number for each in wanted]) if wanted else {}
        for each in wanted:
            if each.number in ends:
                each.ask(ends[each.number], now)
        return [Due(each, expired) for each in assigned for expired in each.due(_MOST)]

    def _ends(self, partitions: list[int]) -> dict[int, int]:
        """Return where *partitions* end, open transactions included; those that can be told."""
        topic = self._settings.markers_topic
        places = [TopicPartition(topic, each, _LATEST) for each in partitions]
        try:
            # What became of a transaction whose end was not heard is visible before we ask.
            self._transactions.open()
            found = self._asking.offsets_for_times(places, timeout=_ASK)
        except TransporterError as error:
            self._failed(error)
            found = []
        except KafkaException as error:
            _LOGGER.warning("tracker: %s", error.args[0].str())
            found = []
        ends = {place.partition: place.offset for place in found if place.error is None}
        if not ends:
            self._ask_at = self._clock() + _BACKOFF
        return ends

    def _redeliver(self, part: list[Due]) -> None:
        """Send what is due, its Ends and our offsets in one transaction."""
        time_text = datetime.now(UTC).isoformat(timespec="milliseconds")
        found = [redelivery(each.expired, self._settings, time_text) for each in part]
        records: list[Record] = [
            (record.topic, record.value, record.queue, ANY, record.headers) for record in found
        ]
        places = []
        for assigned, expired in by_partition(part):
            records += [self._record(assigned, end) for end in ends(expired)]
            places.append(self._place(assigned, expired))
        try:
            self._transactions.run(records, self._consumer, places)
        except MessageRefused as error:
            self._one_by_one(part, error)
        except TransporterError as error:
            self._failed(error)
            self._retry(part, _BACKOFF)
        else:
            for assigned, expired in by_partition(part):
                assigned.progress.drop(each.id for each in expired)
                wrote = self._transactions.written.get(
                    (self._settings.markers_topic, assigned.number)
                )
                if wrote is not None:
                    assigned.wrote(wrote)
            letters = sum(record.dead for record in found)
            self._count(redelivered=len(found) - letters, dead_lettered=letters)

    def _one_by_one(self, part: list[Due], error: MessageRefused) -> None:
        """Find the message that is refused; keep it, and let it hold up no other."""
        if len(part) > 1:
            for each in part:
                self._redeliver([each])
            return
        _LOGGER.error("a message of queue %s: %s", part[0].expired.held.queue, error)
        self._retry(part, _REFUSED_BACKOFF)

    def _retry(self, part: list[Due], seconds: float) -> None:
        for assigned, expired in by_partition(part):
            assigned.progress.retry([each.id for each in expired], self._clock() + seconds)

    def _failed(self, error: TransporterError) -> None:
        cause = kafka_error(error)
        if not error.retriable and not (cause and is_stale(cause)):
            raise error
        _LOGGER.warning("tracker: %s", error)

    def _end_lost(self) -> None:
        """Make good what brokers have lost while they were away, for us and for who is gone."""
        try:
            self._transactions.open()
        except TransporterError as error:
            self._failed(error)
        else:
            self._hanging.end()

    def _each_interval(self) -> None:
        self._end_lost()
        now = self._clock()
        self._commit_at = now + self._settings.commit_interval
        for each in self._assigned.values():
            self._restate(each, now)
        self._commit(self._assigned.values(), wait=False)
        self._measure(now)

    def _restate(self, each: Assigned, now: float) -> None:
        """Write old Starts anew, so that the topic's retention never takes one that counts."""
        if not each.progress.caught_up:
            return
        old = each.progress.old(now, self._settings.restate_after, _MOST)
        for part in parts([Due(each, expired) for expired in old]):
            markers = restatements([due.expired for due in part], now)
            records = [self._record(each, marker) for marker in markers]
            try:
                self._transactions.run(records, self._consumer, [self._place(each, [])])
            except TransporterError as error:
                self._failed(error)
                return
            self._count(restated=len(part))

    def _record(self, each: Assigned, marker: Marker) -> Record:
        return self._settings.markers_topic, encode(marker), None, each.number, ()

    def _place(self, each: Assigned, part: list[Expired]) -> TopicPartition:
        return TopicPartition(self._settings.markers_topic, each.number, each.low_without(part))

    def _commit(self, assigned: Iterable[Assigned], *, wait: bool = True) -> None:
        changed = [each for each in assigned if each.low != each.committed]
        places = [self._place(each, []) for each in changed]
        if not places:
            return
        try:
            self._consumer.commit(offsets=places, asynchronous=not wait)
        except KafkaException as error:
            _LOGGER.warning("tracker: %s", error.args[0].str())
        else:
            for each, place in zip(changed, places, strict=True):
                each.committed = place.offset

    def _measure(self, now: float) -> None:
        progress = [each.progress for each in self._assigned.values()]
        oldest = min((each.oldest for each in progress if each.oldest is not None), default=now)
        self._metrics = TrackerMetrics(
            in_progress=sum(map(len, progress)),
            oldest_age=now - oldest,
            partitions=len(progress),
            lost=self._beginnings.lost,
            **self._counts,
        )
        if self._meter is not None:
            self._meter(self._metrics)

    def _count(self, **more: int) -> None:
        for name, number in more.items():
            self._counts[name] = self._counts.get(name, 0) + number

    def _take_over(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        found = self._beginnings.find(consumer, places)
        for place in found:
            self._assigned[place.partition] = Assigned(place.partition, place.offset)
        consumer.assign(found)

    def _hand_over(self, _: Consumer, places: list[TopicPartition]) -> None:
        gone = [self._assigned.pop(each.partition, None) for each in places]
        self._commit([each for each in gone if each is not None])

    def _lose(self, _: Consumer, places: list[TopicPartition]) -> None:
        for each in places:
            self._assigned.pop(each.partition, None)
