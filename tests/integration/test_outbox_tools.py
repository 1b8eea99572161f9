"""The outbox as applications use it, on a real PostgreSQL: stashing, and the commands."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections import Counter
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import psycopg
import pytest
from acceptance_tools import TRANSPORTER, await_true
from outbox_tools import Log, ids, insert, messages, readers, remaining
from psycopg.conninfo import make_conninfo
from services.postgres import PASSWORD, free_port

from transporter.cli import app
from transporter.cli.outbox_target import VARIABLE
from transporter.errors import ActionRefused, SourceError, SourceUnavailable
from transporter.message import Message
from transporter.outbox import (
    Columns,
    Record,
    outbox_sql,
    removal,
    stash,
    stash_async,
    stash_many,
    stash_many_async,
)
from transporter.outbox import reset as resetting
from transporter.outbox.database import connect
from transporter.outbox.pump import Load, Pump

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services.postgres import Database

    from transporter.outbox.database import Connection

pytestmark = pytest.mark.postgres

PLACED = Record("orders.placed", "7", '{"id": 7}', [("trace", "a"), ("trace", "b")])
GHOST = UUID(int=7)
GOHARVEST = """
CREATE TABLE outbox (
    id BIGSERIAL PRIMARY KEY, create_time TIMESTAMP WITH TIME ZONE NOT NULL,
    kafka_topic VARCHAR(249) NOT NULL, kafka_key VARCHAR(100) NOT NULL, kafka_value VARCHAR(10000),
    kafka_header_keys TEXT[] NOT NULL, kafka_header_values TEXT[] NOT NULL, leader_id UUID
)
"""


@pytest.fixture
def opened(postgres: Database) -> Iterator[Callable[..., Any]]:
    """Open readers on the database, and close all at the end."""
    with readers(postgres, "mark") as opener:
        yield opener


@pytest.fixture
def command(
    postgres: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run ``transporter outbox`` on the database and return its standard output."""
    monkeypatch.setenv(VARIABLE, postgres.dsn)

    def run(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert app.execute(["outbox", *words]) == code, capsys.readouterr()
        return capsys.readouterr().out

    return run


def result(text: str) -> dict[str, Any]:
    """Return the result of a command that ran with --json."""
    found: dict[str, Any] = json.loads(text)["result"]
    return found


# --- stashing


def test_an_event_exists_exactly_when_its_transaction_commits(outbox: Database) -> None:
    """A rollback removes the event, and stash never commits on the application's behalf."""
    with psycopg.connect(outbox.dsn) as connection, connection.cursor() as cursor:
        stash(cursor, PLACED)
        assert remaining(outbox) == []
        connection.rollback()
        assert stash_many(cursor, [PLACED, Record("orders.placed", "8", None)]) == 2
        connection.commit()
    assert remaining(outbox) == [2, 3]


def test_what_is_stashed_is_what_an_engine_reads(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """Topic, key, value, tombstone and headers arrive as the application gave them."""
    letters = Record("zákazníci", "schlüssel-鍵", "žluťoučký 🐎", {"x": 'a"b,{}\\', "y": ""})
    with outbox.connect() as connection:
        for record in (PLACED, letters, Record("t", "", None)):
            stash(connection, record)
    first, second, third = messages(opened().poll(5))
    assert first == Message(
        "orders.placed",
        b'{"id": 7}',
        b"7",
        timestamp=first.timestamp,
        source_id="outbox/1",
        headers=(("trace", b"a"), ("trace", b"b")),
    )
    assert (second.namespace, second.key) == (letters.topic, letters.key.encode())
    assert second.data == "žluťoučký 🐎".encode()
    assert second.headers == (("x", b'a"b,{}\\'), ("y", b""))
    assert (third.op, third.key, third.data) == ("delete", b"", None)


def test_async_code_stashes_as_well(outbox: Database) -> None:
    """The async pair works on cursors and connections, in their current transaction."""

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(outbox.dsn) as connection:
            await stash_async(connection, PLACED)
            async with connection.cursor() as cursor:
                assert await stash_many_async(cursor, [PLACED] * 3) == 3
                await connection.rollback()
                await stash_async(cursor, PLACED)

    asyncio.run(work())
    assert remaining(outbox) == [5]


def test_the_kinds_of_cursor_are_told_apart(outbox: Database) -> None:
    """An async cursor in sync code is an error, because its event would silently be lost."""

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(outbox.dsn) as connection:
            with pytest.raises(TypeError, match="await stash_async"):
                stash(connection.cursor(), PLACED)

    asyncio.run(work())
    assert remaining(outbox) == []


def test_a_table_of_any_name(postgres: Database) -> None:
    """A schema, capitals, quotes and per cent signs are accepted."""
    table = '"My Shop"."100%s ""Out"""'
    postgres.execute('CREATE SCHEMA "My Shop"')
    with postgres.connect() as connection:
        connection.execute(outbox_sql(table, "it's"))
        stash(connection, PLACED, table=table)
        stash_many(connection.cursor(), [PLACED], table=table)
        found = connection.execute('SELECT kafka_key FROM "My Shop"."100%s ""Out"""').fetchall()
    assert found == [("7",), ("7",)]


def test_a_table_that_goharvest_made(postgres: Database) -> None:
    """Stashing works although the table's columns have no defaults."""
    postgres.execute(GOHARVEST)
    with postgres.connect() as connection:
        stash(connection, Record("t", "k", None))
    assert postgres.execute("SELECT now() - create_time < '1 minute' FROM outbox") == [(True,)]


def test_an_application_needs_two_rights_only(outbox: Database) -> None:
    """INSERT on the table and USAGE on its sequence are enough, trigger included."""
    role = f"app_{outbox.name}"
    outbox.execute(f"CREATE ROLE {role} LOGIN")
    try:
        outbox.execute(f"GRANT INSERT ON outbox TO {role}")
        outbox.execute(f"GRANT USAGE ON SEQUENCE outbox_id_seq TO {role}")
        with psycopg.connect(outbox.dsn_as(role)) as connection:
            stash(connection, PLACED)
        assert remaining(outbox) == [1]
    finally:
        outbox.execute(f"DROP OWNED BY {role}")
        outbox.execute(f"DROP ROLE {role}")


# --- init


def test_init_creates_the_table_once(postgres: Database, command: Callable[..., str]) -> None:
    """A second run reports the existing table and changes nothing, and rows stay."""
    assert command("init", "--run") == "public.outbox: created\n"
    insert(postgres)
    assert "public.outbox: existed already" in command("init", "--run")
    assert remaining(postgres) == [1]
    assert result(command("init", "--run", "--json")) == {
        "table": "public.outbox",
        "created": False,
        "channel": "outbox",
    }


def test_what_init_prints_is_what_it_runs(postgres: Database, command: Callable[..., str]) -> None:
    """The printed SQL makes the same table, trigger and settings, and can run again."""
    postgres.execute("CREATE SCHEMA a; CREATE SCHEMA b")
    command("init", "--run", "--table", "a.outbox")
    printed = command("init", "--table", "b.outbox")
    postgres.execute(printed)
    postgres.execute(printed)
    columns = (
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute"
        " WHERE attrelid = '{}.outbox'::regclass AND attnum > 0 ORDER BY attnum"
    )
    settings = (
        "SELECT reloptions, (SELECT array_agg(tgname) FROM pg_trigger WHERE tgrelid = c.oid)"
        " FROM pg_class c WHERE oid = '{}.outbox'::regclass"
    )
    for query in (columns, settings):
        assert postgres.execute(query.format("a")) == postgres.execute(query.format("b"))


def test_init_adds_the_trigger_to_a_table_of_goharvest(
    postgres: Database, command: Callable[..., str]
) -> None:
    """An existing outbox keeps its columns, and notifies the reader from then on."""
    postgres.execute(GOHARVEST)
    assert "existed already" in command("init", "--run")
    with postgres.connect() as listener:
        listener.execute("LISTEN outbox")
        with postgres.connect() as connection:
            stash(connection, PLACED)
        assert [each.channel for each in listener.notifies(timeout=20, stop_after=1)] == ["outbox"]


def test_init_touches_no_other_table(
    postgres: Database, command: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A table that is not an outbox gets no trigger, only exit code 3 with the reason."""
    postgres.execute("CREATE TABLE orders (id int)")
    assert app.execute(["outbox", "init", "--run", "--table", "orders"]) == 3
    told = capsys.readouterr().err
    assert "the table public.orders is not an outbox" in told
    assert 'column "create_time" does not exist' in told
    assert postgres.execute("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == [(0,)]


def test_init_needs_a_schema(
    command: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing schema is named, with exit code 3."""
    assert app.execute(["outbox", "init", "--run", "--table", "shop.outbox", "--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["exit_code"] == 3
    assert 'schema "shop" does not exist' in error["message"]


# --- pump


def test_the_pump_counts_every_key(outbox: Database, command: Callable[..., str]) -> None:
    """In id order each key's header seq runs from 1 without a gap, and values have their size."""
    words = ("--keys", "7", "--records", "205", "--rows", "10", "--value-bytes", "300")
    told = result(command("pump", *words, "--json"))
    assert (told["records"], told["keys"], told["table"]) == (205, 7, "outbox")
    rows = outbox.execute(
        "SELECT kafka_key, kafka_header_values[1]::int, kafka_header_values[2],"
        " length(kafka_value), kafka_header_keys, xmin::text FROM outbox ORDER BY id"
    )
    assert len(rows) == 205
    seen: Counter[str] = Counter()
    for key, sequence, run, length, names, _ in rows:
        seen[key] += 1
        assert (sequence, run, length, names) == (seen[key], told["run"], 300, ["seq", "run"])
    assert len({transaction for *_, transaction in rows}) == 21
    told = command("pump", "--records", "3", "--topic", "trial")
    assert told.startswith("outbox: 3 rows of 10 keys in ")
    assert outbox.execute("SELECT count(*) FROM outbox WHERE kafka_topic = 'trial'") == [(3,)]


def test_the_pump_keeps_its_rate_and_tells_of_it(outbox: Database) -> None:
    """Transactions come when they are due, and the meter is read in between."""
    now, told, read = [0.0], [], []

    def wait(seconds: float) -> None:
        now[0] += seconds

    with connect(outbox.dsn) as connection:
        pump = Pump(
            connection,
            "outbox",
            lambda rows: told.append((now[0], rows)),
            read.append,
            clock=lambda: now[0],
            wait=wait,
        )
        total = pump.run(Load("r", records=60, rows=20, rate=2.0), Random(1))
    assert told == [(0.0, 20), (10.0, 40), (20.0, 60)]
    assert [(each.seconds, each.rows, each.rate) for each in read] == [
        (5.0, 20, 4.0),
        (10.0, 20, 0.0),
        (15.0, 40, 4.0),
        (20.0, 40, 0.0),
        (25.0, 60, 4.0),
        (30.0, 60, 0.0),
    ]
    assert (total.rows, total.seconds, total.mean) == (60, 30.0, 2.0)


def test_the_pump_without_a_table(
    command: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing table is exit code 3, with the command that creates it."""
    for name in ("pump", "reset"):
        assert app.execute(["outbox", name]) == 3
        assert "'transporter outbox init --run' creates it" in capsys.readouterr().err


def test_ctrl_c_ends_the_pump(outbox: Database) -> None:
    """An interrupt is exit code 130, and stderr reports the true number of committed rows."""
    words = [*TRANSPORTER, "outbox", "pump", "--records", "100000", "--rate", "100"]
    environment = {**os.environ, VARIABLE: outbox.dsn}
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        await_true(lambda: len(remaining(outbox)) > 0, 60, "a first row")
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=180)
    assert (process.returncode, out) == (130, "")
    rows = len(remaining(outbox))
    assert errors.startswith(f"interrupted: {rows} rows are committed; run ")


# --- reset


def mark(database: Database, leader: UUID, *rows: int) -> None:
    """Mark rows as a leader would."""
    database.execute("UPDATE outbox SET leader_id = %s WHERE id = ANY(%s)", [leader, list(rows)])


def leaders(database: Database) -> list[UUID | None]:
    """Return the marks of all rows, in id order."""
    return [row[0] for row in database.execute("SELECT leader_id FROM outbox ORDER BY id")]


def test_reset_clears_what_ended_terms_have_marked(
    outbox: Database, opened: Callable[..., Any], command: Callable[..., str]
) -> None:
    """Marks of a replaced leader are reset, and those of the last leader stay and are counted."""
    for _ in range(3):
        insert(outbox)
    first = opened(batch_rows=1)
    assert ids(first.poll(5)) == [1]
    (former, *_) = leaders(outbox)
    second = opened(batch_rows=2)
    batch = second.poll(5)
    assert ids(batch) == [1, 2]
    assert former is not None
    mark(outbox, former, 3)
    before = leaders(outbox)
    assert before[0] == before[1] != former
    told = result(command("reset", "--yes", "--json"))
    assert told == {"table": "public.outbox", "reset": 1, "kept": 2, "term": 2, "ended": False}
    assert leaders(outbox) == [*before[:2], None]
    second.commit(batch.position)
    assert remaining(outbox) == [3]
    assert ids(second.poll(5)) == [3]


def test_end_term_resets_what_the_last_leader_has_marked(
    outbox: Database, opened: Callable[..., Any], command: Callable[..., str]
) -> None:
    """The living engine is fenced, and the next engine purges its logged rows, never twice."""
    insert(outbox, "logged")
    reader, log = opened(), Log()
    batch = reader.poll(5)
    log.append(batch)
    told = result(command("reset", "--yes", "--end-term", "--json"))
    assert (told["reset"], told["term"], told["ended"]) == (1, 1, True)
    assert leaders(outbox) == [None]
    with pytest.raises(SourceError, match="fenced: term 1"):
        reader.commit(batch.position)
    insert(outbox, "new")
    assert ids(opened(log).poll(5)) == [2]
    assert remaining(outbox) == [2]
    assert outbox.execute("SELECT term FROM transporter_term") == [(3,)]


def test_reset_asks(
    outbox: Database, monkeypatch: pytest.MonkeyPatch, command: Callable[..., str]
) -> None:
    """Without --yes the command asks with the count, and a no is exit code 130 without a change."""
    for _ in range(2):
        insert(outbox)
    mark(outbox, GHOST, 1, 2)
    asked: list[str] = []

    def refuse(question: str, **_: Any) -> None:
        asked.append(question)
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.confirm", refuse)
    assert command("reset", code=130) == ""
    assert asked[0].startswith("Reset 2 rows of public.outbox? No transporter engine ever read it")
    assert leaders(outbox) == [GHOST, GHOST]
    assert command("reset", "--yes") == "public.outbox: 2 rows reset\n"
    assert leaders(outbox) == [None, None]
    assert command("reset") == "public.outbox: 0 rows reset\n"


def test_reset_of_a_backlog_goes_in_steps(outbox: Database, command: Callable[..., str]) -> None:
    """Many rows are reset in several statements, each row once, and others stay."""
    outbox.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, leader_id) SELECT 't', 'k',"
        " CASE WHEN n %% 5 > 0 THEN %s::uuid END FROM generate_series(1, 25003) AS n",
        [GHOST],
    )
    assert result(command("reset", "--yes", "--json"))["reset"] == 20_003
    assert set(leaders(outbox)) == {None}


def test_a_term_that_begins_in_the_meantime_is_left_alone(
    outbox: Database, opened: Callable[..., Any]
) -> None:
    """Rows that a new leader marks after the look keep their marks, and its term does not end."""
    for _ in range(2):
        insert(outbox)
    opened()
    mark(outbox, GHOST, 1, 2)
    with connect(outbox.dsn) as connection:
        found = resetting.read_marks(connection, "outbox")
        assert (found.rows_of_ended_leaders, found.kept_rows) == ({GHOST: 2}, 0)
        reader = opened()
        assert ids(reader.poll(5)) == [1, 2]
        with pytest.raises(ActionRefused, match=r"another term of public\.outbox has begun"):
            resetting.end_term(connection, found)
        assert resetting.clear_marks(connection, found.table, [*found.rows_of_ended_leaders]) == 0
    assert None not in leaders(outbox)


class Interrupted:
    """A connection that calls a function after its n-th statement."""

    def __init__(self, connection: Connection, number: int, happens: Callable[[], object]) -> None:
        self.connection, self.left, self.happens = connection, number, happens

    def execute(self, *words: Any) -> Any:
        done = self.connection.execute(*words)
        self.left -= 1
        if self.left == 0:
            self.happens()
        return done


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_look_beside_a_start_takes_no_living_leader_for_a_dead_one(
    outbox: Database, opened: Callable[..., Any], number: int
) -> None:
    """Marks of an engine that starts at any point of the look are not reset."""
    insert(outbox)
    opened()
    mark(outbox, GHOST, 1)
    insert(outbox)
    started: list[Any] = []

    def start() -> None:
        started.append(opened())
        assert ids(started[0].poll(5)) == [1, 2]

    with connect(outbox.dsn) as connection:
        found = resetting.read_marks(
            cast("Connection", Interrupted(connection, number, start)), "outbox"
        )
        resetting.clear_marks(connection, found.table, [*found.rows_of_ended_leaders])
    assert len(started) == 1
    assert None not in leaders(outbox)


def test_a_reset_beside_a_take_repeats_nothing(
    outbox: Database, command: Callable[..., str]
) -> None:
    """Rows are reset while the reader takes them, and still leave the table, once."""
    for _ in range(3):
        insert(outbox)
    mark(outbox, GHOST, 1, 3)
    with readers(outbox, "take") as opener:
        log = Log()
        reader = opener(log)
        batch = reader.poll(5)
        assert ids(batch) == [1, 2, 3]
        log.append(batch)
        assert command("reset", "--yes") == "public.outbox: 2 rows reset\n"
        reader.commit(batch.position)
        assert remaining(outbox) == []
        assert ids(reader.poll(0)) == []


def test_reset_waits_for_a_row_and_looks_again(outbox: Database) -> None:
    """A row that another transaction marks meanwhile keeps that mark."""
    insert(outbox)
    mark(outbox, GHOST, 1)
    with connect(outbox.dsn) as connection, psycopg.connect(outbox.dsn) as rival:
        found = resetting.read_marks(connection, "outbox")
        other = UUID(int=8)
        rival.execute("UPDATE outbox SET leader_id = %s", [other])
        done: list[int] = []
        thread = Thread(
            target=lambda: done.append(resetting.clear_marks(connection, found.table, [GHOST]))
        )
        thread.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        await_true(lambda: outbox.execute(waiting) != [(0,)], 20, "a reset that waits")
        rival.commit()
        thread.join(20)
    assert (done, leaders(outbox)) == ([0], [other])


# --- drop

THERE = (
    "SELECT to_regclass('outbox') IS NOT NULL, to_regproc('outbox_notify') IS NOT NULL,"
    " (SELECT count(*) FROM pg_trigger WHERE tgname = 'outbox_notify')"
)
ALL, NONE = [(True, True, 1)], [(False, False, 0)]


def test_drop_removes_what_init_has_created(
    postgres: Database, command: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of it remains, and a second drop reports the missing table."""
    command("init", "--run")
    assert postgres.execute(THERE) == ALL
    assert command("drop", "--yes") == "public.outbox: trigger, function and table dropped\n"
    assert postgres.execute(THERE) == NONE
    assert app.execute(["outbox", "drop", "--yes"]) == 3
    assert "there is no outbox table outbox in database" in capsys.readouterr().err


def test_drop_refuses_rows_that_are_not_delivered(
    outbox: Database, command: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command refuses without a question, and --force drops the rows with their count."""
    for _ in range(3):
        insert(outbox)
    for words in (["drop"], ["drop", "--yes"]):
        assert app.execute(["outbox", *words]) == 1
        told = capsys.readouterr().err
        assert "public.outbox contains 3 undelivered rows" in told
        assert "--force" in told
    assert outbox.execute(THERE) == ALL
    assert remaining(outbox) == [1, 2, 3]
    assert result(command("drop", "--yes", "--force", "--json")) == {
        "table": "public.outbox",
        "dropped": ["trigger", "function", "table"],
        "rows": 3,
    }
    assert outbox.execute(THERE) == NONE


def test_drop_asks(
    outbox: Database, monkeypatch: pytest.MonkeyPatch, command: Callable[..., str]
) -> None:
    """Without --yes the command asks, and a no is exit code 130 and drops nothing."""
    asked: list[str] = []

    def refuse(question: str, **_: Any) -> None:
        asked.append(question)
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.confirm", refuse)
    assert command("drop", code=130) == ""
    insert(outbox)
    assert command("drop", "--force", code=130) == ""
    assert command("drop", "--keep-table", code=130) == ""
    assert asked == [
        "Drop trigger, function and table of public.outbox?",
        "Drop trigger, function and table of public.outbox, and lose its 1 row?",
        "Drop trigger and function of public.outbox?",
    ]
    assert outbox.execute(THERE) == ALL


def test_drop_can_leave_the_table(outbox: Database, command: Callable[..., str]) -> None:
    """A table that existed before init loses only its trigger, with or without rows."""
    insert(outbox)
    drop = ["drop", "--keep-table", "--yes"]
    assert command(*drop) == "public.outbox: trigger and function dropped\n"
    assert outbox.execute(THERE) == [(True, False, 0)]
    assert command(*drop) == "public.outbox: has no trigger from init; nothing to drop\n"
    assert remaining(outbox) == [1]


def test_drop_leaves_alone_what_is_not_its_own(
    postgres: Database, command: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Other tables, the user's functions, and tables with dependent objects are not dropped."""
    postgres.execute("CREATE TABLE orders (id int)")
    assert app.execute(["outbox", "drop", "--table", "orders", "--yes", "--force"]) == 3
    assert "is not an outbox" in capsys.readouterr().err
    assert postgres.execute("SELECT count(*) FROM orders") == [(0,)]

    command("init", "--run")
    postgres.execute("CREATE VIEW rows AS SELECT id FROM outbox")
    assert app.execute(["outbox", "drop", "--yes"]) == 1
    told = capsys.readouterr().err
    assert "nothing was dropped: cannot drop table outbox because other objects depend" in told
    assert postgres.execute(THERE) == ALL
    postgres.execute("DROP VIEW rows; ALTER FUNCTION outbox_notify RENAME TO shared")
    assert command("drop", "--yes") == "public.outbox: trigger and table dropped\n"
    assert postgres.execute("SELECT to_regproc('shared') IS NOT NULL") == [(True,)]


@pytest.mark.parametrize("table", ['"My 5% Shop"."Out""box;%s"', f'"{"é" * 31}"'])
def test_drop_spells_every_name(
    postgres: Database, command: Callable[..., str], table: str
) -> None:
    """Even a trigger name that PostgreSQL truncates to its limit is found."""
    postgres.execute('CREATE SCHEMA "My 5% Shop"')
    command("init", "--run", "--table", table)
    done = result(command("drop", "--yes", "--json", "--table", table))
    assert done["dropped"] == ["trigger", "function", "table"]
    left = "SELECT count(*) FROM pg_proc WHERE proname LIKE '%notify' AND pronamespace <> 11"
    assert postgres.execute(left) == [(0,)]


def test_rows_that_come_while_drop_asks_are_not_lost(outbox: Database) -> None:
    """The rows are counted again under the lock, with those of open transactions."""
    with connect(outbox.dsn) as connection, psycopg.connect(outbox.dsn) as application:
        found = removal.find_removable(connection, "outbox", Columns())
        insert(application)
        done: list[BaseException] = []

        def drop() -> None:
            try:
                removal.drop_objects(connection, found, table=True, force=False)
            except ActionRefused as error:
                done.append(error)

        thread = Thread(target=drop)
        thread.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        await_true(lambda: outbox.execute(waiting) != [(0,)], 20, "a drop that waits")
        application.commit()
        thread.join(20)
    assert "contains 1 undelivered rows" in str(done[0])
    assert outbox.execute(THERE) == ALL


def test_drop_of_an_event_router_is_its_trigger(
    postgres: Database, tmp_path: Any, command: Callable[..., str]
) -> None:
    """The table belongs to the application, and stays with its rows."""
    postgres.execute("CREATE TABLE outboxevent (id uuid)")
    (tmp_path / "p.yaml").write_text(
        f"readers: [{{name: in, adaptor: postgres-outbox, dsn: {json.dumps(postgres.dsn)},"
        " table: outboxevent, router: {}}]\nroutes: []\n"
    )
    command("init", f"{tmp_path}/p.yaml", "--run")
    postgres.execute("INSERT INTO outboxevent VALUES (NULL)")
    done = command("drop", f"{tmp_path}/p.yaml", "--yes")
    assert done == "public.outboxevent: trigger and function dropped\n"
    assert postgres.execute("SELECT count(*) FROM outboxevent") == [(1,)]


# --- the choice of the database


def test_a_pipeline_file_names_the_outbox(
    postgres: Database, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader's database and table are used, and variables of sinks may be unset."""
    postgres.execute("CREATE SCHEMA shop")
    (tmp_path / "p.yaml").write_text(
        "readers: [{name: in, adaptor: postgres-outbox, dsn: '${SHOP_DSN}', table: shop.events}]\n"
        "routes: [{name: out, writer: {adaptor: kafka, bootstrap_servers: '${KAFKA_SERVERS}'}}]\n"
    )
    monkeypatch.setenv("SHOP_DSN", postgres.dsn)
    monkeypatch.setenv(VARIABLE, "dbname=nowhere")
    for words in (["init", "--run"], ["pump", "--records", "5"], ["reset"]):
        assert app.execute(["outbox", words[0], f"{tmp_path}/p.yaml", *words[1:]]) == 0
    assert postgres.execute("SELECT count(*) FROM shop.events") == [(5,)]


def test_a_server_that_is_away_is_exit_3(
    capsys: pytest.CaptureFixture[str], postgres: Database
) -> None:
    """A failed connection is exit code 3, without the wrong password in it (Invariant 20)."""
    away = make_conninfo(host="127.0.0.1", port=free_port(), user="x", password="hunter22")
    wrong = postgres.tcp_dsn(password=f"{PASSWORD}-hunter22")
    for dsn in (away, wrong):
        for words in (["init", "--run"], ["pump"], ["reset", "--json"], ["drop", "--yes"]):
            assert app.execute(["outbox", *words, "--dsn", dsn]) == 3
            captured = capsys.readouterr()
            assert "cannot connect to the outbox's database" in captured.err + captured.out
            assert "hunter22" not in captured.err + captured.out


def test_a_lost_connection_tells_what_is_committed(outbox: Database) -> None:
    """A session ended by the database is an error with the number of committed rows."""

    def cut(_: int) -> None:
        outbox.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'transporter outbox' AND datname = current_database()"
        )

    with connect(outbox.dsn) as connection:
        pump = Pump(connection, "outbox", cut, lambda _: None)
        with pytest.raises(SourceUnavailable, match=r"\(20 rows are committed\)"):
            pump.run(Load("r", records=40, rows=20), Random(1))
    assert len(remaining(outbox)) == 20
