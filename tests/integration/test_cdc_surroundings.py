"""``postgres-cdc`` and what the world around it may do: networks, poolers, limits, operators."""

from __future__ import annotations

import json
import re
import time
import uuid
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

import psycopg
import pytest
from cdc_tools import LOG_ID, MemoryLog, broken, clean_slots, short
from engine_tools import Events, SparklessHost, delivered, running, until
from pgbouncer import pgbouncer
from pooler import pooler
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr
from services.postgres import ROTATING_ROLE, Database
from transporter_adaptors.postgres_cdc import copier, session, slot_creation, watch, wire
from transporter_adaptors.postgres_cdc import reader as reader_module
from transporter_adaptors.postgres_cdc.config import CdcConfig
from transporter_adaptors.postgres_cdc.operating import findings, objects, progress, setup_sql
from transporter_adaptors.postgres_cdc.operating.source import PostgresSource
from transporter_adaptors.postgres_cdc.reader import CdcReader

from transporter.change_source import LoggedReader
from transporter.engine.engine import Engine
from transporter.errors import EnvironmentFault, SourceError, SourceUnavailable
from transporter.pipeline.config import load
from transporter.testing import FaultyProxy, FixedResume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from _pytest.mark import ParameterSet

    from transporter.pipeline.config import Pipeline
pytestmark = [pytest.mark.postgres, pytest.mark.timeout(60)]

ROWS = 2000
PATIENCE = 1.0
"""Seconds that a call may take here until the server counts as silent."""


def many(*case: object) -> ParameterSet:
    """Return one of many like cases, left to ``make soak``."""
    return pytest.param(*case, marks=pytest.mark.exhaustive)


@pytest.fixture
def proxy(shop: Database) -> Iterator[FaultyProxy]:
    """Yield a proxy in front of the server, which resets what is left at the end."""
    with FaultyProxy(("127.0.0.1", shop.server.port)) as made:
        yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reader wait for the server for a moment only."""
    monkeypatch.setattr(session, "PATIENCE", PATIENCE)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a reader report early that its slot has to wait."""
    assert slot_creation.NOTICE == 2
    for module in (reader_module, slot_creation):
        monkeypatch.setattr(module, "NOTICE", 0.3)


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


@pytest.mark.exhaustive
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
    # Its session may be yet to be made.
    problem = fails_within(log, 5)
    assert "did not answer within 1 s" in problem or "connection timeout expired" in problem
    proxy.heal()
    log.drain(shop)
    log.kill()
    assert keys(log) == list(range(1, ROWS + 1))


def test_a_connection_that_is_reset_in_a_chunk(shop: Database, proxy: FaultyProxy) -> None:
    """In the middle of a message of COPY: the chunk is discarded and read again."""
    fill(shop)
    log = through(proxy, shop)
    log.poll()
    proxy.lose_answers(300_000)
    assert fails_within(log, 5).startswith("cannot copy public.items: consuming input failed")
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


PLACES = [many(0), many(30), 1_000_000, many(2_000_000)]
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


@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", ["hang", "lose_answers"])
@pytest.mark.parametrize("after", [many(0), many(10), many(300), 1200, many(2400), many(-1)])
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


def is_untouched(database: Database) -> bool:
    """Return whether there is neither a slot nor a publication."""
    mine = "SELECT 1 FROM pg_replication_slots WHERE database = current_database()"
    return not (database.execute(mine) or database.execute("SELECT 1 FROM pg_publication"))


@pytest.mark.parametrize(
    ("mode", "ignored", "text"),
    [
        many("session", "", "refuses what the reader needs"),
        many("session", "options", "does not pass the settings of a session on"),
        many("transaction", "", "refuses what the reader needs"),
        many("transaction", "options,replication", "does not pass the settings of a session on"),
    ],
)
def test_a_pgbouncer_is_refused(shop: Database, mode: str, ignored: str, text: str) -> None:
    """The error names the pooler, before anything is created."""
    with pgbouncer(shop, mode, ignored) as dsn:
        found = broken(shop, MemoryLog(shop, dsn=dsn))
    assert found.startswith(f"the dsn leads to a pooler that {text}")
    assert found.endswith("use the direct address of the server")
    assert is_untouched(shop)


