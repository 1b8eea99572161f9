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
    carrier: SparkSupervisor, specs: Iterable[WorkerSpec], stopping: Callable[[], bool]
) -> WorkerConnection | ShardGroup | None:
    """Return the line to the workers of *specs*; ``None`` once *stopping* returns true.

    Raises the errors of :meth:`SparkSupervisor.connect`.
    """
    lines: list[WorkerConnection] = []
    with ExitStack() as stack:
        for spec in specs:
            line = carrier.connect(spec, stopping)
            if line is None:
                return None
            lines.append(stack.enter_context(line))
        stack.pop_all()
    return lines[0] if len(lines) == 1 else ShardGroup(lines)


class ShardGroup:
    """One line to several workers. Belongs to the route's thread.

    Each receives every slice and delivers its shard's entries. The slice counts up to the
    worker with the least progress. The others skip entries beyond that when they come again.
    If one of them dies, all are replaced.
    """

    def __init__(self, lines: Sequence[WorkerConnection]) -> None:
        """Talk over *lines*, one a shard, in their order."""
        self._lines = lines
        self._heard: deque[tuple[int | None, Any]] = deque()
        self._answers: dict[int, Opened | Outcome] = {}
        self._asked = set(range(len(lines)))
        self._announced: dict[int, int] = {}
        self._parts = _Parts()
        self._speaker: int | None = None
        self._end: BaseException | None = None
        self.shard = 0
        """The shard whose worker has gone, once one has."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up on all of them."""
        for line in self._lines:
            line.close()

    def send(self, message: object) -> None:
        """Send *message*: a slice to all, an answer to the worker that waits for it."""
        match message:
            case Slice():
                self._ask(range(len(self._lines)), message)
            case Retry():
                self._ask((0,), message)
            case Proceed() if self._speaker is not None:
                self._lines[self._speaker].send(message)

    def poll(self, timeout: float) -> bool:
        """Wait up to *timeout* seconds; return whether :meth:`recv` returns at once."""
        if not self._told():
            self._wait(timeout)
        return self._told()

    def recv(self) -> Any:  # noqa: ANN401 - any message
        """Return the next message of one worker, or the merged answer of all.

        Raises:
            EOFError: one has closed; ``shard`` is its number.
            ConnectionError: the connection to one broke.

        """
        while not self._told():
            self._wait(None)
        if self._heard:
            self._speaker, said = self._heard.popleft()
            return said
        assert self._end is not None  # noqa: S101 - it had a message, and returned none
        raise self._end

    def _ask(self, shards: Iterable[int], message: Slice | Retry) -> None:
        self._asked = set(shards)
        self._answers.clear()
        self._announced.clear()
        self._parts = _Parts()
        for shard in self._asked:
            self._lines[shard].send(message)

    def _told(self) -> bool:
        return bool(self._heard) or self._end is not None

    def _wait(self, timeout: float | None) -> None:
        # A line may have received more than it has returned.
        if not self._listen() and wait(self._descriptors(), timeout):
            self._listen()

    def _descriptors(self) -> list[int]:
        return [self._lines[shard].connection.fileno() for shard in self._silent()]

    def _silent(self) -> set[int]:
        return self._asked - self._answers.keys()

    def _listen(self) -> bool:
        """Receive from the first worker that has a message."""
        for shard in sorted(self._silent()):
            line = self._lines[shard]
            if not line.poll(0):
                continue
            try:
                self._hear(shard, line.recv())
            except (EOFError, ConnectionError) as error:
                self._lose(shard, error)
            return True
        return False

    def _hear(self, shard: int, said: object) -> None:
        match said:
            case Opened() | Outcome():
                self._answers[shard] = said
                if self._silent():
                    self._tell_part()
                else:
                    self._heard.append((None, self._joined()))
            case PartialOutcome(outcome):
                self._parts.add(shard, outcome)
                self._tell_part()
            case OpenFailed():
                self._heard.append((None, said))
            case Announcement(offset):
                self._announced[shard] = offset
                self._heard.append((shard, said))
            case Output():
                self._heard.append((shard, said))

    def _tell_part(self) -> None:
        """Report the entries that all shards have settled, when the slowest makes progress."""
        reached = [self._reached(shard) for shard in self._asked]
        if (part := self._parts.take(min(reached))) is not None:
            self._heard.append((None, PartialOutcome(part)))

    def _reached(self, shard: int) -> int:
        match self._answers.get(shard):
            case Outcome(through):
                return through
        return self._parts.through.get(shard, -1)

    def _lose(self, shard: int, error: BaseException) -> None:
        self.shard, self._end = shard, error
        if shard in self._announced:
            # Others have announced since: the route needs the entry of the worker that died.
            self._heard.append((None, Announcement(self._announced[shard])))

    def _joined(self) -> Opened | Outcome:
        answers = list(self._answers.values())
        outcomes = [each for each in answers if isinstance(each, Outcome)]
        if outcomes:
            return merge_outcomes(outcomes, self._parts.left)
        stored = [each.stored for each in answers if isinstance(each, Opened)]
        return Opened(
            lowest_stored_offset(stored), tuple(each for each in stored if each is not None)
        )


class _Parts:
    """The reports of shards about one slice before its end."""

    def __init__(self) -> None:
        self.through: dict[int, int] = {}
        """The offset up to which each shard has settled its own entries."""
        self.left: list[Outcome] = []
        """Reports that were not forwarded yet."""
        self._passed = -1

    def add(self, shard: int, outcome: Outcome) -> None:
        """Record the report of *shard*."""
        self.through[shard] = outcome.through
        self.left.append(outcome)

    def take(self, through: int) -> Outcome | None:
        """Return the rest as a part that ends at *through*, or ``None`` without progress."""
        if through <= self._passed:
            return None
        self._passed = through
        found = _summed(self.left, through)
        beyond = _newest(self.left, lambda offset: offset > through)
        self.left = [Outcome(through, 0, 0, 0, beyond)]
        return found


def merge_outcomes(outcomes: Sequence[Outcome], parts: Sequence[Outcome] = ()) -> Outcome:
    """Merge the shards' outcomes into the outcome of the whole slice.

    *parts* were reported before, and are counted with it.
    """
    stopped = min(outcomes, key=lambda each: (each.through, each.failure is None))
    return replace(_summed([*parts, *outcomes], stopped.through), failure=stopped.failure)


def _summed(outcomes: Sequence[Outcome], through: int) -> Outcome:
    return Outcome(
        through,
        sum(each.delivered for each in outcomes),
        sum(each.skipped for each in outcomes),
        sum(each.size for each in outcomes),
        _newest(outcomes, lambda offset: offset <= through),
    )


def _newest(outcomes: Iterable[Outcome], counts: Callable[[int], bool]) -> dict[str, int]:
    namespaces: dict[str, int] = {}
    for each in outcomes:
        for name, offset in each.namespaces.items():
            if counts(offset):
                namespaces[name] = max(offset, namespaces.get(name, -1))
    return namespaces


def lowest_stored_offset(stored: Sequence[StoredOffset | None]) -> StoredOffset | None:
    """Return the offset up to which every shard's sink reports to have everything."""
    known = [each for each in stored if each is not None]
    if len(known) < len(stored) or len({(each.log_id, each.generation) for each in known}) != 1:
        return None
    return min(known, key=lambda each: each.offset)
