"""Crashes and stand-ins of a PostgreSQL server, for tests that have one of their own."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final, Self

import psycopg
from psycopg.conninfo import make_conninfo
from services.postgres import PostgresService, free_port

from transporter.quickstart.postgres import embedded_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from services.postgres import Database

PATIENCE: Final = 60.0
FORGETFUL: Final = {"wal_writer_delay": "10s", "autovacuum": "off", "checkpoint_timeout": "1d"}
"""Settings of a server that loses seconds of asynchronous commits in a crash."""


def crash(database: Database) -> None:
    """Kill a session's process, so that the server ends all others and recovers from its log.

    What was in its memory is gone, including log that was not written yet.
    """
    victim, other = database.connect(), database.connect()
    os.kill(victim.info.backend_pid, signal.SIGKILL)
    await_end(victim)
    # The server still takes sessions until it has noticed. Then it ends the others.
    await_end(other)
    await_server(database)


def await_end(connection: psycopg.Connection) -> None:
    """Wait until *connection* has lost its server."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        try:
            connection.execute("SELECT 1")
        except psycopg.OperationalError:
            connection.close()
            return
        time.sleep(0.01)
    raise AssertionError("the session outlives its process")


def await_server(database: Database) -> None:
    """Wait until the server takes sessions again."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        # It refuses them until it has recovered.
        with suppress(psycopg.OperationalError):
            database.execute("SELECT 1")
            return
        time.sleep(0.05)
    raise AssertionError("the server does not recover")


@contextmanager
def hanging_commits(database: Database) -> Iterator[None]:
    """Let commits wait for a standby that is not there. They are streamed, and no query sees them.

    Commits with ``synchronous_commit`` ``local`` or ``off`` do not wait.
    """
    _set_standbys(database, "ghost")
    try:
        yield
    finally:
        _set_standbys(database, "")


def _set_standbys(database: Database, names: str) -> None:
    database.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    database.execute("SELECT pg_reload_conf()")
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        # A session that is there already reads the settings between two statements.
        if database.execute("SHOW synchronous_standby_names") == [(names,)]:
            return
        time.sleep(0.01)
    raise AssertionError("the server does not reload its settings")


class StoppableServer:
    """A server that can be stopped at once and started again, at the same port of 127.0.0.1."""

    def __init__(self, directory: Path, **settings: str) -> None:
        """Keep its data in *directory*."""
        self._directory, self._stack = directory, ExitStack()
        port = free_port()
        self._settings = {
            "listen_addresses": "127.0.0.1", "port": str(port), "wal_level": "logical", **settings
        }  # fmt: skip
        dsn = make_conninfo(host="127.0.0.1", port=port, user="postgres", dbname="postgres")
        self.service = PostgresService(dsn, port)

    def __enter__(self) -> Self:
        self._stack.enter_context(embedded_postgres(self._directory, self._settings))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def restart(self, _: Database | None = None) -> None:
        """Stop the server as ``pg_ctl stop -m immediate`` does, and start it again."""
        first, *_rest = (self._directory / "data" / "postmaster.pid").read_text().split()
        os.kill(int(first), signal.SIGQUIT)
        self._stack.close()
        self.__enter__()
