"""The ``postgres`` writer when something fails: bad rows, the connection, rights, other writers."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from pg_writer_tools import (
    CONTEXT,
    Driver,
    deletion,
    partial_row,
    row,
    schema_entry,
    truncation_entry,
)
from pooler import pooler
from psycopg.conninfo import make_conninfo
from transporter_adaptors.postgres.table import TableName
from transporter_adaptors.postgres_cdc.columns import SCHEMA_TYPE
from transporter_adaptors.postgres_writer import apply
from transporter_adaptors.postgres_writer.append_mode import append_ddl
from transporter_adaptors.postgres_writer.apply import Transactions
from transporter_adaptors.postgres_writer.guilty import Failure, apply_good
from transporter_adaptors.postgres_writer.writer import PostgresWriter

from transporter.errors import Rejected, RouteFault, SinkTimeout, SinkUnavailable
from transporter.message import Message
from transporter.testing import FaultyProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database, PostgresService

pytestmark = pytest.mark.postgres

COUNTED = """
CREATE TABLE t (id int PRIMARY KEY, v int);
CREATE SEQUENCE changes;
CREATE FUNCTION count_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM nextval('changes'); RETURN NEW; END $$;
CREATE TRIGGER counted BEFORE INSERT OR UPDATE ON t
FOR EACH ROW EXECUTE FUNCTION count_change();
"""


@pytest.fixture
def driver(postgres: Database) -> Iterator[Driver]:
    """Return a driver of a writer with the default settings."""
    made = Driver(postgres)
    yield made
    made.close()


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return, for each search for a bad entry, the sizes of the whole and of all attempts."""
    found: list[list[int]] = []

    def count_attempts(begin: int, end: int, attempt: Any, failed: Failure, *more: Any) -> Any:
        sizes = [end - begin]
        found.append(sizes)

        def try_part(low: int, high: int) -> Failure | None:
            sizes.append(high - low)
            return attempt(low, high)

        return apply_good(begin, end, try_part, failed, *more)

    monkeypatch.setattr(apply, "apply_good", count_attempts)
    return found


CONSTRAINED = """
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (
    id int PRIMARY KEY, v int NOT NULL CHECK (v >= 0), parent int REFERENCES parent (id)
);
INSERT INTO parent VALUES (1), (2);
"""


def poison(number: int) -> Message:
    """Return a row that is refused: a constraint, a type, a missing parent, a missing row."""
    bad = [
        row("child", number, id=number, v=-1, parent=1),
        row("child", number, id=number, v="many", parent=1),
        row("child", number, id=number, v=1, parent=77),
        partial_row("child", number, ["v"], id=number, parent=1),
        row("child", number, id=number, v=None, parent=2),
    ]
    return bad[number % len(bad)]


