"""``starlark``: the input and the results of a script, and the reports of its mistakes."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from step_tools import LOGGED_AT, batch_of, rows_of

from transporter.errors import StepFailed
from transporter.message import Message, messages_to_batch, with_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.pipeline.steps.chain import Steps

    Compile = Callable[..., Steps]

MESSAGES = (
    Message("a", b'{"n": 0}', key=b"k", headers=(("h", b"v"), ("h", None)), source_id="s"),
    Message("b", None, op="delete", content_type=None),
    Message("a", b'{"n": 2}', phase="copy", timestamp=9),
)
EXACT = b'{ "n":1.10, "big":12345678901234567890, "e":1E5, "u":"\\u00e9\\/", "n":1.10 }'


def script(body: str) -> dict[str, Any]:
    """Return a step whose function ``transform`` has this body."""
    lines = "".join(f"  {line}\n" for line in body.split("\n"))
    return {"starlark": {"code": f"def transform(message):\n{lines}"}}


def made(steps: Steps, *messages: Message) -> list[tuple[int, Message]]:
    """Return the offsets and messages that *steps* make of *messages*, which stay as they are."""
    batch, same = batch_of(*messages), batch_of(*messages)
    entries = rows_of(steps.apply(batch))
    assert batch.equals(same)
    assert {entry.logged_at for entry in entries} <= {LOGGED_AT}
    return [(entry.offset, entry.message) for entry in entries]


def failure(steps: Steps, *messages: Message) -> StepFailed:
    """Return the failure of *steps* at *messages*. Entries before it go through."""
    batch = batch_of(*messages)
    with pytest.raises(StepFailed) as caught:
        steps.apply(batch)
    before, failed = steps.apply_before_failure(batch)
    assert failed is not None
    assert failed.args == caught.value.args
    assert {entry.offset for entry in rows_of(before)} <= set(range(100, failed.offset))
    assert pickle.loads(pickle.dumps(failed)).args == failed.args  # noqa: S301 - ours
    return failed


def test_a_message_can_be_changed_in_its_place(steps: Compile) -> None:
    """A changed message takes the place of its entry, and the others stay as they were."""
    turn = script(
        'if message["op"] == "delete":\n'
        "  return message\n"
        'message["data"]["x"] = [None, True, (1,), -1.5, "\\n"]\n'
        'message["headers"] = [("x", "y")]\n'
        "return message"
    )
    first, second, third = MESSAGES
    data = b'{"n": %d, "x": [null, true, [1], -1.5, "\\n"]}'
    assert made(steps(turn), *MESSAGES) == [
        (100, replace(first, data=data % 0, headers=(("x", b"y"),))),
        (101, second),
        (102, replace(third, data=data % 2, headers=(("x", b"y"),))),
    ]


def test_a_new_message_has_what_it_lacks_from_the_old_one(steps: Compile) -> None:
    """A dict of some fields is a message, and the other fields are those of the entry."""
    first, second, third = MESSAGES
    turn = script('return {"op": "noop"}')
    assert made(steps(turn), *MESSAGES) == [
        (100, replace(first, op="noop")),
        (101, replace(second, op="noop")),
        (102, replace(third, op="noop")),
    ]


def test_none_skips_and_a_list_multiplies(steps: Compile) -> None:
    """An entry can vanish or become several with its offset, in the order given."""
    turn = script(
        'if message["op"] == "delete":\n'
        "  return None\n"
        'return [message] + [{"data": {"n": n}} for n in range(2)]'
    )
    first, _, third = MESSAGES
    assert made(steps(turn), *MESSAGES) == [
        *((100, each) for each in (first, first, replace(first, data=b'{"n": 1}'))),
        *((102, replace(third, data=data)) for data in (b'{"n": 2}', b'{"n": 0}', b'{"n": 1}')),
    ]


@pytest.mark.parametrize("nothing", ["None", "[]", "()", "[message][1:]"])
def test_everything_can_vanish(steps: Compile, nothing: str) -> None:
    """A batch of which nothing is left is empty, not missing."""
    assert made(steps(script(f"return {nothing}")), *MESSAGES) == []


def test_a_script_without_a_return_skips(steps: Compile) -> None:
    """A function that ends without a value returns None, which leaves the entry out."""
    assert made(steps(script("pass")), *MESSAGES) == []


def test_what_is_returned_as_it_was_keeps_its_bytes(steps: Compile) -> None:
    """Unchanged data keeps every byte, whether or not other fields change."""
    batch = batch_of(Message("a", EXACT), *MESSAGES)
    assert steps(script("return message")).apply(batch) is batch
    assert steps(script('return {"data": message["data"]}')).apply(batch) is batch
    after = steps(script('message["namespace"] = "z"\nreturn message')).apply(batch)
    for name in ("data", "key", "offset"):
        old, new = batch.column(name), after.column(name)
        assert new.buffers()[-1].address == old.buffers()[-1].address


def test_a_changed_document_keeps_numbers_that_did_not_change(steps: Compile) -> None:
    """Integers of any length, and decimals that only moved, are spelt as they were."""
    turn = script('data = message["data"]\ndata["moved"] = data.pop("n")\nreturn message')
    document = b'{"n": 12345678901234567890.10, "a": [1.50, -0.0, 1E5, 3.0], "b": %d, "c": -7}'
    ((_, message),) = made(steps(turn), Message("a", document % 10**300))
    assert message.data == (
        b'{"a": [1.50, -0.0, 1E5, 3.0], "b": %d, "c": -7, "moved": 12345678901234567890.10}'
        % 10**300
    )


def test_decimals_that_cannot_be_told_apart_are_refused(steps: Compile) -> None:
    """Two decimals that are one float are not mixed up: a changed document with them fails."""
    turn = steps(script('message["data"]["x"] = 1\nreturn message'))
    for pair in (
        b"0.1, 0.10000000000000000001",
        b"0.10000000000000000001, 0.1",
        b"0.10000000000000000001, 0.1, 0.10000000000000000001",
        b"0.0, 1e-99999999999999999999",
    ):
        failed = failure(turn, Message("a", b"{}"), Message("a", b'{"a": [%b]}' % pair))
        assert failed.offset == 101
        assert "a decimal that stands for two different decimals of the data" in str(failed)
    same = Message("a", b'{"a": [0.1, 0.10, 1.00e-1]}')
    ((_, message),) = made(turn, same)
    assert message.data == b'{"a": [0.1, 0.1, 0.1], "x": 1}'


@pytest.mark.parametrize(
    ("change", "data"),
    [("True", b'{"n": true}'), ("1.0", b'{"n": 1.0}'), ("1", None)],
)
def test_equal_values_of_other_types_are_changes(
    steps: Compile, change: str, data: bytes | None
) -> None:
    """1, 1.0 and true are equal to Python, and still three different documents."""
    given = Message("a", b'{"n":1}')
    turn = script(f'message["data"]["n"] = {change}\nreturn message')
    assert made(steps(turn), given) == [(100, replace(given, data=data or given.data))]


def test_the_order_of_fields_is_a_change(steps: Compile) -> None:
    """A document whose fields come in another order is another document."""
    turn = script('data = message["data"]\ndata["a"] = data.pop("a")\nreturn message')
    ((_, message),) = made(steps(turn), Message("a", b'{"a":1,"b":2}'))
    assert message.data == b'{"b": 2, "a": 1}'


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ('{"namespace": "größe\\n"}', {"namespace": "größe\n"}),
    ('{"data": None}', {"data": None}),
    ('{"key": None}', {"key": None}),
    ('{"key": "é\\x00"}', {"key": b"\xc3\xa9\0"}),
    ('{"key": b"\\xff\\x00é"}', {"key": b"\xff\0\xc3\xa9"}),
    ('{"op": "noop"}', {"op": "noop"}),
    ('{"phase": "complete"}', {"phase": "complete"}),
    ('{"timestamp": -(1 << 63)}', {"timestamp": -(2**63)}),
    ('{"source_id": None}', {"source_id": None}),
    ('{"content_type": "text/plain", "data": "x\\x00"}',
     {"content_type": "text/plain", "data": b"x\0"}),
    ('{"content_type": None, "data": b"\\xfe"}', {"content_type": None, "data": b"\xfe"}),
    ('{"headers": []}', {"headers": ()}),
    ('{"headers": [("n", None), ["n", "1"], ("", b"\\xff")]}',
     {"headers": (("n", None), ("n", b"1"), ("", b"\xff"))}),
]  # fmt: skip


@pytest.mark.parametrize(("returned", "change"), CHANGES)
def test_every_field_can_be_changed(steps: Compile, returned: str, change: dict[str, Any]) -> None:
    """Any field of any message arrives changed."""
    expected = [(100 + n, replace(each, **change)) for n, each in enumerate(MESSAGES)]
    assert made(steps(script(f"return {returned}")), *MESSAGES) == expected


GIVEN = [
    # the message, and its form in a script: `repr` of the field
    (Message("a", b"", content_type=None), "data", '""'),
    (Message("a", None), "data", "None"),
    (Message("a", b"null"), "data", "None"),
    (Message("a", b" [1, 2.0, true, null] "), "data", "[1, 2.0, True, None]"),
    (Message("a", b'"\\u0000\\ud83d\\ude00"'), "data", '"\\x00😀"'),
    (Message("a", b"{}", content_type="text/json; charset=utf-8"), "data", "{}"),
    (Message("a", b"{}", content_type="application/vnd.x+json"), "data", "{}"),
    (Message("a", b"{}", content_type="text/plain"), "data", '"{}"'),
    (Message("a", b"\x00\xff'\"\\\n", content_type="x/y"), "data", "b\"\\x00\\xff'\\\"\\\\\\n\""),
    (Message("a", b"{}", key=b"caf\xc3\xa9\x00"), "key", '"café\\x00"'),
    (Message("a", b"{}", key=b"\xff\x00"), "key", 'b"\\xff\\x00"'),
    (Message("a", b"{}", headers=(("n", None), ("n", b"\xff"), ("n", b"x"))), "headers",
     '[["n", None], ["n", b"\\xff"], ["n", "x"]]'),
    (Message("a\u2028\x7f", b"{}"), "namespace", '"a\\u2028\\x7f"'),
    (Message("a", b"{}", timestamp=-(2**63)), "timestamp", str(-(2**63))),
    (Message("a", b"{}", source_id="s"), "source_id", '"s"'),
]  # fmt: skip


@pytest.mark.parametrize(("message", "field", "expected"), GIVEN)
def test_a_script_sees_each_field(
    steps: Compile, message: Message, field: str, expected: str
) -> None:
    """JSON is parsed. Other bytes are text where they are UTF-8, and bytes where not."""
    turn = script(f'return {{"content_type": "text/plain", "data": repr(message["{field}"])}}')
    ((_, returned),) = made(steps(turn), message)
    assert returned.data == expected.encode()


def test_data_can_be_declared_to_be_json(steps: Compile) -> None:
    """Data that is given another content type keeps its bytes, if the type is right for it."""
    turn = steps(script('return {"content_type": "application/json"}'))
    good = Message("a", EXACT, content_type=None)
    assert made(turn, good) == [(100, replace(good, content_type="application/json"))]
    failed = failure(turn, good, Message("a", b"no", content_type="text/plain"))
    assert failed.offset == 101
    assert "transform returned data is not JSON" in str(failed)


def test_the_step_has_its_own_filter(steps: Compile) -> None:
    """A script is called for the namespaces of its step only."""
    turn = script('return {"op": "noop"}')
    turn["starlark"]["namespace"] = "^b$"
    ops = [message.op for _, message in made(steps(turn), *MESSAGES)]
    assert ops == ["insert", "noop", "insert"]


def test_an_empty_batch_stays_one(steps: Compile) -> None:
    """An empty batch is not passed to the script."""
    batch = batch_of()
    assert steps(script('fail("called")')).apply(batch) is batch


def test_a_script_can_multiply_what_was_multiplied(steps: Compile) -> None:
    """Two scripts, one after the other, keep the offset through both, and a failure names it."""
    twice = script("return [message, message]")
    assert [offset for offset, _ in made(steps(twice, twice), *MESSAGES[:2])] == [100] * 4 + [
        101
    ] * 4
    picky = script('return message if message["op"] != "delete" else fail("no")')
    assert failure(steps(twice, picky), *MESSAGES).offset == 101


WRONG = [
    # the function's result, and its report
    ("5", "int; it may return a message (a dict), a list of them, or None"),
    ("'text'", "str; it may return a message"),
    ("True", "bool; it may return a message"),
    ("b'x'", "bytes; it may return a message"),
    ("[message, None]", "NoneType; it may return a message"),
    ("[[message]]", "list; it may return a message"),
    ("transform", "a value of Starlark's own, which JSON does not have"),
    ('{"date": 1}', "a message with a field that is not one of namespace, data, key"),
    ("{5: 1}", "a key that is not text"),
    ('{"content_type": "text/json", "data": b"x"}', "bytes in data"),
    ('{"data": {1: 2}}', "a key that is not text"),
    ('{"data": {"a": print}}', "a value of Starlark's own"),
    ('{"data": range(3)}', "a value of Starlark's own"),
    ('{"data": "ab".elems()}', "JSON does not have"),
    ('{"data": float("nan")}', "a number that is not finite"),
    ('{"data": [float("+inf")]}', "a number that is not finite"),
    ('{"data": -float("inf")}', "a number that is not finite"),
    ('{"data": "é"[:1]}', "text that is not UTF-8"),
    ('{"data": int("1" * 5000)}', "a number of too many digits"),
    ('{"namespace": None}', "a Message whose namespace (NoneType) is not text"),
    ('{"namespace": b"x"}', "a Message whose namespace (bytes) is not text"),
    ('{"key": 5}', "a Message whose key (int) is not bytes or None"),
    ('{"op": "upsert"}', "a Message whose op (str) is not one of insert, update, delete,"),
    ('{"phase": None}', "a Message whose phase (NoneType) is not one of copy, sync, complete"),
    ('{"timestamp": 1.5}', "a Message whose timestamp (float) is not microseconds"),
    ('{"timestamp": 1 << 63}', "a Message whose timestamp (int) is not microseconds"),
    ('{"headers": {"a": "b"}}', "a Message whose headers (dict) is not pairs"),
    ('{"headers": [("a",)]}', "a Message whose headers (tuple) is not pairs"),
    ('{"headers": [(1, "a")]}', "a Message whose headers (tuple) is not pairs"),
    ('{"content_type": "text/plain", "data": {}}', "data that is neither text nor bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("returned", "expected"), WRONG)
def test_a_wrong_return_names_the_entry(steps: Compile, returned: str, expected: str) -> None:
    """A result that is not a message is refused, and the entries before it go through."""
    turn = script(f'return message if message["data"] == {{"n": 0}} else {returned}')
    failed = failure(steps(turn), *MESSAGES)
    assert failed.offset == 101
    assert str(failed).startswith("starlark: code: transform returned ")
    assert expected in str(failed)


def test_a_value_that_holds_itself_is_refused(steps: Compile) -> None:
    """A list in itself, which JSON cannot write, fails the entry and does not hang."""
    turn = script('x = []\nx.append(x)\nreturn {"data": x}')
    assert "a value that contains itself" in str(failure(steps(turn), *MESSAGES))


RAISED = [
    # the function's body, the line of the mistake, and its words
    ('return message["dta"]', 2, 'key "dta" not in dict'),
    ("return helper(message)\n\ndef helper(m):\n  return 1 // 0".replace("\n\ndef", "\n\x00def"), 5,
     "floored division by zero"),
    ('fail("two\\nlines", 5)', 2, "fail: two lines 5"),
    ('fail("é"[:1] + "\\x00")', 2, "fail: "),
    # Of a call that is refused the place is where the function begins.
    ("return transform(message)", 0, "function transform called recursively"),
    ("x = [1]\nfor y in x:\n  x.append(y)", 4, "append: cannot append to list during iteration"),
    ("return message.data", 2, "dict has no .data field or method"),
    ("SEEN.append(1)", 2, "append: cannot append to frozen list"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "line", "expected"), RAISED)
def test_an_error_names_the_entry_and_the_line(
    steps: Compile, body: str, line: int, expected: str
) -> None:
    """A script that fails in the middle of a batch is reported by entry, line and reason."""
    inner, _, rest = body.partition("\x00")
    turn = script('if message["op"] == "insert":\n  return message\n' + inner)
    turn["starlark"]["code"] += f"{rest}\nSEEN = []\n"
    failed = failure(steps(turn), MESSAGES[0], *MESSAGES[:2], MESSAGES[0], MESSAGES[1])
    assert failed.offset == 102
    assert str(failed).startswith(f"starlark: code:{line + 2}: {expected}"), str(failed)
    assert str(failed).isprintable()


def test_an_error_that_does_not_tell_its_place_is_found(
    steps: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error without a trace is looked for message by message, and names the right entry."""
    monkeypatch.setattr("transporter.pipeline.steps.starlark._failed_index", lambda _: None)
    failed = failure(steps(script('return {"op": message["data"]["n"] and 5}')), *MESSAGES[::2])
    assert failed.offset == 100
    picky = script('return {} if message["data"] != {"n": 2} else fail("here")')
    failed = failure(steps(picky), *MESSAGES, MESSAGES[0], MESSAGES[2])
    assert (failed.offset, str(failed)) == (102, "starlark: code:2: fail: here")


