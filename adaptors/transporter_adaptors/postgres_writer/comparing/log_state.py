"""The last state of each row in the log, in a temporary database on the disk.

It takes about the disk space of the rows, and no memory for them (Invariant 17).
"""

from __future__ import annotations

import json
import sqlite3
from json import JSONDecoder
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from transporter_adaptors.postgres_writer.changes import (
    DELETE,
    NOTHING,
    SCHEMA,
    TRUNCATE,
    UPDATE,
    Change,
    parse_object,
    read_changes,
)
from transporter_adaptors.postgres_writer.table import parse_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from transporter.message import Entries
    from transporter_adaptors.postgres_writer.comparing.key_ranges import Key
    from transporter_adaptors.postgres_writer.config import PostgresWriterConfig
    from transporter_adaptors.postgres_writer.table import Table

_CREATE: Final = """
CREATE TABLE rows (
    name TEXT, key TEXT, offset INTEGER, fields TEXT, data BLOB, seen INTEGER DEFAULT 0,
    PRIMARY KEY (name, key)
) WITHOUT ROWID
"""
_PUT: Final = """
INSERT INTO rows (name, key, offset, fields, data) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name, key) DO UPDATE
SET offset = excluded.offset, fields = excluded.fields, data = excluded.data
"""
_SEE: Final = "UPDATE rows SET seen = 1 WHERE name = ? AND key = ? RETURNING offset, data"
_BLANKS: Final = " \t\n\r"

Values = list[object]
"""The values of a key, as they are parsed."""


class LoggedRow(NamedTuple):
    """The last state of a row. ``data`` is ``None`` for one that is deleted."""

    offset: int
    data: bytes | None


