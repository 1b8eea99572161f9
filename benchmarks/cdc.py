"""The reader ``postgres-cdc`` against PostgreSQL's own programs: stream, small changes, copy."""

from __future__ import annotations

import shutil
import time
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from transporter_adaptors.postgres_cdc.reader import CdcReader

from benchmarks.figures import Aim, Comparison, Section
from benchmarks.report import number
from transporter.adaptor import state_name
from transporter.log.commit_log import CommitLog, split_for_append
from transporter.testing import FixedResume

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.services import LogicalPostgres
    from benchmarks.setting import Setting
    from transporter.adaptor import Batch

_PATIENCE: Final = 600.0
_NAME: Final = "bench"
_LARGE: Final = 1000
"""Rows of a large transaction."""
_STREAM_AIM, _SMALL_AIM = Aim(0.9, at_least=True), Aim(0.8, at_least=True)
_COPY_AIM, _JSON_AIM = Aim(0.35, at_least=True), Aim(0.8, at_least=True)
_TABLE: Final = """
CREATE TABLE {table} (
    id int8 PRIMARY KEY, customer int4, state text, title varchar(60), note text,
    amount numeric(12,2), created_at timestamptz, paid bool, score float8, tags text[], extra jsonb
)"""
_ROWS: Final = """
INSERT INTO {table}
SELECT n, n % 1000, (ARRAY['placed', 'paid', 'packed'])[1 + n % 3], 'order ' || md5(n::text),
    CASE WHEN n % 7 > 0 THEN 'leave it with the neighbours, please ring twice' END,
    n % 100000 / 100.0, timestamptz '2024-01-01' + n * interval '1.37 s', n % 2 = 0,
    n / 7.0::float8,
    ARRAY['red', 'blue', 'tag' || n % 10], jsonb_build_object('n', n, 'list', ARRAY[1, 2, 3])
FROM generate_series({first}, {last}) AS n"""
_FILL: Final = """
DO $$ BEGIN
    FOR i IN 0 .. {transactions} - 1 LOOP
        {rows};
        COMMIT;
    END LOOP;
END $$"""

METHOD: Final = f"""\
Rows of about 200 bytes in 11 columns of nine types. Each side reads the same part of the server's
log, by its own copy of one slot, in pgoutput's format.

- The stream: the reader's poll, append to a real log on the same disk, synced, and commit, as a
  feed does. The clock runs from the open reader to the last append.
  `pg_recvlogical -f /dev/null` receives the same messages and drops them. Its clock is that of its
  process. Transactions have {_LARGE} rows, or one each.
- The copy: from the open reader to the entry that the copy is complete, with all rows in the log.
  The rivals are `psql -c 'COPY … TO STDOUT' > /dev/null`, of the table and of `row_to_json` of each
  row."""
LIMITS: Final = """\
The server decodes in one process, and the reader works beside it. With fewer idle cores than both
of them need, each row costs the sum of both. While the reader appends it receives nothing, so the
server waits as soon as the buffers of the socket are full. A chunk of the copy, of some 8 000 rows,
takes the server about as long as `COPY of row_to_json` in the order of the key, and a third more:
its transaction, its snapshot and the columns of the table are read for each chunk anew, one round
trip after another, because either may have changed."""


def measure(setting: Setting) -> Section:
    """Measure the stream of large and of small transactions, and the copy."""
    server = setting.services.logical_postgres
    sides = (
        ("large", f"transactions of {_LARGE} rows", setting.scale(300_000, 20_000), _STREAM_AIM),
        ("small", "transactions of one row", setting.scale(60_000, 5_000), _SMALL_AIM),
    )
    comparisons, notes = list[Comparison](), list[str]()
    for table, title, rows, aim in sides:
        setting.report(f"writing {rows} rows in {title}")
        stream = Stream(server, setting.make_folder(table), table, rows)
        stream.fill(_LARGE if table == "large" else 1)
        found = setting.interleave({"reader": stream.read, "bare": stream.receive})
        ours, theirs = found["reader"], found["bare"]
        rival = "pg_recvlogical to /dev/null"
        comparisons.append(Comparison(f"stream, {title}", rival, "rows/s", ours, theirs, aim))
        used = number(median(stream.used[1:]) / rows * 1e6)
        notes.append(f"The stream of {title} takes {used} µs CPU a row in the reader's process.")
    copied = Copied(server, setting.make_folder("copied"), setting.scale(500_000, 20_000))
    found = setting.interleave(
        {
            "reader": copied.read,
            "bare": partial(copied.bare, "copied"),
            "json": partial(copied.bare, "(SELECT pg_catalog.row_to_json(c) FROM copied AS c)"),
        }
    )
    for rival, title, aim in (
        ("bare", "COPY", _COPY_AIM),
        ("json", "COPY of row_to_json", _JSON_AIM),
    ):
        comparisons.append(Comparison("copy", title, "rows/s", found["reader"], found[rival], aim))
    return Section("cdc", METHOD, tuple(comparisons), tuple(notes), LIMITS)