@pytest.mark.parametrize(("count", "every"), [(5000, 1000), (600, 10)])
def test_bad_rows_are_found_exactly(
    driver: Driver, searches: list[list[int]], count: int, every: int
) -> None:
    """Exactly the bad rows are parked, each found in few attempts, and all others are there."""
    driver.database.execute(CONSTRAINED)
    bad = {number for number in range(1, count + 1) if number % every == 1 + number // every % 3}
    assert len(bad) >= count // every - 1
    messages = [
        poison(number) if number in bad else row("child", number, id=number, v=number, parent=1)
        for number in range(1, count + 1)
    ]

    driver.park(*messages)

    assert driver.parked.keys() == bad
    assert driver.database.execute("SELECT count(*), min(id), sum(v) FROM child") == [
        (count - len(bad), min({*range(1, count)} - bad), sum({*range(1, count + 1)} - bad))
    ]
    assert driver.stored() == [(0, max({*range(1, count + 1)} - bad))]
    assert len(searches) <= len(bad)
    for whole, *tried in searches:
        assert len(tried) <= math.log2(whole) + 1
        assert sum(tried) <= 2 * whole


def test_a_bad_row_beside_a_truncate(driver: Driver) -> None:
    """The search for a bad row, and the parts of a slice, cut no TRUNCATE of several tables."""
    driver.database.execute(CONSTRAINED + "TRUNCATE parent, child")
    for bad in (3, 7):
        for part in (None, *range(1, 9)):
            driver.parked.clear()
            driver.writer._part = part
            messages = [
                *(row("parent", n, id=n) for n in (1, 2, 3)),
                row("child", 1, id=1, v=1, parent=1),
                truncation_entry("parent"),
                truncation_entry("child"),
                *(row("parent", n, id=n) for n in (4, 5)),
            ]
            messages.insert(bad, row("child", 9, id=9, v=-1, parent=1))
            first = driver.next_offset
            driver.park(*messages)
            assert driver.parked.keys() == {first + bad}
            assert (driver.rows("parent"), driver.rows("child")) == ([(4,), (5,)], [])


def test_a_corrected_table(driver: Driver) -> None:
    """A correction of the table counts for the retry of a parked entry, and for later slices."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL, b int NOT NULL)")
    driver.deliver(row("t", 1, id=1, a=1, b=1))
    parked = driver.batch([row("t", 2, id=2, a=2)])
    assert isinstance(driver.write(parked).failures[0][0], Rejected)
    driver.database.execute("ALTER TABLE t ALTER b SET DEFAULT 7")
    assert driver.write(replace(parked, generation=-1)).complete
    again = driver.batch([row("t", 3, id=3, b=3)])
    assert isinstance(driver.write(again).failures[0][0], Rejected)
    driver.database.execute("ALTER TABLE t ALTER a DROP NOT NULL")
    driver.writer._catalog._begun -= 2
    assert driver.write(again).complete
    assert driver.rows("t") == [(1, 1, 1), (2, 2, 7), (3, None, 3)]


def test_a_search_ends_with_the_time_of_its_slice(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that a search has applied until its time is over count, and smaller parts follow."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v > 0))")
    limits, parts = list[float](), list[int | None]()
    real = Transactions.apply

    def search(begin: int, end: int, attempt: Any, failed: Failure, *more: Any) -> Any:
        units, _ = more
        left = iter([False, False])
        return apply_good(begin, end, attempt, failed, units, lambda: next(left, True))

    def apply_part(self: Transactions, *arguments: Any) -> Any:
        limits.append(arguments[-1] - time.monotonic())
        parts.append(arguments[2] - arguments[1])
        return real(self, *arguments)

    monkeypatch.setattr(apply, "apply_good", search)
    monkeypatch.setattr(Transactions, "apply", apply_part)
    driver.park(*(row("t", n, id=n, v=-1 if n in {50, 90} else 1) for n in range(100)))
    assert driver.parked.keys() == {51, 91}
    assert len(driver.rows("t")) == 98
    assert parts[:3] == [100, 25, 6]
    assert max(limits) <= driver.context.deadline / 2


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        ("int", 'my "secret" text', 'invalid input syntax for type integer: "…"'),
        ("smallint", 987654, 'value "…" is out of range for type smallint'),
        ("date", "secret", 'invalid input syntax for type date: "…"'),
        ("varchar(3)", "secret", "value too long for type character varying(3)"),
        ("int CHECK (v > 0)", -987654, 'relation "t" violates check constraint "t_v_check"'),
        ("mood", "secret", 'invalid input value for enum mood: "…"'),
    ],
)
def test_errors_do_not_quote_values(driver: Driver, kind: str, value: Any, problem: str) -> None:
    """A message about a value that cannot be converted is shown without that."""
    driver.database.execute("CREATE TYPE mood AS ENUM ('fine')")
    driver.database.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {kind})")
    error = str(driver.fail(row("t", 1, id=1, v=value)))
    assert problem in error
    assert "secret" not in error
    assert "987654" not in error


def test_a_bad_row_among_many_tables(driver: Driver) -> None:
    """A bad row is found between rows, deletes and parts of rows of several tables."""
    driver.database.execute(CONSTRAINED)
    driver.park(
        row("parent", 5, id=5),
        row("child", 1, id=1, v=1, parent=5),
        deletion("parent", 2),
        partial_row("child", 1, ["v"], id=1, parent=1),
        deletion("parent", 5),
        deletion("parent", 1),
        row("child", 2, id=2, v=2, parent=1),
    )
    assert [*driver.parked] == [6]
    assert "violates foreign key constraint" in driver.parked[6]
    assert "Key (" not in driver.parked[6]
    assert driver.rows("child") == [(1, 1, 1), (2, 2, 1)]
    assert driver.rows("parent") == [(1,)]


def test_a_bad_row_keeps_the_ones_before_it_once(driver: Driver) -> None:
    """The rows before a bad one are written once, and the offset is that of the last of them."""
    driver.database.execute(COUNTED)
    ack = driver.write(driver.batch([row("t", 1, id=1), row("t", 2, id=2), row("t", 3, id="x")]))
    assert (ack.prefix, driver.stored()) == ([1, 2], [(0, 2)])
    assert driver.rows("t") == [(1, None), (2, None)]


FAILS_ONCE = """
CREATE TABLE t (id int PRIMARY KEY, v int);
CREATE SEQUENCE tries;
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.id = 2 AND nextval('tries') = 1 THEN
    RAISE EXCEPTION 'for now' USING ERRCODE = TG_ARGV[0];
  END IF;
  RETURN NEW;
END $$;
"""


@pytest.mark.parametrize("is_missing", [True, False])
def test_columns_that_are_rolled_back_are_added_again(driver: Driver, is_missing: bool) -> None:
    """After an error of no entry a column that was added in the transaction is not taken for it."""
    driver.database.execute(FAILS_ONCE)
    driver.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    if is_missing:
        driver.database.execute("DROP TABLE t")
    else:
        driver.database.execute(
            "CREATE TRIGGER fail BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fail('40P01')"
        )
    driver.settings = {"evolve": "add"}
    driver.deliver(row("a", 1, id=1))
    added = schema_entry("a", ["id"], id="integer!", c="integer")
    batch = driver.batch([added, deletion("a", 1), row("t", 2, id=2)])

    error = driver.write(batch).failures[0][0]
    assert isinstance(error, RouteFault if is_missing else SinkUnavailable)
    if is_missing:
        driver.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert driver.write(batch).complete

    driver.deliver(row("a", 3, id=3, c=3))
    assert driver.rows("a") == [(3, 3)]


def test_a_column_that_is_there_already(driver: Driver) -> None:
    """A column that was added by hand meanwhile is not added again."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    driver.settings = {"evolve": "add"}
    driver.deliver(row("t", 1, id=1))
    driver.database.execute("ALTER TABLE t ADD c int")
    driver.deliver(schema_entry("t", ["id"], id="integer!", c="integer"), row("t", 2, id=2, c=1))
    assert driver.rows("t") == [(1, None), (2, 1)]


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_a_table_that_another_session_creates(driver: Driver, mode: str) -> None:
    """A table that is created at the same moment is looked at again, and the slice is written."""
    driver.settings = {"mode": mode, "evolve": "create", "table": "t"}
    batch = driver.batch([schema_entry("t", ["id"], id="integer!")])
    driver.writer  # noqa: B018 - opens it
    acks: list[Any] = []
    ddl = append_ddl(TableName("t")) if mode == "append" else "CREATE TABLE t (id int PRIMARY KEY)"
    with driver.database.connect(autocommit=False) as other:
        other.execute(ddl)
        thread = threading.Thread(target=lambda: acks.append(driver.write(batch)))
        thread.start()
        wait_for_lock(driver)
        other.commit()
        thread.join()
    assert acks[0].complete, acks[0].failures


def wait_for_lock(driver: Driver) -> None:
    """Wait until a session waits for a lock."""
    query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    ends = time.monotonic() + 10
    while driver.database.execute(query) == [(0,)]:
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_append_that_creates_is_not_for_shards(driver: Driver) -> None:
    """Shards would create a table at the same moment."""
    driver.settings = {"mode": "append", "evolve": "create"}
    driver.context = replace(CONTEXT, shards=2)
    with pytest.raises(RouteFault, match="evolve: create cannot be used with parallelism"):
        driver.writer  # noqa: B018 - opens it


@pytest.mark.parametrize("code", ["53200", "53400"])
def test_parts_shrink_where_memory_is_short(driver: Driver, code: str) -> None:
    """A slice that needs too much of the server is written in smaller parts."""
    driver.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY);"
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF (SELECT count(*) FROM new) > 30 THEN RAISE 'full' USING ERRCODE = '{code}'; END IF;"
        " RETURN NULL; END $$;"
        "CREATE TRIGGER fail AFTER INSERT ON t REFERENCING NEW TABLE AS new"
        " FOR EACH STATEMENT EXECUTE FUNCTION fail()"
    )
    batch = driver.batch([row("t", n, id=n) for n in range(100)])
    written = 0
    for _ in range(20):
        ack = driver.write(replace(batch, batch=batch.batch.slice(written)))
        written += len(ack.prefix)
        if written == 100:
            break
        assert isinstance(ack.failures[0][0], SinkUnavailable)
    assert driver.database.execute("SELECT count(*) FROM t") == [(100,)]


