"""The bytes of a segment: the same when read as when written, and no others accepted."""

from __future__ import annotations

import os
from dataclasses import replace
from uuid import UUID

import pyarrow as pa
import pytest
from crc32c import crc32c

from transporter.errors import Corrupt, UnknownFormat
from transporter.log import format as layout
from transporter.log.format import FrameHeader, SegmentHeader, Source, Trailer
from transporter.log.meta import CleanMark, Meta
from transporter.message import with_offsets
from transporter.testing import hostile_messages
from transporter.testing.hostile import messages_to_batch

SEGMENT = SegmentHeader(
    log_id=bytes(range(16)),
    segment_id=0x0102030405060708,
    base=4096,
    previous=4000,
    next_offset=4100,
    epoch=3,
    created_at=1_700_000_000_000_000,
    positions={"in": "17", "other": "é"},
)
FRAME = FrameHeader(
    extension_length=5,
    payload_length=18,
    entries_bytes=77,
    segment_id=0x0102030405060708,
    byte=96,
    first=4100,
    last=4109,
    count=10,
    extension_crc=7,
    logged_at=1_700_000_000_000_001,
    epoch=3,
    durable=-1,
    payload_crc=9,
)
TRAILER = Trailer(0x0102030405060708, 128, -1, 5, 6)


def test_the_bytes_of_a_segment_header_are_those_of_version_1() -> None:
    """A change of a segment header's bytes makes another format version (Invariant 19)."""
    assert SEGMENT.encode() == bytes.fromhex(
        "54524e53504c4f47 0100 0000 78000000"  # magic, version, nothing, length
        "000102030405060708090a0b0c0d0e0f 0807060504030201"  # log and segment id
        "0010000000000000 a00f000000000000 0410000000000000"  # base, previous, next offset
        "0300000000000000 00401e18240a0600 1f000000"  # epoch, creation, length of the positions
        "7b22696e223a20223137222c20226f74686572223a20225c7530306539227d 00 e863dc49"
    )


def test_the_bytes_of_a_frame_are_those_of_version_1() -> None:
    """A change of a frame's bytes makes another format version (Invariant 19)."""
    assert layout.encode_frame(FRAME, b"12345", b"abcdefghijklmnopqr") == bytes.fromhex(
        "5446524d 5c000000 05000000 12000000"  # magic, lengths of header, extension, payload
        "4d000000"  # bytes of the entries in memory
        "0807060504030201 6000000000000000"  # segment id, own place
        "0410000000000000 0d10000000000000 0a000000"  # first and last offset, count
        "07000000 01401e18240a0600 0300000000000000"  # extension checksum, log time, epoch
        "ffffffffffffffff 09000000 17e2d2ad"  # durable-through, checksums of payload and header
        "3132333435 6162636465666768696a6b6c6d6e6f707172 0000000000"
    )


def test_the_bytes_of_a_trailer_are_those_of_version_1() -> None:
    """A change of a trailer's bytes makes another format version (Invariant 19)."""
    assert TRAILER.encode() == bytes.fromhex(
        "54454e44 34000000 0807060504030201 8000000000000000"  # magic, length, id, own place
        "0000000000000000"  # last offset plus one
        "0500000000000000 0600000000000000 13a843d4"  # oldest and newest log time, checksum
    )


def test_a_segment_header_comes_back_as_it_was() -> None:
    """Every field survives, including positions of any text."""
    strange = replace(SEGMENT, positions={"": "", "é☃": os.fsdecode(b"\xff\x00"), "x" * 999: "1"})
    for header in (SEGMENT, strange, replace(SEGMENT, base=0, previous=-1, positions={})):
        data = header.encode()
        assert len(data) % layout.ALIGNMENT == 0
        assert layout.header_length(data[: layout.SEGMENT_PREFIX_BYTES], "f") == len(data)
        assert SegmentHeader.decode(data, "f") == header


