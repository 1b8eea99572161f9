"""Rows that the ``postgres`` writer makes of entries, on a real server."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING

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
from transporter_adaptors.postgres.table import TableName
from transporter_adaptors.postgres_cdc.entries import UNCHANGED_HEADER
from transporter_adaptors.postgres_writer.append_mode import append_ddl

from transporter.errors import Rejected, RouteFault, SinkUnavailable
from transporter.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database

pytestmark = pytest.mark.postgres

BIG = ((UNCHANGED_HEADER, b'["big"]'),)


@pytest.fixture
def driver(postgres: Database) -> Iterator[Driver]:
    """Return a driver of a writer with the default settings."""
    made = Driver(postgres)
    yield made
    made.close()


def configure(driver: Driver, **settings: object) -> Driver:
    """Give *driver* these settings."""
    driver.settings = settings
    return driver


def test_the_newest_row_of_a_key_stays(driver: Driver) -> None:
    """Inserts, updates and deletes of one slice and of several leave the rows of the source."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")

    driver.deliver(row("t", 1, id=1, v="a"), row("t", 2, id=2, v="b"), row("t", 1, id=1, v="c"))
    assert driver.rows("t") == [(1, "c"), (2, "b")]
    driver.deliver(deletion("t", 1), deletion("t", 9), row("t", 3, id=3, v=None), deletion("t", 2))
    driver.deliver(row("t", 2, id=2, v="d"), deletion("t", 2), row("t", 2, id=2, v="e"))

    assert driver.rows("t") == [(2, "e"), (3, None)]
    assert driver.stored() == [(0, 10)]


def test_composite_keys(driver: Driver) -> None:
    """A key of several columns is an array of their values, in the order of the index."""
    driver.database.execute("CREATE TABLE t (n int, a numeric, b text, PRIMARY KEY (b, a))")

    driver.deliver(
        row("t", ["x", 1], a=1, b="x", n=1),
        row("t", ['"', 2.5], a=2.5, b='"', n=2),
        row("t", ["é", 12345678901234567890], a=12345678901234567890, b="é", n=3),
    )
    driver.deliver(deletion("t", ['"', 2.50]), deletion("t", ["é", 12345678901234567890]))

    assert driver.rows("t") == [(1, 1, "x")]


def test_a_composite_key_in_another_order(driver: Driver) -> None:
    """A key whose parts are in another order than the columns is refused, unless it is set."""
    driver.database.execute("CREATE TABLE t (a int, b int, PRIMARY KEY (a, b))")

    error = driver.fail(row("t", [1, 2], a=2, b=1))
    assert isinstance(error, Rejected)
    assert "name the columns of the entry's key, in its order, in key" in str(error)
    driver.close()
    configure(driver, key=["b", "a"]).deliver(row("t", [1, 2], a=2, b=1), deletion("t", [5, 6]))
    driver.deliver(deletion("t", [1, 2]))

    assert driver.rows("t") == []


def test_a_key_as_an_array_of_one(driver: Driver) -> None:
    """With key_format: json a single column's key is an array, too."""
    driver.database.execute("CREATE TABLE t (id text PRIMARY KEY)")
    configure(driver, key_format="json").deliver(row("t", ["a"], id="a"), row("t", ["b"], id="b"))
    driver.deliver(deletion("t", ["a"]))
    assert driver.rows("t") == [("b",)]
    assert "must be a JSON array" in str(driver.fail(deletion("t", "a")))


def test_texts_that_are_one_key(driver: Driver) -> None:
    """1.0 and 1.00 are one row: the last one is there, in its own spelling."""
    driver.database.execute("CREATE TABLE t (id numeric PRIMARY KEY, v int)")

    driver.deliver(
        Message("public.t", b'{"id":1.0,"v":1}', b"1.0"),
        Message("public.t", b'{"id":1.00,"v":2}', b"1.00"),
        Message("public.t", b'{"id":7.0,"v":1}', b"7.0"),
        Message("public.t", None, b"7.00", "delete"),
    )

    assert [(str(key), value) for key, value in driver.rows("t")] == [("1.00", 2)]


def test_texts_that_only_the_server_knows_as_one_key(driver: Driver) -> None:
    """Keys of another type that are equal are applied one after the other."""
    driver.database.execute("CREATE TABLE t (id interval PRIMARY KEY, v int)")
    keys = ["P1D", "PT24H", "PT1H", "PT60M", "P1D"]

    driver.deliver(*(row("t", key, id=key, v=n) for n, key in enumerate(keys)))

    assert [value for _, value in driver.rows("t")] == [3, 4]


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("uuid", "0000000a-0000-0000-0000-000000000000", "0000000A-0000-0000-0000-000000000000"),
        ("interval", "P1D", "PT24H"),
        ("char(5)", "a", "a  "),
        ("int", "1", "01"),
        ("numeric(10,2)", "1.001", "1.00"),
        ("real", "0.1", "0.1000000015"),
    ],
)
def test_a_delete_whose_key_has_another_text(
    driver: Driver, kind: str, first: str, second: str
) -> None:
    """A delete removes the row that the upsert before it wrote, however its key is spelled."""
    driver.database.execute(f"CREATE TABLE t (id {kind} PRIMARY KEY, v int)")
    driver.deliver(row("t", first, id=first, v=1), deletion("t", second))
    assert driver.rows("t") == []


