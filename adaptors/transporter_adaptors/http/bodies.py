"""Entries as requests: their addresses, their bodies, and the entries that they settle."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, quote_from_bytes

from transporter.errors import Rejected
from transporter.trace_context import PARENT, STATE, trace_context
from transporter_adaptors.file.shapes import json_line
from transporter_adaptors.http.targets import fill_url
from transporter_adaptors.templates import fields_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from transporter.message import Entries, Entry, Message
    from transporter_adaptors.http.config import HttpWriterConfig

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_MEDIA_TYPE: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_GZIP_LEVEL: Final = 6

_FRAMES: Final = {
    "entries": (b"[", b",", b"]", "application/json"),
    "lines": (b"", b"\n", b"\n", "application/x-ndjson"),
}
"""Bytes before, between and behind the entries of a format, and its media type."""


class RequestTarget(NamedTuple):
    """The method of a request, and the path at the receiver with its query."""

    method: str
    path: str


@dataclass(frozen=True, slots=True)
class Request:
    """One request for *rows* entries, from the first that no earlier request holds."""

    rows: int
    address: RequestTarget
    body: bytes
    headers: dict[str, str]
    offset: int | None
    """The offset of its entry, if there is only one."""


@dataclass(frozen=True, slots=True)
class HttpEntry:
    """An entry on its way, with the id that every redelivery of it repeats."""

    id: str
    entry: Entry


class Requests:
    """The requests of a writer. The same entries always make the same ones, byte for byte."""

    def __init__(self, config: HttpWriterConfig, route: str) -> None:
        """Make requests according to *config*, for the entries of *route*."""
        self._config, self._route = config, route
        self._url = config.url.get_secret_value()
        # Most URLs have no fields, so their path is the same for all entries.
        self._path = None if fields_of(self._url) else config.target.path

    def split(self, batch: Entries) -> Iterator[Request]:
        """Yield *batch* as requests, in order, each with entries of one address only.

        Raises:
            Rejected: An entry cannot be sent. The entries before it were yielded.
        """
        rows, refused = self._address_rows(map(HttpEntry, batch.row_ids(), batch))
        origin = f"{batch.log_id}/{self._route}/{batch.generation}"
        for address, run in groupby(rows, key=lambda each: each[0]):
            for found, body, headers in self._bodies([row for _, row in run], batch.generation):
                yield self._request(address, found, body, headers, origin)
        if refused is not None:
            raise refused

    def _address_rows(
        self, rows: Iterable[HttpEntry]
    ) -> tuple[list[tuple[RequestTarget, HttpEntry]], Rejected | None]:
        """Return *rows* before the first without an address, with theirs, and the error if any."""
        found: list[tuple[RequestTarget, HttpEntry]] = []
        for row in rows:
            try:
                found.append((self._address(row.entry.message), row))
            except ValueError as error:
                return found, Rejected(f"HTTP receiver: {error}", row.entry.offset)
        return found, None

    def _address(self, message: Message) -> RequestTarget:
        method = self._config.methods.get(message.op, self._config.method)
        if self._path is not None:
            return RequestTarget(method, self._path)
        return RequestTarget(method, fill_url(self._url, message.namespace, message.key).path)

    def _bodies(
        self, rows: Sequence[HttpEntry], generation: int
    ) -> Iterator[tuple[Sequence[HttpEntry], bytes, dict[str, str]]]:
        """Yield rows that go together, their body, and the headers about it."""
        config = self._config
        if config.format == "data":
            for row in rows:
                yield [row], row.entry.message.data or b"", _document_headers(row, generation)
            return
        before, between, behind, media_type = _FRAMES[config.format]
        pieces = [_entry_json(row, generation) for row in rows]
        room = config.batch_bytes - len(before) - len(behind)
        for first, end in _request_bounds(pieces, config.batch_rows, room, len(between)):
            body = before + between.join(pieces[first:end]) + behind
            yield rows[first:end], body, {"Content-Type": media_type}

    def _request(
        self,
        address: RequestTarget,
        rows: Sequence[HttpEntry],
        body: bytes,
        headers: dict[str, str],
        origin: str,
    ) -> Request:
        first, last = rows[0].entry.offset, rows[-1].entry.offset
        # Includes a digest: after a change of the route's steps the same range is another request.
        content = hashlib.sha256("\n".join(row.id for row in rows).encode() + b"\n" + body)
        key = f'"{quote(origin)}/{first}-{last}/{content.hexdigest()[:16]}"'
        headers = {**headers, **_trace_headers(rows), "Idempotency-Key": key}
        if self._config.compression == "gzip" and body:
            headers["Content-Encoding"] = "gzip"
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        return Request(len(rows), address, body, headers, first if first == last else None)


def _request_bounds(
    pieces: Sequence[bytes], most: int, room: int, between: int
) -> Iterator[tuple[int, int]]:
    """Yield the first row of each request and the one behind its last, within the limits."""
    first = used = 0
    for at, piece in enumerate(pieces):
        size = len(piece) + between
        # The last piece has nothing behind it.
        if at > first and (at - first == most or used + size - between > room):
            yield first, at
            first, used = at, 0
        used += size
    if first < len(pieces):
        yield first, len(pieces)


def _entry_json(row: HttpEntry, generation: int) -> bytes:
    """Return the entry as a JSON object like the file writer's, with data about redeliveries."""
    head = {
        "id": row.id,
        "generation": generation,
        "content_type": row.entry.message.content_type,
    }
    return _ENCODER.encode(head)[:-1].encode() + b"," + json_line(row.entry)[1:]


def _trace_headers(rows: Sequence[HttpEntry]) -> dict[str, str]:
    """Return the W3C trace context of *rows* as headers; none where they are of several."""
    found = trace_context(rows[0].entry.message.headers)
    if found is None or any(trace_context(row.entry.message.headers) != found for row in rows[1:]):
        return {}
    return {PARENT: found.parent, **({STATE: found.state} if found.state else {})}


def _document_headers(row: HttpEntry, generation: int) -> dict[str, str]:
    """Return the headers with the rest of an entry whose data are the body, byte for byte.

    Text is percent-encoded UTF-8. A tombstone has no ``Content-Type``, and an empty body.
    """
    message = row.entry.message
    headers = {
        "Entry-Id": quote(row.id),
        "Entry-Generation": str(generation),
        "Entry-Namespace": quote(message.namespace),
        "Entry-Op": quote(message.op),
        "Entry-Phase": quote(message.phase),
    }
    if message.key is not None:
        headers["Entry-Key"] = quote_from_bytes(message.key)
    if message.data is not None:
        media_type = message.content_type or "application/octet-stream"
        if not _MEDIA_TYPE.fullmatch(media_type):
            raise Rejected(
                f"content type {media_type!r} cannot be sent as a header", row.entry.offset
            )
        headers["Content-Type"] = media_type
    return headers
