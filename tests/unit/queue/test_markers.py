"""Tests of markers as bytes."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from transporter.queue.failures import UnknownMarker
from transporter.queue.markers import (
    End,
    KeepAlive,
    Marker,
    Nack,
    Start,
    decode_marker,
    encode_marker,
)

START_V1 = (
    "54514d015ae18114010001000300000002000000307500000000000071"
    "0700000000000000090000000000000002000000ffffffff0000000001000000616268"
)
GOLDEN: list[tuple[Marker, str]] = [
    (
        Start("q", 3, (7, 9), 30000, (b"ab", None), (b"", b"h")),
        START_V1,
    ),
    (
        KeepAlive(3, (7,), 30000),
        "54514d016ca6674c02000000030000000100000030750000000000000700000000000000",
    ),
    (
        End(3, (7, 9)),
        "54514d01374ea477030000000300000002000000000000000000000007000000000000000900000000000000",
    ),
    (
        Nack(3, (7,), 5, "no", released=True),
        "54514d01942c367b04010200030000000100000005000000000000006e6f0700000000000000",
    ),
]


@pytest.mark.parametrize(("marker", "encoded"), GOLDEN)
def test_version_1_stays_readable(marker: Marker, encoded: str) -> None:
    """Markers written by version 1 keep their meaning forever."""
    assert decode_marker(bytes.fromhex(encoded)) == marker


def test_another_version_is_refused_by_name() -> None:
    """A marker of a newer version is distinguished from a damaged one, with advice to upgrade."""
    encoded = bytearray(encode_marker(End(0, (1,))))
    encoded[3] = 2
    with pytest.raises(UnknownMarker, match=r"version 2, .* version 1 only; upgrade"):
        decode_marker(bytes(encoded))


def test_an_unknown_kind_is_refused_by_name() -> None:
    """An unknown kind, which a newer program may have added, is refused."""
    body = bytearray(encode_marker(End(0, (1,)))[8:])
    body[0] = 9
    with pytest.raises(UnknownMarker, match="kind 9"):
        decode_marker(b"TQM\1" + crc32c(body).to_bytes(4, "little") + body)


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("mailbox full", "mailbox full"),
        ("é" * 60_000, "é" * 2048),
        ("x" + "é" * 60_000, "x" + "é" * 2047),
        ("x" + "\U0001f600" * 20_000, "x" + "\U0001f600" * 1023),
        ("a\0b", "a\0b"),
        ("lone \ud800 surrogate", "lone ? surrogate"),
    ],
)
def test_a_reason_is_cut_at_the_end_of_a_character(reason: str, kept: str) -> None:
    """Any text makes a marker that can be read, and that is small."""
    found = decode_marker(encode_marker(Nack(0, (1,), 0, reason)))
    assert found == Nack(0, (1,), 0, kept)


def test_many_messages_cost_few_bytes() -> None:
    """An End of a thousand messages is about as large as their offsets."""
    assert len(encode_marker(End(0, tuple(range(1000))))) < 8100
