"""``pretty``: only the space of documents changes, and never without bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from step_tools import batch_of, rows_of

from transporter.errors import StepFailed
from transporter.message import Message
from transporter.pipeline.steps.json_grammar import MAX_DEPTH, NotJson, UnsupportedJson
from transporter.pipeline.steps.pretty import MAX_SPACE, make_formatter

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.pipeline.steps.chain import Steps

LAID_OUT = [
    (b"{}", 2, b"{}"),
    (b" { } ", 2, b"{}"),
    (b'{"a":1}', 2, b'{\n  "a": 1\n}'),
    (b'{"a":1,"b":[1, 2]}', 1, b'{\n "a": 1,\n "b": [\n  1,\n  2\n ]\n}'),
    (b'{"a":[ ],"b":{\t}}', 2, b'{\n  "a": [],\n  "b": {}\n}'),
    (b'{ "z" : 1 , "a" : 2 , "z" : 3 }', 0, b'{"z":1,"a":2,"z":3}'),
    (b'{\r\n\t"a":\n1\n}\n', 0, b'{"a":1}'),
    (b'{"n":12345678901234567890, "d":1.10,"e":-0.0E+5}', 0,
     b'{"n":12345678901234567890,"d":1.10,"e":-0.0E+5}'),
    (b'{"n":12345678901234567890.10}', 2, b'{\n  "n": 12345678901234567890.10\n}'),
    (b'{"a b":"x , : [ ] { }  y","\\u0061\\"":"\\ud800\\/ \\\\"}', 0,
     b'{"a b":"x , : [ ] { }  y","\\u0061\\"":"\\ud800\\/ \\\\"}'),
    (b'{"\\\\":"[]","a":"{}\\"{"}', 1, b'{\n "\\\\": "[]",\n "a": "{}\\"{"\n}'),
    ('{"größe":"😀"}'.encode(), 1, '{\n "größe": "😀"\n}'.encode()),
    (b'{"a":[[[[[[1]]]]]]}', 0, b'{"a":[[[[[[1]]]]]]}'),
]  # fmt: skip


@pytest.mark.parametrize(("document", "indent", "expected"), LAID_OUT)
def test_documents_are_laid_out(document: bytes, indent: int, expected: bytes) -> None:
    """Strings, numbers, names and their order stay, to the byte."""
    assert make_formatter(indent)(document) == expected
    assert make_formatter(indent)(expected) == expected


@pytest.mark.parametrize(
    "data", [b"", b"[1]", b"1", b'{"a":NaN}', b'{"a":1,}', b'{"a":"\xff"}', b'{"a":1} {}', b"{"]
)
@pytest.mark.parametrize("indent", [0, 2])
def test_what_is_no_object_is_refused(data: bytes, indent: int) -> None:
    """Data that is not an object is refused."""
    with pytest.raises(NotJson):
        make_formatter(indent)(data)


def test_deep_documents_cannot_take_memory_without_bounds() -> None:
    """Space is bounded, depth too, and neither many values nor many levels take the stack."""
    depth = MAX_DEPTH - 1
    deep = b'{"a":' + b"[" * depth + b"1" + b"]" * depth + b"}"
    assert make_formatter(0)(make_formatter(10)(deep)) == deep
    wide = b'{"a":' + b"[" * depth + b"1," * 5_000 + b"1" + b"]" * depth + b"}"
    assert make_formatter(0)(wide) is wide
    with pytest.raises(
        UnsupportedJson, match=f"data would take more than {MAX_SPACE} bytes of space"
    ):
        make_formatter(10)(wide)
    with pytest.raises(NotJson, match="expected at most 512 levels"):
        make_formatter(2)(b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}")
    keys = b",".join(b'"k%d":%d' % (n, n) for n in range(100_000))
    assert make_formatter(2)(b"{" + keys + b"}").count(b"\n") == 100_001


def test_the_step_lays_out_documents_only(steps: Callable[..., Steps]) -> None:
    """The sink gets the layout. Data that is not JSON passes, and the first broken one is named."""
    messages = [
        Message("a", b'{"a":1.10}'),
        Message("a", None, op="delete"),
        Message("a", b"{ }", content_type=None),
        Message("b", b'{"a":1}'),
    ]
    step = {"pretty": {"namespace": "^a$"}}
    rows = rows_of(steps(step).apply(batch_of(*messages)))
    assert [row.message.data for row in rows] == [b'{\n  "a": 1.10\n}', None, b"{ }", b'{"a":1}']
    with pytest.raises(StepFailed, match=r"^pretty: data is not a JSON object") as caught:
        steps(step).apply(batch_of(*messages, Message("a", b"[]")))
    assert caught.value.offset == 104
