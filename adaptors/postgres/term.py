"""Terms: which engine may mark and purge rows, numbered by the database that holds them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from psycopg import errors, sql

from adaptors.postgres.session import faults
from adaptors.postgres.table import TableName, term_ddl
from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from adaptors.postgres.session import Connection


@dataclass(frozen=True, slots=True)
class Term:
    """The time during which *leader* may mark and purge the rows of *outbox*.

    *number* grows with every acquisition; statements of an older number have
    no effect (Invariant 10). *terms* is the table that holds the numbers.
    """

    outbox: str
    terms: TableName
    number: int
    leader: UUID


def acquire(connection: Connection, table: TableName) -> Term:
    """Begin a new term for *table* (its full name), ending every earlier one.

    Creates ``transporter_term`` beside the table when it is missing; safe
    against others who do the same. Waits for a statement of the former
    leader as long as the session's ``lock_timeout`` allows, then raises
    ``SourceUnavailable``.
    """
    terms = table.sibling("transporter_term")
    doing = (
        f"cannot begin a term for the outbox {table}, which needs a table {terms} and "
        "SELECT, INSERT and UPDATE on it"
    )
    with faults(doing):
        if not _value(connection, "SELECT to_regclass(%s) IS NOT NULL", str(terms)):
            _create(connection, terms)
        return _bump(connection, table, terms)


def _create(connection: Connection, terms: TableName) -> None:
    ddl = term_ddl(terms)
    schema = terms.schema
    if not _value(connection, "SELECT has_schema_privilege(%s, 'CREATE')", schema):
        raise EnvironmentFault(
            f"may not create {terms}, which numbers the terms of the outbox's readers; "
            f"let someone with CREATE on schema {schema} run\n{ddl}"
            f"and grant the reader's role SELECT, INSERT, UPDATE on it"
        )
    # IF NOT EXISTS would fail in the same way when two engines create it at the same time.
    with suppress(errors.DuplicateTable, errors.UniqueViolation):
        connection.execute(sql.SQL(ddl))


def _value(connection: Connection, query: str, argument: str | None) -> object:
    row = connection.execute(query, [argument]).fetchone()
    return row[0] if row else None


def _bump(connection: Connection, table: TableName, terms: TableName) -> Term:
    leader = uuid4()
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
