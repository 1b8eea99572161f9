"""``only`` and ``skip``: the result of every operator on every type, and the entries that pass."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_tools import batch_of, rows_of

from transporter.errors import StepFailed
from transporter.message import Message
from transporter.pipeline.steps.only_skip import OPERATORS, make_condition

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.pipeline.steps.chain import Steps

    Compile = Callable[..., Steps]

ORDERS = (">", ">=", "<", "<=")


def choice(name: str, field: str, operator: str, value: object, **more: object) -> dict[str, Any]:
    """Return a step."""
    return {name: {"field": field, "operator": operator, "value": value, **more}}


def left(steps: Steps, *documents: bytes) -> list[bytes | None]:
    """Return the documents that pass."""
    rows = rows_of(steps.apply(batch_of(*(Message("a", each) for each in documents))))
    return [entry.message.data for entry in rows]


LESS, EQUAL, GREATER = "less", "equal", "greater"
COMPARED = [
    # a value of the document, the setting, and how the one is to the other
    ("10", 10, EQUAL),
    ("10", 9, GREATER),
    ("10", 11, LESS),
    ("-1", 0, LESS),
    ("-0", 0, EQUAL),
    ("0.0e-5", 0, EQUAL),
    ("10.0", 10, EQUAL),
    ("1E1", 10, EQUAL),
    ("100e-1", 10, EQUAL),
    ("1.10", 1.1, EQUAL),
    ("1.1", "1.10", EQUAL),
    ("0.30000000000000004", 0.3, GREATER),
    ("0.1", 0.1, EQUAL),
    ("0.1000000000000000055511151231257827", 0.1, GREATER),
    ("12345678901234567890", 12345678901234567890, EQUAL),
    ("12345678901234567891", 12345678901234567890, GREATER),
    ("12345678901234567889", 12345678901234567890, LESS),
    ("12345678901234567890.10", "12345678901234567890.1", EQUAL),
    ("12345678901234567890.11", "12345678901234567890.1", GREATER),
    ("9007199254740993", 9007199254740992, GREATER),
    ("1e400", 10**299, GREATER),
    ("-1e400", -1, LESS),
    ("1e-400", 0, GREATER),
    ("1e999999999", "1e999999998", GREATER),
    ("1" + "0" * 400, "1e400", EQUAL),
]


@pytest.mark.parametrize(("written", "value", "expected"), COMPARED)
def test_numbers_are_compared_exactly(
    steps: Compile, written: str, value: object, expected: str
) -> None:
    """A number of any length and spelling is compared without rounding."""
    document = b'{"a":%b}' % written.encode()
    holds = {
        "==": expected == EQUAL,
        ">": expected == GREATER,
        ">=": expected != LESS,
        "<": expected == LESS,
        "<=": expected != GREATER,
    }
    passed = {each: left(steps(choice("only", "a", each, value)), document) for each in holds}
    assert passed == {each: [document] if true else [] for each, true in holds.items()}


@pytest.mark.parametrize("spelling", OPERATORS)
def test_every_spelling_of_an_operator(steps: Compile, spelling: str) -> None:
    """An operator can be written as a sign, as a word, and as MongoDB does."""
    documents = [b'{"a":"1"}', b'{"a":"2"}', b'{"a":"3"}']
    passing = {"==": [1], "=~": [1], ">": [2], ">=": [1, 2], "<": [0], "<=": [0, 1]}
    step = choice("only", "a", spelling, "2")
    assert left(steps(step), *documents) == [documents[n] for n in passing[OPERATORS[spelling]]]


EQUALITY = [
    # a value of the document, and the settings among `SETTINGS` that it is equal to
    ('"x"', ["x"]),
    ('"\\u0078"', ["x"]),
    ('"X"', []),
    ('" x"', []),
    ('""', [""]),
    ('"1"', ["1"]),
    ("1", ["1", 1]),
    ("1.0", ["1", 1]),
    ('"true"', ["true"]),
    ("true", [True]),
    ("false", [False]),
    ("0", [0]),
    ('"null"', []),
    ("null", [None]),
    ("{}", []),
    ("[]", []),
    ("[1]", []),
    ('{"x":"x"}', []),
    ('"\\ud800"', []),
    ('"größe"', ["größe"]),
    ('"gr\\u00f6\\u00dfe"', ["größe"]),
]
SETTINGS = ["x", "", "1", 1, 0, "true", True, False, None, "größe"]


@pytest.mark.parametrize(("written", "equal"), EQUALITY)
def test_equality_looks_at_types(steps: Compile, written: str, equal: list[object]) -> None:
    """A value is equal to a value of its type. Another type is not an error, and not equal."""
    document = b'{"a":%b}' % written.encode()
    found = [each for each in SETTINGS if left(steps(choice("only", "a", "eq", each)), document)]
    assert [(type(each), each) for each in found] == [(type(each), each) for each in equal]
    passed = [each for each in SETTINGS if left(steps(choice("skip", "a", "eq", each)), document)]
    assert len(passed) == len(SETTINGS) - len(equal)


MATCHED = [
    (r"^te.t$", '"test"', True),
    (r"es", '"test"', True),
    (r"^es", '"test"', False),
    (r"(?i)TEST", '"test"', True),
    (r"^\d+$", '"12345"', True),
    (r".*", '""', True),
    (r"^$", '""', True),
    (r"^größe$", '"gr\\u00f6\\u00dfe"', True),
    (r"^.$", '"\\ud83d\\ude00"', True),
    (r"^(a+)+$", '"' + "a" * 50_000 + '!"', False),
    (r"", '"x"', True),
]


@pytest.mark.parametrize(("pattern", "written", "matches"), MATCHED)
def test_a_regular_expression_may_match_anywhere(
    steps: Compile, pattern: str, written: str, matches: bool
) -> None:
    """RE2 looks at the text that is meant, not at its spelling, and never backtracks."""
    document = b'{"a":%b}' % written.encode()
    assert left(steps(choice("only", "a", "=~", pattern)), document) == [document] * matches
    assert left(steps(choice("skip", "a", "=~", pattern)), document) == [document] * (not matches)


WRONG = [
    ("=~", "1", "is a number; =~ compares text"),
    ("=~", "true", "is a boolean; =~ compares text"),
    ("=~", "[]", "is an array; =~ compares text"),
    ("=~", "{}", "is an object; =~ compares text"),
    ("=~", '"\\ud800"', "holds an unpaired surrogate, which =~ cannot read"),
    *(
        (order, written, f"is {kind}; this operator compares numbers")
        for order in ORDERS
        for written, kind in (
            ('"x"', "text that is not a number"),
            ('""', "text that is not a number"),
            ('" 1"', "text that is not a number"),
            ('"NaN"', "text that is not a number"),
            ('"1_0"', "text that is not a number"),
            ('"\\u0661"', "text that is not a number"),
            ("true", "a boolean"),
            ("[1]", "an array"),
            ("{}", "an object"),
        )
    ),
    (">", "1e99999999999999999999", "holds an exponent that is too large to compare"),
    ("==", "-1e-99999999999999999999", "holds an exponent that is too large to compare"),
]


@pytest.mark.parametrize("name", ["only", "skip"])
@pytest.mark.parametrize(("operator", "written", "expected"), WRONG)
def test_a_wrong_type_fails_at_its_entry(
    steps: Compile, name: str, operator: str, written: str, expected: str
) -> None:
    """A value that an operator cannot compare fails with its field and type, without the value."""
    good = b'{"x":{"a.b":null}}'
    bad = b'{"x":{"a.b":%b}}' % written.encode()
    field = r"x.a\.b"
    step = choice(name, field, operator, "5")
    with pytest.raises(StepFailed) as caught:
        steps(step).apply(batch_of(*(Message("a", each) for each in (good, bad, good, bad))))
    assert caught.value.offset == 101
    assert str(caught.value) == f"{name}: {field!r} {expected}"


@pytest.mark.parametrize("document", [b'{"b":1}', b'{"a":null}', b"{}", b'{"b":{"a":1}}'])
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_missing_field_is_like_nothing(steps: Compile, operator: str, document: bytes) -> None:
    """A field that is not there, or null, fails every condition: `only` drops, `skip` passes."""
    assert left(steps(choice("only", "a", operator, "1")), document) == []
    assert left(steps(choice("skip", "a", operator, "1")), document) == [document]


@pytest.mark.parametrize(
    ("document", "holds"),
    [
        (b'{"a":[1,2,3]}', True),
        (b'{"a":[1,3]}', False),
        (b'{"a":[]}', False),
        (b'{"a":2}', False),
        (b'{"a":[1],"a":["x",2]}', True),
    ],
)
def test_one_of_several_values_is_enough(steps: Compile, document: bytes, holds: bool) -> None:
    """The condition holds if it holds for one of several values at a path."""
    assert left(steps(choice("only", "a[*]", "eq", 2)), document) == [document] * holds
    assert left(steps(choice("skip", "a[*]", "eq", 2)), document) == [document] * (not holds)


def test_which_entries_are_looked_at(steps: Compile) -> None:
    """Entries without a document, or of another namespace, pass. The rest keeps all it has."""
    messages = [
        Message("a", b'{"n":1}', key=b"1", headers=(("h", b"v"),)),
        Message("a", None, op="delete", key=b"2"),
        Message("a", b"n", content_type="text/plain"),
        Message("b", b'{"n":1}'),
        Message("a", b'{"n":2,"m":12345678901234567890.10}', op="update", source_id="s"),
    ]
    passing = {"only": [1, 2, 3, 4], "skip": [0, 1, 2, 3]}
    for name, rows in passing.items():
        step = choice(name, "n", "gt", 1, namespace="^a$")
        entries = rows_of(steps(step).apply(batch_of(*messages)))
        expected = rows_of(batch_of(*messages))
        assert entries == [expected[row] for row in rows]


def test_what_is_no_document_never_vanishes(steps: Compile) -> None:
    """`only` fails at data that is not an object. `skip` passes it if it cannot hold the field."""
    broken = b"not JSON"
    with pytest.raises(
        StepFailed, match=r"^only: data is not a JSON object: expected an object at"
    ):
        left(steps(choice("only", "a", "eq", 1)), broken)
    assert left(steps(choice("skip", "a", "eq", 1)), broken) == [broken]


def test_a_batch_that_passes_whole_is_handed_on_as_it_is(steps: Compile) -> None:
    """Nothing is copied where nothing is left out, and an empty batch stays empty."""
    batch = batch_of(Message("a", b'{"n":2}'), Message("a", None))
    for step in (choice("only", "n", "gt", 1), choice("skip", "n", "lt", 1)):
        assert steps(step).apply(batch) is batch
        assert steps(step).apply(batch_of()).num_rows == 0


def test_a_value_may_come_from_a_variable(steps: Compile) -> None:
    """A variable is text, and its number is meant where it is one."""
    documents = [b'{"n":18}', b'{"n":17.9}', b'{"n":"18"}']
    assert left(steps(choice("only", "n", "gte", "18")), *documents) == [documents[0], documents[2]]
    assert left(steps(choice("only", "n", "eq", "18")), *documents) == [documents[0], documents[2]]


digits = st.text("0123456789", min_size=1, max_size=30)
numbers = st.builds(
    lambda sign, whole, rest, exponent: sign + (whole.lstrip("0") or "0") + rest + exponent,
    st.sampled_from(["", "-"]),
    digits,
    st.just("") | digits.map(".{}".format),
    st.just("") | st.integers(-40, 40).map("e{:+d}".format),
)
near = st.tuples(numbers, st.integers(-1, 1)).map(
    lambda pair: (pair[0], str(int(Fraction(pair[0])) + pair[1]))
)


@settings(max_examples=200, deadline=None)
@given(st.tuples(numbers, numbers) | near)
def test_every_order_is_that_of_fractions(pair: tuple[str, str]) -> None:
    """Two numbers compare as exact fractions do, however they are written."""
    one, other = pair
    json.loads(one)
    left_side, right_side = Fraction(one), Fraction(other)
    expected = {
        "==": left_side == right_side,
        ">": left_side > right_side,
        ">=": left_side >= right_side,
        "<": left_side < right_side,
        "<=": left_side <= right_side,
    }
    for operator, true in expected.items():
        compared = make_condition(operator, other)
        assert compared.holds([[], [compared.read(one.encode())]]) == [False, true]
