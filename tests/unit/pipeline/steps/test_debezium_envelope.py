"""``debezium-envelope``: the change events of every kind of entry, and what has none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_tools import LOGGED_AT, batch_of, rows_of
from transporter_adaptors.postgres_cdc import entries as reader

from transporter.errors import StepFailed
from transporter.message import JSON, OPS, Message
from transporter.pipeline.steps.chain import compile_steps
from transporter.pipeline.steps.debezium_envelope import OLD_HEADER, UNCHANGED_HEADER
from transporter.pipeline.steps.step import StepConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.pipeline.steps.chain import Steps

    Compile = Callable[..., Steps]

NAMES = {"name": "shop", "db": "sales"}
PLACE = f"{0x16E9028:016X}/{0x16E8F58:016X}/0"
AT = 1_700_000_000_123_456
ROW = Message("public.items", b'{"id":1,"price":1.10}', b"1", "insert", "sync", AT, PLACE)
DELETE = replace(ROW, data=None, content_type=None, op="delete")
TRUNCATE = replace(
    ROW,
    data=b'{"command": "truncate", "cascade": false, "restart_identity": false}',
    key=None,
    op="command",
)
SOURCE = (
    b'{"version":"transporter","connector":"postgresql","name":"shop","ts_ms":1700000000123,'
    b'"snapshot":"false","db":"sales","sequence":"[\\"24023080\\",\\"24022872\\"]",'
    b'"ts_us":1700000000123456,"ts_ns":1700000000123456000,"schema":"public","table":"items",'
    b'"txId":null,"lsn":24022872,"xmin":null}'
)
TIMES = b'"ts_ms":5000,"ts_us":5000000,"ts_ns":5000000000}'


def step(**given: Any) -> dict[str, dict[str, Any]]:
    """Return the step with these settings besides names, and the key ``id``."""
    return {"debezium-envelope": {**NAMES, "key": ["id"], **given}}


def event(before: bytes, after: bytes, op: bytes, source: bytes = SOURCE) -> bytes:
    """Return the data of an event."""
    head = b'{"before":%b,"after":%b,"source":%b,"transaction":null,"op":"%b",'
    return head % (before, after, source, op) + TIMES


def turned(steps: Compile, message: Message, **given: Any) -> list[Message]:
    """Return the messages that *message* becomes, all of them with its offset."""
    rows = rows_of(steps(step(**given)).apply(batch_of(message)))
    assert {(row.offset, row.logged_at) for row in rows} == {(100, LOGGED_AT)}
    return [row.message for row in rows]


def one(steps: Compile, message: Message, **given: Any) -> Message:
    """Return the only message that *message* becomes."""
    (found,) = turned(steps, message, **given)
    return found


def test_an_insert_is_a_create(steps: Compile) -> None:
    """The row is ``after``, and the key an object, with the bytes of the row."""
    made = one(steps, ROW)
    assert made == replace(ROW, key=b'{"id":1}', data=event(b"null", ROW.data or b"", b"c"))
    assert list(json.loads(made.data or b"")) == [
        "before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"
    ]  # fmt: skip


def test_a_copied_row_is_a_read(steps: Compile) -> None:
    """A row of the copy has the op ``r``, is of a snapshot, and has no place in the stream."""
    made = one(steps, replace(ROW, phase="copy", source_id="copy/16384/2/17"))
    found = json.loads(made.data or b"")
    assert (found["op"], found["source"]["snapshot"]) == ("r", "true")
    assert (found["source"]["lsn"], found["source"]["sequence"]) == (None, "[null,null]")
    assert found["source"]["ts_us"] == AT


@pytest.mark.parametrize("old", [None, b'{"id": 1, "price": 1.00}'])
def test_an_update_has_the_old_row_if_it_is_known(steps: Compile, old: bytes | None) -> None:
    """``before`` is the header ``pg-old``, which is no header any more; others stay."""
    more = (("trace", b"x"), ("pg-order", b"3"))
    headers = more if old is None else (("pg-old", old), *more)
    made = one(steps, replace(ROW, op="update", headers=headers))
    assert made.data == event(old or b"null", ROW.data or b"", b"u")
    assert made.headers == more


def test_a_deletion_is_an_event_and_a_tombstone(steps: Compile) -> None:
    """Both have the key as the old row has it, and the offset of the entry."""
    found = turned(steps, replace(DELETE, headers=(("pg-old", b'{"id": 1}'), ("trace", b"x"))))
    same = {"key": b'{"id":1}', "headers": (("trace", b"x"),)}
    assert found == [
        replace(DELETE, data=event(b'{"id": 1}', b"null", b"d"), content_type=JSON, **same),
        replace(DELETE, **same),
    ]


def test_tombstones_can_be_left_out(steps: Compile) -> None:
    """Without them, and without a key, a deletion is one event."""
    old = replace(DELETE, headers=(("pg-old", b'{"id":1}'),))
    assert one(steps, old, tombstones=False).key == b'{"id":1}'
    assert one(steps, replace(old, key=None), keys={"public.items": []}).key is None


def test_a_key_may_stay_as_it_is(steps: Compile) -> None:
    """With ``value`` the text of the key stays, and no name of a column is needed."""
    value = {"key": None, "key_as": "value"}
    assert one(steps, ROW, **value).key == b"1"
    made, tombstone = turned(steps, DELETE, **value)
    assert (made.key, made.data) == (b"1", event(b"null", b"null", b"d"))
    assert (tombstone.key, tombstone.data) == (b"1", None)


def test_a_key_of_several_columns(steps: Compile) -> None:
    """Its JSON array gives the values of a deletion whose old row is not known."""
    keys = {"public.items": ["order", "line"]}
    row = b'{"line":2,"order":"\\u00e9","x":1}'
    assert one(steps, replace(ROW, data=row), keys=keys).key == b'{"order":"\\u00e9","line":2}'
    made, tombstone = turned(steps, replace(DELETE, key=b'["\\u00e9", 2]'), keys=keys)
    assert made.data == event(b'{"order":"\\u00e9","line":2}', b"null", b"d")
    assert made.key == tombstone.key == b'{"order":"\\u00e9","line":2}'
    made, _ = turned(
        steps, replace(DELETE, key=b"[1, 2]", headers=(("pg-old", b'{"line":4,"order":3}'),)),
        keys=keys,
    )  # fmt: skip
    assert made.key == b'{"order":3,"line":4}'


def test_a_truncation_has_neither_key_nor_rows(steps: Compile) -> None:
    """Its event has the op ``t``, and no tombstone follows."""
    made = one(steps, TRUNCATE)
    assert made == replace(TRUNCATE, data=event(b"null", b"null", b"t"))


def test_a_change_without_a_time_has_that_of_the_log(steps: Compile) -> None:
    """The entry that empties a table before it is copied again has no time of its own."""
    made = one(steps, replace(TRUNCATE, timestamp=0, source_id="copy/16384/2/begin"))
    source = json.loads(made.data or b"")["source"]
    assert (source["ts_ms"], source["ts_us"], source["ts_ns"]) == (5000, LOGGED_AT, 5 * 10**9)
    assert source["snapshot"] == "false"


def test_a_transaction_id_is_that_of_the_header(steps: Compile) -> None:
    """``txId`` is a number, in changes and truncations."""
    headers = (("pg-xid", b"4294967295"),)
    for message in (ROW, TRUNCATE):
        made = one(steps, replace(message, headers=headers))
        assert json.loads(made.data or b"")["source"]["txId"] == 4294967295
        assert made.headers == ()


@pytest.mark.parametrize(
    ("row", "names", "after"),
    [
        (b'{"id":1}', ["a"], b'{"id":1,"a":"?"}'),
        (b'{"id":1 } \n', ["a", 'b"\xe9'], '{"id":1,"a":"?","b\\"\xe9":"?"}'.encode()),
        (b'{"id":1,"a":2}', ["a", "b"], b'{"id":1,"a":2,"b":"?"}'),
        (b'{"id":1,"\\u0061":2}', ["a"], b'{"id":1,"\\u0061":2}'),
        (b'{"id":1}', [], b'{"id":1}'),
    ],
)
def test_columns_that_were_not_sent_have_the_placeholder(
    steps: Compile, row: bytes, names: list[str], after: bytes
) -> None:
    """Columns of the header ``pg-unchanged`` stand behind those of the row, if it lacks them."""
    headers = (("pg-unchanged", json.dumps(names, ensure_ascii=False).encode()),)
    made = one(steps, replace(ROW, op="update", data=row, headers=headers), unavailable="?")
    assert made.data == event(b"null", after, b"u")
    assert made.headers == ()


def test_a_row_without_members_gets_the_placeholder(steps: Compile) -> None:
    """An empty object becomes one of the placeholder alone, by default Debezium's."""
    row = replace(ROW, op="update", data=b"{ }", headers=(("pg-unchanged", b'["a"]'),))
    made = one(steps, row, key=None, key_as="value")
    assert made.data == event(b"null", b'{"a":"__debezium_unavailable_value"}', b"u")


