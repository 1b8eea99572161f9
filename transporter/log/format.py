"""The bytes of a segment file: header, frames, trailer. Pure, without file access.

All integers are little-endian. docs/design/log.md has the diagrams.

A frame's header carries its segment's id and its own place in the file. Stale bytes of an
earlier file, or bytes that a torn write left elsewhere, are therefore never taken for a
frame of this segment (Invariant 3).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field, fields, replace
from operator import ge
from typing import Any, Final, Self

import pyarrow as pa
from crc32c import crc32c

from transporter.errors import Corrupt, MessageTooLarge, UnknownFormat
from transporter.log.arrow_message import claimed_bytes
from transporter.message import ENTRY_SCHEMA

FORMAT: Final = 1
ALIGNMENT: Final = 8
MAX_EXTENSION: Final = 1 << 20
"""Largest size in bytes of a reader's position in a frame."""
MAX_PAYLOAD: Final = 16 << 20
"""Largest size in bytes of a frame's payload, checked before allocation (Invariant 17)."""
MAX_HEADER: Final = 64 << 20
"""Largest size in bytes of a segment header, which repeats every reader's newest position."""

MAX_OFFSET: Final = 1 << 62
"""Upper bound of offsets. No log reaches it, so a higher offset is forged."""
_LATEST: Final = (1 << 63) - 1

_SEGMENT: Final = struct.Struct("<8sHHI16sQQqQQQI")
_FRAME: Final = struct.Struct("<4sIIIIQQQQIIQQqI")
_TRAILER: Final = struct.Struct("<4sIQQQQQ")
_CRC: Final = struct.Struct("<I")
_PACKED: Final = struct.Struct("<4sI")
_PACKED_MAGIC: Final = b"LZ4B"  # an Arrow message begins with four bytes of ones
_LZ4: Final = pa.Codec("lz4_raw")
_LOST: Final = 1
"""The flag of a segment behind a gap of lost entries."""
SEGMENT_MAGIC: Final = b"TRNSPLOG"
FRAME_MAGIC: Final = b"TFRM"
TRAILER_MAGIC: Final = b"TEND"
FRAME_HEADER_BYTES: Final = _FRAME.size + _CRC.size
TRAILER_BYTES: Final = _TRAILER.size + _CRC.size
SEGMENT_PREFIX_BYTES: Final = _SEGMENT.size


def align(size: int) -> int:
    """Round *size* up to the next multiple of :data:`ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _append_checksum(body: bytes) -> bytes:
    return body + _CRC.pack(crc32c(body))


def _parse_json(data: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Parse JSON from an untrusted writer, or raise ``ValueError`` if it is not JSON."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _check_positions(value: object) -> dict[str, str]:
    """Return *value* if it is a valid map of readers' positions, or raise ``ValueError``."""
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise ValueError("they are not readers' positions")
    return value