def test_a_frame_header_comes_back_as_it_was() -> None:
    """Every field survives, including an empty log's durable-through of -1."""
    data = FRAME.encode()
    assert len(data) == layout.FRAME_HEADER_BYTES
    assert FrameHeader.decode(data, FRAME.segment_id, FRAME.byte) == FRAME
    assert FrameHeader.decode(data + b"more", FRAME.segment_id, FRAME.byte) == FRAME


def test_a_trailer_comes_back_as_it_was() -> None:
    """Every field survives, including that of a segment without entries."""
    for trailer in (TRAILER, replace(TRAILER, last=10**12)):
        data = trailer.encode()
        assert len(data) == layout.TRAILER_BYTES
        assert Trailer.decode(data, trailer.segment_id, trailer.byte) == trailer


def test_a_source_comes_back_as_it_was() -> None:
    """The reader's name, its position and a checkpoint survive as any text."""
    odd = os.fsdecode(b"\xe9\n\x00")
    for source in (Source("r"), Source("r", odd), Source(odd, "p", {"a": odd, "b": ""})):
        assert Source.decode(source.encode()) == source


def test_a_checkpoint_gives_way_to_a_position_that_needs_the_room() -> None:
    """A position of up to the limit always fits, if need be in place of the checkpoint."""
    position = "p" * (layout.MAX_EXTENSION - 100)
    source = Source("r", position, {"r": "q" * 200})
    assert len(source.encode()) <= layout.MAX_EXTENSION
    assert Source.decode(source.encode()) == Source("r", position)


def test_a_flipped_bit_is_never_taken_for_a_header() -> None:
    """A header or trailer with a flipped bit is rejected (Invariant 2)."""
    frame, trailer, segment = FRAME.encode(), TRAILER.encode(), SEGMENT.encode()
    for bit in range(8 * len(frame)):
        assert FrameHeader.decode(_flipped(frame, bit), FRAME.segment_id, FRAME.byte) is None
    for bit in range(8 * len(trailer)):
        assert Trailer.decode(_flipped(trailer, bit), TRAILER.segment_id, TRAILER.byte) is None
    for bit in range(8 * 16, 8 * len(segment)):
        with pytest.raises(Corrupt):
            SegmentHeader.decode(_flipped(segment, bit), "f")


def _flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_header_counts_only_in_its_own_place() -> None:
    """Bytes of another segment or of another place are not a frame (Invariant 3)."""
    data = FRAME.encode()
    assert FrameHeader.decode(data, FRAME.segment_id + 1, FRAME.byte) is None
    assert FrameHeader.decode(data, FRAME.segment_id, FRAME.byte + 8) is None
    assert Trailer.decode(TRAILER.encode(), TRAILER.segment_id + 1, TRAILER.byte) is None
    assert Trailer.decode(TRAILER.encode(), TRAILER.segment_id, TRAILER.byte + 8) is None


@pytest.mark.parametrize("size", [0, 3, 4, 51, 91])
def test_what_is_cut_short_is_no_header(size: int) -> None:
    """A header cut short at the end of a file is rejected without a read beyond it."""
    assert FrameHeader.decode(FRAME.encode()[:size], FRAME.segment_id, FRAME.byte) is None
    assert Trailer.decode(TRAILER.encode()[: min(size, 51)], TRAILER.segment_id, 128) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"extension_length": layout.MAX_EXTENSION + 1},
        {"payload_length": layout.MAX_PAYLOAD + 1},
        {"count": 0},
        {"count": 11},
        {"first": 4110},
    ],
)
def test_a_frame_header_that_cannot_be_is_none(wrong: dict[str, int]) -> None:
    """Lengths and counts are checked before any allocation for them (Invariant 17)."""
    data = replace(FRAME, **wrong).encode()
    assert FrameHeader.decode(data, FRAME.segment_id, FRAME.byte) is None