def test_the_first_entry_that_fails_counts(steps: Compile) -> None:
    """The first of unusable data, a failing script and a wrong return is reported."""
    turn = steps(
        script(
            'if message["data"] == "raise":\n  fail("raised")\n'
            'return message if message["data"] != "wrong" else 5'
        )
    )
    kinds = {b'"raise"': "raised", b'"wrong"': "int; it may", b"{": "not JSON"}
    for first, told in kinds.items():
        rest = [each for each in kinds if each != first]
        failed = failure(turn, *(Message("a", each) for each in (b"1", first, *rest, first)))
        assert failed.offset == 101
        assert told in str(failed)


def test_a_long_text_is_cut(steps: Compile) -> None:
    """An error that repeats a whole document does not fill the log."""
    assert len(str(failure(steps(script('fail("x" * 100000)')), *MESSAGES))) < 1_000


def test_a_script_prints_to_standard_error(
    steps: Compile, capfd: pytest.CaptureFixture[str]
) -> None:
    """``print`` writes one printable line to standard error, and nothing to standard output."""
    turn = script('print("é"[:1], "a\\nb\\x1b", 5, sep="-")\nprint()\nreturn message')
    made(steps(turn), MESSAGES[0])
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "starlark code: \N{REPLACEMENT CHARACTER}-a b\\x1b-5\nstarlark code: \n"


