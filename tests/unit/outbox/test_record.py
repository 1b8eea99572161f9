"""Tests of valid outbox records, and of the errors for invalid ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from transporter.log.commit_log import split_for_append
from transporter.message import Message, messages_to_batch
from transporter.outbox import LONGEST_TOPIC, MOST_BYTES, Record


def test_headers_keep_their_order_and_may_repeat() -> None:
    """Pairs stay unchanged, a mapping becomes pairs, and a generator is read once."""
    pairs = [("a", "1"), ("b", "2"), ("a", "3")]
    assert Record("t", "k", "v", pairs).pairs == tuple(pairs)
    assert Record("t", "k", "v", (pair for pair in pairs)).pairs == tuple(pairs)
    assert Record("t", "k", "v", {"x": "1", "y": "2"}).pairs == (("x", "1"), ("y", "2"))
    assert Record("t", "k", None).pairs == ()


def test_a_document_becomes_json() -> None:
    """Big integers and letters of any language survive, without needless escapes."""
    document = {"n": 12345678901234567890, "who": "Björn 鍵 🐎", "none": None}
    record = Record.json("orders", "7", document, {"trace": "1"})
    assert record.value is not None
    assert "Björn 鍵 🐎" in record.value
    assert json.loads(record.value) == document
    assert record == Record("orders", "7", record.value, [("trace", "1")])


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        (("", "k", "v"), ValueError, "topic has 0 characters; use 1 to 249"),
        (("t" * 250, "k", "v"), ValueError, "topic has 250 characters"),
        ((None, "k", "v"), TypeError, "topic must be str, not NoneType"),
        (("t", None, "v"), TypeError, "use the id of the changed object"),
        (("t", 7, "v"), TypeError, r"key must be str, not int; convert it with str\(...\)"),
        (("t", b"k", "v"), TypeError, "key must be str, not bytes; decode it"),
        (("t", "k", {"a": 1}), TypeError, "Record.json"),
        (("t", "k", b"{}"), TypeError, "value must be str, not bytes"),
        (("t", "k\0", "v"), ValueError, "key contains a NUL character"),
        (("t", "k", "\ud800"), ValueError, "contains half of a surrogate pair at character 0"),
        (("t", "k", "v", "ab"), TypeError, "headers must be pairs of str.*not str"),
        (("t", "k", "v", 5), TypeError, "not int"),
        (("t", "k", "v", ["ab"]), TypeError, "one of them is str"),
        (("t", "k", "v", [("a", "b", "c")]), TypeError, "one of them is tuple"),
        (("t", "k", "v", [(1, "b")]), TypeError, "a header's name must be str, not int"),
        (("t", "k", "v", {"a": None}), TypeError, "header 'a' must be str, not NoneType"),
        (("t", "k", "v", {"a": "\0"}), ValueError, "header 'a' contains a NUL"),
    ],
)
def test_what_is_no_record_is_refused(
    arguments: tuple[Any, ...], error: type[Exception], told: str
) -> None:
    """Each mistake is raised where it is made, and the error names the correct form."""
    with pytest.raises(error, match=told):
        Record(*arguments)


@pytest.mark.parametrize("document", [{"x": float("nan")}, {"x": float("inf")}, {"x": {1}}])
def test_what_json_cannot_say_is_refused(document: dict[str, Any]) -> None:
    """A value that only Python could read is refused."""
    with pytest.raises((TypeError, ValueError)):
        Record.json("t", "k", document)


def test_a_record_is_immutable() -> None:
    """A checked record cannot be changed."""
    record = Record("t", "k", "v")
    with pytest.raises(AttributeError):
        record.key = "other"  # type: ignore[misc] # the point of it


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        ("k", "x" * (MOST_BYTES - 1 - LONGEST_TOPIC), ()),
        ("é" * (MOST_BYTES // 2 - LONGEST_TOPIC), "", ()),
        ("k", "v", (("", ""),) * (MOST_BYTES // 16 - LONGEST_TOPIC)),
    ],
)
def test_the_largest_record_fits_into_the_log(
    key: str, value: str, headers: tuple[tuple[str, str], ...]
) -> None:
    """The engine can append the largest valid record, and a larger one is refused."""
    topic = "t" * LONGEST_TOPIC
    record = Record(topic, key, value, headers)
    message = Message(
        topic,
        (record.value or "").encode(),
        record.key.encode(),
        source_id="s" * 200,
        headers=tuple((name, text.encode()) for name, text in record.pairs),
    )
    (batch,) = split_for_append(messages_to_batch([message]))
    assert batch.num_rows == 1
    with pytest.raises(ValueError, match=f"the log's limit is {MOST_BYTES}"):
        Record(topic, key, value + "x" * (17 * LONGEST_TOPIC), headers)
