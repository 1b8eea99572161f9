"""Spans of single entries: sampling, and the journal of sampled entries until their acks.

Free of OpenTelemetry, which only the exporting thread needs.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from transporter.message import headers_of, microseconds
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.trace_context import PARENT, trace_context

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator

    from transporter.pipeline.config import RouteConfig
    from transporter.protocol.messages import Outcome, Slice
    from transporter.trace_context import TraceContext

PENDING: Final = 10_000
"""Traced entries that may wait for acks. One more evicts the oldest."""
_RECENT: Final = 64
"""Outcomes of a route that are kept for entries that are settled before they are recorded here."""
_PARENT: Final = pa.scalar(PARENT, pa.string())


class Span(NamedTuple):
    """One part of an entry's way. Times are in µs, UTC."""

    name: str
    trace_id: int
    span_id: int
    parent: int | None
    state: str | None
    start: int
    end: int
    attributes: dict[str, str | int]


@dataclass(slots=True)
class Traced:
    """An entry on its way, with the data for its further spans."""

    offset: int
    namespace: str
    trace_id: int
    parent: int
    """The span that those behind the append are children of."""
    state: str | None
    logged: int
    waiting: set[str] = field(default_factory=set)
    """The routes that have not settled it."""


class Settled(NamedTuple):
    """The entries that a route has settled of a slice, and the time."""

    namespace: str
    first: int
    through: int
    without: tuple[int, ...]
    delivered: bool
    at: int


class Sample(NamedTuple):
    """A message that is traced: its row, and the context that its source gave it."""

    row: int
    context: TraceContext | None


def sample_messages(
    messages: pa.RecordBatch, share: float, rng: random.Random, limit: int
) -> tuple[list[Sample], int]:
    """Return the sampled *messages*, at most *limit*, and the number of those beyond.

    The decision of a source is followed: rows with a ``traceparent`` are sampled if its flag
    is set. Of the others *share* are, drawn by *rng*. Headers are not read beyond *limit*,
    so an overload costs little.
    """
    found, decided, beyond = list[Sample](), set[int](), 0
    rows = _rows_with_parent(messages.column("headers"))
    for at, row in enumerate(rows):
        if len(found) == limit:
            decided.update(rows[at:])
            beyond += len(rows) - at
            break
        (headers,) = headers_of(messages.column("headers").slice(row, 1))
        if (context := trace_context(headers)) is not None:
            decided.add(row)
            if context.sampled:
                found.append(Sample(row, context))
    for row in _draw_rows(messages.num_rows, share, rng):
        if row not in decided:
            if len(found) < limit:
                found.append(Sample(row, None))
            else:
                beyond += 1
    return found, beyond


def _rows_with_parent(headers: pa.Array) -> list[int]:
    names = headers.flatten().field("name")
    if not len(names):
        return []
    named = pc.equal(pc.ascii_lower(names), _PARENT)
    return list(dict.fromkeys(pc.list_parent_indices(headers).filter(named).to_pylist()))


def _draw_rows(rows: int, share: float, rng: random.Random) -> Iterable[int]:
    """Draw each of *rows* with probability *share*, in as many steps as there are hits."""
    if share >= 1:
        yield from range(rows)
    elif share > 0:
        step = math.log1p(-share)
        row = -1
        while (row := row + 1 + int(math.log(1 - rng.random()) / step)) < rows:
            yield row


class Journal:
    """The traced entries that routes have not settled. Not thread-safe."""

    def __init__(self, routes: Iterable[str]) -> None:
        """Wait for *routes*, and for those that a reload adds from their first outcome on."""
        self._entries: dict[int, Traced] = {}
        self._offsets: list[int] = []
        self._recent = {route: _recent_outcomes() for route in routes}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Traced) -> Iterator[tuple[str, int]]:
        """Record *entry*; yield route and time of each ack that arrived before it."""
        entry.waiting = set(self._recent)
        self._entries[entry.offset] = entry
        insort(self._offsets, entry.offset)
        for route, recent in self._recent.items():
            for settled in recent:
                if self._record_settled(route, entry, settled):
                    yield route, settled.at
        if len(self._offsets) > PENDING:
            self._remove(self._offsets[0])

    def settle(
        self, route: RouteConfig, delivered: Slice, outcome: Outcome, now: int
    ) -> Iterator[Traced]:
        """Yield the entries that *route* has delivered with *outcome*."""
        settled = Settled(
            route.namespace,
            delivered.first,
            outcome.through,
            delivered.without,
            outcome.delivered > 0,
            now,
        )
        self._recent.setdefault(route.name, _recent_outcomes()).append(settled)
        begin = bisect_left(self._offsets, delivered.first)
        end = bisect_right(self._offsets, outcome.through)
        for entry in [self._entries[offset] for offset in self._offsets[begin:end]]:
            if self._record_settled(route.name, entry, settled):
                yield entry

    def _record_settled(self, route: str, entry: Traced, settled: Settled) -> bool:
        """Record that *route* has settled *entry*; return whether it was delivered."""
        within = settled.first <= entry.offset <= settled.through
        if not within or route not in entry.waiting or entry.offset in settled.without:
            return False
        entry.waiting.discard(route)
        if not entry.waiting:
            self._remove(entry.offset)
        return settled.delivered and _matches(settled.namespace, entry.namespace)

    def _remove(self, offset: int) -> None:
        del self._entries[offset]
        self._offsets.pop(bisect_left(self._offsets, offset))


def _recent_outcomes() -> deque[Settled]:
    return deque(maxlen=_RECENT)


def _matches(expression: str, namespace: str) -> bool:
    filter_ = NamespaceFilter(expression)
    return filter_.matches_all or bool(filter_.mask(pa.array([namespace]))[0].as_py())


def columns_of(messages: pa.RecordBatch, rows: list[int]) -> tuple[list[str], list[int]]:
    """Return the namespaces and the timestamps of these *rows*."""
    taken = messages.select(["namespace", "timestamp"]).take(pa.array(rows, pa.int64()))
    return taken.column("namespace").to_pylist(), microseconds(taken.column("timestamp"))


def new_id(bits: int, rng: random.Random) -> int:
    """Return an id of a trace or a span, which is never 0."""
    return rng.getrandbits(bits) or 1
