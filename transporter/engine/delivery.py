"""Delivering one slice: filter, write, and find out what really arrived.

A plain function of a record batch, the same in a Spark worker, in a unit test
and in a dry run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from transporter.engine.protocol import Failure, FailureKind, Outcome
from transporter.message import ERROR_HEADER, Entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transporter.adaptor import Writer
    from transporter.errors import SinkError
    from transporter.pipeline.namespace import Namespace
    from transporter.pipeline.steps import Steps


# Typed: for a plain value Arrow would look for pandas, 0.1 ms each time where there is none.
_ERROR: Final = pa.scalar(ERROR_HEADER, pa.string())


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a route does to every slice."""

    namespace: Namespace
    log_id: str
    steps: Steps | None = None
    one_per_key: bool = False


class Acks:
    """Collects what a writer acks and fails of one batch; implements ``adaptor.Ack``."""

    def __init__(self, offsets: list[int]) -> None:
        """Expect *offsets*, ascending."""
        self._offsets = offsets
        self._acked: Counter[int] = Counter()
        self._all = False
        self._failure: Failure | None = None

    def __call__(self, offsets: Iterable[int]) -> None:
        """Take these entries as delivered."""
        self._acked.update(offsets)

    def all(self) -> None:
        """Take every entry as delivered."""
        self._all = True

    def fail(self, error: SinkError, offset: int | None = None) -> None:
        """Take the entry at *offset* as failed; of several failures the first offset counts."""
        self.record(Failure.of(error, offset))

    def record(self, failure: Failure) -> None:
        """Keep *failure* if it comes before the one known."""
        known = self._failure
        if known is None or (
            failure.offset is not None and (known.offset is None or failure.offset < known.offset)
        ):
            self._failure = failure

    def result(self) -> tuple[int, Failure | None]:
        """Return how many entries of the acked prefix there are, and why not more.

        Only the prefix counts (Invariant 9): what was acked behind a failure is
        delivered again rather than overtaken.
        """
        named = self._failure.offset if self._failure else None
        count = 0
        for offset in self._offsets:
            if offset == named or not (self._all or offset in self._acked):
                break
            count += 1
        if self._failure is not None and not self._all:
            count = self._whole(count)
        if count == len(self._offsets):
            return count, None
        return count, self._failure or Failure(
            FailureKind.REJECTED,
            f"the writer returned without acking or failing offset {self._offsets[count]}",
        )

    def _whole(self, count: int) -> int:
        """Leave out the last of *count* rows' entry unless each output of it was acked.

        A writer that acks row by row may have failed between two of them; one
        that acks entries is asked to deliver this one again, which loses nothing.
        """
        if not count:
            return 0
        last = self._offsets[count - 1]
        outputs = self._offsets.count(last)
        return count - outputs if 1 < outputs > self._acked[last] else count


def deliver(
    entries: pa.RecordBatch, last: int, generation: int, route: Delivery, writer: Writer
) -> Outcome:
    """Deliver *entries*, a slice that ends at offset *last*, through *writer*.

    Never raises for what a step or a writer does: that is the outcome's failure.
    Only running out of memory is raised: the process is not to be trusted then.
    """
    accepted = _accepted(entries, route)
    good, failure = _before_poison(accepted)
    made, broken = _stepped(good, route)
    made, held = _one_per_key(made) if route.one_per_key else (made, None)
    count, refused = write(Entries(made, route.log_id, generation), writer)
    if refused is not None:
        through, failure = made.column("offset")[count].as_py() - 1, refused
    elif held is not None:
        through, failure = held - 1, None
    else:
        failure = broken or failure
        through = last if failure is None else _before(failure)
    return _outcome(entries, made.slice(0, count), through, failure)


