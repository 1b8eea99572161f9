"""The SQL of the outbox reader, composed for one table.

Every statement that changes a row carries the *fence*: it reads its own term
FOR SHARE. It compares number and leader, because in a restored database a number
comes again. A new leader's bump waits for such a statement, and such a statement
waits for a bump. After the bump the number no longer matches, so the statement
does nothing and returns NULL for the term (Invariant 10).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from psycopg import sql

from transporter_adaptors.postgres.gaps import HIGHEST
from transporter_adaptors.postgres.packed import PACKED
from transporter_adaptors.postgres.rows import CARRIED, LARGEST
from transporter_adaptors.postgres.table import escape_percent

if TYPE_CHECKING:
    from transporter_adaptors.postgres.columns import OutboxColumns
    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.table import TableName

_SLACK: Final = 1024**2
"""Largest difference between {size} and a row's size in the log, for texts stored in UTF-8."""
_GROWTH: Final = 3
"""Growth of texts in another encoding when converted to UTF-8, as a factor."""
# {id}, {topic}, ... are columns of o, the table. found, marked and copied use the usual names.
_FRAGMENTS: Final = {
    "fence": """fence AS MATERIALIZED (
    SELECT term FROM {terms}
    WHERE outbox = %(outbox)s AND term = %(term)s AND leader_id = %(leader)s FOR SHARE
)""",
    "columns": """{id}::bigint AS id, {created} AS created, {topic} AS topic, {key} AS key,
    {value} AS value, {header_keys} AS header_keys, {header_values} AS header_values""",
    # The size of a text is available without reading it. That of an array is not, and is not
    # worth the cost for small ones. Each element counts with its overhead in the log.
    "keys_size": """CASE WHEN pg_column_size({header_keys}) > {largest}
          THEN pg_column_size({header_keys})::bigint
          ELSE (SELECT coalesce(sum(octet_length(text)), 0)::bigint + 8 * count(*)
                FROM unnest({header_keys}) AS text) END""",
    "values_size": """CASE WHEN pg_column_size({header_values}) > {largest}
          THEN pg_column_size({header_values})::bigint
          ELSE (SELECT coalesce(sum(octet_length(text)), 0)::bigint + 8 * count(*)
                FROM unnest({header_values}) AS text) END""",
    "size": """coalesce(octet_length({topic}), 0) + coalesce(octet_length({key}), 0)
        + coalesce(octet_length({value}), 0)::bigint
        + CASE WHEN pg_column_size({header_keys}) < 512 THEN pg_column_size({header_keys})
          ELSE coalesce({keys_size}, 0) END
        + CASE WHEN pg_column_size({header_values}) < 512 THEN pg_column_size({header_values})
          ELSE coalesce({values_size}, 0) END""",
    # Upper bound of a row's size in the log. Rows that cannot be logged are not read.
    "exact": """coalesce({topic_bytes}, 0) + coalesce({key_bytes}, 0) + coalesce({value_bytes}, 0)
        + coalesce({growth} * {keys_size}, 0) + coalesce({growth} * {values_size}, 0)""",
    "open": "{leader} IS DISTINCT FROM %(leader)s AND {id} <> ALL(%(kept)s::bigint[])",
    # A gap is read only if a transaction that it waits for has ended in the snapshot of this
    # same statement, so rows that a later row may follow are never overtaken (Invariant 8).
    "gaps": """(
        SELECT * FROM unnest(%(firsts)s::bigint[], %(lasts)s::bigint[], %(untils)s::bigint[])
            AS listed(first, last, until)
        WHERE until >= (
            SELECT coalesce(min(number), {highest}) FROM unnest(%(waited)s::bigint[]) AS number
            WHERE pg_visible_in_snapshot(number::text::xid8, pg_current_snapshot())
        )
    ) AS gap""",
    "term": """(SELECT term FROM {terms}
        WHERE outbox = %(outbox)s AND term = %(term)s AND leader_id = %(leader)s)""",
    # Of a large row only the columns for its message are read.
    "found": """found AS MATERIALIZED (
    SELECT id, large, CASE WHEN large THEN {carried} ELSE size::int END AS size FROM (
        SELECT id, size, CASE
            WHEN size * {growth} <= {surely} THEN false
            WHEN size > {hardly} THEN true
            ELSE (SELECT {exact} > {largest} FROM {table} AS o WHERE {id} = candidates.id)
        END AS large FROM (
            (SELECT {id}::bigint AS id, {size} AS size FROM {table} AS o
             WHERE {id} >= %(low)s AND {open} ORDER BY {id} LIMIT %(rows)s)
            UNION ALL
            (SELECT late.id, late.size FROM {gaps} CROSS JOIN LATERAL (
                SELECT {id}::bigint AS id, {size} AS size FROM {table} AS o
                WHERE {id} BETWEEN gap.first AND gap.last AND {open} ORDER BY {id} LIMIT %(rows)s
             ) AS late)
        ) AS candidates ORDER BY id LIMIT %(rows)s
    ) AS judged
)""",
    # A running sum is only worth its cost when the bytes do not suffice for all rows.
    "bounded": """bounded AS MATERIALIZED (
    SELECT count(*) AS found, CASE WHEN sum(size) <= %(bytes)s THEN max(id) ELSE (
        SELECT max(id) FROM (
            SELECT id, sum(size) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) - size AS before
            FROM found
        ) AS sized WHERE before < %(bytes)s
    ) END AS last FROM found
),
large AS MATERIALIZED (
    SELECT coalesce(array_agg(found.id), ARRAY[]::bigint[]) AS ids FROM found CROSS JOIN bounded
    WHERE found.large AND found.id <= bounded.last
)""",
    # Our own number is assigned after the snapshot was taken, so it is above all numbers in
    # flight in it. The snapshot's own xmax is not: numbers from there on may be in use.
    "about": """bounded.found, pg_current_snapshot()::text, pg_current_xact_id()::text::bigint,
    large.ids""",
    "packed": PACKED,
}

