"""Pages that work on entries: downloads of a search, and trials of single entries."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from flask import Response, g, render_template, request

from transporter.console.act_pages import sent_values
from transporter.console.answers import error_json, result_json, wants_json
from transporter.console.child import run_command
from transporter.console.formats import pretty_data
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

    from transporter.console.act_pages import ActForms
    from transporter.console.answers import Answer
    from transporter.console.pages import Pages
    from transporter.console.search import Span
    from transporter.console.state import Console

_FORMATS: Final = {"jsonl": "application/jsonl", "parquet": "application/vnd.apache.parquet"}
_MOST_EXPORTS: Final = 2
"""Downloads at a time: each keeps a thread of the server busy for as long as it takes."""


class Exports:
    """Sends what a search selects, however much it is, in bounded memory. Thread-safe.

    The files are those of ``transporter log export``, written while they are sent.
    """

    def __init__(self, app: Flask, pages: Pages) -> None:
        """Add the page to *app*. Logs and rights are those of *pages*."""
        self._pages = pages
        self._slots = threading.BoundedSemaphore(_MOST_EXPORTS)
        app.add_url_rule("/p/<log>/export", "export", self.export)

    def export(self, log: str) -> Response:
        """Return the entries of the search in the address, oldest first, as a file."""
        source = self._pages.source(log)
        if not self._pages.may_see_payloads():
            raise ActionRefused("only operators may see payloads here")
        kind = request.args.get("format", "jsonl")
        if kind not in _FORMATS:
            raise ConfigError(f"format: {kind!r} is not a format; use {' or '.join(_FORMATS)}")
        found = inspect_log(source.directory)
        span = select_span(self._pages.query(), found, datetime.now(UTC))
        if not self._slots.acquire(blocking=False):
            raise ActionRefused(
                f"{_MOST_EXPORTS} downloads are under way; try again when one has ended"
            )
        name = f"{source.name}-{span.first}-{span.last}.{kind}"
        try:
            parts = _parts(kind, source.directory, span, found.confirmed)
        except BaseException:
            self._slots.release()
            raise
        response = Response(parts, mimetype=_FORMATS[kind])
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


class Trials:
    """Tries entries by ``transporter dry-run``, in a process with a deadline. Changes nothing.

    A trial of an entry shows the messages that a route would make of it now.

    It runs the steps of the pipeline file, which are the user's own code. So each trial is asked
    for by an operator's form, which is good for several, and none is automatic.
    """

    def __init__(self, app: Flask, console: Console, pages: Pages, forms: ActForms) -> None:
        """Add the page to *app*. Rights and forms are those of *forms*."""
        self._console, self._pages, self._forms = console, pages, forms
        app.add_url_rule(
            "/p/<log>/log/<int:offset>/try", "try_entry", self.try_entry, methods=["POST"]
        )

    def try_entry(self, log: str, offset: int) -> Answer:
        """Show what the route in the form would make of the entry, by the file as it is now."""
        source = self._pages.source(log)
        reason = self._console.guard.refusal_to_act(g.identity)
        if not reason and not self._pages.may_see_payloads():
            reason = "nobody may see payloads here"
        if reason:
            return error_json("Refused", f"Nothing was tried: {reason}.", 1), 403
        values = sent_values()
        self._forms.find_form(values)
        route, file = values.get("route", ""), source.file
        if file is None:
            raise ActionRefused("nobody knows the pipeline file of this log, which has the steps")
        place = str(offset)
        with self._forms.slot():
            found = run_command("dry-run", str(file), route, "--from", place, "--to", place)
        tried = found.get(route)
        if not isinstance(tried, list) or not tried:
            why = found.get("message") or (tried or {}).get("unknown")
            raise ActionRefused(str(why or f"the log has no entry {offset} to try"))
        if wants_json():
            return result_json(found)
        return render_template(
            "trial.html",
            offset=offset,
            route=route,
            file=file,
            tried=tried[0],
            made=[_shown(each) for each in tried[0]["output"] or ()],
            **self._pages.frame(source, source.look()),
        )


def _shown(output: dict[str, Any]) -> dict[str, Any]:
    """Return a message, or the row for a sink of Spark's, with its data as text."""
    if "row" in output:
        text = pretty_data(json.dumps(output["row"], ensure_ascii=False).encode())
        return {"namespace": "a row", "op": "", "key": None, "headers": [], "data": text}
    data = output.get("data")
    if isinstance(data, dict):  # not UTF-8
        return {**output, "data": f"base64: {data['base64']}"}
    return {**output, "data": None if data is None else pretty_data(data.encode())}