def test_the_names_of_json_are_known(steps: Compile) -> None:
    """``null``, ``true`` and ``false`` have their JSON meaning."""
    turn = script('return {"data": [null, true, false]}')
    assert made(steps(turn), MESSAGES[0])[0][1].data == b"[null, true, false]"


def test_a_script_may_have_names_that_we_use(steps: Compile) -> None:
    """A script that redefines names of Starlark's own affects only itself."""
    turn = script('return {"data": [repr, len, type]}')
    turn["starlark"]["code"] += "repr, len, type, print, None = 1, 2, 3, 4, 5\n"
    assert made(steps(turn), MESSAGES[0])[0][1].data == b"[1, 2, 3]"


HOSTILE = [
    b"NaN",
    b"[Infinity]",
    b"1e400",
    b"-1e400",
    b"[1e400, 1e99999999999999999999]",
    b'"\\ud800"',
    b'{"\\udfff": 1}',
    b'"\\ud83d\\ud83d\\ude00"',
    b"\xff",
    b'"\xc3"',
    b'"\xed\xa0\x80"',
    b"\xef\xbb\xbf{}",
    '"ü"'.encode("utf-16"),
    b"",
    b" ",
    b"{",
    b"{} {}",
    b"[1,]",
    b"{'a': 1}",
    b'"a\x00b"',
    b'"a\nb"',
    b"01",
    b"1" * 5_000,
    b"[" * 513 + b"]" * 513,
    b"[" * 10_000 + b"]" * 10_000,
    b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    b"[" * 100_000,
]
EXTREME = [
    b'{"a": 12345678901234567890, "b": -98765432109876543210}',
    b"1" * 4_000,
    b"[1e-99999999999999999999]",
    b"[5e-324, 1.7976931348623157e308, -0.0, 0.1, 1e16, 123456789.12345679, 1e22]",
    b'"' + b"".join(b"\\u%04x" % n for n in range(0x20)) + b'"',
    b'{"\\u0000": "\\u0000"}',
    '"\u00a0\u2028\ufeff\ufffd\uffff\x7f\x80\U0001f600\U000e0001\U0010ffff"'.encode(),
    b'{"": "", "\\"": "\\\\", "\\\\u0000": "\\\\"}',
    b"[" * 512 + b"]" * 512,
    b'{"a":' * 511 + b"[]" + b"}" * 511,
    b"[" + b",".join([b"[]"] * 2_000) + b"]",
    b"{" + b",".join(b'"%d":%d' % (n, n) for n in range(100_000)) + b"}",
    b'"(1,) None True b\\"x\\" [...] nan \\\\x00 1.10"',
]


