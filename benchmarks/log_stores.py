"""Appending to the log beside committing the same messages to SQLite and to LMDB."""

from __future__ import annotations

import pickle
import shutil
import sqlite3
import time
from contextlib import closing
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

import lmdb

from benchmarks.figures import Comparison, Section
from benchmarks.messages import batches, messages
from transporter.log.commit_log import CommitLog
from transporter.message import MESSAGE_SCHEMA, messages_to_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.setting import Setting
    from transporter.message import Message

T = TypeVar("T")
_ROWS: Final = 1000
_MAP_BYTES: Final = 4 << 30
_PLAIN: Final = tuple(name for name in MESSAGE_SCHEMA.names if name != "headers")
_TABLE: Final = f"CREATE TABLE entries (id INTEGER PRIMARY KEY, {', '.join(_PLAIN)}, headers)"
_MARKS: Final = ", ".join("?" * (len(_PLAIN) + 2))
_INSERT: Final = f"INSERT INTO entries VALUES ({_MARKS})"  # noqa: S608 - our own constant

METHOD: Final = f"""\
The same messages (about 200 bytes of JSON each, {_ROWS} a commit), one caller, each commit durable
before the next. SQLite: `journal_mode=WAL, synchronous=FULL`, a table with a column for each field,
`executemany`. LMDB: its defaults (each commit is synced), the number as key with `append=True`,
the fields pickled as the value. All three begin with `Message` objects. "Ready batches" begins
with Arrow record batches, which our readers of PostgreSQL make. The stores do without the
additional work of a log: checksums, positions and floors."""


def measure(setting: Setting) -> Section:
    """Commit the same messages in turns."""
    ready, given = batches(20, _ROWS), messages(20 * _ROWS)
    objects = [given[at : at + _ROWS] for at in range(0, len(given), _ROWS)]
    count, place = setting.scale(200, 40), setting.make_folder("stores")
    found = setting.interleave(
        {
            "objects": partial(_append, place / "log", objects, count, messages_to_batch),
            "ready": partial(_append, place / "log", ready, count, lambda batch: batch),
            "sqlite": partial(commit_to_sqlite, place / "sqlite", objects, count),
            "lmdb": partial(commit_to_lmdb, place / "lmdb", objects, count),
        }
    )
    subjects = {"objects": "append, from objects", "ready": "append, ready batches"}
    rivals = {"sqlite": "SQLite, WAL, FULL", "lmdb": "LMDB"}
    comparisons = tuple(
        Comparison(subject, rival, "messages/s", found[ours], found[theirs])
        for ours, subject in subjects.items()
        for theirs, rival in rivals.items()
    )
    return Section("log-stores", METHOD, comparisons)


def _append(
    directory: Path, given: list[T], count: int, encode: Callable[[T], pa.RecordBatch]
) -> float:
    shutil.rmtree(directory, ignore_errors=True)
    with CommitLog.open(directory) as log:
        began = time.perf_counter()
        for number in range(count):
            log.append(encode(given[number % len(given)]), "bench", "position")
        return _rate(log.durable + 1, count, time.perf_counter() - began)


def commit_to_sqlite(folder: Path, given: list[list[Message]], count: int) -> float:
    """Return the messages committed to SQLite in a second."""
    with closing(
        sqlite3.connect(_make_folder(folder) / "entries.db", isolation_level=None)
    ) as store:
        store.execute("PRAGMA journal_mode=WAL")
        store.execute("PRAGMA synchronous=FULL")
        store.execute(_TABLE)
        began = time.perf_counter()
        for number in range(count):
            store.execute("BEGIN")
            store.executemany(_INSERT, _rows(given[number % len(given)], number * _ROWS))
            store.execute("COMMIT")
        took = time.perf_counter() - began
        (held,) = store.execute("SELECT count(*) FROM entries").fetchone()
        return _rate(held, count, took)


def _rows(given: list[Message], first: int) -> Iterator[tuple[object, ...]]:
    fields = attrgetter(*_PLAIN)
    for number, message in enumerate(given, first):
        yield number, *fields(message), pickle.dumps(message.headers)


def commit_to_lmdb(folder: Path, given: list[list[Message]], count: int) -> float:
    """Return the messages committed to LMDB in a second."""
    with closing(lmdb.open(str(_make_folder(folder)), map_size=_MAP_BYTES)) as store:
        began = time.perf_counter()
        for number in range(count):
            with store.begin(write=True) as transaction:
                for key, value in _pairs(given[number % len(given)], number * _ROWS):
                    transaction.put(key, value, append=True)
        took = time.perf_counter() - began
        return _rate(store.stat()["entries"], count, took)


def _pairs(given: list[Message], first: int) -> Iterator[tuple[bytes, bytes]]:
    fields = attrgetter(*MESSAGE_SCHEMA.names)
    for number, message in enumerate(given, first):
        yield number.to_bytes(8, "big"), pickle.dumps(fields(message))


def _make_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _rate(held: int, count: int, seconds: float) -> float:
    """Return the rate of *count* commits, of which the store holds *held* messages."""
    if held != count * _ROWS:
        raise RuntimeError(f"{count * _ROWS} messages were committed, and {held} are there")
    return held / seconds
