"""Reader of Kafka topics as a member of a consumer group."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, ClassVar, Final

from transporter.adaptor import Batch, EndOfSource
from transporter.errors import SourceError, SourceUnavailable
from transporter_adaptors.kafka.cluster import Cluster
from transporter_adaptors.kafka.config import KafkaReaderConfig
from transporter_adaptors.kafka.group import ReaderGroup
from transporter_adaptors.kafka.position import Position, PositionStep
from transporter_adaptors.kafka.probing import probe_reader
from transporter_adaptors.kafka.records import Names, to_batch
from transporter_adaptors.kafka.survey import ClusterSurvey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from confluent_kafka import Message as Record

    from transporter.adaptor import AdaptorConfig, Finding, Resume
    from transporter_adaptors.kafka.partition import AssignedPartition
    from transporter_adaptors.kafka.position import KafkaOffset


_BEAT: Final = 1.0
"""Seconds between two calls of *keep*."""


class Keeper:
    """A thread that calls *keep* each second once its owner has been away for a while.

    A reader is not polled while the log has no room. Its member would then answer
    no rebalance, which blocks the whole group, and would be removed in the end.

    Owner and thread never run at the same time. The owner works inside of
    :meth:`pause`, which waits for a call of *keep* that is under way, and
    raises the exception that the last one raised. Made and closed by one thread.
    """

    def __init__(self, patience: float, keep: Callable[[], None]) -> None:
        """Start the thread. The owner counts as away after *patience* seconds."""
        self._patience, self._keep = patience, keep
        self._changed = threading.Condition()
        self._last_seen = monotonic()
        self._closing = False
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kafka-keeper")
        self._thread.start()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Block the thread for the length of a ``with`` block."""
        with self._changed:
            if self._problem is not None:
                raise self._problem
            try:
                yield
            finally:
                self._last_seen = monotonic()

    @contextmanager
    def try_pause(self) -> Iterator[bool]:
        """Block the thread for the length of a ``with`` block, if that needs no wait.

        Yields whether it needs none. The owner still counts as away.
        """
        free = self._changed.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._changed.release()

    def close(self) -> None:
        """End the thread and wait for it."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closing and self._problem is None:
                left = self._last_seen + self._patience - monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                try:
                    self._keep()
                except BaseException as error:  # noqa: BLE001 - raised later in the owner
                    self._problem = error
                else:
                    self._changed.wait(_BEAT)


_GRACE: Final = 10.0
"""Seconds for which a topic may be missing, so that one that is being created can appear."""
_LOOK: Final = 30.0
"""Seconds between two checks of the topics when there is no reason for one."""
_SOON: Final = 1.0
"""Seconds between two checks when there is a reason."""
_MEASURE: Final = 10.0
"""Seconds between two measurements of the backlog."""
_UNPOLLED: Final = 2.0
"""Seconds without a poll after which the client's ends of partitions count as old."""
_PATIENCE: Final = 10.0
_MAX_POLL_INTERVAL: Final = 300_000


