"""Markers and their headers as bytes."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from transporter.queue.failures import BadMarker
from transporter.queue.markers import (
    End,
    KeepAlive,
    Marker,
    Nack,
    Start,
    decode_marker,
    encode_marker,
)
from transporter.queue.message import pack_headers, unpack_headers

headers = st.lists(
    st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=10)), max_size=4
).map(tuple)


@given(headers)
def test_headers_come_back_as_they_were(given: tuple[tuple[str, bytes | None], ...]) -> None:
    """Packed headers lose nothing: order, repeated names, empty and absent values."""
    assert unpack_headers(pack_headers(given)) == given


offsets = st.lists(st.integers(0, 2**63 - 1), max_size=5).map(tuple)
partitions = st.integers(0, 2**31 - 1)
millis = st.integers(0, 2**62)
texts = st.text(max_size=20)


@st.composite
def starts(draw: st.DrawFn) -> Start:
    """Return a strategy for any Start."""
    count = draw(st.integers(0, 5))
    sized = {"min_size": count, "max_size": count}
    return Start(
        draw(texts),
        draw(partitions),
        tuple(draw(st.lists(st.integers(0, 2**63 - 1), **sized))),
        draw(millis),
        tuple(draw(st.lists(st.none() | st.binary(max_size=20), **sized))),
        tuple(draw(st.lists(st.binary(max_size=20), **sized))),
        draw(st.booleans()),
    )


markers = st.one_of(
    starts(),
    st.builds(KeepAlive, partitions, offsets, millis),
    st.builds(End, partitions, offsets),
    st.builds(Nack, partitions, offsets, millis, texts, st.booleans()),
)


@given(markers)
def test_a_marker_comes_back_as_it_was(marker: Marker) -> None:
    """Every marker survives its bytes."""
    assert decode_marker(encode_marker(marker)) == marker


@given(markers, st.data())
def test_no_changed_byte_goes_unseen(marker: Marker, data: st.DataObject) -> None:
    """A marker with one byte changed is refused, never taken for another one."""
    encoded = bytearray(encode_marker(marker))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadMarker):
        decode_marker(bytes(encoded))


@given(markers, st.data())
def test_a_cut_marker_is_refused(marker: Marker, data: st.DataObject) -> None:
    """A marker without its end, or with something behind it, is refused."""
    encoded = encode_marker(marker)
    with pytest.raises(BadMarker):
        decode_marker(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    with pytest.raises(BadMarker):
        decode_marker(encoded + b"\0")


@given(st.binary(max_size=100))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    """Bytes of another program raise the error for a foreign marker."""
    with pytest.raises(BadMarker):
        decode_marker(data)


FAULTS = ("", "kind", "flag", "partition", "time", "text", "length", "end")


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """Return a strategy for the bytes behind a checksum, with one of :data:`FAULTS` or none."""
    fault = draw(st.sampled_from(FAULTS))
    kind = 1 if fault in ("text", "length") else draw(st.integers(1, 4))
    # A keep-alive and an end have neither text nor flag, and an end has no time.
    text = draw(texts).encode() if kind in (1, 4) else b""
    text += b"\xff" if fault == "text" else b""
    flag = draw(st.integers(0, 1)) if kind in (1, 4) else 0
    time = draw(st.integers(0, 9)) if kind != 3 else 0
    count = draw(st.integers(1 if fault == "length" else 0, 2))
    body = struct.pack(
        "<BBHiIq",
        kind if fault != "kind" else draw(st.sampled_from([0, 5])),
        flag if fault != "flag" else 2,
        len(text),
        draw(partitions) if fault != "partition" else -1,
        count,
        time if fault != "time" else -1,
    )
    body += text + struct.pack(f"<{count}q", *range(count))
    if kind == 1:
        lengths = [draw(st.integers(-1, 3)) for _ in range(count)]
        lengths[:1] = [-2] if fault == "length" else lengths[:1]
        sizes = [draw(st.integers(0, 2)) for _ in range(count)]
        body += struct.pack(f"<{count}i{count}I", *lengths, *sizes)
        body += bytes(sum(max(0, length) for length in lengths) + sum(sizes))
    return fault, body if fault != "end" else body + b"\0"


@given(bodies())
def test_a_forged_marker_is_refused_for_one_fault(forged: tuple[str, bytes]) -> None:
    """With a valid checksum a marker is read if it is whole, and refused for any fault in it."""
    fault, body = forged
    if fault:
        with pytest.raises(BadMarker):
            decode_marker(checksummed(body))
    else:
        assert encode_marker(decode_marker(checksummed(body))) == checksummed(body)


@given(st.binary(max_size=100))
def test_any_body_is_refused_or_has_a_meaning(body: bytes) -> None:
    """Any bytes behind a valid checksum are refused, or mean a marker that can be written."""
    try:
        found = decode_marker(checksummed(body))
    except BadMarker:
        return
    assert decode_marker(encode_marker(found)) == found


def checksummed(body: bytes) -> bytes:
    """Return *body* behind a valid magic, version and checksum."""
    return b"TQM\1" + crc32c(body).to_bytes(4, "little") + body