def test_a_delete_after_an_upsert_without_a_key(driver: Driver) -> None:
    """An entry without a key is of the row that its data names."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    driver.deliver(Message("public.t", b'{"id":1}'), deletion("t", 1))
    assert driver.rows("t") == []


def test_partial_updates_of_one_row_with_two_texts(driver: Driver) -> None:
    """The last one stays, also where a row that is missing would be ignored."""
    driver.database.execute("CREATE TABLE t (id interval PRIMARY KEY, v int, big text)")
    configure(driver, missing_row="ignore").deliver(row("t", "P1D", id="P1D", v=0, big="x"))
    driver.deliver(
        partial_row("t", "P1D", ["big"], id="P1D", v=1),
        partial_row("t", "PT24H", ["big"], id="PT24H", v=2),
    )
    assert [tuple(each[1:]) for each in driver.rows("t")] == [(2, "x")]


def test_marked_rows_have_their_last_state(driver: Driver) -> None:
    """A mark does not hide the change before it in the slice."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, v int, gone boolean)")
    configure(driver, delete={"mark": "gone"}).deliver(row("t", 1, id=1, v=1))
    driver.deliver(
        row("t", 1, "update", id=1, v=2), deletion("t", 1), row("t", 5, id=5, v=5), deletion("t", 5)
    )
    assert driver.rows("t") == [(1, 2, True), (5, 5, True)]


def test_a_new_row_has_its_own_identity(driver: Driver) -> None:
    """A row that is deleted and inserted again has the new value of its identity column."""
    driver.database.execute(
        "CREATE TABLE t (code text PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY)"
    )
    driver.deliver(row("t", "a", code="a", n=1))
    driver.deliver(deletion("t", "a"), row("t", "a", code="a", n=2))
    assert driver.rows("t") == [("a", 2)]


def test_domains_that_refuse_null(driver: Driver) -> None:
    """Columns that an entry lacks are not checked, whatever their domain is."""
    driver.database.execute(
        "CREATE DOMAIN required AS text NOT NULL;"
        "CREATE TABLE t (a int, b int, v required, big required, PRIMARY KEY (a, b))"
    )
    driver.deliver(row("t", [1, 2], a=1, b=2, v="x", big="y"))
    driver.deliver(partial_row("t", [1, 2], ["big"], a=1, b=2, v="z"))
    assert driver.rows("t") == [(1, 2, "z", "y")]
    driver.deliver(deletion("t", [1, 2]))
    assert driver.rows("t") == []


def test_entries_of_one_key_and_different_rows(driver: Driver) -> None:
    """Entries whose key is not that of the row are refused where one would hide the other."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, customer int)")
    error = driver.fail(row("t", 7, id=1, customer=7))
    assert isinstance(error, Rejected)
    assert "the key of the entry is not that of its data, which is id" in str(error)
    ack = driver.write(driver.batch([row("t", 1, id=1), row("t", 1, id=2), row("t", 3, id=3)]))
    assert isinstance(ack.failures[0][0], Rejected)
    assert ack.failures[0][1] == 3
    assert driver.rows("t") == [(1, None)]


def test_json_null(driver: Driver) -> None:
    """JSON null is NULL, and JSON null in a column that has no NULL."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, a jsonb, b jsonb NOT NULL)")
    driver.deliver(row("t", 1, id=1, a=None, b=None), row("t", 2, id=2, a=[None], b={"x": None}))
    query = "SELECT a IS NULL, b::text FROM t ORDER BY id"
    assert driver.database.execute(query) == [(True, "null"), (False, '{"x": null}')]


def test_deletes_that_need_the_order_of_the_source(driver: Driver) -> None:
    """A child that changes its parent before the old one is deleted is applied in order."""
    driver.database.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    driver.database.execute(
        "CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent (id))"
    )
    driver.deliver(row("child", 5, id=5, parent=1), row("parent", 1, id=1))

    driver.deliver(
        row("parent", 2, id=2), row("child", 5, "update", id=5, parent=2), deletion("parent", 1)
    )
    assert driver.rows("child") == [(5, 2)]
    driver.deliver(deletion("parent", 2), deletion("child", 5))

    assert driver.rows("parent") == driver.rows("child") == []


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "SET DEFAULT"])
def test_deletes_that_change_other_tables(driver: Driver, action: str) -> None:
    """A child that leaves its parent before the delete is not changed by that, at any distance."""
    driver.database.execute(
        "CREATE TABLE top (id int PRIMARY KEY);"
        f"CREATE TABLE parent (id int PRIMARY KEY, top int REFERENCES top ON DELETE {action});"
        f"CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE {action})"
    )
    driver.database.execute("ALTER TABLE child ADD note text")
    driver.deliver(
        *(row("top", n, id=n) for n in (1, 2)),
        *(row("parent", n, id=n, top=n) for n in (1, 2)),
        *(row("child", n, id=n, parent=n) for n in (1, 2)),
    )
    driver.database.execute("UPDATE child SET note = 'own'")

    driver.deliver(row("child", 1, "update", id=1, parent=2), deletion("parent", 1))
    assert driver.rows("child") == [(1, 2, "own"), (2, 2, "own")]
    driver.deliver(
        row("child", 1, "update", id=1, parent=None),
        row("child", 2, "update", id=2, parent=None),
        deletion("top", 2),
    )
    assert driver.rows("child") == [(1, None, "own"), (2, None, "own")]


