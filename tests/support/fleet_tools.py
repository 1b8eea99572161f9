"""A fleet of engines on one outbox, and the faults that befall it: see ``leader_tools``."""

from __future__ import annotations

import random
import signal
import statistics
import sys
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Self

import psycopg
from kafka_tools import consume
from leader_tools import Node, Seen, await_true, faults_of, going_back, line
from psycopg.conninfo import make_conninfo
from services.postgres import Database, PostgresService, free_port
from transporter_adaptors.postgres.table import TableName, term_ddl

from transporter.outbox.table import outbox_sql
from transporter.quickstart.postgres import embedded_postgres
from transporter.testing import FaultyProxy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from services.kafka import Broker

TERM = 1.0

# Only the session that began the last term may change a row of the outbox.
_WATCH = """
CREATE TABLE led (term bigint PRIMARY KEY, pid int);
CREATE TABLE wrong (what text, id bigint, term bigint);
CREATE FUNCTION note_term() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO led VALUES (NEW.term, pg_backend_pid());
    RETURN NULL;
END $$;
CREATE FUNCTION judge() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    last bigint := (SELECT term FROM transporter_term);
BEGIN
    IF NOT EXISTS (SELECT FROM led WHERE led.term = last AND pid = pg_backend_pid()) THEN
        INSERT INTO wrong VALUES (TG_OP, OLD.id, last);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note_term AFTER INSERT OR UPDATE ON transporter_term
    FOR EACH ROW EXECUTE FUNCTION note_term();
CREATE TRIGGER judge AFTER UPDATE OR DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION judge();
"""


def prepare(database: Database) -> None:
    """Create the outbox, and record the sessions that change its rows."""
    database.execute(outbox_sql())
    database.execute(term_ddl(TableName("transporter_term", "public")))
    database.execute(_WATCH)


