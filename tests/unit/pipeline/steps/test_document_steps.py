"""``omit`` and ``rename`` on batches: the entries that they touch, and their failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from step_tools import batch_of, rows_of

from transporter.errors import StepFailed
from transporter.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.pipeline.steps.chain import Steps

    Compile = Callable[..., Steps]

OMIT: dict[str, Any] = {"omit": {"fields": ["card", "customer.card"]}}
RENAME: dict[str, Any] = {"rename": {"fields": {"card": "number"}}}


def data_of(steps: Steps, *messages: Message) -> list[bytes | None]:
    """Return the data that *steps* make of *messages*, and check that nothing else changes."""
    before = batch_of(*messages)
    after = rows_of(steps.apply(before))
    for old, new in zip(rows_of(before), after, strict=True):
        assert new._replace(message=old.message) == old
        assert {**_fields(new.message), "data": 0} == {**_fields(old.message), "data": 0}
    return [entry.message.data for entry in after]


def _fields(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__slots__}


def test_documents_lose_their_fields(steps: Compile) -> None:
    """Each document of a batch is rewritten, and everything else about it stays."""
    messages = [
        Message("a", b'{"card":1,"n":12345678901234567890.10}', key=b"k", headers=(("h", b"v"),)),
        Message("b", b'{"n":1}', op="update", source_id="s", timestamp=7),
        Message("c", b'{"customer":{"card":2,"name":"x"}}'),
    ]
    assert data_of(steps(OMIT), *messages) == [
        b'{"n":12345678901234567890.10}',
        b'{"n":1}',
        b'{"customer":{"name":"x"}}',
    ]


def test_rename_and_omit_in_turn(steps: Compile) -> None:
    """Steps work on the results of the steps before them."""
    turned = {"omit": {"fields": ["number"]}}
    assert data_of(steps(RENAME, turned), Message("a", b'{"card":1,"b":2}')) == [b'{"b":2}']
    assert data_of(steps(turned, RENAME), Message("a", b'{"card":1}')) == [b'{"number":1}']


SKIP: dict[str, Any] = {"skip": {"field": "card", "operator": "==", "value": 1}}
NO_JSON = (b"hello", b"", b"{n: 1}", b'{"n": NaN}', b"\xff", b'{"n": 1', b"1 2", b"\xef\xbb\xbf{}")
ANY_JSON = (b" [1, 2] ", b"17", b'"text"', b"null", b'{"n": 1.50}', b'{"n": "\\ud800"}')


@pytest.mark.parametrize("step", [OMIT, RENAME, SKIP])
def test_what_is_no_json_is_not_said_to_be(steps: Compile, step: dict[str, Any]) -> None:
    """Data that passes because it cannot hold a field loses its content type if it is not JSON."""
    found = [
        entry.message
        for entry in rows_of(
            steps(step).apply(
                batch_of(
                    *[Message("a", data) for data in NO_JSON],
                    *[Message("a", data) for data in ANY_JSON],
                    Message("a", None),
                    Message("a", b"plain", content_type="text/plain"),
                    Message("a", b'{"card":2,"x":3}'),
                )
            )
        )
    ]
    types = [message.content_type for message in found]
    here = len(NO_JSON)
    assert [message.data for message in found[:here]] == [*NO_JSON]
    assert types[:here] == [None] * here
    assert types[here:] == ["application/json"] * (len(ANY_JSON) + 1) + [
        "text/plain",
        "application/json",
    ]


def test_a_step_behind_still_finds_what_is_no_json(steps: Compile) -> None:
    """Content types are not taken before the end: `pick` would let such data pass whole."""
    before = batch_of(Message("a", b'{"n":1}'), Message("a", b"secret"))
    made, failed = steps(OMIT, {"pick": {"fields": ["n"]}}).apply_before_failure(before)
    assert failed is not None
    assert failed.offset == before.column("offset")[1].as_py()
    assert [entry.message.data for entry in rows_of(made)] == [b'{"n":1}']
    untouched, _ = steps(OMIT).run_through(before)
    assert untouched is before


def test_only_what_did_not_change_is_looked_at_again(
    steps: Compile, python: Callable[[str], dict[str, Any]]
) -> None:
    """Several messages of one entry, skipped entries and missing data are each handled."""
    fan = python(
        "def turn(message):\n"
        "    if message.data == b'gone':\n"
        "        return None\n"
        "    return [message, replace(message, data=b'new')]\n"
    )
    found = rows_of(
        steps(OMIT, fan).apply(
            batch_of(Message("a", b"gone"), Message("a", b"old"), Message("a", b"[]"))
        )
    )
    assert [(entry.offset, entry.message.data, entry.message.content_type) for entry in found] == [
        (101, b"old", None),
        (101, b"new", "application/json"),
        (102, b"[]", "application/json"),
        (102, b"new", "application/json"),
    ]


@pytest.mark.parametrize(
    ("content_type", "touched"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("Application/JSON", True),
        ("application/cloudevents+json", True),
        ("text/json", True),
        ("text/plain", False),
        ("application/jsonlines", False),
        ("application/avro", False),
        (None, False),
    ],
)
def test_only_json_is_touched(steps: Compile, content_type: str | None, touched: bool) -> None:
    """The content type decides whether data is a document, and others pass as they are."""
    data = b'{"card":1}'
    other = Message("a", b'{"card":2,"x":3}')
    (first, second) = data_of(steps(OMIT), Message("a", data, content_type=content_type), other)
    assert (first, second) == (b"{}" if touched else data, b'{"x":3}')


def test_tombstones_and_other_namespaces_pass(steps: Compile) -> None:
    """Entries without data, and those that the step's own filter leaves out, stay as they are."""
    messages = [
        Message("orders.eu", b'{"card":1}'),
        Message("orders.eu", None, op="delete"),
        Message("people", b'{"card":2}'),
        Message("people", b"not even JSON: card"),
        Message("orders.us", b'{"card":3}'),
    ]
    step = {"omit": {"fields": ["card"], "namespace": r"^orders\."}}
    assert data_of(steps(step), *messages) == [
        b"{}",
        None,
        b'{"card":2}',
        b"not even JSON: card",
        b"{}",
    ]


