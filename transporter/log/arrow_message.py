"""Decompressed size of an Arrow message, read before any memory is allocated. Pure.

Arrow decompresses a buffer into as many bytes as the buffer claims, and has no API
that returns those claims. This module therefore reads the metadata, a FlatBuffer,
itself. Arrow verifies that metadata when it reads the message, so malformed metadata
that is misread here is refused there.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

_CONTINUATION: Final = 0xFFFFFFFF
_HEAD: Final = struct.Struct("<II")
_OFFSET: Final = struct.Struct("<I")
_TO_VTABLE: Final = struct.Struct("<i")
_SLOT: Final = struct.Struct("<H")
_BUFFER: Final = struct.Struct("<qq")
_CLAIM: Final = struct.Struct("<q")
_AS_IT_IS: Final = -1
"""The claim of a buffer that was not worth compressing."""

# Field numbers in the tables Message and RecordBatch of Arrow's Message.fbs.
_HEADER: Final = 2
_BUFFERS, _COMPRESSION = 2, 3


def claimed_bytes(message: pa.Buffer) -> int:
    """Return the decompressed size of the buffers of *message*, or 0 if it is not compressed.

    Raises:
        ValueError: it is not a record batch message, or a buffer makes an impossible claim.
        struct.error: it is too short.

    """
    data = memoryview(message)
    continuation, size = _HEAD.unpack_from(data)
    if continuation != _CONTINUATION:
        raise ValueError("not an Arrow message")
    metadata = data[_HEAD.size : _HEAD.size + size]
    batch = _table(metadata, _field(metadata, _table(metadata, 0), _HEADER))
    if not _field(metadata, batch, _COMPRESSION):
        return 0
    return sum(_claims(data[_HEAD.size + size :], metadata, _field(metadata, batch, _BUFFERS)))


def _claims(body: memoryview, metadata: memoryview, vector: int) -> Iterator[int]:
    if not vector:
        return
    start = _table(metadata, vector)
    (count,) = _OFFSET.unpack_from(metadata, start)
    # A false count ends where the metadata ends.
    for at in range(
        start + _OFFSET.size, start + _OFFSET.size + count * _BUFFER.size, _BUFFER.size
    ):
        offset, length = _BUFFER.unpack_from(metadata, at)
        if not 0 <= offset <= offset + length <= len(body):
            raise ValueError("a buffer lies outside its message")
        if length:
            (claim,) = _CLAIM.unpack_from(body, offset)
            if claim < _AS_IT_IS:
                raise ValueError(f"a buffer claims {claim} bytes")
            yield length if claim == _AS_IT_IS else claim


def _table(metadata: memoryview, at: int) -> int:
    """Return the target of the offset at *at*."""
    return at + int(_OFFSET.unpack_from(metadata, at)[0])


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Return the place of the field *number* in *table*, or 0 if the field is absent."""
    vtable = table - _TO_VTABLE.unpack_from(metadata, table)[0]
    if vtable < 0:
        raise ValueError("not an Arrow message")
    if _SLOT.unpack_from(metadata, vtable)[0] <= (at := 2 * _SLOT.size + number * _SLOT.size):
        return 0
    (slot,) = _SLOT.unpack_from(metadata, vtable + at)
    return table + slot if slot else 0
