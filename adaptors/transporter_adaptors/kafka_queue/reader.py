"""Reader of a message queue on Kafka, which acks a message when its entry is delivered.

The depth of the queue and the age of its oldest message are measured for operators.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from json import dumps, loads
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from transporter.adaptor import Batch
from transporter.errors import SourceError, TransporterError
from transporter.queue import QueueConsumer
from transporter.queue.backlog import BacklogEstimator
from transporter_adaptors.kafka.survey import ClusterSurvey
from transporter_adaptors.kafka_queue.config import KafkaQueueReaderConfig
from transporter_adaptors.kafka_queue.failures import source_errors
from transporter_adaptors.kafka_queue.probing import probe_queue
from transporter_adaptors.kafka_queue.records import oldest_sent, to_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from transporter.adaptor import AdaptorConfig, Finding, Resume
    from transporter.queue import QueueSettings
    from transporter.queue.message import MessageId

_LOGGER: Final = logging.getLogger(__name__)
_ANSWER_SECONDS: Final = 3.0
"""Time limit of one estimate by the brokers. Closing may wait as long."""
_SHOW_SECONDS: Final = 1.0
"""Seconds after which an age that has grown is reported again."""


@dataclass(slots=True)
class _Batch:
    ids: Sequence[MessageId]
    left: int
    oldest: float | None


class Unsettled:
    """The messages of batches that wait for their delivery. Not thread-safe.

    Only ids are kept, 8 bytes a message besides the consumer's own memory (Invariant 17).
    """

    def __init__(self) -> None:
        self._batches: dict[int, _Batch] = {}

    def __len__(self) -> int:
        """Return the number of batches that are not wholly settled."""
        return len(self._batches)

    def add(self, batch: int, ids: Sequence[MessageId], oldest: float | None = None) -> None:
        """Add the messages of *batch*, by row. *oldest* is the send time of the oldest."""
        self._batches[batch] = _Batch(ids, len(ids), oldest)

    @property
    def oldest(self) -> float | None:
        """Send time of the oldest message in batches that are not wholly settled.

        It may be settled itself, because times are kept for batches, not for messages.
        """
        times = [each.oldest for each in self._batches.values() if each.oldest is not None]
        return min(times, default=None)

    def settle(self, batch: int, rows: Sequence[int]) -> list[MessageId]:
        """Return the ids of *rows* of *batch*, each of which is settled once."""
        found = self._batches[batch]
        found.left -= len(rows)
        if not found.left:
            del self._batches[batch]
        return [found.ids[row] for row in rows]

    def settle_through(self, batch: int) -> list[MessageId]:
        """Return the ids of all batches up to *batch*, none of which was settled in part."""
        reached = [each for each in self._batches if each <= batch]
        return [each for number in reached for each in self._batches.pop(number).ids]


@dataclass(frozen=True, slots=True)
class Position:
    """The *batch* with this number. Numbers ascend through the life of the log.

    A queue has no place to continue from, because unacked messages are redelivered. Stored as
    JSON. Unknown keys are ignored, so later versions may add some.
    """

    batch: int

    def __str__(self) -> str:
        return dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse the text that ``str`` wrote, or raise ``SourceError`` for anything else."""
        try:
            return cls(int(loads(text)["batch"]))
        except (ValueError, TypeError, LookupError) as error:
            raise SourceError(
                f"the log holds the position {text[:100]!r} for this reader, which was not "
                "written by a kafka-queue reader; give the reader another name"
            ) from error


