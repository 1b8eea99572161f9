"""A comparison of the JSON made here with that of the server, row by row."""

from __future__ import annotations

import re
import struct
from typing import Any

import psycopg
from psycopg import sql
from transporter_adaptors.postgres_cdc.entries import RowEncoder
from transporter_adaptors.postgres_cdc.types import TypeCatalog

SESSION = (
    "-c DateStyle=ISO -c TimeZone=UTC -c IntervalStyle=iso_8601 -c extra_float_digits=1 "
    "-c bytea_output=hex -c lc_monetary=C -c search_path= -c jit=off"
)
_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_COLUMNS = (
    "SELECT attname::text, atttypid::int8 FROM pg_attribute"
    " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)

Row = list[bytes | None]


class Oracle:
    """A session whose server answers for the right JSON. Counts the values compared."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.values = 0
        self.types: set[int] = set()

    def encoder(self, table: str) -> RowEncoder:
        """Return the encoder of rows of *table*."""
        catalog, columns = self.load(table)
        self.types |= catalog._types.keys()
        return RowEncoder([(name, catalog.rule(oid)) for name, oid in columns])

    def expected(self, table: str) -> list[bytes]:
        """Return the server's JSON of each row, from the texts of columns whose type has a cast."""
        catalog, columns = self.load(table)
        names = [
            sql.SQL("{0}::text AS {0}" if catalog.casts_to_json(oid) else "{0}").format(
                sql.Identifier(name)
            )
            for name, oid in columns
        ]
        query = sql.SQL(
            "SELECT convert_to(row_to_json(r)::text, 'UTF8') FROM (SELECT {} FROM {}) AS r"
        ).format(sql.SQL(", ").join(names), sql.SQL(table))
        with self.connection.cursor(binary=True) as cursor:
            return [bytes(row[0]) for row in cursor.execute(query)]

    def compare(self, table: str) -> int:
        """Compare every row of *table*, copied as text, and return the number of values."""
        return self.compare_texts(table, self.copied(table))

    def compare_texts(self, table: str, texts: list[Row]) -> int:
        """Compare what *texts* become with the server's JSON of the rows of *table*."""
        encoder = self.encoder(table)
        # Rows are not always stored in the order in which they were inserted.
        assert sorted(map(encoder.encode, texts)) == sorted(self.expected(table))
        count = sum(map(len, texts))
        self.values += count
        return count

    def copied(self, table: str) -> list[Row]:
        """Return the rows of *table* as the output functions write them."""
        with (
            self.connection.cursor() as cursor,
            cursor.copy(sql.SQL("COPY (SELECT * FROM {}) TO STDOUT").format(sql.SQL(table))) as out,
        ):
            data = b"".join(map(bytes, out))
        return [[_unescape(cell) for cell in line.split(b"\t")] for line in data.split(b"\n")[:-1]]

    def load(self, table: str) -> tuple[TypeCatalog, list[tuple[str, int]]]:
        """Return the types of *table*, and the name and type of each column."""
        columns = self.connection.execute(_COLUMNS, [table]).fetchall()
        catalog = TypeCatalog()
        catalog.load(self.connection, [oid for _, oid in columns])
        return catalog, columns


def inserted_rows(messages: list[bytes]) -> dict[str, list[Row]]:
    """Return the new rows by table in *messages* of pgoutput's protocol 1."""
    tables: dict[int, str] = {}
    rows: dict[str, list[Row]] = {}
    for message in messages:
        if message[:1] == b"R":
            (oid,) = struct.unpack_from(">I", message, 1)
            schema, name, _ = message[5:].split(b"\0", 2)
            tables[oid] = f"{schema.decode()}.{name.decode()}"
        elif message[:1] == b"I":
            (oid,) = struct.unpack_from(">I", message, 1)
            rows.setdefault(tables[oid], []).append(_tuple(message[6:]))
    return rows


def _tuple(data: bytes) -> Row:
    (count,) = struct.unpack_from(">H", data)
    at, row = 2, []
    for _ in range(count):
        kind, at = data[at : at + 1], at + 1
        if kind == b"n":
            row.append(None)
            continue
        assert kind == b"t"
        (size,) = struct.unpack_from(">I", data, at)
        row.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return row


def _unescape(cell: bytes) -> bytes | None:
    if cell == rb"\N":
        return None
    return re.sub(rb"(?s)\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), cell)