@pytest.mark.parametrize(
    ("given", "namespace", "names"),
    [
        ({}, "public.items", ("public", "items")),
        ({}, "a.b.c", ("a", "b.c")),
        ({}, 'é."x\n', ("é", '"x\n')),
        ({"template": "{table}@{schema}"}, "a@b@c", ("b@c", "a")),
        ({"template": "pg.{table}", "schema": "public"}, "pg.x.y", ("public", "x.y")),
    ],
)
def test_schema_and_table_are_in_the_namespace(
    steps: Compile, given: dict[str, str], namespace: str, names: tuple[str, str]
) -> None:
    """The template of the reader shows which part of the namespace is which."""
    made = one(steps, replace(ROW, namespace=namespace), **given)
    source = json.loads(made.data or b"")["source"]
    assert (source["schema"], source["table"]) == names


def test_names_and_version_are_settings(steps: Compile) -> None:
    """They are texts like any other, and the version is a text as well."""
    given = {"name": 'a"b', "db": "é", "version": "3.0.0.Final"}
    source = json.loads(one(steps, ROW, **given).data or b"")["source"]
    assert (source["name"], source["db"], source["version"]) == ('a"b', "é", "3.0.0.Final")


WITHOUT_EVENT = [
    # entry, settings, reason
    (replace(ROW, source_id=None), {}, "is not a change that postgres-cdc has read, by its source"),
    (replace(ROW, source_id="orders@x/0/17"), {}, "limit the step with its key namespace"),
    (
        replace(ROW, source_id="copy/16384/1/complete"),
        {},
        "is not a change that postgres-cdc has read",
    ),
    (replace(ROW, namespace="items"), {}, "the namespace 'items' is not of the form '{schema}.{t"),
    (replace(ROW, namespace=".items"), {}, "set template to the reader's namespace"),
    (replace(ROW, data=None, content_type=None), {}, "an entry of the op 'insert' has no data"),
    (replace(ROW, data=b"[1]"), {}, "data is not a JSON object: expected an object at byte 0"),
    (replace(ROW, data=b'{"id":1} x'), {}, "expected nothing more at byte 8"),
    (replace(ROW, data=b'{"id":"\xff"}'), {}, "expected UTF-8 at byte 7"),
    (replace(ROW, data=b'{"id":1} x'), {"key_as": "value"}, "expected nothing more at byte 8"),
    (replace(ROW, data=b'{"id":"\xff"}'), {"key_as": "value"}, "expected UTF-8 at byte 7"),
    (replace(ROW, data=b"1"), {"keys": {"public.items": []}}, "expected an object at byte 0"),
    (replace(ROW, content_type="text/plain"), {}, "content type 'text/plain' is not JSON"),
    (replace(ROW, op="skip"), {}, "an entry of the op 'skip' is not a change of a row; leave it"),
    (replace(TRUNCATE, data=b'{"command":"vacuum"}'), {}, "a command other than truncate has no"),
    (replace(TRUNCATE, data=b'{"columns":[]}'), {}, "leave it out with opfilter before this step"),
    (replace(TRUNCATE, data=None, content_type=None), {}, "an entry of the op 'command' has no"),
    (replace(DELETE, data=b"{}", content_type=JSON), {}, "a delete with data is not of postgres-"),
    (ROW, {"key": ["sku"]}, "a row of 'public.items' has no column 'sku', which the step's key"),
    (ROW, {"key": None, "keys": {"public.x": ["id"]}}, "the key of 'public.items' are unknown"),
    (DELETE, {}, "is a text whose type is unknown; set old: true at the reader, or key_as: value"),
    (replace(DELETE, key=b"[1]"), {}, "is a text whose type is unknown"),
    (replace(DELETE, headers=(("pg-old", b'{"x":1}'),)), {}, "is a text whose type is unknown"),
    (replace(DELETE, key=b"[1]"), {"key": ["a", "b"]}, "is a text whose type is unknown"),
    (replace(DELETE, key=b'[1,2],"x":3'), {"key": ["a", "b"]}, "is a text whose type is unknown"),
    (replace(DELETE, key=None), {"key": ["a", "b"]}, "is a text whose type is unknown"),
    (replace(ROW, headers=(("pg-old", b"null"),)), {}, "the header pg-old is not a JSON object"),
    (replace(ROW, headers=(("pg-xid", b"07"),)), {}, "the header pg-xid is not a whole number"),
    *(
        (replace(ROW, headers=(("pg-unchanged", each),)), {}, "pg-unchanged is not a JSON array")
        for each in (b"x", b'"a"', b"[1]", b'{"a":1}', b"\xff", b'["\\ud800"]')
    ),
]