class Stream:
    """A part of a server's log with the inserts of one table, and a slot before it."""

    def __init__(self, server: LogicalPostgres, folder: Path, table: str, rows: int) -> None:
        """Create *table*, and by a first start of the reader its publication and its slot."""
        self._server, self._folder, self._table, self._rows = server, folder, table, rows
        self._turn, self._end = 0, ""
        self.used: list[float] = []
        """The seconds of CPU that each of the reader's turns took."""
        server.execute(_TABLE.format(table=table))
        self._settings = {
            "dsn": server.dsn,
            "tables": [f"public.{table}"],
            "publication": table,
            "copy": "none",
        }
        resume = FixedResume()
        with open_reader({**self._settings, "slot": table}, resume) as reader:
            first = reader.poll(0.0)
        self._resume_from(first)

    def _resume_from(self, batch: Batch) -> None:
        if batch.state is None or batch.position is None:
            raise RuntimeError("the reader's first batch has no position")
        self._position, self._states = batch.position, {state_name(batch.state): batch.state}

    def fill(self, size: int) -> None:
        """Write the rows in transactions of *size* each."""
        first = f"i * {size} + 1"
        rows = _ROWS.format(table=self._table, first=first, last=f"(i + 1) * {size}")
        self._server.execute("SET synchronous_commit = off")
        fill_in_transactions(self._server, rows, self._rows // size)
        self._server.execute("CHECKPOINT")
        ((self._end,),) = self._server.execute("SELECT pg_current_wal_flush_lsn()::text")

    @contextmanager
    def _slot(self) -> Iterator[str]:
        """Copy the slot, and drop the copy at the end."""
        self._turn += 1
        name = f"{self._table}_{self._turn}"
        copy = "SELECT pg_copy_logical_replication_slot(%s, %s)"
        self._server.execute(copy, [self._table, name])
        try:
            yield name
        finally:
            self._server.drop_slot(name)

    def read(self) -> float:
        """Return the rows a second that the reader puts into a log."""
        folder = self._folder / "log"
        shutil.rmtree(folder, ignore_errors=True)
        resume = FixedResume(self._position)
        resume.states = self._states
        with (
            self._slot() as slot,
            CommitLog.open(folder) as log,
            open_reader({**self._settings, "slot": slot}, resume) as reader,
        ):
            began, used = time.perf_counter(), time.process_time()
            log_batches(reader, log, self._rows)
            self.used.append(time.process_time() - used)
            return self._rows / (time.perf_counter() - began)

    def receive(self) -> float:
        """Return the rows a second that ``pg_recvlogical`` receives."""
        options = ("proto_version=1", f"publication_names={self._table}")
        with self._slot() as slot:
            began = time.perf_counter()
            self._server.run(
                "pg_recvlogical",
                *("-d", self._server.dsn, "-S", slot, "--start", "-f", "/dev/null", "--no-loop"),
                *(f"--option={option}" for option in options),
                f"--endpos={self._end}",
            )
            return self._rows / (time.perf_counter() - began)


class Copied:
    """A table that is copied."""

    def __init__(self, server: LogicalPostgres, folder: Path, rows: int) -> None:
        """Create and fill it."""
        self._server, self._folder, self._rows, self._turn = server, folder, rows, 0
        server.execute(_TABLE.format(table="copied"))
        server.execute(_ROWS.format(table="copied", first=1, last=rows))
        server.execute("VACUUM (ANALYZE) copied")
        server.execute("CHECKPOINT")

    def read(self) -> float:
        """Return the rows a second that the reader puts into a log."""
        self._turn += 1
        folder, slot = self._folder / "log", f"copied_{self._turn}"
        shutil.rmtree(folder, ignore_errors=True)
        settings = {"dsn": self._server.dsn, "tables": ["public.copied"], "slot": slot}
        try:
            with (
                CommitLog.open(folder) as log,
                open_reader({**settings, "publication": "copied"}, FixedResume()) as reader,
            ):
                began = time.perf_counter()
                # The last entry says that the copy is complete.
                log_batches(reader, log, self._rows + 1)
                return self._rows / (time.perf_counter() - began)
        finally:
            self._server.drop_slot(slot)

    def bare(self, source: str) -> float:
        """Return the rows a second of COPY in psql."""
        began = time.perf_counter()
        self._server.run("psql", "-X", "-d", self._server.dsn, "-c", f"COPY {source} TO STDOUT")
        return self._rows / (time.perf_counter() - began)


def fill_in_transactions(server: LogicalPostgres, insert: str, count: int) -> None:
    """Run the statement *insert* in *count* transactions, whose number in it is ``i``."""
    server.execute(_FILL.format(transactions=count, rows=insert))


@contextmanager
def open_reader(settings: dict[str, Any], resume: FixedResume) -> Iterator[CdcReader]:
    """Open a reader, and close it at the end."""
    reader = CdcReader(CdcReader.Config.model_validate(settings))
    try:
        reader.open(resume)
        yield reader
    finally:
        reader.close()


def log_batches(reader: CdcReader, log: CommitLog, rows: int) -> None:
    """Poll, append and commit until *rows* messages are durable."""
    found, ends = 0, time.monotonic() + _PATIENCE
    while found < rows:
        if time.monotonic() > ends:
            raise TimeoutError(f"{found} messages of {rows} within {_PATIENCE:g} s")
        reader.keep_alive()
        batch = reader.poll(0.5)
        if len(batch.messages):
            for part in split_for_append(batch.messages):
                log.append(part, _NAME, batch.position)
            found += batch.messages.num_rows
        if batch.position is not None:
            reader.commit(batch.position)
    if found != rows:
        raise RuntimeError(f"{found} messages, where {rows} rows were written")