@pytest.mark.parametrize(
    "document",
    [
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"columns":[],"key":["id"]}',
        b'{"columns":[{"name":"id","type":"int"}],"key":[1]}',
        b'{"columns":[{"name":"id","type":"int"}],"key":["other"]}',
        b'{"columns":[{"name":"id","type":"int"}],"key":{"id":1}}',
        b'{"columns":[{"name":"id","type":"int"},{"name":"id","type":"int"}],"key":["id"]}',
        b'{"columns":[{"name":"id","type":"foo bar("}],"key":["id"]}',
        b'{"columns":[{"name":"id","type":"record"}],"key":["id"]}',
        b'{"columns":[{"name":"id","type":"i\\u0000nt"}],"key":["id"]}',
        b'{"columns":[{"name":"\\ud800","type":"int"}],"key":["\\ud800"]}',
        b'{"columns":[{"name":"","type":"int"}],"key":[""]}',
        b'{"columns":[{"name":"%s","type":"int"}],"key":["%s"]}' % (b"x" * 64, b"x" * 64),
    ],
)
def test_hostile_schema_documents(driver: Driver, document: bytes) -> None:
    """An entry that is no description of a table is rejected by itself."""
    driver.settings = {"evolve": "create"}
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    entry = Message("public.q", document, None, "command", content_type=SCHEMA_TYPE)
    driver.park(row("t", 1, id=1), entry, row("t", 2, id=2))
    assert [*driver.parked] == [2]
    assert driver.rows("t") == [(1,), (2,)]