def _matches_checksum(data: bytes) -> bool:
    return int.from_bytes(data[-4:], "little") == crc32c(memoryview(data)[:-4])


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """A segment's description of itself and of all before it.

    Attributes:
        previous: the last offset that the segments before it cover (-1: none). The offsets
            ``previous + 1 … base - 1`` are a declared gap.
        next_offset: the first offset to assign behind the frames that recovery copied here.
            Equal to ``base`` in an ordinary segment.
        positions: every reader's newest position.
        lost: whether the gap was once entries, which a repair could not save. Otherwise its
            offsets were used by a torn tail, which was not promised.

    """

    log_id: bytes
    segment_id: int
    base: int
    previous: int
    next_offset: int
    epoch: int
    created_at: int
    positions: dict[str, str] = field(default_factory=dict)
    lost: bool = False

    def encode(self) -> bytes:
        """Return the header's bytes, a multiple of :data:`ALIGNMENT`."""
        positions = json.dumps(self.positions).encode()
        length = align(_SEGMENT.size + len(positions) + _CRC.size)
        body = _SEGMENT.pack(
            SEGMENT_MAGIC,
            FORMAT,
            _LOST if self.lost else 0,
            length,
            self.log_id,
            self.segment_id,
            self.base,
            self.previous,
            self.next_offset,
            self.epoch,
            self.created_at,
            len(positions),
        )
        return _append_checksum((body + positions).ljust(length - _CRC.size, b"\0"))

    @classmethod
    def decode(cls, data: bytes, file: str) -> Self:
        """Decode the header from *data*, whose length is that of :func:`header_length`.

        Raises:
            Corrupt: it is damaged. Only an undamaged header can be of another version.
            UnknownFormat: another format version wrote it (Invariant 19).

        """
        if not _matches_checksum(data):
            raise Corrupt("the segment header does not match its checksum", file, 0)
        version = int.from_bytes(data[8:10], "little")
        if version != FORMAT:
            raise UnknownFormat(
                f"{file}: format version {version}, but this transporter reads version {FORMAT}; "
                "use the version that wrote this log, or one that can read it"
            )
        _, _, flags, _, log_id, segment_id, base, previous, following, epoch, created, size = (
            _SEGMENT.unpack_from(data)
        )
        if flags & ~_LOST:
            raise UnknownFormat(
                f"{file}: this segment needs a newer transporter (flags {flags:x}); "
                "use the version that wrote this log, or one that can read it"
            )
        if not -1 <= previous < base <= following <= MAX_OFFSET:
            raise Corrupt("the segment header has impossible offsets", file, 0)
        try:
            positions = _check_positions(_parse_json(data[_SEGMENT.size : _SEGMENT.size + size]))
        except ValueError as error:
            problem = f"the segment header's positions cannot be read: {error}"
            raise Corrupt(problem, file, _SEGMENT.size) from error
        lost = flags == _LOST
        return cls(log_id, segment_id, base, previous, following, epoch, created, positions, lost)


def header_length(prefix: bytes, file: str) -> int:
    """Return the length that a segment header states in its first bytes.

    Magic, version, length, and the checksum at the header's end have the same place in every
    version.

    Raises:
        Corrupt: these are not the first bytes of a segment.

    """
    if len(prefix) < _SEGMENT.size or prefix[:8] != SEGMENT_MAGIC:
        raise Corrupt("not a log segment: its first bytes are not a segment header", file, 0)
    length = int.from_bytes(prefix[12:16], "little")
    if not _SEGMENT.size + _CRC.size <= length <= MAX_HEADER:
        raise Corrupt(f"the segment header claims a length of {length} bytes", file, 12)
    return length


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """A frame: one record batch of entries, appended at once.

    Attributes:
        entries_bytes: the size of the entries in memory, decompressed.
        durable: the highest offset that was durable when the frame was written. Recovery
            builds the floor on this proof (Invariant 3).

    """

    extension_length: int
    payload_length: int
    entries_bytes: int
    segment_id: int
    byte: int
    first: int
    last: int
    count: int
    extension_crc: int
    logged_at: int
    epoch: int
    durable: int
    payload_crc: int

    @property
    def end(self) -> int:
        """The byte behind the frame, where the next one begins."""
        return self.byte + align(FRAME_HEADER_BYTES + self.extension_length + self.payload_length)

    @property
    def extension_byte(self) -> int:
        """The place where the extension block begins."""
        return self.byte + FRAME_HEADER_BYTES

    @property
    def payload_byte(self) -> int:
        """The place where the payload begins."""
        return self.extension_byte + self.extension_length

    def encode(self) -> bytes:
        """Return the header's bytes."""
        return _append_checksum(
            _FRAME.pack(
                FRAME_MAGIC,
                FRAME_HEADER_BYTES,
                self.extension_length,
                self.payload_length,
                self.entries_bytes,
                self.segment_id,
                self.byte,
                self.first,
                self.last,
                self.count,
                self.extension_crc,
                self.logged_at,
                self.epoch,
                self.durable,
                self.payload_crc,
            )
        )

    @classmethod
    def decode(cls, data: bytes, segment_id: int | None, byte: int | None) -> Self | None:
        """Decode the header of the frame at *byte*, or return ``None`` if there is no valid one.

        A *segment_id* of ``None`` accepts any id, for a segment without its own header. A *byte*
        of ``None`` accepts any place, for a frame that was sent alone.
        """
        if len(data) < FRAME_HEADER_BYTES or data[:4] != FRAME_MAGIC:
            return None
        if not _matches_checksum(data[:FRAME_HEADER_BYTES]):
            return None
        _, length, *rest = _FRAME.unpack_from(data)
        header = cls(*rest)
        ours = length == FRAME_HEADER_BYTES and header._is_plausible()
        here = byte in (None, header.byte) and segment_id in (None, header.segment_id)
        return header if ours and here else None

    def _is_plausible(self) -> bool:
        return (
            self.extension_length <= MAX_EXTENSION
            and self.payload_length <= MAX_PAYLOAD
            and 1 <= self.count <= self.last - self.first + 1
            and self.last <= MAX_OFFSET
            and self.logged_at <= _LATEST
        )


