"""Status of a reader from its log and its source, with or without an engine."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg

from transporter.change_source import SlotStatus, SourceStatus, TableStatus
from transporter.errors import TransporterError
from transporter_adaptors.postgres.session import translate_errors
from transporter_adaptors.postgres_cdc import server as servers
from transporter_adaptors.postgres_cdc import slot as slots
from transporter_adaptors.postgres_cdc.lsn import format_lsn, parse_lsn
from transporter_adaptors.postgres_cdc.operating import facts
from transporter_adaptors.postgres_cdc.plan import find_left_out, find_plan
from transporter_adaptors.postgres_cdc.session import COMMAND_PATIENCE, connect_queries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transporter.change_source import Phase
    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.operating.logged import LoggedState
    from transporter_adaptors.postgres_cdc.server import Server


def read_status(config: CdcConfig, logged: LoggedState) -> SourceStatus:
    """Return the status. Without the database it is that of the log, with the problem."""
    at = None if logged.position is None else logged.position.at
    text = None if at is None else format_lsn(at)
    try:
        with (
            closing(connect_queries(config.dsn, COMMAND_PATIENCE)) as queries,
            translate_errors("cannot look at the slot and the tables"),
        ):
            server = servers.read_server(queries)
            servers.check_server(server, queries.info.host)
            slot, end = _read_slot(queries, logged, server.version, at)
            tables = {} if logged.state is None else logged.state.tables
            rows = facts.estimate_rows(queries, tables)
            left_out = _find_left_out(queries, config, logged, server)
    except TransporterError as error:
        tables_status = table_statuses(config, logged, {})
        return SourceStatus(logged.publications, text, None, None, tables_status, str(error))
    problem, found = "", table_statuses(config, logged, rows)
    if slot is None and logged.position is not None:
        problem = f"slot {logged.slot} is gone; run 'transporter cdc check' for the remedy"
        found = [replace(each, phase="gap") for each in found]
    found += left_out
    return SourceStatus(logged.publications, text, end, slot, found, problem)


def _find_left_out(
    queries: Connection, config: CdcConfig, logged: LoggedState, server: Server
) -> list[TableStatus]:
    """Return a status for each new table that the reader leaves out."""
    if logged.state is None:
        return []
    plan = find_plan(queries, config, server)
    try:
        found = find_left_out(queries, config, logged.names, plan, logged.state)
    except psycopg.errors.LockNotAvailable:
        return []  # A migration has a table for itself.
    names = (plan.tables[oid][0].full_name for oid in found)
    return [TableStatus(str(name), "left out", 0) for name in names]


def _read_slot(
    queries: Connection, logged: LoggedState, version: int, at: int | None
) -> tuple[SlotStatus | None, str]:
    row = queries.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has a row
    end = str(row[0])
    found = slots.find_slot(queries, logged.slot, version) if logged.slot else None
    if found is None:
        return None, end
    lag = None if at is None else max(0, parse_lsn(end) - at)
    return (
        SlotStatus(
            found.name,
            found.is_active,
            found.status,
            found.reason,
            found.retained,
            found.safe,
            lag,
        ),
        end,
    )


def table_statuses(
    config: CdcConfig, logged: LoggedState, rows: Mapping[int, int | None]
) -> list[TableStatus]:
    """Return a status for each table of the log. *rows* are by number, where they are known."""
    state, position = logged.state, logged.position
    if state is None or position is None:
        return []
    copies = {copy.oid: copy for copy in position.copies}
    waiting = {*state.queue[position.begun :]} - copies.keys()
    found = []
    for oid, table in state.tables.items():
        estimated, copy, name = rows.get(oid), copies.get(oid), table.full_name
        item = config.item_of(name)
        has_copy = item is None or config.copies(item)
        if copy is not None:
            phase: Phase = "catching up" if copy.is_complete else "copying"
            found.append(TableStatus(str(name), phase, copy.run, copy.rows, estimated, has_copy))
        else:
            phase = "waiting" if oid in waiting else "in sync"
            found.append(TableStatus(str(name), phase, table.run, None, estimated, has_copy))
    return found
