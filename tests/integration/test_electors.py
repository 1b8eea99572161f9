"""Electors on real PostgreSQL and real Kafka: one leads, and another soon after it is gone."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr, TypeAdapter
from services.postgres import PASSWORD, free_port

from transporter.election.config import Election, make_elector
from transporter.election.machine import Change, Standing
from transporter.election.postgres import lock_key
from transporter.errors import EnvironmentFault
from transporter.quickstart.postgres import embedded_postgres
from transporter.testing import FaultyProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from services.kafka import Broker
    from services.postgres import Database

    from transporter.election.elector import Elector, Pulse

GAP = 0.05
PATIENCE = 60.0
TERM = 1.0
BUSY = 0.4
"""Seconds by which a machine that others use, too, may be late."""

CHILD = """
import json, sys, time
from pydantic import SecretStr, TypeAdapter
from transporter.election.config import Election, make_elector
election = TypeAdapter(Election).validate_python(json.loads(sys.argv[1]))
elector = make_elector(election, sys.argv[2], SecretStr(sys.argv[3]))
while True:
    now = time.monotonic()
    found = elector.pulse(now)
    changes = [each.change for each in found.transitions]
    print(json.dumps([now, found.standing, changes]), flush=True)
    time.sleep(0.05)
"""


class Engine:
    """A thread that pulses an elector as an engine does; keeps what it was told."""

    def __init__(self, elector: Elector, gap: float = GAP) -> None:
        self.elector, self.gap = elector, gap
        self.changes: list[tuple[float, Change]] = []
        self.problems: list[str] = []
        self.longest = 0.0
        self.error: BaseException | None = None
        self.pulsing = threading.Event()
        """Cleared, the engine is as one that is paused."""
        self.pulsing.set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self.gap):
                self.pulsing.wait()
                began = time.monotonic()
                self._note(self.elector.pulse(began))
                self.longest = max(self.longest, time.monotonic() - began)
        except BaseException as error:  # noqa: BLE001 - looked at by the tests
            self.error = error

    def _note(self, found: Pulse) -> None:
        now = time.monotonic()
        self.changes += [(now, each.change) for each in found.transitions]
        if found.problem:
            self.problems.append(found.problem)

    @property
    def leads(self) -> bool:
        return self.elector.standing(time.monotonic()) is Standing.LEADER

    def stop(self) -> float:
        """Stop pulsing, close, and return how long closing took."""
        self._stop.set()
        self.pulsing.set()
        self._thread.join()
        began = time.monotonic()
        self.elector.close()
        return time.monotonic() - began


class Watch:
    """Looks all the time how many lead."""

    def __init__(self) -> None:
        self.engines: list[Engine] = []
        self.worst: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for each in self.engines:
            each.stop()
            assert each.error is None or isinstance(each.error, EnvironmentFault)
        assert self.worst == []

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            # Two looks: between the first elector's and the second's one may have handed over.
            if len(leaders := self.leaders) > 1 and all(each.leads for each in leaders):
                self.worst.append(f"{len(leaders)} led at {time.monotonic()}")

    @property
    def leaders(self) -> list[Engine]:
        return [each for each in [*self.engines] if each.leads]

    def add(self, elector: Elector, gap: float = GAP) -> Engine:
        self.engines.append(Engine(elector, gap))
        return self.engines[-1]

    def leader(self, seconds: float = PATIENCE) -> Engine:
        """Wait until one leads, and return it."""
        until(lambda: self.leaders, "somebody leads", seconds)
        return self.leaders[0]

    def successor(self, of: Engine, seconds: float = PATIENCE) -> Engine:
        """Wait until one leads that is not *of*, and return it."""
        until(lambda: [each for each in self.leaders if each is not of], "another leads", seconds)
        return next(each for each in self.leaders if each is not of)


def until(holds: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Look again and again whether *holds*; fail after *seconds*."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.005)


def tell(text: str) -> None:
    """Show a measured time, with ``pytest -s``."""
    print(text)  # noqa: T201 - that is the point


def elector(dsn: str = "", name: str = "orders", **election: Any) -> Elector:
    """Return an elector; by PostgreSQL, with a term of a second, unless told otherwise."""
    values = {"kind": "postgres", "term": TERM, **election}
    return make_elector(TypeAdapter(Election).validate_python(values), name, SecretStr(dsn))


class Child:
    """An engine in a process of its own."""

    def __init__(self, election: dict[str, Any], dsn: str = "", name: str = "orders") -> None:
        self.lines: list[tuple[float, str, list[str]]] = []
        arguments = [json.dumps(election), name, dsn]
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(tuple(json.loads(line)))

    @property
    def leads(self) -> bool:
        return bool(self.lines) and self.lines[-1][1] == "leader"

    def stop(self) -> float:
        """Freeze it; return when."""
        self.process.send_signal(signal.SIGSTOP)
        return time.monotonic()

    def resume(self) -> tuple[float, str, list[str]]:
        """Let it go on; return the first pulse that it finished behind the pause."""
        seen = len(self.lines)
        resumed = time.monotonic()
        self.process.send_signal(signal.SIGCONT)
        until(lambda: [line for line in self.lines[seen:] if line[0] > resumed], "it pulses")
        # The pulse in which it was stopped counts as well.
        return next(line for line in self.lines[seen:] if line[2] or line[0] > resumed)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def child(election: dict[str, Any], dsn: str = "") -> Iterator[Child]:
    """Run an engine in a process of its own; it leads when the block begins."""
    made = Child(election, dsn)
    try:
        until(lambda: made.leads, "the child leads")
        yield made
    finally:
        made.kill()


def lock_holder(postgres: Database, name: str = "orders") -> int | None:
    """Return the server's process that holds the lock of *name*."""
    rows = postgres.execute(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
        " AND (classid::bigint << 32) | objid::bigint = %s",
        [lock_key(name)],
    )
    return rows[0][0] if rows else None


