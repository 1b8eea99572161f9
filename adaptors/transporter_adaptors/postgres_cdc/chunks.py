"""Chunks of the copy: rows behind a key, in its order, each chunk in a snapshot of its own."""

from __future__ import annotations

import json
import select
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, Final

import psycopg
import pyarrow as pa
from psycopg import generators, pq, sql

from transporter.errors import EnvironmentFault
from transporter_adaptors.postgres.table import escape_percent
from transporter_adaptors.postgres_cdc.key_order import INTEGERS, Comparison, compare, key_types
from transporter_adaptors.postgres_cdc.state import BEGIN_ANEW

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transporter_adaptors.postgres.session import BoundedConnection, Connection
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_cdc.handover import Key
    from transporter_adaptors.postgres_cdc.key_order import KeyType
    from transporter_adaptors.postgres_cdc.state import FollowedTable
    from transporter_adaptors.postgres_cdc.tables import Column, TableDefinition


# PostgreSQL's manual, "COPY", "Binary Format":
#   signature:11 flags:4 extension:4 (fields:2 (length:4 bytes)*)* end:2
_SIGNATURE: Final = 19
_END: Final = b"\xff\xff"
_length_at: Final = Struct(">i").unpack_from


def fetch_copy(connection: BoundedConnection, query: sql.Composed) -> list[bytes]:
    """Return the rows of *query*, a COPY … TO STDOUT in the binary format, in their order.

    Raises:
        psycopg.Error: the server refuses the query, or the session was lost or is silent.

    """
    pgconn, rows = connection.pgconn, list[bytes]()
    pgconn.send_query(query.as_bytes(connection))
    (result,) = connection.wait(generators.execute(pgconn))
    if result.status != pq.ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(result)
    waiting = select.poll()
    waiting.register(pgconn.socket, select.POLLIN)
    ends = monotonic() + connection.patience
    while True:
        size, data = pgconn.get_copy_data(1)
        if size > 0:
            rows.append(bytes(data))
        elif size < 0:
            break
        elif waiting.poll(max(0.0, ends - monotonic()) * 1000):
            pgconn.consume_input()
            ends = monotonic() + connection.patience
        else:
            pgconn.finish()
            text = f"the server did not answer within {connection.patience:g} s"
            raise psycopg.OperationalError(text)
    # get_result() would wait for the server without a limit, and no other thread would run.
    for result in connection.wait(generators.fetch_many(pgconn)):
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)
    rows[0] = rows[0][_SIGNATURE:]
    rows[-1] = rows[-1].removesuffix(_END)
    return [row for row in rows if row]


def split_fields(rows: list[bytes], count: int) -> list[pa.BinaryArray]:
    """Return the fields of *rows*, which have *count* values each and no NULL, column by column."""
    edges, at = array("i"), 0
    append = edges.append
    for row in rows:
        place = 2
        for _ in range(count):
            begin = place + 4
            place = begin + _length_at(row, place)[0]
            append(at + begin)
            append(at + place)
        at += len(row)
    append(at)
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(b"".join(rows))]
    texts = pa.BinaryArray.from_buffers(pa.binary(), len(edges) - 1, buffers)
    # Every second text is a value, and those between are what is between values.
    step = 2 * count
    return [texts.take(pa.arange(2 * field, step * len(rows), step)) for field in range(count)]


_MEASURES: Final = {
    17: "2 * octet_length({1})",  # bytea
    **dict.fromkeys((25, 1042, 1043), "octet_length({1})"),  # text, char, varchar
}
"""Measures of types whose length is known without reading them. Others may be compressed."""
_COMPRESSED: Final = 3


