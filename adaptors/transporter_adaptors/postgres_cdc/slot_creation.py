"""The creation of a slot, which waits for running transactions for as long as they last."""

from __future__ import annotations

import select
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import generators, pq, sql

from transporter.errors import EnvironmentFault, SourceUnavailable
from transporter_adaptors.postgres.session import backend_pid, translate_errors
from transporter_adaptors.postgres_cdc import slot as slots
from transporter_adaptors.postgres_cdc.lsn import parse_lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from transporter_adaptors.postgres.session import BoundedConnection, Connection
    from transporter_adaptors.postgres_cdc.config import CdcConfig
    from transporter_adaptors.postgres_cdc.plan import Names

NOTICE: Final = 2.0
"""Seconds after which a creation that waits is reported, and between two looks at the server."""
_AGAIN: Final = 60.0
"""Seconds between two reports."""
_CANCEL: Final = 2.0
"""Seconds that the end of a creation may take."""
_SHOWN: Final = 3
# The server waits for each transaction that has a number, in any database. What another role's
# session does is hidden from an ordinary role, but not its process id.
_RUNNING: Final = """
SELECT 'PID ' || a.pid || CASE WHEN a.xact_start IS NULL THEN '' ELSE
         format(' (%s, %s for %s s)', coalesce(nullif(a.application_name, ''), 'unnamed'), a.state,
                extract(epoch FROM now() - a.xact_start)::int) END AS text
FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
UNION ALL
SELECT format('the prepared transaction %s (for %s s)', quote_literal(p.gid),
              extract(epoch FROM now() - p.prepared)::int)
FROM pg_prepared_xacts p
"""
_IS_ALIVE: Final = "SELECT FROM pg_stat_activity WHERE pid = %s"


def find_running(queries: Connection) -> str:
    """Return the transactions for which a new slot waits, as text. It may be empty."""
    found = [text for (text,) in queries.execute(_RUNNING).fetchall()]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


class SlotCreation:
    """A command that creates a slot, sent and not answered yet. Belongs to one thread."""

    def __init__(self, replication: BoundedConnection, command: sql.Composed) -> None:
        """Send *command* in the session *replication*."""
        self._connection, self._pgconn = replication, replication.pgconn
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)
        self._pgconn.send_query(command.as_bytes(replication))

    def wait(self, seconds: float) -> int | None:
        """Return the LSN where the slot begins, or ``None`` if it is not there in time.

        Raises:
            psycopg.Error: the server refuses, or the session was lost.

        """
        ends = monotonic() + seconds
        while self._pgconn.flush() or self._pgconn.is_busy():
            if not self._poll.poll(max(0.0, ends - monotonic()) * 1000):
                return None
            self._pgconn.consume_input()
        result = self._connection.wait(generators.fetch_many(self._pgconn))[0]
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise psycopg.errors.error_from_result(result)
        value = result.get_value(0, 1)
        assert value is not None  # noqa: S101 - the answer has an LSN
        return parse_lsn(value.decode())

    def cancel(self) -> None:
        """Let the server end the command, so that no unknown slot is left."""
        with suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=_CANCEL)


def create(
    replication: BoundedConnection,
    queries: Connection,
    command: sql.Composed,
    report: Callable[[str], None],
) -> Generator[None, float, int]:
    """Create a slot by *command*; return the LSN where it begins.

    Yields before each wait, and takes the seconds that it may last. *report* is called with the
    transactions for which the server waits.

    Raises:
        SourceUnavailable: the server, or its process that creates the slot, is gone.

    """
    pid = backend_pid(replication)
    creation = SlotCreation(replication, command)
    begun = looked_at = monotonic()
    reported_at, at = -_AGAIN, None
    try:
        while (at := creation.wait((yield))) is None:
            now = monotonic()
            if now - looked_at < NOTICE:
                continue
            looked_at = now
            running = find_running(queries)
            # An answer that was sent and did not arrive would be waited for without an end.
            is_alive = queries.execute(_IS_ALIVE, [pid]).fetchall()
            if not is_alive and (at := creation.wait(0)) is None:
                raise SourceUnavailable("lost the replication session; trying again may help")
            if running and now - reported_at >= _AGAIN:
                reported_at = now
                report(
                    f"waits for {now - begun:.0f} s until transactions have ended that began "
                    f"before: {running}; end them if they hang"
                )
    finally:
        if at is None:
            creation.cancel()
    return at


def check_slot_room(queries: Connection, names: Names) -> None:
    """Check that there is room for the slot, before anything is created."""
    with translate_errors("cannot look at the replication slots"):
        slots.check_room(queries, names.slot)


def create_slot(
    replication: BoundedConnection,
    queries: Connection,
    config: CdcConfig,
    names: Names,
    version: int,
    report: Callable[..., None],
) -> Generator[None, float, int]:
    """Create the slot, or take one that an earlier run has created and not logged.

    Yields before each wait for transactions, and takes the seconds that it may last. Waits that
    are long are passed to *report* as events.

    Returns:
        The LSN from which it has everything.

    """
    with translate_errors(f"cannot create the replication slot {names.slot}"):
        found = slots.find_slot(queries, names.slot, version)
        if found is not None:
            slots.check_slot(found, names.slot, None, "drop it, and the next open makes another")
            return found.confirmed_lsn
        if config.manage == "nothing":
            raise EnvironmentFault(
                f"slot {names.slot} is missing, and manage is nothing; run SELECT "
                f"pg_create_logical_replication_slot('{names.slot}', 'pgoutput')"
            )
        command = slots.create_statement(names.slot, version, failover=config.failover)
        return (
            yield from create(
                replication,
                queries,
                command,
                lambda problem: report("slot-waits", slot=names.slot, problem=problem),
            )
        )


def drop_slot(queries: Connection, config: CdcConfig, names: Names, version: int, at: int) -> None:
    """Drop the slot, if it is there: every table is copied again, and needs nothing of it.

    Where others make the slot, one that begins behind the log's position *at* is the new one.

    Raises:
        EnvironmentFault: it is another's, for example of a standby, or not this reader's to drop.
        SourceUnavailable: a session is reading from it.

    """
    with translate_errors(f"cannot drop the replication slot {names.slot}"):
        found = slots.find_slot(queries, names.slot, version)
        if found is None:
            return
        slots.check_slot(replace(found, status=None, reason=None), names.slot, None, "")
        if config.manage == "nothing":
            if found.confirmed_lsn > at:
                return
            raise EnvironmentFault(
                f"every table is to be copied again by a new slot {names.slot}, and manage is "
                f"nothing; run SELECT pg_drop_replication_slot('{names.slot}'), and then SELECT "
                f"pg_create_logical_replication_slot('{names.slot}', 'pgoutput')"
            )
        queries.execute("SELECT pg_drop_replication_slot(%s)", [names.slot])