def deliver_singly(
    entries: pa.RecordBatch,
    asked: tuple[int, int, int],
    route: Delivery,
    writer: Writer,
    announce: Callable[[int], None],
) -> Outcome:
    """Deliver *entries* one at a time, each announced before; the first failure ends it.

    *asked* are the slice's first and last offset and its generation. Whatever
    fails is named, even where it kills the process.
    """
    first, last, generation = asked
    accepted = _accepted(entries, route)
    delivered = size = 0
    for row, offset in enumerate(accepted.column("offset").to_pylist()):
        announce(offset)
        one = deliver(accepted.slice(row, 1), offset, generation, route, writer)
        delivered, size = delivered + one.delivered, size + one.size
        if one.failure is not None:
            named = replace(one.failure, offset=offset)
            settled = entries.slice(0, _rows_through(entries, offset - 1))
            skipped = settled.num_rows - delivered
            return Outcome(
                max(first, offset) - 1, delivered, skipped, size, _newest(settled), named
            )
    return Outcome(last, delivered, entries.num_rows - delivered, size, _newest(entries))


def _accepted(entries: pa.RecordBatch, route: Delivery) -> pa.RecordBatch:
    if route.namespace.matches_all:
        return entries
    return entries.filter(route.namespace.mask(entries.column("namespace")))


def _outcome(
    entries: pa.RecordBatch, delivered: pa.RecordBatch, through: int, failure: Failure | None
) -> Outcome:
    settled = entries.slice(0, _rows_through(entries, through))
    distinct = len(delivered.column("offset").unique())
    return Outcome(
        through=through,
        delivered=distinct,
        skipped=max(0, settled.num_rows - distinct),
        size=pc.sum(pc.binary_length(delivered.column("data"))).as_py() or 0,
        namespaces=_newest(settled),
        failure=failure,
    )


def _before(failure: Failure) -> int:
    assert failure.offset is not None  # noqa: S101 - steps and readers name the entry
    return failure.offset - 1


def _stepped(entries: pa.RecordBatch, route: Delivery) -> tuple[pa.RecordBatch, Failure | None]:
    """Return what the route's steps make of the entries before the first that fails, and why."""
    if route.steps is None:
        return entries, None
    made, failed = route.steps.apply_before_failure(entries)
    return made, Failure.of(failed) if failed is not None else None


def _one_per_key(entries: pa.RecordBatch) -> tuple[pa.RecordBatch, int | None]:
    """Return the entries before a key's second one, and that one's offset."""
    seen: dict[bytes, int] = {}
    rows = zip(entries.column("key").to_pylist(), entries.column("offset").to_pylist(), strict=True)
    for row, (key, offset) in enumerate(rows):
        # Several outputs of one entry go together.
        if key is not None and seen.setdefault(key, offset) != offset:
            return entries.slice(0, row), offset
    return entries, None


def write(entries: Entries, writer: Writer) -> tuple[int, Failure | None]:
    """Give *entries* to *writer*; return how many rows count as delivered, and why not more."""
    if not len(entries):
        return 0, None
    acks = Acks(entries.offsets)
    try:
        writer.write(entries, acks)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a writer raises is its route's failure
        acks.record(Failure.of(error))
    return acks.result()


def _before_poison(accepted: pa.RecordBatch) -> tuple[pa.RecordBatch, Failure | None]:
    """Split off the first record that its reader could not turn into a message."""
    headers = accepted.column("headers")
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
    return int(pc.sum(pc.less_equal(offsets, pa.scalar(through, pa.int64()))).as_py())


def _newest(entries: pa.RecordBatch) -> dict[str, int]:
    """Return the newest offset of each namespace."""
    if not entries.num_rows:
        return {}
    names = entries.column("namespace")
    if len(names.unique()) == 1:
        return {names[0].as_py(): entries.column("offset")[-1].as_py()}
    table = pa.table({"namespace": names, "offset": entries.column("offset")})
    newest = table.group_by("namespace").aggregate([("offset", "max")])
    return dict(zip(newest["namespace"].to_pylist(), newest["offset_max"].to_pylist(), strict=True))
