"""Groups of changes have the effect of the changes one by one."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transporter_adaptors.postgres.table import TableName
from transporter_adaptors.postgres_writer.catalog import choose_key, follow_cascades, rank_tables
from transporter_adaptors.postgres_writer.changes import (
    DELETE,
    NOTHING,
    SCHEMA,
    TRUNCATE,
    UPDATE,
    UPSERT,
    Change,
    read_changes,
    unit_starts,
)
from transporter_adaptors.postgres_writer.config import Mark, PostgresWriterConfig, Rest
from transporter_adaptors.postgres_writer.failures import BadEntry
from transporter_adaptors.postgres_writer.folding import Group, group_folded, group_in_order
from transporter_adaptors.postgres_writer.rows import fit_rows
from transporter_adaptors.postgres_writer.table import Column, Table

from transporter.errors import RouteFault
from transporter.message import Message
from transporter.testing import entries

CONFIG = PostgresWriterConfig(dsn="dbname=x")


def table(
    oid: int = 1, key: tuple[str, ...] = ("id",), kind: str = "integer", **more: Any
) -> Table:
    """Return a table with three columns besides its key, one of which is required."""
    names = (*key, "a", "b", "c")
    columns = {
        name: Column(
            name,
            kind if name in key else "text",
            not_null=name in {*key, "c"},
            has_default=False,
            is_always_identity=False,
            is_generated=False,
        )
        for name in names
    }
    return Table(oid, TableName(f"t{oid}", "public"), columns, key, len(key) > 1, **more)


Rows = dict[tuple[int, str], dict[str, Any]]


def apply(rows: Rows, missing: list[str], kind: str, where: Table, change: Change) -> None:
    """Apply one change as the server would. A part of a row that is not there is *missing*."""
    place = where.oid, (change.key or b"").decode()
    if kind == DELETE:
        rows.pop(place, None)
        return
    data = json.loads(change.data)
    if kind == UPDATE and place not in rows:
        missing.append(place[1])
        return
    rows[place] = {**dict.fromkeys("abc"), **rows.get(place, {}), **data}


def run(groups: list[Group]) -> tuple[Rows, list[str]]:
    """Return the rows after *groups*, each of which has a key once."""
    rows: Rows = {}
    missing: list[str] = []
    for group in groups:
        keys = [change.key for change in group.changes]
        assert len({*keys}) == len(keys)
        for change in group.changes:
            apply(rows, missing, group.shape.kind, group.table, change)
    return rows, sorted({*missing})


@st.composite
def changes(draw: st.DrawFn) -> list[Change]:
    """Draw changes of few keys of two tables, whole rows and parts of rows."""
    drawn = draw(
        st.lists(
            st.tuples(
                st.sampled_from("xy"),
                st.sampled_from([UPSERT, UPSERT, UPDATE, DELETE]),
                st.integers(1, 4),
                st.sets(st.sampled_from("abc")),
            ),
            max_size=30,
        )
    )
    found = []
    for offset, (namespace, kind, key, names) in enumerate(drawn):
        fields = {"id": key, **{name: f"{name}{offset}" for name in sorted(names)}}
        data = b"" if kind == DELETE else json.dumps(fields).encode()
        names_ = () if kind == DELETE else tuple(fields)
        found.append(Change(offset, namespace, kind, str(key).encode(), data, names_))
    return found


@given(changes())
def test_folded_is_one_by_one(drawn: list[Change]) -> None:
    """The groups of the last changes leave the same rows as all changes in order."""
    tables = {"x": table(1), "y": table(2)}
    rows = fit_rows(drawn, tables, CONFIG)
    expected: Rows = {}
    missing: list[str] = []
    for row in rows:
        apply(expected, missing, row.shape.kind, row.table, row.change)

    in_order = run([*group_in_order(rows)])
    folded = run([*group_folded(rows, lambda each: each.oid)])

    assert in_order == (expected, sorted({*missing}))
    if not missing:
        assert folded == (expected, [])
    else:
        # A part of a row that is not there is either found or overwritten by the end of the run.
        assert {*folded[1]} <= {*missing}


def test_tables_have_an_order() -> None:
    """Deletes go from children to parents, and then upserts from parents to children."""
    drawn = [
        Change(1, "x", UPSERT, b"1", b'{"id":1,"c":1}', ("id", "c")),
        Change(2, "x", DELETE, b"2", b""),
        Change(3, "y", UPSERT, b"1", b'{"id":1,"c":1}', ("id", "c")),
        Change(4, "y", DELETE, b"2", b""),
    ]
    rows = fit_rows(drawn, {"x": table(1), "y": table(2)}, CONFIG)
    found = [(g.shape.kind, g.table.oid) for g in group_folded(rows, lambda each: -each.oid)]
    assert found == [(DELETE, 1), (DELETE, 2), (UPSERT, 2), (UPSERT, 1)]


@pytest.mark.parametrize(
    ("parents", "expected"),
    [
        ([(1, 2), (2, 3)], [3, 2, 1]),
        ([(3, 1)], [1, 3]),
        ([(1, 2), (2, 1)], None),
        ([(1, 2), (2, 3), (3, 1)], None),
    ],
)
def test_ranks(parents: list[tuple[int, int]], expected: list[int] | None) -> None:
    """Parents come before their children, and cycles have some order."""
    ranks = rank_tables([1, 2, 3], parents)
    assert sorted(ranks.values()) == [0, 1, 2]
    if expected is not None:
        assert sorted(expected, key=ranks.__getitem__) == expected


def test_cascades_reach_children_of_children() -> None:
    """The tables that a delete changes, also where foreign keys form a cycle."""
    assert follow_cascades([(1, 2), (2, 3), (3, 2), (5, 5)]) == {
        1: {2, 3},
        2: {2, 3},
        3: {2, 3},
        5: {5},
    }


def test_numbers_of_one_value_are_one_key() -> None:
    """Keys of numbers are compared as such, alone and in arrays."""
    alone, both = table(kind="numeric"), table(key=("id", "n"), kind="numeric")
    assert alone.identity(b"1.0") == alone.identity(b"1.00") != alone.identity(b"2")
    assert alone.identity(b"NaN") == alone.identity(b"NaN")
    assert both.identity(b"[1.0, 2]") == both.identity(b"[1,2.000]") != both.identity(b"[2, 1]")
    assert table(kind="text").identity(b"1.0") != table(kind="text").identity(b"1.00")


@pytest.mark.parametrize("key", [b"[1]", b"{}", b"x", b"[1,2,3]", b"\xff", b'["a\0",1]', b"[1,NaN"])
def test_keys_that_are_none(key: bytes) -> None:
    """A key of two columns is an array of two values."""
    with pytest.raises(ValueError, match="must be a JSON array of the values of id, n"):
        table(key=("id", "n")).key_values(key)


def test_the_values_of_a_key() -> None:
    """Numbers keep their digits, and nested values stay JSON."""
    values = table(key=("id", "n")).key_values(
        b'[12345678901234567890.10, {"a": [1.0, null, "x"]}]'
    )
    assert values == ["12345678901234567890.10", '{"a":[1.0,null,"x"]}']
    assert table().key_values('é"'.encode()) == ['"\\u00e9\\""']


def test_rows_that_do_not_fit() -> None:
    """The first change that does not fit is named by its place."""
    good = Change(1, "x", UPSERT, b"1", b'{"id":1,"c":1}', ("id", "c"))
    for bad in (
        good._replace(fields=("id", "c", "other")),
        good._replace(fields=("c",)),
        good._replace(problem="is wrong"),
        Change(1, "x", DELETE, b"\xff", b""),
    ):
        with pytest.raises(BadEntry) as found:
            fit_rows([good, bad, bad], {"x": table()}, CONFIG)
        assert found.value.place == 1


def test_one_key_of_two_rows() -> None:
    """Entries with one key have one value in the columns of the key. The other one is named."""
    good = Change(1, "x", UPSERT, b"1", b'{"id":1,"c":1}', ("id", "c"))
    spelled = good._replace(data=b'{"id":"01","c":1}')
    bad = good._replace(data=b'{"id":2,"c":1}')
    rows = fit_rows([good, spelled, bad], {"x": table()}, CONFIG)
    with pytest.raises(BadEntry, match="entries with one key are of different rows") as found:
        [*group_folded(rows, lambda each: each.oid)]
    assert found.value.place == 2


def kinds_of(drawn: list[Change], where: Table, config: PostgresWriterConfig = CONFIG) -> list[str]:
    """Return the kind and the keys of each group of *drawn*."""
    rows = fit_rows(drawn, {"x": where}, config)
    return [
        " ".join([group.shape.kind, *((each.key or b"-").decode() for each in group.changes)])
        for group in group_folded(rows, lambda each: each.oid)
    ]


UUID = "0000000a-0000-0000-0000-00000000000b"


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("integer", "1", "01"),
        ("bigint", "31", "0x1f"),
        ("uuid", UUID, UUID.upper()),
        ("uuid", UUID, f"{{{UUID}}}"),
    ],
)
def test_texts_of_one_key(kind: str, first: str, second: str) -> None:
    """A delete replaces the upsert of its row, also if its key has another text."""
    data = json.dumps({"id": first, "c": 1}).encode()
    upsert = Change(1, "x", UPSERT, first.encode(), data, ("id", "c"))
    delete = Change(2, "x", DELETE, second.encode(), b"")
    assert kinds_of([upsert, delete], table(kind=kind)) == [f"delete {second}"]


def test_arrays_of_one_key() -> None:
    """Blanks in the array of a key, and the spelling of its parts, make no difference."""
    upsert = Change(1, "x", UPSERT, b"[1, 2]", b'{"id":1,"n":2,"c":1}', ("id", "n", "c"))
    delete = Change(2, "x", DELETE, b'[1,"02"]', b"")
    assert kinds_of([upsert, delete], table(key=("id", "n"))) == ['delete [1,"02"]']


def test_keys_that_only_the_server_compares() -> None:
    """Where two texts may be one key, changes of different shapes keep their order."""
    fields = ("id", "c")
    first = Change(1, "x", UPSERT, b"P1D", b'{"id":"P1D","c":1}', fields)
    second = Change(2, "x", UPSERT, b"PT1H", b'{"id":"PT1H","c":1}', fields)
    delete = Change(3, "x", DELETE, b"PT24H", b"")
    update = Change(4, "x", UPDATE, b"PT1H", b'{"id":"PT1H","a":1}', ("id", "a"))
    again = update._replace(key=b"PT60M")
    drawn = [first, second, delete, update, again]
    expected = ["upsert P1D PT1H", "delete PT24H", "update PT1H", "update PT60M"]
    assert kinds_of(drawn, table(kind="interval")) == expected
    rows = fit_rows(drawn, {"x": table(kind="interval")}, CONFIG)
    assert [len(group.changes) for group in group_in_order(rows)] == [2, 1, 1, 1]


def test_a_delete_after_a_row_without_a_key() -> None:
    """An entry without a key may be of any row, so later deletes come after it."""
    upsert = Change(1, "x", UPSERT, None, b'{"id":1,"c":1}', ("id", "c"))
    delete = Change(2, "x", DELETE, b"1", b"")
    assert kinds_of([upsert, delete], table()) == ["upsert -", "delete 1"]
    assert kinds_of([delete, upsert], table()) == ["delete 1", "upsert -"]


def test_keys_that_are_nested_too_deep() -> None:
    """Values that cannot be compared are the fault of their entry."""
    deep = b"[" * 900 + b"]" * 900
    first = Change(1, "x", UPSERT, b"1", b'{"id":1,"c":1}', ("id", "c"))
    for bad in (
        first._replace(data=b'{"id":%s,"c":1}' % deep),
        Change(2, "x", DELETE, b"\xff" + deep, b""),
    ):
        with pytest.raises(BadEntry) as found:
            kinds_of([first, bad], table())
        assert found.value.place == 1
    where = Table(1, TableName("t"), table(kind="jsonb").columns, ("id",), is_array_key=True)
    with pytest.raises(BadEntry, match="nested too deep"):
        kinds_of([Change(1, "x", DELETE, b"[%s]" % deep, b"")], where)


def test_marks_keep_the_state_before_them() -> None:
    """A delete that marks its row leaves the other columns as the change before it made them."""
    columns = table().columns
    columns["gone"] = replace(columns["a"], name="gone", type="boolean")
    where = Table(1, TableName("t"), columns, ("id",))
    config = PostgresWriterConfig(dsn="dbname=x", delete=Mark(mark="gone"))
    upsert = Change(1, "x", UPSERT, b"1", b'{"id":1,"c":1}', ("id", "c"))
    delete = Change(2, "x", DELETE, b"1", b"")
    assert kinds_of([upsert, delete], where, config) == ["upsert 1", "delete 1"]


@pytest.mark.parametrize("missing", ["keep", "null", "default"])
def test_identity_columns_keep_deletes(missing: str) -> None:
    """Only a new row gets a value for an identity column, so the delete before it stays."""
    columns = table().columns
    columns["n"] = replace(columns["a"], name="n", type="integer", is_always_identity=True)
    where = Table(1, TableName("t"), columns, ("id",))
    config = PostgresWriterConfig.model_validate({"dsn": "dbname=x", "missing": missing})
    data = b'{"id":1,"a":1,"b":1,"c":1,"n":5}'
    upsert = Change(2, "x", UPSERT, b"1", data, ("id", "a", "b", "c", "n"))
    delete = Change(1, "x", DELETE, b"1", b"")
    assert kinds_of([delete, upsert], where, config) == ["delete 1", "upsert 1"]


REST = PostgresWriterConfig(dsn="dbname=x", extra=Rest(column="rest"))


@st.composite
def parts_of_rows(draw: st.DrawFn) -> list[Change]:
    """Draw changes of two keys whose fields have no column, each an update or a whole row."""
    names = st.sets(st.sampled_from(["a", "x", "y", "z"]))
    found = []
    for offset in range(draw(st.integers(0, 12))):
        key, kind = draw(st.integers(1, 2)), draw(st.sampled_from([UPSERT, UPDATE, UPDATE]))
        fields = {"id": key, "c": "c", **{name: f"{name}{offset}" for name in draw(names)}}
        unchanged = tuple(draw(names)) if kind == UPDATE else ()
        data, given_ = json.dumps(fields).encode(), tuple(fields)
        found.append(Change(offset, "x", kind, b"%d" % key, data, given_, "", unchanged))
    return found


def apply_rest(rows: dict[bytes | None, dict[str, Any]], change: Change) -> None:
    """Apply the fields of *change* that have no column."""
    before, data = rows.get(change.key, {}), json.loads(change.data)
    kept = {name: before[name] for name in change.unchanged if name in before}
    rows[change.key] = kept | {name: data[name] for name in "xyz" if name in data}


@given(parts_of_rows())
def test_folded_parts_keep_what_is_unchanged(drawn: list[Change]) -> None:
    """Of two updates the last one alone is applied only if it keeps nothing of the first one."""
    columns = table().columns
    columns["rest"] = replace(columns["a"], name="rest", type="jsonb")
    where = Table(1, TableName("t"), columns, ("id",))
    before = {b"1": {"x": 0, "y": 0, "z": 0}, b"2": {"x": 0}}
    expected: dict[bytes | None, dict[str, Any]] = {**before}
    for change in drawn:
        apply_rest(expected, change)

    rows = fit_rows(drawn, {"x": where}, REST)
    for groups in (group_folded(rows, lambda each: each.oid), group_in_order(rows)):
        found: dict[bytes | None, dict[str, Any]] = {**before}
        for group in groups:
            for change in group.changes:
                assert {*group.shape.kept} == {*change.unchanged} - {*change.fields}
                apply_rest(found, change)
        assert found == expected


def test_updates_that_keep_the_same_are_folded() -> None:
    """Only the last of several updates is applied if all leave the same fields unchanged."""
    columns = table().columns
    columns["rest"] = replace(columns["a"], name="rest", type="jsonb")
    where = Table(1, TableName("t"), columns, ("id",))
    data, fields = b'{"id":1,"x":1}', ("id", "x")
    updates = [Change(n, "x", UPDATE, b"1", data, fields, "", ("z",)) for n in range(3)]
    (group,) = group_folded(fit_rows(updates, {"x": where}, REST), lambda each: each.oid)
    assert [each.offset for each in group.changes] == [2]


def test_the_key_of_a_table() -> None:
    """It is the primary key, or the columns of a unique index in the order of the setting."""
    name, keys = TableName("t"), [(True, ["a"]), (False, ["b", "c"])]
    assert choose_key(name, keys, ()) == ("a",)
    assert choose_key(name, keys, ("c", "b")) == ("c", "b")
    with pytest.raises(RouteFault, match="no unique index on b"):
        choose_key(name, keys, ("b",))
    with pytest.raises(RouteFault, match="no primary key"):
        choose_key(name, keys[1:], ())


def test_the_kinds_of_entries() -> None:
    """What an entry does follows from its op, its data and its headers."""
    schema = "application/vnd.transporter.schema+json"
    messages = [
        Message("x", b'{"id":1}', b"1"),
        Message("x", b'{"id":1}', b"1", "update", headers=(("pg-unchanged", b'["a"]'),)),
        Message("x", b'{"id":1}', b"1", "delete"),
        Message("x", None, b"1", "update"),
        Message("x", b'{"command":"truncate"}', None, "command"),
        Message("x", b"{}", None, "command", content_type=schema),
        Message("x", None, None, "skip"),
        Message("x", b'{"command":"dance"}', None, "command"),
        Message("x", b"\xff", b"1"),
        Message("x", None, None, "delete"),
    ]
    found = read_changes(entries(messages, first=5))
    kinds = [UPSERT, UPDATE, DELETE, DELETE, TRUNCATE, SCHEMA, NOTHING, TRUNCATE, UPSERT, DELETE]
    assert [each.kind for each in found] == kinds
    assert [bool(each.problem) for each in found] == [False] * 7 + [True] * 3
    assert [each.unchanged for each in found] == [(), ("a",)] + [()] * 8
    assert [each.offset for each in found] == [*range(5, 15)]


def test_changes_of_one_entry_are_one_unit() -> None:
    """Several rows that a step made of one entry stay together."""
    assert unit_starts([3, 3, 4, 7, 7, 7]) == [0, 2, 3, 6]
    assert unit_starts([]) == [0]


def test_deletes_that_are_ignored_hide_nothing() -> None:
    """With delete: ignore the row before a delete stays the last one."""
    config = PostgresWriterConfig(dsn="dbname=x", delete="ignore")
    first = Change(1, "x", UPSERT, b"7", b'{"id":7,"c":1}', ("id", "c"))
    rows = fit_rows([first, Change(2, "x", DELETE, b"7", b"")], {"x": table()}, config)
    kinds: defaultdict[str, int] = defaultdict(int)
    for group in group_folded(rows, lambda each: each.oid):
        kinds[group.shape.kind] += len(group.changes)
    assert kinds == {UPSERT: 1}
