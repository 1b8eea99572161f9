"""Hostile contents and surroundings of ``postgres-cdc``: names, values, defaults of a role."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from cdc_tools import MemoryLog, clean_slots, need_version, short, started, version
from engine_tools import until
from pg_writer_tools import Driver
from psycopg import sql
from services.postgres import Database, fresh_database
from transporter_adaptors.postgres_cdc import handover, pending

from transporter.engine.reading.batch_appender import split_to_loggable
from transporter.errors import EnvironmentFault, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.adaptor import Batch

pytestmark = pytest.mark.postgres


def rows_of(log: MemoryLog, namespace: str) -> list[tuple[Any, ...]]:
    """Return op, phase, key and data of the rows of *namespace*."""
    rows = [each for each in log.messages if each.namespace == namespace and each.op != "noop"]
    return short(rows)


@pytest.mark.parametrize("name", ["r", "o", "k", "j", "l", "n", "x", "c1", "size"])
@pytest.mark.parametrize("kind", ["int", "text"])
def test_a_column_may_have_any_name(shop: Database, name: str, kind: str) -> None:
    """Names that the reader's own queries use are no others than a table's may be."""
    shop.execute(f"CREATE TABLE t ({name} {kind} PRIMARY KEY, v int)")
    shop.execute(f"INSERT INTO t SELECT n::{kind}, n FROM generate_series(1, 9) n")
    log = MemoryLog(shop, copy_rows=4)
    until(lambda: log.poll() and any(each.phase == "copy" for each in log.messages))
    shop.execute(f"UPDATE t SET v = 10 WHERE {name} = '2'; DELETE FROM t WHERE {name} = '8'")
    log.drain(shop)
    log.kill()
    last = {key: data for _, _, key, data in rows_of(log, "public.t")}
    assert last["2"] == {name: 2 if kind == "int" else "2", "v": 10}
    assert last.get("8") is None
    assert len(last) >= 8


ODD_NAMES = ['a "b" c', "50% off", "a.b", "Ünïcode", "Upper", "it's", "back\\slash", "{brace}"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_are_quoted_everywhere(shop: Database, name: str) -> None:
    """Schema, table, columns and index have the name, and copy and stream agree."""
    quoted = sql.Identifier(name).as_string()
    shop.execute(f"CREATE SCHEMA {quoted}")
    shop.execute(
        f"CREATE TABLE {quoted}.{quoted} ({quoted} text, id int, big text,"
        f" PRIMARY KEY (id, {quoted}))"
    )
    shop.execute(f"ALTER TABLE {quoted}.{quoted} ALTER big SET STORAGE EXTERNAL")
    insert = f"INSERT INTO {quoted}.{quoted} SELECT 'v', n, repeat('x', 4000) FROM"
    shop.execute(f"{insert} generate_series(1, 6) n")
    log = MemoryLog(shop, tables=["public.*", f"{name}.*"], copy_rows=4)
    until(lambda: log.poll() and any(each.phase == "copy" for each in log.messages))
    log.drain(shop)
    # Its large value is fetched, because the key is another.
    shop.execute(f"UPDATE {quoted}.{quoted} SET id = 60 WHERE id = 1")
    log.drain(shop)
    log.kill()
    rows = rows_of(log, f"{name}.{name}")
    assert rows[-1] == ("insert", "sync", '[60, "v"]', {name: "v", "id": 60, "big": "x" * 4000})
    assert {(op, phase) for op, phase, _, _ in rows} == {
        ("insert", "copy"),
        ("delete", "sync"),
        ("insert", "sync"),
    }


def test_a_row_filter_and_a_column_list_with_odd_names(shop: Database) -> None:
    """What the publication has by odd names is read in copy and stream."""
    need_version(shop, 15, "row filters")
    shop.execute('CREATE TABLE "T%" (id int PRIMARY KEY, "50%" text, "A.b" text, secret text)')
    shop.execute("""INSERT INTO "T%" SELECT n, '50%', '%s', 'x' FROM generate_series(1, 9) n""")
    item = {"table": '"T%"', "columns": ["id", "50%", "A.b"], "where": "id % 2 = 0"}
    log = MemoryLog(shop, tables=[item], copy_rows=2)
    until(lambda: log.poll() and any(each.phase == "copy" for each in log.messages))
    # A row that moves in is an insert, and one that moves out a delete.
    shop.execute('UPDATE "T%" SET id = 102 WHERE id = 1; UPDATE "T%" SET id = 101 WHERE id = 8')
    log.drain(shop)
    log.kill()
    alive: dict[str, Any] = {}
    for op, _, key, data in rows_of(log, "public.T%"):
        if op == "delete":
            alive.pop(key, None)
        else:
            alive[key] = data
    assert alive == {
        str(number): {"id": number, "50%": "50%", "A.b": "%s"} for number in (2, 4, 6, 102)
    }


def test_a_row_filter_that_would_break_the_application_is_refused(shop: Database) -> None:
    """With columns outside of the identity in it, each UPDATE would fail in the application."""
    need_version(shop, 15, "row filters")
    shop.execute("INSERT INTO items VALUES (1, 'a')")
    for item, identity in (
        ({"table": "items", "where": "name = 'a'"}, "DEFAULT"),
        ({"table": "items", "columns": ["id"]}, "FULL"),
    ):
        shop.execute(f"ALTER TABLE items REPLICA IDENTITY {identity}")
        log = MemoryLog(shop, tables=[item])
        with pytest.raises(EnvironmentFault, match="would fail in the application"):
            log.reader()
        log.kill()
        shop.execute("UPDATE items SET name = 'b'")
        assert shop.execute("SELECT 1 FROM pg_publication") == []
        assert shop.execute("SELECT 1 FROM pg_replication_slots") == []


def test_many_columns(shop: Database) -> None:
    """A table with as many columns as there can be, and large values, is copied and followed."""
    names = [f"c{number}" for number in range(1598)]
    columns = ", ".join(f"{name} bool" for name in names)
    shop.execute(f"CREATE TABLE wide (id int PRIMARY KEY, big text, {columns})")
    shop.execute("ALTER TABLE wide ALTER big SET STORAGE EXTERNAL")
    shop.execute(
        "INSERT INTO wide (id, big, c7) VALUES (1, repeat('x', 5000), true), (2, 'y', true)"
    )
    log = started(shop)
    shop.execute("UPDATE wide SET c8 = false, id = id + 10")
    log.drain(shop)
    log.kill()
    rows = rows_of(log, "public.wide")
    first, last = rows[0][3], next(each[3] for each in rows if each[2] == "11" and each[3])
    assert len(first) == 1600
    assert last == {**first, "id": 11, "c8": False}


def test_columns_that_are_made_by_the_server(shop: Database) -> None:
    """Generated columns are left out in copy and stream, identity columns are not."""
    virtual = version(shop) >= 18
    shop.execute(
        "CREATE TABLE made (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int,"
        " b int GENERATED ALWAYS AS (a + 1) STORED"
        + (", c int GENERATED ALWAYS AS (a + 2) VIRTUAL" if virtual else "")
        + ")"
    )
    shop.execute("INSERT INTO made (a) VALUES (1)")
    log = started(shop)
    shop.execute("INSERT INTO made (a) VALUES (2)")
    log.drain(shop)
    log.kill()
    assert [data for _, _, _, data in rows_of(log, "public.made")] == [
        {"id": 1, "a": 1},
        {"id": 2, "a": 2},
    ]


def test_values_at_the_edges(shop: Database) -> None:
    """Domains over everything, empty composites, json with an escaped zero, times without end."""
    shop.execute("CREATE TYPE nothing AS (); CREATE TYPE pair AS (a int, b text[])")
    shop.execute("CREATE DOMAIN dpair AS pair; CREATE DOMAIN dnums AS numeric[]")
    shop.execute("CREATE DOMAIN dkey AS text; CREATE DOMAIN dd AS dkey")
    shop.execute(
        "CREATE TABLE edges (id dd PRIMARY KEY, e nothing, p dpair, n dnums, ps pair[], j json,"
        " d date, t timestamptz, f float8, m money)"
    )
    insert = (
        "INSERT INTO edges VALUES (%s, ROW(), ROW(1, '{a,NULL,\"b c\"}'), '{NaN,1.50,NULL}',"
        r""" ARRAY[ROW(1, '{}')::pair, NULL], '{"a":"\u0000", "a" : 1e400}', '-infinity',"""
        " 'infinity', 'NaN', 12.5)"
    )
    shop.execute(insert, ["1"])
    log = started(shop)
    shop.execute(insert, ["2"])
    log.drain(shop)
    log.kill()
    one, two = (each.data for each in log.messages if each.data and each.op == "insert")
    assert one is not None
    assert two is not None
    assert one.replace(b'"id":"1"', b'"id":"2"') == two


def test_partitions_with_columns_in_another_order(shop: Database) -> None:
    """Rows come in the form of the whole table, whatever was dropped in a partition before."""
    shop.execute(
        "CREATE TABLE parts (id int PRIMARY KEY, a text, b int) PARTITION BY RANGE (id);"
        "CREATE TABLE parts_1 (gone int, b int, a text, id int NOT NULL PRIMARY KEY);"
        "ALTER TABLE parts_1 DROP COLUMN gone;"
        "ALTER TABLE parts ATTACH PARTITION parts_1 FOR VALUES FROM (0) TO (100);"
        "INSERT INTO parts VALUES (1, 'x', 10)"
    )
    log = started(shop, tables=["public.parts"])
    shop.execute("INSERT INTO parts VALUES (2, 'y', 20); UPDATE parts SET id = 3 WHERE id = 1")
    log.drain(shop)
    log.kill()
    assert rows_of(log, "public.parts") == [
        ("insert", "copy", "1", {"id": 1, "a": "x", "b": 10}),
        ("insert", "sync", "2", {"id": 2, "a": "y", "b": 20}),
        ("delete", "sync", "1", None),
        ("insert", "sync", "3", {"id": 3, "a": "x", "b": 10}),
    ]


def test_columns_change_in_the_middle_of_a_transaction(shop: Database) -> None:
    """Each row has the columns of its moment, also after kills within the transaction."""
    log = started(shop, batch_rows=1)
    shop.execute(
        "BEGIN; INSERT INTO items VALUES (1, 'a'); ALTER TABLE items ADD COLUMN more int DEFAULT 7;"
        " INSERT INTO items VALUES (2, 'b'); ALTER TABLE items DROP COLUMN name;"
        " INSERT INTO items VALUES (3, 8); COMMIT"
    )
    for count in (1, 2, 3):
        until(lambda count=count: log.poll(0.1) and len(rows_of(log, "public.items")) == count)  # type: ignore[misc]
        log.kill()
    log.drain(shop)
    log.kill()
    assert [data for _, _, _, data in rows_of(log, "public.items")] == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b", "more": 7},
        {"id": 3, "more": 8},
    ]


def test_a_truncate_of_several_tables_is_an_entry_of_each(shop: Database) -> None:
    """Those that are reached by CASCADE, too."""
    shop.execute("CREATE TABLE kids (id int PRIMARY KEY, item int REFERENCES items)")
    shop.execute("CREATE TABLE others (id int PRIMARY KEY)")
    log = started(shop)
    shop.execute("INSERT INTO items VALUES (1); INSERT INTO kids VALUES (2, 1)")
    log.drain(shop)
    shop.execute("TRUNCATE items, others RESTART IDENTITY CASCADE")
    log.drain(shop)
    log.kill()
    found = [each for each in log.messages if each.op == "command"]
    assert sorted(each.namespace for each in found) == [
        "public.items", "public.kids", "public.others"
    ]  # fmt: skip
    assert all(json.loads(each.data or b"")["cascade"] for each in found)
    assert len({each.source_id for each in found}) == 3


def test_a_truncate_does_not_leave_rows_to_a_copy_that_leaves_them_out(shop: Database) -> None:
    """With ``copy_where`` every change is followed, after a TRUNCATE during the copy as well."""
    shop.execute("INSERT INTO items SELECT n FROM generate_series(1, 40) n")
    log = MemoryLog(shop, tables=[{"table": "items", "copy_where": "id > 30"}], copy_rows=2)
    until(lambda: log.poll() and any(each.phase == "copy" for each in log.messages))
    shop.execute("TRUNCATE items; INSERT INTO items VALUES (5, 'five'), (35, 'more')")
    log.drain(shop)
    log.kill()
    after = rows_of(log, "public.items")
    after = after[[each[0] for each in after].index("command") :]
    assert {each[2] for each in after if each[0] == "insert"} == {"5", "35"}


def test_a_key_column_that_is_renamed_stays_the_key(shop: Database) -> None:
    """Changes before and after the rename have the key, and the copy goes on in its order."""
    shop.execute("INSERT INTO items SELECT n FROM generate_series(1, 30) n")
    log = MemoryLog(shop, copy_rows=4)
    until(lambda: log.poll() and any(each.phase == "copy" for each in log.messages))
    shop.execute("UPDATE items SET name = 'before' WHERE id = 1")
    shop.execute("ALTER TABLE items RENAME COLUMN id TO ident")
    shop.execute(
        "UPDATE items SET name = 'after' WHERE ident = 2; DELETE FROM items WHERE ident = 29"
    )
    log.drain(shop)
    log.kill()
    shop.execute("INSERT INTO items VALUES (31)")
    log.drain(shop)
    log.kill()
    rows = rows_of(log, "public.items")
    assert None not in {key for _, _, key, _ in rows}
    alive: dict[str, Any] = {}
    for op, _, key, data in rows:
        if op == "delete":
            alive.pop(key)
        else:
            alive[key] = data
    assert sorted(map(int, alive)) == [*range(1, 29), 30, 31]
    assert alive["2"] == {"ident": 2, "name": "after"}


@pytest.mark.parametrize("kind", ["int", "text"])
def test_a_table_that_is_dropped_during_its_copy_ends(shop: Database, kind: str) -> None:
    """Its last changes come when the catalog has it no more."""
    shop.execute(f"CREATE TABLE t (id {kind} PRIMARY KEY, v int)")
    shop.execute(f"INSERT INTO t SELECT n::{kind}, n FROM generate_series(1, 40) n")
    log = MemoryLog(shop, copy_rows=4, watch="1s")
    until(lambda: log.poll() and any(each.phase == "copy" for each in log.messages))
    shop.execute("UPDATE t SET v = 0; DROP TABLE t; INSERT INTO items VALUES (1)")
    log.drain(shop)
    log.kill()
    assert rows_of(log, "public.items") == [("insert", "sync", "1", {"id": 1, "name": None})]


@pytest.mark.parametrize(
    ("statement", "ends"),
    [
        ("DROP SCHEMA tenant CASCADE", "table-removed"),
        ("ALTER SCHEMA tenant RENAME TO customer", "copy-complete"),
    ],
)
def test_a_schema_that_goes_during_the_copy_of_its_table(
    shop: Database, statement: str, ends: str
) -> None:
    """Its table ends, or goes on under the new name, and all others go on."""
    shop.execute(
        "CREATE SCHEMA tenant; CREATE TABLE tenant.t (id int PRIMARY KEY);"
        "INSERT INTO tenant.t SELECT generate_series(1, 40)"
    )
    log = MemoryLog(shop, copy_rows=4, watch="1s", tables=["*.*"])
    until(lambda: log.poll() and any(each.namespace == "tenant.t" for each in log.messages))
    shop.execute(f"{statement}; INSERT INTO items VALUES (1)")
    log.drain(shop)
    until(lambda: log.poll() and any(name == ends for name, _ in log.told))
    log.kill()
    assert rows_of(log, "public.items") == [("insert", "sync", "1", {"id": 1, "name": None})]
    if ends == "copy-complete":
        copied = [
            int(each[2]) for name in ("tenant.t", "customer.t") for each in rows_of(log, name)
        ]
        assert copied == [*range(1, 41)]


@pytest.mark.parametrize(
    "statement",
    ["ALTER SCHEMA tenant RENAME TO archive", "ALTER TABLE tenant.t SET SCHEMA archived"],
)
def test_a_table_that_leaves_its_pattern_leaves_the_publication(
    shop: Database, statement: str
) -> None:
    """It leaves under the name that it has by now, and all others go on."""
    shop.execute("CREATE SCHEMA archived; CREATE SCHEMA tenant")
    shop.execute("CREATE TABLE tenant.t (id int PRIMARY KEY)")
    log = started(shop, watch="1s", tables=["public.*", "tenant.*"])
    shop.execute(statement)
    until(lambda: log.poll() and any(name == "table-removed" for name, _ in log.told))
    shop.execute("INSERT INTO items VALUES (1)")
    log.drain(shop)
    log.kill()
    assert rows_of(log, "public.items") == [("insert", "sync", "1", {"id": 1, "name": None})]
    assert shop.execute("SELECT tablename FROM pg_publication_tables") == [("items",)]


def test_a_large_value_of_a_column_that_is_gone(shop: Database) -> None:
    """A change of the key that left it out comes without it."""
    shop.execute("ALTER TABLE items ALTER name SET STORAGE EXTERNAL")
    shop.execute("INSERT INTO items VALUES (1, repeat('x', 5000))")
    log = started(shop)
    shop.execute("UPDATE items SET id = 2; ALTER TABLE items DROP COLUMN name")
    log.drain(shop)
    log.kill()
    assert rows_of(log, "public.items")[-1] == ("insert", "sync", "2", {"id": 2})


@pytest.mark.parametrize("moment", ["before", "behind", "within"])
def test_a_large_value_of_a_row_whose_key_has_a_new_name(shop: Database, moment: str) -> None:
    """A change of the key finds the row by the name that the key has by now."""
    shop.execute("ALTER TABLE items ALTER name SET STORAGE EXTERNAL")
    shop.execute("INSERT INTO items VALUES (1, repeat('x', 5000))")
    log = started(shop)
    rename = "ALTER TABLE items RENAME id TO pk"
    shop.execute({
        "before": f"{rename}; UPDATE items SET pk = 2",
        "behind": f"UPDATE items SET id = 2; {rename}",
        "within": f"BEGIN; UPDATE items SET id = 3; {rename}; UPDATE items SET pk = 2; COMMIT",
    }[moment])  # fmt: skip
    log.drain(shop)
    log.kill()
    *_, (op, _, key, data) = rows_of(log, "public.items")
    assert (op, key) == ("insert", "2")
    name = "id" if moment == "behind" else "pk"
    assert data == {name: 2, "name": "x" * 5000}


def test_a_large_value_of_a_row_whose_copy_has_logged_the_new_name_of_its_key(
    shop: Database,
) -> None:
    """The stream is still before the rename then, and brings the old name."""
    shop.execute("ALTER TABLE items ALTER name SET STORAGE EXTERNAL")
    shop.execute("INSERT INTO items SELECT n, repeat('x', 5000) FROM generate_series(1, 20) n")
    log = MemoryLog(shop, copy_rows=4)
    until(lambda: log.poll() and any(each.phase == "copy" for each in log.messages))
    receive = log.reader()._open_parts._transactions.receive
    log.reader()._open_parts._transactions.receive = lambda *_: []  # type: ignore[method-assign]
    shop.execute("UPDATE items SET id = 101 WHERE id = 1; ALTER TABLE items RENAME id TO pk")
    until(lambda: log.poll() and any(each.data and b'"pk"' in each.data for each in log.messages))
    log.reader()._open_parts._transactions.receive = receive  # type: ignore[method-assign]
    log.drain(shop)
    log.kill()
    rows: dict[str, Any] = {}
    for op, _, key, data in rows_of(log, "public.items"):
        rows |= {key: data} if op == "insert" else {}
        if op == "delete":
            del rows[key]
    assert sorted(map(int, rows)) == [*range(2, 21), 101]
    assert {data["name"] for data in rows.values()} == {"x" * 5000}


@pytest.mark.parametrize("kind", ["int", "text", "char(7)", "uuid"])
def test_large_values_are_found_by_the_index_of_the_key(shop: Database, kind: str) -> None:
    """A scan of the whole table for each row would keep the stream back for hours."""
    made = "lpad({}::text, 32, '0')::uuid" if kind == "uuid" else f"{{}}::{kind}"
    shop.execute(f"CREATE TABLE big (id {kind} PRIMARY KEY, v text, n int)")
    shop.execute("ALTER TABLE big ALTER v SET STORAGE EXTERNAL")
    fill = f"INSERT INTO big SELECT {made.format('n')}, 'v', n FROM generate_series(1, 5000) n"
    shop.execute(fill)
    shop.execute("UPDATE big SET v = repeat('x', 5000) WHERE n <= 20; ANALYZE big")
    log = started(shop)

    def scans() -> tuple[int, int]:
        ours = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'transporter'"
        until(lambda: not shop.execute(ours))
        if version(shop) < 15:
            time.sleep(1)  # Its statistics are collected with a delay of 0.5 s.
        found = shop.execute("SELECT seq_scan, idx_scan FROM pg_stat_user_tables"
                             " WHERE relname = 'big'")  # fmt: skip
        return found[0][0], found[0][1]

    log.kill()
    before = scans()
    shop.execute(f"UPDATE big SET id = {made.format('(n + 10000)')} WHERE n <= 20")
    log.drain(shop)
    log.kill()
    after = scans()
    assert after[0] - before[0] <= 1
    assert after[1] - before[1] >= 20
    found = [each for each in rows_of(log, "public.big") if each[:2] == ("insert", "sync")]
    assert [(data["n"], len(data["v"])) for *_, data in found] == [(n, 5000) for n in range(1, 21)]


BIG = """
CREATE TABLE big (id int PRIMARY KEY, n int, v text NOT NULL);
ALTER TABLE big ALTER v SET STORAGE EXTERNAL;
CREATE SCHEMA sink; CREATE TABLE sink.big (id int PRIMARY KEY, n int, v text NOT NULL);
INSERT INTO big SELECT n, n, repeat(n::text, 3000) FROM generate_series(1, {rows}) n
"""


AGAIN = "INSERT INTO big SELECT n + 1000, n, repeat('b', 3000) FROM generate_series(1, 60) n"


@pytest.fixture
def sink(shop: Database) -> Iterator[Driver]:
    """Yield a writer that keeps ``sink.big`` as the entries of ``public.big`` describe it."""
    driver = Driver(
        shop, {"tables": {"public.big": "sink.big"}, "progress": "sink.transporter_progress"}
    )
    yield driver
    driver.close()


def deliver_each(sink: Driver, log: MemoryLog) -> None:
    """Deliver each entry of ``public.big`` in a slice of its own: one would hide earlier ones."""
    for each in log.messages:
        if each.namespace == "public.big":
            sink.deliver(each)


def rows_of_both(database: Database) -> tuple[list[Any], list[Any]]:
    """Return the rows of ``public.big`` and of ``sink.big``."""
    ours, theirs = (
        database.execute(f"SELECT id, n, md5(v) FROM {name}.big ORDER BY id")
        for name in ("public", "sink")
    )
    return ours, theirs


@pytest.mark.parametrize("batch_rows", [1, 20000])
@pytest.mark.parametrize("again", [{"copy_run": 2}, {"copy_where": "id > 20"}])
def test_an_empty_sink_gets_whole_rows_during_a_copy(
    shop: Database,
    sink: Driver,
    monkeypatch: pytest.MonkeyPatch,
    again: dict[str, Any],
    batch_rows: int,
) -> None:
    """Changes beyond the boundary are logged then: the sink has no row for a part of one."""
    shop.execute(BIG.format(rows=60))
    log = started(shop, tables=["big"], batch_rows=batch_rows)
    log.kill()
    log.messages.clear()
    if "copy_where" in again:
        with clean_slots(shop):
            pass
        log.position = None
    log.settings |= {"tables": [{"table": "big", **again}], "copy_rows": 2}
    until(lambda: log.poll() and sum(each.phase == "copy" for each in log.messages) >= 4)
    # Only the stream goes on until it has come to all of this.
    monkeypatch.setattr(handover, "MAX_CHUNKS", 0)
    shop.execute("UPDATE big SET n = n + 100")
    shop.execute("UPDATE big SET n = 0 WHERE id IN (2, 5, 59); DELETE FROM big WHERE id IN (5, 59)")
    shop.execute("UPDATE big SET n = 1 WHERE id = 58; UPDATE big SET id = 158 WHERE id = 58")
    shop.execute("UPDATE big SET n = 2, v = repeat('x', 4000) WHERE id = 57")
    shop.execute("UPDATE big SET n = 3 WHERE id = 57")
    until(lambda: log.poll() and any(each.key == b"158" for each in log.messages))
    monkeypatch.undo()
    log.drain(shop)
    log.kill()
    deliver_each(sink, log)
    ours, theirs = rows_of_both(shop)
    copied = {row[0] for row in theirs}
    assert copied >= {row[0] for row in ours if row[1] != row[0] + 100}
    assert theirs == ours
    assert {each.headers for each in log.messages} == {()}


@pytest.mark.parametrize(("rows", "kills"), [(1, 0), (1, 2), (60, 0)])
@pytest.mark.parametrize(
    "end",
    [
        "DELETE FROM big WHERE id > 1000",
        "UPDATE big SET id = id + 1000 WHERE id > 1000",
        "TRUNCATE big",
        f"DELETE FROM big WHERE id > 1000; {AGAIN}; UPDATE big SET n = 8",
        "DELETE FROM big WHERE id > 1000; ALTER TABLE big DROP v",
    ],
    ids=["deleted", "moved on", "truncated", "born again", "column dropped"],
)
def test_a_row_that_is_gone_when_its_new_key_comes(
    shop: Database,
    sink: Driver,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
    rows: int,
    kills: int,
) -> None:
    """No one can have its large value any more, so its key is not logged, also across kills."""
    shop.execute(BIG.format(rows=rows))
    shop.execute("INSERT INTO big VALUES (0, 0, repeat('o', 3000))")
    log = started(shop, tables=["big"])
    shop.execute("UPDATE big SET id = id + 1000 WHERE id > 0")
    shop.execute("UPDATE big SET n = n + 100; UPDATE big SET n = 7 WHERE id = 1001")
    shop.execute(end)
    if kills:
        monkeypatch.setattr(pending, "LARGEST", 1)
    for number in range(len(log.messages), len(log.messages) + kills):
        until(lambda behind=number: log.poll() and len(log.messages) > behind)
        log.kill()
    log.drain(shop)
    shop.execute("UPDATE big SET n = n + 1 WHERE id = 0; INSERT INTO big (id) VALUES (-1)"
                 if "DROP" in end else "UPDATE big SET n = n + 1 WHERE id = 0")  # fmt: skip
    log.drain(shop)
    log.kill()
    if "DROP" in end:
        shop.execute("ALTER TABLE sink.big ALTER v DROP NOT NULL")
        deliver_each(sink, log)
        assert shop.execute("SELECT id, n FROM sink.big ORDER BY id") == [(-1, None), (0, 101)]
        return
    deliver_each(sink, log)
    ours, theirs = rows_of_both(shop)
    assert theirs == ours
    *_, last = log.messages
    if "TRUNCATE" not in end:
        # All is as before behind the ends of these rows.
        assert dict(last.headers) == {"pg-unchanged": b'["v"]'}


def test_a_row_whose_table_is_gone_when_its_new_key_comes(shop: Database, sink: Driver) -> None:
    """Its last changes come without it."""
    shop.execute(BIG.format(rows=2))
    log = started(shop, tables=["big", "items"])
    shop.execute("UPDATE big SET id = 11 WHERE id = 1; UPDATE big SET n = 7 WHERE id = 11")
    shop.execute("DROP TABLE big; INSERT INTO items VALUES (1)")
    log.drain(shop)
    log.kill()
    deliver_each(sink, log)
    assert shop.execute("SELECT id FROM sink.big") == [(2,)]


def test_a_large_row_is_alone_in_its_batch(shop: Database) -> None:
    """A batch is one append: only its last one has the position, and a crash repeats the others."""
    log = MemoryLog(shop)
    appends: list[int] = []
    append = log.append

    def counted(batch: Batch) -> None:
        if batch.messages:
            appends.append(len(split_to_loggable(batch.messages)))
        append(batch)

    log.append = counted  # type: ignore[method-assign]
    log.drain(shop)
    sizes = [3, 5, 5, 5, 20, 1, 7, 8, 1]
    for number, size in enumerate(sizes):
        shop.execute("INSERT INTO items VALUES (%s, repeat('x', %s))", [number, (size << 20) + 1])
    log.drain(shop)
    log.kill()
    assert [each[2] for each in rows_of(log, "public.items")] == [*map(str, range(len(sizes)))]
    assert {*appends} == {1}


def test_large_rows_are_copied(shop: Database) -> None:
    """One of more bytes than an append takes is a chunk of its own."""
    shop.execute("INSERT INTO items VALUES (1, 'a'), (3, 'c')")
    shop.execute("INSERT INTO items VALUES (2, repeat('x', 20 << 20))")
    log = started(shop)
    log.kill()
    assert [key for _, _, key, _ in rows_of(log, "public.items")] == ["1", "2", "3"]


def test_many_savepoints(shop: Database) -> None:
    """A transaction of ten thousand subtransactions, half of them undone, is one transaction."""
    log = started(shop)
    shop.execute(
        "DO $$ BEGIN FOR i IN 1..10000 LOOP BEGIN INSERT INTO items VALUES (i);"
        " IF i % 2 = 0 THEN RAISE unique_violation; END IF;"
        " EXCEPTION WHEN unique_violation THEN NULL; END; END LOOP; END $$"
    )
    log.drain(shop)
    log.kill()
    assert [each[2] for each in rows_of(log, "public.items")] == [
        str(number) for number in range(1, 10000, 2)
    ]


ROLE_DEFAULTS = {
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "statement_timeout": "1ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1ms",
    "idle_session_timeout": "20ms",
    "transaction_timeout": "1ms",
    "search_path": "hostile",
    "DateStyle": "SQL, DMY",
    "TimeZone": "Asia/Kolkata",
    "IntervalStyle": "sql_standard",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "row_security": "on",
    "jit": "on",
    "plan_cache_mode": "force_generic_plan",
    "client_encoding": "LATIN1",
    "standard_conforming_strings": "off",
    "quote_all_identifiers": "on",
    "transform_null_equals": "on",
    "synchronous_commit": "off",
    "enable_indexscan": "off",
    "lc_monetary": "C",
    "array_nulls": "off",
    "xmloption": "document",
    "work_mem": "64kB",
}


def poll_again(log: MemoryLog) -> Batch | None:
    """Poll, and open the reader again after an outage, as the engine does.

    A limit of 1 ms may end a session before the reader's own limits are set there.
    """
    try:
        return log.poll(0.1)
    except SourceUnavailable:
        log.kill()
        return None


@pytest.mark.parametrize("where", ["role", "database"])
def test_hostile_defaults_change_nothing(shop: Database, where: str) -> None:
    """Neither a role's nor a database's settings reach the reader's sessions."""
    shop.execute("CREATE SCHEMA hostile; CREATE TABLE hostile.pg_class (a int)")
    shop.execute(
        "CREATE TABLE kinds (id int PRIMARY KEY, b bytea, f float8, t timestamptz, i interval,"
        " n text, a int[])"
    )
    values = r"'\x00ff', 0.1::float8 + 0.2, '2024-02-03 04:05:06+00', '1 day 2 hours',"
    values += r" 'ü\n''', '{1,NULL}'"
    shop.execute(f"INSERT INTO kinds VALUES (1, {values})")
    role, quoted = 'rep"li%s', sql.Identifier('rep"li%s').as_string()
    shop.execute(f"CREATE ROLE {quoted} LOGIN SUPERUSER REPLICATION")
    target = f"ROLE {quoted}" if where == "role" else f"DATABASE {shop.name}"
    known = {name for (name,) in shop.execute("SELECT name FROM pg_settings")}
    try:
        with shop.connect(
            options="-c statement_timeout=0 -c default_transaction_read_only=off"
        ) as c:
            for name, value in ROLE_DEFAULTS.items():
                if name in known or name == "DateStyle":
                    statement = sql.SQL(f"ALTER {target} SET {name} = {{}}")
                    c.execute(statement.format(sql.Literal(value)))
            log = MemoryLog(shop, dsn=shop.dsn_as(role), watch="1s")
            until(lambda: poll_again(log) and rows_of(log, "public.kinds"))
            c.execute(f"INSERT INTO public.kinds VALUES (2, {values})")
            until(lambda: poll_again(log) and rows_of(log, "public.kinds")[1:])
            log.kill()
    finally:
        # From another database, where the settings do not hold.
        with psycopg.connect(shop.server.dsn, autocommit=True) as c:
            c.execute(f"ALTER {target} RESET ALL")
            c.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [role]
            )
        shop.execute(f"DROP OWNED BY {quoted}")
        shop.execute(f"DROP ROLE {quoted}")
    first, second = (data for _, _, _, data in rows_of(log, "public.kinds"))
    assert first == {
        "id": 1,
        "b": "\\x00ff",
        "f": 0.30000000000000004,
        "t": "2024-02-03T04:05:06+00:00",
        "i": "P1DT2H",
        "n": "ü\\n'",
        "a": [1, None],
    }
    assert {**second, "id": 1} == first


