"""``postgres-cdc`` and what the world around it may do: networks, poolers, limits, operators."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from cdc_tools import LOG_ID, MemoryLog, clean_slots, short
from psycopg.conninfo import make_conninfo
from transporter_adaptors.postgres_cdc import reader as reader_module
from transporter_adaptors.postgres_cdc import session, watch, wire
from transporter_adaptors.postgres_cdc.reader import CdcReader

from transporter.errors import SourceUnavailable
from transporter.testing import FaultyProxy, FixedResume

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(60)]

ROWS = 2000
PATIENCE = 1.0
"""Seconds that a call may take here until the server counts as silent."""


@pytest.fixture
def proxy(shop: Database) -> Iterator[FaultyProxy]:
    """Yield a proxy in front of the server, which resets what is left at the end."""
    with FaultyProxy(("127.0.0.1", shop.server.port)) as made:
        yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reader wait for the server for a moment only."""
    monkeypatch.setattr(session, "PATIENCE", PATIENCE)


def through(proxy: FaultyProxy, database: Database, **settings: Any) -> MemoryLog:
    """Return the log of a reader that reads *database* through *proxy*."""
    dsn = make_conninfo(database.tcp_dsn(), port=proxy.port, connect_timeout=2)
    return MemoryLog(database, dsn=dsn, **settings)


def fill(database: Database, rows: int = ROWS) -> None:
    """Insert rows of a thousand bytes."""
    database.execute(
        "INSERT INTO items SELECT n, repeat('x', 1000) FROM generate_series(1, %s) n", [rows]
    )


def clean(database: Database) -> None:
    """Drop what readers have created."""
    with clean_slots(database):
        pass
    for (name,) in database.execute("SELECT pubname FROM pg_publication"):
        database.execute(f"DROP PUBLICATION {name}")


def keys(log: MemoryLog) -> list[int]:
    """Return the keys of all rows."""
    return [int(each[2]) for each in short(log.messages) if each[0] == "insert"]


def fails_within(log: MemoryLog, seconds: float) -> str:
    """Poll until the server is found to be away, and return how that is reported."""
    with pytest.raises(SourceUnavailable) as found:
        poll_for(log, seconds)
    begun = time.monotonic()
    log.kill()
    assert time.monotonic() - begun < 1.0
    return str(found.value)


def poll_for(log: MemoryLog, seconds: float) -> None:
    """Poll for so long."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        log.poll(0.05)


@pytest.mark.parametrize("after", [0, 300_000])
@pytest.mark.usefixtures("impatient")
def test_a_server_that_falls_silent_in_a_chunk(
    shop: Database, proxy: FaultyProxy, after: int
) -> None:
    """The chunk is discarded and read again, at its beginning or in the middle of a message."""
    fill(shop)
    log = through(proxy, shop)
    log.poll()
    proxy.hang(after)
    assert "did not answer within 1 s" in fails_within(log, 5)
    proxy.heal()
    log.drain(shop)
    log.kill()
    assert keys(log) == list(range(1, ROWS + 1))


class EndOfCopyHangs(FaultyProxy):
    """A proxy that falls silent behind the rows of a COPY, before the server's completion."""

    armed = False

    def next_part(self, answer: bytes) -> bytes:
        """Return what flows of *answer*, up to the end of the rows."""
        place = answer.find(b"c\0\0\0\4C")
        if self.armed and place >= 0:
            self.armed = False
            self.hang(place + 5)
        return super().next_part(answer)


@pytest.mark.usefixtures("impatient")
def test_a_server_that_falls_silent_at_the_end_of_a_chunk(shop: Database) -> None:
    """The rows are there and their completion is not. Nothing but the reader's thread waits."""
    fill(shop, 10)
    with EndOfCopyHangs(("127.0.0.1", shop.server.port)) as proxy:
        log = through(proxy, shop)
        log.poll()
        proxy.armed = True
        assert "did not answer within 1 s" in fails_within(log, 5)
        proxy.heal()
        log.drain(shop)
        log.kill()
    assert keys(log) == list(range(1, 11))


