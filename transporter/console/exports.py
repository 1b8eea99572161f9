"""Downloads of entries: the files of ``transporter log export``, written while they are sent."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from flask import Response, request

from transporter.console.search import select_span
from transporter.control.entry_values import entry_json
from transporter.errors import ActionRefused, ConfigError
from transporter.log.export import json_lines, parquet_bytes, text_columns
from transporter.log.reader import LogReader
from transporter.log.search import matching_entries
from transporter.offsets.offset_log import inspect_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from flask import Flask

    from transporter.console.pages import Pages
    from transporter.console.search import Span

FORMATS: Final = {"jsonl": "application/jsonl", "parquet": "application/vnd.apache.parquet"}
_MOST: Final = 2
"""Downloads at a time: each keeps a thread of the server busy for as long as it takes."""


class Exports:
    """Sends what a search selects, however much it is, in bounded memory. Thread-safe."""

    def __init__(self, app: Flask, pages: Pages) -> None:
        """Add the page to *app*. Logs and rights are those of *pages*."""
        self._pages = pages
        self._slots = threading.BoundedSemaphore(_MOST)
        app.add_url_rule("/p/<log>/export", "export", self.export)

    def export(self, log: str) -> Response:
        """Return the entries of the search in the address, oldest first, as a file."""
        source = self._pages.source(log)
        if not self._pages.may_see_payloads():
            raise ActionRefused("only operators may see payloads here")
        kind = request.args.get("format", "jsonl")
        if kind not in FORMATS:
            raise ConfigError(f"format: {kind!r} is not a format; use {' or '.join(FORMATS)}")
        found = inspect_log(source.directory)
        span = select_span(self._pages.query(), found, datetime.now(UTC))
        if not self._slots.acquire(blocking=False):
            raise ActionRefused(f"{_MOST} downloads are under way; try again when one has ended")
        name = f"{source.name}-{span.first}-{span.last}.{kind}"
        try:
            parts = _parts(kind, source.directory, span, found.confirmed)
        except BaseException:
            self._slots.release()
            raise
        response = Response(parts, mimetype=FORMATS[kind])
        response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        # Also when the client goes away, or has never read anything.
        response.call_on_close(self._slots.release)
        return response


def _parts(kind: str, directory: Path, span: Span, confirmed: int) -> Iterator[bytes]:
    if kind == "parquet":
        # A column has one type in a file, so all entries are read before any is written.
        return parquet_bytes(_entries(directory, span), text_columns(_entries(directory, span)))
    return json_lines(_entries(directory, span), partial(entry_json, confirmed=confirmed))


def _entries(directory: Path, span: Span) -> Iterator[pa.RecordBatch]:
    with LogReader(directory) as reader:
        yield from matching_entries(reader, span.first, span.last, span.entry_filter)