@pytest.mark.parametrize("length", [0, 87, layout.MAX_HEADER + 8, 2**32 - 1])
def test_a_segment_header_of_a_length_that_cannot_be_is_corrupt(length: int) -> None:
    """A length is checked before that many bytes are read (Invariant 17)."""
    prefix = bytearray(SEGMENT.encode()[: layout.SEGMENT_PREFIX_BYTES])
    prefix[12:16] = length.to_bytes(4, "little")
    with pytest.raises(Corrupt, match=str(length)):
        layout.header_length(bytes(prefix), "f")


@pytest.mark.parametrize("data", [b"", b"TRNSPLOG", b"\0" * 200, b"PK\3\4" * 50])
def test_a_file_that_is_no_segment_is_said_to_be_none(data: bytes) -> None:
    """A file that is not a segment is named as such."""
    with pytest.raises(Corrupt, match="f: not a log segment"):
        layout.header_length(data, "f")


@pytest.mark.parametrize("version", [0, 2, 65535])
def test_another_version_is_refused_as_such_and_a_damaged_one_as_damage(version: int) -> None:
    """Only a header with a valid checksum can be of an unknown version (Invariant 19)."""
    header = bytearray(SEGMENT.encode())
    header[8:10] = version.to_bytes(2, "little")
    with pytest.raises(Corrupt, match="checksum"):
        SegmentHeader.decode(bytes(header), "f")
    header[-4:] = crc32c(bytes(header[:-4])).to_bytes(4, "little")
    assert layout.header_length(bytes(header[: layout.SEGMENT_PREFIX_BYTES]), "f") == len(header)
    with pytest.raises(UnknownFormat, match=f"version {version}"):
        SegmentHeader.decode(bytes(header), "f")


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("copies", [1, 40])
def test_entries_come_back_as_they_were(compression: str | None, copies: int) -> None:
    """Every value of every column survives, whatever its bytes, lz4 or not (Invariant 2)."""
    batch = messages_to_batch(hostile_messages() * copies)
    entries = with_offsets(batch, 10**12, 1)
    payload = layout.encode_payload(entries, compression)
    read = layout.decode_payload(payload.to_pybytes())
    assert read.equals(entries)
    assert read.schema.equals(entries.schema)


def test_a_slice_of_a_batch_is_written_without_the_rest_of_it() -> None:
    """Only the rows of an Arrow slice are written, although slices share buffers."""
    entries = with_offsets(messages_to_batch(hostile_messages() * 20), 0, 1)
    part = entries.slice(50, 1)
    payload = layout.encode_payload(part, None)
    assert layout.decode_payload(payload.to_pybytes()).equals(part)
    assert len(payload) < layout.encode_payload(entries, None).size / 10


def test_a_payload_is_an_arrow_message_without_its_schema() -> None:
    """A payload is one encapsulated record batch message, whose schema the format defines."""
    entries = with_offsets(messages_to_batch(hostile_messages()), 0, 1)
    payload = layout.encode_payload(entries, None)
    message = pa.ipc.read_message(payload)
    assert message.type == "record batch"
    assert crc32c(payload) == crc32c(payload.to_pybytes())


def test_meta_comes_back_as_it_was() -> None:
    """The mark of a clean stop survives, and so does its absence."""
    for meta in (
        Meta(str(UUID(int=7)), 3, -1),
        Meta(str(UUID(int=7)), 3, 17, CleanMark("0.log", 4096)),
    ):
        assert Meta.decode(meta.encode(), "f") == meta


def test_a_flipped_bit_in_meta_is_corrupt() -> None:
    """A meta file with any flipped bit is refused."""
    data = Meta(str(UUID(int=7)), 3, 17, CleanMark("0.log", 4096)).encode()
    for bit in range(8 * (len(data) - 1)):
        changed = _flipped(data, bit)
        if changed.strip().lower() != data.strip().lower():
            with pytest.raises(Corrupt):
                Meta.decode(changed, "f")
