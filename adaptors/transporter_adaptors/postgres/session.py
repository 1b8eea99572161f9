"""Connections to PostgreSQL with the outbox reader's settings, and translation of their errors."""

from __future__ import annotations

import math
import os
import select
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader

from transporter.errors import EnvironmentFault, SourceError, SourceUnavailable, TransporterError
from transporter.postgres_dsn import is_refused

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from pydantic import SecretStr

Connection = psycopg.Connection[Any]
_Step = TypeVar("_Step")
_Value = TypeVar("_Value")

_CONNECT: Final = {
    "application_name": "transporter",
    # Seconds, and milliseconds in the last one: a vanished server is noticed within half a minute.
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
# A wait for a lock that another session holds on the rows or the term has a limit.
# A transaction of ours that its owner cannot end (a full log, a stopped process) keeps neither
# locks nor dead rows for longer than a minute.
# An outbox is always read through its primary key. Its statistics are collected while it is
# nearly empty, and would lead the planner to read and sort a whole backlog for each batch.
_SETTINGS: Final = {
    "default_transaction_isolation": "read committed",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
    "jit": "off",
    # The zone of times without one, as in Debezium, and of times in headers.
    "timezone": "UTC",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
SILENCE: Final = 120.0
"""Seconds that a call may take without an election. Then the connection is replaced."""
_TRANSIENT: Final = (
    psycopg.OperationalError,  # connection lost, server stopping, out of room, lock timeout
    psycopg.InterfaceError,  # the connection is already closed
    pg.ReadOnlySqlTransaction,  # a standby that may be promoted
    pg.SerializationFailure,
    pg.IdleInTransactionSessionTimeout,
    pg.TransactionTimeout,
    pg.UndefinedTable,  # a migration creates it, perhaps
    pg.FeatureNotSupported,  # "cached plan must not change result type", after ALTER TABLE
)
_SETUP: Final = (
    pg.InsufficientPrivilege,
    pg.UndefinedColumn,
    pg.InvalidSchemaName,
)
CREATED_MEANWHILE: Final = (
    pg.UniqueViolation,  # of the catalog's own index
    pg.DuplicateTable,
    pg.DuplicateObject,  # the type of the table's rows
)
"""Errors of a CREATE TABLE, also with IF NOT EXISTS, beside another one of the same table."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose calls end in bounded time, even when the server does not answer.

    The network's own time-outs do not detect a server, or a proxy, that hangs.
    """

    patience = SILENCE
    """Seconds that a statement may take."""

    def wait(self, gen: Any, *options: Any, **named: Any) -> Any:  # noqa: ANN401 - as psycopg's
        """Run *gen* to its end, or raise ``OperationalError`` when that takes too long."""
        try:
            gen = _limit_time(gen, time.monotonic() + self.patience)
            return super().wait(gen, *options, **named)
        except _NoAnswer as silence:
            self.pgconn.finish()
            text = f"the server did not answer within {self.patience:g} s"
            raise psycopg.OperationalError(text) from silence


class StatementTooSlow(SourceUnavailable):
    """A statement took longer than :func:`statement_limit`, and had no effect."""


class _NoAnswer(Exception):
    """The awaited input did not come in time."""


def _limit_time(steps: Generator[_Step, int, _Value], ends: float) -> Generator[_Step, int, _Value]:
    """Forward *steps*, or raise :class:`_NoAnswer` if nothing is ready once *ends* has passed."""
    try:
        step = next(steps)
        while True:
            ready = yield step
            if not ready and time.monotonic() >= ends:
                raise _NoAnswer
            step = steps.send(ready)
    except StopIteration as end:
        value: _Value = end.value
        return value


_BACKEND: Final = "SELECT pg_catalog.pg_backend_pid()"
_ROUNDS: Final = 5
"""Probes of the process that serves us. One is not enough: a pooler may serve others between."""
_PROBE_PATIENCE: Final = 3.0
"""Seconds for a pooler to serve a second session. In session mode it may have none left."""


def connect(dsn: SecretStr, term: float | None = None, *, is_checked: bool = False) -> Connection:
    """Open a session in autocommit mode.

    Text columns come as bytes and times as microseconds since 2000, in binary cursors.
    No call waits longer than :data:`SILENCE`, or than two terms where there is an election.
    No wait for a lock and no open transaction lasts longer than a term.

    Args:
        dsn: The connection string.
        term: The length of a term in seconds, or ``None`` without an election.
        looked_at: Whether an earlier session of *dsn* has passed the check for a pooler.

    Raises:
        SourceUnavailable: The connection could not be made.
        EnvironmentFault: The server is behind a pooler in transaction mode. This is checked
            before anything is set there.
    """
    conninfo = make_conninfo(**connection_settings(dsn, _detection_settings(term)))
    with translate_errors("cannot connect to the outbox's database"):
        connection = BoundedConnection.connect(conninfo, autocommit=True)
    # A statement ends before that by itself, unless the server does not answer.
    connection.patience = SILENCE if term is None else max(2.0, 2 * term)
    try:
        with translate_errors("cannot prepare the session of the outbox reader"):
            if not is_checked:
                _refuse_shared(connection, conninfo)
            _prepare(connection, term)
    except TransporterError:
        connection.close()
        raise
    return connection


def connection_settings(dsn: SecretStr, defaults: Mapping[str, str]) -> dict[str, Any]:
    """Return libpq's settings for the primary at *dsn*, whose own come before *defaults*."""
    given = conninfo_to_dict(dsn.get_secret_value())
    chosen: dict[str, Any] = {**_CONNECT, **defaults, **given, "client_encoding": "UTF8"}
    if "PGTARGETSESSIONATTRS" not in os.environ:
        # Of several hosts choose the primary, also after another one was promoted.
        chosen.setdefault("target_session_attrs", "read-write")
    return chosen


def server_text(connection: Connection, role: str) -> str:
    """Return a line about the server of *connection*, which has the rights of *role*."""
    info = connection.info
    version, minor = divmod(info.server_version, 10_000)
    return (
        f"PostgreSQL {version}.{minor} at {info.host}:{info.port}, "
        f"database {info.dbname}, role {role}"
    )


def backend_pid(connection: Connection) -> int:
    """Return the process that serves *connection*. The number that a pooler reports differs."""
    row = connection.execute(_BACKEND, prepare=False).fetchone()
    return int(row[0]) if row else 0


def _refuse_shared(connection: Connection, conninfo: str) -> None:
    """Raise when the process that served us may serve other clients next.

    Our settings would stay in the application's sessions, and we would get no notifications.
    """
    if is_shared(connection, conninfo):
        raise EnvironmentFault(
            "the dsn leads to a pooler that gives each transaction another session of the "
            "server (pool_mode = transaction), but LISTEN and session time-outs need a session of "
            "their own; name the server itself, or a pool in session mode"
        )


def is_shared(connection: Connection, conninfo: str) -> bool:
    """Return whether a pooler lends the server's session of *connection* to others as well."""
    if backend_pid(connection) == connection.info.backend_pid:
        return False
    with (
        suppress(psycopg.OperationalError),
        BoundedConnection.connect(conninfo, autocommit=True) as other,
    ):
        other.patience = _PROBE_PATIENCE
        for _ in range(_ROUNDS):
            # A pooler lends the session that was idle last first, or last in a rotation.
            ours = backend_pid(connection)
            if backend_pid(connection) != ours or backend_pid(other) == ours:
                return True
    return False


def _detection_settings(term: float | None) -> dict[str, str]:
    """Return connection settings that detect a vanished server within *term*."""
    if term is None:
        return {}
    seconds = str(max(2, math.ceil(term)))  # libpq's shortest
    whole = {"connect_timeout": seconds, "keepalives_idle": "1", "keepalives_interval": "1"}
    return {**whole, "tcp_user_timeout": str(math.ceil(term * 1000))}


def statement_limit(term: float | None) -> float:
    """Return the seconds after which the server ends a statement.

    Half of a *term*, because the elector is polled each third of it, between two statements.
    """
    return SILENCE / 2 if term is None else term / 2


def _prepare(connection: Connection, term: float | None) -> None:
    settings = {**_SETTINGS, "statement_timeout": _milliseconds(statement_limit(term))}
    if term is not None:
        # The limit for locks is lower, because smaller batches do not shorten such waits.
        settings["lock_timeout"] = _milliseconds(0.4 * term)
        settings["idle_in_transaction_session_timeout"] = _milliseconds(term)
    for name, value in settings.items():
        connection.execute("SELECT pg_catalog.set_config(%s, %s, false)", [name, value])
    for text in ("text", "varchar"):
        connection.adapters.register_loader(text, ByteaBinaryLoader)
    connection.adapters.register_loader("timestamptz", Int8BinaryLoader)


def _milliseconds(seconds: float) -> str:
    return f"{math.ceil(seconds * 1000)}ms"


@contextmanager
def translate_errors(operation: str) -> Iterator[None]:
    """Translate the driver's errors inside the block. *operation* names the failed operation."""
    try:
        yield
    except psycopg.Error as error:
        raise translate_error(error, operation) from error


def _is_of_a_dropped_object(error: psycopg.Error, text: str) -> bool:
    """Return whether something was dropped while a query of the catalog looked at it.

    The server has no code and no translation of its own for that.
    """
    return isinstance(error, pg.InternalError_) and (
        text.startswith(("could not open relation with OID", "cache lookup failed"))
    )


def translate_error(error: psycopg.Error, operation: str) -> TransporterError:
    """Return *error* as an error of transporter.

    It quotes only the server's primary message, because details may hold row contents.
    """
    # libpq's own messages have several lines.
    text = " ".join((error.diag.message_primary or str(error)).split())
    if isinstance(error, pg.QueryCanceled):
        return StatementTooSlow(f"{operation}: {text}; trying again may help")
    if isinstance(error, _SETUP):
        return EnvironmentFault(f"{operation}: {text}")
    if isinstance(error, _TRANSIENT) or _is_of_a_dropped_object(error, text):
        advice = "check the dsn" if is_refused(text) else "trying again may help"
        return SourceUnavailable(f"{operation}: {text}; {advice}")
    return SourceError(f"{operation}: {text}")


@contextmanager
def texts_as_stored(connection: Connection) -> Iterator[None]:
    """Make the server send texts of a SQL_ASCII database unchanged, whatever they contain.

    Otherwise it refuses to send bytes that are not UTF-8. It converts those of any other database.
    """
    if connection.info.parameter_status("server_encoding") != "SQL_ASCII":
        yield
        return
    connection.execute("SET client_encoding = 'SQL_ASCII'")
    try:
        yield
    finally:
        # This fails in a failed transaction, whose end restores the setting.
        with suppress(psycopg.Error):
            connection.execute("SET client_encoding = 'UTF8'")


def wait_for_notify(connection: Connection, seconds: float) -> bool:
    """Block until a notification arrives, at most *seconds*, and return whether one did.

    Takes all notifications that are there. Those that arrive during a statement go to the
    connection's notify handler instead.
    """
    with translate_errors("lost the connection to the outbox's database"):
        found = _drain_notifies(connection)
        while _is_readable(connection, 0.0 if found else seconds):
            connection.pgconn.consume_input()
            # The input may be half a notification. Even then there is no reason to wait longer.
            found, seconds = _drain_notifies(connection) or found, 0.0
        return found


def _is_readable(connection: Connection, seconds: float) -> bool:
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))  # A negative time would be for ever.


def _drain_notifies(connection: Connection) -> bool:
    found = False
    while connection.pgconn.notifies():
        found = True
    return found