@pytest.mark.parametrize("mode", ["transaction", "in turn"])
def test_a_pooler_of_transactions_is_refused(
    shop: Database, mode: Literal["transaction", "in turn"]
) -> None:
    """Also one that passes the settings of a session on."""
    with pooler(shop, mode) as dsn:
        found = broken(shop, MemoryLog(shop, dsn=dsn))
    assert "gives each transaction another session of the server" in found
    assert is_untouched(shop)


@pytest.mark.exhaustive
def test_a_pooler_of_sessions_that_passes_everything_on_is_used(shop: Database) -> None:
    """Its process ids differ from the server's, and that does no harm."""
    with pooler(shop, "session") as dsn:
        log = MemoryLog(shop, dsn=dsn)
        log.reader()
        log.kill()
    assert [name for name, _ in log.told] == ["slot-created"]


@contextmanager
def running_change(database: Database) -> Iterator[int]:
    """Hold a transaction open that has changed something, and yield its process id."""
    with database.connect(autocommit=False, application_name="nightly") as connection:
        connection.execute("INSERT INTO items VALUES (0, 'late')")
        yield connection.info.backend_pid
        connection.commit()


@pytest.mark.usefixtures("hasty")
def test_a_slot_waits_for_a_transaction_and_an_operator_sees_which(shop: Database) -> None:
    """The event names process and age, polls return meanwhile, and then everything comes."""
    shop.execute("INSERT INTO items VALUES (1, 'before')")
    log = MemoryLog(shop)
    with running_change(shop) as pid:
        begun = time.monotonic()
        log.poll()
        assert log.messages == []
        assert time.monotonic() - begun < 5
        until(lambda: log.poll(0.1) and log.told)
        ((event, fields),) = log.told
        assert (event, [*fields]) == ("slot-waits", ["slot", "problem"])
        assert re.search(
            rf"PID {pid} \(nightly, idle in transaction for \d+ s\)", str(fields["problem"])
        )
    log.drain(shop)
    log.kill()
    assert sorted(keys(log)) == [0, 1]
    assert [name for name, _ in log.told][:2] == ["slot-waits", "slot-created"]


@pytest.mark.exhaustive
def test_a_table_that_is_emptied_while_the_slot_is_created(shop: Database) -> None:
    """The server forgets that, and cannot decode what comes then. Only a new slot helps."""
    shop.execute("CREATE TABLE others (id int)")
    with (
        clean_slots(shop),
        shop.connect(autocommit=False) as first,
        shop.connect(autocommit=False) as second,
    ):
        first.execute("INSERT INTO others VALUES (1)")
        log = MemoryLog(shop, tables=["public.items"])
        log.poll()
        _await_waiting(shop, first)
        second.execute("INSERT INTO others VALUES (2)")
        shop.execute("TRUNCATE items")
        first.commit()
        _await_waiting(shop, second)
        with shop.connect(autocommit=False) as third:
            third.execute("INSERT INTO items VALUES (1)")
            second.commit()
            until(lambda: log.poll(0.1) and not _waiting(shop))
            third.commit()
        with pytest.raises(SourceError, match=r"cannot decode its log .* raise .* copy_run"):
            log.drain(shop)
        log.kill()
        log.settings["copy_run"] = 2
        log.drain(shop)
        shop.execute("INSERT INTO items VALUES (2)")
        log.drain(shop)
        log.kill()
    assert {each.key for each in log.messages if each.op == "insert"} == {b"1", b"2"}


def _waiting(database: Database) -> list[tuple[str]]:
    """Return the numbers of the transactions that the creation of a slot waits for."""
    return database.execute(
        "SELECT transactionid::text FROM pg_locks JOIN pg_stat_activity USING (pid)"
        " WHERE locktype = 'transactionid' AND NOT granted AND backend_type = 'walsender'"
    )


def _await_waiting(database: Database, session: psycopg.Connection[Any]) -> None:
    """Wait until the creation of a slot waits for the transaction of *session*."""
    number = session.execute("SELECT pg_current_xact_id()::xid::text").fetchall()
    until(lambda: _waiting(database) == number)