def test_a_unique_value_that_is_handed_over(driver: Driver) -> None:
    """A unique value may go from one row to another, also where the last order forbids it."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, email text UNIQUE)")
    driver.deliver(row("t", 1, id=1, email="x"), row("t", 2, id=2, email="y"))
    driver.deliver(
        row("t", 1, "update", id=1, email="tmp"),
        row("t", 2, "update", id=2, email="x"),
        row("t", 1, "update", id=1, email="y"),
    )
    assert driver.rows("t") == [(1, "y"), (2, "x")]
    driver.deliver(
        row("t", 2, "update", id=2, email="free"),
        row("t", 1, "update", id=1, email="x"),
        row("t", 2, "update", id=2, email="y2"),
    )
    assert driver.rows("t") == [(1, "x"), (2, "y2")]


def test_foreign_keys_in_a_cycle(driver: Driver) -> None:
    """Rows that refer to each other arrive if the constraints are deferrable."""
    driver.database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, b int);"
        "CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a (id) DEFERRABLE);"
        "ALTER TABLE a ADD FOREIGN KEY (b) REFERENCES b (id) DEFERRABLE"
    )
    driver.deliver(row("a", 1, id=1, b=2), row("b", 2, id=2, a=1))
    assert driver.rows("a") == [(1, 2)]
    error = driver.fail(row("a", 5, id=5, b=9))
    assert "violates foreign key constraint" in str(error)


def test_constraints_as_on_a_replica(driver: Driver) -> None:
    """With constraints: replica neither foreign keys nor triggers hold rows back."""
    driver.database.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    driver.database.execute(
        "CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent (id))"
    )
    configure(driver, constraints="replica").deliver(row("child", 1, id=1, parent=7))
    assert driver.rows("child") == [(1, 7)]


def test_partial_updates(driver: Driver) -> None:
    """Columns that a change left alone keep their value, also within one slice."""
    driver.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL, big text NOT NULL)"
    )
    driver.deliver(
        row("t", 1, id=1, v=1, big="x"),
        partial_row("t", 1, ["big"], id=1, v=2),
        row("t", 2, id=2, v=1, big="y"),
        partial_row("t", 1, ["big"], id=1, v=3),
        partial_row("t", 2, ["v"], id=2, big="z"),
        deletion("t", 2),
        row("t", 2, id=2, v=5, big="w"),
    )
    assert driver.rows("t") == [(1, 3, "x"), (2, 5, "w")]
    driver.deliver(partial_row("t", 1, ["v", "big"], id=1))
    assert driver.rows("t") == [(1, 3, "x"), (2, 5, "w")]


@pytest.mark.parametrize("unchanged", [["big"], ["v", "big"]])
def test_a_partial_update_without_its_row(driver: Driver, unchanged: list[str]) -> None:
    """It is refused by itself, and ignored with missing_row: ignore."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, v int, big text)")
    fields = {} if "v" in unchanged else {"v": 2}
    slice_ = (row("t", 1, id=1, v=1, big="x"), partial_row("t", 7, unchanged, id=7, **fields))
    driver.park(*slice_, row("t", 2, id=2, v=2, big="y"))
    assert [*driver.parked] == [2]
    assert "and the entry lacks " in driver.parked[2]
    assert "big: copy the table again" in driver.parked[2]
    assert driver.rows("t") == [(1, 1, "x"), (2, 2, "y")]
    driver.close()
    configure(driver, missing_row="ignore").deliver(*slice_)


@pytest.mark.parametrize(
    ("missing", "expected"),
    [("keep", (1, 2, "kept", 5)), ("null", (1, 2, None, None)), ("default", (1, 2, "d", 9))],
)
def test_missing_fields(driver: Driver, missing: str, expected: tuple[object, ...]) -> None:
    """A column without a field keeps its value, or becomes NULL or its default."""
    driver.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int, a text DEFAULT 'd', b int DEFAULT 9)"
    )
    driver.deliver(row("t", 1, id=1, v=1, a="kept", b=5))
    driver.close()
    configure(driver, missing=missing).deliver(row("t", 1, "update", id=1, v=2))
    assert driver.rows("t") == [expected]


