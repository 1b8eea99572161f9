"""The writer ``postgres`` against statements with ready-made values, and a replica end to end."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg
from pydantic import SecretStr
from transporter_adaptors.postgres_cdc.messages import Commit, Insert, decode_copy, decode_message
from transporter_adaptors.postgres_cdc.session import connect_replication
from transporter_adaptors.postgres_cdc.wire import SlotStream
from transporter_adaptors.postgres_writer.catalog import Catalog
from transporter_adaptors.postgres_writer.session import connect
from transporter_adaptors.postgres_writer.upsert_mode import Upserts
from transporter_adaptors.postgres_writer.writer import PostgresWriter

from benchmarks.cdc import fill_in_transactions
from benchmarks.figures import Aim, Comparison, Section
from benchmarks.services import import_test_tool
from benchmarks.setting import wait_until
from transporter.adaptor import WriterContext
from transporter.message import Message
from transporter.testing import RecordingAck, entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from transporter_adaptors.postgres_cdc.messages import Row

    from benchmarks.services import LogicalPostgres
    from benchmarks.setting import Setting
    from transporter.message import Entries

    _Write = Callable[[psycopg.Connection[Any], Sequence[Row]], None]

_SLICE: Final = 20_000
_ROWS_A_STATEMENT: Final = 500
"""The default of Debezium's JDBC sink (``batch.size``)."""
_STATEMENTS_A_BATCH: Final = 100
"""The default of pgstream's writer of changes."""
_PATIENCE: Final = 300.0
_POLL: Final = 0.1
_COLUMNS: Final = {
    "id": "int8",
    "customer": "int4",
    "state": "text",
    "title": "varchar(60)",
    "note": "text",
    "amount": "numeric(12,2)",
    "created_at": "timestamptz",
    "paid": "bool",
    "score": "float8",
    "extra": "jsonb",
}
_NAMES: Final = ", ".join(_COLUMNS)
_TABLE: Final = (
    "CREATE TABLE {table} ("
    + ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
    + ", PRIMARY KEY (id))"
)
_ROWS: Final = """
INSERT INTO {table}
SELECT n, n % 1000, (ARRAY['placed', 'paid', 'packed'])[1 + n % 3], 'order ' || md5(n::text),
    CASE WHEN n % 7 > 0 THEN 'leave it with the neighbours, please ring twice' END,
    n % 100000 / 100.0, timestamptz '2024-01-01' + n * interval '1.37 s', n % 2 = 0,
    n / 7.0::float8, jsonb_build_object('n', n, 'list', ARRAY[1, 2, 3])
FROM generate_series({first}, {last}) AS n"""
_CONFLICT: Final = "ON CONFLICT (id) DO UPDATE SET " + ", ".join(
    f"{name} = EXCLUDED.{name}" for name in _COLUMNS if name != "id"
)
_SLOT: Final = "replica"
_PIPELINE: Final = """\
name: replica
log: {dir: log}
readers:
  - {name: source, adaptor: postgres-cdc, dsn: "${SERVER_DSN}", tables: [public.changed],
     slot: replica, publication: replica, copy: none}
routes:
  - name: ROUTE
    writer: {adaptor: postgres, dsn: "${SERVER_DSN}", tables: {public.changed: arrived}}
"""

METHOD: Final = f"""\
Rows of about 200 bytes in {len(_COLUMNS)} columns of nine types, into a table with a primary key.

- Upserts: the writer is given slices of {_SLICE} entries, with the data that `postgres-cdc` logs.
  The rival is `INSERT … SELECT FROM unnest(…) ON CONFLICT DO UPDATE` with one ready-made array a
  column, a transaction a slice: no client has less to do. First the table is empty, then each row
  is there. "Ready-made JSON" is the same with `json_to_recordset` of one JSON document a slice, so
  it is what the server needs for values that come as JSON.
- Effectively once: the same against the writer's own statements in a transaction that has neither
  fence nor stored offset, with slices of {_SLICE} and of 100 entries.
- End to end: a real `transporter run` with its defaults follows a table into another one of the
  same server. The rivals follow it by a slot of their own, received and decoded by the same code,
  and keep no log. One writes a multi-row `INSERT … ON CONFLICT` for {_ROWS_A_STATEMENT} rows at a
  time, which is the shape of Debezium's JDBC sink. The other writes a statement for each row,
  {_STATEMENTS_A_BATCH} in a transaction, in libpq's pipeline mode, which is that of pgstream.
  Transactions of the source have 100 rows. The clock runs from the first commit until a reader
  finds every row in the target."""  # noqa: S608 - no statement
