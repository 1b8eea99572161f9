"""The SQL of the outbox reader, composed for one table.

Every statement that changes a row carries the *fence*: it reads its own term
number FOR SHARE. A new leader's bump waits for such a statement, and such a
statement waits for a bump; after the bump the number no longer matches, so the
statement does nothing and answers NULL for the term (Invariant 10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg import sql

from adaptors.postgres.packed import PACKED
from adaptors.postgres.rows import COLUMNS

if TYPE_CHECKING:
    from adaptors.postgres.session import Connection
    from adaptors.postgres.table import TableName

_FRAGMENTS: Final = {
    "fence": """fence AS MATERIALIZED (
    SELECT term FROM {terms} WHERE outbox = %(outbox)s AND term = %(term)s FOR SHARE
)""",
    # The size of a text is known without reading it; that of a large array is not.
    "size": """coalesce(octet_length(kafka_key), 0) + coalesce(octet_length(kafka_value), 0)
        + CASE WHEN pg_column_size(kafka_header_keys) < 512 THEN pg_column_size(kafka_header_keys)
          ELSE coalesce(octet_length(kafka_header_keys::text), 0) END
        + CASE WHEN pg_column_size(kafka_header_values) < 512
          THEN pg_column_size(kafka_header_values)
          ELSE coalesce(octet_length(kafka_header_values::text), 0) END""",
    "open": "leader_id IS DISTINCT FROM %(leader)s",
    "gaps": "unnest(%(firsts)s::bigint[], %(lasts)s::bigint[]) AS gap(first, last)",
    "term": """(SELECT term FROM {terms} WHERE outbox = %(outbox)s AND term = %(term)s)""",
    "found": """found AS MATERIALIZED (
    SELECT id, size FROM (
        (SELECT id, {size} AS size FROM {table}
         WHERE id >= %(low)s AND {open} ORDER BY id LIMIT %(rows)s)
        UNION ALL
        (SELECT late.id, late.size FROM {gaps} CROSS JOIN LATERAL (
            SELECT id, {size} AS size FROM {table}
            WHERE id BETWEEN gap.first AND gap.last AND {open} ORDER BY id LIMIT %(rows)s
         ) AS late)
    ) AS candidates ORDER BY id LIMIT %(rows)s
)""",
    # Adding up row by row is only worth its while when the bytes do not suffice for all.
    "bounded": """bounded AS MATERIALIZED (
    SELECT count(*) AS found, CASE WHEN sum(size) <= %(bytes)s THEN max(id) ELSE (
        SELECT max(id) FROM (
            SELECT id, sum(size) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) - size AS before
            FROM found
        ) AS sized WHERE before < %(bytes)s
    ) END AS last FROM found
)""",
    "about": """bounded.found,
    pg_snapshot_xmin(snapshot)::text::bigint, pg_snapshot_xmax(snapshot)::text::bigint""",
    "snapshot": "pg_current_snapshot() AS snapshot",
    "packed": PACKED,
}

# One statement, one snapshot. A mark lost in a crash of the server is a row to mark again,
# so the mark's commit need not wait for the disk; the purge's does.
_MARK: Final = """
WITH {fence}, {found}, {bounded},
marked AS (
    UPDATE {table} AS o SET leader_id = %(leader)s FROM found, bounded, fence
    WHERE o.id = found.id AND found.id <= bounded.last RETURNING {columns}
)
SELECT (SELECT term FROM fence), {about}, packed.*
FROM bounded, {snapshot}, set_config('synchronous_commit', 'off', true),
    (SELECT {packed} FROM marked) AS packed
"""

# Whatever stands from low to the last row found is copied: that is what _DELETE_RANGE relies on.
_COPY: Final = """
WITH {found}, {bounded},
copied AS (
    SELECT {columns} FROM {table} AS o
    WHERE o.id >= %(low)s AND o.id <= (SELECT last FROM bounded)
    UNION ALL
    SELECT {columns} FROM found CROSS JOIN bounded JOIN {table} AS o ON o.id = found.id
    WHERE found.id < %(low)s AND found.id <= bounded.last
)
SELECT {term}, {about}, packed.*
FROM bounded, {snapshot}, (SELECT {packed} FROM copied) AS packed
"""

# Only within the snapshot of _COPY. A plain DELETE: how many rows it hit tells whether it was
# exact, and costs nothing.
_DELETE_RANGE: Final = """
WITH {fence} DELETE FROM {table} AS o USING fence
WHERE o.id BETWEEN %(low)s AND %(last)s
"""
_DELETE_IDS: Final = """
WITH {fence} DELETE FROM {table} AS o USING fence WHERE o.id = ANY(%(ids)s::bigint[])
"""

# Plain reads: no lock, no transaction number, no WAL.
_PEEK: Final = """
SELECT EXISTS (SELECT FROM {table} WHERE id >= %(low)s AND {open})
    OR EXISTS (SELECT FROM {gaps} CROSS JOIN LATERAL (
        SELECT FROM {table} WHERE id BETWEEN gap.first AND gap.last AND {open} LIMIT 1
       ) AS late),
    {term},
    pg_snapshot_xmin(snapshot)::text::bigint, pg_snapshot_xmax(snapshot)::text::bigint
FROM {snapshot}
"""

# Never BETWEEN: a row that committed in the meantime would go with the others (Invariant 7).
_PURGE: Final = """
WITH {fence},
purged AS (
    DELETE FROM {table} AS o USING fence
    WHERE o.id = ANY(%(ids)s::bigint[]) AND o.leader_id IS NOT DISTINCT FROM %(marked_by)s::uuid
)
SELECT (SELECT term FROM fence)
"""

_READ: Final = "SELECT {columns}, o.leader_id FROM {table} AS o WHERE o.id = ANY(%(ids)s::bigint[])"

_HOLDER: Final = (
    "SELECT term, leader_id::text, acquired_at::text FROM {terms} WHERE outbox = %(outbox)s"
)


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of one outbox, with every name quoted, rendered once."""

    mark: bytes
    copy: bytes
    delete_range: bytes
    delete_ids: bytes
    peek: bytes
    purge: bytes
    read: bytes
    holder: bytes


def compose(table: TableName, terms: TableName, connection: Connection) -> Statements:
    """Return the statements for *table*, whose terms are numbered in *terms*."""
    names: dict[str, sql.Composable] = {
        "table": table.in_query,
        "terms": terms.in_query,
        "columns": sql.SQL(", ").join(sql.Identifier("o", name) for name in COLUMNS),
        **_lengths(connection),
    }
    for name, text in _FRAGMENTS.items():
        names[name] = sql.SQL(text).format(**names)
    templates = (_MARK, _COPY, _DELETE_RANGE, _DELETE_IDS, _PEEK, _PURGE, _READ, _HOLDER)
    rendered = (sql.SQL(text).format(**names).as_bytes(connection) for text in templates)
    return Statements(*rendered)


def _lengths(connection: Connection) -> dict[str, sql.Composable]:
    """Return how the bytes of a text are counted as they are sent, which is in UTF-8."""
    as_stored = connection.info.parameter_status("server_encoding") in ("UTF8", "SQL_ASCII")
    length = "octet_length({})" if as_stored else "octet_length(convert_to({}, 'UTF8'))"
    return {
        f"{name}_length": sql.SQL(length).format(sql.Identifier(f"kafka_{name}"))
        for name in ("topic", "key", "value")
    }
