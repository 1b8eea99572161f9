"""Following the end of a log from another process.

An engine may run, stop, die and come back. Segments are rolled, compacted and removed.
A process cannot wait for events of another one, so a follower polls. One poll reads two
small files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from transporter.errors import OffsetRefused
from transporter.log.filesystem import RealFileSystem, translate_os_errors
from transporter.log.lock import owner_of
from transporter.log.meta import published_offset, read_meta
from transporter.log.open_segments import sweep_open_segments
from transporter.log.reader import Gap, LogReader
from transporter.log.search import frames_with_retry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from transporter.log.filesystem import FileSystem


class RemovedOffsets(NamedTuple):
    """The offsets from ``first`` to ``last`` were removed before they were read."""

    first: int
    last: int


class Follower:
    """Yields every entry once, in order, as soon as it is confirmed. Not thread-safe.

    ``next`` is the offset of the next entry. Entries that compaction drops first are not
    seen. Removed and lost entries are reported.
    """

    def __init__(
        self, directory: Path, first: int, confirmed: int = -1, files: FileSystem | None = None
    ) -> None:
        """Begin at *first*. Entries up to *confirmed* are durable."""
        self.directory, self.next = directory, first
        self._files = files or RealFileSystem()
        self._reader = LogReader(directory, self._files)
        self._confirmed, self._epoch = confirmed, -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    def poll(self) -> Iterator[pa.RecordBatch | RemovedOffsets | Gap]:
        """Yield the new entries since the last call, and the gaps between them.

        Raises:
            Corrupt: an entry is damaged.
            EnvironmentFault: the disk cannot be read.

        """
        last = self.confirmed_offset()
        if self.next > last:
            # There may be nothing to read for long, and removed segments would stay open.
            sweep_open_segments()
        while self.next <= last:
            try:
                yield from self._read_through(last)
            except OffsetRefused:
                missing = RemovedOffsets(self.next, self._reader.first_offset() - 1)
                if missing.last < missing.first:
                    raise
                self.next = missing.last + 1
                yield missing

    def confirmed_offset(self) -> int:
        """Return the last offset that is known to be durable (Invariant 12)."""
        with translate_os_errors(self.directory, reading=True):
            running = owner_of(self.directory) is not None
            meta = read_meta(self._files, self.directory)
            if meta is not None:
                # Without an engine, a mark may be older than the files, or of a copy's original.
                # Only the mark of an engine that was seen running is trusted.
                self._epoch = meta.epoch if running else self._epoch
                mark = published_offset(self._files, self.directory, self._epoch)
                known = meta.proved if mark is None else mark
                self._confirmed = max(self._confirmed, known)
        return self._confirmed

    def _read_through(self, last: int) -> Iterator[pa.RecordBatch | Gap]:
        for found in frames_with_retry(self._reader, self.next, last):
            yield from self._report_lost(found.frame.first - 1)
            entries = found.entries_within(self.next, last)
            self.next = found.frame.last + 1
            yield entries
        yield from self._report_lost(last)
        self.next = last + 1

    def _report_lost(self, last: int) -> Iterator[Gap]:
        while self.next <= last and (gap := self._reader.lost_gap(self.next, last)) is not None:
            self.next = gap.last + 1
            yield gap