@pytest.mark.parametrize(("message", "given", "reason"), WITHOUT_EVENT)
def test_an_entry_without_an_event_fails(
    steps: Compile, message: Message, given: dict[str, Any], reason: str
) -> None:
    """The entries before it go through, the step and the reason are named, and no data is."""
    good = replace(ROW, namespace="public.good")
    both = step(**{**given, "keys": {**given.get("keys", {}), "public.good": ["id"]}})
    made, failed = steps(both).apply_before_failure(batch_of(good, message))
    assert [entry.offset for entry in rows_of(made)] == [100]
    assert isinstance(failed, StepFailed)
    assert failed.offset == 101
    assert str(failed).startswith("debezium-envelope: ")
    assert reason in str(failed)
    assert "1.10" not in str(failed)


def test_other_entries_pass_as_they_are(steps: Compile) -> None:
    """The step's namespace chooses its entries, and what no route delivers passes."""
    others = [Message("demo", b"data", op=op) for op in OPS]
    batch = batch_of(*others)
    assert steps(step(namespace=r"^public\.")).apply(batch) is batch
    assert steps(step()).apply(batch_of(Message("r", None, op="noop"))).num_rows == 1
    assert rows_of(steps(step()).apply(batch_of())) == []
    mixed = batch_of(others[0], ROW, others[1])
    found = rows_of(steps(step(namespace=r"^public\.")).apply(mixed))
    assert [row.message.namespace for row in found] == ["demo", "public.items", "demo"]
    assert found[1].message.key == b'{"id":1}'