def test_missing_fields_of_one_slice(driver: Driver) -> None:
    """Entries with different fields of one row are all applied, and a delete between them."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b int NOT NULL)")
    driver.deliver(
        row("t", 1, id=1, a=1, b=1),
        row("t", 1, "update", id=1, b=2),
        row("t", 1, "update", id=1, a=3),
        row("t", 2, id=2, a=1, b=1),
        deletion("t", 2),
        row("t", 2, id=2, b=7),
    )
    assert driver.rows("t") == [(1, 3, 2), (2, None, 7)]


def test_truncate(driver: Driver) -> None:
    """A TRUNCATE empties its tables where it stands, those with foreign keys at once."""
    driver.database.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    driver.database.execute(
        "CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent (id))"
    )
    driver.deliver(row("parent", 1, id=1), row("child", 1, id=1, parent=1))
    driver.deliver(
        row("parent", 2, id=2),
        truncation_entry("parent"),
        truncation_entry("child", restart_identity=True),
        row("parent", 3, id=3),
    )
    assert (driver.rows("parent"), driver.rows("child")) == ([(3,)], [])
    driver.deliver(row("parent", 4, id=4))
    error = driver.fail(truncation_entry("parent"))
    assert isinstance(error, Rejected)
    assert "cannot truncate a table referenced in a foreign key constraint" in str(error)
    assert driver.rows("parent") == [(3,), (4,)]


def test_a_truncate_that_a_slice_cuts(driver: Driver) -> None:
    """The entries of one TRUNCATE are tried again with those of the next slice."""
    driver.database.execute(
        "CREATE TABLE parent (id int PRIMARY KEY);"
        "CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent (id))"
    )
    messages = [
        row("parent", 1, id=1),
        truncation_entry("parent"),
        truncation_entry("child"),
        row("parent", 2, id=2),
    ]
    cut = driver.write(driver.batch(messages[:2]))
    assert cut.prefix == [1]
    assert isinstance(cut.failures[0][0], SinkUnavailable)
    driver.next_offset = 2
    driver.deliver(*messages[1:])
    assert driver.rows("parent") == [(2,)]


def test_truncate_refused_or_ignored(driver: Driver) -> None:
    """truncate: refuse names the entry, ignore passes it."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    error = configure(driver, truncate="refuse").fail(row("t", 1, id=1), truncation_entry("t"))
    assert isinstance(error, Rejected)
    driver.close()
    configure(driver, truncate="ignore").deliver(truncation_entry("t"))
    assert driver.rows("t") == [(1,)]


def test_truncate_with_several_shards(driver: Driver) -> None:
    """A TRUNCATE is no barrier for other shards, so truncate: apply is refused there."""
    driver.context = replace(CONTEXT, shards=2)
    with pytest.raises(RouteFault, match="truncate: apply cannot be used with parallelism"):
        driver.deliver()
    with pytest.raises(RouteFault, match="evolve: add cannot be used with parallelism"):
        configure(driver, truncate="ignore", evolve="add").deliver()
    configure(driver, truncate="ignore").deliver()


def test_identity_and_generated_columns(driver: Driver) -> None:
    """Identity columns take the source's value once, generated ones are left to the server."""
    driver.database.execute(
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int,"
        " w int GENERATED ALWAYS AS (v * 2) STORED)"
    )
    driver.deliver(row("t", 41, id=41, v=1, w=2), row("t", 42, id=42, v=1, w=2))
    driver.deliver(
        row("t", 41, "update", id=41, v=5, w=10), partial_row("t", 42, ["w"], id=42, v=6)
    )
    assert driver.rows("t") == [(41, 5, 10), (42, 6, 12)]


def test_extra_fields(driver: Driver) -> None:
    """Fields without a column are refused by name, ignored, or kept in a column of their own."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, rest jsonb)")
    entry = Message("public.t", b'{"id":1,"x":1.50,"y":{"z":[]}}', b"1")
    error = driver.fail(entry)
    assert isinstance(error, Rejected)
    assert "public.t has no column x, y" in str(error)
    driver.close()
    configure(driver, extra="ignore").deliver(entry)
    assert driver.rows("t") == [(1, None)]
    driver.close()
    configure(driver, extra={"column": "rest"}).deliver(entry, row("t", 2, id=2))
    found = driver.database.execute("SELECT id, rest::text FROM t ORDER BY id")
    assert found == [(1, '{"x": 1.50, "y": {"z": []}}'), (2, None)]
    driver.deliver(partial_row("t", 1, ["x"], id=1, w=1), row("t", 2, "update", id=2, rest=3))
    found = driver.database.execute("SELECT id, rest::text FROM t ORDER BY id")
    assert found == [(1, '{"w": 1, "x": 1.50}'), (2, '{"rest": 3}')]
    driver.deliver(row("t", 2, "update", id=2))
    assert driver.rows("t")[1] == (2, None)


@pytest.mark.parametrize("kind", ["json", "jsonb"])
@pytest.mark.parametrize("slices", ["one", "each"])
def test_unchanged_fields_without_a_column(driver: Driver, kind: str, slices: str) -> None:
    """An update keeps the fields that it names as unchanged, and replaces the others."""
    driver.database.execute(f"CREATE TABLE t (id int PRIMARY KEY, v int, rest {kind})")
    configure(driver, extra={"column": "rest"})
    changes = [
        row("t", 1, id=1, v=1, x=1, gone=1, big="A", rest="B"),
        row("t", 2, id=2, v=1, big="A"),
        # Each carries another large value.
        partial_row("t", 1, ["big"], id=1, v=2, x=2, rest="C"),
        partial_row("t", 1, ["rest"], id=1, v=3, x=3, big=None),
        partial_row("t", 2, ["big"], id=2, v=2),
        row("t", 3, id=3, v=1, x=1),
        partial_row("t", 3, ["v"], id=3),
        row("t", 4, id=4, v=1, x=1),
        partial_row("t", 4, ["v", "never"], id=4, y=2),
    ]
    for some in [changes] if slices == "one" else [[each] for each in changes]:
        driver.deliver(*some)
    assert driver.rows("t") == [
        (1, 3, {"x": 3, "big": None, "rest": "C"}),
        (2, 2, {"big": "A"}),
        (3, 1, None),
        (4, 1, {"y": 2}),
    ]


@pytest.mark.parametrize("value", ['["big"]', '"big"', "3", "null"])
def test_a_rest_that_is_not_an_object(driver: Driver, value: str) -> None:
    """A value that somebody else wrote to the column for the rest has no fields to keep."""
    driver.database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, rest jsonb); INSERT INTO t VALUES (1, '{value}')"
    )
    configure(driver, extra={"column": "rest"})
    driver.deliver(partial_row("t", 1, ["big"], id=1, x=1))
    assert driver.rows("t") == [(1, {"x": 1})]


@pytest.mark.parametrize("kind", ["json", "jsonb"])
def test_a_rest_without_a_change_is_not_stored_again(driver: Driver, kind: str) -> None:
    """An update of other columns does not store the large values of the rest once more."""
    driver.database.execute(f"CREATE TABLE t (id int PRIMARY KEY, v int, rest {kind})")
    configure(driver, extra={"column": "rest"})
    large = random.Random(1).randbytes(20_000).hex()
    stored = "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = 't'::regclass"
    driver.deliver(row("t", 1, id=1, v=1, x=1, big=large), row("t", 2, id=2, v=1, big=large))
    size = driver.database.execute(stored)

    driver.deliver(
        partial_row("t", 1, ["big"], id=1, v=2, x=1), partial_row("t", 2, ["big"], id=2, v=2)
    )
    assert driver.database.execute(stored) == size
    driver.deliver(Message("public.t", b'{"id":1,"v":2,"x":1.0}', b"1", "update", headers=BIG))
    assert driver.database.execute("SELECT rest->>'x', v FROM t ORDER BY id") == [
        ("1.0", 2),
        (None, 2),
    ]


def test_a_required_column_without_a_field_keeps_no_rest(driver: Driver) -> None:
    """A whole row replaces the rest, also where it can only be an UPDATE."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, own int NOT NULL, rest jsonb)")
    driver.database.execute("INSERT INTO t VALUES (1, 1, '{\"x\": 1}'), (2, 1, '{\"x\": 1}')")
    configure(driver, extra={"column": "rest"})
    driver.deliver(row("t", 1, "update", id=1), row("t", 2, "update", id=2, y=1))
    assert driver.rows("t") == [(1, 1, None), (2, 1, {"y": 1})]


