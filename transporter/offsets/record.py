"""Records of an offset log, as bytes. Pure. docs/design/offsets.md has the diagram."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from crc32c import crc32c

from transporter.errors import OffsetRefused, UnknownFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT: Final = 1
MAGIC: Final = b"OREC"
ALIGNMENT: Final = 8
MAX_RECORD: Final = 16 << 20
"""Largest size in bytes of a record's event, checked before any allocation (Invariant 17)."""
_HEADER: Final = struct.Struct("<4sHHIQQI")


@dataclass(frozen=True, slots=True)
class Record:
    """One event of a route, with its place in the turn of a file."""

    turn: int
    sequence: int
    event: dict[str, Any]

    def encode(self) -> bytes:
        """Return the record's bytes, a multiple of :data:`ALIGNMENT`.

        Raises:
            OffsetRefused: it is too large to be read again (Invariant 17).

        """
        body = json.dumps(self.event, ensure_ascii=False, separators=(",", ":")).encode()
        if len(body) > MAX_RECORD:
            raise OffsetRefused(
                f"an offset log's record of {len(body)} bytes ({self.event.get('type')}) exceeds "
                f"the {MAX_RECORD} bytes that can be read again; request fewer entries at once"
            )
        head = _HEADER.pack(MAGIC, FORMAT, 0, len(body), self.turn, self.sequence, 0)[:-4]
        data = head + struct.pack("<I", crc32c(body, crc32c(head))) + body
        return data.ljust(_align(len(data)), b"\0")


def _align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def decode_records(data: bytes, file: str) -> Iterator[Record]:
    """Yield the records at the start of *data* up to the first that does not follow.

    Raises:
        UnknownFormat: an intact record of another format version (Invariant 19).

    """
    byte = 0
    before: _Block | None = None
    while (found := _block_at(data, byte, file)) is not None:
        if before and (found.turn, found.sequence) != (before.turn, before.sequence + 1):
            return
        yield Record(found.turn, found.sequence, json.loads(found.event))
        before, byte = found, found.end


def first_turn(data: bytes, file: str) -> int:
    """Return the turn of the whole snapshot at the start of *data*, or -1 without one.

    Raises:
        UnknownFormat: an intact record of another format version (Invariant 19).

    """
    found = _block_at(data, 0, file)
    if found is None or json.loads(found.event).get("type") != "snapshot":
        return -1
    return found.turn


def highest_turn(data: bytes, file: str) -> int:
    """Return the highest turn of any intact record in *data*, at any place, or 0 for none."""
    highest = 0
    byte = data.find(MAGIC)
    while byte >= 0:
        found = _block_at(data, byte, file) if byte % ALIGNMENT == 0 else None
        highest = max(highest, found.turn if found else 0)
        byte = data.find(MAGIC, byte + 1)
    return highest


class _Block(NamedTuple):
    """An intact record with its event still as text. ``end`` is the place of the next one."""

    turn: int
    sequence: int
    event: bytes
    end: int


def _block_at(data: bytes, byte: int, file: str) -> _Block | None:
    if len(data) < byte + _HEADER.size or data[byte : byte + 4] != MAGIC:
        return None
    _, version, _, size, turn, sequence, checksum = _HEADER.unpack_from(data, byte)
    start = byte + _HEADER.size
    if size > MAX_RECORD or len(data) < start + size:
        return None
    head, body = data[byte : start - 4], data[start : start + size]
    if crc32c(body, crc32c(head)) != checksum:
        return None
    if version != FORMAT:
        raise UnknownFormat(
            f"{file}: format version {version}, but this transporter reads version {FORMAT}; "
            "use the version that wrote this file, or one that can read it"
        )
    return _Block(turn, sequence, body, byte + _align(_HEADER.size + size))