def test_a_batch_without_work_is_handed_on_as_it_is(steps: Compile) -> None:
    """Nothing is copied where no step changes anything, or where there is no step."""
    other = batch_of(Message("a", b'{"b":1}'), Message("a", None), Message("a", b"[]", key=b"k"))
    for made in (steps(OMIT), steps(RENAME, OMIT), steps(), steps().empty):
        assert made.apply(other) is other
        assert made.apply(batch_of()).num_rows == 0


def test_a_slice_of_a_batch_is_its_own(steps: Compile) -> None:
    """Rows outside a sliced batch are neither read nor shifted into it."""
    whole = batch_of(*(Message("a", b'{"card":%d,"n":%d}' % (n, n)) for n in range(5)))
    after = rows_of(steps(OMIT).apply(whole.slice(2, 2)))
    assert [(entry.offset, entry.message.data) for entry in after] == [
        (102, b'{"n":2}'),
        (103, b'{"n":3}'),
    ]


def test_the_first_entry_that_is_no_object_is_named(steps: Compile) -> None:
    """The error names the step, the problem, and the offset of the first such entry."""
    good, other = Message("a", b'{"card":1}'), Message("b", None)
    bad = Message("a", b'["card"]')
    with pytest.raises(StepFailed) as caught:
        steps(OMIT).apply(batch_of(good, other, bad, good, bad))
    assert caught.value.offset == 102
    assert str(caught.value) == "omit: data is not a JSON object: expected an object at byte 0"
    with pytest.raises(StepFailed, match=r"^rename: 'card' cannot become 'number': the object"):
        steps(RENAME).apply(batch_of(Message("a", b'{"card":1,"number":2}')))


def test_two_routes_do_not_see_each_other(steps: Compile, python: Callable[[str], Any]) -> None:
    """Steps over one batch leave it as it was, so no route sees another's change."""
    shared = batch_of(*(Message("a", b'{"card":1,"b":%d}' % n) for n in range(3)))
    before = [column.to_pylist() for column in shared.columns]
    turn = python("def turn(message):\n    return replace(message, data=b'', namespace='z')\n")
    one, two, three = steps(OMIT), steps(RENAME), steps(turn)
    made = [rows_of(each.apply(shared))[0].message for each in (one, two, three, one)]
    assert [each.data for each in made] == [b'{"b":0}', b'{"number":1,"b":0}', b"", b'{"b":0}']
    assert [column.to_pylist() for column in shared.columns] == before