# One statement, one snapshot. A mark that is lost in a crash of the server only has to be set
# again, so the mark's commit need not wait for the disk. The purge's does.
_MARK: Final = """
WITH {fence}, {found}, {bounded},
marked AS (
    UPDATE {table} AS o SET {leader_name} = %(leader)s FROM found, bounded, fence
    WHERE {id} = found.id AND found.id <= bounded.last RETURNING {columns}
)
SELECT (SELECT term FROM fence), {about}, packed.*
FROM bounded, large, set_config('synchronous_commit', 'off', true),
    (SELECT {packed} FROM marked, large WHERE id <> ALL(large.ids)) AS packed
"""

# All rows from low to the last row found are copied, except for large and kept ones.
# _DELETE_RANGE relies on this.
_COPY: Final = """
WITH {found}, {bounded},
copied AS (
    SELECT {columns} FROM {table} AS o
    WHERE {id} >= %(low)s AND {id} <= (SELECT last FROM bounded)
        AND {id} <> ALL(%(kept)s::bigint[])
    UNION ALL
    SELECT {columns} FROM found CROSS JOIN bounded JOIN {table} AS o ON {id} = found.id
    WHERE found.id < %(low)s AND found.id <= bounded.last
)
SELECT {term}, {about}, packed.*
FROM bounded, large,
    (SELECT {packed} FROM copied, large WHERE id <> ALL(large.ids)) AS packed
"""

# Only within the snapshot of _COPY. A plain DELETE: its row count shows whether it was exact,
# at no extra cost.
_DELETE_RANGE: Final = """
WITH {fence} DELETE FROM {table} AS o USING fence
WHERE {id} BETWEEN %(low)s AND %(last)s AND {id} <> ALL(%(kept)s::bigint[])
"""
_DELETE_IDS: Final = """
WITH {fence} DELETE FROM {table} AS o USING fence WHERE {id} = ANY(%(ids)s::bigint[])
"""

# Plain reads: no lock, no transaction number, no WAL.
_PEEK: Final = """
SELECT EXISTS (SELECT FROM {table} AS o WHERE {id} >= %(low)s AND {open})
    OR EXISTS (SELECT FROM {gaps} CROSS JOIN LATERAL (
        SELECT FROM {table} AS o WHERE {id} BETWEEN gap.first AND gap.last AND {open} LIMIT 1
       ) AS late),
    {term}, pg_current_snapshot()::text
"""

# Never BETWEEN: a row that committed in the meantime would be deleted as well (Invariant 7).
_PURGE: Final = """
WITH {fence},
purged AS (
    DELETE FROM {table} AS o USING fence
    WHERE {id} = ANY(%(ids)s::bigint[]) AND {leader} IS NOT DISTINCT FROM %(marked_by)s::uuid
)
SELECT (SELECT term FROM fence)
"""

# Rows that an earlier leader has marked: they are in the log, so they are not read again.
_ADOPT: Final = """
WITH {fence},
adopted AS (
    UPDATE {table} AS o SET {leader_name} = %(leader)s FROM fence
    WHERE {id} = ANY(%(ids)s::bigint[]) AND {leader} IS NOT DISTINCT FROM %(marked_by)s::uuid
)
SELECT (SELECT term FROM fence)
"""