LIMITS: Final = """\
The server converts JSON to the types of the columns, which is most of the difference: see the
lines with ready-made JSON. With arrays that is done before the clock starts. End to end the server
decodes, is read and is written on the same few cores that the engine, its worker and Spark have."""


def measure(setting: Setting) -> Section:
    """Measure upserts, what effectively once costs, and the way from table to table."""
    server = setting.services.logical_postgres
    server.execute(_TABLE.format(table="given"))
    rows = setting.scale(100_000, 4_000)
    server.execute(_ROWS.format(table="given", first=1, last=rows))
    found = [*_measure_upserts(setting, server), *_measure_cost(setting, server, rows)]
    return Section(
        "postgres-write", METHOD, (*found, *_measure_replica(setting, server)), (), LIMITS
    )


def _measure_upserts(setting: Setting, server: LogicalPostgres) -> Iterator[Comparison]:
    size = setting.scale(_SLICE, 1_000)
    with (
        closing(_Ours(server, "upserted", size)) as ours,
        closing(_arrays(server, size)) as arrays,
        closing(_documents(server, size)) as documents,
    ):
        for subject, is_there in (("insert", False), ("update", True)):
            rates = setting.interleave(
                {
                    side.table: partial(_rate, server, side, is_there=is_there)
                    for side in (ours, arrays, documents)
                }
            )
            yield Comparison(
                f"upserts, {subject}",
                "unnest of arrays",
                "rows/s",
                rates[ours.table],
                rates[arrays.table],
                Aim(0.65, at_least=True),
            )
            yield Comparison(
                f"upserts, {subject}",
                "ready-made JSON",
                "rows/s",
                rates[ours.table],
                rates[documents.table],
            )


def _measure_cost(setting: Setting, server: LogicalPostgres, rows: int) -> Iterator[Comparison]:
    for size, limit in ((setting.scale(_SLICE, 1_000), rows), (100, setting.scale(10_000, 1_000))):
        names = f"stored_{size}", f"bare_{size}"
        with (
            closing(_Ours(server, names[0], size, limit)) as stored,
            closing(_Bare(server, names[1], size, limit)) as bare,
        ):
            rates = setting.interleave(
                {side.table: partial(_rate, server, side, is_there=True) for side in (stored, bare)}
            )
        yield Comparison(
            f"slices of {size}, effectively once",
            "the same without a stored offset",
            "rows/s",
            rates[names[0]],
            rates[names[1]],
            Aim(0.9, at_least=True),
        )


class _Side(Protocol):
    """A way to write all slices into ``table``."""

    table: str
    rows: int

    def prepare(self) -> None:
        """Make what the next :meth:`write` is given."""

    def write(self) -> None:
        """Write all slices."""


def _rate(server: LogicalPostgres, side: _Side, *, is_there: bool) -> float:
    """Return the rows a second, into an empty table or one where they are."""
    server.execute(f"TRUNCATE {side.table}")
    if is_there:
        side.prepare()
        side.write()
        server.execute(f"VACUUM (ANALYZE) {side.table}")
    side.prepare()
    server.execute("CHECKPOINT")
    began = time.perf_counter()
    side.write()
    took = time.perf_counter() - began
    ((rows,),) = server.execute(f"SELECT count(*) FROM {side.table}")  # noqa: S608 - a constant
    if rows != side.rows:
        raise RuntimeError(f"{rows} rows in {side.table}, where {side.rows} were written")
    return side.rows / took


class _Ours:
    """The writer, driven as a worker drives it. Every write has later offsets."""

    def __init__(self, server: LogicalPostgres, table: str, size: int, limit: int = 10**9) -> None:
        """Create *table* and make slices of *size* entries, of *limit* rows at most."""
        server.execute(_TABLE.format(table=table))
        self.table = table
        self._messages = _slices(_messages(server, table, limit), size)
        self.rows = sum(map(len, self._messages))
        self._first = 0
        self._next: list[Entries] = []
        config = PostgresWriter.Config.model_validate({"dsn": server.dsn})
        self._writer = PostgresWriter(config)
        self._log_id = f"log-{table}"
        self._writer.open(WriterContext(self._log_id, table, 1, deadline=60.0, run="run"))

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()

    def prepare(self) -> None:
        """Make batches of all slices, with later offsets."""
        self._next = []
        for messages in self._messages:
            self._next.append(entries(messages, self._first, self._log_id))
            self._first += len(messages)
        # A worker holds no other slices, which each collection would go through.
        gc.freeze()

    def write(self) -> None:
        """Write all slices."""
        for batch in self._next:
            ack = RecordingAck(batch)
            self._writer.write(batch, ack)
            if not ack.complete:
                raise RuntimeError(f"the writer failed: {ack.failures}")


