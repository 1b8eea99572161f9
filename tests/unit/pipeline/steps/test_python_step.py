"""``python``: the allowed results of a function, and the reports of its mistakes."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from step_tools import LOGGED_AT, batch_of, rows_of

from transporter.errors import StepFailed
from transporter.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.pipeline.steps.chain import Steps

    Compile = Callable[..., Steps]
    Python = Callable[[str], dict[str, Any]]

MESSAGES = (
    Message("a", b"0", key=b"k", headers=(("h", b"v"), ("h", None)), source_id="s", timestamp=9),
    Message("b", None, op="delete", content_type=None),
    Message("a", b"2", phase="copy"),
)


def made(steps: Steps, *messages: Message) -> list[tuple[int, Message]]:
    """Return the offsets and messages that *steps* make of *messages*."""
    entries = rows_of(steps.apply(batch_of(*messages)))
    assert {entry.logged_at for entry in entries} <= {LOGGED_AT}
    return [(entry.offset, entry.message) for entry in entries]


def test_a_message_can_be_replaced(steps: Compile, python: Python) -> None:
    """A changed message takes the place of its entry, and the others stay as they were."""
    turn = python(
        "def turn(message):\n"
        "    if message.op == 'delete':\n        return message\n"
        "    return replace(message, data=message.data + b'!', headers=[('x', b'y')])\n"
    )
    first, second, third = MESSAGES
    assert made(steps(turn), *MESSAGES) == [
        (100, replace(first, data=b"0!", headers=(("x", b"y"),))),
        (101, second),
        (102, replace(third, data=b"2!", headers=(("x", b"y"),))),
    ]


CHANGES: list[dict[str, Any]] = [
    {"namespace": "größe"},
    {"data": None},
    {"data": b"\x00\xff"},
    {"key": None},
    {"key": b""},
    {"op": "noop"},
    {"phase": "complete"},
    {"timestamp": -(2**63)},
    {"timestamp": 2**63 - 1},
    {"source_id": None},
    {"content_type": "text/plain"},
    {"headers": ()},
    {"headers": (("n", None), ("n", b"1"), ("", b""))},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_field_can_be_changed(steps: Compile, python: Python, change: dict[str, Any]) -> None:
    """Any field of any message arrives changed, alone or together with its neighbours'."""
    for every in (True, False):
        turn = python(
            f"def turn(message):\n"
            f"    return replace(message, **{change!r}) if {every} or message.data == b'2' "
            f"else message\n"
        )
        expected = [
            replace(each, **change) if every or each.data == b"2" else each for each in MESSAGES
        ]
        assert [message for _, message in made(steps(turn), *MESSAGES)] == expected


def test_none_skips_and_an_iterable_multiplies(steps: Compile, python: Python) -> None:
    """An entry can vanish or become several with its offset, in the order given."""
    turn = python(
        "def turn(message):\n"
        "    if message.op == 'delete':\n        return None\n"
        "    return (replace(message, data=b'%d' % n) if n else message for n in range(3))\n"
    )
    first, _, third = MESSAGES
    assert made(steps(turn), *MESSAGES) == [
        *((100, each) for each in (first, replace(first, data=b"1"), replace(first, data=b"2"))),
        *((102, each) for each in (third, replace(third, data=b"1"), replace(third, data=b"2"))),
    ]


def test_a_function_that_fails_elsewhere_the_second_time(steps: Compile, python: Python) -> None:
    """The last failure counts if a function behaves differently when it is called again."""
    turn = python(
        "calls = []\n"
        "def turn(message):\n"
        "    calls.append(1)\n"
        "    if len(calls) in (3, 5):\n        raise ValueError\n"
        "    return message\n"
    )
    made_, failed = steps(turn).apply_before_failure(batch_of(*MESSAGES))
    assert made_.num_rows == 1
    assert failed is not None
    assert failed.offset == 101


def test_everything_can_vanish(steps: Compile, python: Python) -> None:
    """A batch of which nothing is left is empty, not missing."""
    for nothing in ("None", "[]", "()"):
        turn = python(f"def turn(message):\n    return {nothing}\n")
        assert made(steps(turn), *MESSAGES) == []


def test_what_is_returned_as_it_was_costs_no_copy(steps: Compile, python: Python) -> None:
    """Unchanged messages keep the batch, and unchanged columns their memory."""
    batch = batch_of(*MESSAGES)
    assert steps(python("def turn(message):\n    return message\n")).apply(batch) is batch
    turn = python("def turn(message):\n    return replace(message, namespace='z')\n")
    after = steps(turn).apply(batch)
    for name in ("data", "key", "offset"):
        old, new = batch.column(name), after.column(name)
        assert new.buffers()[-1].address == old.buffers()[-1].address


def test_the_step_has_its_own_filter(steps: Compile, python: Python) -> None:
    """A function is called for the namespaces of its step only."""
    turn = python("def turn(message):\n    return replace(message, data=b'!')\n")
    turn["python"]["namespace"] = "^b$"
    assert [message.data for _, message in made(steps(turn), *MESSAGES)] == [b"0", b"!", b"2"]


