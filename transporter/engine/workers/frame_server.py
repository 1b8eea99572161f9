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

AT_ONCE: Final = 1 << 20
"""Bytes after which an answer is full: it holds one frame at least, and none behind these."""

_LARGEST: Final = layout.FRAME_HEADER_BYTES + layout.MAX_EXTENSION + layout.MAX_PAYLOAD
"""Bytes of a parked file."""

_Loan = tuple[Lent, bytes]


class FrameServer:
    """Serves the entries that one worker of a route is to deliver. Belongs to the route's thread.

    A worker cannot request other offsets. Memory is bounded by the larger of :data:`AT_ONCE`
    and one frame (Invariant 17).
    """

    def __init__(self, directory: Path, route: str) -> None:
        """Lend from the log in *directory*."""
        self._reader = LogReader(directory)
        self._folder = route_folder(directory, route)
        self._coming: Iterator[_Loan] = iter(())

    def close(self) -> None:
        """Close open files of the log."""
        self._coming = iter(())
        self._reader.close()

    def begin(self, asked: Slice | Retry) -> None:
        """Serve the entries of *asked* from now on."""
        self._coming = self._parked(asked) if isinstance(asked, Retry) else self._frames(asked)

    def more(self) -> tuple[Frames, list[bytes]]:
        """Return its next frames, whether these were the last, and the payloads."""
        lent: list[Lent] = []
        payloads: list[bytes] = []
        try:
            for each, payload in self._coming:
                lent.append(each)
                payloads.append(payload)
                if sum(map(len, payloads)) >= AT_ONCE:
                    return Frames(tuple(lent), done=False), payloads
        except (TransporterError, OSError) as error:
            self._coming = iter(())
            return Frames(tuple(lent), failure=Failure.of(error)), payloads
        return Frames(tuple(lent)), payloads

    def _frames(self, asked: Slice) -> Iterator[_Loan]:
        return map(_lent, self._reader.frames(asked.first, asked.last))

    def _parked(self, asked: Retry) -> Iterator[_Loan]:
        path = parked_path(self._folder, asked.offset)
        with translate_os_errors(path, reading=True), open_file(RealFileSystem(), path) as file:
            data = file.pread(min(file.size(), _LARGEST), 0)
        yield Lent(str(path), 0, b"", len(data)), data


def _lent(found: LocatedFrame) -> _Loan:
    path, frame = found.segment.path, found.frame
    with translate_os_errors(path, reading=True):
        _, payload = found.segment.read_raw(frame)
    return Lent(str(path), frame.byte, frame.encode(), len(payload)), payload