# PostgreSQL


@pytest.mark.postgres
def test_one_of_three_leads_over_many_takeovers(postgres: Database) -> None:
    """Leaders close or pulse no more: another leads within two terms, never two at once."""
    took = []
    with Watch() as watch:
        for _ in range(3):
            watch.add(elector(postgres.dsn), GAP * 2)
        for turn in range(6):
            leader = watch.leader()
            began = time.monotonic()
            if turn % 2:
                watch.engines.remove(leader)
                leader.stop()
                watch.leader()
                watch.add(elector(postgres.dsn), GAP)
            else:
                leader.pulsing.clear()
                watch.successor(leader)
                leader.pulsing.set()
                until(lambda made=leader: made.changes[-1][1] is Change.FENCED, "it is told")
            took.append(time.monotonic() - began)
    tell(f"takeovers: {sorted(round(each, 3) for each in took)}")
    assert max(took) < 2 * TERM


@pytest.mark.postgres
def test_a_leader_whose_session_is_ended_is_revoked_at_its_next_pulse(postgres: Database) -> None:
    """It need not ask to hear of it, and takes part again."""
    took = []
    with Watch() as watch:
        leader = watch.add(elector(postgres.dsn, term=9.0))
        for _ in range(3):
            watch.leader()
            began = time.monotonic()
            postgres.execute("SELECT pg_terminate_backend(%s)", [lock_holder(postgres)])
            until(lambda: leader.changes[-1][1] is Change.REVOKED, "revoked", 2)
            took.append(time.monotonic() - began)
            assert not leader.leads
    tell(f"session ended: revoked after {sorted(round(each, 3) for each in took)} s")
    assert max(took) < GAP + BUSY


@pytest.mark.postgres
def test_a_clean_close_hands_over_at_once(postgres: Database) -> None:
    """A candidate tries five times a term; nobody waits for a time-out."""
    with Watch() as watch:
        leader = watch.add(elector(postgres.dsn, term=5.0))
        watch.leader()
        watch.add(elector(postgres.dsn, term=5.0))
        time.sleep(0.5)
        began = time.monotonic()
        assert leader.stop() < 0.5
        watch.successor(leader)
        took = time.monotonic() - began
    tell(f"handed over after {took:.3f} s; term 5 s")
    assert took < 1.25 + BUSY