WRONG = [
    # the function's result, and its report
    ("{}", "returned dict; it may return a Message, several, or None"),
    ("b'data'", "returned bytes; it may return"),
    ("'text'", "returned str; it may return"),
    ("5", "returned int; it may return"),
    ("True", "returned bool; it may return"),
    ("[message, None]", "returned NoneType; it may return"),
    ("[[message]]", "returned list; it may return"),
    ("replace(message, data='x')", "returned a Message whose data (str) is not bytes or None"),
    ("replace(message, data=bytearray(b'x'))", "whose data (bytearray) is not bytes or None"),
    ("replace(message, key=5)", "whose key (int) is not bytes or None"),
    ("replace(message, namespace=None)", "whose namespace (NoneType) is not text"),
    ("replace(message, namespace=b'x')", "whose namespace (bytes) is not text"),
    ("replace(message, namespace='\\ud800')", "whose namespace (str) is not text"),
    ("replace(message, op='upsert')", "whose op (str) is not one of insert, update, delete,"),
    ("replace(message, op=[])", "whose op (list) is not one of"),
    ("replace(message, phase=None)", "whose phase (NoneType) is not one of copy, sync, complete"),
    ("replace(message, timestamp=1.5)", "whose timestamp (float) is not microseconds as a whole"),
    ("replace(message, timestamp=True)", "whose timestamp (bool) is not microseconds"),
    ("replace(message, timestamp=2**63)", "whose timestamp (int) is not microseconds"),
    ("replace(message, source_id=5)", "whose source_id (int) is not text or None"),
    ("replace(message, content_type=b'x')", "whose content_type (bytes) is not text or None"),
    ("replace(message, headers=None)", "whose headers (NoneType) is not pairs of text and bytes"),
    ("replace(message, headers={'a': b'b'})", "whose headers (dict) is not pairs"),
    ("replace(message, headers=(('a', 'b'),))", "whose headers (tuple) is not pairs"),
    ("replace(message, headers=(('a',),))", "whose headers (tuple) is not pairs"),
]


@pytest.mark.parametrize(("returned", "expected"), WRONG)
def test_a_wrong_return_names_the_entry(
    steps: Compile, python: Python, returned: str, expected: str
) -> None:
    """A result that is not a message is refused with the field and its type, not its value."""
    turn = python(
        f"def turn(message):\n    return message if message.data == b'0' else {returned}\n"
    )
    with pytest.raises(StepFailed) as caught:
        steps(turn).apply(batch_of(*MESSAGES))
    assert caught.value.offset == 101
    assert str(caught.value).startswith("python: turning:turn returned ")
    assert expected in str(caught.value)


RAISED = [
    # the function's body, the line of the mistake, and its words
    ("    return message.dta\n", 5, "AttributeError: 'Message' object has no attribute 'dta'"),
    ("    return helper(message)\n\ndef helper(message):\n    raise KeyError('card')\n", 8,
     "KeyError: 'card'"),
    ("    yield message\n    raise ValueError('two\\nlines \\x1b')\n", 6,
     "ValueError: two lines \\x1b"),
    ("    message.data = b''\n", 5, "FrozenInstanceError: cannot assign to field 'data'"),
    ("    import json\n    json.loads('{')\n", 6, "JSONDecodeError: Expecting property name"),
    ("    raise SystemExit(3)\n", 5, "SystemExit: 3"),
    ("    return turn(message)\n", 5, "RecursionError: maximum recursion depth exceeded"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "line", "expected"), RAISED)
def test_an_exception_names_the_entry_and_the_line(
    steps: Compile, python: Python, folder: Path, body: str, line: int, expected: str
) -> None:
    """An exception is one line: the user's own file and line, its type and its text."""
    head = "def turn(message):\n"
    step = steps(python(head + body))
    with pytest.raises(StepFailed) as caught:
        step.apply(batch_of(*MESSAGES))
    text = str(caught.value)
    assert text.startswith(f"python turning:turn: {folder}/turning.py:{line}: {expected}")
    assert text.isprintable()
    assert caught.value.offset == 100
    assert caught.value.__cause__ is not None
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args  # noqa: S301 - ours


def test_a_long_text_is_cut(steps: Compile, python: Python) -> None:
    """An exception that repeats a whole document does not fill the log."""
    turn = python("def turn(message):\n    raise ValueError('x' * 100_000)\n")
    with pytest.raises(StepFailed) as caught:
        steps(turn).apply(batch_of(*MESSAGES))
    assert len(str(caught.value)) < 1_000


def test_memory_is_not_the_entrys_fault(steps: Compile, python: Python) -> None:
    """Running out of memory is left to the worker, whose limit it is."""
    turn = python("def turn(message):\n    raise MemoryError\n")
    with pytest.raises(MemoryError):
        steps(turn).apply(batch_of(*MESSAGES))


def test_the_first_entry_that_fails_in_any_step_is_named(steps: Compile, python: Python) -> None:
    """A later step may fail earlier in the batch, and the entries before that go through."""
    turn = python("def turn(message):\n    return replace(message, data=message.data + b'}')\n")
    omit = {"omit": {"fields": ["card"]}}
    messages = [
        Message("a", b'{"card":1'),
        Message("a", b'{"card":1}'),
        Message("a", None),
    ]
    both = steps(turn, omit)
    with pytest.raises(StepFailed, match=r"^omit: .* expected nothing more at byte 10") as caught:
        both.apply(batch_of(*messages))
    assert caught.value.offset == 101
    before, failed = both.apply_before_failure(batch_of(*messages))
    assert [entry.message.data for entry in rows_of(before)] == [b"{}"]
    assert failed is not None
    assert failed.offset == 101
    with pytest.raises(StepFailed, match="TypeError") as caught:
        both.apply(batch_of(messages[0], messages[2]))
    assert caught.value.offset == 101
