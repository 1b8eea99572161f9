"""Large amounts through ``postgres-cdc``: rows, one transaction, gigabytes, and a full log.

The variables ``ROWS``, ``TRANSACTION_ROWS``, ``COPY_MB`` and ``FULL_SECONDS`` scale them. Figures
are logged as warnings: ``-o log_cli=true`` shows them.
"""

from __future__ import annotations

import json
import logging
import os
import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from acceptance_tools import Running, gone
from background import Background
from cdc_crashes import StoppableServer
from cdc_feed import FeedProcess, logged
from cdc_load import TABLES, Load, LoadJudge, fill
from services.postgres import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


logger = logging.getLogger(__name__)
pytestmark = pytest.mark.postgres

MIB = 1 << 20
ROWS = int(os.environ.get("ROWS", "1_000_000"))
TRANSACTION_ROWS = int(os.environ.get("TRANSACTION_ROWS", "10_000_000"))
COPY_MB = int(os.environ.get("COPY_MB", "10_240"))
FULL_SECONDS = float(os.environ.get("FULL_SECONDS", "180"))
LIFE, KILLS, RESTARTS = 5.0, 12, (2, 7)
"""Seconds until the engine is killed, kills at least, and those beside restarts of the server."""
COPY_SECONDS = 60
"""Seconds that the copy of the first test takes at least, so that kills hit it."""
MOST_GROWTH, MOST_KEPT = 16 * MIB, 256 * MIB
"""Bytes by which a reader at work may grow, and those of the log that a slot may keep."""
PATIENCE = 900.0
FIRST_BUFFERS = 64 * MIB
"""Bytes that the first tenth of the work may take: a few batches, however large the rest is."""
ROW_BYTES = 1400
LARGE_SERVER = {"max_wal_size": "2GB", "fsync": "off", "shared_buffers": "256MB"}


@contextmanager
def server_of(folder: Path, **settings: str) -> Iterator[StoppableServer]:
    """Run a server with a table ``ends``. None of these tests cuts the power under it."""
    folder.chmod(0o711)
    with StoppableServer(folder / "server", **{"fsync": "off", **settings}) as server:
        database = Database("postgres", server.service)
        database.execute("CREATE TABLE ends (n bigserial PRIMARY KEY)")
        yield server


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait for *condition*, also while the server is away."""
    ends = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except psycopg.OperationalError:
            pass
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.2)


def await_confirmed(database: Database) -> None:
    """Wait until the slot has everything that is committed by now."""
    ((end,),) = database.execute("SELECT pg_current_wal_insert_lsn()::text")
    until(lambda: is_confirmed(database, end))


def is_confirmed(database: Database, end: str) -> bool:
    """Return whether the slot is confirmed up to *end*. Adds a change to wait for."""
    database.execute("INSERT INTO ends DEFAULT VALUES")
    query = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots"
    return database.execute(query, [end]) == [(True,)]


@pytest.mark.timeout(3600)
def test_rows_are_copied_under_load_schema_changes_and_kills(tmp_path: Path) -> None:
    """The log ends as the source, each key's versions are without gaps, and nothing comes twice."""
    begun = time.monotonic()
    with server_of(tmp_path) as server:
        database = Database("postgres", server.service)
        fill(database, ROWS)
        pipeline = write_pipeline(tmp_path, database)
        with Load(database, ROWS) as load:
            kills, events, left = kill_again_and_again(pipeline, server, database)
        engine = Running(pipeline)
        try:
            await_confirmed(database)
        finally:
            left += engine.kill()
            gone(left)
        copied = time.monotonic() - begun
        judge = LoadJudge()
        judge.read(logged(tmp_path / "log"))
        rows = judge.compare(database)
    named = sorted({each["event"] for each in events if each["level"] != "info"})
    logger.warning(
        "%d entries, %d of them copied, of %d rows; %.0f s, %d kills, %d transactions, "
        "columns %s, %s",
        judge.entries, judge.copied, rows, copied, kills, load.transactions, load.changes, named,
    )  # fmt: skip
    assert judge.problems == []
    assert min(load.changes.values()) > 0


def write_pipeline(folder: Path, database: Database) -> Path:
    """Write the pipeline of the first test, whose route delivers nothing."""
    reader = {
        "name": "shop",
        "adaptor": "postgres-cdc",
        "dsn": database.dsn,
        "tables": [f"public.{name}" for name in (*TABLES, "ends")],
        # A row counts with what an entry has beside it.
        "copy_rate": max(1024, ROWS * 700 // COPY_SECONDS),
    }
    writer = {"adaptor": "file", "path": "out.jsonl"}
    document = {
        "log": {"dir": "log"},
        "observe": {"listen": "off"},
        "readers": [reader],
        "routes": [{"name": "out", "namespace": "^nothing$", "writer": writer}],
    }
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps(document))
    return path


