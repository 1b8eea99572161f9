"""The outcome of a trial: what a route's writer would be given of each entry."""

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
class Row:
    """A row that a query returns for a sink of Spark's; ``columns`` holds values of JSON."""

    columns: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tried:
    """The outcome of one entry: ``outputs`` is what its writer would be given.

    Nothing when the entry is skipped, or when it fails for the reason ``error``.
    """

    entry: Entry
    outputs: tuple[Message | Row, ...]
    error: str | None = None


def tried(
    entries: pa.RecordBatch,
    made: Iterable[tuple[int, Message | Row]],
    errors: Mapping[int, str],
) -> list[Tried]:
    """Return the outcome of each of *entries*, in their order.

    *made* are the outputs with their offsets. One at an offset that *entries* do not have, as a
    query may return, counts as the output of the entry before it.
    """
    all_entries = list(Entries(entries))
    offsets = [entry.offset for entry in all_entries]
    outputs: list[list[Message | Row]] = [[] for _ in all_entries]
    for offset, output in made:
        outputs[max(0, bisect_right(offsets, offset) - 1)].append(output)
    return [
        Tried(entry, tuple(found), errors.get(entry.offset))
        for entry, found in zip(all_entries, outputs, strict=True)
    ]
