"""Sessions with the server of a ``postgres-cdc`` reader."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg.conninfo import make_conninfo

from transporter.errors import EnvironmentFault, SourceUnavailable
from transporter_adaptors.postgres.session import (
    BoundedConnection,
    connection_settings,
    is_shared,
    translate_errors,
)

if TYPE_CHECKING:
    from pydantic import SecretStr

PATIENCE: Final = 60.0
"""Seconds that a call may take until the server counts as silent."""
CHECK_INTERVAL: Final = "10s"
"""The time between two checks by the server that we still wait for a query's end."""
COMMAND_PATIENCE: Final = 10.0
"""The same for a command of an operator, who waits for it."""
_TEXT: Final = {
    "DateStyle": "ISO",
    "TimeZone": "UTC",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "search_path": "",
}
"""Settings that determine the text of values. Copy and stream need the same."""
_LIMITS: Final = {
    # A role or a database may have others by default.
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
}
_LATER_LIMITS: Final = ((140000, "idle_session_timeout"), (170000, "transaction_timeout"))
"""Limits by the first version that knows them, which a session has no use for."""
_QUERIES: Final = {
    # A queued ALTER TABLE must hold up neither our chunk for long nor, behind us, the application.
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "60s",
    # An error instead of rows that a policy hides.
    "row_security": "off",
    "jit": "off",
    "default_transaction_isolation": "read committed",
    # A server that commits asynchronously could lose what was published, and the log follows it.
    "synchronous_commit": "on",
}
_REPLICATION: Final = {"wal_sender_timeout": "60s"}
"""A server whose default is 0 would keep the slot of a vanished engine for hours."""
_POOLER: Final = "unsupported startup parameter"
"""A part of the error of PgBouncer, in any version."""
_SENDERS: Final = "max_wal_senders"
_ARRIVED: Final = "SELECT current_setting('search_path')"


def connect_queries(dsn: SecretStr, patience: float | None = None) -> BoundedConnection:
    """Open a session in autocommit mode for checks and for chunks of the copy.

    Raises:
        SourceUnavailable: the connection could not be made.
        EnvironmentFault: the settings are wrong, or a pooler is in between that shares sessions
            or loses our settings.

    """
    with translate_errors("cannot connect to the database"):
        connection = _connect(dsn, {**_TEXT, **_LIMITS, **_QUERIES}, patience)
        try:
            # Not at the start: some of the server's platforms do not have it, and refuse that.
            with suppress(psycopg.errors.InvalidParameterValue):
                connection.execute(f"SET client_connection_check_interval = '{CHECK_INTERVAL}'")
        except BaseException:
            connection.close()
            raise
        return connection


def connect_replication(dsn: SecretStr, patience: float | None = None) -> BoundedConnection:
    """Open a session that also understands the commands of the replication protocol.

    Raises:
        SourceUnavailable: the connection could not be made.
        EnvironmentFault: the role may not replicate, or a pooler is in between.

    """
    settings = {**_TEXT, **_LIMITS, **_REPLICATION}
    with translate_errors("cannot open a replication session"):
        try:
            connection = _connect(dsn, settings, patience, replication="database")
        except psycopg.OperationalError as error:
            if _SENDERS in str(error):
                raise SourceUnavailable(
                    f"cannot open a replication session: {' '.join(str(error).split())}; raise "
                    f"{_SENDERS}, or end another one; trying again may help"
                ) from error
            raise
        try:
            connection.execute("IDENTIFY_SYSTEM")
        except psycopg.errors.SyntaxError as error:
            connection.close()
            raise _pooler_fault("makes an ordinary session of a replication session") from error
        except BaseException:
            connection.close()
            raise
        return connection


def _connect(
    dsn: SecretStr, settings: dict[str, str], patience: float | None, **more: str
) -> BoundedConnection:
    chosen = {**connection_settings(dsn, {}), **more}
    escaped = {name: value.replace(" ", "\\ ") for name, value in settings.items()}
    ours = " ".join(f"-c {name}={value}" for name, value in escaped.items())
    chosen["options"] = f"{chosen.get('options') or ''} {ours}".strip()
    conninfo = make_conninfo(**chosen)
    try:
        connection = BoundedConnection.connect(conninfo, autocommit=True)
    except psycopg.OperationalError as error:
        if _POOLER in str(error):
            refused = str(error).partition(_POOLER)[2].strip(" :\n")
            raise _pooler_fault(f"refuses what the reader needs ({_POOLER}: {refused})") from error
        raise
    connection.patience = PATIENCE if patience is None else patience
    # A prepared statement would fail once a table's columns have changed.
    connection.prepare_threshold = None
    try:
        _refuse_pooler(connection, conninfo)
        for version, name in _LATER_LIMITS:
            if connection.info.server_version >= version:
                connection.execute(f"SET {name} = 0")
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_pooler(connection: BoundedConnection, conninfo: str) -> None:
    """Raise ``EnvironmentFault`` if a pooler is in between that changes what a session is."""
    ((search_path,),) = connection.execute(_ARRIVED).fetchall()
    if search_path:
        raise _pooler_fault("does not pass the settings of a session on")
    if is_shared(connection, conninfo):
        raise _pooler_fault(
            "gives each transaction another session of the server (pool_mode = transaction)"
        )


def _pooler_fault(fault: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"the dsn leads to a pooler that {fault}; use the direct address of the server"
    )
