"""The workers of all shards of a route, which the route talks to as if they were one."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Self

from transporter.protocol.messages import (
    Announcement,
    Opened,
    OpenFailed,
    Outcome,
    Output,
    PartialOutcome,
    Proceed,
    Retry,
    Slice,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from transporter.adaptor import StoredOffset
    from transporter.engine.workers.spark_supervisor import SparkSupervisor
    from transporter.engine.workers.worker_connection import WorkerConnection
    from transporter.protocol.messages import WorkerSpec


def connect(
    spark: SparkSupervisor, specs: Iterable[WorkerSpec], stopping: Callable[[], bool]
) -> WorkerConnection | ShardGroup | None:
    """Return the line to the workers of *specs*; ``None`` once *stopping* returns true.

    Raises the errors of :meth:`SparkSupervisor.connect`.
    """
    connections: list[WorkerConnection] = []
    with ExitStack() as stack:
        for spec in specs:
            connection = spark.connect(spec, stopping)
            if connection is None:
                return None
            connections.append(stack.enter_context(connection))
        stack.pop_all()
    return connections[0] if len(connections) == 1 else ShardGroup(connections)


class ShardGroup:
    """One line to several workers. Belongs to the route's thread.

    Each receives every slice and delivers its shard's entries. The slice counts up to the
    worker with the least progress. The others skip entries beyond that when they come again.
    If one of them dies, all are replaced.
    """

    def __init__(self, connections: Sequence[WorkerConnection]) -> None:
        """Talk over *connections*, one a shard, in their order."""
        self._connections = connections
        self._received: deque[tuple[int | None, Any]] = deque()
        self._answers: dict[int, Opened | Outcome] = {}
        self._requested = set(range(len(connections)))
        self._announced: dict[int, int] = {}
        self._parts = _PartialReports()
        self._sender: int | None = None
        self._end: BaseException | None = None
        self.shard = 0
        """The shard whose worker has gone, once one has."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up on all of them."""
        for connection in self._connections:
            connection.close()

    def send(self, message: object) -> None:
        """Send *message*: a slice to all, an answer to the worker that waits for it."""
        match message:
            case Slice():
                self._request(range(len(self._connections)), message)
            case Retry():
                self._request((0,), message)
            case Proceed() if self._sender is not None:
                self._connections[self._sender].send(message)

    def poll(self, timeout: float) -> bool:
        """Wait up to *timeout* seconds; return whether :meth:`recv` returns at once."""
        if not self._has_message():
            self._wait(timeout)
        return self._has_message()

    def recv(self) -> Any:  # noqa: ANN401 - any message
        """Return the next message of one worker, or the merged answer of all.

        Raises:
            EOFError: one has closed; ``shard`` is its number.
            ConnectionError: the connection to one broke.

        """
        while not self._has_message():
            self._wait(None)
        if self._received:
            self._sender, message = self._received.popleft()
            return message
        assert self._end is not None  # noqa: S101 - it had a message, and returned none
        raise self._end

    def _request(self, shards: Iterable[int], message: Slice | Retry) -> None:
        self._requested = set(shards)
        self._answers.clear()
        self._announced.clear()
        self._parts = _PartialReports()
        for shard in self._requested:
            self._connections[shard].send(message)

    def _has_message(self) -> bool:
        return bool(self._received) or self._end is not None

    def _wait(self, timeout: float | None) -> None:
        # A line may have received more than it has returned.
        if not self._receive_next() and wait(self._descriptors(), timeout):
            self._receive_next()

    def _descriptors(self) -> list[int]:
        return [self._connections[shard].connection.fileno() for shard in self._unanswered()]

    def _unanswered(self) -> set[int]:
        return self._requested - self._answers.keys()

    def _receive_next(self) -> bool:
        """Receive from the first worker that has a message."""
        for shard in sorted(self._unanswered()):
            connection = self._connections[shard]
            if not connection.poll(0):
                continue
            try:
                self._process(shard, connection.recv())
            except (EOFError, ConnectionError) as error:
                self._record_loss(shard, error)
            return True
        return False

    def _process(self, shard: int, message: object) -> None:
        match message:
            case Opened() | Outcome():
                self._answers[shard] = message
                if self._unanswered():
                    self._report_part()
                else:
                    self._received.append((None, self._merge_answers()))
            case PartialOutcome(outcome):
                self._parts.add(shard, outcome)
                self._report_part()
            case OpenFailed():
                self._received.append((None, message))
            case Announcement(offset):
                self._announced[shard] = offset
                self._received.append((shard, message))
            case Output():
                self._received.append((shard, message))

    def _report_part(self) -> None:
        """Report the entries that all shards have settled, when the slowest makes progress."""
        offsets = [self._settled_offset(shard) for shard in self._requested]
        if (part := self._parts.take(min(offsets))) is not None:
            self._received.append((None, PartialOutcome(part)))

    def _settled_offset(self, shard: int) -> int:
        match self._answers.get(shard):
            case Outcome(through):
                return through
        return self._parts.through.get(shard, -1)

    def _record_loss(self, shard: int, error: BaseException) -> None:
        self.shard, self._end = shard, error
        if shard in self._announced:
            # Others have announced since: the route needs the entry of the worker that died.
            self._received.append((None, Announcement(self._announced[shard])))

    def _merge_answers(self) -> Opened | Outcome:
        answers = list(self._answers.values())
        outcomes = [each for each in answers if isinstance(each, Outcome)]
        if outcomes:
            return merge_outcomes(outcomes, self._parts.pending)
        stored = [each.stored for each in answers if isinstance(each, Opened)]
        return Opened(
            lowest_stored_offset(stored), tuple(each for each in stored if each is not None)
        )