@dataclass(frozen=True, slots=True)
class CopyColumn:
    """A column to copy. One that is read ``as_text`` has a cast to json of its own."""

    name: str
    type: str
    as_text: bool = False
    type_oid: int = 0

    @property
    def selected(self) -> sql.Composable:
        """The column as in the SELECT list, under its own name."""
        name = escape_percent(sql.Identifier(self.name))
        value = text_of("o", self.name) if self.as_text else _of("o", self.name)
        return value + sql.SQL(" AS ") + name

    @property
    def size(self) -> sql.Composable:
        """The bytes of a value in JSON, about, without reading one that is stored apart."""
        value = _of("o", self.name)
        measure = _MEASURES.get(self.type_oid, "{} * pg_column_size({})")
        return sql.SQL("coalesce(" + measure + ", 4)").format(sql.Literal(_COMPRESSED), value)


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """How one table is copied.

    Attributes:
        table: its name.
        only: whether it has no partitions, so that children by inheritance are left out.
        columns: the published columns, in their order.
        order: the columns of the copy's key, each with its type.
        key: the columns that become the key of the entries.
        is_json_key: whether that key is a JSON array.
        where: the publication's row filter, if it has one.
        copy_where: the pipeline file's condition for the rows to copy, if it has one.
        encoding: the encoding whose bytes are fetched, or an empty text for UTF-8.

    """

    table: TableName
    only: bool
    columns: tuple[CopyColumn, ...]
    order: tuple[tuple[str, KeyType], ...]
    key: tuple[str, ...]
    is_json_key: bool
    where: str = ""
    copy_where: str = ""
    encoding: str = ""

    @property
    def has_filter(self) -> bool:
        """Whether some rows are left out."""
        return bool(self.where or self.copy_where)

    @property
    def is_key_last(self) -> bool:
        """Whether the key of an entry is the copy's key."""
        return not self.is_json_key and self.key == tuple(name for name, _ in self.order)


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """The rows of a chunk as the server sent them, and the copy's key of the last one."""

    sent: list[bytes]
    has_order: bool
    """Whether the copy's key is sent beside the entry's."""

    def __len__(self) -> int:
        return len(self.sent)

    @property
    def size(self) -> int:
        """The bytes of all rows."""
        return sum(map(len, self.sent))

    @property
    def last(self) -> Key | None:
        """The copy's key of the last row."""
        if not self.sent:
            return None
        *_, field = split_fields(self.sent[-1:], 3 if self.has_order else 2)
        text = field[0].as_py().decode(errors="surrogateescape")
        return tuple(json.loads(text)) if self.has_order else (text,)

    def split(self) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """Return the JSON and the key of each row."""
        data, keys, *_ = split_fields(self.sent, 3 if self.has_order else 2)
        return data, keys


def read_chunk(
    connection: BoundedConnection,
    plan: CopyPlan,
    boundary: Key | None,
    rows: int,
    edge: Key | None = None,
) -> ChunkRows:
    """Read the next rows behind *boundary*, at most *rows*, in the transaction of *connection*.

    None is behind *edge*, if that is given.
    """
    sent = fetch_copy(connection, chunk_query(plan, boundary, rows, edge))
    return ChunkRows(sent, has_order=not plan.is_key_last)


def find_edge(
    connection: Connection, plan: CopyPlan, boundary: Key | None, rows: int
) -> Key | None:
    """Return the key of the row at the place *rows* behind *boundary*, ``None`` behind the last.

    Rows that the filters leave out count, too. So a chunk has an end also where few rows pass.
    """
    query = sql.SQL(
        "SELECT ARRAY[{key}] FROM {only}{table} o{behind} ORDER BY {order} OFFSET %s LIMIT 1"
    ).format(
        key=_joined(text_of("o", name) for name, _ in plan.order),
        only=sql.SQL("ONLY " if plan.only else ""),
        table=plan.table.in_query,
        behind=_where(_limits(plan, boundary)),
        order=_joined(_of("o", name) for name, _ in plan.order),
    )
    found = connection.execute(query, [*(boundary or ()), rows - 1]).fetchone()
    return None if found is None else tuple(found[0])


