"""An outbox reader whose term ends at any moment, and the obstacles to a new term."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import ref

import psycopg
import pytest
from engine_tools import Events, delivered, running, until
from leader_tools import PATIENCE
from outbox_tools import Log, ids, insert, readers, remaining
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr
from transporter_adaptors.postgres import term
from transporter_adaptors.postgres.gaps import IdBounds
from transporter_adaptors.postgres.outbox import Outbox
from transporter_adaptors.postgres.session import connect
from transporter_adaptors.postgres.table import TableName

from transporter.errors import SourceError, SourceUnavailable
from transporter.pipeline.config import load
from transporter.testing import FaultyProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from services.postgres import Database

    from transporter.pipeline.config import Pipeline

pytestmark = pytest.mark.postgres
TERM = 1.0
ELECTOR = {"kind": "postgres", "term": f"{TERM}s"}
TABLE = TableName("outbox", "public")
FENCE = "SELECT term FROM transporter_term WHERE outbox = 'public.outbox' FOR SHARE"


@pytest.fixture
def opened(postgres: Database) -> Iterator[Callable[..., Any]]:
    """Open readers on the database, and close all at the end."""
    with readers(postgres, "mark") as opener:
        yield opener


def began(reader: Any) -> list[int]:
    """Poll until rows come, and return their ids."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        batch = reader.poll(0.1)
        if batch.position is not None:
            return ids(batch)
    raise AssertionError("nothing came")


def bump(database: Database) -> None:
    """Begin a term for another leader."""
    database.execute("UPDATE transporter_term SET term = term + 1, leader_id = gen_random_uuid()")


# --- the end of a term


def bumped_once(database: Database, patch: pytest.MonkeyPatch) -> None:
    """Begin another engine's term once, while an engine that begins its own looks at the rows."""
    original, done = Outbox.purge_logged, threading.Event()

    def purge_logged(self: Outbox, entries: Any) -> None:
        if not done.is_set():
            done.set()
            bump(database)
        original(self, entries)

    patch.setattr(Outbox, "purge_logged", purge_logged)


def test_a_term_may_end_before_it_has_begun(
    outbox: Database, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another engine's term begins between our term and our first look, and ours follows later."""
    log = Log()
    insert(outbox)
    first = opened(log)
    log.append(first.poll(5))
    first.close()
    insert(outbox)
    bumped_once(outbox, monkeypatch)
    reader = opened(log, elector=ELECTOR)
    until(lambda: reader.keep_alive() or "leader-acquired" in [name for name, _ in log.told])
    assert "leader-fenced" in [name for name, _ in log.told]
    assert began(reader) == [2]
    assert remaining(outbox) == [2]


@pytest.mark.parametrize("act", ["confirm", "poll"])
def test_a_term_whose_number_comes_again_is_not_ours(
    act: str, outbox: Database, opened: Callable[..., Any]
) -> None:
    """In a restored database another engine's term gets our number, and ours ends (Invariant 7)."""
    first = opened()
    outbox.execute("UPDATE transporter_term SET term = term - 1")
    second = opened()
    insert(outbox)
    assert began(second) == [1]
    with pytest.raises(SourceError, match="fenced"):
        first.confirm() if act == "confirm" else first.poll(0)
    assert remaining(outbox) == [1]


def test_readers_of_several_outboxes_begin_their_terms_at_once(postgres: Database) -> None:
    """Each finds the table of terms missing, and one of them creates it."""
    names = [f"s{number}" for number in range(40)]
    postgres.execute("; ".join(f"CREATE SCHEMA {name}" for name in names))
    at_once, dsn, terms = threading.Barrier(8), SecretStr(postgres.dsn), list[int]()

    def begin(outbox: str) -> None:
        with closing(connect(dsn)) as connection:
            for name in names:
                at_once.wait(PATIENCE)
                terms.append(term.begin_term(connection, TableName(outbox, name), dsn).number)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(begin, f"outbox_{number}") for number in range(8)]:
            done.result()
    assert terms == [1] * 320


