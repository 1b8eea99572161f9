"""Crashes and stand-ins of a PostgreSQL server, for tests that have one of their own."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database

PATIENCE: Final = 60.0
FORGETFUL: Final = {"wal_writer_delay": "10s", "autovacuum": "off", "checkpoint_timeout": "1d"}
"""Settings of a server that loses seconds of asynchronous commits in a crash."""


def crash(database: Database) -> None:
    """Kill a session's process, so that the server ends all others and recovers from its log.

    What was in its memory is gone, including log that was not written yet.
    """
    victim = database.connect()
    os.kill(victim.info.backend_pid, signal.SIGKILL)
    await_end(victim)
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
