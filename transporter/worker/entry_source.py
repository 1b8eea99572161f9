"""The source of a worker's entries: the log directory, or the engine."""

from __future__ import annotations

from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from transporter.errors import Corrupt, EnvironmentFault, TransporterError
from transporter.log import format as layout
from transporter.log.reader import LogReader, clip_entries
from transporter.offsets.offset_log import route_folder
from transporter.offsets.parked import ParkedEntry, ParkedStore
from transporter.protocol.messages import Failure, Need

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from transporter.protocol.messages import Frames, Lent, Retry, Slice, WorkerSpec

_SENT: Final = "(sent by the engine)"
"""The file that is named where a frame came with its slice."""
Read = tuple[list[pa.RecordBatch], Failure | None]
"""The entries up to the first that cannot be read, and why that one cannot."""


class EntrySource(Protocol):
    """Provides a worker's entries, verified at each read (Invariant 3)."""

    def read(self, request: Slice) -> Read:
        """Return the entries of the slice."""

    def read_parked(self, request: Retry) -> pa.RecordBatch:
        """Return the parked entry. Raises ``Corrupt`` if it is damaged."""


class LocalEntries:
    """Reads the log directory."""

    def __init__(self, spec: WorkerSpec, log: LogReader) -> None:
        """Read from *log*, and the parked entries of the route beside it."""
        self._log = log
        self._folder = route_folder(Path(spec.log_directory), spec.route)

    @classmethod
    @contextmanager
    def open(cls, spec: WorkerSpec) -> Iterator[EntrySource]:
        """Have the log open for the length of a ``with`` block."""
        with LogReader(Path(spec.log_directory), trusted_from=spec.runs.first_own_offset) as log:
            yield cls(spec, log)

    def read(self, request: Slice) -> Read:
        """Return the entries of the slice."""
        batches: list[pa.RecordBatch] = []
        try:
            if request.frames:
                self._log.close_removed()  # Every read of the disk does so by itself.
                batches.extend(_read_sent(request))
            else:
                batches.extend(self._log.read(*request[:2]))
        except (TransporterError, OSError) as error:
            return batches, Failure.of(error)
        return batches, None

    def read_parked(self, request: Retry) -> pa.RecordBatch:
        """Return the parked entry."""
        return ParkedStore.read_entry(self._folder, request.offset).entries


def _read_sent(request: Slice) -> Iterator[pa.RecordBatch]:
    """Yield the entries of the frames that came with *request*, verified as any others."""
    for data in request.frames:
        frame = layout.FrameHeader.decode(data, None, None)
        if frame is None:
            raise Corrupt("a frame's header was damaged in memory", _SENT, 0, request.first)
        begin = layout.FRAME_HEADER_BYTES + frame.extension_length
        # A copy, because what is not compressed is used in place and has to be aligned.
        payload = data[begin : begin + frame.payload_length]
        entries = layout.decode_entries(payload, frame, _SENT, trusted=True)
        yield clip_entries(entries, frame, request.first, request.last)


class BorrowedFrames(Protocol):
    """An engine that sends frames on request."""

    def request(self, message: Need) -> None:
        """Request more."""

    def receive_answer(self) -> Frames:
        """Return the response to the last request."""

    def fetch(self, size: int) -> pa.Buffer:
        """Return the next *size* bytes after the response."""


class RemoteEntries:
    """Requests frames from the engine, and verifies them here."""

    def __init__(self, engine: BorrowedFrames, own: int | None = None) -> None:
        """Read from *engine*, whose run wrote the entries from the offset *own* on."""
        self._engine, self._own = engine, own

    def read(self, request: Slice) -> Read:
        """Return the entries of the slice."""
        batches: list[pa.RecordBatch] = []
        try:
            with closing(self._request_frames()) as needed:
                for frames, payloads in needed:
                    pairs = zip(frames.lent, payloads, strict=True)
                    batches.extend(self._entries(*pair, request) for pair in pairs)
                    if frames.failure is not None:
                        return batches, frames.failure
        except TransporterError as error:
            return batches, Failure.of(error)
        return batches, None

    def read_parked(self, request: Retry) -> pa.RecordBatch:
        """Return the parked entry."""
        ((frames, payloads),) = self._request_frames()
        if frames.failure is not None:
            raise EnvironmentFault(frames.failure.text)
        (lent,) = frames.lent
        found = ParkedEntry.decode(payloads[0].to_pybytes(), lent.file)
        if found.offset != request.offset:
            raise Corrupt("another entry is parked here", lent.file, 0, request.offset)
        return found.entries

    def _request_frames(self) -> Generator[tuple[Frames, list[pa.Buffer]], None, None]:
        self._engine.request(Need())
        asked = True
        try:
            while asked:
                asked = False
                frames, payloads = self._receive_frames()
                if not frames.done:
                    # The engine reads on while these are looked at.
                    self._engine.request(Need())
                    asked = True
                yield frames, payloads
        finally:
            if asked:
                # Bytes after damage would precede the next message.
                self._receive_frames()

    def _receive_frames(self) -> tuple[Frames, list[pa.Buffer]]:
        frames = self._engine.receive_answer()
        return frames, [self._engine.fetch(lent.size) for lent in frames.lent]

    def _entries(self, lent: Lent, payload: pa.Buffer, request: Slice) -> pa.RecordBatch:
        """Return the frame's entries that belong to the slice, verified.

        Raises:
            Corrupt: the frame differs from what was written (Invariant 2).

        """
        frame = layout.FrameHeader.decode(lent.head, None, lent.byte)
        if frame is None:
            raise Corrupt("a frame's header was damaged in transfer", lent.file, lent.byte)
        own = self._own is not None and frame.first >= self._own
        entries = layout.decode_entries(payload, frame, lent.file, trusted=own)
        return clip_entries(entries, frame, request.first, request.last)
