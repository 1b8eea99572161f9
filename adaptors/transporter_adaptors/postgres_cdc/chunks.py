"""Chunks of the copy: rows behind a key, in its order, each chunk in a snapshot of its own."""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg import sql

from transporter.errors import EnvironmentFault
from transporter_adaptors.postgres.table import escape_percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_cdc.handover import Key
    from transporter_adaptors.postgres_cdc.state import FollowedTable
    from transporter_adaptors.postgres_cdc.tables import TableDefinition

_MEASURES: Final = {
    17: "2 * octet_length({1})",  # bytea
    **dict.fromkeys((25, 1042, 1043), "octet_length({1})"),  # text, char, varchar
}
"""Measures of types whose length is known without reading them. Others may be compressed."""
_COMPRESSED: Final = 3
_INTEGERS: Final = frozenset({20, 21, 23})
"""The types int8, int2 and int4, which are compared here. The server compares all others."""


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
        order: the columns of the copy's key, each with its type as in SQL.
        key: the columns that become the key of the entries.
        is_json_key: whether that key is a JSON array.
        where: the publication's row filter, if it has one.
        copy_where: the pipeline file's condition for the rows to copy, if it has one.
        encoding: the encoding in which the texts are fetched, or an empty text for the database's
            own, which is UTF-8 then, or none.

    """

    table: TableName
    only: bool
    columns: tuple[CopyColumn, ...]
    order: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    is_json_key: bool
    where: str = ""
    copy_where: str = ""
    encoding: str = ""


def read_chunk(
    connection: Connection, plan: CopyPlan, boundary: Key | None, rows: int
) -> tuple[bytes, list[int], bytes, list[int], Key | None]:
    """Read the next rows behind *boundary*, at most *rows*, in the transaction of *connection*.

    Returns:
        The JSON of the rows, packed, and the bytes of each; their keys, likewise; the copy's key of
        the last row.

    """
    query = chunk_query(plan, boundary)
    found = connection.execute(query, [*(boundary or ()), rows]).fetchone()
    assert found is not None  # noqa: S101 - an aggregate has a row
    data, sizes, keys, key_sizes, last = found
    key = None if last is None else tuple(json.loads(last.decode(errors="surrogateescape")))
    return data, sizes, keys, key_sizes, key


def count_fitting(
    connection: Connection, plan: CopyPlan, boundary: Key | None, rows: int, size: int
) -> int:
    """Return how many of the next *rows* rows have about *size* bytes together, one at least.

    Large values are measured by their headers, and not read.
    """
    query = sql.SQL(
        "SELECT count(*) FROM (SELECT sum(size) OVER (ROWS UNBOUNDED PRECEDING) AS total FROM ("
        "SELECT {size} AS size FROM {only}{table} o{behind} ORDER BY {order} LIMIT %s) r) x"
        " WHERE total <= %s"
    ).format(
        size=sql.SQL(" + ").join(column.size for column in plan.columns),
        only=sql.SQL("ONLY " if plan.only else ""),
        table=plan.table.in_query,
        behind=_behind(plan, boundary),
        order=_joined(_of("o", name) for name, _ in plan.order),
    )
    found = connection.execute(query, [*(boundary or ()), rows, size]).fetchone()
    assert found is not None  # noqa: S101 - an aggregate has a row
    return max(1, int(found[0]))


def chunk_query(plan: CopyPlan, boundary: Key | None) -> sql.Composed:
    """Return the query for the next rows behind *boundary*; its last parameter is their number."""
    return sql.SQL(
        "SELECT convert_to(coalesce(string_agg(j, '' ORDER BY n), ''), {encoding}),"
        " coalesce(array_agg(octet_length({encoded_j}) ORDER BY n), '{{}}'),"
        " convert_to(coalesce(string_agg(k, '' ORDER BY n), ''), {encoding}),"
        " coalesce(array_agg(octet_length({encoded_k}) ORDER BY n), '{{}}'),"
        " convert_to((array_agg(to_json(l)::text ORDER BY n DESC))[1], {encoding})"
        " FROM (SELECT row_to_json(r)::text AS j, {key} AS k, ARRAY[{last}] AS l,"
        " row_number() OVER () AS n FROM ("
        "SELECT {columns} FROM {only}{table} o{behind} ORDER BY {order} LIMIT %s) r) x"
    ).format(
        encoding=sql.Literal(plan.encoding) if plan.encoding else sql.SQL("getdatabaseencoding()"),
        **{f"encoded_{name}": _encoded(name, plan.encoding) for name in "jk"},
        columns=_joined(column.selected for column in plan.columns),
        key=_key_expression(plan),
        last=_joined(text_of("r", name) for name, _ in plan.order),
        # Qualified: a column of the result with that name would be sorted as text.
        order=_joined(_of("o", name) for name, _ in plan.order),
        only=sql.SQL("ONLY " if plan.only else ""),
        table=plan.table.in_query,
        behind=_behind(plan, boundary),
    )


def rank_keys(
    connection: Connection,
    types: Sequence[tuple[int, str]],
    bounds: Sequence[Key],
    keys: Sequence[Key],
) -> list[int]:
    """Return for each of *keys* how many of *bounds*, which ascend, are before it.

    *types* are those of the columns, by number and as in SQL. Integers are compared here, and all
    others by the server, because only it knows their order.
    """
    if not bounds or not keys:
        return [0] * len(keys)
    if all(oid in _INTEGERS for oid, _ in types):
        edges = [tuple(map(int, bound)) for bound in bounds]
        return [bisect_left(edges, tuple(map(int, key))) for key in keys]
    names = [f"c{number}" for number in range(len(types))]
    query = sql.SQL(
        "SELECT (SELECT count(*) FROM unnest({arrays}) b ({names}) WHERE ({theirs}) < ({ours}))"
        " FROM unnest({arrays}) WITH ORDINALITY k ({names}, n) ORDER BY k.n"
    ).format(
        arrays=_joined(sql.SQL("%s::text[]") for _ in types),
        names=_joined(map(sql.Identifier, names)),
        theirs=_joined(
            _typed("b", name, kind) for name, (_, kind) in zip(names, types, strict=True)
        ),
        ours=_joined(_typed("k", name, kind) for name, (_, kind) in zip(names, types, strict=True)),
    )
    arguments = [list(column) for part in (bounds, keys) for column in zip(*part, strict=True)]
    return [int(row[0]) for row in connection.execute(query, arguments).fetchall()]


def find_key_types(
    table: FollowedTable, definition: TableDefinition, *, has_bounds: bool = True
) -> list[tuple[int, str]]:
    """Return the types of the columns in whose order *table* is copied, by number and as in SQL.

    Raises:
        EnvironmentFault: one of the columns is gone, or the table *has_bounds* whose order may be
            another one now.

    """
    logged = {column.name: column.type_oid for column in table.columns}
    now = {column.name: column for column in definition.columns}
    for name in table.copy_key:
        kinds = {logged.get(name), now[name].type_oid} if name in now else set()
        is_ordered = len(kinds) == 1 or kinds <= _INTEGERS or not has_bounds
        if not kinds or not is_ordered:
            problem = "has another type" if name in now else "is gone"
            raise EnvironmentFault(
                f"the column {name} of {table.full_name}, which is part of its key, {problem} "
                "before its copy has ended; raise copy_run, which copies every table again"
            )
    return [(now[name].type_oid, now[name].type) for name in table.copy_key]


def _encoded(name: str, encoding: str) -> sql.Composable:
    """Return the expression of the text *name*, whose octets are counted."""
    if not encoding:
        return sql.SQL(name)
    return sql.SQL("convert_to({}, {})").format(sql.SQL(name), sql.Literal(encoding))


def _joined(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


def _of(alias: str, name: str) -> sql.Composable:
    return sql.SQL(alias + ".") + escape_percent(sql.Identifier(name))


def _typed(alias: str, name: str, kind: str) -> sql.Composable:
    return _of(alias, name) + sql.SQL("::" + kind.replace("%", "%%"))


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


def _behind(plan: CopyPlan, boundary: Key | None) -> sql.Composable:
    """Return the condition for rows behind *boundary*, whose values are parameters."""
    conditions = list[sql.Composable]()
    for where in filter(None, (plan.where, plan.copy_where)):
        conditions.append(sql.SQL("(" + where.replace("%", "%%") + ")"))
    if boundary is not None:
        names = _joined(_of("o", name) for name, _ in plan.order)
        values = _joined(sql.SQL("%s::text::" + kind.replace("%", "%%")) for _, kind in plan.order)
        conditions.append(sql.SQL("({}) > ({})").format(names, values))
    return sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("")