class KafkaQueueReader:
    """Reader of one queue's messages. Each is acked alone, when every route has delivered it.

    Until then heartbeats keep it, however long that takes, so that no tracker redelivers it.
    Messages that an earlier reader had not acked are redelivered, and the routes skip their
    undelivered entries. Implements ``DeliveredReader``.

    Not promised: any order, or that a message comes once. It is redelivered when its
    engine was killed, or cut off for ``redeliver_after``, before the ack was written.
    """

    Config: ClassVar[type[AdaptorConfig]] = KafkaQueueReaderConfig

    def __init__(self, config: KafkaQueueReaderConfig) -> None:
        """Keep *config*. :meth:`open` connects."""
        self._config = config
        self._namespace = config.namespace.format(queue=config.queue)
        self._consumer: QueueConsumer | None = None
        self._resume: Resume | None = None
        self._backlog_meter: _BacklogMeter | None = None
        self._unsettled = Unsettled()
        self._batch = self._lost_count = 0

    def open(self, resume: Resume) -> None:
        """Connect and begin to fetch.

        Raises:
            SourceUnavailable: No broker answers.
            EnvironmentFault: Topics, rights or settings do not meet the requirements.
        """
        self.close()
        position = resume.position
        self._batch = Position.parse(position).batch if position else 0
        # Earlier unacked messages have no heartbeats, so they are redelivered, here or elsewhere.
        resume.supersede()
        self._resume, self._lost_count = resume, 0
        with source_errors():
            consumer = self._consumer = QueueConsumer(self._config.settings, self._config.queue)
        self._backlog_meter = _BacklogMeter(self._config.settings, consumer)
        for problem in self._consumer.problems:
            resume.report("queue-deletes", queue=self._config.queue, problem=problem)

    def poll(self, timeout: float) -> Batch:
        """Return the next messages, waiting up to *timeout* seconds for the first one.

        Raises:
            SourceUnavailable: Brokers were silent for so long that messages in progress may
                have gone to other consumers.
        """
        config = self._config
        with source_errors():
            consumer = self._open_consumer
            consumer.check()
            found = consumer.receive_many(config.batch_rows, timeout, config.batch_bytes)
            lost = consumer.metrics().lost
        if lost > self._lost_count:
            self._report_lost(lost)
        self._measure()
        if not found:
            return Batch(())
        self._batch += 1
        self._unsettled.add(self._batch, [message.id for message in found], oldest_sent(found))
        topic, namespace, kind = config.queue_topic, self._namespace, config.content_type
        messages = [to_message(message, topic, namespace, kind) for message in found]
        return Batch(messages, str(Position(self._batch)))

    def _report_lost(self, lost: int) -> None:
        offsets, self._lost_count = lost - self._lost_count, lost
        if self._resume is not None:
            self._resume.report(
                "messages-deleted",
                queue=self._config.queue,
                offsets=offsets,
                problem=f"topic {self._config.queue_topic} had deleted them before they were"
                " read: its retention is too short; see the event queue-deletes",
            )

    def delivered(self, position: str, rows: Sequence[int]) -> None:
        """Ack exactly the messages that are *rows* of the batch at *position*."""
        with source_errors():
            consumer = self._open_consumer
            consumer.ack(self._unsettled.settle(Position.parse(position).batch, rows))

    def commit(self, position: str) -> None:
        """Ack all messages of the batches up to *position*."""
        with source_errors():
            consumer = self._open_consumer
            consumer.ack(self._unsettled.settle_through(Position.parse(position).batch))

    def keep_alive(self) -> None:
        """Check the consumer, whose own thread sends heartbeats for messages in progress.

        Also measures the backlog, so that it is up to date while the engine does not poll.
        """
        with source_errors():
            self._open_consumer.check()
        self._measure()

    def confirm(self) -> None:
        """Check that messages in progress are still ours. A queue has no leader."""
        self.keep_alive()

    def probe(self) -> Iterable[Finding]:
        """Check the topics and their retention of needed messages."""
        settings = self._config.settings
        return probe_queue(settings, [settings.queue_topic, settings.markers_topic])

    def close(self) -> None:
        """Write acks, return the rest at once without counting, and leave. Safe to call twice."""
        consumer, self._consumer = self._consumer, None
        resume, self._resume = self._resume, None
        measuring, self._backlog_meter = self._backlog_meter, None
        left, self._unsettled = len(self._unsettled), Unsettled()
        if consumer is None:
            return
        if left and resume is not None:
            resume.supersede()  # before another engine has it
        try:
            consumer.close(counted=False)
        except TransporterError as error:
            # Messages are redelivered in time. The next open reports the problem, if it lasts.
            _LOGGER.warning("queue %s: %s", self._config.queue, error)
        finally:
            if measuring is not None:
                measuring.close()

    def _measure(self) -> None:
        if self._backlog_meter is not None and self._resume is not None:
            self._backlog_meter.measure(self._resume, lambda: self._unsettled.oldest)

    @property
    def _open_consumer(self) -> QueueConsumer:
        if self._consumer is None:
            raise SourceError(f"the reader of the queue {self._config.queue} is not open")
        return self._consumer


class _QueueContents(NamedTuple):
    """The contents of a queue for the engine at some moment."""

    depth: int
    oldest: float | None
    """Send time of the oldest message that the engine has not taken yet, in seconds since 1970."""
    unknown: bool
    """Whether messages wait whose time is unknown."""


class _BacklogMeter:
    """Measurement of a queue's backlog for the engine, on a thread of its own.

    It counts messages that no consumer has begun, and those that *consumer* has begun and not
    acked. Messages begun by other consumers are not included. Closed and used by one thread.
    :meth:`measure` never waits for brokers.
    """

    def __init__(self, settings: QueueSettings, consumer: QueueConsumer) -> None:
        """Make the first estimate due at once."""
        self._consumer = consumer
        self._estimator = BacklogEstimator(settings, consumer.queue)
        self._executor = ThreadPoolExecutor(1, "queue-measuring")
        self._survey = ClusterSurvey[_QueueContents](self._start_estimate)
        self._reported_at = 0.0

    def measure(self, resume: Resume, oldest: Callable[[], float | None]) -> None:
        """Report the newest estimate to *resume*, if that is due.

        *oldest* returns the send time of the oldest message that the engine has and has not
        acked, in seconds since 1970. Without an answer from the brokers all is unknown.
        """
        now = time.monotonic()
        if not self._survey.poll(now) and now < self._reported_at + _SHOW_SECONDS:
            return
        self._reported_at = now
        found = self._survey.answer
        resume.measure("backlog_messages", None if found is None else found.depth)
        resume.measure("lag_seconds", None if found is None else _oldest_age(found, oldest()))

    def close(self) -> None:
        """End the thread, after the estimate that is under way. Safe to call twice."""
        self._executor.shutdown(cancel_futures=True)
        self._estimator.close()

    def _start_estimate(self) -> Future[_QueueContents]:
        return self._executor.submit(self._estimate)

    def _estimate(self) -> _QueueContents:
        waiting = self._estimator.estimate(_ANSWER_SECONDS)
        # Afterwards: a message that is begun meanwhile counts twice, rather than not at all.
        begun, held = self._consumer.oldest_sent(), self._consumer.metrics().in_progress
        oldest = min((each for each in (waiting.oldest, begun) if each is not None), default=None)
        unknown = waiting.depth > 0 and waiting.oldest is None
        return _QueueContents(waiting.depth + held, oldest, unknown)


def _oldest_age(found: _QueueContents, oldest: float | None) -> float | None:
    times = [each for each in (found.oldest, oldest) if each is not None]
    if times and found.depth:
        # The sender's clock may be ahead.
        return max(0.0, time.time() - min(times))
    # Without a time: messages in progress have been acked since.
    return None if found.unknown else 0.0
