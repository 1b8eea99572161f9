"""The replication slot, which keeps the server's log for its reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg import sql
from psycopg.rows import class_row

from transporter.errors import EnvironmentFault, SourceUnavailable
from transporter_adaptors.postgres_cdc.lsn import format_lsn, parse_lsn

if TYPE_CHECKING:
    from transporter_adaptors.postgres.session import Connection

_OPTIONS: Final = 150000
"""The first version whose commands have options in parentheses."""
FAILOVER: Final = 170000
"""The first version with slots that a standby can take over."""
_SLOT: Final = """
SELECT s.slot_name::text AS name, s.plugin::text AS plugin, s.database::text AS database,
       s.database IS NOT DISTINCT FROM current_database() AS is_ours,
       s.active AS is_active, s.active_pid AS pid,
       a.application_name AS application, a.client_addr::text AS client,
       s.confirmed_flush_lsn::text AS confirmed, s.wal_status AS status, s.safe_wal_size AS safe,
       pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint AS retained,
       pg_current_wal_lsn()::text AS end, age(s.catalog_xmin) AS catalog_age,
       t.spill_bytes::bigint AS spilled,
       {reason} AS reason
FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
LEFT JOIN pg_stat_replication_slots t ON t.slot_name = s.slot_name
WHERE s.slot_name = %s
"""
_ROOM: Final = """
SELECT current_setting('max_replication_slots')::int, count(*),
       coalesce(bool_or(slot_name = %s), false)
FROM pg_replication_slots
"""
_PREVENTIONS: Final = {
    "wal_removed": "raise max_slot_wal_keep_size",
    "idle_timeout": "raise idle_replication_slot_timeout, or let the engine run",
    "wal_level_insufficient": "keep wal_level at logical",
}
"""Remedies against a loss of the slot, by its reason."""
_REASONS: Final = (
    (FAILOVER, "s.invalidation_reason"),
    # It calls every invalid slot conflicting, and one whose log was removed has no LSN any more.
    (160000, "CASE WHEN s.conflicting AND s.restart_lsn IS NOT NULL THEN 'rows_removed' END"),
    (0, "NULL::text"),
)


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot at one moment. Sizes are in bytes."""

    name: str
    plugin: str | None
    database: str | None
    is_ours: bool
    """Whether it belongs to the database of the session that has looked."""
    is_active: bool
    pid: int | None
    application: str | None
    client: str | None
    confirmed: str | None
    status: str | None
    safe: int | None
    retained: int | None
    end: str
    """The end of the server's log."""
    catalog_age: int | None
    """Transactions since the oldest whose catalog it keeps from VACUUM."""
    spilled: int | None
    """Bytes of large transactions that the server has written to its disk, in total."""
    reason: str | None

    @property
    def confirmed_lsn(self) -> int:
        """The LSN up to which changes were confirmed."""
        return parse_lsn(self.confirmed or "0/0")


def find_slot(connection: Connection, name: str, version: int) -> Slot | None:
    """Return the slot *name* of a server of this *version*, if there is one."""
    reason = next(text for first, text in _REASONS if version >= first)
    query = sql.SQL(_SLOT).format(reason=sql.SQL(reason))
    with connection.cursor(row_factory=class_row(Slot)) as cursor:
        return cursor.execute(query, [name]).fetchone()


def create_statement(name: str, version: int, *, failover: bool) -> sql.Composed:
    """Return the command of the replication protocol that creates the slot *name*.

    It waits for transactions that are running and have changed something.
    """
    if version < _OPTIONS:
        options = sql.SQL("NOEXPORT_SNAPSHOT")
    elif failover and version >= FAILOVER:
        options = sql.SQL("(SNAPSHOT 'nothing', FAILOVER)")
    else:
        options = sql.SQL("(SNAPSHOT 'nothing')")
    command = sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput {}")
    return command.format(sql.Identifier(name), options)


def check_room(connection: Connection, name: str) -> None:
    """Check that the server has room for the slot *name*.

    Raises:
        EnvironmentFault: all slots are in use.

    """
    ((limit, used, is_there),) = connection.execute(_ROOM, [name]).fetchall()
    if used >= limit and not is_there:
        raise EnvironmentFault(
            f"there is no room for the slot {name}: all {limit} replication slots are in use; "
            "raise max_replication_slots, or drop one of them"
        )


def check_slot(slot: Slot | None, name: str, at: int | None, remedy: str) -> None:
    """Check that *slot*, called *name*, still has everything behind the LSN *at* of the log.

    *remedy* says how to begin again.

    Raises:
        EnvironmentFault: it is gone, invalid, not for us, or was moved by another client.
        SourceUnavailable: another session is reading from it.

    """
    if slot is None:
        since = format_lsn(at or 0)
        raise EnvironmentFault(
            f"slot {name} is gone; what was committed since {since} cannot be read: {remedy}"
        )
    check_kind(slot, name)
    if slot.status == "lost" or slot.reason is not None:
        reason = slot.reason or "wal_removed"
        prevention = f", then {_PREVENTIONS[reason]}" if reason in _PREVENTIONS else ""
        raise EnvironmentFault(
            f"slot {name} was invalidated ({reason}); what was committed since "
            f"{format_lsn(at or 0)} cannot be read: {remedy}{prevention}"
        )
    if slot.is_active:
        raise SourceUnavailable(
            f"slot {name} is active for PID {slot.pid} ({slot.application or 'unknown'} from "
            f"{slot.client or 'this host'}): is another engine running? Trying again may help"
        )
    if at is not None and slot.confirmed_lsn > at:
        raise EnvironmentFault(
            f"slot {name} stands at {slot.confirmed}, beyond the log's {format_lsn(at)}: another "
            f"client has read from it, and rows between may be missing: {remedy}"
        )


def check_kind(slot: Slot, name: str) -> None:
    """Check that *slot*, called *name*, can be one of this reader's.

    Raises:
        EnvironmentFault: it is another's.

    """
    if slot.plugin is None:
        raise EnvironmentFault(
            f"slot {name} is a physical one, as a standby uses it; choose another name by slot"
        )
    if not slot.is_ours:
        raise EnvironmentFault(
            f"slot {name} belongs to the database {slot.database}, and has no changes of another "
            "one; choose another name by slot"
        )
    if slot.plugin != "pgoutput":
        raise EnvironmentFault(
            f"slot {name} uses the plugin {slot.plugin}, not pgoutput; choose another name by slot"
        )