def test_a_rest_that_may_not_be_null(driver: Driver) -> None:
    """A column for the rest that is NOT NULL has an empty object where nothing is left."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, v int, rest json NOT NULL)")
    configure(driver, extra={"column": "rest"})
    driver.deliver(row("t", 1, id=1, v=1), row("t", 2, id=2, v=1, x=1), row("t", 3, id=3, v=1, x=1))
    driver.deliver(row("t", 2, "update", id=2, v=2), partial_row("t", 3, ["v"], id=3))
    assert driver.rows("t") == [(1, 1, {}), (2, 2, {}), (3, 1, {})]


def test_unchanged_fields_of_a_row_that_is_missing(driver: Driver) -> None:
    """A part of a row that is not there is refused, with the fields that it lacks."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, v int, rest jsonb)")
    configure(driver, extra={"column": "rest"})
    error = driver.fail(partial_row("t", 1, ["big"], id=1, v=1, x=1))
    assert isinstance(error, Rejected)
    assert "the row is not in the table, and the entry lacks big:" in str(error)
    driver.close()
    configure(driver, extra={"column": "rest"}, missing_row="ignore")
    driver.deliver(partial_row("t", 1, ["big"], id=1, v=1, x=1))
    assert driver.rows("t") == []


def test_an_unchanged_field_that_gets_a_column(driver: Driver) -> None:
    """Its value stays with the rest until an entry has it, and is in the column then."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, rest jsonb)")
    configure(driver, extra={"column": "rest"}, evolve="add")
    driver.deliver(
        row("t", 1, id=1, x=1, big="A"),
        schema_entry("t", ["id"], id="integer!", big="text"),
        partial_row("t", 1, ["big"], id=1, x=2),
    )
    assert driver.rows("t") == [(1, {"x": 2, "big": "A"}, None)]
    driver.deliver(row("t", 1, "update", id=1, x=3, big="B"))
    assert driver.rows("t") == [(1, {"x": 3}, "B")]


@pytest.mark.parametrize("header", [b"\xff", b"{}", b"[1]", b'["\\u0000"]'])
def test_unchanged_fields_that_cannot_be_read(driver: Driver, header: bytes) -> None:
    """An entry whose header names no fields is refused where they would be lost."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, v int, rest jsonb)")
    driver.deliver(row("t", 1, id=1, v=1))
    entry = replace(row("t", 1, "update", id=1), headers=((UNCHANGED_HEADER, header),))
    driver.deliver(entry)
    driver.close()
    error = configure(driver, extra={"column": "rest"}).fail(entry)
    assert isinstance(error, Rejected)
    assert "the header pg-unchanged is not a JSON array of names" in str(error)


