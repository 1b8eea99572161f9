"""Tests of entries from logical messages."""

from __future__ import annotations

import pytest
from transporter_adaptors.postgres_cdc.config import MessageItem
from transporter_adaptors.postgres_cdc.entries import Place
from transporter_adaptors.postgres_cdc.logical import logical_entry
from transporter_adaptors.postgres_cdc.messages import LogicalMessage

from transporter.message import ERROR_HEADER, JSON, Message

PLACE = Place(0x20, 7, 0x10, -1)


def entry(content: str | bytes, **settings: str) -> Message:
    """Return the entry of a message with this content."""
    data = content.encode() if isinstance(content, str) else content
    message = LogicalMessage(transactional=True, lsn=0x10, prefix="transporter", content=data)
    return logical_entry(message, MessageItem.model_validate(settings), PLACE)


def test_a_record_keeps_every_byte_of_its_data() -> None:
    """Digits, order and blanks of the data are the application's."""
    made = entry(
        ' { "headers" : [["a", "1"], ["a", "\\u00e4"]], "data" : '
        '{"z": 1.10,  "a": 12345678901234567890}, "key": "42", "namespace": "orders" } '
    )
    assert made.data == b'{"z": 1.10,  "a": 12345678901234567890}'
    assert (made.namespace, made.key, made.op) == ("orders", b"42", "insert")
    assert made.headers == (("a", b"1"), ("a", "ä".encode()))
    assert (made.source_id, made.timestamp, made.content_type) == (
        "0000000000000020/0000000000000010/m", 7, JSON
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "data"),
    [
        ('{"namespace": "n", "value": "{\\"a\\": 1.10}"}', b'{"a": 1.10}'),
        ('{"namespace": "n", "data": "text"}', b'"text"'),
        ('{"namespace": "n", "data": null}', None),
        ('{"namespace": "n"}', None),
        ('{"namespace": "n", "data": [1,2], "headers": {"a": "b"}}', b"[1,2]"),
    ],
)
def test_data_may_be_any_json_or_a_text(content: str, data: bytes | None) -> None:
    """``value`` is the data as a text, ``data`` is JSON, and without both the key is deleted."""
    made = entry(content)
    assert made.data == data
    assert made.op == ("delete" if data is None else "insert")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("{", "not JSON at character 1"),
        ('{"namespace": "n", }', "not JSON"),
        ('{"namespace" "n"}', "a colon"),
        ("{1: 2}", "a name"),
        ('{"namespace": "n"} x', "there is more"),
        ('{"namespace": "n" "key": "k"}', "a comma"),
        ('{"namespace": "n", "namespace": "m"}', "twice"),
        ('{"namespace": ""}', "no namespace"),
        ('{"key": "k"}', "no namespace"),
        ('{"namespace": 7}', "namespace is not a text"),
        ('{"namespace": "\\ud800"}', "surrogate"),
        ('{"namespace": "n", "topic": "m"}', "unknown field topic"),
        ('{"namespace": "n", "data": 1, "value": "1"}', "data and value"),
        ('{"namespace": "n", "headers": 7}', "headers"),
        ('{"namespace": "n", "headers": [["a"]]}', "headers"),
        ('{"namespace": "n", "headers": [["a", 1]]}', "headers"),
        ('{"namespace": "n", "headers": [["a", "\\udc00"]]}', "surrogate"),
        ('{"namespace": "n", "data": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_a_bad_document_is_logged_with_the_problem(content: str | bytes, problem: str) -> None:
    """The whole content is the data, so nothing is lost, and routes park it."""
    made = entry(content)
    reason = dict(made.headers)[ERROR_HEADER]
    assert reason is not None
    assert problem in reason.decode()
    assert made.namespace == "transporter"
    assert made.data == (content.encode() if isinstance(content, str) else content)
    assert made.content_type is None


def test_a_raw_message_is_its_content() -> None:
    """Its namespace is that of the settings, or the prefix."""
    assert entry(b"\xff\x00", format="raw").data == b"\xff\x00"
    assert entry("x", format="raw").namespace == "transporter"
    assert entry("x", format="raw", namespace="audit").namespace == "audit"