@dataclass(frozen=True, slots=True)
class Source:
    """The reader of a frame, and its position behind that frame, if it gave one.

    Attributes:
        checkpoint: all readers' newest positions before this frame. It is set in every frame
            that the index enters, so that an open need not walk further back.
        term: the number of the term under which the entries were read.

    """

    reader: str
    position: str | None = None
    checkpoint: dict[str, str] | None = None
    term: int | None = None

    def encode(self) -> bytes:
        """Return the frame's extension block. Omit the checkpoint if there is no room."""
        # An absent field takes no bytes, because a frame may hold one small message. Spelled out:
        # it is written with each frame, and asdict takes ten times as long.
        given = {
            "reader": self.reader,
            "position": self.position,
            "checkpoint": self.checkpoint,
            "term": self.term,
        }
        values = {name: value for name, value in given.items() if value is not None}
        block = json.dumps(values, separators=(",", ":")).encode()
        if len(block) <= MAX_EXTENSION or self.checkpoint is None:
            return block
        return replace(self, checkpoint=None).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode an extension block.

        Raises:
            ValueError: it is not an extension block, whatever its checksum is.

        """
        values = _parse_json(data)
        if not isinstance(values, dict) or values.keys() - {each.name for each in fields(cls)}:
            raise ValueError("its fields are not those of a source block")
        found = cls(**{"reader": None, **values})
        texts = isinstance(found.reader, str) and isinstance(found.position, str | None)
        if not texts or not isinstance(found.term, int | None):
            raise ValueError("its fields are not those of a source block")
        if found.checkpoint is not None:
            _check_positions(found.checkpoint)
        return found


def encode_frame(header: FrameHeader, extension: bytes, payload: pa.Buffer | bytes) -> bytes:
    """Return the frame's bytes, padded to :data:`ALIGNMENT`. *header* describes the rest."""
    size = FRAME_HEADER_BYTES + len(extension) + len(payload)
    # One copy only: the frame may be megabytes.
    return b"".join((header.encode(), extension, payload, bytes(align(size) - size)))


def encode_payload(entries: pa.RecordBatch, compression: str | None) -> pa.Buffer:
    """Return *entries* as one Arrow IPC record batch message (the schema is the format's).

    With ``"lz4"`` the whole message is one LZ4 block behind its length. Arrow's one block per
    buffer costs five times as much time in small frames. It also leaves the metadata, most of
    a single entry, uncompressed.

    Raises:
        MessageTooLarge: the payload is larger than any reader would accept.

    """
    message = entries.serialize()
    if len(message) > MAX_PAYLOAD:
        raise MessageTooLarge(
            f"a batch of {len(message)} bytes exceeds the {MAX_PAYLOAD} bytes of a frame; "
            "append it in parts"
        )
    if compression is None:
        return message
    block = _LZ4.compress(message)
    if _PACKED.size + len(block) >= len(message):
        return message
    return pa.py_buffer(b"".join((_PACKED.pack(_PACKED_MAGIC, len(message)), block)))


def decode_entries(
    payload: bytes | pa.Buffer, frame: FrameHeader, file: str, *, trusted: bool = False
) -> pa.RecordBatch:
    """Return the entries of *frame* from its *payload*, validated to the last byte.

    The checksum is not a proof, because an attacker could have written the log with valid
    checksums. The returned entries can be read without harm, and memory is bounded. A frame
    that this run of the engine has written itself (*trusted*) is checked by its checksum alone.

    Raises:
        Corrupt: it is not a valid payload of a log (Invariant 2).

    """
    if len(payload) != frame.payload_length or crc32c(payload) != frame.payload_crc:
        problem = "the entries do not match their checksum"
        raise Corrupt(problem, file, frame.byte, frame.first)
    try:
        entries = decode_payload(payload, trusted=trusted)
        if not trusted:
            _check_entries(entries, frame)
    except ValueError as error:
        problem = f"the entries cannot be decoded: {error}"
        raise Corrupt(problem, file, frame.byte, frame.first) from error
    return entries