def test_a_column_that_is_added_in_time(driver: Driver) -> None:
    """A column that was added since the table was looked at is found before an entry is refused."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, old int)")
    driver.deliver(row("t", 1, id=1, old=1))
    driver.database.execute("ALTER TABLE t ADD v int")
    driver.deliver(row("t", 1, "update", id=1, old=1, v=5))
    driver.database.execute("ALTER TABLE t DROP old")
    assert "has no column old" in str(driver.fail(row("t", 1, "update", id=1, old=2, v=6)))
    driver.deliver(row("t", 1, "update", id=1, v=6))
    assert driver.rows("t") == [(1, 6)]


def test_a_column_that_becomes_an_identity(driver: Driver) -> None:
    """A table that is altered while the writer runs costs no entry of a slice."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)")
    driver.deliver(row("t", 1, id=1, n=1))
    driver.database.execute("ALTER TABLE t ALTER n ADD GENERATED ALWAYS AS IDENTITY")
    driver.deliver(row("t", 1, "update", id=1, n=5), row("t", 2, id=2, n=2))
    assert driver.rows("t") == [(1, 1), (2, 2)]


def test_deletes_that_are_ignored(driver: Driver) -> None:
    """With delete: ignore rows stay as they were last."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    configure(driver, delete="ignore").deliver(row("t", 1, id=1, v=1), deletion("t", 1))
    assert driver.rows("t") == [(1, 1)]


@pytest.mark.parametrize(("kind", "cleared"), [("boolean", False), ("timestamptz", None)])
def test_deletes_that_mark(driver: Driver, kind: str, cleared: object) -> None:
    """With a mark the row of a delete stays with it, until the row comes again."""
    driver.database.execute(f"CREATE TABLE t (id int PRIMARY KEY, v int, gone {kind})")
    configure(driver, delete={"mark": "gone"}).deliver(
        row("t", 1, id=1, v=1), row("t", 2, id=2, v=2)
    )
    driver.deliver(deletion("t", 1))
    assert driver.database.execute("SELECT gone IS NOT NULL FROM t ORDER BY id")[0] == (True,)
    driver.deliver(row("t", 1, id=1, v=3))
    assert driver.rows("t")[0] == (1, 3, cleared)


HOSTILE = ['Tab"le', "tab.le", "ORDER", "100%s", "%(x)s", "a'b", "{namespace}", "\\", "é ☃"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_identifiers(driver: Driver, name: str) -> None:
    """Names with quotes, dots, capitals and per cent signs are names and nothing else."""
    configure(driver, evolve="create")
    other = f"{name} 2"
    driver.deliver(
        schema_entry(name, [name, "b"], **{name: "integer!", "b": "text!", other: "text"}),
        row(name, [1, "x"], **{name: 1, "b": "x", other: "v"}),
        row(name, [2, "x"], **{name: 2, "b": "x", other: "v"}),
        schema_entry(name, [name, "b"], **{name: "integer!", "b": "text!", f"{name} 3": "text"}),
    )
    driver.deliver(
        deletion(name, [1, "x"]),
        partial_row(name, [2, "x"], [other], **{name: 2, "b": "x", f"{name} 3": "w"}),
    )
    quoted = name.replace('"', '""')
    assert driver.rows(f'"{quoted}"') == [(2, "x", "v", "w")]
    driver.deliver(truncation_entry(name))
    assert driver.rows(f'"{quoted}"') == []


def test_columns_are_added(driver: Driver) -> None:
    """With evolve: add new columns of the source come to the table, and none goes."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    configure(driver, evolve="add").deliver(
        row("t", 1, id=1, v=1),
        schema_entry("t", ["id"], id="integer!", w="numeric(10,2)!", x="integer[]"),
        row("t", 2, id=2, w=1.005, x=[1]),
    )
    assert [tuple(map(str, each)) for each in driver.rows("t")] == [
        ("1", "1", "None", "None"),
        ("2", "None", "1.01", "[1]"),
    ]
    error = driver.fail(schema_entry("t", ["id"], id="integer!", y="public.mood"))
    assert isinstance(error, Rejected)
    assert "the type public.mood of column y is not in this database" in str(error)
    driver.database.execute("CREATE TYPE mood AS ENUM ('glad')")
    driver.deliver(
        schema_entry("t", ["id"], id="integer!", y="public.mood"), row("t", 3, id=3, y="glad")
    )
    assert driver.rows("t")[2][-1] == "glad"


def test_a_column_that_is_gone_at_the_source(driver: Driver) -> None:
    """With evolve a column that is not listed any more stays, and new rows have NULL there."""
    configure(driver, evolve="create").deliver(
        schema_entry("t", ["id"], id="integer!", v="text!"), row("t", 1, id=1, v="a")
    )
    driver.deliver(
        schema_entry("t", ["id"], id="integer!", w="text!"),
        row("t", 1, "update", id=1, w="b"),
        row("t", 2, id=2, w="c"),
    )
    assert driver.rows("t") == [(1, "a", "b"), (2, None, "c")]


@pytest.mark.parametrize(
    "kind", ["int); DROP TABLE keep; --", "int -- x", "int /* */", "int, y int", "text DEFAULT 'x'"]
)
def test_a_type_is_nothing_but_a_type(driver: Driver, kind: str) -> None:
    """SQL in place of a type is refused and has no effect."""
    driver.database.execute("CREATE TABLE keep (id int)")
    error = configure(driver, evolve="create").fail(schema_entry("t", ["id"], id=kind))
    assert isinstance(error, Rejected)
    assert driver.rows("keep") == []