@pytest.mark.usefixtures("impatient")
def test_a_server_that_falls_silent_while_the_reader_looks(
    shop: Database, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queries of a look have a limit of their own, before the stream's."""
    log = through(proxy, shop, watch="1s")
    log.drain(shop)
    find = watch.find_tables

    def find_late(queries: Any) -> Any:
        proxy.hang()
        return find(queries)

    with monkeypatch.context() as patch:
        patch.setattr(watch, "find_tables", find_late)
        found = fails_within(log, 5)
    assert found.startswith("cannot look at the slot and the publications: the server did not")
    proxy.heal()
    fill(shop, 10)
    log.drain(shop)
    log.kill()
    assert keys(log) == list(range(1, 11))


PLACES = [
    0,
    pytest.param(30, marks=pytest.mark.exhaustive),
    1_000_000,
    pytest.param(2_000_000, marks=pytest.mark.exhaustive),
]
"""Bytes of the stream before a fault: between two messages, inside of one, and far behind."""


def streaming(proxy: FaultyProxy, database: Database) -> MemoryLog:
    """Return the log of a reader that has copied the tables, and has seen a change of each."""
    log = through(proxy, database, batch_rows=100)
    log.drain(database)
    database.execute("INSERT INTO items VALUES (0, 'before')")
    log.drain(database)
    return log


@pytest.mark.parametrize("after", PLACES)
@pytest.mark.usefixtures("impatient")
def test_a_server_that_falls_silent_in_the_stream(
    shop: Database, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Between two transactions, inside of a message, and in the middle of a large transaction."""
    for name in ("_SILENCE", "_ANSWER", "_REPORT"):
        monkeypatch.setattr(reader_module, name, 0.3)
    log = streaming(proxy, shop)
    proxy.hang(after)
    fill(shop)
    assert "the server has sent nothing for" in fails_within(log, 8)
    proxy.heal()
    shop.execute("INSERT INTO items VALUES (-1, 'behind')")
    log.drain(shop)
    log.kill()
    assert keys(log) == [0, *range(1, ROWS + 1), -1]


@pytest.mark.parametrize("after", PLACES)
def test_a_connection_that_is_reset_in_the_stream(
    shop: Database, proxy: FaultyProxy, after: int
) -> None:
    """The stream goes on where the log is, also inside of a transaction."""
    log = streaming(proxy, shop)
    proxy.lose_answers(after)
    fill(shop)
    assert fails_within(log, 8).startswith("lost the replication session")
    proxy.heal()
    log.drain(shop)
    log.kill()
    assert keys(log) == [*range(ROWS + 1)]


def test_a_connection_that_is_reset_while_progress_is_reported(
    shop: Database, proxy: FaultyProxy
) -> None:
    """What is logged and not confirmed yet comes no second time."""
    log = streaming(proxy, shop)
    fill(shop, 10)
    while len(keys(log)) < 11:
        log.append(log.reader().poll(0.1))
    proxy.cut()
    assert log.position is not None
    # The driver reports a lost session when it reads.
    log.reader().commit(log.position)
    assert fails_within(log, 5).startswith("lost the replication session")
    log.drain(shop)
    log.kill()
    assert keys(log) == list(range(11))


def test_a_server_that_takes_no_reports(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffers are full: the wait for room has an end."""
    monkeypatch.setattr(wire, "PATIENCE", 0.5)
    log = MemoryLog(shop)
    log.drain(shop)
    stream = log.reader()._open_parts._stream

    class Full:
        """A session whose buffer is never empty."""

        def __getattr__(self, name: str) -> Any:
            return getattr(pgconn, name)

        def flush(self) -> int:
            """Return that something is left."""
            return 1

    pgconn, stream._pgconn = stream._pgconn, Full()  # type: ignore[assignment]
    with pytest.raises(SourceUnavailable, match="the server takes no reports"):
        stream.report(0)
    log.kill()


@pytest.mark.parametrize("fault", ["hang", "lose_answers"])
@pytest.mark.parametrize(
    "after",
    [0, 10, 300, 1200, 2400, pytest.param(-1, marks=pytest.mark.exhaustive)],
)
@pytest.mark.usefixtures("impatient")
def test_a_fault_at_any_place_of_an_open(
    shop: Database, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, fault: str, after: int
) -> None:
    """The open ends in time, and what it has created is taken by the next one."""
    monkeypatch.setattr(session, "PATIENCE", 0.3)
    fill(shop, 10)
    step = 150
    for place in range(0, 20_000, step) if after < 0 else [after]:
        log, resume = through(proxy, shop), FixedResume(None, LOG_ID)
        reader = CdcReader(CdcReader.Config.model_validate(log.settings))
        getattr(proxy, fault)(place)
        begun = time.monotonic()
        try:
            reader.open(resume)
        except SourceUnavailable:
            assert time.monotonic() - begun < 6
        else:
            assert after < 0
            break
        finally:
            reader.close()
            proxy.heal()
            proxy.cut()
        log.drain(shop)
        log.kill()
        assert keys(log) == list(range(1, 11))
        clean(shop)
    else:
        assert after >= 0
