"""Shared tools for tests of restarts: an engine on an outbox, two exact sinks, one that is away."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import lmdb
from leader_tools import Node

from transporter.log.reader import LogReader
from transporter.offsets.offset_log import read_state

if TYPE_CHECKING:
    from pathlib import Path

    from services.postgres import Database

ELECTORS: dict[str, Any] = {"alone": "none", "elected": {"kind": "postgres", "term": "1s"}}


def insert(database: Database, first: int, count: int) -> None:
    """Insert rows numbered from *first* on, over five keys."""
    database.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys,"
        " kafka_header_values) SELECT 'rows', 'k' || n % 5, n::text, '{}', '{}'"
        f" FROM generate_series({first}, {first + count - 1}) AS n"
    )


def document(dsn: str, elector: Any, **reader: Any) -> dict[str, Any]:
    """Return a pipeline from the outbox into two exact sinks and one that may be away."""
    source = {
        "name": "outbox",
        "adaptor": "postgres-outbox",
        "dsn": dsn,
        "release": "delivered",
        "elector": elector,
        "poll_interval": "50ms",
        "batch_rows": 64,
    }
    sinks = {
        "file": {"adaptor": "file", "path": "file.jsonl"},
        "lmdb": {"adaptor": "lmdb", "path": "lmdb", "layout": "offset", "map_size": "16MiB"},
        "away": {"adaptor": "engine_tools:LinesWriter", "path": "away.jsonl"},
    }
    retry = {"backoff": "1ms..50ms"}
    return {
        "name": "restarts",
        "readers": [source | reader],
        "routes": [{"name": name, "writer": sinks[name], "retry": retry} for name in sinks],
        "log": {"dir": "log"},
        "shutdown_timeout": "300ms",
    }


def node_of(folder: Path, database: Database, elector: Any, **reader: Any) -> Node:
    """Return an engine in *folder* whose route ``away`` is away."""
    folder.mkdir()
    (folder / "away.down").write_text("write")
    return Node(folder, document(database.dsn, elector, **reader))


def in_file(folder: Path) -> list[int]:
    """Return the numbers of the rows in the exact file, in its order."""
    file = folder / "file.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line)["data"] for line in lines if line.endswith("}")]


def in_lmdb(folder: Path) -> list[int]:
    """Return the numbers of the rows in LMDB, in the order of their offsets."""
    with lmdb.open(str(folder / "lmdb"), readonly=True, lock=False, max_dbs=8) as environment:
        entries = environment.open_db(b"entries/lmdb", create=False)
        with environment.begin(db=entries) as transaction:
            return [int(json.loads(value)["data"]) for _, value in transaction.cursor()]


def terms(node: Node) -> int:
    """Return the number of terms that the engine has begun."""
    return len(node.events("leader-acquired", "leader-refreshed"))


def lead_elsewhere(database: Database) -> None:
    """Begin a term for an engine that reads into another log."""
    database.execute("UPDATE transporter_term SET term = term + 1, leader_id = gen_random_uuid()")


def settled(node: Node) -> int:
    """Return the watermark of the exact file's route."""
    return read_state(node.folder / "log", "file").watermark


def logged(node: Node) -> int:
    """Return the number of entries in the log. No engine may be running."""
    with LogReader(node.folder / "log") as log:
        return sum(found.frame.count for found in log.frames_backwards(2**62))