class LogState:
    """The rows of all tables of a route, as the log has them up to :attr:`offset`.

    It follows the writer's rules for absent fields, deletes and TRUNCATE. Entries that the writer
    cannot apply by their content are passed.
    """

    def __init__(
        self,
        config: PostgresWriterConfig,
        find_table: Callable[[str], Table | None],
        find_keys: Callable[[Table, Sequence[Values]], list[Key | None]],
    ) -> None:
        """Store rows in a file without a name, which ends with this process in any case.

        *find_table* returns the table of a namespace, and *find_keys* the texts of its key's
        columns for keys whose parsed values it is given.
        """
        self._config, self._find_table, self._find_keys = config, find_table, find_keys
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(_CREATE)
        self._rows: list[tuple[str, str, int, str, bytes | None]] = []
        """Rows that are to be written."""
        self._shapes: dict[str, set[str]] = {}
        """The fields of the rows of each table."""
        self._texts: dict[tuple[str, ...], str] = {}
        self.offset = -1
        self.passed = 0
        """Entries that could not be applied."""

    def close(self) -> None:
        """Give the disk space back."""
        self._database.close()

    def apply(self, through: int, batch: Entries) -> None:
        """Apply the entries of *batch*, which are all up to the offset *through*."""
        self._database.execute("BEGIN")
        run: list[Change] = []
        for change in read_changes(batch):
            if change.kind == TRUNCATE:
                self._apply_rows(run)
                run = []
                self._truncate(change)
            elif change.kind not in {NOTHING, SCHEMA}:
                run.append(change)
        self._apply_rows(run)
        self._database.execute("COMMIT")
        self.offset = max(self.offset, through)

    def find(self, table: Table, keys: Iterable[Key]) -> dict[Key, LoggedRow]:
        """Return the rows with these *keys*, and note that they were compared."""
        name, found = str(table.name), {}
        self._database.execute("BEGIN")
        for key in keys:
            text = _key_text(key)
            rows = self._database.execute(_SEE, (name, text)).fetchall()
            if rows:
                found[key] = LoggedRow(*rows[0])
        self._database.execute("COMMIT")
        return found

    def take_unseen(self, table: Table, count: int) -> list[Key]:
        """Return some keys of rows that :meth:`find` was not called for, and are not deleted."""
        rows = self._database.execute(
            "SELECT key FROM rows WHERE name = ? AND seen = 0 AND data IS NOT NULL LIMIT ?",
            (str(table.name), count),
        ).fetchall()
        return [tuple(json.loads(key)) for (key,) in rows]

    def count(self, table: Table) -> int:
        """Return the number of rows of *table*."""
        query = "SELECT count(*) FROM rows WHERE name = ? AND data IS NOT NULL"
        ((count,),) = self._database.execute(query, (str(table.name),)).fetchall()
        return int(count)

    def keys_of(self, batch: Entries) -> dict[str, set[Key]]:
        """Return the keys of the rows that *batch* changes, by table.

        A TRUNCATE changes all rows, which the key ``()`` stands for.
        """
        found: dict[str, set[Key]] = {}
        for change in read_changes(batch):
            if change.kind in {NOTHING, SCHEMA}:
                continue
            table = self._find_table(change.namespace)
            if table is None:
                continue
            keys = found.setdefault(str(table.name), set())
            if change.kind == TRUNCATE:
                keys.add(())
            elif (values := _key_values(change, table)) is not None:
                keys.update(key for key in self._find_keys(table, [values]) if key is not None)
        return found

    def _truncate(self, change: Change) -> None:
        table = self._find_table(change.namespace)
        if table is not None and not change.problem and self._config.truncate == "apply":
            self._database.execute("DELETE FROM rows WHERE name = ?", (str(table.name),))

    def _apply_rows(self, changes: Sequence[Change]) -> None:
        by_namespace: dict[str, list[Change]] = {}
        for change in changes:
            by_namespace.setdefault(change.namespace, []).append(change)
        for namespace, some in by_namespace.items():
            table = self._find_table(namespace)
            if table is not None:
                self._apply_to(table, some)

    def _apply_to(self, table: Table, changes: Sequence[Change]) -> None:
        pairs = [(change, _key_values(change, table)) for change in changes]
        good = [(change, values) for change, values in pairs if values is not None]
        self.passed += len(pairs) - len(good)
        keys = self._find_keys(table, [values for _, values in good])
        for (change, _), key in zip(good, keys, strict=True):
            if key is None:
                self.passed += 1
            elif change.kind != DELETE:
                self._put(str(table.name), key, change)
            elif self._config.delete != "ignore":
                self._rows.append((str(table.name), _key_text(key), change.offset, "", None))
        self._write()

    def _put(self, name: str, key: Key, change: Change) -> None:
        text, data, fields = _key_text(key), change.data, self._fields_text(change.fields)
        shapes = self._shapes.setdefault(name, {fields})
        shapes.add(fields)
        # Rows that all have the same fields replace one another.
        if change.kind == UPDATE or (self._config.missing == "keep" and len(shapes) > 1):
            self._write()
            before = self._database.execute(
                "SELECT fields, data FROM rows WHERE name = ? AND key = ?", (name, text)
            ).fetchone()
            if before is not None and before[1] is not None and before[0] != fields:
                data = merge_objects(before[1], data)
                fields = self._fields_text(tuple(parse_object(data) or {}))
                shapes.add(fields)
        self._rows.append((name, text, change.offset, fields, data))

    def _fields_text(self, fields: tuple[str, ...]) -> str:
        text = self._texts.get(fields)
        if text is None:
            text = self._texts[fields] = json.dumps(fields)
        return text

    def _write(self) -> None:
        """Write the rows that were put."""
        self._database.executemany(_PUT, self._rows)
        self._rows.clear()


def _key_values(change: Change, table: Table) -> Values | None:
    """Return the parsed values of the key, or ``None`` if the writer refuses the entry."""
    try:
        if change.problem:
            return None
        if change.kind == DELETE:
            return table.parse_key(change.key or b"")
        # A parser that loses digits of numbers does where there are none to lose.
        data = parse_object(change.data) if table.has_clear_key else parse_exactly(change.data)
        return [data[name] for name in table.key] if isinstance(data, dict) else None
    except (ValueError, LookupError, RecursionError):
        return None


def _key_text(key: Key) -> str:
    return orjson.dumps(key).decode()


def merge_objects(before: bytes, after: bytes) -> bytes:
    """Return the JSON object *before* with the members of *after*, each as it is spelled."""
    members = dict(_members(before.decode())) | dict(_members(after.decode()))
    parts = (f"{json.dumps(name)}:{value}" for name, value in members.items())
    return f"{{{','.join(parts)}}}".encode()


def _members(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each member of a JSON object, and the text of its value."""
    decode = JSONDecoder(strict=False, parse_int=str, parse_float=str).raw_decode
    at = _skip_blanks(text, 0) + 1
    while text[at := _skip_blanks(text, at)] != "}":
        name, at = decode(text, at)
        begin = _skip_blanks(text, _skip_blanks(text, at) + 1)
        _, end = decode(text, begin)
        yield name, text[begin:end]
        at = _skip_blanks(text, end)
        at += text[at] == ","


def _skip_blanks(text: str, at: int) -> int:
    while text[at] in _BLANKS:
        at += 1
    return at