def count_fitting(
    connection: Connection, plan: CopyPlan, boundary: Key | None, rows: int, size: int
) -> int:
    """Return how many of the next *rows* rows have about *size* bytes together, one at least.

    Large values are measured by their headers, and not read. Rows that the filters leave out have
    no size.
    """
    size_of_row = sql.SQL(" + ").join(column.size for column in plan.columns)
    if plan.has_filter:
        passes = sql.SQL(" AND ").join(_filters(plan))
        size_of_row = sql.SQL("CASE WHEN {} THEN {} ELSE 0 END").format(passes, size_of_row)
    query = sql.SQL(
        "SELECT count(*) FROM (SELECT sum(size) OVER (ROWS UNBOUNDED PRECEDING) AS total FROM ("
        "SELECT {size} AS size FROM {only}{table} o{behind} ORDER BY {order} LIMIT %s) r) x"
        " WHERE total <= %s"
    ).format(
        size=size_of_row,
        only=sql.SQL("ONLY " if plan.only else ""),
        table=plan.table.in_query,
        behind=_where(_limits(plan, boundary)),
        order=_joined(_of("o", name) for name, _ in plan.order),
    )
    found = connection.execute(query, [*(boundary or ()), rows, size]).fetchone()
    assert found is not None  # noqa: S101 - an aggregate has a row
    return max(1, int(found[0]))


def chunk_query(
    plan: CopyPlan, boundary: Key | None, rows: int, edge: Key | None = None
) -> sql.Composed:
    """Return the COPY of the next *rows* rows behind *boundary*: JSON, key, and the copy's key.

    The last is left out where it is the key. The order is that of the subquery. Rows behind *edge*
    are left out.
    """
    # The row is r.*, because r alone may be a column.
    parts = [sql.SQL("row_to_json(r.*)::text"), _key_expression(plan)]
    if not plan.is_key_last:
        names = _joined(text_of("r", name) for name, _ in plan.order)
        parts.append(sql.SQL("to_json(ARRAY[{}])::text").format(names))
    if plan.encoding:
        parts = [
            sql.SQL("convert_to({}, {})").format(part, sql.Literal(plan.encoding)) for part in parts
        ]
    query = sql.SQL(
        "COPY (SELECT {parts} FROM (SELECT {columns} FROM {only}{table} o{behind}"
        " ORDER BY {order} LIMIT {rows}) r) TO STDOUT (FORMAT BINARY)"
    ).format(
        parts=_joined(parts),
        columns=_joined(column.selected for column in plan.columns),
        # Qualified: a column of the result with that name would be sorted as text.
        order=_joined(_of("o", name) for name, _ in plan.order),
        only=sql.SQL("ONLY " if plan.only else ""),
        table=plan.table.in_query,
        behind=_where([*_filters(plan), *_limits(plan, boundary, edge, literal=True)]),
        rows=sql.Literal(rows),
    )
    # There are no parameters, so a per cent sign is one.
    return sql.Composed([sql.SQL(query.as_string().replace("%%", "%"))])


def rank_keys(
    connection: Connection,
    types: Sequence[KeyType],
    bounds: Sequence[Key],
    keys: Sequence[Key],
) -> list[int]:
    """Return for each of *keys* how many of *bounds*, which ascend, are before it.

    *types* are those of the columns. Integers are compared here, and all others by the server,
    because only it knows their order.
    """
    if not bounds or not keys:
        return [0] * len(keys)
    if all(each.oid in INTEGERS for each in types):
        edges = [tuple(map(int, bound)) for bound in bounds]
        return [bisect_left(edges, tuple(map(int, key))) for key in keys]
    names = [f"c{number}" for number in range(len(types))]
    query = sql.SQL(
        "SELECT (SELECT count(*) FROM unnest({arrays}) b ({names}) WHERE {is_before})"
        " FROM unnest({arrays}) WITH ORDINALITY k ({names}, n) ORDER BY k.n"
    ).format(
        arrays=_joined(sql.SQL("%s::text[]") for _ in types),
        names=_joined(map(sql.Identifier, names)),
        is_before=compare(
            Comparison.LESS,
            [kind.cast(_of("b", name)) for name, kind in zip(names, types, strict=True)],
            [kind.cast(_of("k", name)) for name, kind in zip(names, types, strict=True)],
            types,
        ),
    )
    arguments = [list(column) for part in (bounds, keys) for column in zip(*part, strict=True)]
    return [int(row[0]) for row in connection.execute(query, arguments).fetchall()]