def test_notifications_without_end_do_not_hold_a_poll(
    outbox: Database, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel with endless notifications blocks neither pulses nor stops."""
    reader = opened(elector=ELECTOR, poll_interval="1h")
    until(lambda: reader.keep_alive() or outbox.execute("SELECT term FROM transporter_term"))
    monkeypatch.setattr("transporter_adaptors.postgres.reader.wait_for_notify", lambda *_: True)
    began = time.monotonic()
    reader.poll(0.1)
    assert time.monotonic() - began < 1.0


def test_what_was_handed_out_is_not_kept(outbox: Database, opened: Callable[..., Any]) -> None:
    """Invariant 17: while rows await their delivery the reader keeps only their ids.

    Once they are delivered it keeps nothing of them, however long its term is.
    """
    for number in range(3):
        insert(outbox, value=str(number))
    reader = opened()
    batch = reader.poll(5)
    position, messages = batch.position, ref(batch.messages)
    del batch
    assert messages() is None
    reader.delivered(position, [0, 2])
    assert remaining(outbox) == [2]
    reader.delivered(position, [1])
    assert remaining(outbox) == []
    assert reader._logged == {}


def test_of_a_batch_only_parked_rows_are_kept(outbox: Database, opened: Callable[..., Any]) -> None:
    """Invariant 17: a row that stays for long does not keep its batch's ids in memory."""
    for number in range(20):
        insert(outbox, value=str(number))
    reader = opened()
    position = reader.poll(5).position
    reader.delivered(position, [row for row in range(20) if row not in (3, 17)])
    assert [logged.ids for logged in reader._logged.values()] == [{3: 4, 17: 18}]
    assert remaining(outbox) == [4, 18]
    reader.delivered(position, [17])
    reader.delivered(position, [3])
    assert (remaining(outbox), reader._logged) == ([], {})


def test_who_is_alone_knows_after_an_outage_what_was_delivered(
    outbox: Database, tmp_path: Path
) -> None:
    """After a lost connection the rows that the routes delivered meanwhile are not repeated."""
    for number in range(5):
        insert(outbox, value=str(number))
    (tmp_path / "out.down").write_text("write")
    with FaultyProxy(("127.0.0.1", outbox.server.port)) as proxy:
        given = pipeline(tmp_path, make_conninfo(outbox.tcp_dsn(), port=proxy.port))
        events = Events()
        with running(given, events=events) as engine:
            until(lambda: engine.log.durable == 4)
            proxy.refuse()
            events.await_count("reader-unavailable")
            (tmp_path / "out.down").unlink()
            until(lambda: lines(tmp_path) == 5)
            proxy.heal()
            until(lambda: remaining(outbox) == [])
    assert lines(tmp_path) == 5


def lines(folder: Path) -> int:
    """Return the number of entries that route ``out`` delivered."""
    file = folder / "out.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def pipeline(folder: Path, dsn: str, **reader: Any) -> Pipeline:
    """Return a pipeline from the outbox into ``out.jsonl``."""
    given = {"name": "outbox", "adaptor": "postgres-outbox", "dsn": dsn, "poll_interval": "50ms"}
    given["release"] = "delivered"
    writer = {"adaptor": "engine_tools:LinesWriter", "path": "out.jsonl"}
    route = {"name": "out", "writer": writer, "retry": {"backoff": "1ms..50ms"}}
    document = {
        "name": "terms",
        "readers": [given | reader],
        "routes": [route],
        "log": {"dir": "log"},
        "shutdown_timeout": "2s",
    }
    (folder / "pipeline.yaml").write_text(json.dumps(document))
    return load(folder / "pipeline.yaml", {})


# --- obstacles to a term


@contextmanager
def holding(database: Database, how: str) -> Iterator[None]:
    """Hold a share of the term's row, like a leader that was stopped at this moment."""
    if how == "transaction":
        with database.connect(autocommit=False) as connection:
            connection.execute(FENCE)
            yield
            with suppress(psycopg.Error):
                connection.rollback()
        return
    connection = database.connect()
    # The unread answer fills every buffer, so the statement does not end.
    endless = (
        f"WITH fence AS MATERIALIZED ({FENCE}) SELECT repeat('x', 1000000)"
        " FROM fence, generate_series(1, 1000)"
    )
    connection.pgconn.send_query(endless.encode())
    pid = connection.info.backend_pid
    state = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
    until(lambda: database.execute(state, [pid]) == [("ClientWrite",)])
    yield
    connection.pgconn.finish()


@pytest.mark.parametrize("how", ["transaction", "statement"])
def test_a_stopped_leader_is_out_of_the_way_after_half_a_term(outbox: Database, how: str) -> None:
    """A share of the term's row blocks the next leader for half a term, and no longer."""
    dsn = SecretStr(outbox.dsn)
    with connect(dsn, TERM) as connection:
        first = term.begin_term(connection, TABLE, dsn, TERM)
        with holding(outbox, how):
            begun = time.monotonic()
            second = term.begin_term(connection, TABLE, dsn, TERM)
            took = time.monotonic() - begun
    assert second.number == first.number + 1
    assert TERM / 2 <= took < TERM


def test_a_late_timer_ends_nobody_who_blocks_a_later_statement(
    outbox: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A term that began while the timer connected is no reason to end another's session."""
    dsn, connecting, may_go_on = SecretStr(outbox.dsn), threading.Event(), threading.Event()

    def connect_slowly(*settings: Any, **more: Any) -> Any:
        connecting.set()
        assert may_go_on.wait(PATIENCE)
        return connect(*settings, **more)

    monkeypatch.setattr(term, "connect", connect_slowly)
    with connect(dsn, PATIENCE) as connection:
        term.begin_term(connection, TABLE, dsn)
        before = set(threading.enumerate())
        with term._end_blockers_later(connection, dsn, 0.02):
            assert connecting.wait(PATIENCE)
        (timer,) = set(threading.enumerate()) - before
        blocked = threading.Thread(target=connection.execute, args=[f"{FENCE[:-5]}UPDATE"])
        with outbox.connect(autocommit=False) as holder:
            holder.execute(FENCE)
            blocked.start()
            state = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
            pid = connection.info.backend_pid
            until(lambda: outbox.execute(state, [pid]) == [("Lock",)])
            may_go_on.set()
            timer.join(PATIENCE)
            assert not timer.is_alive()
            holder.commit()
        blocked.join(PATIENCE)
        assert not blocked.is_alive()


def test_who_may_end_nobody_waits_no_longer_than_a_term(outbox: Database) -> None:
    """Without the right to end the blocker the wait is over after a term, with an error."""
    outbox.execute("DROP ROLE IF EXISTS timid")
    outbox.execute("CREATE ROLE timid LOGIN")
    try:
        outbox.execute("GRANT CREATE, USAGE ON SCHEMA public TO timid")
        dsn = SecretStr(outbox.dsn_as("timid"))
        with connect(dsn, TERM) as connection:
            term.begin_term(connection, TABLE, dsn, TERM)
            with holding(outbox, "transaction"):
                begun = time.monotonic()
                with pytest.raises(SourceUnavailable, match="lock timeout"):
                    term.begin_term(connection, TABLE, dsn, TERM)
                assert time.monotonic() - begun < 2 * TERM
    finally:
        outbox.execute("DROP OWNED BY timid")
        outbox.execute("DROP ROLE timid")


def test_a_server_that_hangs_is_given_up_within_two_terms(outbox: Database) -> None:
    """The server's kernel confirms every packet, so only our time-out ends the wait."""
    with FaultyProxy(("127.0.0.1", outbox.server.port)) as proxy:
        dsn = make_conninfo(outbox.tcp_dsn(), host="127.0.0.1", port=proxy.port)
        with connect(SecretStr(dsn), TERM) as connection:
            proxy.hang()
            begun = time.monotonic()
            with pytest.raises(psycopg.OperationalError, match="did not answer within"):
                connection.execute("SELECT 1")
            assert time.monotonic() - begun < 2 * TERM + 1
            assert connection.closed
            proxy.heal()


@pytest.mark.exhaustive
def test_a_server_that_hangs_is_given_up_without_an_elector(
    outbox: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine without an elector does not wait for ever either: it connects again."""
    monkeypatch.setattr("transporter_adaptors.postgres.session.SILENCE", 1.0)
    events = Events()
    with FaultyProxy(("127.0.0.1", outbox.server.port)) as proxy:
        dsn = make_conninfo(outbox.tcp_dsn(), port=proxy.port)
        with running(pipeline(tmp_path, dsn, elector="none"), events=events):
            insert(outbox)
            until(lambda: remaining(outbox) == [])
            proxy.hang()
            problem = events.await_count("reader-unavailable")["problem"]
            assert "did not answer within 1 s" in problem
            proxy.heal()
            insert(outbox)
            until(lambda: remaining(outbox) == [])


def slow_rows(database: Database) -> None:
    """Slow each marking or purge of a row down by 10 ms."""
    database.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM pg_sleep(0.01); RETURN coalesce(NEW, OLD); END $$;"
        "CREATE TRIGGER slow BEFORE UPDATE OR DELETE ON outbox"
        " FOR EACH ROW EXECUTE FUNCTION slow()"
    )


@pytest.mark.exhaustive
def test_a_batch_too_large_for_a_term_is_halved(outbox: Database, tmp_path: Path) -> None:
    """Even three terms are too short for all rows at once, and a slow server is still read."""
    slow_rows(outbox)
    outbox.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)"
        " SELECT 't', 'k', n::text FROM generate_series(1, 300) AS n"
    )
    events = Events()
    given = pipeline(tmp_path, outbox.dsn, elector=ELECTOR, batch_rows=400)
    with running(given, events=events):
        until(lambda: remaining(outbox) == [])
    halved = [details["rows"] for details in events.named("batch-halved")]
    assert halved[0] == 200
    assert halved[-1] <= 50
    delivered_rows = [line["data"] for line in delivered(tmp_path / "out.jsonl")]
    assert set(delivered_rows) == {str(n) for n in range(1, 301)}


@pytest.mark.exhaustive
def test_rows_too_many_for_one_statement_are_purged_in_parts(outbox: Database) -> None:
    """Logged rows leave the table even if the server has become slow since."""
    dsn = SecretStr(outbox.dsn)
    with outbox.connect() as session:
        for _ in range(300):
            insert(session)
    with connect(dsn, TERM) as connection:
        table = Outbox(connection, TABLE, term.begin_term(connection, TABLE, dsn, TERM), "outbox")
        found = table.mark(IdBounds(1), 300, 100_000)
        slow_rows(outbox)
        table.purge(found.ids)
    assert remaining(outbox) == []


# --- a stop while the database is away


@pytest.mark.exhaustive
@pytest.mark.parametrize("elector", ["none", ELECTOR], ids=["alone", "elected"])
@pytest.mark.parametrize("fault", ["refuse", "hang"])
def test_a_stop_ends_while_the_database_is_away(
    outbox: Database, tmp_path: Path, fault: str, elector: Any
) -> None:
    """A stop takes at most ``shutdown_timeout`` and a few seconds, even if the server hangs.

    Delivered rows are purged by the next run, and not repeated.
    """
    with FaultyProxy(("127.0.0.1", outbox.server.port)) as proxy:
        dsn = make_conninfo(outbox.tcp_dsn(), port=proxy.port)
        given = pipeline(tmp_path, dsn, elector=elector)
        with running(given) as engine:
            until(lambda: engine.status().readers[0].term is not None)
            insert(outbox)
            until(lambda: remaining(outbox) == [])
            (tmp_path / "out.down").write_text("write")
            insert(outbox)
            until(lambda: engine.log.durable == 1)
            getattr(proxy, fault)()
            time.sleep(0.3)
            (tmp_path / "out.down").unlink()
            begun = time.monotonic()
        took = time.monotonic() - begun
        proxy.heal()
    assert took < 2 + 2 * TERM + 6, took
    with running(pipeline(tmp_path, outbox.dsn, elector=elector)):
        until(lambda: remaining(outbox) == [])
    assert 2 <= lines(tmp_path) <= 3