@pytest.mark.usefixtures("hasty")
def test_a_role_that_may_not_see_other_sessions_gets_their_process_ids(shop: Database) -> None:
    """The server hides everything else about them."""
    shop.execute("CREATE PUBLICATION transporter_reader FOR TABLE items")
    with role_of(shop) as role, running_change(shop) as pid:
        log = MemoryLog(shop, dsn=shop.dsn_as(role), manage="slot", copy="none")
        until(lambda: log.poll(0.1) and log.told)
        assert f": PID {pid}; end them" in str(log.told[0][1]["problem"])
        log.kill()


@pytest.mark.usefixtures("hasty")
def test_a_reader_that_waits_for_its_slot_closes_at_once_and_leaves_none(shop: Database) -> None:
    """The server ends the creation, so the next open waits for no stranger."""
    log = MemoryLog(shop)
    with running_change(shop):
        log.poll()
        begun = time.monotonic()
        log.kill()
        assert time.monotonic() - begun < 2
        mine = "SELECT active_pid FROM pg_replication_slots WHERE database = current_database()"
        until(lambda: shop.execute(mine) == [])
        log.poll()
    log.drain(shop)
    log.kill()
    assert keys(log) == [0]


@pytest.mark.usefixtures("hasty")
def test_the_creation_of_a_slot_ends_with_its_session(shop: Database) -> None:
    """The process that creates the slot may be ended: that is tried again."""
    log = MemoryLog(shop)
    with running_change(shop):
        log.poll()
        shop.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            " WHERE database = current_database()"
        )
        assert "terminating connection" in fails_within(log, 5)
    log.drain(shop)
    log.kill()
    assert keys(log) == [0]


@contextmanager
def role_of(database: Database, options: str = "REPLICATION") -> Iterator[str]:
    """Create a role that may use nothing but the schema, and yield its name."""
    role = f"cdc_{uuid.uuid4().hex[:8]}"
    database.execute(f"CREATE ROLE {role} LOGIN {options}")
    try:
        yield role
    finally:
        if database.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]):
            database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_role_that_may_not_read_the_tables_is_refused_before_there_is_a_slot(
    shop: Database,
) -> None:
    """A slot that nobody can use would keep the server's log for ever."""
    shop.execute("CREATE PUBLICATION transporter_reader FOR TABLE items")
    with role_of(shop) as role:
        log = MemoryLog(shop, dsn=shop.dsn_as(role), manage="slot")
        expected = f"role {role} may not read public.items: run GRANT SELECT ON public.items TO"
        assert broken(shop, log).startswith(expected)
        assert shop.execute("SELECT 1 FROM pg_replication_slots") == []
        # Without a copy it needs no such right.
        log.settings["copy"] = "none"
        log.drain(shop)
        log.kill()


def test_a_new_table_without_a_right_is_left_out_until_it_is_granted(shop: Database) -> None:
    """A pattern matches it, and the others go on."""
    shop.execute("CREATE PUBLICATION transporter_reader FOR TABLE items")
    with role_of(shop) as role:
        shop.execute(f"GRANT SELECT ON items TO {role}")
        log = MemoryLog(shop, dsn=shop.dsn_as(role), manage="slot", watch="1s")
        log.drain(shop)
        shop.execute("CREATE TABLE more (id int PRIMARY KEY); INSERT INTO more VALUES (7)")
        shop.execute("ALTER PUBLICATION transporter_reader ADD TABLE more")
        until(lambda: log.poll(0.1) and log.told[-1][0] == "table-left-out")
        assert "may not read public.more: run GRANT SELECT" in str(log.told[-1][1]["problem"])
        shop.execute(f"INSERT INTO items VALUES (1); GRANT SELECT ON more TO {role}")
        until(lambda: log.poll(0.1) and sorted(keys(log)) == [1, 7])
        log.kill()


