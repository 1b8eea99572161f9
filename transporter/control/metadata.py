"""Metadata of a log that is shown to users who must not read its payloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from transporter.control import requests
from transporter.errors import ActionRefused
from transporter.log.reader import LogReader
from transporter.log.search import EntryFilter, matching_entries, start_of_last

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.audit import Operator
    from transporter.control.requests import LogMetadata, Operations, Request

MOST: Final = 1_000
"""Entries in one answer at most."""
_HIDDEN: Final = "there is a problem; only the engine's user may see its text"
_COLUMNS: Final = ("offset", "logged_at", "namespace", "op", "phase")


def read_metadata(
    directory: Path,
    durable: int,
    request: LogMetadata,
    on_progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Return offset, log time (µs UTC), namespace, op, phase and size of entries.

    Keys, ids, headers and data are left out. The answer also counts the entries of the range
    that compaction has dropped. *on_progress* is called with the number of each batch's entries.
    Raises ``ActionRefused`` for too many.
    """
    if not 1 <= request.most <= MOST:
        raise ActionRefused(
            f"{request.most} entries are not allowed in one answer; request 1 to {MOST}"
        )
    found: list[dict[str, Any]] = []
    dropped = 0
    with LogReader(directory) as reader:
        first, last = max(request.first, reader.first_offset()), min(request.last, durable)
        if first <= last:
            first = start_of_last(reader, first, last, request.most, EntryFilter())
            dropped = reader.count_dropped(first, last)
            for batch in matching_entries(reader, first, last, EntryFilter()):
                on_progress(batch.num_rows)
                rows = batch.select(_COLUMNS)
                times = rows.column("logged_at").cast("int64")
                rows = rows.set_column(1, "logged_at", times).to_pylist()
                sizes = pc.binary_length(batch.column("data")).to_pylist()
                found += [row | {"size": size or 0} for row, size in zip(rows, sizes, strict=True)]
    return {"entries": found[-request.most :], "first": first, "last": last, "dropped": dropped}


class ReadOnly:
    """Read-only operations that show no payload; implements ``requests.Operations``."""

    def __init__(self, operations: Operations) -> None:
        """Forward to *operations*."""
        self._operations = operations

    def perform(
        self, request: Request, operator: Operator, is_abandoned: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """Perform *request* if it only reads; see ``requests.Operations``.

        Raises:
            ActionRefused: the request would change something.

        """
        if not isinstance(request, requests.ReadRequest):
            raise ActionRefused(
                "you may read this engine's status but change nothing: only its own user and root "
                "may use its control socket"
            )
        found = self._operations.perform(request, operator, is_abandoned)
        for part in (*found.get("readers", ()), *found.get("routes", ())):
            if part.get("problem"):
                # An error may quote a payload.
                part["problem"] = _HIDDEN
        for event in found.get("events", ()):
            event |= {name: _HIDDEN for name in ("problem", "reason") if event.get(name)}
        return found