def test_the_headers_are_those_of_the_reader() -> None:
    """The step and the reader agree on the names of headers."""
    assert reader.OLD_HEADER == OLD_HEADER
    assert reader.UNCHANGED_HEADER == UNCHANGED_HEADER


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.text(max_size=3), values, max_size=4),
            st.none() | st.dictionaries(st.text(max_size=3), values, max_size=4),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_rows_are_embedded_byte_for_byte(rows: list[Any]) -> None:
    """An event is JSON whose ``before`` and ``after`` are the bytes of the rows."""
    config = StepConfig(
        name="debezium-envelope", settings={**NAMES, "key_as": "value", "tombstones": False}
    )
    messages = []
    for new, old, spaced in rows:
        kind = {"indent": 1} if spaced else {"ensure_ascii": False}
        headers = () if old is None else (("pg-old", json.dumps(old, **kind).encode()),)
        data = json.dumps(new, **kind).encode()
        messages.append(replace(ROW, op="update", data=data, headers=headers))
    made = rows_of(compile_steps([config], Path()).apply(batch_of(*messages)))
    for entry, message, (new, old, _) in zip(made, messages, rows, strict=True):
        before = dict(message.headers).get("pg-old") or b"null"
        assert entry.message.data == event(before, message.data or b"", b"u")
        found = json.loads(entry.message.data or b"")
        assert (found["before"], found["after"]) == (old, new)
