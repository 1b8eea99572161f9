"""Commits to a consumer group of the places up to which the log holds each partition."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from transporter.errors import SourceUnavailable
from transporter_adaptors.kafka.consumer import partition_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from confluent_kafka import TopicPartition

    from transporter_adaptors.kafka.config import KafkaReaderConfig
    from transporter_adaptors.kafka.partition import AssignedPartition
    from transporter_adaptors.kafka.position import KafkaOffset, Position

_LOG: Final = logging.getLogger(__name__)
_CLOSE_SECONDS: Final = 3.0
_OTHERS: Final = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.UNKNOWN_MEMBER_ID,
}
"""Errors for a commit by a client outside a group that has members."""
COMMIT_PATIENCE: Final = 60.0
"""Seconds from the first to the last failed commit, after which the reader begins again."""


class Commits:
    """Commits for the partitions that are *held*, with a mark of this reader.

    A commit that fails is due again with the next one. The log has its place
    without it. Used by one thread at a time.
    """

    def __init__(
        self,
        config: KafkaReaderConfig,
        consumer: Any,  # noqa: ANN401 - the library has no types
        settled: Callable[[], Position],
        place: str,
        held: Mapping[tuple[str, int], AssignedPartition],
    ) -> None:
        """Commit by *consumer*. *held* changes with the assignment, *settled* with commits."""
        self._config, self._consumer, self._settled = config, consumer, settled
        self._place, self._partitions = place, held
        self._failing_since: float | None = None
        """Time of the first commit that was tried since the last that succeeded."""
        self._tried_at = 0.0

    def is_settled(self, held: AssignedPartition) -> bool:
        """Return whether the group may get everything that was ever handed out of *held*."""
        return self._settled_place(held) == (held.returned or held.logged)

    def commit_due(self) -> None:
        """Commit the due places. The result comes later, to :meth:`record_result`.

        Raises:
            SourceUnavailable: No commit was accepted, and tries go on for more than a minute.
        """
        due = self._due(self._partitions.values())
        if not due:
            self._failing_since = None
            return
        since = self._failing_since
        # The time without a try, which `commit_interval` sets, is no failure.
        if since is not None and self._tried_at - since > COMMIT_PATIENCE:
            raise SourceUnavailable(
                f"{self._place}: the group {self._config.group} has accepted no commit for "
                f"{COMMIT_PATIENCE:g} s; trying again may help"
            )
        self._tried_at = monotonic()
        self._failing_since = self._tried_at if since is None else since
        self._consumer.commit(offsets=self._marks(due), asynchronous=True)

    def commit_starts(self, starts: list[AssignedPartition]) -> None:
        """Commit *starts* before the group has members. Later only a member can commit."""
        try:
            self._consumer.commit(offsets=self._marks(starts), asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in _OTHERS:
                raise

    def commit_revoked(self, gone: list[AssignedPartition]) -> None:
        """Commit the due places of partitions that move to another member, and wait."""
        if due := self._due(gone):
            try:
                self._consumer.commit(offsets=self._marks(due), asynchronous=False)
            except KafkaException as error:
                # Nothing is lost: the next member repeats records that this log already has.
                _LOG.warning("%s: cannot commit at a rebalance: %s", self._place, error.args[0])

    def commit_last(self) -> None:
        """Commit the due places, and wait for the result as long as a close may take."""
        deadline = monotonic() + _CLOSE_SECONDS
        due = self._due(self._partitions.values())
        if not due:
            return
        try:
            self._consumer.commit(offsets=self._marks(due), asynchronous=True)
            while monotonic() < deadline and self._due(due):
                self._consumer.poll(0.05)  # Its record was never handed out, and is redelivered.
        except KafkaException as error:
            _LOG.warning("%s: cannot commit at the close: %s", self._place, error.args[0])

    def record_result(
        self, error: KafkaError | None, partitions: Iterable[TopicPartition]
    ) -> list[KafkaError]:
        """Record the result of a commit, and return the errors."""
        failures: list[KafkaError] = []
        for partition in partitions:
            failed = partition.error or error
            held = self._partitions.get((partition.topic, partition.partition))
            if failed is not None:
                failures.append(failed)
            elif held is not None:
                held.committed, self._failing_since = partition.offset, None
        return failures

    def _marks(self, due: Iterable[AssignedPartition]) -> list[TopicPartition]:
        owner = self._settled().owner
        return [
            partition_of(held, held.due, held.commit_metadata(owner))
            for held in due
            if held.due is not None
        ]

    def _settled_place(self, held: AssignedPartition) -> KafkaOffset | None:
        return self._settled().place(held.topic, held.topic_id, held.partition)

    def _due(self, held: Iterable[AssignedPartition]) -> list[AssignedPartition]:
        found = []
        for each in held:
            each.settle_earlier(self._settled_place(each))
            if each.due is not None and each.due.next != each.committed:
                found.append(each)
        return found