@pytest.mark.postgres
def test_a_stopped_leader_loses_its_lock_within_a_term(postgres: Database) -> None:
    """The server frees it, another leads within two terms, and the stopped one is fenced first."""
    freed, took = [], []
    for _ in range(3):
        with child({"kind": "postgres", "term": "1s"}, postgres.dsn) as leader, Watch() as watch:
            held = lock_holder(postgres)
            stopped = leader.stop()
            until(lambda held=held: lock_holder(postgres) != held, "the server frees the lock")
            freed.append(time.monotonic() - stopped)
            watch.add(elector(postgres.dsn))
            watch.leader()
            _, standing, changes = leader.resume()
            assert changes[0] == "fenced"
            assert standing != "leader"
            assert len(watch.leaders) == 1
        with child({"kind": "postgres", "term": "1s"}, postgres.dsn) as leader, Watch() as watch:
            watch.add(elector(postgres.dsn))
            time.sleep(0.3)
            stopped = leader.stop()
            watch.leader()
            took.append(time.monotonic() - stopped)
    tell(f"term 1 s: lock freed after {[round(each, 3) for each in sorted(freed)]} s")
    tell(f"term 1 s: takeover after {[round(each, 3) for each in sorted(took)]} s")
    assert max(freed) < TERM + BUSY
    assert max(took) < 2 * TERM


@pytest.mark.postgres
def test_a_leader_behind_a_pulled_cable_is_fenced_and_waits_for_nothing(
    postgres: Database,
) -> None:
    """Its pulses return, it believes for a term at most, and comes back as a candidate."""
    with FaultyProxy(("127.0.0.1", postgres.server.port)) as proxy, Watch() as watch:
        through = make_conninfo(postgres.tcp_dsn(), port=proxy.port)
        leader = watch.add(elector(through))
        watch.leader()
        watch.add(elector(postgres.dsn))
        time.sleep(0.5)
        proxy.hang()
        began = time.monotonic()
        watch.successor(leader)
        took = time.monotonic() - began
        assert leader.changes[-1][1] is Change.FENCED
        time.sleep(2 * TERM)  # Long enough for it to see that nobody answers.
        assert leader.problems
        proxy.heal()
        until(lambda: leader.elector.standing(0) is Standing.CANDIDATE, "a candidate again")
        tell(f"cable pulled: takeover after {took:.3f} s; longest pulse {leader.longest:.3f} s")
        assert took < 2 * TERM
        assert leader.longest < 0.1 + BUSY
        assert not leader.leads


@pytest.mark.postgres
def test_a_cut_connection_revokes_and_is_made_again(postgres: Database) -> None:
    """The reason is told without the password; the elector leads again, as nobody else does."""
    with FaultyProxy(("127.0.0.1", postgres.server.port)) as proxy, Watch() as watch:
        leader = watch.add(elector(make_conninfo(postgres.tcp_dsn(), port=proxy.port)))
        watch.leader()
        proxy.refuse()
        until(lambda: leader.changes[-1][1] is Change.REVOKED, "revoked", TERM)
        proxy.heal()
        watch.leader(3 * TERM)
    assert leader.problems
    assert not [each for each in leader.problems if PASSWORD in each]
    assert [each for _, each in leader.changes] == [
        Change.ACQUIRED,
        Change.REVOKED,
        Change.ACQUIRED,
    ]


@pytest.mark.postgres
def test_a_restart_of_the_server_is_survived(tmp_path: Path) -> None:
    """Electors say what is wrong, and one of them leads soon after the server is back."""
    settings = {"listen_addresses": "127.0.0.1", "port": str(free_port()), "fsync": "off"}
    dsn = f"host=127.0.0.1 port={settings['port']} user=postgres dbname=postgres"
    with Watch() as watch:
        with embedded_postgres(tmp_path / "server", settings):
            engines = [watch.add(elector(dsn)) for _ in range(2)]
            watch.leader()
        until(lambda: not watch.leaders, "nobody leads without a server", TERM + BUSY)
        until(lambda: all(each.problems for each in engines), "the problem is told")
        with embedded_postgres(tmp_path / "server", settings):
            began = time.monotonic()
            watch.leader()
            took = time.monotonic() - began
    tell(f"leads {took:.3f} s after the server's return")
    assert took < 2 * TERM


