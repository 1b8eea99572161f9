"""Delivery of a slice and its shard's progress in one Kafka transaction."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException

from transporter.errors import RouteFault, SinkUnavailable
from transporter.kafka.groups import non_member_metadata
from transporter_adaptors.kafka.client import limit_time, seconds_left
from transporter_adaptors.kafka.failures import is_fault, sink_error
from transporter_adaptors.kafka.progress import GroupProgress, Groups
from transporter_adaptors.kafka.slice import SentSlice

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Producer, TopicPartition

    from transporter.adaptor import Ack, StoredOffset, WriterContext
    from transporter.errors import SinkError
    from transporter.message import Entries
    from transporter_adaptors.kafka.client import ProducerFactory
    from transporter_adaptors.kafka.slice import Outgoing, Row

_T = TypeVar("_T")

_ATTEMPTS: Final = 4
"""Transactions per slice: a refused entry costs two, records that the client lost one more."""

_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - a public code
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    }
)
_FAULTS: Final = frozenset(
    {
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.OFFSET_METADATA_TOO_LARGE,
    }
)
"""Errors of every transaction until an operator changes something, besides missing rights."""


class DurableRows(NamedTuple):
    """The number of rows, from the first on, that are durable in the topic, and the error."""

    rows: int
    error: SinkError | None = None
    offset: int | None = None
    acked: int = 0
    """Number of those rows that were acked already."""


@dataclass(frozen=True, slots=True)
class _Commit:
    """A transaction whose commit is not confirmed yet."""

    mark: str
    generation: int
    offsets: frozenset[int]


class WriterTransactions:
    """One shard's transactions. See ``README.md`` for how they make it effectively once.

    An id, and a consumer group of the same name, belong to each shard. Initialising
    the id fences every earlier holder. Nothing that a holder reads and writes
    after that can be overtaken by others. Not thread-safe.
    """

    def __init__(self, client: ProducerFactory, context: WriterContext) -> None:
        """Connect to nothing yet."""
        self._client, self._context = client, context
        self._topic = client.config.progress_place or ""
        self._groups = Groups(client, self._topic)
        self._producer: Producer | None = None
        self._member = non_member_metadata(self._transactional_id(context.shard))
        self._instance, self._count = uuid.uuid4().hex, 0
        self._last_progress: GroupProgress | None = None
        self._unconfirmed: _Commit | None = None
        self._unacked = defaultdict[int, set[int]](set)
        """Offsets that are committed without having been acked, by generation."""

    def open(self) -> StoredOffset | None:
        """Fence every earlier writer of this route, and return this shard's progress.

        Raises:
            RouteFault: An engine with a newer epoch has opened the route.
            SinkUnavailable: No broker answers before the deadline.
        """
        ends = time.monotonic() + self._client.seconds
        others = self._check_shards(ends)
        # Shards that no longer exist come first. When one of our shards is committed as such,
        # this proves that all of those are fenced, even if we end before we are through.
        for shard in sorted(others, reverse=True):
            if shard >= self._context.shards:
                self._fence_shard(shard, ends)
        known = self._take_own_id(ends)
        for shard in others:
            if shard < self._context.shards:
                self._fence_shard(shard, ends)
        if known is None or known.stored.offset < 0 or not self._is_of_this_log(known):
            return None
        return known.stored

    def deliver(self, outgoing: Outgoing, ack: Ack) -> DurableRows:  # noqa: ARG002 - all at the end
        """Commit all rows of *outgoing*, or those before the first that is refused."""
        batch = outgoing.batch
        rows = outgoing.rows(0, len(batch))
        ends = time.monotonic() + self._client.seconds
        done = 0
        try:
            if self._client.has_lost_brokers():
                self.close()  # The brokers may have lost its last commit's end: see README.md.
            if self._producer is None:
                self._retake_own_id(ends + self._client.seconds / 4)
                if self._context.turns:
                    # We may have fenced the engine whose turn it is (Invariant 10).
                    text = f"{self._place}: id taken again; leadership is checked again first"
                    return DurableRows(0, SinkUnavailable(text))
                # However long that took, the slice is tried, so that there is an outcome.
                ends = max(ends, time.monotonic() + self._client.seconds / 4)
            done = self._count_committed(batch, len(rows))
            found = self._run_transactions(batch, rows, done, ends)
        except KafkaException as error:
            return DurableRows(done, self._recover_producer(error, ends))
        if found.error is None:
            self._client.last_error = None
        return found

    def close(self) -> None:
        """Drop the producer. Uncommitted rows are aborted, at the next open at the latest."""
        self._producer = None
        self._client.drop()

    # Permission to write

    def _check_shards(self, ends: float) -> list[int]:
        """Return the shards, besides ours, whose ids another number of shards may still hold.

        An engine with a newer epoch is found here before we would fence it.
        """
        shard, bound, others = 0, self._context.shards, []
        while shard < bound:
            known = self._read_progress(shard, ends)
            self._check_epoch(known)
            if known is not None:
                bound = max(bound, known.stored.shards)
            if shard != self._context.shard and not self._is_ours(known):
                others.append(shard)
            shard += 1
        return others

    def _take_own_id(self, ends: float) -> GroupProgress | None:
        """Take our own id, commit that, and return the progress found."""

        def take() -> GroupProgress | None:
            self._producer = self._client.producer(self._transactional_id(self._context.shard))
            return self._take_id(self._producer, self._context.shard, ends)

        try:
            return self._retry_fenced(take, ends)
        except BaseException:
            self.close()
            raise

    def _fence_shard(self, shard: int, ends: float) -> None:
        """Fence the writer of *shard*, because its keys go to another number of shards."""

        def take() -> None:
            if not self._is_ours(self._read_progress(shard, ends)):
                producer = self._client.producer(self._transactional_id(shard), kept=False)
                self._take_id(producer, shard, ends)

        self._retry_fenced(take, ends)

    def _retry_fenced(self, take: Callable[[], _T], ends: float) -> _T:
        """Call *take*, again while another worker of ours does the same, and return its result."""
        while True:
            try:
                return take()
            except KafkaException as error:
                if error.args[0].code() not in _FENCED or time.monotonic() >= ends:
                    raise self._translate_error(error) from error
                _wait_randomly()

    def _take_id(self, producer: Producer, shard: int, ends: float) -> GroupProgress | None:
        """Take the id of *shard*, and commit that it has this epoch and number of shards."""
        self._call_with_retry(ends, producer.init_transactions)
        alone = partial(self._commit_alone, producer, self._transactional_id(shard), ends)
        known = self._groups.read_settled(self._transactional_id(shard), ends, alone)
        self._check_epoch(known)
        newest, own = known, shard == self._context.shard
        kept = known.stored if known is not None and self._is_ours(known) else None
        if kept is None or (own and self._is_stale(kept)):
            whose = replace(self._context, shard=shard)
            newest = self._next_progress(whose.stored(-1, -1, kept))
            alone(newest.place(self._topic))
        if own:
            self._last_progress = newest
        return known

    def _is_ours(self, known: GroupProgress | None) -> bool:
        return known is not None and known.stored.shards == self._context.shards

    def _is_of_this_log(self, known: GroupProgress) -> bool:
        """Return whether *known* is of our own log, and not of another engine that had its turn."""
        return known.stored.log_id == self._context.log_id

    def _is_stale(self, stored: StoredOffset) -> bool:
        return stored.log_id != self._context.log_id or stored.epoch < self._context.epoch

    def _check_epoch(self, known: GroupProgress | None) -> None:
        """Raise a fault when an engine with a newer epoch of this log has written *known*."""
        if known is None or not self._is_of_this_log(known):
            return
        if known.stored.epoch > self._context.epoch:
            raise RouteFault(
                f"{self._place}: fenced by epoch {known.stored.epoch}; this writer has epoch "
                f"{self._context.epoch}: another engine has opened the log since"
            )

    def _read_progress(self, shard: int, ends: float) -> GroupProgress | None:
        """Return the last commit for *shard*."""
        try:
            return self._groups.read(self._transactional_id(shard), ends, stable=False)
        except KafkaException as error:
            raise self._translate_error(error) from error

    def _retake_own_id(self, ends: float) -> None:
        """Take our id again after a failure, and find the outcome of the last commit."""
        before, unsure = self._last_progress, self._unconfirmed
        found = self._take_own_id(ends)
        if found is None or not self._is_of_this_log(found):
            mark = ""
        elif not found.mark.startswith(self._instance) and (
            before is None or found.mark != before.mark
        ):
            self.close()
            raise RouteFault(
                f"{self._place}: another engine has written with this epoch, "
                f"{self._context.epoch}: check whether a copy of this log runs elsewhere"
            )
        else:
            mark = found.mark
        if unsure is not None and mark == unsure.mark:
            self._unacked[unsure.generation] |= unsure.offsets
        self._unconfirmed = None

    # Writing

    def _count_committed(self, batch: Entries, count: int) -> int:
        """Return how many of the first *count* rows were committed without a confirmation."""
        settled = self._unacked.get(batch.generation)
        if not settled:
            return 0
        found = list(takewhile(settled.__contains__, batch.offsets[:count]))
        settled.difference_update(found)  # The rest comes in slices of its own.
        return len(found)

    def _run_transactions(
        self, batch: Entries, rows: list[Row], done: int, ends: float
    ) -> DurableRows:
        offsets, count = batch.offsets, len(rows)
        refused, trouble = DurableRows(0), DurableRows(done)
        for _ in range(_ATTEMPTS):
            if count == done:
                break
            producer = self._begin_transaction()
            part = SentSlice(producer, rows[done:count], ends, self._client.batch_bytes())
            part.deliver()
            if part.fatal_error is not None:
                raise KafkaException(part.fatal_error)
            if part.count_delivered() == count - done:
                self._commit(producer, batch, offsets[done:count])
                return refused._replace(rows=count)
            error, offset, guilty = self._explain_failure(part, producer, offsets[done:count], ends)
            self._abort(producer)
            if offset is not None:
                # Rows before it are delivered now, none behind it (Invariant 9).
                refused, count = DurableRows(0, error, offset), batch.whole(done + guilty)
                continue
            trouble = DurableRows(done, error)
            if not isinstance(error, SinkUnavailable) or time.monotonic() >= ends:
                break
        if count == done:
            return refused._replace(rows=done)
        self.close()  # A new client need not repair the state of one that has lost count.
        return trouble

    def _begin_transaction(self) -> Producer:
        assert self._producer is not None  # noqa: S101 - deliver has entered
        self._producer.begin_transaction()
        return self._producer

    def _explain_failure(
        self, part: SentSlice, producer: Producer, offsets: list[int], ends: float
    ) -> tuple[SinkError, int | None, int]:
        """Return why *part* failed, and the offset and the row of an entry at fault, if any."""
        failure = part.failure()
        if failure is None and part.failures and time.monotonic() < ends:
            # The client has taken all rows back. Only a commit, which must fail now, shows why.
            try:
                producer.commit_transaction(seconds_left(ends))
            except KafkaException as why:
                return self._translate_error(why), None, 0
        error, offset = self._client.delivery_error(part, offsets)
        return error, offset, failure.row if failure else 0

    def _commit(self, producer: Producer, batch: Entries, offsets: list[int]) -> None:
        known = self._last_progress.stored if self._last_progress else None
        progress = self._next_progress(self._context.stored(batch.generation, offsets[-1], known))
        ends = time.monotonic() + self._client.seconds / 2
        place = progress.place(self._topic)
        self._send_progress(producer, place, self._transactional_id(self._context.shard), ends)
        self._unconfirmed = _Commit(progress.mark, batch.generation, frozenset(offsets))
        self._call_with_retry(ends, producer.commit_transaction)
        self._last_progress, self._unconfirmed = progress, None

    def _abort(self, producer: Producer) -> None:
        try:
            self._call_with_retry(
                time.monotonic() + self._client.seconds / 2, producer.abort_transaction
            )
        except KafkaException:
            self.close()  # The next holder of the id aborts it.
            raise

    def _recover_producer(self, error: KafkaException, ends: float) -> SinkError:
        """Return the meaning of *error*, which no row has caused, and restore the producer."""
        failure = self._translate_error(error)
        why, producer = error.args[0], self._producer
        if why.txn_requires_abort() and producer is not None:
            self._unconfirmed = None  # It was certainly not committed.
            try:
                self._abort(producer)
            except KafkaException:
                return failure
            return failure
        self.close()
        if why.code() in _FENCED:
            self._raise_if_fenced(max(ends, time.monotonic() + 1))
        return failure

    def _raise_if_fenced(self, ends: float) -> None:
        """Raise a fault that names the engine that has fenced us, if its epoch is newer."""
        self._check_epoch(self._read_progress(self._context.shard, ends))

    def _next_progress(self, stored: StoredOffset) -> GroupProgress:
        self._count += 1
        return GroupProgress(stored, f"{self._instance}-{self._count}")

    def _commit_alone(
        self, producer: Producer, group: str, ends: float, place: TopicPartition
    ) -> None:
        producer.begin_transaction()
        self._send_progress(producer, place, group, ends)
        self._call_with_retry(ends, producer.commit_transaction)

    def _send_progress(
        self, producer: Producer, place: TopicPartition, group: str, ends: float
    ) -> None:
        own = group == self._transactional_id(self._context.shard)
        member = self._member if own else non_member_metadata(group)
        self._call_with_retry(
            ends, limit_time(producer.send_offsets_to_transaction), [place], member
        )

    def _call_with_retry(self, ends: float, act: Callable[..., Any], *values: object) -> None:
        """Call *act* with *values* and the time left, again while the client permits a retry."""
        while True:
            try:
                act(*values, max(0.1, seconds_left(ends)))
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= ends:
                    raise
            else:
                return

    def _translate_error(self, error: KafkaException) -> SinkError:
        why = error.args[0]
        text = f"{self._place}: {why.str()} ({why.name()})"
        if why.code() in _FENCED:
            return SinkUnavailable(f"{text}: another worker of this epoch has taken over")
        if why.code() in _FAULTS:
            return RouteFault(f"{text}: check progress_topic and the client settings")
        if why.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return SinkUnavailable(f"{text}: create the topic {self._topic}")
        trouble = self._client.last_error
        return sink_error(
            trouble if trouble is not None and is_fault(trouble) else why, self._place
        )

    def _transactional_id(self, shard: int) -> str:
        return f"{self._context.turns or self._context.log_id}.{self._context.route}.{shard}"

    @property
    def _place(self) -> str:
        own_id = self._transactional_id(self._context.shard)
        return f"{self._client.place()}, transactional id {own_id}"


def _wait_randomly() -> None:
    # Others do the same thing at the same time. The one with the longer wait comes second.
    threading.Event().wait(random.uniform(0.01, 0.1))  # noqa: S311 - only to be out of step