@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: repr(data[:20]))
def test_data_that_no_script_can_be_given_fails_its_entry(steps: Compile, data: bytes) -> None:
    """Hostile data fails the step at its entry and at no other, without repeating the data."""
    neighbour = Message("a", b"{}")
    turn = steps(script('return {"op": "noop"}'))
    failed = failure(turn, neighbour, Message("a", data), neighbour)
    assert failed.offset == 101
    assert len(str(failed)) < 100
    before, _ = turn.apply_before_failure(batch_of(neighbour, Message("a", data)))
    assert [entry.message.op for entry in rows_of(before)] == ["noop"]


@pytest.mark.parametrize("data", EXTREME, ids=lambda data: repr(data[:20]))
def test_extreme_data_is_exact(steps: Compile, data: bytes) -> None:
    """Data at the limits keeps its bytes where it is not changed, and its value where it is."""
    same = Message("a", data)
    assert made(steps(script('message["op"] = "noop"\nreturn message')), same) == [
        (100, replace(same, op="noop"))
    ]
    if data.count(b"[") + data.count(b"{") in (511, 512):
        return  # there is not room for one more level
    ((_, around),) = made(steps(script('return {"data": [message["data"]]}')), same)
    ((_, back),) = made(steps(script('return {"data": message["data"][0]}')), around)
    ((_, again),) = made(steps(script('return {"data": [message["data"]]}')), back)
    assert again == around
    assert made(steps(script(UNPACK)), around) == [(100, replace(around, data=back.data))]
    assert back.data is not None
    assert _value(back.data) == _value(data)