def test_rights_that_are_revoked_while_the_reader_runs(shop: Database) -> None:
    """It stops with the remedy, and goes on where it was once the right is back."""
    fill(shop, 10)
    shop.execute("CREATE PUBLICATION transporter_reader FOR TABLE items")
    with role_of(shop) as role:
        shop.execute(f"GRANT SELECT ON items TO {role}")
        log = MemoryLog(shop, dsn=shop.dsn_as(role), manage="slot", copy_rows=4)
        while not keys(log):
            log.poll()
        shop.execute(f"REVOKE SELECT ON items FROM {role}")
        with pytest.raises(EnvironmentFault, match="permission denied for table items; 'transp"):
            poll_for(log, 5)
        log.kill()
        shop.execute(f"GRANT SELECT ON items TO {role}; ALTER ROLE {role} NOREPLICATION")
        assert f"role {role} may not replicate: run ALTER ROLE" in broken(shop, log)
        shop.execute(f"ALTER ROLE {role} REPLICATION")
        log.drain(shop)
        log.kill()
    assert keys(log) == list(range(1, 11))


def test_a_role_that_changes_while_the_reader_runs(shop: Database) -> None:
    """A running session goes on. The next one is tried again, and a new dsn is taken up."""
    with role_of(shop, "SUPERUSER") as role:
        log = MemoryLog(shop, dsn=shop.dsn_as(role))
        log.drain(shop)
        shop.execute(f"ALTER ROLE {role} NOLOGIN")
        fill(shop, 1)
        log.drain(shop)
        log.kill()
        assert "is not permitted to log in" in refused(log)
        shop.execute(f"ALTER ROLE {role} LOGIN; ALTER ROLE {role} RENAME TO {role}_b")
        assert f'role "{role}" does not exist' in refused(log)
        log.settings["dsn"] = shop.dsn_as(f"{role}_b")
        assert refused(log) == ""
        shop.execute(f"ALTER ROLE {role}_b RENAME TO {role}")
    assert keys(log) == [1]


def test_a_password_that_changes_while_the_reader_runs(shop: Database) -> None:
    """It may be one of a file, which is read at each connection: that is tried again."""
    shop.execute(f"CREATE ROLE {ROTATING_ROLE} LOGIN SUPERUSER PASSWORD 'one'")
    try:
        log = MemoryLog(shop, dsn=make_conninfo(shop.tcp_dsn("one"), user=ROTATING_ROLE))
        log.drain(shop)
        shop.execute(f"ALTER ROLE {ROTATING_ROLE} PASSWORD 'two'")
        fill(shop, 1)
        log.drain(shop)
        log.kill()
        assert "password authentication failed" in refused(log)
        log.settings["dsn"] = make_conninfo(shop.tcp_dsn("two"), user=ROTATING_ROLE)
        assert refused(log) == ""
    finally:
        shop.execute(f"DROP OWNED BY {ROTATING_ROLE}; DROP ROLE {ROTATING_ROLE}")
    assert keys(log) == [1]


def refused(log: MemoryLog) -> str:
    """Open the reader of *log* once, and return the error, none if it opens."""
    reader = CdcReader(CdcReader.Config.model_validate(log.settings))
    resume = FixedResume(log.position, LOG_ID)
    resume.states = dict(log.states)
    try:
        reader.open(resume)
    except SourceUnavailable as error:
        return str(error)
    finally:
        reader.close()
    return ""


def test_a_database_that_is_renamed(shop: Database) -> None:
    """The slot belongs to the database by its number, so the log goes on under the new name."""
    fill(shop, 1)
    log = MemoryLog(shop)
    log.drain(shop)
    other = Database(f"{shop.name}_b", shop.server)
    maintenance = Database("postgres", shop.server)
    log.kill()
    until(lambda: maintenance.execute(USERS, [shop.name]) == [(0,)])
    maintenance.execute(f"ALTER DATABASE {shop.name} RENAME TO {other.name}")
    try:
        other.execute("INSERT INTO items VALUES (2)")
        assert f'database "{shop.name}" does not exist' in refused(log)
        log.settings["dsn"] = other.dsn
        log.drain(other)
        log.kill()
        until(lambda: maintenance.execute(USERS, [other.name]) == [(0,)])
    finally:
        maintenance.execute(f"ALTER DATABASE {other.name} RENAME TO {shop.name}")
    assert keys(log) == [1, 2]


USERS = "SELECT count(*)::int FROM pg_stat_activity WHERE datname = %s"