def test_long_numbers_and_deep_values(driver: Driver) -> None:
    """A number of any length arrives, and so does a value that is as deep as can be read."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, v numeric, j json)")
    long, deep = b"1" + b"0" * 5000, b"[" * 1010 + b"]" * 1010
    driver.deliver(
        Message("public.t", b'{"id":1,"v":%s}' % long, b"1"),
        Message("public.t", b'{"id":1,"v":%s}' % long, b"1"),
    )
    driver.deliver(Message("public.t", b'{"id":2,"j":%s}' % deep, b"2"))
    assert driver.database.execute("SELECT id, length(v::text) FROM t") == [(1, 5001), (2, None)]
    error = driver.fail(Message("public.t", b'{"id":3,"j":%s}' % (deep * 200), b"3"))
    assert isinstance(error, Rejected)
    deepest = b'{"id":3,"j":%s%s}' % (b"[" * 200_000, b"]" * 200_000)
    assert "nested too deep" in str(driver.fail(Message("public.t", deepest, b"3")))
    assert isinstance(driver.fail(Message("public.t", None, deep, "delete")), Rejected)


@pytest.mark.parametrize("to", [1, None])
def test_a_database_that_has_lost_a_commit(driver: Driver, to: int | None) -> None:
    """After a failover to a standby that was behind, the route stops, and can be resumed."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    driver.deliver(row("t", 1, id=1))
    driver.deliver(row("t", 2, id=2))
    lost = "log_id = NULL" if to is None else f'"offset" = {to}'
    driver.database.execute(f"UPDATE transporter_progress SET {lost}; DELETE FROM t WHERE id = 2")

    error = driver.fail(row("t", 3, id=3))
    assert isinstance(error, RouteFault)
    assert "has lost what it had committed" in str(error)
    assert driver.rows("t") == [(1,)]

    driver.close()
    driver.deliver(row("t", 4, id=4))


