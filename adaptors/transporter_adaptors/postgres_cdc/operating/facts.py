"""Facts about the database, sizes and limits, as the server's catalog has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg.rows import class_row

from transporter_adaptors.postgres_cdc.tables import IS_IDENTITY, PARTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transporter_adaptors.postgres.session import Connection

_DATABASE: Final = """
SELECT d.datname AS name, has_database_privilege(%(role)s, d.oid, 'CONNECT') AS may_connect,
       has_database_privilege(%(role)s, d.oid, 'CREATE') AS may_create
FROM pg_database d WHERE d.datname = current_database()
"""
_LIMITS: Final = """
SELECT current_setting('max_replication_slots')::int AS slots,
       (SELECT count(*) FROM pg_replication_slots)::int AS used_slots,
       current_setting('max_wal_senders')::int AS senders,
       (SELECT count(*) FROM pg_stat_replication)::int AS used_senders,
       current_setting('max_slot_wal_keep_size') AS kept_wal,
       current_setting('idle_replication_slot_timeout', true) AS idle_timeout,
       current_setting('synchronized_standby_slots', true) AS synchronized,
       (SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'physical')::int AS standbys
"""
# Of a partitioned table the leaves have the rows. Each is a table of the kind r.
_ROWS: Final = f"""
SELECT w.oid::bigint,
       CASE WHEN bool_and(c.reltuples >= 0) THEN sum(c.reltuples)::bigint END AS rows
{PARTS} WHERE c.relkind = 'r' GROUP BY w.oid
"""
_SIZE: Final = (
    f"SELECT coalesce(sum(pg_table_size(c.oid)), 0)::bigint {PARTS} WHERE c.relkind = 'r'"
)
# A table that cannot have a large row has no TOAST relation, and the key is always sent.
_TOASTED: Final = f"""
SELECT w.oid::bigint, array_agg(DISTINCT a.attname::text ORDER BY a.attname::text)
{PARTS} JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relkind = 'r' AND c.reltoastrelid <> 0 AND c.relreplident <> 'f'
  AND a.attnum > 0 AND NOT a.attisdropped AND a.attlen = -1 AND a.attstorage <> 'p'
  AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND {IS_IDENTITY}
                  AND a.attnum = ANY(i.indkey))
GROUP BY w.oid
"""  # noqa: S608 - of constants


@dataclass(frozen=True, slots=True)
class DatabaseRights:
    """A role's rights on the database."""

    name: str
    may_connect: bool
    may_create: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of the server. A setting that its version does not have is ``None``."""

    slots: int
    used_slots: int
    senders: int
    used_senders: int
    kept_wal: str
    idle_timeout: str | None
    synchronized: str | None
    standbys: int


def database_rights(connection: Connection, role: str) -> DatabaseRights:
    """Return the rights of *role* on the database of *connection*."""
    with connection.cursor(row_factory=class_row(DatabaseRights)) as cursor:
        (found,) = cursor.execute(_DATABASE, {"role": role}).fetchall()
    return found


def read_limits(connection: Connection) -> Limits:
    """Return the server's settings."""
    with connection.cursor(row_factory=class_row(Limits)) as cursor:
        (found,) = cursor.execute(_LIMITS).fetchall()
    return found


def estimate_rows(connection: Connection, oids: Iterable[int]) -> dict[int, int | None]:
    """Return the rows of those of the tables *oids* that exist, by number.

    They are those of the last ANALYZE, and ``None`` before it. No migration holds this up.
    """
    return dict(connection.execute(_ROWS, [[*oids]]).fetchall())


def total_size(connection: Connection, oids: Iterable[int]) -> int:
    """Return the bytes of the tables *oids* with their TOAST relations.

    This waits for a migration that has one of them for itself.
    """
    ((found,),) = connection.execute(_SIZE, [[*oids]]).fetchall()
    return int(found)


def toasted_columns(connection: Connection, oids: Iterable[int]) -> dict[int, list[str]]:
    """Return columns whose large values an UPDATE sends only if it changes them, by table."""
    return dict(connection.execute(_TOASTED, [[*oids]]).fetchall())
