"""Entries as requests: what is in them, and which entries they settle."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, quote_from_bytes

from adaptors.file.shapes import json_line
from transporter.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from adaptors.http.config import HttpWriterConfig
    from transporter.message import Entries, Entry

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_MEDIA_TYPE: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")

_FRAMES: Final = {
    "entries": (b"[", b",", b"]", "application/json"),
    "lines": (b"", b"\n", b"\n", "application/x-ndjson"),
}
"""What stands before, between and behind the entries of a format, and its media type."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: *rows* entries of the batch, from the first that no request before it holds."""

    rows: int
    body: bytes
    headers: dict[str, str]
    offset: int | None
    """The entry that it is about, when it is about one alone."""


@dataclass(frozen=True, slots=True)
class Row:
    """An entry on its way, with the id that every redelivery of it repeats."""

    id: str
    entry: Entry


def rows_of(batch: Entries) -> list[Row]:
    """Return *batch* with ids: ``<log id>/<offset>``, unique in it.

    Of several entries that a step made of one, the second has ``/1`` behind
    its id, and so on: a receiver that drops ids it knows would lose them.
    """
    rows: list[Row] = []
    last, copy = -1, 0
    for entry in batch:
        copy = copy + 1 if entry.offset == last else 0
        last = entry.offset
        rows.append(Row(batch.entry_id(last) + (f"/{copy}" if copy else ""), entry))
    return rows


def requests_of(batch: Entries, config: HttpWriterConfig, route: str) -> Iterator[Request]:
    """Yield *batch* as requests, in order.

    Raise :class:`Rejected` at an entry that cannot be one; those before it were
    yielded. The same entries always make the same requests, byte for byte.
    """
    rows = rows_of(batch)
    origin = f"{batch.log_id}/{route}/{batch.generation}"
    if config.format == "data":
        for row in rows:
            yield _document(row, origin, batch.generation)
        return
    before, between, behind, media_type = _FRAMES[config.format]
    pieces = [_whole(row, batch.generation) for row in rows]
    room = config.batch_bytes - len(before) - len(behind)
    for first, end in _cuts(pieces, config.batch_rows, room, len(between)):
        body = before + between.join(pieces[first:end]) + behind
        yield _request(rows[first:end], body, {"Content-Type": media_type}, origin)


def _cuts(pieces: Sequence[bytes], most: int, room: int, between: int) -> Iterator[tuple[int, int]]:
    """Yield the first row of each request and the one behind its last, as the limits allow."""
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


def _whole(row: Row, generation: int) -> bytes:
    """Return the entry as a JSON object: as the file writer's, with what tells of redeliveries."""
    head = {
        "id": row.id,
        "generation": generation,
        "content_type": row.entry.message.content_type,
    }
    return _ENCODER.encode(head)[:-1].encode() + b"," + json_line(row.entry)[1:]


def _document(row: Row, origin: str, generation: int) -> Request:
    """Return a request whose body is the data, byte for byte; what else there is, in headers.

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
    return _request([row], message.data or b"", headers, origin)


def _request(rows: Sequence[Row], body: bytes, headers: dict[str, str], origin: str) -> Request:
    first, last = rows[0].entry.offset, rows[-1].entry.offset
    # With what is in it: after a change of the route's steps the same range is another request.
    content = hashlib.sha256("\n".join(row.id for row in rows).encode() + b"\n" + body)
    key = f'"{quote(origin)}/{first}-{last}/{content.hexdigest()[:16]}"'
    return Request(
        len(rows), body, {**headers, "Idempotency-Key": key}, first if first == last else None
    )