def kill_again_and_again(
    pipeline: Path, server: StoppableServer, database: Database
) -> tuple[int, list[dict[str, Any]], list[psutil.Process]]:
    """Kill engines until all tables are copied, and restart the server twice beside them."""
    kills, events, left = 0, list[dict[str, Any]](), list[psutil.Process]()
    ends, complete = time.monotonic() + PATIENCE, set[str]()
    while kills < KILLS or len(complete) < len(TABLES) + 1:
        assert time.monotonic() < ends, f"only {complete} are copied"
        began = time.monotonic()
        engine = Running(pipeline)
        try:
            engine.await_event("reader-opened", 60)
            if kills in RESTARTS:
                time.sleep(random.uniform(0.5, 2.0))
                server.restart()
            time.sleep(max(0.0, LIFE - (time.monotonic() - began)))
        finally:
            left = [each for each in left if each.is_running()] + engine.kill()
        kills += 1
        events += engine.events
        complete |= {each["table"] for each in engine.events if each["event"] == "copy-complete"}
    return kills, events, left


@pytest.mark.timeout(3600)
def test_a_huge_transaction_needs_no_memory(tmp_path: Path) -> None:
    """Each of its rows is logged once, also where the reader is killed inside of it."""
    with server_of(tmp_path, **LARGE_SERVER) as server:
        database = Database("postgres", server.service)
        database.execute("CREATE TABLE large (id bigint PRIMARY KEY, v text)")
        feed = FeedProcess(tmp_path / "feed", database.dsn, tables=["public.large", "public.ends"])
        with feed:
            feed.await_event("table-in-sync", table="public.large")
            insert = (
                "INSERT INTO large SELECT n, md5(n::text) FROM generate_series(1, %s::bigint) n"
            )
            database.execute(insert, [TRANSACTION_ROWS])
            begun = time.monotonic()
            until(lambda: feed.last_offset > TRANSACTION_ROWS // 10)
            assert feed.set_baseline() <= FIRST_BUFFERS
            until(lambda: feed.last_offset > TRANSACTION_ROWS // 2)
            at_kill = feed.last_offset
            feed.kill()
            first = feed.growth
            feed.start()
            until(lambda: feed.last_offset > at_kill + TRANSACTION_ROWS // 10)
            assert feed.set_baseline() <= FIRST_BUFFERS
            await_confirmed(database)
            seconds = time.monotonic() - begun
        keys = keys_of(feed, "public.large", "sync")
    logger.warning(
        "%d rows in %.0f s, killed at offset %d; memory grew by %.1f and %.1f MiB",
        len(keys), seconds, at_kill, first / MIB, feed.growth / MIB,
    )  # fmt: skip
    assert at_kill < TRANSACTION_ROWS
    assert is_complete(keys, TRANSACTION_ROWS)
    assert feed.growth <= MOST_GROWTH


def keys_of(feed: FeedProcess, namespace: str, phase: str) -> pa.ChunkedArray:
    """Return the numbers that are keys of the entries of *namespace* in *phase*, as they come."""
    found = [pa.array([], pa.int64())]
    for batch in feed.entries():
        chosen = pc.and_(
            pc.equal(batch.column("namespace"), namespace), pc.equal(batch.column("phase"), phase)
        )
        rows = batch.filter(pc.and_(chosen, pc.not_equal(batch.column("op"), "noop")))
        found.append(rows.column("key").cast(pa.string()).cast(pa.int64()))
    return pa.chunked_array(found)


def is_complete(keys: pa.ChunkedArray, count: int) -> bool:
    """Return whether *keys* are the numbers from 1 to *count*, each once."""
    bounds = pc.min_max(keys).as_py()
    distinct = pc.count_distinct(keys).as_py()
    return len(keys) == distinct == count and bounds == {"min": 1, "max": count}


class LightLoad(Background):
    """Changes some rows of ``large`` each second."""

    def __init__(self, database: Database, rows: int) -> None:
        super().__init__("light load")
        self._database, self._rows = database, rows
        self.changes = 0

    def _run(self) -> None:
        rng = random.Random(1)
        with self._database.connect() as connection:
            while not self._stopping.wait(0.05):
                change = "UPDATE large SET v = v + 1 WHERE id = %s"
                connection.execute(change, [rng.randrange(1, self._rows + 1)])
                self.changes += 1


class KeptLog(Background):
    """Measures each second how much of the server's log the slot keeps."""

    def __init__(self, database: Database) -> None:
        super().__init__("kept log")
        self._database = database
        self.samples: list[int] = []

    def _run(self) -> None:
        query = (
            "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint"
            " FROM pg_replication_slots"
        )
        with self._database.connect() as connection:
            while not self._stopping.wait(1.0):
                self.samples += [size for (size,) in connection.execute(query).fetchall()]


@pytest.mark.timeout(7200)
def test_gigabytes_are_copied_with_little_of_the_log_kept(tmp_path: Path) -> None:
    """Memory is flat, and the slot moves on although the server logs pages that nobody had read."""
    with server_of(tmp_path, **LARGE_SERVER) as server:
        database = Database("postgres", server.service)
        rows = fill_large(database, COPY_MB * MIB)
        ((before,),) = database.execute("SELECT pg_current_wal_lsn()::text")
        feed = FeedProcess(tmp_path / "feed", database.dsn, tables=["public.large", "public.ends"])
        begun = time.monotonic()
        with feed, KeptLog(database) as kept, LightLoad(database, rows) as load:
            until(lambda: feed.last_offset > rows // 10)
            assert feed.set_baseline() <= FIRST_BUFFERS
            feed.await_event("copy-complete", 6000, table="public.large")
            seconds = time.monotonic() - begun
            feed.kill()
        ((size, written),) = database.execute(
            "SELECT pg_table_size('large'), pg_wal_lsn_diff(pg_current_wal_lsn(), %s)::bigint",
            [before],
        )
        keys = keys_of(feed, "public.large", "copy")
    logger.warning(
        "%d MiB and %d rows in %.0f s beside %d changes; memory grew by %.1f MiB; the slot kept "
        "%.0f MiB of %.0f MiB",
        size / MIB, rows, seconds, load.changes, feed.growth / MIB, max(kept.samples) / MIB,
        written / MIB,
    )  # fmt: skip
    assert is_complete(keys, rows)
    assert feed.growth <= MOST_GROWTH
    assert max(kept.samples) <= MOST_KEPT


def fill_large(database: Database, size: int) -> int:
    """Create ``large`` with about *size* bytes, which nobody has read; return its rows."""
    rows, step = size // ROW_BYTES, 100_000
    database.execute("CREATE TABLE large (id bigint PRIMARY KEY, v int, body text)")
    with database.connect(options="-c synchronous_commit=off") as connection:
        for first in range(1, rows + 1, step):
            connection.execute(
                "INSERT INTO large SELECT n, 0, repeat(md5(n::text), 40)"
                " FROM generate_series(%s::bigint, %s) n",
                [first, min(rows, first + step - 1)],
            )
    database.execute("CHECKPOINT")
    return rows


class Inserts(Background):
    """Inserts rows into ``large``, ten each tenth of a second."""

    def __init__(self, database: Database, first: int) -> None:
        super().__init__("inserts")
        self._database, self.next = database, first

    def _run(self) -> None:
        with self._database.connect() as connection:
            while not self._stopping.wait(0.1):
                connection.execute(
                    "INSERT INTO large SELECT n, repeat(md5(n::text), 40)"
                    " FROM generate_series(%s::bigint, %s) n",
                    [self.next, self.next + 9],
                )
                self.next += 10


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("server_timeout", ["60s", "10s"])
def test_a_full_log_ends_no_session(server_timeout: str, tmp_path: Path) -> None:
    """While nothing is polled for minutes the walsender stays, and everything comes afterwards."""
    with server_of(tmp_path, wal_sender_timeout=server_timeout) as server:
        database = Database("postgres", server.service)
        database.execute("CREATE TABLE large (id bigint PRIMARY KEY, v text)")
        limits = {"max_bytes": "16MiB", "segment_bytes": "4MiB", "compression": "none"}
        feed = FeedProcess(
            tmp_path / "feed", database.dsn, log=limits, tables=["public.large", "public.ends"]
        )
        walsender = "SELECT active_pid, confirmed_flush_lsn::text FROM pg_replication_slots"
        inserts = Inserts(database, 30_001)
        with feed:
            feed.await_event("table-in-sync", table="public.large")
            database.execute(
                "INSERT INTO large SELECT n, repeat(md5(n::text), 40)"
                " FROM generate_series(1, 30000) n"
            )
            feed.await_event("log-full")
            ((pid, at),) = database.execute(walsender)
            with inserts:
                time.sleep(FULL_SECONDS)
            assert database.execute(walsender) == [(pid, at)]
            feed.lift_limit()
            await_confirmed(database)
            assert database.execute(walsender)[0][0] == pid
        keys = keys_of(feed, "public.large", "sync")
        ends = feed.events("reader-unavailable", "reader-stopped")
    logger.warning(
        "%d rows behind %.0f s of a full log; memory grew by %.1f MiB",
        len(keys), FULL_SECONDS, feed.growth / MIB,
    )  # fmt: skip
    assert ends == []
    assert is_complete(keys, inserts.next - 1)
