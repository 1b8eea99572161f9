"""Markers and their headers as bytes."""

from __future__ import annotations

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
def test_whatever_comes_is_refused_as_no_marker(data: bytes) -> None:
    """Foreign bytes raise the error for a foreign marker, even with a valid checksum."""
    for forged in (data, b"TQM\1" + crc32c(data).to_bytes(4, "little") + data):
        try:
            decode_marker(forged)
        except BadMarker:
            continue
