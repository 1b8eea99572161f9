"""The processes of the benchmark ``outbox-claims``: our reader with a log, and bare statements.

``python -m benchmarks.claim_workers ROLE DSN FOLDER``: connects and prints ``ready``. For each
number on standard input it takes so many rows, and prints, as JSON, the time of the request and the
steps.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import psycopg
import pyarrow as pa
from psycopg import IsolationLevel, sql
from transporter_adaptors.postgres.config import OutboxConfig
from transporter_adaptors.postgres.reader import OutboxReader

from transporter.engine.reading.reader_resume import LogResume
from transporter.log.commit_log import CommitLog, split_for_append

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

BATCH: Final = 10_000
"""Rows of a batch, the reader's default."""
_WAIT: Final = 0.5
_NAME: Final = "outbox"
_COLUMNS: Final = (
    "id, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values"
)
_TYPES: Final = ("int8", "timestamptz", "varchar", "varchar", "varchar", "text[]", "text[]")
_MARK: Final = f"""
UPDATE outbox SET leader_id = '00000000-0000-0000-0000-000000000001'
WHERE id = ANY (ARRAY(SELECT id FROM outbox WHERE id > %s ORDER BY id LIMIT {BATCH}))
RETURNING {_COLUMNS}"""  # noqa: S608 - constants
_PURGE: Final = "DELETE FROM outbox WHERE id = ANY (%s::bigint[])"
_COPY: Final = f"""
COPY (SELECT {_COLUMNS} FROM outbox WHERE id > {{last}} ORDER BY id LIMIT {BATCH}) TO STDOUT
"""  # noqa: S608 - constants
_DELETE: Final = "DELETE FROM outbox WHERE id > %s AND id <= %s"

Connection = psycopg.Connection[Any]
TakenBatch = tuple[int, float]
"""The number of rows taken, and the time when they were at hand."""


@contextmanager
def open_reader(
    claim: Literal["mark", "take"], dsn: str, folder: Path
) -> Iterator[Callable[[], TakenBatch]]:
    """Poll, append, commit, as a feed does. Rows are at hand when they are durable in the log."""
    reader = OutboxReader(OutboxConfig.model_validate({"dsn": dsn, "claim": claim}))
    with CommitLog.open(folder) as log:
        reader.open(LogResume(log, _NAME, _ignore))
        try:
            yield partial(log_one, reader, log)
        finally:
            reader.close()


def _ignore(event: str, **details: object) -> None:
    """Ignore an event of the reader."""


def log_one(reader: OutboxReader, log: CommitLog) -> TakenBatch:
    """Log one batch, and acknowledge it to the source. Return the number of rows, and the time."""
    batch = reader.poll(_WAIT)
    if not isinstance(batch.messages, pa.RecordBatch) or batch.position is None:
        return 0, 0.0
    parts = list(split_for_append(batch.messages))
    for part in parts:
        log.append(part, _NAME, batch.position if part is parts[-1] else None, batch.term)
    durable = time.time()
    reader.commit(batch.position)
    return batch.messages.num_rows, durable


@contextmanager
def run_floor(
    floor: Callable[[Connection], Floor], dsn: str, _: Path
) -> Iterator[Callable[[], TakenBatch]]:
    """Run *floor* again and again, waiting for a notification when there is nothing."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("LISTEN outbox")
        take = floor(connection)

        def take_or_wait() -> TakenBatch:
            found, at_hand = take()
            if not found:
                list(connection.notifies(timeout=_WAIT, stop_after=1))
            return found, at_hand

        yield take_or_wait


class MarkFloor:
    """``UPDATE … RETURNING``, then ``DELETE … WHERE id = ANY``: two commits.

    The rows are in the driver's memory when they are at hand. Only their ids become Python objects,
    unless *parsed*.
    """

    def __init__(self, connection: Connection, *, parsed: bool = False) -> None:
        """Take rows by *connection*, the first ones first."""
        self._cursor, self._parsed, self._last = connection.cursor(), parsed, 0

    def __call__(self) -> TakenBatch:
        """Take a batch."""
        self._cursor.execute(_MARK, [self._last])
        ids = self._fetch_ids() if self._parsed else self._read_ids()
        at_hand = time.time()
        if ids:
            self._cursor.execute(_PURGE, ["{" + ",".join(map(str, ids)) + "}"])
            self._last = max(ids)
        return len(ids), at_hand

    def _fetch_ids(self) -> list[int]:
        return [row[0] for row in self._cursor.fetchall()]

    def _read_ids(self) -> list[int]:
        result = self._cursor.pgresult
        assert result is not None  # noqa: S101 - the statement was just run
        return [int(result.get_value(row, 0) or 0) for row in range(result.ntuples)]


class CopyFloor:
    """``COPY (SELECT …) TO STDOUT``, then a ``DELETE`` of that range: one snapshot, one commit.

    A row is a line of bytes of which nothing is read, but for the last one's id. With *parsed* it
    becomes a tuple of Python objects.
    """

    def __init__(self, connection: Connection, *, parsed: bool = False) -> None:
        """Take rows by *connection*, the first ones first."""
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        self._connection, self._parsed, self._last = connection, parsed, 0

    def __call__(self) -> TakenBatch:
        """Take a batch."""
        with self._connection.transaction():
            count, last = self._copy_rows()
            at_hand = time.time()
            if count:
                self._connection.execute(_DELETE, [self._last, last])
                self._last = last
        return count, at_hand

    def _copy_rows(self) -> tuple[int, int]:
        count, row = 0, None
        statement = sql.SQL(_COPY).format(last=sql.Literal(self._last))
        with self._connection.cursor().copy(statement) as copy:
            if self._parsed:
                copy.set_types(_TYPES)
            rows: Iterable[Any] = copy.rows() if self._parsed else copy
            for row in rows:  # noqa: B007 - the last one counts
                count += 1
        if row is None:
            return 0, self._last
        return count, row[0] if self._parsed else int(bytes(row).partition(b"\t")[0])


Floor = MarkFloor | CopyFloor

ROLES: Final[dict[str, Callable[[str, Path], AbstractContextManager[Callable[[], TakenBatch]]]]] = {
    "mark": partial(open_reader, "mark"),
    "take": partial(open_reader, "take"),
    "bare mark": partial(run_floor, MarkFloor),
    "bare take": partial(run_floor, CopyFloor),
    "parsed mark": partial(run_floor, partial(MarkFloor, parsed=True)),
    "parsed take": partial(run_floor, partial(CopyFloor, parsed=True)),
}


def take_rows(take: Callable[[], TakenBatch], rows: int) -> list[tuple[int, float, float]]:
    """Take *rows* rows. Return the total after each batch, and when it was at hand and purged."""
    found: list[tuple[int, float, float]] = []
    count = 0
    while count < rows:
        taken, at_hand = take()
        if taken:
            count += taken
            found.append((count, at_hand, time.time()))
    return found


def main(role: str, dsn: str, folder: str) -> None:
    """Serve one line of standard input after the other."""
    with ROLES[role](dsn, Path(folder)) as take:
        _print("ready")
        for line in sys.stdin:
            began = time.time()
            _print({"began": began, "steps": take_rows(take, int(line))})


def _print(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
