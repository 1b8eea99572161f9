"""A script can return the contents of any document exactly, and in another place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from step_tools import batch_of, rows_of

from transporter.message import Message
from transporter.pipeline.steps.chain import compile_steps
from transporter.pipeline.steps.step import StepConfig

if TYPE_CHECKING:
    from transporter.pipeline.steps.chain import Steps

# Text of any characters, but for halves of one.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
DECIMALS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.none() | st.booleans() | st.integers() | DECIMALS | TEXT
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
)
BYTES = st.binary(max_size=12) | TEXT.map(str.encode)
MESSAGES = st.builds(
    Message,
    namespace=TEXT,
    data=VALUES.flatmap(
        lambda value: st.sampled_from([(", ", ": "), (",", ":")]).map(
            lambda form: json.dumps(value, separators=form).encode()
        )
    ),
    key=st.none() | BYTES,
    op=st.sampled_from(["insert", "update", "delete"]),
    timestamp=st.integers(-(2**63), 2**63 - 1),
    source_id=st.none() | TEXT,
    headers=st.lists(st.tuples(TEXT, st.none() | BYTES), max_size=3).map(tuple),
)


def compiled(body: str) -> Steps:
    """Return a step whose ``transform`` has this one line."""
    code = f"def transform(message):\n  {body}\n"
    return compile_steps([StepConfig(name="starlark", settings={"code": code})], Path())


SAME = compiled("return [message, dict(message), {k: message[k] for k in reversed(list(message))}]")
WRAP = compiled('return {"data": [message["data"]]}')
UNWRAP = compiled('return {"data": message["data"][0]}')
COPY = compiled(
    'return {"namespace": message["source_id"] or "", "source_id": message["namespace"],'
    ' "headers": [(message["namespace"], message["key"])] + message["headers"]}'
)


def outputs(steps: Steps, *messages: Message) -> list[Message]:
    """Return the messages that *steps* make."""
    return [entry.message for entry in rows_of(steps.apply(batch_of(*messages)))]


@settings(max_examples=60, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=5))
def test_what_comes_back_is_the_same(messages: list[Message]) -> None:
    """Each field, and every byte of the data, survives the way there and back."""
    assert outputs(SAME, *messages) == [each for each in messages for _ in range(3)]


@settings(max_examples=60, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=5))
def test_what_is_moved_keeps_its_value(messages: list[Message]) -> None:
    """A value in another document is the same value, of the same types and in the same order."""
    wrapped = outputs(WRAP, *messages)
    assert [_canonical(each.data) for each in wrapped] == [
        f"[{_canonical(each.data)}]" for each in messages
    ]
    back = outputs(UNWRAP, *wrapped)
    assert [_canonical(each.data) for each in back] == [_canonical(each.data) for each in messages]


@settings(max_examples=60, deadline=None)
@given(MESSAGES)
def test_fields_can_take_each_others_values(message: Message) -> None:
    """Text, and bytes that are none, mean the same in another field."""
    (made,) = outputs(COPY, message)
    assert made.namespace == (message.source_id or "")
    assert made.source_id == message.namespace
    assert made.headers == ((message.namespace, message.key), *message.headers)


def _canonical(data: bytes | None) -> str:
    # A document `null` that comes from elsewhere is the same as no data.
    return json.dumps(json.loads(data or b"null"))