def decode_payload(payload: bytes | pa.Buffer, *, trusted: bool = False) -> pa.RecordBatch:
    """Decode a payload from an untrusted writer. Arrow may have compressed its parts.

    Raises:
        ValueError: it would take more memory than a payload may, or is not a batch of entries.

    """
    try:
        message = unpack(payload, trusted=trusted)
        if trusted:
            return pa.ipc.read_record_batch(message, ENTRY_SCHEMA)
        if (claimed := claimed_bytes(message)) > MAX_PAYLOAD:
            raise ValueError(f"its buffers claim {claimed} bytes")
        entries = pa.ipc.read_record_batch(message, ENTRY_SCHEMA)
        entries.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, struct.error, IndexError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    for field_, column in zip(ENTRY_SCHEMA, entries.columns, strict=True):
        if column.null_count and not field_.nullable:
            raise ValueError(f"{field_.name} is missing")
    names = entries.column("headers").flatten().field("name")
    if names.null_count:
        raise ValueError("a header has no name")
    return entries


def unpack(payload: bytes | pa.Buffer, *, trusted: bool = False) -> pa.Buffer:
    """Return the Arrow message in *payload*. Raises as :func:`decode_payload` does."""
    message = pa.py_buffer(payload)
    magic, size = _PACKED.unpack_from(message)
    if magic != _PACKED_MAGIC:
        return message
    if size > MAX_PAYLOAD:
        raise ValueError(f"the payload claims {size} bytes")
    block = message.slice(_PACKED.size)
    if not trusted and _fits(block, size - 1):
        # Arrow does not report how much it decompressed, and the rest would be stale memory.
        raise ValueError(f"the payload has less than the {size} bytes that it claims")
    return _LZ4.decompress(block, size)


def _fits(block: pa.Buffer, size: int) -> bool:
    try:
        _LZ4.decompress(block, max(0, size))
    except OSError:
        return False
    return True


def _check_entries(entries: pa.RecordBatch, frame: FrameHeader) -> None:
    """Raise ``ValueError`` unless *entries* match the header *frame*."""
    if entries.num_rows != frame.count:
        raise ValueError(f"{entries.num_rows} entries in a frame of {frame.count}")
    offsets = entries.column("offset")
    if frame.last - frame.first + 1 == frame.count:
        if not offsets.equals(pa.arange(frame.first, frame.last + 1)):
            raise ValueError("its offsets are not those of its frame")
        return
    # Compaction has dropped some.
    known = offsets.to_pylist()
    if not frame.first <= known[0] <= known[-1] <= frame.last or any(map(ge, known, known[1:])):
        raise ValueError("its offsets are not those of its frame")


@dataclass(frozen=True, slots=True)
class Trailer:
    """The last block of a sealed segment: its extent, for read-only access."""

    segment_id: int
    byte: int
    last: int
    oldest: int
    newest: int

    def encode(self) -> bytes:
        """Return the trailer's bytes."""
        # 'last' may be base - 1 = -1 in an empty first segment, so it is stored plus one.
        return _append_checksum(
            _TRAILER.pack(
                TRAILER_MAGIC,
                TRAILER_BYTES,
                self.segment_id,
                self.byte,
                self.last + 1,
                self.oldest,
                self.newest,
            )
        )

    @classmethod
    def decode(cls, data: bytes, segment_id: int, byte: int) -> Self | None:
        """Decode the trailer at *byte*, or return ``None`` if there is no valid one."""
        if len(data) < TRAILER_BYTES or data[:4] != TRAILER_MAGIC:
            return None
        if not _matches_checksum(data[:TRAILER_BYTES]):
            return None
        _, _, identity, place, after, oldest, newest = _TRAILER.unpack_from(data)
        if (identity, place) != (segment_id, byte):
            return None
        return cls(identity, place, after - 1, oldest, newest)
