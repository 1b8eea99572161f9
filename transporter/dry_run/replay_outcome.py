"""Outcome of a replay without its sink, from the route's filter and steps over its range."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from transporter.log.filesystem import RealFileSystem
from transporter.log.reader import LogReader
from transporter.log.search import EntryFilter, matching_entries
from transporter.message import batch_bytes, concat
from transporter.offsets.offset_log import route_folder
from transporter.offsets.parked import parked_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from transporter.dry_run.routes import DryRunRoute


_ROWS: Final = 4096
_BYTES: Final = 8 << 20


@dataclass(slots=True)
class ReplayOutcome:
    """Counts of the entries that a replay reads.

    ``delivered`` entries leave the route, as this number of ``messages``. ``left_out`` ones
    are outside its namespace or dropped by its steps. ``failing`` ones would fail, and
    ``parked`` ones stay parked.
    """

    delivered: int = 0
    messages: int = 0
    left_out: int = 0
    failing: int = 0
    parked: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def count_deliveries(
    directory: Path, route: DryRunRoute, first: int, last: int, namespace: str
) -> ReplayOutcome:
    """Run *route* over the entries that a replay of *first* to *last* reads. Send nothing.

    *namespace* is the replay's own filter. Memory is bounded by ``_BYTES`` and the frame that
    exceeds them (Invariant 17).
    """
    found = ReplayOutcome()
    folder = route_folder(directory, route.name)
    parked = pa.array(parked_offsets(folder, RealFileSystem()), pa.int64())
    with LogReader(directory) as reader:
        for entries in _group_batches(
            matching_entries(reader, first, last, EntryFilter(namespace))
        ):
            aside = pc.is_in(entries.column("offset"), value_set=parked)
            found.parked += aside.true_count
            for each in route.run(entries.filter(pc.invert(aside))):
                found.failing += each.error is not None
                found.delivered += each.error is None and bool(each.outputs)
                found.left_out += each.error is None and not each.outputs
                found.messages += 0 if each.error else len(each.outputs)
    return found


def _group_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small *batches*, because each run of a ``sql`` step costs a Spark job."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for each in batches:
        held.append(each)
        rows, size = rows + each.num_rows, size + batch_bytes(each)
        if rows >= _ROWS or size >= _BYTES:
            yield concat(held)
            held, rows, size = [], 0, 0
    if held:
        yield concat(held)
