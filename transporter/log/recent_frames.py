"""The newest small frames of a log, as they were written: slices of them need not be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from transporter.log.format import FrameHeader

_MOST_FRAMES: Final = 64
_MOST_BYTES: Final = 16 << 10
"""Bytes of the largest frame that is kept. All of them take a MiB at most (Invariant 17)."""


class RecentFrame(NamedTuple):
    """A frame's header, and all its bytes."""

    header: FrameHeader
    data: bytes


class RecentFrames:
    """Memory of the last frames written. Add from one thread at a time; any may look."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._frames: dict[int, RecentFrame] = {}

    def add(self, header: FrameHeader, data: bytes) -> None:
        """Keep the frame of *header*, unless it is large, and drop the oldest one for it."""
        if len(data) > _MOST_BYTES:
            return
        if len(self._frames) == _MOST_FRAMES:
            del self._frames[next(iter(self._frames))]
        self._frames[header.first] = RecentFrame(header, data)

    def covering(self, first: int, last: int) -> list[RecentFrame]:
        """Return the frames with exactly the offsets *first* to *last*, or none."""
        found: list[RecentFrame] = []
        while first <= last:
            if (frame := self._frames.get(first)) is None:
                return []
            found.append(frame)
            first = frame.header.last + 1
        return found if first == last + 1 else []