def find_key_types(
    connection: Connection,
    table: FollowedTable,
    definition: TableDefinition,
    names: Sequence[str],
    *,
    has_bounds: bool = True,
) -> list[KeyType]:
    """Return the types of the columns in whose order *table* is copied.

    *names* are those of the columns now.

    Raises:
        EnvironmentFault: one of the columns is gone, or the table *has_bounds* whose order may be
            another one now.

    """
    logged = {column.name: column.type_oid for column in table.columns}
    now = {column.name: column for column in definition.columns}
    gone = [name for name in names if name not in now]
    if gone or len(names) != len(table.copy_key):
        name, problem = (gone or table.copy_key)[0], "is gone"
    else:
        pairs = zip(table.copy_key, names, strict=True)
        changed = [new for old, new in pairs if not _has_order_of(logged.get(old), now[new])]
        if not changed or not has_bounds:
            return key_types(connection, (now[name] for name in names))
        name, problem = changed[0], "has another type"
    raise EnvironmentFault(
        f"the column {name} of {table.full_name}, which is part of its key, {problem} before its "
        f"copy has ended; {BEGIN_ANEW}"
    )


def _has_order_of(before: int | None, column: Column) -> bool:
    return {before, column.type_oid} <= INTEGERS or before == column.type_oid


def _joined(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


def _of(alias: str, name: str) -> sql.Composable:
    return sql.SQL(alias + ".") + escape_percent(sql.Identifier(name))


def text_of(alias: str, name: str) -> sql.Composable:
    """Return the expression of a column's text, as its type's output function makes it.

    A cast to text may differ: it trims ``char``, and spells bool out.
    """
    column = _of(alias, name)
    return sql.SQL("CASE WHEN {0} IS NOT NULL THEN format('%%s', {0}) END").format(column)


def _key_expression(plan: CopyPlan) -> sql.Composable:
    if not plan.is_json_key:
        return text_of("r", plan.key[0])
    return sql.SQL("json_build_array({})::text").format(
        _joined(_of("r", name) for name in plan.key)
    )


def _filters(plan: CopyPlan) -> list[sql.Composable]:
    """Return the conditions for the rows to copy."""
    wheres = filter(None, (plan.where, plan.copy_where))
    return [sql.SQL("(" + where.replace("%", "%%") + ")") for where in wheres]


def _limits(
    plan: CopyPlan, boundary: Key | None, edge: Key | None = None, *, literal: bool = False
) -> list[sql.Composable]:
    """Return the conditions for rows behind *boundary* and up to *edge*.

    The values of these are parameters or literals.
    """
    types = [kind for _, kind in plan.order]
    ours = [_of("o", name) for name, _ in plan.order]
    conditions = []
    for limit, comparison in ((boundary, Comparison.GREATER), (edge, Comparison.AT_MOST)):
        if limit is None:
            continue
        texts = [
            sql.SQL(sql.Literal(text).as_string().replace("%", "%%")) if literal else sql.SQL("%s")
            for text in limit
        ]
        theirs = [kind.cast(text) for text, kind in zip(texts, types, strict=True)]
        conditions.append(compare(comparison, ours, theirs, types))
    return conditions


def _where(conditions: Sequence[sql.Composable]) -> sql.Composable:
    return sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("")
