"""Findings about the server: its limits, a replication session, the sizes of tables."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from transporter.adaptor import Finding
from transporter.errors import TransporterError
from transporter.units import format_size
from transporter_adaptors.postgres_cdc.operating import facts
from transporter_adaptors.postgres_cdc.server import check_position, check_same_server, identify
from transporter_adaptors.postgres_cdc.session import COMMAND_PATIENCE, connect_replication

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.table import TableName
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.operating.logged import LoggedState
    from transporter_adaptors.postgres_cdc.server import Server
    from transporter_adaptors.postgres_cdc.slot import Slot


def check_limits(
    queries: Connection, slot: Slot | None, *, has_failover: bool
) -> Iterator[Finding]:
    """Yield findings about what the server allows. *slot* is the reader's, if there is one."""
    found = facts.read_limits(queries)
    is_full = slot is None and found.used_slots >= found.slots
    yield Finding(
        f"replication slots: {found.used_slots} of {found.slots} are used"
        + ("; raise max_replication_slots, or drop one" if is_full else ""),
        "problem" if is_full else "fine",
    )
    is_full = not (slot and slot.is_active) and found.used_senders >= found.senders
    yield Finding(
        f"walsenders: {found.used_senders} of {found.senders} are used"
        + ("; raise max_wal_senders" if is_full else ""),
        "problem" if is_full else "fine",
    )
    yield Finding(
        "max_slot_wal_keep_size is unlimited: while the engine is away, the server's log grows "
        "until its disk is full"
        if found.kept_wal == "-1"
        else f"max_slot_wal_keep_size is {found.kept_wal}: a reader that is further behind "
        "loses its slot, and has to copy every table again"
    )
    if found.idle_timeout not in (None, "0"):
        yield Finding(
            f"idle_replication_slot_timeout is {found.idle_timeout}: an engine that is away "
            "for longer loses its slot, and has to copy every table again",
            "warning",
        )
    if has_failover and found.synchronized == "":
        yield Finding(
            "synchronized_standby_slots is empty: after a failover the log may hold "
            "transactions that the new primary does not have; name the standbys' slots there",
            "warning" if found.standbys else "fine",
        )


def describe_large_values(queries: Connection, names: Mapping[int, TableName]) -> Iterator[Finding]:
    """Yield a note about each of the tables *names*, by number, that may have large values."""
    toasted = facts.toasted_columns(queries, names)
    for oid, columns in toasted.items():
        yield Finding(
            f"{names[oid]}: a large value of {', '.join(columns)} that an update does "
            "not change is not in the entry, whose header pg-unchanged names the column; "
            "REPLICA IDENTITY FULL sends it"
        )


def describe_copy(queries: Connection, oids: Collection[int]) -> Finding:
    """Return a note about the size of the tables *oids*, which are to be copied."""
    rows = facts.estimate_rows(queries, oids).values()
    known = [each for each in rows if each is not None]
    text = f"to copy: {count(len(rows), 'table')}, {format_size(facts.total_size(queries, oids))}"
    if known:
        text += f", about {sum(known):,} rows"
    if unknown := len(rows) - len(known):
        text += f" ({count(unknown, 'table')} never analyzed, so the rows are unknown)"
    return Finding(text)


def count(number: int, noun: str) -> str:
    """Return *number* with its *noun*."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def check_replication(config: CdcConfig, logged: LoggedState, server: Server) -> Iterator[Finding]:
    """Check a replication session, and the server's history if the log follows one."""
    try:
        with closing(connect_replication(config.dsn, COMMAND_PATIENCE)) as replication:
            check_same_server(server, replication)
            found = identify(replication)
            yield Finding(
                f"a replication session: accepted; system id {found.system_id}, timeline "
                f"{found.timeline}"
            )
            if logged.position is not None:
                check_position(replication, logged.position, config)
    except TransporterError as error:
        yield Finding(str(error), "problem")
