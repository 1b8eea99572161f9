"""Database session of the outbox's tools, and translation of the driver's errors."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo

from transporter.errors import (
    ConfigError,
    EnvironmentFault,
    SourceError,
    SourceUnavailable,
    TransporterError,
)
from transporter.outbox.table import quote_table
from transporter.postgres_dsn import is_refused, parse_dsn

if TYPE_CHECKING:
    from collections.abc import Iterator

Connection = psycopg.Connection[Any]

_OPTIONS: Final = {"application_name": "transporter outbox", "connect_timeout": "10"}
# A tool must not wait in a lock queue ahead of the application for long.
_LOCK_TIMEOUT: Final = "10s"
_SETUP: Final = (
    pg.InsufficientPrivilege,
    pg.UndefinedTable,
    pg.UndefinedColumn,
    pg.InvalidSchemaName,
)
_FIND: Final = """
SELECT c.oid::bigint, n.nspname::text, format('%%I.%%I', n.nspname, c.relname)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = pg_catalog.to_regclass(%s)
"""


class OutboxTable(NamedTuple):
    """An existing table: its oid, its schema's name and its full name in SQL."""

    oid: int
    schema: str
    name: str


@contextmanager
def connect(dsn: str) -> Iterator[Connection]:
    """Yield a session in autocommit mode for the duration of the block.

    Raises:
        ConfigError: If *dsn* is not a connection string.
        SourceUnavailable: If the connection fails. Neither error quotes *dsn*
            (Invariant 20).
    """
    conninfo = make_conninfo(**{**_OPTIONS, **_parse_dsn(dsn), "client_encoding": "UTF8"})
    with translate_errors("cannot connect to the outbox's database"):
        connection: Connection = psycopg.connect(conninfo, autocommit=True)
    with connection:
        with translate_errors("cannot prepare a session for the outbox"):
            connection.execute("SELECT set_config('lock_timeout', %s, false)", [_LOCK_TIMEOUT])
        yield connection


def _parse_dsn(dsn: str) -> dict[str, Any]:
    try:
        return parse_dsn(dsn)
    except ValueError as error:
        raise ConfigError(f"this {error}") from None


@contextmanager
def translate_errors(action: str) -> Iterator[None]:
    """Translate the driver's errors inside the block. *action* is the start of their message."""
    try:
        yield
    except psycopg.Error as error:
        raise _translate_error(error, action) from error


def _translate_error(error: psycopg.Error, action: str) -> TransporterError:
    # Only the server's primary message, because details may contain row contents.
    # libpq's own messages have several lines.
    text = " ".join((error.diag.message_primary or str(error)).split())
    if isinstance(error, _SETUP):
        return EnvironmentFault(f"{action}: {text}")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        advice = "check the dsn" if is_refused(text) else "a retry may help"
        return SourceUnavailable(f"{action}: {text}; {advice}")
    return SourceError(f"{action}: {text}")


def find_table(connection: Connection, table: str) -> OutboxTable | None:
    """Return the table that *table* resolves to in the session, or ``None``."""
    with translate_errors(f"cannot look up the table {table}"):
        row = connection.execute(_FIND, [quote_table(table)]).fetchone()
    return OutboxTable(*row) if row else None


def require_table(connection: Connection, table: str) -> OutboxTable:
    """Return the table that *table* resolves to, or raise ``EnvironmentFault`` if there is none."""
    there = find_table(connection, table)
    if there is None:
        raise EnvironmentFault(
            f"there is no outbox table {table} in database {connection.info.dbname}; "
            "'transporter outbox init --run' creates it"
        )
    return there
