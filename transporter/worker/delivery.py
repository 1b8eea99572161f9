"""Delivery of one slice: filter, steps, writer, and the entries that really arrived.

A plain function of a record batch, the same in a Spark worker, in a unit test
and in a dry run.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from transporter.message import ERROR_HEADER, FEW, Entries
from transporter.pipeline.namespace_filter import without_noops
from transporter.protocol.messages import Failure, FailureKind, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transporter.adaptor import Writer
    from transporter.errors import SinkError
    from transporter.pipeline.namespace_filter import NamespaceFilter
    from transporter.pipeline.steps.chain import Steps


PART_ROWS: Final = 1500
"""Rows that a writer has acked after which a part of a slice is reported."""
PART_SECONDS: Final = 0.1
"""Seconds after which it is reported if any row was acked since the last report."""

# Typed: for a plain value Arrow would look for pandas, 0.1 ms each time where there is none.
_ERROR: Final = pa.scalar(ERROR_HEADER, pa.string())


@dataclass(frozen=True, slots=True)
class Delivery:
    """The filter and the steps that a route applies to every slice."""

    namespace: NamespaceFilter
    log_id: str
    steps: Steps | None = None
    one_per_key: bool = False


class Reporter:
    """Reports parts of a slice while the rest of it is being delivered.

    One is due after :data:`PART_ROWS` rows or :data:`PART_SECONDS`, whichever comes first,
    so a kill repeats no more than that, and small slices have none.
    """

    def __init__(
        self, send: Callable[[Outcome], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Send the parts of one slice by *send*, which must not raise."""
        self.send, self._clock = send, clock
        self._due = clock() + PART_SECONDS

    def is_due(self, rows: int) -> bool:
        """Return whether *rows* more than at the last report are worth one, which is then sent."""
        if rows < 1 or (rows < PART_ROWS and self._clock() < self._due):
            return False
        self._due = self._clock() + PART_SECONDS
        return True


class Acks:
    """Collects acks and failures of one batch; implements ``adaptor.Ack``.

    Acks in the order of the rows, the usual case, are counted by comparing lists. Others are
    looked up one by one.
    """

    def __init__(
        self,
        offsets: list[int],
        reporter: Reporter | None = None,
        part: Callable[[int], Outcome] | None = None,
    ) -> None:
        """Expect *offsets*, ascending. *reporter* sends each *part*, which ends at a row count."""
        self._offsets = offsets
        self._reporter, self._make_part = reporter, part
        self._in_order = self._prefix = self._reported = 0
        self._acked: Counter[int] = Counter()
        self._all = False
        self._failure: Failure | None = None

    def __call__(self, offsets: Iterable[int]) -> None:
        """Take these entries as delivered."""
        acked = list(offsets)
        first, end = self._in_order, self._in_order + len(acked)
        if acked == self._offsets[first:end]:
            self._in_order = end
        else:
            self._acked.update(acked)
        if self._reporter is not None and self._make_part is not None and self._failure is None:
            self._report(self._reporter, self._make_part)

    def all(self) -> None:
        """Take every entry as delivered."""
        self._all = True

    def fail(self, error: SinkError, offset: int | None = None) -> None:
        """Record the entry at *offset* as failed. Of several failures the lowest offset counts."""
        self.record(Failure.of(error, offset))

    def record(self, failure: Failure) -> None:
        """Keep *failure* if it precedes the recorded one."""
        known = self._failure
        if known is None or (
            failure.offset is not None and (known.offset is None or failure.offset < known.offset)
        ):
            self._failure = failure

    def result(self) -> tuple[int, Failure | None]:
        """Return the length of the acked prefix in rows, and the failure that ends it.

        Only the prefix counts (Invariant 9): entries that were acked after a failure are
        redelivered, so that none overtakes it.
        """
        if self._all and self._failure is None:
            return len(self._offsets), None
        count = len(self._offsets) if self._all else self._acked_rows()
        failure = self._plausible(self._failure)
        if failure is not None and failure.offset is not None:
            count = min(count, self._row_of(failure.offset))
        if failure is not None and not self._all:
            count = self._whole_entries(count)
        if count == len(self._offsets):
            return count, None
        return count, failure or Failure(
            FailureKind.REJECTED,
            f"the writer returned without acking or failing offset {self._offsets[count]}",
        )

    def _report(self, reporter: Reporter, part: Callable[[int], Outcome]) -> None:
        """Report the whole entries acked so far, unless that is everything (Invariant 5)."""
        rows = self._acked_rows()
        if rows < len(self._offsets):
            rows = self._whole_entries(rows)
            if reporter.is_due(rows - self._reported):
                self._reported = rows
                reporter.send(part(rows))

    def _acked_rows(self) -> int:
        """Return how many rows, from the first on, belong to entries that were acked."""
        rows, offsets = max(self._in_order, self._prefix), self._offsets
        last = offsets[self._in_order - 1] if self._in_order else None
        while rows < len(offsets) and (offsets[rows] in self._acked or offsets[rows] == last):
            rows += 1
        self._prefix = rows
        return rows

    def _plausible(self, failure: Failure | None) -> Failure | None:
        """Return *failure* without an offset that it cannot be about.

        That is one that the writer was not given, or that was acked and reported as settled.
        """
        named = failure.offset if failure else None
        if failure is None or named is None:
            return failure
        row = self._row_of(named)
        if row == len(self._offsets):
            span = f"{self._offsets[0]}..{self._offsets[-1]}"
            problem = f"the writer names offset {named}, which is not in its batch {span}"
            return replace(failure, text=f"{failure.text} ({problem})", offset=None)
        return replace(failure, offset=None) if row < self._reported else failure

    def _row_of(self, offset: int) -> int:
        """Return the first row of the entry at *offset*, or the number of rows if it is absent."""
        row = bisect_left(self._offsets, offset)
        here = row < len(self._offsets) and self._offsets[row] == offset
        return row if here else len(self._offsets)

    def _whole_entries(self, count: int) -> int:
        """Leave out the last of *count* rows' entry unless each output of it was acked.

        A writer that acks row by row may have failed between two of them. The entry is then
        redelivered as a whole, which loses nothing.
        """
        if not count:
            return 0
        last = self._offsets[count - 1]
        first = bisect_left(self._offsets, last)
        outputs = bisect_right(self._offsets, last) - first
        acked = max(0, self._in_order - first) + self._acked[last]
        return first if 1 < outputs > acked else count


