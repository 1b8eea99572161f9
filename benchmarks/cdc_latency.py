"""From an application's commit to the log and to a Kafka consumer, by ``postgres-cdc``."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import psycopg
from pydantic import SecretStr
from transporter_adaptors.postgres_cdc.messages import Insert, decode_copy, decode_message
from transporter_adaptors.postgres_cdc.session import connect_replication
from transporter_adaptors.postgres_cdc.wire import SlotStream

from benchmarks.cdc import open_reader
from benchmarks.figures import OURS, Aim, Comparison, Section, percentile
from benchmarks.latency import RATE, Arrivals, make_committer, measure_travel, run_outbox_engine
from benchmarks.services import import_test_tool
from transporter.log.commit_log import CommitLog, split_for_append
from transporter.testing import FixedResume

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.services import LogicalPostgres
    from benchmarks.setting import Setting

_SHARES: Final = {"p50": 0.5, "p99": 0.99}
_LOG_AIMS: Final = {"p50": 0.6, "p99": 3.0}
_KAFKA_AIMS: Final = {"p50": 1.5, "p99": 5.0}
_PATIENCE: Final = 30.0
_POLL: Final = 0.1
_TABLE: Final = "CREATE TABLE {table} (id int8 PRIMARY KEY, key text, doc jsonb)"
_INSERT: Final = "INSERT INTO {table} VALUES (%s, %s, %s)"
_PIPELINE: Final = """\
name: cdc-latency
log: {{dir: log}}
readers:
  - {{name: shop, adaptor: postgres-cdc, dsn: "${{SHOP_DSN}}", tables: [arrivals], copy: none}}
routes:
  - name: kafka
    writer: {{adaptor: kafka, bootstrap_servers: "{servers}", topic: "{topic}"}}
"""

METHOD: Final = f"""\
{RATE} commits a second of one row each, into a table without an outbox. The clock runs from the
return of the application's commit.

- To the log: until the append of the row is durable, in one process, without Spark. The floor is
  the stream of a slot, received and decoded, and not logged.
- To Kafka: until a consumer in the same process has the message, through the engine as in
  `latency`. The rival is the outbox in the same run, with one route.