UNPACK = 'message["data"] = message["data"][0]\nreturn message'


def _value(data: bytes) -> object:
    return json.loads(data)


def test_what_a_script_nests_too_deep_is_refused(steps: Compile) -> None:
    """A script cannot make data that the next step would refuse as too deep."""
    turn = script(
        "data = []\nfor _ in range(%d):\n  data = [data]\nreturn {'data': data}"
    )  # fmt: skip
    deep, deeper = ({"starlark": {"code": turn["starlark"]["code"] % n}} for n in (511, 512))
    ((_, message),) = made(steps(deep), MESSAGES[0])
    assert message.data == b"[" * 512 + b"]" * 512
    assert "more than 512 levels" in str(failure(steps(deeper), *MESSAGES))


def test_a_batch_is_one_crossing(steps: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is called once for any number of messages, at most three times on failure."""
    step = steps(script('return message if message["data"]["n"] != 900 else fail("x")'))
    messages = [Message("a", b'{"n": %d}' % n) for n in range(1_000)]
    calls: list[int] = []
    results = type(step.steps[0].script).results  # type: ignore[attr-defined]

    def counted(script: object, sources: list[str]) -> list[str]:
        calls.append(len(sources))
        return results(script, sources)  # type: ignore[no-any-return]

    monkeypatch.setattr(type(step.steps[0].script), "results", counted)  # type: ignore[attr-defined]
    step.apply(batch_of(*messages[:900]))
    assert calls == [900]
    calls.clear()
    with pytest.raises(StepFailed) as caught:
        step.apply(batch_of(*messages))
    assert caught.value.offset == 1_000
    assert calls == [1_000, 900, 900]


@pytest.mark.exhaustive
def test_many_batches_leave_no_memory_behind(steps: Compile) -> None:
    """Memory of crossing values is returned: the process does not grow with its batches."""
    step = steps(script('return {"data": {"list": message["data"]["list"] + ["x" * 100] * 100}}'))
    batch = with_offsets(messages_to_batch([Message("a", b'{"list": [1]}')] * 200), 0, 0)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for _ in range(10):
        step.apply(batch)
    before = resident()
    for _ in range(30):
        step.apply(batch)
    # Each batch returns 20 000 strings of 100 letters.
    assert resident() - before < 30 * 20_000 * 100 / 2
