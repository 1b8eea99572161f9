"""Terms of leaders, which may mark and purge rows, numbered by the rows' own database."""

from __future__ import annotations

import math
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

import psycopg
from psycopg import sql

from transporter.errors import EnvironmentFault, TransporterError
from transporter_adaptors.postgres.leaders import lineage_of, new_leader
from transporter_adaptors.postgres.session import (
    CREATED_MEANWHILE,
    backend_pid,
    connect,
    translate_errors,
)
from transporter_adaptors.postgres.table import TableName, term_ddl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import SecretStr

    from transporter_adaptors.postgres.session import Connection

_LEADER: Final = sql.SQL("SELECT leader_id FROM {terms} WHERE outbox = %s")
_LEADER_LOCKED: Final = sql.SQL("SELECT leader_id FROM {terms} WHERE outbox = %s FOR UPDATE")
_PATIENTLY: Final = (
    "SELECT pg_catalog.set_config('lock_timeout', %s, true),"
    " pg_catalog.set_config('statement_timeout', '0', true)"
)
_END_BLOCKERS: Final = (
    "SELECT pg_catalog.pg_terminate_backend(pid)"
    " FROM pg_catalog.unnest(pg_catalog.pg_blocking_pids(%s)) AS pid"
)


@dataclass(frozen=True, slots=True)
class Term:
    """The time during which *leader* may mark and purge the rows of *outbox*.

    *number* grows with every acquisition. Statements of an older number have
    no effect (Invariant 10). *terms* is the table that holds the numbers.
    """

    outbox: str
    terms: TableName
    number: int
    leader: UUID
    continues: bool = False
    """Whether no other leader has led since the one whose lineage was to be continued."""


def current_leader(connection: Connection, table: TableName) -> UUID | None:
    """Return the leader of the newest term for *table* (its full name), if there was a term."""
    terms = table.sibling("transporter_term")
    with translate_errors(f"cannot look up the leader of the outbox {table}"):
        if not _fetch_value(connection, "SELECT to_regclass(%s) IS NOT NULL", str(terms)):
            return None
        return _fetch_leader(connection, _LEADER, table, terms)


def begin_term(
    connection: Connection,
    table: TableName,
    dsn: SecretStr,
    length: float | None = None,
    log_id: str = "",
    lineage: str = "",
) -> Term:
    """Begin a new term for *table* (its full name), ending every earlier one.

    Creates ``transporter_term`` beside the table when it is missing, which is safe
    when others do the same. Waits for a statement of the former leader for *length*, or as
    long as the session's ``lock_timeout`` allows. A session that blocks it for half of *length*
    is terminated, because a leader that was stopped inside of a statement would block for ever.

    Args:
        connection: A session in autocommit mode.
        table: The full name of the outbox.
        dsn: The database, for a second session that terminates blockers.
        length: The length of a term in seconds, or ``None`` without an election.
        log_id: The log into which rows are read.
        lineage: That of the last logged batch, if any. The term continues it unless another
            leader has led since.

    Returns:
        The new term.

    Raises:
        SourceUnavailable: The wait for a former leader's statement timed out.
        EnvironmentFault: The term table is missing and the role may not create it.
    """
    terms = table.sibling("transporter_term")
    operation = (
        f"cannot begin a term for the outbox {table}, which needs a table {terms} and "
        "SELECT, INSERT and UPDATE on it"
    )
    with translate_errors(operation):
        if not _fetch_value(connection, "SELECT to_regclass(%s) IS NOT NULL", str(terms)):
            _create_terms(connection, terms)
        with _end_blockers_later(connection, dsn, length):
            return _begin_locked(connection, table, terms, (log_id, lineage), length)


@contextmanager
def _end_blockers_later(
    connection: Connection, dsn: SecretStr, length: float | None
) -> Iterator[None]:
    if length is None:
        yield
        return
    process = backend_pid(connection)
    turn = threading.Lock()
    timer = threading.Timer(length / 2, _end_blockers, [process, dsn, length, turn])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # Never released: a timer that is late must not end who blocks a later statement.
        turn.acquire()


def _end_blockers(process: int, dsn: SecretStr, length: float, turn: threading.Lock) -> None:
    # Where that is not allowed, the wait ends by lock_timeout, and begins again.
    with suppress(TransporterError, psycopg.Error), connect(dsn, length, is_checked=True) as other:
        if turn.acquire(blocking=False):
            try:
                other.execute(_END_BLOCKERS, [process])
            finally:
                turn.release()


def _create_terms(connection: Connection, terms: TableName) -> None:
    ddl = term_ddl(terms)
    schema = terms.schema
    if not _fetch_value(connection, "SELECT has_schema_privilege(%s, 'CREATE')", schema):
        raise EnvironmentFault(
            f"may not create {terms}, which numbers the terms of the outbox's readers; "
            f"have a role with CREATE on schema {schema} run\n{ddl}"
            f"and grant the reader's role SELECT, INSERT, UPDATE on it"
        )
    with suppress(*CREATED_MEANWHILE):
        connection.execute(sql.SQL(ddl))


def _fetch_value(connection: Connection, query: str, argument: str | None) -> object:
    row = connection.execute(query, [argument]).fetchone()
    return row[0] if row else None


def _begin_locked(
    connection: Connection,
    table: TableName,
    terms: TableName,
    ours: tuple[str, str],
    length: float | None,
) -> Term:
    log_id, lineage = ours
    # The last leader is read under the lock of the new number, so no term comes in between.
    with connection.transaction():
        if length is not None:
            # A session that blocks it is terminated after half of it, see above.
            connection.execute(_PATIENTLY, [f"{math.ceil(length * 1000)}ms"])
        last = _fetch_leader(connection, _LEADER_LOCKED, table, terms)
        continues = last is not None and bool(lineage) and lineage_of(last) == lineage
        leader = new_leader(log_id, lineage if continues else "")
        return replace(_insert_term(connection, table, terms, leader), continues=continues)


def _fetch_leader(
    connection: Connection, query: sql.SQL, table: TableName, terms: TableName
) -> UUID | None:
    statement = query.format(terms=terms.in_query)
    row = connection.execute(statement, [str(table)]).fetchone()
    return None if row is None else UUID(str(row[0]))


def _insert_term(connection: Connection, table: TableName, terms: TableName, leader: UUID) -> Term:
    statement = sql.SQL(
        "INSERT INTO {terms} AS t (outbox, term, leader_id, acquired_at)"
        " VALUES (%s, 1, %s, clock_timestamp())"
        " ON CONFLICT (outbox) DO UPDATE SET term = t.term + 1,"
        " leader_id = excluded.leader_id, acquired_at = excluded.acquired_at"
        " RETURNING term"
    ).format(terms=terms.in_query)
    row = connection.execute(statement, [str(table), leader]).fetchone()
    assert row is not None  # noqa: S101 - an upsert that RETURNs always has a row
    return Term(str(table), terms, int(row[0]), leader)