class Server:
    """A PostgreSQL of a test's own, which can be restarted, always on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.port = folder, free_port()
        self._stack = ExitStack()
        dsn = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"
        self.database = Database("postgres", PostgresService(dsn, self.port))

    def __enter__(self) -> Self:
        settings = {"listen_addresses": "127.0.0.1", "port": str(self.port), "fsync": "off"}
        self._stack.enter_context(embedded_postgres(self._folder, settings))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def restart(self) -> None:
        """End it, and start it again. Return when it answers."""
        self._stack.close()
        self.__enter__()


class Fleet:
    """Engines that share an outbox, each behind a proxy of its own. All end with the block.

    ``took`` holds the seconds of each takeover of a running fleet, with the fault that the leader
    suffered.
    """

    def __init__(
        self,
        folder: Path,
        database: Database,
        count: int,
        route: dict[str, Any],
        **pipeline: Any,
    ) -> None:
        self._database, self.took = database, list[tuple[str, float]]()
        self._stack = ExitStack()
        self.proxies, self.nodes = list[FaultyProxy](), list[Node]()
        for number in range(count):
            proxy = self._stack.enter_context(FaultyProxy(("127.0.0.1", database.server.port)))
            dsn = make_conninfo(tcp_dsn(database), port=proxy.port)
            document = fleet_pipeline(dsn, route) | pipeline
            self.proxies.append(proxy)
            self.nodes.append(Node(folder / f"node-{number}", document))

    def __enter__(self) -> Self:
        for node in self.nodes:
            node.start()
        await_true(lambda: self.leader() is not None)
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.send(signal.SIGCONT)
            node.stop(signal.SIGKILL)
        self._stack.close()

    @property
    def term(self) -> int:
        """The number of the last term that was begun, or 0 while the server does not answer."""
        with suppress(psycopg.Error):
            found = self._database.execute("SELECT term FROM transporter_term")
            return int(found[0][0]) if found else 0
        return 0

    def leader(self) -> int | None:
        """Return the engine that has begun the last term, if it is still running."""
        term = self.term
        leading = (place for place, node in enumerate(self.nodes) if node.running)
        return next((place for place in leading if self.nodes[place].term == term), None)

    def befall(self, how: str) -> None:
        """Do *how* to the leader, wait until another leads, and undo it."""
        await_true(lambda: self.leader() is not None)
        place, term = self.leader(), self.term
        if place is None:
            return
        node, proxy = self.nodes[place], self.proxies[place]
        {
            "stop": node.stop,
            "kill": lambda: node.stop(signal.SIGKILL),
            "pause": lambda: node.send(signal.SIGSTOP),
            "hang": proxy.hang,
            "refuse": proxy.refuse,
        }[how]()
        if len(self.nodes) == 1:
            # No other engine is there to lead, so this one does again.
            time.sleep(1.5 * TERM)
            self._undo(how, place)
            await_true(lambda: self.term > term)
            return
        self.took.append((how, await_true(lambda: self.term > term)))
        time.sleep(random.uniform(0, TERM))
        self._undo(how, place)

    def _undo(self, how: str, place: int) -> None:
        node, proxy = self.nodes[place], self.proxies[place]
        {
            "stop": node.start,
            "kill": node.start,
            "pause": lambda: node.send(signal.SIGCONT),
            "hang": proxy.heal,
            "refuse": proxy.heal,
        }[how]()

    def stop(self) -> None:
        """End all of them in order. No route and no reader may have stopped by itself."""
        for node in self.nodes:
            node.stop()
            assert node.events("route-stopped", "reader-stopped") == []

    def settle(self) -> None:
        """Wait until the outbox is empty. Only a leader may have changed it."""
        empty = [(0,)]
        await_true(lambda: self._database.execute("SELECT count(*) FROM outbox") == empty, 120)
        assert self._database.execute("SELECT * FROM wrong") == []


def tcp_dsn(database: Database) -> str:
    """Return a DSN of *database* over TCP, where a proxy can stand in between."""
    return database.dsn if "host=127.0.0.1" in database.dsn else database.tcp_dsn()


def fleet_pipeline(dsn: str, route: dict[str, Any]) -> dict[str, Any]:
    """Return the pipeline of one engine: from the outbox of *dsn* into *route*."""
    reader = {
        "name": "outbox",
        "adaptor": "postgres-outbox",
        "dsn": dsn,
        "elector": {"kind": "postgres", "term": f"{TERM}s"},
        "poll_interval": "100ms",
    }
    common = {"name": "out", "max_in_flight_per_key": 1, "retry": {"backoff": "10ms..200ms"}}
    return {
        "name": "fleet",
        "log": {"dir": "log"},
        "readers": [reader],
        "routes": [common | route],
        "shutdown_timeout": "5s",
    }


def tell(took: Sequence[tuple[str, float]]) -> float:
    """Print how long takeovers took. Return the median."""
    seconds = sorted(each for _, each in took)
    median, most = statistics.median(seconds), seconds[-1]
    late = seconds[int(len(seconds) * 0.9)]
    text = f"{len(seconds)} takeovers: median {median:.2f} s, 90 % {late:.2f} s, max {most:.2f} s"
    for how in sorted({how for how, _ in took}):
        mine = [each for which, each in took if which == how]
        text += f"; {how} {len(mine)}: max {max(mine):.2f}"
    print(f"\n{text}", file=sys.stderr)  # noqa: T201 - for whoever runs it
    return median


def kafka_route(broker: Broker, topic: str) -> dict[str, Any]:
    """Return a route whose writer commits rows and progress to *topic* in one transaction."""
    writer = {
        "adaptor": "kafka",
        "bootstrap_servers": broker.bootstrap_servers,
        "topic": topic,
        "transactional": True,
        "progress_topic": topic,
    }
    return {"writer": writer}


def all_committed(broker: Broker, topic: str, inserted: dict[str, int]) -> bool:
    """Return true if the last row of each key is in *topic*."""
    last = {each.key: each.number for each in committed(broker, topic)}
    return all(last.get(key, 0) >= count for key, count in inserted.items())


def committed(broker: Broker, topic: str) -> list[Seen]:
    """Return the rows that read-committed consumers see, in order."""
    found = (line(record.value()).split() for record in consume(broker, topic))
    return [Seen(key, int(number)) for key, number in found]


def wrongly_committed(broker: Broker, topic: str, inserted: dict[str, int]) -> list[str]:
    """Return the errors in *topic*: missing rows, a row behind a later one, an old last row."""
    records = committed(broker, topic)
    view = {each.key: each.number for each in records}
    old = [f"{key}: {view.get(key)} of {n}" for key, n in inserted.items() if view.get(key) != n]
    return faults_of(iter(records), inserted) + going_back(iter(records)) + old