_READ: Final = """
SELECT {columns}, {leader} FROM {table} AS o WHERE {id} = ANY(%(ids)s::bigint[])
    AND CASE
        WHEN ({size}) * {growth} <= {surely} THEN true
        WHEN {size} > {hardly} THEN false
        ELSE {exact} <= {largest}
    END
"""
_LARGE: Final = """
SELECT {id}::bigint, {created},
    CASE WHEN octet_length({topic}) <= {carried} THEN {topic} END,
    CASE WHEN octet_length({key}) <= {carried} THEN {key} END,
    coalesce(octet_length({topic}), 0), coalesce(octet_length({key}), 0),
    coalesce(octet_length({value}), 0),
    coalesce({keys_size}, 0), coalesce({values_size}, 0)
FROM {table} AS o WHERE {id} = ANY(%(ids)s::bigint[])
"""

_HOLDER: Final = (
    "SELECT term, leader_id::text, acquired_at::text FROM {terms} WHERE outbox = %(outbox)s"
)


_ARGUMENT: Final = re.compile(rb"%%|%\((\w+)\)s")


class Statement(NamedTuple):
    """SQL with numbered arguments, and the name of each: the driver parses nothing per call."""

    text: bytes
    arguments: tuple[str, ...]

    @classmethod
    def parse(cls, text: bytes) -> Statement:
        """Return *text*, whose arguments have names and whose percent signs are doubled."""
        numbers: dict[bytes, int] = {}

        def number(found: re.Match[bytes]) -> bytes:
            name = found[1]
            return b"%" if name is None else b"$%d" % numbers.setdefault(name, len(numbers) + 1)

        return cls(_ARGUMENT.sub(number, text), tuple(name.decode() for name in numbers))


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of one outbox, with every name quoted, rendered once."""

    mark: Statement
    copy: Statement
    delete_range: Statement
    delete_ids: Statement
    peek: Statement
    purge: Statement
    adopt: Statement
    read: Statement
    large: Statement
    holder: Statement


def compose_statements(
    table: TableName, columns: OutboxColumns, terms: TableName, connection: Connection
) -> Statements:
    """Return the statements for *table* with *columns*, whose terms are numbered in *terms*."""
    found = columns.in_query("o")
    names: dict[str, sql.Composable] = {
        **found,
        **_length_expressions(found, connection, binary=columns.content_type is None),
        "table": table.in_query,
        "terms": terms.in_query,
        "leader_name": escape_percent(sql.Identifier(columns.leader)),
        "highest": sql.Literal(HIGHEST),
        "largest": sql.Literal(LARGEST),
        "surely": sql.Literal(LARGEST - _SLACK),
        "hardly": sql.Literal(LARGEST + _SLACK),
        "carried": sql.Literal(CARRIED),
    }
    for name, text in _FRAGMENTS.items():
        names[name] = sql.SQL(text).format(**names)
    templates = {
        "mark": _MARK,
        "copy": _COPY,
        "delete_range": _DELETE_RANGE,
        "delete_ids": _DELETE_IDS,
        "peek": _PEEK,
        "purge": _PURGE,
        "adopt": _ADOPT,
        "read": _READ,
        "large": _LARGE,
        "holder": _HOLDER,
    }
    rendered = {
        name: Statement.parse(sql.SQL(text).format(**names).as_bytes(connection))
        for name, text in templates.items()
    }
    return Statements(**rendered)


def _length_expressions(
    columns: dict[str, sql.Composable], connection: Connection, *, binary: bool
) -> dict[str, sql.Composable]:
    """Return expressions for the bytes of a text as it is sent, which is in UTF-8.

    ``{topic_length}`` counts the text that was read, ``{topic_bytes}`` the one in the table. The
    latter skips the conversion to UTF-8 for a text that is too large anyway.
    """
    as_stored = connection.info.parameter_status("server_encoding") in ("UTF8", "SQL_ASCII")
    sent = "octet_length({text})" if as_stored else "octet_length(convert_to({text}, 'UTF8'))"
    stored = "octet_length({text})::bigint"
    if not as_stored:
        stored = f"CASE WHEN octet_length({{text}}) > {LARGEST} THEN {stored} ELSE {sent} END"
    texts = ("topic", "key", "value")
    lengths = {f"{name}_length": (sent, sql.Identifier(name)) for name in texts}
    stored_bytes = {f"{name}_bytes": (stored, columns[name]) for name in texts}
    if binary:
        plain = "octet_length({text})"
        lengths["value_length"] = (plain, sql.Identifier("value"))
        stored_bytes["value_bytes"] = (plain + "::bigint", columns["value"])
    return {
        "growth": sql.Literal(1 if as_stored else _GROWTH),
        **{
            name: sql.SQL(count).format(text=text)
            for name, (count, text) in (lengths | stored_bytes).items()
        },
    }
