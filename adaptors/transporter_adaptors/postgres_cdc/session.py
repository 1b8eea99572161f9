"""Sessions with the server of a ``postgres-cdc`` reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from psycopg.conninfo import make_conninfo

from transporter.errors import EnvironmentFault
from transporter_adaptors.postgres.session import (
    BoundedConnection,
    connection_settings,
    translate_errors,
)

if TYPE_CHECKING:
    from pydantic import SecretStr

PATIENCE: Final = 60.0
"""Seconds that a call may take until the server counts as silent."""
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
_POOLER: Final = ("unsupported startup parameter", "replication")


def connect_queries(dsn: SecretStr, patience: float = PATIENCE) -> BoundedConnection:
    """Open a session in autocommit mode for checks and for chunks of the copy.

    Raises:
        SourceUnavailable: the connection could not be made.
        EnvironmentFault: the settings are wrong.

    """
    with translate_errors("cannot connect to the database"):
        return _connect(dsn, {**_TEXT, **_LIMITS, **_QUERIES}, patience)


def connect_replication(dsn: SecretStr, patience: float = PATIENCE) -> BoundedConnection:
    """Open a session that also understands the commands of the replication protocol.

    Raises:
        SourceUnavailable: the connection could not be made.
        EnvironmentFault: the role may not replicate, or a pooler is in between.

    """
    with translate_errors("cannot open a replication session"):
        try:
            settings = {**_TEXT, **_LIMITS, **_REPLICATION}
            return _connect(dsn, settings, patience, replication="database")
        except Exception as error:
            text = str(error)
            if all(part in text for part in _POOLER):
                raise EnvironmentFault(
                    "the dsn leads to a pooler that accepts no replication session "
                    "(unsupported startup parameter); use the direct address of the server"
                ) from error
            raise


def _connect(
    dsn: SecretStr, settings: dict[str, str], patience: float, **more: str
) -> BoundedConnection:
    chosen = {**connection_settings(dsn, {}), **more}
    escaped = {name: value.replace(" ", "\\ ") for name, value in settings.items()}
    ours = " ".join(f"-c {name}={value}" for name, value in escaped.items())
    chosen["options"] = f"{chosen.get('options') or ''} {ours}".strip()
    connection = BoundedConnection.connect(make_conninfo(**chosen), autocommit=True)
    connection.patience = patience
    # A prepared statement would fail once a table's columns have changed.
    connection.prepare_threshold = None
    try:
        for version, name in _LATER_LIMITS:
            if connection.info.server_version >= version:
                connection.execute(f"SET {name} = 0")
    except BaseException:
        connection.close()
        raise
    return connection