def test_bytes_that_are_not_utf8(postgres: Database) -> None:
    """A database of SQL_ASCII has them, and copy and stream pass them on as they are."""
    name = f"{postgres.name}_ascii"
    postgres.execute(
        f"CREATE DATABASE {name} ENCODING SQL_ASCII LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    ascii_ = Database(name, postgres.server)
    try:
        ascii_.execute("CREATE TABLE words (id int PRIMARY KEY, w text)")
        insert = r"INSERT INTO words VALUES (%s, E'a\xff\xfeb')"
        with ascii_.connect(client_encoding="SQL_ASCII") as connection:
            connection.execute(insert, [1])
            with clean_slots(ascii_):
                log = MemoryLog(ascii_)
                until(lambda: log.poll(0.1) and len(log.messages) > 1)
                connection.execute(insert, [2])
                until(lambda: log.poll(0.1) and len(rows_raw(log)) > 1)
                log.kill()
    finally:
        postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")
    assert rows_raw(log) == [b'{"id":1,"w":"a\xff\xfeb"}', b'{"id":2,"w":"a\xff\xfeb"}']


def rows_raw(log: MemoryLog) -> list[bytes]:
    """Return the data of all rows, as logged."""
    return [each.data for each in log.messages if each.data and each.op == "insert"]


def test_two_readers_of_one_database_and_two_databases(shop: Database) -> None:
    """Each has its own slot and sees its own database's changes, once."""
    with fresh_database(shop.server) as other, clean_slots(other):
        other.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
        logs = [
            MemoryLog(shop),
            MemoryLog(shop, slot="second", publication="second"),
            MemoryLog(other, slot="third"),
        ]
        for _ in range(2):
            for log in logs:
                log.drain(other if log is logs[2] else shop)
            shop.execute("INSERT INTO items SELECT count(*) FROM items")
            other.execute("INSERT INTO items SELECT 100 + count(*) FROM items")
        for log in logs:
            log.drain(other if log is logs[2] else shop)
            log.kill()
    found = [[each[2] for each in rows_of(log, "public.items")] for log in logs]
    assert found == [["0", "1"], ["0", "1"], ["100", "101"]]