@pytest.mark.postgres
def test_elections_of_other_names_do_not_meet(postgres: Database) -> None:
    """Two outboxes of one database have a leader each."""
    with Watch() as one, Watch() as other:
        one.add(elector(postgres.dsn, "orders"))
        other.add(elector(postgres.dsn, "payments"))
        one.leader()
        other.leader()


@pytest.mark.postgres
def test_who_may_not_connect_stays_a_candidate_and_says_why(postgres: Database) -> None:
    """A password that is wrong may be put right while the engine runs; it is never quoted."""
    with Watch() as watch:
        engine = watch.add(elector(postgres.tcp_dsn("wrong horse")))
        until(lambda: engine.problems, "the problem is told")
        assert "password authentication failed" in engine.problems[0]
        assert "wrong horse" not in engine.problems[0]
        assert engine.error is None


class Pooler:
    """Lends one session of the server to all its clients, a question at a time."""

    def __init__(self, port: int) -> None:
        self._lock = threading.Lock()
        self._server = socket.create_connection(("127.0.0.1", port))
        self._sockets = [self._server]
        parameters = b"user\0postgres\0database\0postgres\0\0"
        length = (8 + len(parameters)).to_bytes(4, "big")
        self._server.sendall(length + (196608).to_bytes(4, "big") + parameters)
        self._greeting = self._answer()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets.append(self._listener)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError, EOFError):
            while True:  # Refuse encryption until the client does without.
                body = self._exactly(client, int.from_bytes(self._exactly(client, 4), "big") - 4)
                if body[:4] == (196608).to_bytes(4, "big"):
                    break
                client.sendall(b"N")
            client.sendall(self._greeting)
            question = b""
            while True:
                kind, message = self._message(client)
                question += message
                if kind in b"SQ":
                    with self._lock:
                        self._server.sendall(question)
                        client.sendall(self._answer())
                    question = b""

    def _answer(self) -> bytes:
        found = b""
        while True:
            kind, message = self._message(self._server)
            found += message
            if kind == b"Z":
                return found

    def _message(self, peer: socket.socket) -> tuple[bytes, bytes]:
        head = self._exactly(peer, 5)
        return head[:1], head + self._exactly(peer, int.from_bytes(head[1:], "big") - 4)

    @staticmethod
    def _exactly(peer: socket.socket, count: int) -> bytes:
        found = b""
        while len(found) < count:
            part = peer.recv(count - len(found))
            if not part:
                raise EOFError
            found += part
        return found


@pytest.mark.postgres
def test_a_pooler_that_shares_a_session_is_refused(tmp_path: Path) -> None:
    """Both would get the lock, for it is re-entrant: one notices, and says what to do."""
    settings = {"listen_addresses": "127.0.0.1", "port": str(free_port()), "fsync": "off"}
    with embedded_postgres(tmp_path / "server", settings) as direct:
        pooler = Pooler(int(settings["port"]))
        dsn = f"host=127.0.0.1 port={pooler.port} user=postgres dbname=postgres"
        with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn) as other:
            for each in (one, other):
                rows = each.execute("SELECT pg_try_advisory_lock(%s)", [lock_key("orders")])
                assert rows.fetchone() == (True,)
            one.execute("SELECT pg_advisory_unlock_all()")
        with Watch() as watch:
            first = watch.add(elector(dsn))
            watch.leader()
            second = watch.add(elector(dsn))
            until(lambda: second.error, "the second one refuses")
            assert "PgBouncer" in str(second.error)
            assert first.leads
            third = watch.add(elector(direct))
            time.sleep(TERM)
            assert not third.leads
        pooler.close()