class KafkaReader:
    """Reader of the records of some topics, each partition in its order.

    ``data``, ``key`` and headers are the record's, byte for byte. A missing value makes
    a tombstone with the op ``delete``. The partitions are shared with the other members of
    the group. Each is read on from the log's place, unless another member, or an operator,
    has moved the group since.

    Not promised: order among partitions, or that a record is logged in one engine's
    log only. At a rebalance without crash or full log nothing is repeated.
    """

    Config: ClassVar[type[AdaptorConfig]] = KafkaReaderConfig

    def __init__(self, config: KafkaReaderConfig) -> None:
        """Keep *config* and connect to nothing yet."""
        self._config = config
        self._place = f"Kafka at {config.bootstrap_servers}"
        self._position = self._settled = Position("")
        self._cluster: Cluster | None = None
        self._group: ReaderGroup | None = None
        self._keeper: Keeper | None = None
        # By position. With `release: delivered` there may be as many as entries.
        self._open_batches: OrderedDict[
            str, tuple[Position, list[tuple[AssignedPartition, KafkaOffset]]]
        ] = OrderedDict()
        self._topics: list[str] = []
        self._missing_since: dict[str, float] = {}
        self._checked_at = self._committed_at = self._measured_at = 0.0
        self._resume: Resume | None = None
        self._survey: ClusterSurvey[dict[tuple[str, int], int]] | None = None
        self._polled_at = 0.0
        self._is_at_end = False
        self._pause = threading.Event()  # never set: waiting on it is a bounded pause

    def open(self, resume: Resume) -> None:
        """Join the group. Partitions come with the first polls.

        Raises:
            SourceUnavailable: No broker answers, or a topic that was read is gone.
            EnvironmentFault: A right or a setting is wrong.
        """
        self.close()
        self._resume = resume
        text = resume.position
        self._position = (
            Position.parse(text) if text else Position(f"{resume.log_id}/{secrets.token_hex(4)}")
        )
        # With `release: delivered` the log may hold more than may be committed to the group.
        text = resume.committable
        self._settled = Position.parse(text) if text else Position(self._position.owner)
        cluster = self._cluster = Cluster(self._config, self._place)
        positions = (lambda: self._position), (lambda: self._settled)
        group = ReaderGroup(self._config, cluster, *positions, self._place)
        self._group = group
        self._await_topics(cluster)
        if self._config.start == "latest":
            group.commit_beginnings(self._wanted_topics(cluster))
        self._subscribe(cluster, group)
        self._checked_at = self._committed_at = self._polled_at = monotonic()
        self._survey = ClusterSurvey(group.query_ends)
        # In a rebalance the other members may have to wait for us this long.
        limit = int(self._config.client.get("max.poll.interval.ms", _MAX_POLL_INTERVAL)) / 1000
        self._keeper = Keeper(min(_PATIENCE, limit / 4), self._keep_membership)

    def poll(self, timeout: float) -> Batch:
        """Return the next records, waiting up to *timeout* seconds for the first one.

        Raises:
            SourceError: Records that were to be read are gone, and ``on_out_of_range`` is ``stop``.
            EndOfSource: With ``follow: false``, everything was read.
        """
        group, cluster, keeper = self._open_parts
        deadline = monotonic() + timeout
        with keeper.pause():
            while not self._is_at_end:
                self._check_topics(group, cluster)
                self._commit_due(group)
                self._measure(group)
                records, steps = group.poll(max(0.0, deadline - monotonic()))
                self._polled_at = monotonic()
                if records:
                    return self._make_batch(records, steps)
                self._is_at_end = not self._config.follow and (group.is_at_end or not self._topics)
                if monotonic() >= deadline and not self._is_at_end:
                    return Batch(())
            raise EndOfSource

    def commit(self, position: str) -> None:
        """Commit *position* to the group, with the next commit (Invariants 1 and 18)."""
        group, _, keeper = self._open_parts
        with keeper.pause():
            if position not in self._open_batches:
                # Of an earlier run, or of what was read before the source was away.
                self._settled = Position.parse(position)
            while position in self._open_batches:
                _, (self._settled, steps) = self._open_batches.popitem(last=False)
                for held, place in steps:
                    held.logged = place
            self._commit_due(group)

    def keep_alive(self) -> None:
        """Measure the backlog between polls, as while the log is full and the keeper is active."""
        now, group, keeper, survey = monotonic(), self._group, self._keeper, self._survey
        if group is None or keeper is None or survey is None:
            return
        if now < self._polled_at + _UNPOLLED:
            survey.reset()
            return
        with keeper.try_pause() as free:
            if free and survey.poll(now) and self._resume is not None:
                ends = survey.answer
                self._resume.measure(
                    "backlog_messages", None if ends is None else group.backlog(ends)
                )

    def probe(self) -> Iterable[Finding]:
        """Check the topics and the group."""
        return probe_reader(self._config)

    def close(self) -> None:
        """Commit the logged places, leave the group and end the threads. Safe to call twice."""
        keeper, self._keeper = self._keeper, None
        group, self._group = self._group, None
        self._cluster = self._survey = None
        self._open_batches.clear()
        self._topics, self._missing_since = [], {}
        self._is_at_end = False
        if keeper is not None:
            keeper.close()
        if group is not None:
            group.close()

    def _measure(self, group: ReaderGroup) -> None:
        now = monotonic()
        if now >= self._measured_at + _MEASURE and self._resume is not None:
            self._measured_at = now
            # While brokers are away the client's numbers are old.
            found = None if group.needs_check else group.backlog(group.known_ends())
            self._resume.measure("backlog_messages", found)

    def _make_batch(
        self, records: list[Record], steps: list[tuple[AssignedPartition, KafkaOffset]]
    ) -> Batch:
        names = {held.topic: self._names_of(held) for held, _ in steps}
        self._position = self._position.advance(
            PositionStep(held.topic, held.topic_id, held.partition, place) for held, place in steps
        )
        text = str(self._position)
        # A partition that went away and came back may reach a position a second time.
        _, earlier = self._open_batches.pop(text, (None, []))
        self._open_batches[text] = self._position, [*earlier, *steps]
        return Batch(to_batch(records, names, self._config.content_type), text)

    def _names_of(self, held: AssignedPartition) -> Names:
        origin = f"{held.topic}@{held.topic_id}" if held.topic_id else held.topic
        return Names(self._config.namespace.format(topic=held.topic), origin)

    def _keep_membership(self) -> None:
        group = self._group
        if group is not None:
            group.keep_membership()
            self._commit_due(group)

    def _commit_due(self, group: ReaderGroup) -> None:
        now = monotonic()
        if now - self._committed_at >= self._config.commit_interval:
            self._committed_at = now
            group.commit_due()

    # Topics

    def _await_topics(self, cluster: Cluster) -> None:
        """Wait for topics that are being created, for a limited time."""
        deadline = monotonic() + _GRACE
        while missing := sorted(set(self._config.topics) - cluster.ids(self._config.topics).keys()):
            if monotonic() >= deadline:
                raise self._missing_topics_error(missing)
            self._pause.wait(_SOON / 2)

    def _missing_topics_error(self, topics: list[str]) -> SourceUnavailable:
        names = ", ".join(topics)
        if set(topics) <= self._position.topics.keys():
            return SourceUnavailable(
                f"{self._place}: these topics were read before and are gone: {names}; create "
                "them again, or remove them from `topics`"
            )
        return SourceUnavailable(
            f"{self._place}: these topics do not exist: {names}; create them, or correct `topics`"
        )

    def _check_topics(self, group: ReaderGroup, cluster: Cluster) -> None:
        """Check at intervals that the brokers answer and that the topics are still the same."""
        now = monotonic()
        if now - self._checked_at < (_SOON if group.needs_check else _LOOK):
            return
        self._checked_at = now
        self._subscribe(cluster, group)
        topics = {*self._config.topics, *(topic for topic, _ in group.partitions)}
        ids = cluster.ids(topics)
        group.needs_check = False  # The brokers answer.
        for topic in topics & ids.keys():
            group.check_topic_id(topic, ids[topic])
        self._check_missing(set(self._config.topics) - ids.keys(), now)
        group.needs_check = bool(self._missing_since)

    def _check_missing(self, missing: set[str], now: float) -> None:
        """Raise if a topic has been missing for too long."""
        self._missing_since = {topic: self._missing_since.get(topic, now) for topic in missing}
        late = [topic for topic, since in self._missing_since.items() if now - since >= _GRACE]
        if late:
            raise self._missing_topics_error(sorted(late))

    def _subscribe(self, cluster: Cluster, group: ReaderGroup) -> None:
        topics = self._wanted_topics(cluster)
        if topics != self._topics:
            self._topics = topics
            group.subscribe(topics)

    def _wanted_topics(self, cluster: Cluster) -> list[str]:
        pattern = self._config.pattern
        return list(self._config.topics) if pattern is None else cluster.matching_topics(pattern)

    @property
    def _open_parts(self) -> tuple[ReaderGroup, Cluster, Keeper]:
        if self._group is None or self._cluster is None or self._keeper is None:
            raise SourceError(f"the reader of {self._place} is not open")
        return self._group, self._cluster, self._keeper
