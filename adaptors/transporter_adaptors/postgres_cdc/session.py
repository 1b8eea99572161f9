"""Sessions with the server of a ``postgres-cdc`` reader."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from transporter.errors import EnvironmentFault, SourceUnavailable
from transporter_adaptors.postgres.session import CONNECT, BoundedConnection, translate_errors

if TYPE_CHECKING:
    from pydantic import SecretStr

PATIENCE: Final = 60.0
"""Seconds that a call may take until the server counts as silent."""
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
_QUERIES: Final = {
    # A queued ALTER TABLE must hold up neither our chunk for long nor, behind us, the application.
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "60s",
    # An error instead of rows that a policy hides.
    "row_security": "off",
    "jit": "off",
    "default_transaction_isolation": "read committed",
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
        return _connect(dsn, {**_TEXT, **_QUERIES}, patience)


def connect_replication(dsn: SecretStr, patience: float = PATIENCE) -> BoundedConnection:
    """Open a session that also understands the commands of the replication protocol.

    Raises:
        SourceUnavailable: the connection could not be made.
        EnvironmentFault: the role may not replicate, or a pooler is in between.

    """
    with translate_errors("cannot open a replication session"):
        try:
            return _connect(dsn, {**_TEXT, **_REPLICATION}, patience, replication="database")
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
    given: dict[str, Any] = conninfo_to_dict(dsn.get_secret_value())
    chosen = {**CONNECT, **given, "client_encoding": "UTF8", **more}
    if "PGTARGETSESSIONATTRS" not in os.environ:
        # Of several hosts choose the primary, also after another one was promoted.
        chosen.setdefault("target_session_attrs", "read-write")
    escaped = {name: value.replace(" ", "\\ ") for name, value in settings.items()}
    ours = " ".join(f"-c {name}={value}" for name, value in escaped.items())
    chosen["options"] = f"{given.get('options') or ''} {ours}".strip()
    connection = BoundedConnection.connect(make_conninfo(**chosen), autocommit=True)
    connection.patience = patience
    # A prepared statement would fail once a table's columns have changed.
    connection.prepare_threshold = None
    return connection


def lost(operation: str, problem: str) -> SourceUnavailable:
    """Return the error for a session that has ended during *operation*."""
    return SourceUnavailable(f"{operation}: {problem}; trying again may help")