Each turn takes the percentiles of two seconds."""
LIMITS: Final = """\
The server sends a transaction once it is flushed and decoded. The log syncs each append."""


def measure(setting: Setting) -> Section:
    """Measure the way to the log and to Kafka."""
    found = [*_measure_log(setting), *_measure_kafka(setting)]
    return Section("cdc-latency", METHOD, tuple(found), limits=LIMITS)


def _measure_log(setting: Setting) -> Iterator[Comparison]:
    server, count = setting.services.logical_postgres, setting.scale(2 * RATE, RATE // 2)
    with (
        Logged(server, setting.make_folder("logged")) as logged,
        Received(server, "received") as received,
    ):
        sides = {"ours": logged, "floor": received}
        found = setting.interleave(
            {
                name: partial(measure_travel, each.commit, each, count)
                for name, each in sides.items()
            }
        )
    yield from _compare("to the log", "received", found["ours"], found["floor"], _LOG_AIMS)


def _measure_kafka(setting: Setting) -> Iterator[Comparison]:
    broker, count = setting.services.broker, setting.scale(2 * RATE, RATE // 2)
    servers = broker.bootstrap_servers
    ours, theirs = broker.create_topic("cdc-latency"), broker.create_topic("cdc-outbox")
    server = setting.services.logical_postgres

    def number_of(message: Any) -> int:  # noqa: ANN401 - a message of the consumer
        return int(message.key()) - committer.first

    with (
        _run_engine(setting, server, ours),
        run_outbox_engine(setting, [theirs]) as outbox,
        Arrivals(servers, [ours], number_of) as arrived,
        Arrivals(servers, [theirs]) as from_outbox,
    ):
        committer = Committer(server, "arrivals")
        sides = {
            "ours": (committer.commit, arrived),
            "outbox": (make_committer(outbox), from_outbox),
        }
        found = setting.interleave(
            {
                name: partial(measure_travel, send, seen, count)
                for name, (send, seen) in sides.items()
            }
        )
    yield from _compare("to Kafka", "outbox", found["ours"], found["outbox"], _KAFKA_AIMS)


def _compare(
    subject: str,
    rival: str,
    ours: tuple[list[float], ...],
    theirs: tuple[list[float], ...],
    aims: dict[str, float],
) -> Iterator[Comparison]:
    for label, share in _SHARES.items():
        yield Comparison(
            f"{subject}, {label}",
            f"{rival}, {label}",
            "ms",
            tuple(percentile(times, share) for times in ours),
            tuple(percentile(times, share) for times in theirs),
            Aim(aims[label], at_least=False, figure=OURS),
        )


@contextmanager
def _run_engine(setting: Setting, server: LogicalPostgres, topic: str) -> Iterator[None]:
    """Run the engine from a new table to *topic*."""
    server.execute(_TABLE.format(table="arrivals"))
    pipeline = setting.make_folder("cdc-kafka") / "pipeline.yaml"
    servers = setting.services.broker.bootstrap_servers
    pipeline.write_text(_PIPELINE.format(servers=servers, topic=topic))
    setting.report("starting an engine")
    with import_test_tool("acceptance_tools").running(pipeline, SHOP_DSN=server.dsn) as engine:
        engine.await_event("reader-opened")
        engine.await_event("worker-connected", route="kafka")
        yield
        engine.stop()


class Committer:
    """An application that commits rows of one table. Numbers go on from turn to turn."""

    def __init__(self, server: LogicalPostgres, table: str) -> None:
        """Insert into *table*, by a session of its own."""
        self._connection = psycopg.connect(server.dsn, autocommit=True)
        self._insert = _INSERT.format(table=table).encode()
        self.first = self._next = 0
        """The number of the first row of this turn."""

    def commit(self, number: int, key: str, data: str) -> float:
        """Commit one row, and return the time after the commit."""
        self.first = self._next if number == 0 else self.first
        self._next = self.first + number + 1
        self._connection.execute(self._insert, (self.first + number, key, data))
        return time.perf_counter()


class Received:
    """The arrival of each row of a table in this process, by a slot of its own."""

    def __init__(self, server: LogicalPostgres, table: str) -> None:
        """Create *table*, a publication and a slot."""
        server.execute(_TABLE.format(table=table))
        self._server, self._table = server, table
        self._committer = Committer(server, table)
        self.commit = self._committer.commit
        self._changed = threading.Condition()
        self._seen: list[tuple[int, float]] = []
        self._closing = False
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._prepare()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._thread.join()
        self._server.drop_slot(self._table)

    def _prepare(self) -> None:
        self._server.execute(f"CREATE PUBLICATION {self._table} FOR TABLE {self._table}")
        slot = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
        self._server.execute(slot, [self._table])

    def _follow(self) -> None:
        session = connect_replication(SecretStr(self._server.dsn))
        options = {"proto_version": "1", "publication_names": self._table}
        stream = SlotStream(session, self._table, 0, options)
        while not self._closing:
            for data in stream.receive(1000, 1 << 20, _POLL):
                message = decode_copy(data)
                payload = getattr(message, "payload", None)
                what = None if payload is None else decode_message(payload)
                if isinstance(what, Insert):
                    self._arrive([what.new[0]])
        stream.close()

    def _arrive(self, keys: list[Any]) -> None:
        now = time.perf_counter()
        with self._changed:
            self._seen += [(int(key), now) for key in keys]
            self._changed.notify_all()

    def await_rows(self, rows: int) -> list[tuple[int, float]]:
        """Wait until each of *rows* has arrived, and return all arrivals."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._seen) >= rows, _PATIENCE)
            found, self._seen = self._seen, []
        if len(found) != rows:
            raise RuntimeError(f"{len(found)} arrivals of {rows} rows")
        first = min(number for number, _ in found)
        return [(number - first, came) for number, came in found]


class Logged(Received):
    """The arrival of each row in a log, durably."""

    def __init__(self, server: LogicalPostgres, folder: Path) -> None:
        """Write the log below *folder*."""
        super().__init__(server, "logged")
        self._folder = folder

    def _prepare(self) -> None:
        """Leave publication and slot to the reader."""
        self._ready = threading.Event()

    def __enter__(self) -> Self:
        super().__enter__()
        if not self._ready.wait(_PATIENCE):
            raise TimeoutError("the reader was not open in time")
        return self

    def _follow(self) -> None:
        settings = {
            "dsn": self._server.dsn,
            "tables": ["logged"],
            "slot": self._table,
            "copy": "none",
        }
        with (
            CommitLog.open(self._folder / "log") as log,
            open_reader(settings, FixedResume()) as reader,
        ):
            self._ready.set()
            while not self._closing:
                reader.keep_alive()
                batch = reader.poll(_POLL)
                if not len(batch.messages) or batch.position is None:
                    continue
                for part in split_for_append(batch.messages):
                    log.append(part, "shop", batch.position)
                self._arrive(batch.messages.column("key").to_pylist())
                reader.commit(batch.position)
