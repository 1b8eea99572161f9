"""Tests of the headers of a message."""

from __future__ import annotations

import pytest

from transporter.queue.failures import BadMarker
from transporter.queue.message import (
    KEY,
    REASON,
    REDELIVERIES,
    TIME,
    dead_letter_headers,
    message_from_record,
    redelivery_count,
    redelivery_headers,
    unpack_headers,
)


@pytest.mark.parametrize("data", [b"\1", b"\1\0\1\0\0\0n", b"\1\0\xf0\xff\xff\xffn"])
def test_damaged_headers_are_refused(data: bytes) -> None:
    """Headers that are truncated, or have impossible lengths, are an error."""
    with pytest.raises(BadMarker, match="damaged headers"):
        unpack_headers(data)


def test_a_program_sees_its_own_headers_and_key_only() -> None:
    """Our headers are removed and returned as fields."""
    ours = redelivery_headers([(KEY, b"k"), ("a", b"1")], "queue", (2, 40), 1)
    message = message_from_record((3, 50), "orders", b"v", ours, 12)
    assert (message.key, message.headers, message.redeliveries) == (b"k", (("a", b"1"),), 1)
    assert (message.id, message.origin, message.sent) == ((3, 50), (2, 40), 12)


def test_the_origin_is_the_first_place_for_ever() -> None:
    """A message redelivered twice has its first place as origin, and a count of two."""
    once = redelivery_headers((), "queue", (2, 40), 1)
    twice = redelivery_headers(once, "queue", (3, 50), 2)
    assert message_from_record((0, 9), "q", None, twice, -1).origin == (2, 40)
    assert redelivery_count(twice) == 2
    assert len(twice) == len(once)


def test_a_dead_letter_says_why_and_when() -> None:
    """A dead letter has the reason and time of its last death, and keeps the sender's headers."""
    letter = dict(
        dead_letter_headers(dead_letter_headers([("a", None)], "old", "1"), "slow", "2030-01-01")
    )
    assert letter == {"a": None, REASON: b"slow", TIME: b"2030-01-01"}


def test_a_dead_letter_is_little_larger_than_its_message() -> None:
    """A long reason, as in a marker of an earlier version, is cut."""
    letter = dict(dead_letter_headers((), "x" + "é" * 32_000, "2030-01-01"))
    assert letter[REASON] == ("x" + "é" * 2047).encode()


@pytest.mark.parametrize("value", [b"", b"-1", b"many", b"9" * 400, None])
def test_a_forged_count_counts_nothing(value: bytes | None) -> None:
    """A redelivery count that is not a number counts as 0."""
    assert redelivery_count([(REDELIVERIES, value)]) == 0
