"""Measurements of an outbox for operators: its rows, the age of the oldest, the rate of purges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from psycopg import Error, sql
from psycopg.pq import TransactionStatus

if TYPE_CHECKING:
    from transporter.adaptor import Resume
    from transporter_adaptors.postgres.columns import OutboxColumns
    from transporter_adaptors.postgres.session import Connection
    from transporter_adaptors.postgres.table import TableName

EVERY: Final = 10.0
"""Seconds between two measurements."""
_SOON: Final = 1.0
"""Seconds until the next one after a few rows, which are gone soon."""
_FEW: Final = 1_000
_RARELY: Final = 300.0
"""Seconds after a measurement that took too long, for example in a table full of dead rows."""
_LIMIT: Final = "500ms"
"""Time limit of the query on the server."""
COUNTED: Final = 10_000
"""Most rows that are counted. Above it the number comes from the server's statistics."""
_READING_SECONDS: Final = 5.0
"""Seconds between two readings of a :class:`RowMeter`."""

_BOUND: Final = "SELECT pg_catalog.set_config('statement_timeout', %s, true)"
_ASK: Final = """
SELECT CASE WHEN counted <= {most} THEN counted
    ELSE greatest(counted, pg_catalog.pg_stat_get_live_tuples(%s::pg_catalog.regclass)) END,
    (SELECT extract(epoch FROM pg_catalog.clock_timestamp() - {created})::float8
     FROM {table} AS o ORDER BY {id} LIMIT 1)
FROM (
    SELECT count(*) AS counted FROM (SELECT FROM {table} LIMIT {most} + 1) AS first_rows
) AS counts
"""


class Backlog:
    """Measurement of an outbox each :data:`EVERY` seconds or so. Not thread-safe."""

    def __init__(self) -> None:
        """Make the first measurement due at once."""
        self._due = 0.0

    def measure(
        self,
        connection: Connection,
        table: TableName,
        columns: OutboxColumns,
        resume: Resume,
        now: float,
    ) -> None:
        """Report the backlog to *resume* at the monotonic time *now*, if that is due.

        An open transaction of the session is left alone. When the query fails, for whatever
        reason, the backlog is reported as unknown and nothing else happens.
        """
        if now < self._due or connection.info.transaction_status != TransactionStatus.IDLE:
            return
        self._due = now + EVERY
        question = sql.SQL(_ASK).format(
            most=sql.Literal(COUNTED),
            table=table.in_query,
            **columns.in_query("o"),
        )
        rows = age = None
        try:
            with connection.transaction():
                connection.execute(_BOUND, [_LIMIT])
                ((rows, age),) = connection.execute(question, [str(table)]).fetchall()
        except Error:
            self._due = now + _RARELY
        if rows and rows <= _FEW:
            self._due = now + _SOON
        resume.measure("backlog_messages", rows)
        # An application's clock may be ahead.
        resume.measure("lag_seconds", None if rows is None else max(0.0, age or 0.0))


class RowMeter:
    """Counter of purged rows, read at intervals as goharvest does, but not while idle. Pure."""

    def __init__(self) -> None:
        self._total = self._since = 0
        self._read_at: float | None = None

    def add(self, rows: int, now: float) -> dict[str, object] | None:
        """Count *rows* at the monotonic time *now*, and return a reading if one is due."""
        if self._read_at is None:
            self._read_at = now
        self._total += rows
        self._since += rows
        seconds = now - self._read_at
        if seconds < _READING_SECONDS:
            return None
        rate = self._since / seconds
        self._read_at, self._since = now, 0
        return {"purged": self._total, "rate": round(rate, 1), "seconds": round(seconds, 1)}