def deliver(
    entries: pa.RecordBatch,
    last: int,
    generation: int,
    route: Delivery,
    writer: Writer,
    reporter: Reporter | None = None,
) -> Outcome:
    """Deliver *entries*, a slice that ends at offset *last*, through *writer*.

    The outcome's counts leave out the parts that *reporter* has sent. Errors of steps and
    writers become the outcome's failure. Only running out of memory is raised, because the
    process cannot be trusted afterwards.
    """
    accepted = route.namespace.select(entries)
    good, failure = _split_at_poison(accepted)
    made, broken = _apply_steps(good, route)
    made, held = _split_at_repeat(made) if route.one_per_key else (made, None)
    settled = _Settled(entries, made)

    def part(rows: int) -> Outcome:
        # Entries that were filtered out before the next row are settled, too.
        return settled.after_rows(made.column("offset")[rows].as_py() - 1, rows)

    count, refused = write(Entries(made, route.log_id, generation), writer, reporter, part)
    if refused is not None:
        through, failure = made.column("offset")[count].as_py() - 1, refused
    elif held is not None:
        through, failure = held - 1, None
    else:
        failure = broken or failure
        through = last if failure is None else _offset_before(failure)
    return settled.after_rows(through, count, failure)


def deliver_singly(
    entries: pa.RecordBatch,
    bounds: tuple[int, int, int],
    route: Delivery,
    writer: Writer,
    announce: Callable[[int], None],
    reporter: Reporter | None = None,
) -> Outcome:
    """Deliver *entries* one at a time, each announced before; the first failure ends it.

    *bounds* are the slice's first and last offset and its generation. A failing entry is
    identified even if it kills the process.
    """
    first, last, generation = bounds
    accepted = route.namespace.select(entries)
    settled = _Settled(entries, accepted)
    delivered = size = reported = 0
    for row, offset in enumerate(accepted.column("offset").to_pylist()):
        if reporter is not None and reporter.is_due(row - reported):
            reporter.send(settled.after_counts(offset - 1, delivered, size))
            delivered, size, reported = 0, 0, row
        announce(offset)
        one = deliver(accepted.slice(row, 1), offset, generation, route, writer)
        delivered, size = delivered + one.delivered, size + one.size
        if one.failure is not None:
            named = replace(one.failure, offset=offset)
            return settled.after_counts(max(first, offset) - 1, delivered, size, named)
    return settled.after_counts(last, delivered, size)


