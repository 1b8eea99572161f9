"""``postgres-cdc`` through the real command: tables into a store, with kills of everything."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import lmdb
import pytest
from acceptance_tools import await_true, gone, running, transporter
from cdc_tools import (
    KEYS,
    Writers,
    clean_slots,
    histories,
    logged_histories,
    prepare_traced,
    wrong_keys,
)
from transporter_adaptors.lmdb.writer import latest_key

from transporter.log.filesystem import RealFileSystem
from transporter.log.meta import published_offset
from transporter.log.reader import LogReader
from transporter.message import Entries

if TYPE_CHECKING:
    from pathlib import Path

    from services.postgres import Database

    from transporter.message import Message

PIPELINE = """
name: cdc
log: {dir: log, retention: {age: off}}
readers:
  - name: shop
    adaptor: postgres-cdc
    dsn: ${SHOP_DSN}
    tables: [public.*, "!public.history"]
    copy_rows: 20
routes:
  - name: store
    writer: {adaptor: lmdb, path: store.lmdb}
"""
KILLS = 3


@pytest.mark.exhaustive
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_tables_arrive_across_kills(tmp_path: Path, postgres: Database) -> None:
    """Beside writers and kill -9 each key's history in the log is exact, and so is the store."""
    chance = random.Random(7)
    prepare_traced(postgres)
    pipeline = tmp_path / "pipeline.yaml"
    pipeline.write_text(PIPELINE)
    with clean_slots(postgres):
        with Writers(postgres, KEYS, seed=7):
            for _ in range(KILLS):
                with running(pipeline, SHOP_DSN=postgres.dsn) as engine:
                    engine.await_event("reader-opened")
                    time.sleep(chance.uniform(0.2, 4.0))
                    assert gone(engine.kill(), timeout=5) == []
        with running(pipeline, SHOP_DSN=postgres.dsn) as engine:
            # An earlier engine may have come so far, so that no event tells it.
            words = {"SHOP_DSN": postgres.dsn}
            await_true(lambda: {*table_phases(pipeline, words)} == {"in sync"}, 180, "in sync")
            postgres.execute("INSERT INTO numbers VALUES (100000, 'end')")
            last = latest_key("public.numbers", b"100000")
            await_true(lambda: last in stored(tmp_path / "store.lmdb"), 120, "the last row")
            assert engine.stop() == 0
    assert wrong_keys(histories(postgres), logged_histories(logged(tmp_path / "log"))) == {}
    store = stored(tmp_path / "store.lmdb")
    for table in KEYS:
        rows = postgres.execute(f"SELECT k::text, row_to_json(t)::text FROM public.{table} t")
        kept = {key: data for key, data in store.items() if f"public.{table}".encode() in key}
        assert kept == {
            latest_key(f"public.{table}", key.encode()): data.encode() for key, data in rows
        }


def logged(directory: Path) -> list[Message]:
    """Return all messages of the log in *directory*."""
    with LogReader(directory) as reader:
        last = published_offset(RealFileSystem(), directory)
        frames = reader.frames(reader.first_offset(), last)
        return [entry.message for frame in frames for entry in Entries(frame.entries(), "log")]


def stored(path: Path) -> dict[bytes, bytes]:
    """Return the latest data by key."""
    # Without a file, or without a database in it, the writer is just making them.
    with (
        suppress(lmdb.Error),
        lmdb.open(str(path), max_dbs=8, readonly=True, subdir=path.is_dir()) as environment,
        environment.begin() as transaction,
    ):
        latest = environment.open_db(b"latest", txn=transaction, create=False)
        return dict(transaction.cursor(db=latest))
    return {}


@pytest.mark.exhaustive
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_an_operator_watches_a_running_engine_and_removes_its_source(
    tmp_path: Path, postgres: Database
) -> None:
    """The commands set up before the first start, look beside the engine, and remove after it."""
    postgres.execute("CREATE TABLE words (id int PRIMARY KEY, v text)")
    postgres.execute("INSERT INTO words SELECT n, 'a' FROM generate_series(1, 50) n")
    postgres.execute("ANALYZE words")
    pipeline = tmp_path / "pipeline.yaml"
    pipeline.write_text(PIPELINE)
    words = {"SHOP_DSN": postgres.dsn}
    with clean_slots(postgres):
        objects = transporter("cdc", "init", str(pipeline), "--run", **words)["objects"]
        assert [each["outcome"] for each in objects[-2:]] == ["created", "later"]
        assert objects[-2]["name"] == "publication transporter_shop"
        with running(pipeline, **words) as engine:
            engine.await_event("table-in-sync", table="public.words")
            postgres.execute("INSERT INTO words VALUES (51, 'b')")
            await_true(lambda: table_phases(pipeline, words) == ["in sync"], 60, "a new position")
            found = transporter("cdc", "status", str(pipeline), **words)
            assert (found["slot"]["is_active"], found["slot"]["wal_status"]) == (True, "reserved")
            findings = transporter("cdc", "check", str(pipeline), **words)["findings"]
            assert {each["level"] for each in findings} == {"fine"}
            slot = found["slot"]["name"]
            assert any(f"slot {slot} is active for PID" in each["text"] for each in findings)
            assert engine.stop() == 0
        assert transporter("cdc", "drop", str(pipeline), "--yes", **words)["dropped"] == [
            f"slot {slot}",
            "publication transporter_shop",
        ]
        (line,) = transporter("audit", str(pipeline))[-1:]
        assert (line["action"], line["outcome"]) == ("cdc drop", "done")
        with running(pipeline, **words) as engine:
            stopped = engine.await_event("reader-stopped")
            assert f"slot {slot} is gone" in stopped["problem"]


def table_phases(pipeline: Path, variables: dict[str, str]) -> list[str]:
    """Return the phase of each table."""
    tables = transporter("cdc", "status", str(pipeline), **variables)["tables"]
    return [each["phase"] for each in tables]
