"""Log of a trial's entries, with their offsets and log times, in a separate folder.

Workers read it like any log, so the original log stays untouched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from transporter.log import format as layout
from transporter.log.filesystem import RealFileSystem
from transporter.log.segment import write_segment
from transporter.message import batch_bytes, microseconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

_FRAME_BYTES: Final = 1 << 20
"""Bytes of entries above which a frame is divided."""
_SEGMENT_ID: Final = 1
_LOG_ID: Final = bytes(16)
_EPOCH: Final = 1


def write_log(directory: Path, entries: pa.RecordBatch) -> None:
    """Write *entries* (ENTRY_SCHEMA, at least one, ascending offsets) as the log in *directory*."""
    base = entries.column("offset")[0].as_py()
    created = microseconds(entries.column("logged_at").slice(0, 1))[0]
    header = layout.SegmentHeader(_LOG_ID, _SEGMENT_ID, base, -1, base, _EPOCH, created)
    frames = _encode_frames(entries, base, len(header.encode()))
    write_segment(RealFileSystem(), directory, header, frames)


def _encode_frames(entries: pa.RecordBatch, first: int, byte: int) -> Iterator[bytes]:
    """Yield frames that cover all offsets from *first* on. The first one begins at *byte*."""
    extension = layout.Source("").encode()
    for part in _split_entries(entries):
        payload = layout.encode_payload(part, None)
        last = part.column("offset")[-1].as_py()
        header = layout.FrameHeader(
            extension_length=len(extension),
            payload_length=len(payload),
            entries_bytes=part.nbytes,
            segment_id=_SEGMENT_ID,
            byte=byte,
            first=first,
            last=last,
            count=part.num_rows,
            extension_crc=crc32c(extension),
            logged_at=microseconds(part.column("logged_at").slice(part.num_rows - 1))[0],
            epoch=_EPOCH,
            durable=-1,
            payload_crc=crc32c(payload),
        )
        yield layout.encode_frame(header, extension, payload)
        first, byte = last + 1, header.end


def _split_entries(entries: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if entries.num_rows == 1 or batch_bytes(entries) <= _FRAME_BYTES:
        yield entries
        return
    half = entries.num_rows // 2
    yield from _split_entries(entries.slice(0, half))
    yield from _split_entries(entries.slice(half))