def test_a_copied_log_cannot_be_read_beside_the_first(shop: Database) -> None:
    """The second engine waits, and finds out that its log has a gap when the first is gone."""
    first = MemoryLog(shop)
    first.drain(shop)
    second = MemoryLog(shop)
    second.position, second.states = first.position, dict(first.states)
    assert "is another engine running?" in refused(second)
    fill(shop, 10)
    first.drain(shop)
    beyond = "SELECT 1 FROM pg_replication_slots WHERE confirmed_flush_lsn > %s::pg_lsn"
    until(lambda: first.poll() and shop.execute(beyond, [second.position_fields["at"]]))
    first.kill()
    assert "another client has read from it" in broken(shop, second)
    assert keys(first) == list(range(1, 11))


@pytest.mark.parametrize("after", [many(0), 1500])
@pytest.mark.parametrize("command", ["status", "check", "init", "drop"])
def test_commands_at_a_silent_server_end_soon(
    shop: Database, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, command: str, after: int
) -> None:
    """Each has the limit of commands, and reports that the server does not answer."""
    assert session.COMMAND_PATIENCE == 10
    for module in (findings, objects, progress, setup_sql):
        monkeypatch.setattr(module, "COMMAND_PATIENCE", 0.5)
    dsn = make_conninfo(shop.tcp_dsn(), port=proxy.port, connect_timeout=2)
    config = CdcConfig.model_validate({"dsn": dsn, "tables": ["public.items"], "slot": "mine"})
    source = PostgresSource(config, LoggedReader("reader", LOG_ID, None, str))
    calls: dict[str, Callable[[], object]] = {
        "status": lambda: source.status().problem,
        "check": lambda: list(source.check()),
        "init": lambda: list(source.set_up("plain", None)),
        "drop": source.find_removable,
    }
    proxy.hang(after)
    begun = time.monotonic()
    try:
        found = str(calls[command]())
    except SourceUnavailable as error:
        found = str(error)
    assert re.search("timeout expired|did not answer within 0.5 s", found)
    assert time.monotonic() - begun < 5
    proxy.heal()
    calls[command]()


def pipeline_of(folder: Path, dsn: str) -> Pipeline:
    """Return a pipeline from the tables at *dsn* into a file."""
    document = {
        "readers": [{"name": "in", "adaptor": "postgres-cdc", "dsn": dsn, "tables": ["items"]}],
        "routes": [
            {"name": "out", "writer": {"adaptor": "engine_tools:LinesWriter", "path": "out.jsonl"}}
        ],
        "log": {"dir": "log"},
    }
    file = folder / "pipeline.yaml"
    file.write_text(json.dumps(document))
    return load(file, {})


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("place", [many("open"), "stream", many("chunk"), "slot"])
def test_an_engine_stops_in_time(
    shop: Database, proxy: FaultyProxy, tmp_path: Path, place: str
) -> None:
    """A source that does not answer is left after 5 s, and what waits in a poll ends at once."""
    fill(shop, 100)
    pipeline = pipeline_of(tmp_path, make_conninfo(shop.tcp_dsn(), port=proxy.port))
    with ExitStack() as held:
        if place == "slot":
            held.enter_context(running_change(shop))
        elif place == "open":
            proxy.hang(500)
        elif place == "chunk":
            proxy.hang(50_000)
        engine = Engine(pipeline, SparklessHost(), events := Events())
        engine.start()
        if place == "stream":
            until(lambda: len(delivered(tmp_path / "out.jsonl")) == 100)
            proxy.hang()
        elif place == "slot":
            events.await_count("slot-waits")
        time.sleep(0.5)
        begun = time.monotonic()
        engine.stop()
        assert time.monotonic() - begun < 15
        (feed,) = engine._running.feeds
        assert place not in ("slot", "stream") or not feed._gate.is_closed
    proxy.heal()
    proxy.cut()
    with running(pipeline):
        rows = 100 + (place == "slot")
        until(lambda: len(delivered(tmp_path / "out.jsonl")) >= rows)
    assert len(delivered(tmp_path / "out.jsonl")) == rows