class _Bare:
    """The statements of the writer without its stored offset."""

    def __init__(self, server: LogicalPostgres, table: str, size: int, limit: int) -> None:
        """Create *table* and make slices as :class:`_Ours` does."""
        server.execute(_TABLE.format(table=table))
        self.table = table
        slices = _slices(_messages(server, table, limit), size)
        self._batches = [entries(each, 0, "log") for each in slices]
        self.rows = sum(map(len, slices))
        config: Any = PostgresWriter.Config.model_validate({"dsn": server.dsn})
        self._config, self._connection = config, connect(config, 60.0)
        self._catalog = Catalog(self._connection, config)

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()

    def prepare(self) -> None:
        """Do nothing: the same is written each time."""

    def write(self) -> None:
        """Write all slices."""
        for batch in self._batches:
            work = Upserts(self._connection, self._config, self._catalog, batch)
            with self._connection.pipeline(), self._connection.transaction():
                work.apply(0, len(work.offsets), in_order=False)


class _ReadyMade:
    """A statement for each slice of the rows of ``given``, with values that *query* has made."""

    def __init__(self, server: LogicalPostgres, table: str, rows: str, query: str) -> None:
        """Create *table*. A statement has the rows of *rows*, with parameters by *query*."""
        server.execute(_TABLE.format(table=table))
        self.table = table
        self._statement = f"INSERT INTO {table} ({_NAMES}) SELECT {rows} {_CONFLICT}".encode()
        self._slices = server.execute(query)
        ((self.rows,),) = server.execute("SELECT count(*) FROM given")
        self._connection = psycopg.connect(server.dsn, autocommit=True)

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()

    def prepare(self) -> None:
        """Do nothing: the same is written each time."""

    def write(self) -> None:
        """Write all slices."""
        for values in self._slices:
            self._connection.execute(self._statement, values)


def _arrays(server: LogicalPostgres, size: int) -> _ReadyMade:
    """Return statements with one array for each column."""
    kinds = ", ".join(f"%s::{kind}[]" for kind in _COLUMNS.values())
    arrays = ", ".join(f"array_agg({name} ORDER BY id)::text" for name in _COLUMNS)
    return _ReadyMade(
        server, "unnested", f"* FROM unnest({kinds})", f"SELECT {arrays} {_given_by(size)}"
    )


def _documents(server: LogicalPostgres, size: int) -> _ReadyMade:
    """Return statements with one JSON document for all rows."""
    columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
    rows = f"{_NAMES} FROM json_to_recordset(%s::json) AS r ({columns})"
    query = f"SELECT json_agg(g ORDER BY id)::text {_given_by(size)}"
    return _ReadyMade(server, "documents", rows, query)


def _given_by(size: int) -> str:
    return f"FROM given AS g GROUP BY (id - 1) / {size} ORDER BY min(id)"


def _messages(server: LogicalPostgres, table: str, limit: int) -> list[Message]:
    """Return the rows of ``given`` as the entries that ``postgres-cdc`` logs."""
    query = "SELECT id::text, row_to_json(g)::text FROM given AS g ORDER BY id LIMIT %s"
    return [
        Message(f"public.{table}", data.encode(), key.encode(), "update")
        for key, data in server.execute(query, [limit])
    ]


def _slices(messages: Sequence[Message], size: int) -> list[Sequence[Message]]:
    return [messages[place : place + size] for place in range(0, len(messages), size)]


def _measure_replica(setting: Setting, server: LogicalPostgres) -> Iterator[Comparison]:
    for table in ("changed", "arrived"):
        server.execute(_TABLE.format(table=table))
    replica = _Replica(setting, server)
    sides: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "engine": replica.run_engine,
        "multi-row statements": partial(replica.follow, _write_statement, _ROWS_A_STATEMENT),
        "a statement a row": partial(replica.follow, _write_rows, _STATEMENTS_A_BATCH),
    }
    rates = setting.interleave({name: partial(replica.rate, side) for name, side in sides.items()})
    for rival in list(sides)[1:]:
        yield Comparison("table to table", rival, "rows/s", rates["engine"], rates[rival])