@pytest.mark.postgres
def test_a_lock_that_others_free_is_noticed(postgres: Database) -> None:
    """The leader asks the server for its lock, not only for an answer."""
    made = elector(postgres.dsn)
    assert made.pulse(time.monotonic()).standing is Standing.LEADER
    session = made._session  # type: ignore[attr-defined]
    session.ask("SELECT pg_advisory_unlock_all()::text", [])
    assert session.answer(time.monotonic() + 5) == ("",)
    time.sleep(TERM / 3)
    found = made.pulse(time.monotonic())
    assert [each.change for each in found.transitions] == [Change.REVOKED]
    made.close()


# Kafka


SESSION = 6.0
"""Seconds that a broker as it comes allows a session at the least."""


@pytest.fixture
def kafka(kafka_broker: Broker, kafka_topic: str) -> dict[str, Any]:
    """Return an election on a fresh topic, with a term of two seconds."""
    servers = kafka_broker.bootstrap_servers
    return {"kind": "kafka", "bootstrap_servers": servers, "topic": kafka_topic, "term": "2s"}


@pytest.mark.kafka
def test_one_of_three_leads_on_kafka_over_takeovers(kafka: dict[str, Any]) -> None:
    """Leaders close, others come: one leads within a term, never two, and nobody is deposed."""
    took = []
    with Watch() as watch:
        for _ in range(3):
            watch.add(elector(**kafka))
        for _ in range(3):
            leader = watch.leader()
            watch.engines.remove(leader)
            began = time.monotonic()
            assert leader.stop() < 5
            watch.leader()
            took.append(time.monotonic() - began)
            assert [each for _, each in leader.changes] == [Change.ACQUIRED]
            watch.add(elector(**kafka))
            time.sleep(3)  # As long as a member that comes may cause a rebalance, and a term.
    tell(f"Kafka, clean closes: {sorted(round(each, 3) for each in took)}")
    assert max(took) < 2.0


@pytest.mark.kafka
def test_a_stopped_leader_on_kafka_is_replaced_and_fenced(kafka: dict[str, Any]) -> None:
    """After the session's time-out, which brokers bound; the stopped one is fenced first."""
    with child(kafka) as leader, Watch() as watch:
        watch.add(elector(**kafka))
        time.sleep(3)
        stopped = leader.stop()
        watch.leader()
        took = time.monotonic() - stopped
        _, standing, changes = leader.resume()
        assert changes[0] == "fenced"
        assert standing != "leader"
        time.sleep(3)
        assert len(watch.leaders) == 1
        assert not leader.leads
    tell(f"Kafka, term 2 s, session 6 s: takeover after {took:.3f} s")
    assert took < 1.1 * SESSION + 2 * BUSY


@pytest.mark.kafka
def test_a_term_above_the_brokers_limit_bounds_a_takeover(kafka: dict[str, Any]) -> None:
    """With a term of 7 s another leads within two terms of a leader's death."""
    kafka["term"] = "7s"
    with child(kafka) as leader, Watch() as watch:
        watch.add(elector(**kafka))
        time.sleep(8)
        began = time.monotonic()
        leader.process.kill()
        watch.leader()
        took = time.monotonic() - began
    tell(f"Kafka, term 7 s: takeover after {took:.3f} s")
    assert took < 14


@pytest.mark.kafka
def test_a_leader_whose_broker_hangs_is_fenced_and_acquires_again(
    kafka: dict[str, Any], kafka_broker: Broker
) -> None:
    """No heartbeat comes back for a term; pulses wait for nothing; all goes on by itself."""
    with Watch() as watch:
        leader = watch.add(elector(**kafka))
        watch.add(elector(**kafka))
        leader = watch.leader()
        leader.longest = 0.0
        kafka_broker.pause()
        try:
            began = time.monotonic()
            until(lambda: not watch.leaders, "nobody leads", 2 + BUSY)
            took = time.monotonic() - began
            until(lambda: leader.changes[-1][1] is Change.FENCED, "it is told", BUSY)
            time.sleep(2)
            longest = leader.longest
        finally:
            kafka_broker.resume()
        watch.leader()
    tell(f"Kafka hangs: fenced after {took:.3f} s; longest pulse {longest:.3f} s")
    assert longest < 0.2 + BUSY


