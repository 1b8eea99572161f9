"""Sessions with the database of a writer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.adapt import Dumper
from psycopg.conninfo import make_conninfo
from psycopg.pq import Format
from psycopg.rows import tuple_row

from transporter.errors import RouteFault
from transporter_adaptors.postgres.session import BoundedConnection, connection_settings, is_shared
from transporter_adaptors.postgres_writer.failures import sink_error, unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg.rows import RowFactory

    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres_writer.config import PostgresWriterConfig

_SETTINGS: Final = {
    # The forms in which postgres-cdc writes values.
    "DateStyle": "ISO, MDY",
    "TimeZone": "UTC",
    "IntervalStyle": "iso_8601",
    "lc_monetary": "C",
    "xmloption": "content",
    # A role or a database may have others by default.
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "60s",
    # What was acked must not be lost in a crash of the server.
    "synchronous_commit": "on",
    "jit": "off",
    # An error, in place of a DELETE that leaves the rows that a policy hides.
    "row_security": "off",
}
_SET: Final = """
SELECT pg_catalog.set_config(u.name, u.value, false)
FROM unnest(%s::text[], %s::text[]) AS u (name, value)
WHERE pg_catalog.current_setting(u.name, true) IS NOT NULL
"""
"""Sets what this version of the server has."""
_LONGEST_CONNECT: Final = 10.0
_LONGEST_LOCK: Final = 10.0


class RawJson(bytes):
    """JSON that goes to the server as it is."""


class _RawJsonDumper(Dumper):
    format = Format.TEXT
    oid = psycopg.adapters.types["json"].oid

    def dump(self, obj: bytes) -> bytes:
        return obj


def fetch(
    connection: Connection,
    query: str,
    parameters: Sequence[Any] | Mapping[str, Any],
    factory: RowFactory[Any] = tuple_row,
) -> list[Any]:
    """Return the rows of *query*, also in the middle of a pipeline, whose errors are raised."""
    with connection.cursor(row_factory=factory) as cursor:
        with connection.pipeline():  # Its end is a sync, so the answer is here then.
            cursor.execute(query, parameters)
        return cursor.fetchall()


def connect(config: PostgresWriterConfig, deadline: float) -> BoundedConnection:
    """Open a session in autocommit mode, in which a statement takes half of *deadline* at most.

    Raises:
        SinkUnavailable: The connection could not be made.
        RouteFault: A pooler gives each transaction another session, or a right is missing.
    """
    seconds = str(max(2, math.ceil(min(deadline, _LONGEST_CONNECT))))
    conninfo = make_conninfo(**connection_settings(config.dsn, {"connect_timeout": seconds}))
    try:
        connection = BoundedConnection.connect(conninfo, autocommit=True)
    except psycopg.Error as error:
        raise unavailable("cannot connect to the database", error) from error
    connection.patience = deadline
    # A prepared statement would fail once a table's columns have changed.
    connection.prepare_threshold = None
    connection.adapters.register_dumper(RawJson, _RawJsonDumper)
    try:
        _refuse_pooled(connection, conninfo)
        _prepare(connection, config, deadline)
    except psycopg.Error as error:
        connection.close()
        raise sink_error(error, "cannot prepare the session") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_pooled(connection: BoundedConnection, conninfo: str) -> None:
    if is_shared(connection, conninfo):
        raise RouteFault(
            "the dsn leads to a pooler that gives each transaction another session of the server "
            "(pool_mode = transaction), but values are converted by the settings of a session; "
            "name the server itself, or a pool in session mode"
        )


def _prepare(connection: BoundedConnection, config: PostgresWriterConfig, deadline: float) -> None:
    settings = {
        **_SETTINGS,
        "statement_timeout": _milliseconds(deadline / 2),
        "lock_timeout": _milliseconds(min(deadline / 3, _LONGEST_LOCK)),
    }
    if config.constraints == "replica":
        settings["session_replication_role"] = "replica"
    connection.execute(_SET, [[*settings], [*settings.values()]])


def _milliseconds(seconds: float) -> str:
    return f"{math.ceil(seconds * 1000)}ms"
