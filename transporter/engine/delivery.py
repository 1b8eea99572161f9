"""Delivering one slice: filter, write, and find out what really arrived.

A plain function of a record batch, the same in a Spark worker, in a unit test
and in a dry run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from transporter.engine.protocol import Failure, FailureKind, Outcome
from transporter.message import ERROR_HEADER, Entries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transporter.adaptor import Writer
    from transporter.errors import SinkError
    from transporter.pipeline.namespace import Namespace


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a route does to every slice."""

    namespace: Namespace
    log_id: str


class Acks:
    """Collects what a writer acks and fails of one batch; implements ``adaptor.Ack``."""

    def __init__(self, offsets: list[int]) -> None:
        """Expect *offsets*, ascending."""
        self._offsets = offsets
        self._acked: set[int] = set()
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
        if count == len(self._offsets):
            return count, None
        return count, self._failure or Failure(
            FailureKind.REJECTED,
            f"the writer returned without acking or failing offset {self._offsets[count]}",
        )


def deliver(
    entries: pa.RecordBatch, last: int, generation: int, route: Delivery, writer: Writer
) -> Outcome:
    """Deliver *entries*, a slice that ends at offset *last*, through *writer*.

    Never raises for what a writer does: that is the outcome's failure.
    """
    accepted = entries.filter(route.namespace.mask(entries.column("namespace")))
    good, poison = _before_poison(accepted)
    count, failure = _write(Entries(good, route.log_id, generation), writer)
    failure = failure or poison
    through = last if failure is None else accepted.column("offset")[count].as_py() - 1
    settled = entries.slice(0, _rows_through(entries, through))
    delivered = good.slice(0, count)
    return Outcome(
        through=through,
        delivered=count,
        skipped=settled.num_rows - count,
        size=pc.sum(pc.binary_length(delivered.column("data"))).as_py() or 0,
        namespaces=_newest(settled),
        failure=failure,
    )


def _write(entries: Entries, writer: Writer) -> tuple[int, Failure | None]:
    if not len(entries):
        return 0, None
    acks = Acks(entries.offsets)
    try:
        writer.write(entries, acks)
    except Exception as error:  # noqa: BLE001 - whatever a writer raises is its route's failure
        acks.record(Failure.of(error))
    return acks.result()


def _before_poison(accepted: pa.RecordBatch) -> tuple[pa.RecordBatch, Failure | None]:
    """Split off the first record that its reader could not turn into a message."""
    headers = accepted.column("headers")
    marked = pc.equal(headers.flatten().field("name"), ERROR_HEADER)
    if not pc.any(marked).as_py():
        return accepted, None
    row = pc.list_parent_indices(headers).filter(marked)[0].as_py()
    pairs = {pair["name"]: pair["value"] for pair in headers[row].as_py()}
    reason = (pairs[ERROR_HEADER] or b"").decode(errors="replace")
    offset = accepted.column("offset")[row].as_py()
    failure = Failure(FailureKind.REJECTED, f"its reader could not read it: {reason}", offset)
    return accepted.slice(0, row), failure


def _rows_through(entries: pa.RecordBatch, through: int) -> int:
    return pc.sum(pc.less_equal(entries.column("offset"), through)).as_py() or 0


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