def test_tables_are_created(driver: Driver) -> None:
    """With evolve: create a table comes with its schema, its key and what may not be NULL."""
    configure(driver, evolve="create").deliver(
        replace(schema_entry("t", ["b", "a"], a="integer!", b="text!", c="text!"), namespace="x.t"),
        replace(row("t", ["k", 1], a=1, b="k", c="v"), namespace="x.t"),
    )
    driver.deliver(replace(deletion("t", ["k", 2]), namespace="x.t"))
    assert driver.rows("x.t") == [(1, "k", "v")]
    assert "null value in column" in str(
        driver.fail(replace(row("t", ["k", 2], a=2, b="k", c=None), namespace="x.t"))
    )
    assert "has no key at its source" in str(driver.fail(schema_entry("keyless", [], a="integer")))


@pytest.mark.parametrize("slices", ["one slice", "one each"])
def test_a_table_that_is_emptied_before_it_is_created(driver: Driver, slices: str) -> None:
    """A reader empties a table that it copies again before it describes it."""
    driver.database.execute(
        "CREATE TABLE parent (id int PRIMARY KEY);"
        "CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent (id));"
        "INSERT INTO parent VALUES (1); INSERT INTO child VALUES (1, 1)"
    )
    configure(driver, evolve="create")
    messages = [
        truncation_entry("t"),
        schema_entry("t", ["id"], id="integer!"),
        row("t", 1, id=1),
        truncation_entry("parent"),
        truncation_entry("u", restart_identity=True),
        truncation_entry("child"),
        schema_entry("u", ["id"], id="integer!"),
        row("t", 2, id=2),
        truncation_entry("t"),
        row("t", 3, id=3),
    ]
    parts = [messages] if slices == "one slice" else [[m] for m in messages[:3]] + [messages[3:]]
    for part in parts:
        driver.deliver(*part)
    assert driver.rows("t") == [(3,)]
    assert driver.rows("u") == driver.rows("parent") == driver.rows("child") == []


@pytest.mark.parametrize("evolve", ["none", "add"])
def test_a_missing_table_cannot_be_emptied(driver: Driver, evolve: str) -> None:
    """Where nothing creates it the route stops with what helps."""
    error = configure(driver, evolve=evolve).fail(truncation_entry("t"))
    assert isinstance(error, RouteFault)
    assert "table public.t does not exist" in str(error)


def test_a_created_table_is_rolled_back_with_its_slice(driver: Driver) -> None:
    """A bad row behind a new table leaves the table and the rows before it."""
    configure(driver, evolve="create").park(
        schema_entry("t", ["id"], id="integer!", v="integer"),
        row("t", 1, id=1, v=1),
        row("t", 2, id=2, v="bad"),
        schema_entry("t", ["id"], id="integer!", v="integer", w="integer"),
        row("t", 3, id=3, v=3, w=3),
    )
    assert [*driver.parked] == [3]
    assert driver.rows("t") == [(1, 1, None), (3, 3, 3)]


def test_schema_entries_without_evolve(driver: Driver) -> None:
    """Without evolve entries with columns change nothing."""
    driver.deliver(schema_entry("nowhere", ["id"], id="integer!"))
    assert driver.stored() == [(0, 1)]


def test_a_table_that_is_none_for_append(driver: Driver) -> None:
    """A table without the columns of entries is refused, with the statement that makes one."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, data jsonb)")
    with pytest.raises(RouteFault, match=r"no column log_id, .*which mode: append needs") as found:
        configure(driver, mode="append", table="t").deliver()
    driver.close()
    driver.database.execute(f"DROP TABLE t; {str(found.value).partition('by')[2]}")
    driver.deliver(row("t", 1, id=1))


def test_append(driver: Driver) -> None:
    """Every entry is a row by its offset, and comes there once."""
    configure(driver, mode="append", table="entries", evolve="create")
    messages = [
        row("t", 1, id=1),
        deletion("t", 1),
        replace(row("t", 2, id=2), headers=(("a", b"1"),)),
    ]
    batch = driver.batch(messages)
    assert driver.write(batch).complete
    driver.close()
    assert driver.write(replace(batch, generation=1)).complete
    found = driver.database.execute(
        'SELECT log_id, "offset", part, namespace, key, op, data::text, headers::text FROM entries'
    )
    assert found == [
        ("log-1", 1, 0, "public.t", "1", "insert", '{"id": 1}', "[]"),
        ("log-1", 2, 0, "public.t", "1", "delete", None, "[]"),
        ("log-1", 3, 0, "public.t", "2", "insert", '{"id": 2}', '[["a", "1"]]'),
    ]
    driver.park(Message("x", b"not json"), row("t", 1, id=1))
    assert [*driver.parked] == [4]


def test_append_keeps_all_rows_of_an_entry(driver: Driver) -> None:
    """Several rows that a step made of one entry are all there."""
    configure(driver, mode="append", table="entries", evolve="create")
    batch = driver.batch([row("t", n, id=n) for n in range(3)])
    columns = batch.batch.columns
    twice = batch.batch.from_arrays(
        [batch.batch.column("offset").take([0, 0, 2]), *columns[1:]], schema=batch.batch.schema
    )
    assert driver.write(replace(batch, batch=twice)).complete
    found = driver.database.execute(
        "SELECT \"offset\", part, data->'id' FROM entries ORDER BY 1, 2"
    )
    assert found == [(1, 0, 0), (1, 1, 1), (3, 0, 2)]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"[1]", "not a JSON object"),
        (b"nonsense", "not a JSON object"),
        (b'{"v": 1}', "lacks id, a part of the key"),
        (b'{"id": 1, "v": "\\u0000"}', "unsupported Unicode escape sequence"),
        (b'{"id": 1, "v": "\\ud800"}', "invalid input syntax for type json"),
        (b'{"id": null, "v": "x"}', "is not that of its data"),
        (b'{"id": 1, "v": "\xff"}', "not a JSON object"),
    ],
)
def test_bad_data(driver: Driver, data: bytes, problem: str) -> None:
    """Data that is not a row is refused with its reason, and by itself."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    driver.park(row("t", 5, id=5, v="a"), Message("public.t", data, b"1"), row("t", 6, id=6, v="b"))
    assert [*driver.parked] == [2]
    assert problem in driver.parked[2]
    assert len(driver.rows("t")) == 2


