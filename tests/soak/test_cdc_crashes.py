"""Crashes of the server, and of its processes, under ``postgres-cdc``: each history is exact."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg
import pytest
from cdc_tools import (
    KEYS,
    MemoryLog,
    Writers,
    clean_slots,
    histories,
    logged_histories,
    prepare_traced,
    started,
    wrong_keys,
)
from engine_tools import until
from pg_nodes import WHEEL, give_away, nodes
from services.postgres import Database

from transporter.errors import SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]

CRASHES = 10


class Survivors(Writers):
    """Writers that go on after the server has ended their sessions."""

    def _write(self, number: int) -> None:
        while not self._stop.is_set():
            with suppress(psycopg.OperationalError):
                super()._write(number)
                return
            time.sleep(0.05)


@contextmanager
def harm(each: Callable[[], object], seed: int) -> Iterator[threading.Thread]:
    """Do *each* again and again beside the block."""
    rng = random.Random(seed)

    def repeat() -> None:
        for _ in range(CRASHES):
            time.sleep(rng.uniform(0.3, 1.5))
            each()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


def copy_and_follow(database: Database, each: Callable[[], object], seed: int) -> MemoryLog:
    """Copy and follow the tables while *each* happens beside writers; return the log at rest."""
    log = MemoryLog(database, copy_rows=7, batch_rows=50)
    with Survivors(database, KEYS, seed, count=3), harm(each, seed) as thread:
        while thread.is_alive():
            try:
                log.poll(0.02)
            except SourceUnavailable:
                log.kill()
    while True:
        try:
            log.drain(database)
        except (SourceUnavailable, psycopg.OperationalError):
            log.kill()
            time.sleep(0.1)
        else:
            log.kill()
            return log


def poll_for(log: MemoryLog, seconds: float) -> None:
    """Poll for so long."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        log.poll(0.2)


@pytest.mark.parametrize("version", ["14", "18"])
@pytest.mark.parametrize("commits", ["on", "off"])
def test_the_server_crashes(version: str, commits: str) -> None:
    """Copy and stream go on from the log, also where commits are flushed late and get lost."""
    settings = {"synchronous_commit": commits, "wal_writer_delay": "200ms"}
    with nodes(version, **settings) as node:
        node.start()
        database = Database("postgres", node.service)
        prepare_traced(database)
        log = copy_and_follow(database, node.crash, 1)
        assert wrong_keys(histories(database), logged_histories(log.messages)) == {}
        assert log.kills >= CRASHES / 2


@pytest.mark.parametrize("which", ["walsender", "client backend"])
def test_a_process_of_the_server_is_killed(which: str) -> None:
    """By SIGKILL, which makes the server begin again as after a crash."""
    with nodes("18") as node:
        node.start()
        database = Database("postgres", node.service)
        prepare_traced(database)
        query = (
            "SELECT pid FROM pg_stat_activity WHERE backend_type = %s"
            " AND application_name = 'transporter' LIMIT 1"
        )

        killed: list[int] = []

        def find_and_kill() -> bool:
            with suppress(psycopg.OperationalError, ProcessLookupError):
                for (pid,) in database.execute(query, [which]):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                    return True
            return False

        log = copy_and_follow(database, lambda: until(find_and_kill), 2)
        assert wrong_keys(histories(database), logged_histories(log.messages)) == {}
        # A reader that is being opened meets several ends.
        assert len(killed) == CRASHES
        assert log.kills > 1


def test_an_idle_server_that_lost_the_first_transaction_is_copied() -> None:
    """Its number was given out to the copy and is free again, so nothing can be waited for."""
    with nodes("18", synchronous_commit="off", wal_writer_delay="10s") as node:
        node.start()
        database = Database("postgres", node.service)
        database.execute("CREATE TABLE items (id int PRIMARY KEY)")
        database.execute("INSERT INTO items VALUES (1); CHECKPOINT")
        log = MemoryLog(database)
        log.poll()
        assert log.position is not None
        log.kill()
        node.crash()
        until(lambda: log.poll() and any(name == "copy-complete" for name, _ in log.told))
        log.kill()
        assert [each.key for each in log.messages if each.phase == "copy"] == [b"1"]


def test_a_stopped_walsender_is_replaced_or_waited_for() -> None:
    """For 90 s it neither sends nor ends. Its slot is in use until it goes on."""
    with nodes("18") as node:
        node.start()
        database = Database("postgres", node.service)
        database.execute("CREATE TABLE items (id int PRIMARY KEY)")
        log = started(database)
        ((pid,),) = database.execute("SELECT active_pid FROM pg_replication_slots")
        os.kill(pid, signal.SIGSTOP)
        database.execute("INSERT INTO items VALUES (1)")
        begun, ended = time.monotonic(), 0.0
        try:
            with pytest.raises(SourceUnavailable, match="has sent nothing for"):
                poll_for(log, 90)
            ended = time.monotonic() - begun
            time.sleep(max(0.0, 90 - ended))
        finally:
            os.kill(pid, signal.SIGCONT)
        assert ended < 60
        log.kill()
        log.drain(database)
        log.kill()
        assert [each.key for each in log.messages if each.op == "insert"] == [b"1"]


def test_an_engine_that_only_keeps_alive_for_three_minutes_loses_no_session() -> None:
    """Its log is full: the server ends no session, and everything comes afterwards."""
    with nodes("18") as node:
        node.start()
        database = Database("postgres", node.service)
        database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
        with clean_slots(database):
            log = started(database)
            ((before,),) = database.execute("SELECT active_pid FROM pg_replication_slots")
            database.execute(
                "INSERT INTO items SELECT n, repeat('x', 1000) FROM generate_series(1, 30000) n"
            )
            begun = time.monotonic()
            while time.monotonic() - begun < 180:
                log.reader().keep_alive()
                time.sleep(0.5)
            log.drain(database)
            ((after,),) = database.execute("SELECT active_pid FROM pg_replication_slots")
            log.kill()
        assert after == before
        assert sum(each.op == "insert" for each in log.messages) == 30000


def test_transaction_numbers_near_their_end() -> None:
    """They have 32 bits in the stream, and 64 in snapshots: the copy widens them."""
    with nodes(WHEEL) as node:
        node.start()
        for name in ("postgres", "template1"):
            Database(name, node.service).execute("VACUUM FREEZE")
        node.stop()
        # The oldest number moves, too: one that seems to be in the future makes the server remove
        # rows that a snapshot still sees. The segment of the commit log has to be there.
        node.run("pg_resetwal", "-u", "4294966000", "-x", "4294966000")
        (node.data / "pg_xact" / "0FFF").write_bytes(bytes(262144))
        give_away(node.data)
        node.start()
        database = Database("postgres", node.service)
        prepare_traced(database)
        log = MemoryLog(database, copy_rows=7, batch_rows=50)
        ended = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::numeric > 4294967296 + 500"
        with Writers(database, KEYS, 3, count=3):
            ends = time.monotonic() + 120
            while database.execute(ended) == [(False,)] and time.monotonic() < ends:
                for _ in range(20):
                    log.poll(0.01)
                log.kill()
        assert database.execute(ended) == [(True,)]
        log.drain(database)
        log.kill()
        assert wrong_keys(histories(database), logged_histories(log.messages)) == {}