@pytest.mark.kafka
def test_a_restart_of_the_broker_is_survived(kafka: dict[str, Any], kafka_broker: Broker) -> None:
    """The problem is told, and one leads again."""
    with Watch() as watch:
        engines = [watch.add(elector(**kafka)) for _ in range(2)]
        watch.leader()
        kafka_broker.kill()
        until(lambda: not watch.leaders, "nobody leads without a broker", 2 + BUSY)
        until(lambda: all(each.problems for each in engines), "the problem is told")
        kafka_broker.start()
        began = time.monotonic()
        watch.leader()
    tell(f"Kafka: leads {time.monotonic() - began:.3f} s after the broker's return")


@pytest.mark.kafka
def test_two_groups_on_one_topic_still_have_one_leader(kafka: dict[str, Any]) -> None:
    """Heartbeats are read by author: the later claim wins, and the rival stands down."""
    with Watch() as watch:
        first = watch.add(elector(**kafka))
        watch.leader()
        second = watch.add(elector(**{**kafka, "group": f"group-{uuid.uuid4().hex}"}))
        watch.successor(first)
        assert first.changes[-1][1] is Change.REVOKED
        time.sleep(5)
        assert watch.leaders == [second]


@pytest.mark.kafka
def test_a_topic_that_two_elections_share_is_refused(kafka: dict[str, Any]) -> None:
    """Their leaders would drive each other out."""
    with Watch() as watch:
        first = watch.add(elector(name="orders", **kafka))
        watch.leader()
        other = watch.add(elector(name="payments", **kafka))
        until(lambda: other.error, "the other one refuses")
        assert "used for the election of orders" in str(other.error)
        assert first.leads


@pytest.mark.kafka
def test_what_no_elector_wrote_is_told_and_passed_by(
    kafka: dict[str, Any], kafka_broker: Broker
) -> None:
    """Anybody's record proves nothing, and harms nobody."""
    from confluent_kafka import Producer  # noqa: PLC0415 - this test alone

    with Watch() as watch:
        leader = watch.add(elector(**kafka))
        watch.leader()
        producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
        producer.produce(kafka["topic"], b"1700000000%goneli", partition=0)
        producer.flush(10)
        until(lambda: leader.problems, "the problem is told")
        assert "no elector wrote" in leader.problems[0]
        assert leader.leads


@pytest.mark.kafka
def test_a_topic_that_is_not_there_is_told(kafka: dict[str, Any], kafka_broker: Broker) -> None:
    """The elector makes none, waits for it, and leads when there is one."""
    kafka["topic"] = f"missing-{uuid.uuid4().hex[:8]}"
    with Watch() as watch:
        engine = watch.add(elector(**kafka))
        until(lambda: engine.problems, "the problem is told")
        assert "create the topic with one partition" in engine.problems[0]
        kafka_broker.create_topic(kafka["topic"])
        watch.leader()


@pytest.mark.kafka
def test_a_session_that_the_broker_does_not_allow_is_explained(kafka: dict[str, Any]) -> None:
    """The error names the brokers' settings."""
    with Watch() as watch:
        engine = watch.add(elector(**{**kafka, "session_timeout": "2s"}))
        until(lambda: engine.error, "it refuses")
        assert "group.min.session.timeout.ms" in str(engine.error)


@pytest.mark.kafka
def test_a_clean_close_does_not_hang_without_a_broker(
    kafka: dict[str, Any], kafka_broker: Broker
) -> None:
    """Leaving is bounded, whatever the client waits for."""
    with Watch() as watch:
        engine = watch.add(elector(**kafka))
        watch.leader()
        kafka_broker.pause()
        try:
            watch.engines.remove(engine)
            took = engine.stop()
        finally:
            kafka_broker.resume()
    tell(f"Kafka hangs: close took {took:.3f} s")
    assert took < 5 + BUSY
