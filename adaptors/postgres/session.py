"""A connection to PostgreSQL as the outbox reader wants it, and its errors in our words."""

from __future__ import annotations

import selectors
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader

from transporter.errors import EnvironmentFault, SourceError, SourceUnavailable, TransporterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import SecretStr

Connection = psycopg.Connection[Any]

# Seconds, except the last one (milliseconds): a vanished server is noticed within half a minute.
_CONNECT: Final = {
    "application_name": "transporter",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
# A lock that someone else holds on the rows or the term is waited for, but never for ever.
# A transaction of ours that its owner cannot end (a full log, a stopped process) keeps neither
# locks nor dead rows for longer than a minute.
# An outbox is always entered through its primary key. Its statistics are taken while it is
# nearly empty, and then lead the planner to read and sort a whole backlog for each batch.
_SETTINGS: Final = {
    "default_transaction_isolation": "read committed",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
_TRANSIENT: Final = (
    psycopg.OperationalError,  # connection lost, server stopping, out of room, lock timeout
    psycopg.InterfaceError,  # the connection is already closed
    pg.ReadOnlySqlTransaction,  # a standby that may be promoted
    pg.SerializationFailure,
    pg.IdleInTransactionSessionTimeout,
    pg.TransactionTimeout,
    pg.FeatureNotSupported,  # "cached plan must not change result type", after ALTER TABLE
)
_SETUP: Final = (
    pg.InsufficientPrivilege,
    pg.UndefinedTable,
    pg.UndefinedColumn,
    pg.InvalidSchemaName,
)


def connect(dsn: SecretStr) -> Connection:
    """Open a session in autocommit mode.

    Text columns come as bytes and times as microseconds since 2000, in binary
    cursors. Raise ``SourceUnavailable`` when no connection comes about.
    """
    given: dict[str, Any] = conninfo_to_dict(dsn.get_secret_value())
    conninfo = make_conninfo(**{**_CONNECT, **given, "client_encoding": "UTF8"})
    with faults("cannot connect to the outbox's database"):
        connection: Connection = psycopg.connect(conninfo, autocommit=True)
    try:
        with faults("cannot prepare the session of the outbox reader"):
            _prepare(connection)
    except TransporterError:
        connection.close()
        raise
    return connection


def _prepare(connection: Connection) -> None:
    for name, value in _SETTINGS.items():
        connection.execute("SELECT pg_catalog.set_config(%s, %s, false)", [name, value])
    for text in ("text", "varchar"):
        connection.adapters.register_loader(text, ByteaBinaryLoader)
    connection.adapters.register_loader("timestamptz", Int8BinaryLoader)


@contextmanager
def faults(doing: str) -> Iterator[None]:
    """Translate the driver's errors inside the block; *doing* says what went wrong where."""
    try:
        yield
    except psycopg.Error as error:
        raise translated(error, doing) from error


def translated(error: psycopg.Error, doing: str) -> TransporterError:
    """Return *error* as one of ours.

    Only the server's primary message is quoted: details may hold row contents.
    """
    text = (error.diag.message_primary or str(error)).strip()
    if isinstance(error, _SETUP):
        return EnvironmentFault(f"{doing}: {text}")
    if isinstance(error, _TRANSIENT):
        return SourceUnavailable(f"{doing}: {text}; trying again may help")
    return SourceError(f"{doing}: {text}")


def wait_for_notify(connection: Connection, seconds: float) -> bool:
    """Block until a notification is there, at most *seconds*; tell whether one is.

    Takes all that are there. Those that arrive during a statement go to the
    connection's notify handler instead.
    """
    with faults("lost the connection to the outbox's database"):
        if _drained(connection):
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            if not selector.select(seconds):
                return False
        connection.pgconn.consume_input()
        return _drained(connection)


def _drained(connection: Connection) -> bool:
    found = False
    while connection.pgconn.notifies():
        found = True
    return found