class _PartialReports:
    """The reports of shards about one slice before its end."""

    def __init__(self) -> None:
        self.through: dict[int, int] = {}
        """The offset up to which each shard has settled its own entries."""
        self.pending: list[Outcome] = []
        """Reports that were not forwarded yet."""
        self._reported = -1

    def add(self, shard: int, outcome: Outcome) -> None:
        """Record the report of *shard*."""
        self.through[shard] = outcome.through
        self.pending.append(outcome)

    def take(self, through: int) -> Outcome | None:
        """Return the rest as a part that ends at *through*, or ``None`` without progress."""
        if through <= self._reported:
            return None
        self._reported = through
        found = _sum_outcomes(self.pending, through)
        beyond = _newest_offsets(self.pending, lambda offset: offset > through)
        self.pending = [Outcome(through, 0, 0, 0, beyond)]
        return found


def merge_outcomes(outcomes: Sequence[Outcome], parts: Sequence[Outcome] = ()) -> Outcome:
    """Merge the shards' outcomes into the outcome of the whole slice.

    *parts* were reported before, and are counted with it.
    """
    stopped = min(outcomes, key=lambda each: (each.through, each.failure is None))
    return replace(_sum_outcomes([*parts, *outcomes], stopped.through), failure=stopped.failure)


def _sum_outcomes(outcomes: Sequence[Outcome], through: int) -> Outcome:
    return Outcome(
        through,
        sum(each.delivered for each in outcomes),
        sum(each.skipped for each in outcomes),
        sum(each.size for each in outcomes),
        _newest_offsets(outcomes, lambda offset: offset <= through),
    )


def _newest_offsets(outcomes: Iterable[Outcome], includes: Callable[[int], bool]) -> dict[str, int]:
    namespaces: dict[str, int] = {}
    for each in outcomes:
        for name, offset in each.namespaces.items():
            if includes(offset):
                namespaces[name] = max(offset, namespaces.get(name, -1))
    return namespaces


def lowest_stored_offset(stored: Sequence[StoredOffset | None]) -> StoredOffset | None:
    """Return the offset up to which every shard's sink reports to have everything."""
    known = [each for each in stored if each is not None]
    if len(known) < len(stored) or len({(each.log_id, each.generation) for each in known}) != 1:
        return None
    return min(known, key=lambda each: each.offset)
