"""Changes of rows, as entries have them. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from transporter.message import headers_of
from transporter_adaptors.postgres_cdc.columns import SCHEMA_TYPE
from transporter_adaptors.postgres_cdc.entries import UNCHANGED_HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transporter.message import Entries, Headers

UPSERT: Final = "upsert"
UPDATE: Final = "update"
"""An upsert of a part of a row, which cannot be inserted."""
DELETE: Final = "delete"
TRUNCATE: Final = "truncate"
SCHEMA: Final = "schema"
NOTHING: Final = "nothing"
COMMANDS: Final = frozenset({TRUNCATE, SCHEMA})


class Change(NamedTuple):
    """The change that an entry makes to a table.

    ``fields`` are those of the data. ``problem`` is the reason if it cannot be applied anywhere.
    ``unchanged`` are the fields that an update leaves alone, or ``None`` if they cannot be read.
    """

    offset: int
    namespace: str
    kind: str
    key: bytes | None
    data: bytes
    fields: tuple[str, ...] = ()
    problem: str = ""
    unchanged: tuple[str, ...] | None = ()


def read_changes(batch: Entries) -> list[Change]:
    """Return the change of each row of *batch*."""
    columns = batch.batch
    rows = zip(
        batch.offsets,
        columns.column("namespace").to_pylist(),
        columns.column("op").to_pylist(),
        columns.column("key").to_pylist(),
        columns.column("data").to_pylist(),
        columns.column("content_type").to_pylist(),
        headers_of(columns.column("headers")),
        strict=True,
    )
    return [_change(*row) for row in rows]


def _change(
    offset: int,
    namespace: str,
    op: str,
    key: bytes | None,
    data: bytes | None,
    content_type: str | None,
    headers: Headers,
) -> Change:
    if op in {"noop", "skip"}:
        return Change(offset, namespace, NOTHING, None, b"")
    if op == "command":
        return _command(offset, namespace, data or b"", content_type)
    if op == "delete" or data is None:
        problem = "" if key is not None else "a delete without a key names no row"
        return Change(offset, namespace, DELETE, key, b"", (), problem)
    lists = [value for name, value in headers if name == UNCHANGED_HEADER]
    kind = UPDATE if lists else UPSERT
    fields = parse_object(data)
    if fields is None:
        problem = "the data is not a JSON object, or is nested too deep, so it is not a row"
        return Change(offset, namespace, kind, key, data, (), problem)
    unchanged = _names_in(lists) if lists else ()
    return Change(offset, namespace, kind, key, data, tuple(fields), "", unchanged)


def _names_in(lists: Sequence[bytes | None]) -> tuple[str, ...] | None:
    """Return the names in JSON arrays, or ``None`` if one is something else."""
    found: list[str] = []
    for each in lists:
        try:
            names = orjson.loads(each or b"")
        except ValueError:
            return None
        # The server has no names with a NUL, and the driver refuses to send one.
        if not isinstance(names, list) or not all(
            isinstance(name, str) and "\0" not in name for name in names
        ):
            return None
        found += names
    return tuple(found)


def _command(offset: int, namespace: str, data: bytes, content_type: str | None) -> Change:
    fields = parse_object(data) or {}
    if content_type == SCHEMA_TYPE:
        return Change(offset, namespace, SCHEMA, None, data, tuple(fields))
    if fields.get("command") == TRUNCATE:
        return Change(offset, namespace, TRUNCATE, None, data, tuple(fields))
    problem = "the command is unknown: a filter or a step can drop such entries"
    return Change(offset, namespace, TRUNCATE, None, data, (), problem)


def parse_object(data: bytes) -> dict[str, object] | None:
    """Return the fields of a JSON object, or ``None`` if *data* is not one.

    Their values need not be exact.
    """
    try:
        found = orjson.loads(data)
    except ValueError:
        # Valid for the server, perhaps: lone surrogates, long numbers, or very deep.
        try:
            found = json.loads(data.decode(), parse_int=str)
        except (ValueError, RecursionError):
            return None
    return found if isinstance(found, dict) else None


def unit_starts(offsets: Sequence[int]) -> list[int]:
    """Return the index of the first row of each entry, and the number of rows behind."""
    starts = [
        place for place, offset in enumerate(offsets) if not place or offsets[place - 1] != offset
    ]
    return [*starts, len(offsets)]
