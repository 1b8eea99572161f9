"""Outcome of a trial: the input of a route's writer for each entry."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transporter.message import Entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from transporter.message import Entry, Message


@dataclass(frozen=True, slots=True)
class OutputRow:
    """A row that a query returns for a sink of Spark's. ``columns`` holds JSON values."""

    columns: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """Outcome of one entry, with the ``outputs`` for the writer.

    There are none if the entry is skipped, or if it fails for the reason ``error``.
    """

    entry: Entry
    outputs: tuple[Message | OutputRow, ...]
    error: str | None = None


def trial_results(
    entries: pa.RecordBatch,
    outputs: Iterable[tuple[int, Message | OutputRow]],
    errors: Mapping[int, str],
) -> list[DryRunResult]:
    """Return the outcome of each of *entries*, in their order.

    *outputs* are the outputs with their offsets. A query may return an offset that *entries*
    do not have. Such an output counts as that of the entry before it.
    """
    all_entries = list(Entries(entries))
    offsets = [entry.offset for entry in all_entries]
    by_entry: list[list[Message | OutputRow]] = [[] for _ in all_entries]
    for offset, output in outputs:
        by_entry[max(0, bisect_right(offsets, offset) - 1)].append(output)
    return [
        DryRunResult(entry, tuple(found), errors.get(entry.offset))
        for entry, found in zip(all_entries, by_entry, strict=True)
    ]