class _Replica:
    """A table that is followed into another one, by one side at a time, each with a new slot."""

    def __init__(self, setting: Setting, server: LogicalPostgres) -> None:
        """Use the tables ``changed`` and ``arrived``, which are there."""
        self._setting, self._server = setting, server
        self._rows, self._turn = setting.scale(50_000, 2_000), 0
        server.execute(f"CREATE PUBLICATION {_SLOT} FOR TABLE changed")

    def rate(self, side: Callable[[], AbstractContextManager[None]]) -> float:
        """Return the rows a second that *side* copies."""
        self._turn += 1
        first = self._turn * self._rows + 1
        last = first + self._rows - 1
        begin = f"{first} + i * 100"
        rows = _ROWS.format(table="changed", first=begin, last=f"{begin} + 99")
        there = "SELECT EXISTS (SELECT FROM arrived WHERE id = %s)"
        self._server.execute("CHECKPOINT")
        try:
            with side():
                began = time.perf_counter()
                fill_in_transactions(self._server, rows, self._rows // 100)
                wait_until(
                    lambda: self._server.execute(there, [last]) == [(True,)],
                    _PATIENCE,
                    "the last row is there",
                )
                took = time.perf_counter() - began
        finally:
            self._server.drop_slot(_SLOT)
        count = "SELECT count(*) FROM arrived WHERE id BETWEEN %s AND %s"
        ((found,),) = self._server.execute(count, [first, last])
        if found != self._rows:
            raise RuntimeError(f"{found} rows arrived, and {self._rows} were written")
        return self._rows / took

    @contextmanager
    def run_engine(self) -> Iterator[None]:
        """Run the engine with a new log."""
        pipeline = self._setting.make_folder(f"replica-{self._turn}") / "pipeline.yaml"
        pipeline.write_text(_PIPELINE.replace("ROUTE", f"target-{self._turn}"))
        tools = import_test_tool("acceptance_tools")
        with tools.running(pipeline, SERVER_DSN=self._server.dsn) as engine:
            engine.await_event("reader-opened")
            engine.await_event("worker-connected")
            yield
            engine.stop()

    @contextmanager
    def follow(self, write: _Write, size: int) -> Iterator[None]:
        """Follow the table in this process, *size* rows at a time."""
        slot = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
        self._server.execute(slot, [_SLOT])
        follower = _Follower(self._server, write, size)
        follower.start()
        try:
            yield
        finally:
            follower.stop()


class _Follower(threading.Thread):
    """A program that copies inserted rows as one would write it by hand."""

    def __init__(self, server: LogicalPostgres, write: _Write, size: int) -> None:
        """Copy by *write*, whenever *size* rows have come, or nothing more has."""
        super().__init__(daemon=True)
        self._write, self._size = write, size
        self._dsn, self._closing = server.dsn, threading.Event()
        self._rows: list[Row] = []

    def stop(self) -> None:
        """End it."""
        self._closing.set()
        self.join()

    def run(self) -> None:
        """Follow the slot until the end."""
        options = {"proto_version": "1", "publication_names": _SLOT}
        with psycopg.connect(self._dsn, autocommit=True) as target:
            stream = SlotStream(connect_replication(SecretStr(self._dsn)), _SLOT, 0, options)
            with closing(stream):
                while not self._closing.is_set():
                    self._copy(target, stream)

    def _copy(self, target: psycopg.Connection[Any], stream: SlotStream) -> None:
        end = 0
        for data in stream.receive(self._size, 1 << 20, _POLL):
            payload = getattr(decode_copy(data), "payload", None)
            change = None if payload is None else decode_message(payload)
            if isinstance(change, Insert):
                self._rows.append(change.new)
            elif isinstance(change, Commit):
                end = change.end_lsn
                if len(self._rows) >= self._size:
                    self._flush(target)
        self._flush(target)
        if end:
            stream.report(end)

    def _flush(self, target: psycopg.Connection[Any]) -> None:
        rows, self._rows = self._rows, []
        for place in range(0, len(rows), self._size):
            self._write(target, rows[place : place + self._size])


def _texts(row: Row) -> list[str | None]:
    return [None if value is None else bytes(value).decode() for value in row]


def _write_statement(target: psycopg.Connection[Any], rows: Sequence[Row]) -> None:
    """Write *rows* by one statement."""
    one = f"({', '.join(f'%s::{kind}' for kind in _COLUMNS.values())})"
    text = f"INSERT INTO arrived ({_NAMES}) VALUES {', '.join([one] * len(rows))} {_CONFLICT}"  # noqa: S608 - constants
    values = [value for row in rows for value in _texts(row)]
    target.execute(text.encode(), values)


def _write_rows(target: psycopg.Connection[Any], rows: Sequence[Row]) -> None:
    """Write each of *rows* by a statement, all in one transaction."""
    kinds = ", ".join(f"%s::{kind}" for kind in _COLUMNS.values())
    text = f"INSERT INTO arrived ({_NAMES}) VALUES ({kinds}) {_CONFLICT}".encode()  # noqa: S608 - constants
    with target.pipeline(), target.transaction():
        for row in rows:
            target.execute(text, _texts(row))
