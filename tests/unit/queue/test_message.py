"""What headers say of a message."""

from __future__ import annotations

import pytest

from transporter.queue.failures import BadMarker
from transporter.queue.message import (
    KEY,
    REASON,
    REDELIVERIES,
    TIME,
    count_of,
    dead,
    received,
    redelivered,
    unpack,
)


@pytest.mark.parametrize("data", [b"\1", b"\1\0\1\0\0\0n", b"\1\0\xf0\xff\xff\xffn"])
def test_damaged_headers_are_refused(data: bytes) -> None:
    """Headers that are cut, or have impossible lengths, are an error and not a guess."""
    with pytest.raises(BadMarker, match="damaged headers"):
        unpack(data)


def test_a_program_sees_its_own_headers_and_key_only() -> None:
    """Ours are taken out of the headers and told as fields."""
    ours = redelivered([(KEY, b"k"), ("a", b"1")], "queue", (2, 40), 1)
    message = received((3, 50), "orders", b"v", ours, 12)
    assert (message.key, message.headers, message.redeliveries) == (b"k", (("a", b"1"),), 1)
    assert (message.id, message.origin, message.sent) == ((3, 50), (2, 40), 12)


def test_the_origin_is_the_first_place_for_ever() -> None:
    """A message redelivered twice tells where it was first, and counts to two."""
    once = redelivered((), "queue", (2, 40), 1)
    twice = redelivered(once, "queue", (3, 50), 2)
    assert received((0, 9), "q", None, twice, -1).origin == (2, 40)
    assert count_of(twice) == 2
    assert len(twice) == len(once)


def test_a_dead_letter_says_why_and_when() -> None:
    """Reason and time are those of the last death, and the sender's headers stay."""
    letter = dict(dead(dead([("a", None)], "old", "1"), "slow", "2030-01-01"))
    assert letter == {"a": None, REASON: b"slow", TIME: b"2030-01-01"}


@pytest.mark.parametrize("value", [b"", b"-1", b"many", b"9" * 400, None])
def test_a_forged_count_counts_nothing(value: bytes | None) -> None:
    """A redelivery count that is no number does no harm."""
    assert count_of([(REDELIVERIES, value)]) == 0