def test_logs_that_claim_one_route_at_once(driver: Driver) -> None:
    """Of several logs that open one route at the same moment, one may write."""
    driver.writer  # noqa: B018 - creates the table of offsets
    barrier, opened, refused = threading.Barrier(6), list[str](), list[str]()

    def claim(log_id: str) -> None:
        writer = PostgresWriter(PostgresWriter.Config(dsn=driver.database.dsn))
        barrier.wait()
        try:
            writer.open(replace(CONTEXT, log_id=log_id, route="other"))
            opened.append(log_id)
        except RouteFault as error:
            refused.append(str(error))
        finally:
            writer.close()

    threads = [threading.Thread(target=claim, args=(f"log-{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 1
    assert len([each for each in refused if "of another log" in each]) == 5


def test_an_unlogged_table_of_offsets(driver: Driver) -> None:
    """A table of offsets that a crash of the server would empty is refused."""
    driver.writer  # noqa: B018 - creates it
    driver.close()
    driver.database.execute("ALTER TABLE transporter_progress SET UNLOGGED")
    with pytest.raises(RouteFault, match="unlogged or temporary: the stored offset"):
        driver.writer  # noqa: B018 - opens it


def test_rows_that_a_policy_hides(driver: Driver) -> None:
    """A role that is subject to policies stops the route, because a DELETE would miss rows."""
    driver.database.execute(
        "CREATE ROLE with_policy LOGIN; CREATE TABLE t (id int PRIMARY KEY);"
        "GRANT ALL ON t TO with_policy; GRANT CREATE ON SCHEMA public TO with_policy;"
        "INSERT INTO t VALUES (1); ALTER TABLE t ENABLE ROW LEVEL SECURITY;"
        "CREATE POLICY p ON t USING (id > 1)"
    )
    try:
        driver.settings = {"dsn": driver.database.dsn_as("with_policy")}
        error = driver.fail(deletion("t", 1))
        assert isinstance(error, RouteFault)
        assert "row-level security" in str(error)
    finally:
        driver.close()
        driver.database.execute("DROP OWNED BY with_policy; DROP ROLE with_policy")


@pytest.mark.parametrize("code", ["40P01", "40001", "55P03", "53200", "53100", "25006", "57P01"])
def test_what_passes_is_tried_again(driver: Driver, code: str) -> None:
    """After a deadlock and the like nothing is written and no entry is blamed."""
    driver.database.execute(FAILS_ONCE)
    driver.database.execute(
        f"CREATE TRIGGER fail BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fail('{code}')"
    )
    batch = driver.batch([row("t", n, id=n, v=n) for n in (1, 2, 3)])
    first = driver.write(batch)
    assert isinstance(first.failures[0][0], SinkUnavailable)
    assert (first.prefix, driver.rows("t")) == ([], [])
    assert driver.write(batch).complete
    assert driver.rows("t") == [(1, 1), (2, 2), (3, 3)]


def test_a_deadlock(driver: Driver) -> None:
    """A real deadlock with another session ends, and the slice is tried again."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    driver.deliver(row("t", 1, id=1, v=0), row("t", 2, id=2, v=0))
    batch = driver.batch([row("t", 1, "update", id=1, v=1), row("t", 2, "update", id=2, v=1)])
    outcomes: list[Any] = []
    with driver.database.connect(autocommit=False) as other:
        other.execute("SET LOCAL deadlock_timeout = '30s'")
        other.execute("UPDATE t SET v = 9 WHERE id = 2")
        thread = threading.Thread(target=lambda: outcomes.append(driver.write(batch)))
        thread.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'transactionid'"
        while driver.database.execute(waiting) != [(1,)]:
            pass
        other.execute("UPDATE t SET v = 9 WHERE id = 1")
        thread.join()
        assert isinstance(outcomes[0].failures[0][0], SinkUnavailable)
        other.rollback()
    assert driver.write(batch).complete
    assert driver.rows("t") == [(1, 1), (2, 1)]


def test_a_statement_that_takes_too_long(driver: Driver) -> None:
    """A slice that is too large for the time limit is written in smaller parts."""
    driver.context = replace(CONTEXT, deadline=0.8)
    driver.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY);"
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END $$;"
        "CREATE TRIGGER wait BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION wait()"
    )
    batch = driver.batch([row("t", n, id=n) for n in range(80)])
    failures, begin = 0, 0
    while begin < 80:
        ack = driver.write(replace(batch, batch=batch.batch.slice(begin)))
        begin += len(ack.prefix)
        if ack.failures:
            assert isinstance(ack.failures[0][0], SinkTimeout)
            failures += 1
    assert 0 < failures < 12
    assert len(driver.rows("t")) == 80


def connect_through(driver: Driver, proxy: FaultyProxy) -> Driver:
    """Let *driver* connect through *proxy*."""
    driver.settings = {"dsn": make_conninfo(driver.database.tcp_dsn(), port=proxy.port)}
    return driver


def call_before_commit(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Call *act* once, before the offset is stored."""
    real, done = Transactions._finish, []

    def call_first(self: Transactions, *arguments: Any) -> None:
        if not done:
            done.append(act())
        real(self, *arguments)

    monkeypatch.setattr(Transactions, "_finish", call_first)


def test_the_answer_to_commit_is_lost(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice that was committed without an answer is not applied again."""
    driver.database.execute(COUNTED)
    with FaultyProxy(("127.0.0.1", driver.database.server.port)) as proxy:
        connect_through(driver, proxy).deliver(row("t", 9, id=9))
        call_before_commit(monkeypatch, proxy.lose_answers)
        batch = driver.batch([row("t", n, id=n) for n in (1, 2, 3)])
        lost = driver.write(batch)
        assert isinstance(lost.failures[0][0], SinkUnavailable)
        assert lost.prefix == []
        assert len(driver.rows("t")) == 4
        proxy.heal()
        # It may come again in a larger slice.
        assert driver.write(batch).complete
        driver.deliver(row("t", 4, id=4))
        assert driver.database.execute("SELECT last_value FROM changes") == [(5,)]
        assert driver.stored() == [(0, 5)]
        driver.close()


def test_a_slice_in_doubt_that_comes_with_more(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a larger slice only the entries beyond the stored offset are applied."""
    driver.database.execute(COUNTED)
    with FaultyProxy(("127.0.0.1", driver.database.server.port)) as proxy:
        connect_through(driver, proxy).deliver()
        call_before_commit(monkeypatch, proxy.lose_answers)
        messages = [row("t", n, id=n) for n in range(1, 6)]
        driver.write(driver.batch(messages[:3]))
        proxy.heal()
        driver.next_offset = 1
        driver.deliver(*messages)
        assert driver.database.execute("SELECT last_value FROM changes") == [(5,)]
        driver.close()


@pytest.mark.exhaustive
def test_answers_that_end_anywhere(driver: Driver) -> None:
    """Wherever a connection ends, each row is applied once."""
    driver.database.execute(COUNTED)
    driver.database.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    failures = rows = 0
    with FaultyProxy(("127.0.0.1", driver.database.server.port)) as proxy:
        connect_through(driver, proxy).deliver()
        for after in range(0, 1500, 25):
            proxy.lose_answers(after)
            messages = [row("t", rows + n, id=rows + n) for n in range(3)]
            rows += 3
            batch = driver.batch([*messages, deletion("t", -1), row("parent", 1, id=1)])
            while not (ack := driver.write(batch)).complete:
                assert isinstance(ack.failures[0][0], SinkUnavailable)
                failures += 1
                proxy.heal()
            proxy.heal()
        driver.close()
    assert failures > 10
    assert driver.database.execute("SELECT count(*) FROM t") == [(rows,)]
    assert driver.database.execute("SELECT last_value FROM changes") == [(rows,)]


def test_a_disconnect_in_the_middle(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice whose connection ends before COMMIT has no effect, and is written then."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with FaultyProxy(("127.0.0.1", driver.database.server.port)) as proxy:
        connect_through(driver, proxy).deliver()
        call_before_commit(monkeypatch, proxy.cut)
        batch = driver.batch([row("t", n, id=n) for n in (1, 2, 3)])
        assert isinstance(driver.write(batch).failures[0][0], SinkUnavailable)
        assert driver.rows("t") == []
        assert driver.write(batch).complete
        driver.close()
    assert len(driver.rows("t")) == 3


def test_a_connection_that_was_closed_while_idle(driver: Driver) -> None:
    """The next slice after it is written over a new one."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    driver.deliver(row("t", 1, id=1))
    driver.database.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name = 'transporter' AND datname = current_database()"
    )
    batch = driver.batch([row("t", 2, id=2)])
    assert isinstance(driver.write(batch).failures[0][0], SinkUnavailable)
    assert driver.write(batch).complete
    assert len(driver.rows("t")) == 2


def test_a_second_holder_fences_the_first(driver: Driver) -> None:
    """A writer of the same epoch that opens later is the only one that may write."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    driver.deliver(row("t", 1, id=1))
    second = Driver(driver.database, next_offset=2)
    second.deliver(row("t", 2, id=2))
    error = driver.fail(row("t", 3, id=3))
    assert isinstance(error, RouteFault)
    assert "fenced" in str(error)
    assert driver.rows("t") == [(1,), (2,)]
    second.deliver(row("t", 4, id=4))
    second.close()


def test_a_new_holder_waits_for_a_slice_under_way(driver: Driver) -> None:
    """It gets the offset of a slice that the old one commits meanwhile."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    driver.deliver(row("t", 1, id=1))
    second = PostgresWriter(PostgresWriter.Config(dsn=driver.database.dsn))
    acks: list[Any] = []
    opened: list[Any] = []
    with driver.database.connect(autocommit=False) as other:
        other.execute("LOCK TABLE t")
        batch = driver.batch([row("t", 2, id=2)])
        writing = threading.Thread(target=lambda: acks.append(driver.write(batch)))
        writing.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while driver.database.execute(waiting) != [(1,)]:
            pass
        opening = threading.Thread(target=lambda: opened.append(second.open(CONTEXT)))
        opening.start()
        while driver.database.execute(waiting) != [(2,)]:
            pass
        other.rollback()
        writing.join()
        opening.join()
    second.close()
    # Either thread may be the first to return.
    assert [ack.complete for ack in acks] == [True]
    assert [stored.offset for stored in opened] == [2]
    assert isinstance(driver.fail(row("t", 3, id=3)), RouteFault)


def test_engines_that_take_turns(driver: Driver) -> None:
    """With turns another log takes over, whatever its epoch is, and the old one is fenced."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    driver.context = replace(CONTEXT, turns="orders", epoch=9)
    driver.deliver(row("t", 1, id=1))
    other = Driver(driver.database, context=replace(CONTEXT, log_id="log-2", turns="orders"))
    other.deliver(row("t", 2, id=2))
    assert isinstance(driver.fail(row("t", 3, id=3)), RouteFault)
    driver.close()
    driver.deliver(row("t", 4, id=4))
    assert isinstance(other.fail(row("t", 5, id=5)), RouteFault)
    other.close()


def test_the_progress_of_another_log(driver: Driver) -> None:
    """Another log's route of the same name is refused before anything is written."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    driver.deliver(row("t", 1, id=1))
    other = Driver(driver.database, context=replace(CONTEXT, log_id="log-2"))
    with pytest.raises(RouteFault, match="of another log") as found:
        other.deliver(row("t", 2, id=2))
    statement = str(found.value).partition("if that log is gone: ")[2]
    other.close()
    driver.database.execute(statement)
    other.deliver(row("t", 2, id=2))
    other.close()
    assert driver.rows("t") == [(1,), (2,)]


def test_fewer_shards_fence_the_others(driver: Driver) -> None:
    """An engine with fewer shards fences all shards of the one before."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    driver.settings = {"truncate": "ignore"}
    old = Driver(driver.database, driver.settings, replace(CONTEXT, shard=1, shards=2))
    old.deliver(row("t", 1, id=1))
    driver.deliver(row("t", 2, id=2))
    assert isinstance(old.fail(row("t", 3, id=3)), RouteFault)
    old.close()


def test_shards_that_open_at_once(driver: Driver) -> None:
    """Shards may create the table of offsets at the same moment, and write beside each other."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    shards = [
        Driver(driver.database, {"truncate": "ignore"}, replace(CONTEXT, shard=n, shards=6))
        for n in range(6)
    ]
    failures: list[BaseException] = []

    def work(shard: Driver, number: int) -> None:
        try:
            for n in range(10):
                shard.deliver(row("t", number * 10 + n, id=number * 10 + n))
        except BaseException as error:  # noqa: BLE001 - reported below
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(shards, range(6), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for shard in shards:
        shard.close()
    assert failures == []
    assert driver.database.execute("SELECT count(*) FROM t") == [(60,)]
    assert driver.stored() == [(0, 10)] * 6


def test_a_replay_begins_anew(driver: Driver) -> None:
    """The offset of a new generation replaces the old one, also a lower one."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    driver.deliver(row("t", 1, id=1), row("t", 2, id=2))
    driver.next_offset = 1
    assert driver.write(driver.batch([row("t", 1, id=1)], generation=1)).complete
    assert driver.stored() == [(1, 1)]


@pytest.mark.parametrize("mode", ["transaction", "in turn"])
def test_a_pooler_of_transactions_is_refused(driver: Driver, mode: Any) -> None:
    """The settings of a session would stay in those of the application."""
    with pooler(driver.database, mode) as dsn:
        driver.settings = {"dsn": dsn}
        with pytest.raises(RouteFault, match="pool_mode = transaction"):
            driver.deliver()
        driver.close()


def test_a_pooler_of_sessions(driver: Driver) -> None:
    """A pool in session mode is written through."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with pooler(driver.database, "session") as dsn:
        driver.settings = {"dsn": dsn}
        driver.deliver(row("t", 1, id=1))
        driver.close()
    assert driver.rows("t") == [(1,)]


def test_a_standby(read_only_server: PostgresService) -> None:
    """A server that accepts no changes is unavailable until it is promoted."""
    writer = PostgresWriter(PostgresWriter.Config(dsn=read_only_server.dsn))
    with pytest.raises(SinkUnavailable, match="read-only"):
        writer.open(CONTEXT)
    writer.close()


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        ("", "table public.t does not exist"),
        ("CREATE VIEW t AS SELECT 1 AS id", "public.t is a view"),
        ("CREATE MATERIALIZED VIEW t AS SELECT 1 AS id", "is a materialized view"),
        ("CREATE TABLE t (id int)", "public.t has no primary key"),
        ("CREATE TABLE t (id int UNIQUE)", "has no primary key"),
        ("CREATE UNLOGGED TABLE t (id int PRIMARY KEY)", "is unlogged or temporary"),
    ],
)
def test_tables_that_cannot_be_written(driver: Driver, made: str, problem: str) -> None:
    """The route stops with the reason before anything of the slice is written."""
    driver.database.execute("CREATE TABLE good (id int PRIMARY KEY)")
    if made:
        driver.database.execute(made)
    error = driver.fail(row("good", 1, id=1), row("t", 1, id=1))
    assert isinstance(error, RouteFault)
    assert problem in str(error)
    assert driver.rows("good") == []


@pytest.mark.parametrize("index", ["", "CREATE UNIQUE INDEX ON t (a) WHERE a > 0"])
def test_a_key_without_an_index(driver: Driver, index: str) -> None:
    """Columns of key need a unique index without a condition. A table that is set is checked."""
    driver.database.execute(f"CREATE TABLE t (id int PRIMARY KEY, a int, b int); {index}")
    driver.settings = {"key": ["a"], "table": "public.t"}
    with pytest.raises(RouteFault, match=r"no unique index on a: CREATE UNIQUE INDEX ON public\.t"):
        driver.deliver()


@pytest.fixture
def role(postgres: Database) -> Iterator[str]:
    """Create a role without rights."""
    name = f"limited_{uuid4().hex}"
    postgres.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    postgres.execute(f"DROP OWNED BY {name}")
    postgres.execute(f"DROP ROLE {name}")


def test_missing_rights(driver: Driver, role: str) -> None:
    """Each missing right is named with the statement that grants it."""
    database = driver.database
    driver.settings = {"dsn": database.dsn_as(role)}
    with pytest.raises(RouteFault, match="create it for this role by\nCREATE TABLE") as found:
        driver.deliver()
    driver.close()
    database.execute(str(found.value).partition("by\n")[2].rstrip(";"))
    with pytest.raises(RouteFault, match="permission denied for table transporter_progress"):
        driver.deliver()
    driver.close()
    database.execute(f"GRANT SELECT, INSERT, UPDATE ON transporter_progress TO {role}")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    error = driver.fail(row("t", 1, id=1))
    assert isinstance(error, RouteFault)
    grant = f"GRANT DELETE, INSERT, SELECT, UPDATE ON public.t TO {role}"
    assert str(error).endswith(grant)
    database.execute(grant)
    driver.close()
    driver.deliver(row("t", 1, id=1), deletion("t", 2))
    driver.close()
    driver.settings["constraints"] = "replica"
    with pytest.raises(RouteFault, match="session_replication_role"):
        driver.deliver()


def test_a_right_that_is_revoked(driver: Driver, role: str) -> None:
    """A right that goes while the writer runs stops the route, and blames no entry."""
    database = driver.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute(f"GRANT CREATE ON SCHEMA public TO {role}; GRANT ALL ON t TO {role}")
    driver.settings = {"dsn": database.dsn_as(role)}
    driver.deliver(row("t", 1, id=1))
    database.execute(f"REVOKE ALL ON t FROM {role}")
    error = driver.fail(row("t", 2, id=2), row("t", 3, id=3))
    assert not isinstance(error, Rejected)
    assert isinstance(error, RouteFault)


def test_the_check_before_the_start(driver: Driver, role: str) -> None:
    """``probe`` names the server, the table of offsets and known tables, and changes nothing."""
    database = driver.database

    def found(**settings: Any) -> list[tuple[str, str]]:
        config = PostgresWriter.Config(**{"dsn": database.dsn, **settings})
        return [(each.level, each.text) for each in PostgresWriter(config).probe()]

    server, progress, tables = found()
    assert server[1].startswith("PostgreSQL ")
    assert progress == ("fine", "table transporter_progress: the first start creates it")
    assert "are checked when the first entry comes" in tables[1]
    assert found(table="t")[2] == (
        "problem",
        (
            "table t does not exist: create it, or use evolve: create with a reader that logs "
            "columns (postgres-cdc with schema: entries)"
        ),
    )
    assert found(table="t", evolve="create")[2][0] == "fine"
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert found(table="t")[2] == (
        "fine",
        "table public.t: has the rights that it needs, and the key id",
    )
    levels = [level for level, _ in found(table="t", dsn=database.dsn_as(role))]
    assert levels == ["fine", "problem", "problem"]
    assert database.execute("SELECT to_regclass('transporter_progress')") == [(None,)]
