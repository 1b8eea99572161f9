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
    "snapshot": """pg_snapshot_xmin(snapshot)::text::bigint AS xmin,
    pg_snapshot_xmax(snapshot)::text::bigint AS xmax""",
}

# One statement, one snapshot. A mark lost in a crash of the server is a row to mark again,
# so the mark's commit need not wait for the disk; the purge's does.
_MARK: Final = """
WITH {fence},
found AS MATERIALIZED (
    SELECT id, size FROM (
        (SELECT id, {size} AS size FROM {table}
         WHERE id >= %(low)s AND {open} ORDER BY id LIMIT %(rows)s)
        UNION ALL
        (SELECT late.id, late.size FROM {gaps} CROSS JOIN LATERAL (
            SELECT id, {size} AS size FROM {table}
            WHERE id BETWEEN gap.first AND gap.last AND {open} ORDER BY id LIMIT %(rows)s
         ) AS late)
    ) AS candidates ORDER BY id LIMIT %(rows)s
),
picked AS (
    SELECT id FROM (
        SELECT id, sum(size) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) - size AS before
        FROM found
    ) AS sized WHERE before < %(bytes)s
),
marked AS (
    UPDATE {table} AS o SET leader_id = %(leader)s FROM picked, fence
    WHERE o.id = picked.id RETURNING {columns}
),
meta AS MATERIALIZED (
    SELECT (SELECT term FROM fence) AS term, (SELECT count(*) FROM found) AS found, {snapshot},
           set_config('synchronous_commit', 'off', true)
    FROM pg_current_snapshot() AS snapshot
)
SELECT marked.*, meta.term, meta.found, meta.xmin, meta.xmax FROM meta LEFT JOIN marked ON true
"""

# Plain reads: no lock, no transaction number, no WAL.
_PEEK: Final = """
SELECT EXISTS (SELECT FROM {table} WHERE id >= %(low)s AND {open})
    OR EXISTS (SELECT FROM {gaps} CROSS JOIN LATERAL (
        SELECT FROM {table} WHERE id BETWEEN gap.first AND gap.last AND {open} LIMIT 1
       ) AS late),
    (SELECT term FROM {terms} WHERE outbox = %(outbox)s AND term = %(term)s),
    {snapshot}
FROM pg_current_snapshot() AS snapshot
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
    peek: bytes
    purge: bytes
    read: bytes
    holder: bytes


def compose(table: TableName, terms: TableName, connection: Connection) -> Statements:
    """Return the statements for *table*, whose terms are numbered in *terms*."""
    names: dict[str, sql.Composable] = {
        "table": table.identifier,
        "terms": terms.identifier,
        "columns": sql.SQL(", ").join(sql.Identifier("o", name) for name in COLUMNS),
    }
    for name, text in _FRAGMENTS.items():
        names[name] = sql.SQL(text).format(**names)
    templates = (_MARK, _PEEK, _PURGE, _READ, _HOLDER)
    rendered = (sql.SQL(text).format(**names).as_bytes(connection) for text in templates)
    return Statements(*rendered)
