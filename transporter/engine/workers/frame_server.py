"""Frames and parked files for workers that do not see the log directory.

The engine checks no payload: the worker does, as if it had read the file itself
(Invariant 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from transporter.errors import TransporterError
from transporter.log import format as layout
from transporter.log.filesystem import RealFileSystem, open_file, translate_os_errors
from transporter.log.reader import LogReader
from transporter.offsets.offset_log import route_folder
from transporter.offsets.parked import parked_path
from transporter.protocol.messages import Failure, Frames, Lent, Retry, Slice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.log.reader import LocatedFrame

ANSWER_BYTES: Final = 1 << 20
"""Bytes after which an answer is full: it holds one frame at least, and none behind these."""

_LARGEST_PARKED: Final = layout.FRAME_HEADER_BYTES + layout.MAX_EXTENSION + layout.MAX_PAYLOAD
"""Bytes of a parked file."""

_FramePayload = tuple[Lent, bytes]


class FrameServer:
    """Serves the entries that one worker of a route is to deliver. Belongs to the route's thread.

    A worker cannot request other offsets. Memory is bounded by the larger of :data:`ANSWER_BYTES`
    and one frame (Invariant 17).
    """

    def __init__(self, directory: Path, route: str) -> None:
        """Lend from the log in *directory*."""
        self._reader = LogReader(directory)
        self._folder = route_folder(directory, route)
        self._pending: Iterator[_FramePayload] = iter(())

    def close(self) -> None:
        """Close open files of the log."""
        self._pending = iter(())
        self._reader.close()

    def begin(self, message: Slice | Retry) -> None:
        """Serve the entries of *message* from now on."""
        self._pending = (
            self._read_parked(message) if isinstance(message, Retry) else self._read_frames(message)
        )

    def next_frames(self) -> tuple[Frames, list[bytes]]:
        """Return its next frames, whether these were the last, and the payloads."""
        lent: list[Lent] = []
        payloads: list[bytes] = []
        try:
            for each, payload in self._pending:
                lent.append(each)
                payloads.append(payload)
                if sum(map(len, payloads)) >= ANSWER_BYTES:
                    return Frames(tuple(lent), done=False), payloads
        except (TransporterError, OSError) as error:
            self._pending = iter(())
            return Frames(tuple(lent), failure=Failure.of(error)), payloads
        return Frames(tuple(lent)), payloads

    def _read_frames(self, message: Slice) -> Iterator[_FramePayload]:
        return map(_read_frame, self._reader.frames(message.first, message.last))

    def _read_parked(self, message: Retry) -> Iterator[_FramePayload]:
        path = parked_path(self._folder, message.offset)
        with translate_os_errors(path, reading=True), open_file(RealFileSystem(), path) as file:
            data = file.pread(min(file.size(), _LARGEST_PARKED), 0)
        yield Lent(str(path), 0, b"", len(data)), data


def _read_frame(found: LocatedFrame) -> _FramePayload:
    path, frame = found.segment.path, found.frame
    with translate_os_errors(path, reading=True):
        _, payload = found.segment.read_raw(frame)
    return Lent(str(path), frame.byte, frame.encode(), len(payload)), payload