@pytest.mark.parametrize("key", [None, b"\xff", b"a\0b"])
def test_bad_keys(driver: Driver, key: bytes | None) -> None:
    """A delete whose key names no row is refused."""
    driver.database.execute("CREATE TABLE t (id text PRIMARY KEY)")
    driver.park(row("t", 5, id=5), Message("public.t", None, key, "delete"), row("t", 6, id=6))
    assert [*driver.parked] == [2]
    assert driver.rows("t") == [("5",), ("6",)]


def test_data_of_many_bytes(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows beyond the limit of a statement come by several statements."""
    monkeypatch.setattr("transporter_adaptors.postgres_writer.statements.LARGEST", 1000)
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    driver.deliver(*(row("t", n, id=n, v="x" * (n * 37 % 1200)) for n in range(100)))
    found = driver.database.execute("SELECT count(*), sum(length(v)) FROM t")
    assert found == [(100, sum(n * 37 % 1200 for n in range(100)))]


def test_tables_by_namespace(driver: Driver) -> None:
    """Tables may be named by a template, and by namespace."""
    driver.database.execute("CREATE SCHEMA copy")
    driver.database.execute('CREATE TABLE copy."public.t" (id int PRIMARY KEY)')
    driver.database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    configure(driver, table="copy.{namespace}", tables={"public.u": "other"})
    driver.deliver(row("t", 1, id=1), row("u", 2, id=2))
    assert (driver.rows('copy."public.t"'), driver.rows("other")) == ([(1,)], [(2,)])


def test_a_key_by_a_unique_index(driver: Driver) -> None:
    """Columns of a unique index may be the key, and the others are updated."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, email text UNIQUE, v int)")
    configure(driver, key=["email"]).deliver(row("t", "a", id=1, email="a", v=1))
    driver.deliver(row("t", "a", id=2, email="a", v=2))
    driver.deliver(deletion("t", "b"))
    assert driver.rows("t") == [(2, "a", 2)]


def test_partitioned_tables(driver: Driver) -> None:
    """A partitioned table is one target."""
    driver.database.execute(
        "CREATE TABLE t (id int, at date, v int, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')"
    )
    driver.deliver(row("t", [1, "2024-05-05"], id=1, at="2024-05-05", v=1))
    driver.deliver(row("t", [1, "2024-05-05"], "update", id=1, at="2024-05-05", v=2))
    error = driver.fail(row("t", [2, "1999-05-05"], id=2, at="1999-05-05", v=1))
    assert "no partition of relation" in str(error)
    driver.deliver(deletion("t", [1, "2024-05-05"]))
    assert driver.rows("t") == []


def test_values_are_those_of_the_entry(driver: Driver) -> None:
    """Numbers keep their digits, and JSON its text."""
    driver.database.execute("CREATE TABLE t (id int PRIMARY KEY, n numeric, j json, b int8)")
    text = b'{"id":1,"n":12345678901234567890.10,"j":{"a":1,"a":2.0},"b":9223372036854775807}'
    driver.deliver(Message("public.t", text, b"1"))
    found = driver.database.execute("SELECT row_to_json(t)::text FROM t")
    assert found[0][0].encode() == text
    assert json.loads(found[0][0])


def test_append_needs_a_key(driver: Driver) -> None:
    """A table in which an entry could come twice is refused. A partition key may be in the key."""
    ddl = append_ddl(TableName("t"))
    key = 'PRIMARY KEY (log_id, "offset", part)'
    driver.database.execute(ddl.replace(f",\n    {key}", ""))
    configure(driver, mode="append", table="t")
    with pytest.raises(RouteFault, match="so an entry could come twice"):
        driver.deliver(row("x", 1, id=1))
    wide = ddl.replace(key, f"{key[:-1]}, ts)").replace("TABLE t", "TABLE u")
    driver.database.execute(wide.replace('TABLE "t"', 'TABLE "u"'))
    configure(driver, mode="append", table="u")
    batch = driver.batch([row("x", 1, id=1)])
    assert driver.write(batch).complete
    assert driver.write(replace(batch, generation=1)).complete
    assert driver.database.execute("SELECT count(*) FROM u") == [(1,)]


def test_append_hides_no_entry(driver: Driver) -> None:
    """A conflict in another unique column rejects the entry, which would be lost otherwise."""
    driver.database.execute(append_ddl(TableName("t")))
    driver.database.execute("ALTER TABLE t ADD UNIQUE (key)")
    configure(driver, mode="append", table="t").park(row("x", 1, id=1), row("x", 1, id=2))
    assert [*driver.parked] == [2]