@pytest.mark.usefixtures("impatient")
def test_init_names_the_transactions_that_a_slot_waits_for(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends after its limit, without a slot, and with the statement for later."""
    monkeypatch.setattr(objects, "_SLOT_SECONDS", 0.5)
    config = CdcConfig.model_validate({"dsn": shop.dsn, "tables": ["public.items"], "slot": "mine"})
    source = PostgresSource(config, LoggedReader("reader", LOG_ID, None, str))
    with running_change(shop) as pid:
        made = {each.name: each for each in source.set_up("plain", None)}["slot mine"]
        assert made.outcome == "problem"
        assert f"PID {pid} (nightly, idle in transaction for" in made.detail
        assert "have a DBA run SELECT pg_create_logical_replication_slot('mine'" in made.detail
    assert [each.outcome for each in source.set_up("plain", None)][-1] == "created"


SLOW: Final = (
    "CREATE FUNCTION slow(v int) RETURNS bool LANGUAGE plpgsql COST 1 AS"
    " $$BEGIN PERFORM pg_sleep(0.002); RETURN v > 990; END$$"
)


def events_of(log: MemoryLog, table: str) -> list[tuple[str, dict[str, object]]]:
    """Return the events about *table*."""
    return [each for each in log.told if each[1].get("table") == table]


@pytest.mark.usefixtures("impatient")
def test_a_chunk_that_takes_too_long_is_read_in_smaller_steps(shop: Database) -> None:
    """No scan is left behind, the stream goes on, and the copy comes to its end."""
    shop.execute("CREATE TABLE big (id int PRIMARY KEY, v int)")
    shop.execute("INSERT INTO big SELECT n, n FROM generate_series(1, 1000) n")
    shop.execute(SLOW)
    item = {"table": "public.big", "copy_where": "public.slow(v)"}
    log = MemoryLog(shop, tables=[item, "public.items"], watch="1s")
    reader = log.reader()
    scans = 0
    number = -1
    while not any(name == "copy-complete" for name, _ in events_of(log, "public.big")):
        number += 1
        shop.execute("INSERT INTO items VALUES (%s)", [number])
        log.poll()
        ((found,),) = shop.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY%' AND state = 'active'"
        )
        scans = max(scans, found)
    assert log.reader() is reader
    assert scans <= 1
    log.drain(shop)
    log.kill()
    copied = [each.key for each in log.messages if each.namespace == "public.big" and each.key]
    assert copied == [str(key).encode() for key in range(991, 1001)]
    followed = [each for each in log.messages if each.namespace == "public.items" and each.key]
    assert len(followed) == number + 1


def test_a_copy_that_finds_no_row_goes_forward_in_the_log(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that is killed goes on behind the last key that it has looked at."""
    monkeypatch.setattr(reader_module, "_IDLE_SECONDS", 0.0)
    fill(shop, 1000)
    item = {"table": "public.items", "copy_where": "id > 990"}
    log = MemoryLog(shop, tables=[item], copy_rows=20)
    until(lambda: log.poll() and log.position_fields.get("copy", [{}])[0].get("last"))
    log.kill()
    assert not keys(log)
    log.drain(shop)
    log.kill()
    assert keys(log) == list(range(991, 1001))


def test_the_stream_goes_first_after_an_open(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that fails at its next chunk each time holds up no change of other tables."""
    shop.execute("CREATE TABLE other (id int PRIMARY KEY)")
    shop.execute("INSERT INTO other SELECT generate_series(1, 100)")
    log = MemoryLog(shop, copy_rows=10)
    until(lambda: log.poll() and any(each.namespace == "public.other" for each in log.messages))
    log.kill()

    def fails(*_: Any) -> None:
        raise SourceUnavailable("cannot copy public.other")

    monkeypatch.setattr(copier.Copier, "read_next", fails)
    shop.execute("INSERT INTO items VALUES (1)")
    for _ in range(10):
        with pytest.raises(SourceUnavailable):
            poll_for(log, 5)
        log.kill()
    assert [each.key for each in log.messages if each.namespace == "public.items" and each.key]


def test_a_query_of_a_client_that_is_gone_ends(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server looks after the client while it works, and leaves no scan behind."""
    monkeypatch.setattr(session, "CHECK_INTERVAL", "100ms")
    queries = session.connect_queries(SecretStr(shop.dsn), 0.3)
    with pytest.raises(psycopg.OperationalError, match="did not answer"):
        queries.execute("SELECT pg_sleep(60)")
    until(lambda: not shop.execute("SELECT 1 FROM pg_stat_activity WHERE query LIKE '%_sleep(60)'"))