class _Settled:
    """Counts the settled and the delivered entries of a slice, part by part."""

    __slots__ = ("_entries", "_made", "_made_rows", "_rows")

    def __init__(self, entries: pa.RecordBatch, made: pa.RecordBatch) -> None:
        """Begin before the first of *entries*, and of the rows *made* of them."""
        self._entries, self._made = entries, made
        self._rows = self._made_rows = 0

    def after_rows(self, through: int, rows: int, failure: Failure | None = None) -> Outcome:
        """Return the outcome of the part that ends at offset *through* and at this many *rows*."""
        part = self._made.slice(self._made_rows, rows - self._made_rows)
        self._made_rows = rows
        return self.after_counts(through, *_count_delivered(part), failure)

    def after_counts(
        self, through: int, delivered: int, size: int, failure: Failure | None = None
    ) -> Outcome:
        """Return the outcome of the part that ends at offset *through*, with these counts."""
        begin = self._rows
        self._rows = max(begin, _rows_through(self._entries, through))
        part = self._entries.slice(begin, self._rows - begin)
        skipped = max(0, part.num_rows - delivered)
        return Outcome(through, delivered, skipped, size, _newest_offsets(part), failure)


def _count_delivered(made: pa.RecordBatch) -> tuple[int, int]:
    """Return how many entries the rows of *made* are of, and the bytes of their data."""
    data = made.column("data")
    if len(data) == 1:
        return 1, data[0].as_buffer().size if data[0].is_valid else 0
    return len(made.column("offset").unique()), pc.sum(pc.binary_length(data)).as_py() or 0


def _offset_before(failure: Failure) -> int:
    assert failure.offset is not None  # noqa: S101 - steps and readers name the entry
    return failure.offset - 1


def _apply_steps(entries: pa.RecordBatch, route: Delivery) -> tuple[pa.RecordBatch, Failure | None]:
    """Return the steps' output for the entries before the first that fails, and its failure."""
    if route.steps is None:
        return entries, None
    made, failed = route.steps.apply_before_failure(entries)
    return without_noops(made), Failure.of(failed) if failed is not None else None


def _split_at_repeat(entries: pa.RecordBatch) -> tuple[pa.RecordBatch, int | None]:
    """Return the entries before a key's second one, and that one's offset."""
    seen: dict[bytes, int] = {}
    rows = zip(entries.column("key").to_pylist(), entries.column("offset").to_pylist(), strict=True)
    for row, (key, offset) in enumerate(rows):
        # Several outputs of one entry go together.
        if key is not None and seen.setdefault(key, offset) != offset:
            return entries.slice(0, row), offset
    return entries, None


def write(
    entries: Entries,
    writer: Writer,
    reporter: Reporter | None = None,
    part: Callable[[int], Outcome] | None = None,
) -> tuple[int, Failure | None]:
    """Pass *entries* to *writer*; return the number of delivered rows, and the failure.

    Whenever *reporter* is due it sends the *part* that ends at the rows acked by then.
    """
    if not len(entries):
        return 0, None
    acks = Acks(entries.offsets, reporter, part)
    try:
        writer.write(entries, acks)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a writer raises is its route's failure
        acks.record(Failure.of(error))
    return acks.result()


def _split_at_poison(accepted: pa.RecordBatch) -> tuple[pa.RecordBatch, Failure | None]:
    """Split off the first record that its reader could not turn into a message."""
    headers = accepted.column("headers")
    # Those of the whole frame, from which these entries may have been cut.
    names = headers.values.field("name")
    if len(names) <= FEW and ERROR_HEADER not in names.to_pylist():
        return accepted, None
    marked = pc.equal(headers.flatten().field("name"), _ERROR)
    if not pc.any(marked).as_py():
        return accepted, None
    row = pc.list_parent_indices(headers).filter(marked)[0].as_py()
    pairs = {pair["name"]: pair["value"] for pair in headers[row].as_py()}
    reason = (pairs[ERROR_HEADER] or b"").decode(errors="replace")
    offset = accepted.column("offset")[row].as_py()
    failure = Failure(FailureKind.POISON, f"its reader could not read it: {reason}", offset)
    return accepted.slice(0, row), failure


def _rows_through(entries: pa.RecordBatch, through: int) -> int:
    offsets = entries.column("offset")
    if not len(offsets) or offsets[-1].as_py() <= through:
        return len(offsets)
    # Single cells: all of them cost a report more than the rest of it.
    return bisect_right(offsets, through, key=methodcaller("as_py"))


def _newest_offsets(entries: pa.RecordBatch) -> dict[str, int]:
    """Return the newest offset of each namespace."""
    if not entries.num_rows:
        return {}
    names = entries.column("namespace")
    if len(names) == 1 or len(names.unique()) == 1:
        return {names[0].as_py(): entries.column("offset")[-1].as_py()}
    table = pa.table({"namespace": names, "offset": entries.column("offset")})
    newest = table.group_by("namespace").aggregate([("offset", "max")])
    return dict(zip(newest["namespace"].to_pylist(), newest["offset_max"].to_pylist(), strict=True))
