"""A file whose length is stored together with the offset at that length."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from transporter.errors import RouteFault, SinkUnavailable
from transporter_adaptors.file.disk import append_all, exclusive_lock
from transporter_adaptors.file.progress import (
    END_BYTES,
    SIZE,
    SUFFIX,
    FileState,
    PendingSlice,
    PlacedBytes,
    empty_content,
    newest_state,
    pending_slice,
    place_slice,
    place_state,
)
from transporter_adaptors.file.rolling import number_of, numbered_path, shard_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.adaptor import StoredOffset, WriterContext
    from transporter_adaptors.file.config import FileWriterConfig
    from transporter_adaptors.file.disk import Disk
    from transporter_adaptors.file.rolling import RolledPart

_CHUNK: Final = 1024**2
_STREAMS: Final = ("/dev/stdout", "/dev/stderr")
_STREAM_FOLDERS: Final = ("/dev/fd", "/proc/self/fd")
_MADE: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT


class Output:
    """A regular file, or numbered ones, that hold each line once however a writer ends.

    The order is: the lines, a sync, the length with its offset, and a sync of
    that if it is to outlive the machine. Bytes behind the last stored length
    were never acked. They are cut off before anything else is written,
    and copied aside first unless they are certainly ours. A length that was not
    synced counts until the machine is started again. After that nothing is cut
    by it. The lock is that of the progress file, because the lines' own file
    changes. Every method but :meth:`close` requires :meth:`exclusive_lock`.
    """

    def __init__(self, config: FileWriterConfig, context: WriterContext, disk: Disk) -> None:
        """Write for *context* according to *config*. :meth:`open` comes first."""
        self._path = shard_path(config.path, context.shard, context.shards)  # type: ignore[arg-type]
        self.is_numbered = config.has_numbered_files
        """Whether the lines go to numbered files."""
        self._sync_always = config.exact_after == "power-cut"
        self._context, self._disk = context, disk
        self._progress = -1
        self._descriptor = -1
        self._unsure: StoredOffset | None = None
        """The offset of a failed commit that could not be taken back."""
        self._cached_state: tuple[bytes, FileState | None] = b"", None

    def open(self) -> None:
        """Open the progress file, and make it and its folder when they do not exist."""
        self._disk.make_folder(self._path.parent)
        self._open_progress()

    def close(self) -> None:
        """Close all files. Safe to call twice. The next lock opens them by their names again."""
        self._close_file()
        progress, self._progress = self._progress, -1
        _close_descriptor(progress)

    @contextmanager
    def exclusive_lock(self) -> Iterator[None]:
        """Block every other writer, so that slices stay together and can be taken back."""
        while True:
            if self._progress < 0:
                self._reopen()
            with exclusive_lock(self._progress, self._context.deadline, self._path):
                status = self._disk.status(self._progress_path)
                if status is not None and os.path.samestat(status, os.fstat(self._progress)):
                    yield
                    return
            self.close()  # It was removed, and our lock on it no longer protects anything.

    def _reopen(self) -> None:
        """Make the progress file again. Its folder may be gone because a disk was unmounted."""
        if self._disk.status(self._path.parent) is None:
            raise SinkUnavailable(
                f"{self._path.parent}: the folder has disappeared; bring it back, or make it "
                "so that the route begins a new file"
            )
        self._open_progress()

    def _open_progress(self) -> None:
        self._progress = self._disk.open(self._progress_path, os.O_RDWR | os.O_CREAT)

    def state(self) -> FileState:
        """Return the state of the present file, after bringing the file into that state.

        Raises:
            RouteFault: Lines that were acked are missing.
        """
        content = self._read_content()
        if not content or content != self._cached_state[0]:
            self._cached_state = content, self._newest_state(content)
        return self._verify_state(self._cached_state[1], content)

    def check_epoch(self, state: FileState) -> None:
        """Raise :class:`RouteFault` when a newer epoch has written *state*."""
        stored = state.stored_for(self._context)
        if stored is not None and stored.epoch > self._context.epoch:
            raise RouteFault(
                f"{self._path}: fenced by epoch {stored.epoch}; this writer has epoch "
                f"{self._context.epoch}: another engine has opened the log since"
            )

    def begin_next_file(self, state: FileState) -> FileState:
        """Return the state of the file that follows the one of *state*, which is empty."""
        return self._begin_next(state)

    def commit(self, state: FileState, part: RolledPart, generation: int) -> FileState:
        """Append the lines of *part*, and return the new state when they are on disk.

        Raises:
            OSError: That failed, and the lines were taken back.
        """
        before = state.length
        text = part.text
        if before and self._disk.read(self._descriptor, 1, before - 1) != b"\n":
            text = b"\n" + text  # The last line is another writer's, because ours have ends.
        try:
            self._write_placed(place_slice(PendingSlice(state.turn, len(text), crc32c(text))))
            append_all(self._disk, self._descriptor, text)
            self._disk.sync(self._descriptor)
            grown = self._grow(state, text, part, generation)
        except OSError:
            self._take_back_lines(state)
            raise
        try:
            return self._store_state(grown, durable=False)
        except OSError:
            self._take_back(state, grown)
            raise

    def _take_back_lines(self, state: FileState) -> None:
        """Cut off what is behind *state*. Else that is done before the next slice."""
        with suppress(OSError):
            self._disk.truncate(self._descriptor, state.length)

    def _take_back(self, state: FileState, grown: FileState) -> None:
        """Replace *grown*, of which some may be on disk, by *state*.

        Its lines stay if that fails, because acked lines would seem to be missing without them.
        """
        try:
            self._write_placed(place_state(replace(state, turn=state.turn + 2)))
        except OSError:
            self._unsure = grown.stored_for(self._context)
        else:
            self._take_back_lines(state)

    def offset_after_failure(self, state: FileState, generation: int) -> int | None:
        """Return the offset of *generation* that a failed commit has stored in *state* after all.

        Its lines are there. A parked entry that is retried stores no offset of its own, so
        nothing is known of it.
        """
        unsure = self._unsure
        if unsure is None or unsure.generation != generation:
            return None
        return unsure.offset if state.stored_for(self._context) == unsure else None

    def _grow(self, state: FileState, text: bytes, part: RolledPart, generation: int) -> FileState:
        known = state.stored_for(self._context)
        stored = self._context.stored(generation, part.offsets[-1], known)
        length = state.length + len(text)
        grown = replace(state, length=length, end=self._end_crc(length), period=part.period)
        return grown.with_stored(stored)

    def _store_state(self, state: FileState, *, durable: bool = True) -> FileState:
        """Write *state* as the next turn and return it, after waiting for the disk if need be.

        Against a kill alone no wait is needed, except for the state that first relies on this:
        a state with acked lines behind it must not be taken for the newest.
        """
        boot = self._disk.boot
        kept = replace(state, turn=state.turn + 1, boot=boot, synced=self._sync_always or not boot)
        self._write_placed(place_state(kept))
        if durable or kept.synced or state.synced:
            self._disk.sync(self._progress)
        return kept

    @property
    def _progress_path(self) -> Path:
        return self._path.with_name(self._path.name + SUFFIX)

    def _write_placed(self, put: PlacedBytes) -> None:
        self._disk.write_at(self._progress, put.text, put.byte)

    def _read_content(self) -> bytes:
        return self._disk.read(self._progress, SIZE, 0)

    def _newest_state(self, content: bytes) -> FileState | None:
        try:
            return newest_state(content)
        except RouteFault as error:
            raise RouteFault(
                f"{self._progress_path} {error}: move it away, and the route continues "
                f"at the end of {self._path.name}"
            ) from None

    def _verify_state(self, state: FileState | None, content: bytes) -> FileState:
        """Return *state* once its file has its length, or the state of the file in its place."""
        if state is None:
            return self._store_first_state()
        path = self._path.with_name(state.file)
        status = self._disk.status(path)
        if status is None or status.st_ino != state.inode:
            return self._begin_next(state)
        self._open_file(path, status)
        if status.st_size != state.length:
            state = self._repair(state, status.st_size, content)
        if self.is_numbered != (state.file != self._path.name):
            return self._begin_next(state)
        return state

    def _store_first_state(self) -> FileState:
        self._write_placed(empty_content())
        return self._begin_next(FileState(0, "", 0, 0, 0))

    def _repair(self, state: FileState, size: int, content: bytes) -> FileState:
        """Return the state of the open file, which has *size* bytes, unlike *state*."""
        if size == 0:
            return self._store_state(replace(state, length=0, end=self._end_crc(0)))
        if size < state.length:
            raise RouteFault(
                f"{self._path.with_name(state.file)}: has {size} bytes, and {state.length} were "
                "written and synced: restore the missing bytes, or move the file away "
                "so that the route begins a new one"
            )
        unsure = not state.synced and state.boot != self._disk.boot
        if unsure or self._end_crc(state.length) != state.end:
            # A power cut may have left a state from before lines that were acked. Or the file was
            # edited in place, or is another one with this inode number. Nothing of it is cut.
            return self._store_state(replace(state, length=size, end=self._end_crc(size)))
        if not self._is_ours(state, size, content):
            self._set_aside(state, size)
        self._disk.truncate(self._descriptor, state.length)
        self._disk.sync(self._descriptor)
        return state

    def _is_ours(self, state: FileState, size: int, content: bytes) -> bool:
        """Return whether all behind the length of *state* is the slice that was being written."""
        tail = pending_slice(content)
        if tail is None or (tail.turn, tail.size) != (state.turn, size - state.length):
            return False
        crc = 0
        for chunk in self._read_chunks(state.length, size):
            crc = crc32c(chunk, crc)
        return crc == tail.crc

    def _set_aside(self, state: FileState, size: int) -> None:
        """Copy the bytes behind the length of *state* to a file of their own."""
        number = 1
        while True:
            path = self._path.with_name(f"{state.file}.cut-{number}")
            if self._disk.status(path) is None:
                break
            number += 1
        aside = self._disk.open(path, _MADE | os.O_EXCL)
        try:
            for chunk in self._read_chunks(state.length, size):
                append_all(self._disk, aside, chunk)
            self._disk.sync(aside)
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise
        finally:
            os.close(aside)
        self._disk.sync_folder(self._path.parent)

    def _read_chunks(self, first: int, end: int) -> Iterator[bytes]:
        while first < end and (
            chunk := self._disk.read(self._descriptor, min(_CHUNK, end - first), first)
        ):
            yield chunk
            first += len(chunk)

    def _end_crc(self, length: int) -> int:
        size = min(length, END_BYTES)
        return crc32c(self._disk.read(self._descriptor, size, length - size))

    def _begin_next(self, state: FileState) -> FileState:
        """Open the file that follows that of *state*, and return its own state.

        Without numbers that is the file that has the name now, with numbers a new one.
        """
        self._close_file()
        path = self._next_numbered(state) if self.is_numbered else self._path
        self._open_file(path, None)
        status = os.fstat(self._descriptor)
        # Lines are only as durable as the names of their file and of its progress.
        self._disk.sync_folder(path.parent)
        return self._store_state(
            replace(
                state,
                file=path.name,
                inode=status.st_ino,
                length=status.st_size,
                end=self._end_crc(status.st_size),
            )
        )

    def _next_numbered(self, state: FileState) -> Path:
        """Return the first name behind all that were ever used. An empty file's name is unused."""
        names = os.listdir(self._path.parent)  # noqa: PTH208 - names are wanted, not paths
        numbers = [number_of(self._path, name) or 0 for name in (*names, state.file)]
        newest_name = numbered_path(self._path, max(numbers))
        status = self._disk.status(newest_name)
        if status is not None and not status.st_size and newest_name.name != state.file:
            return newest_name
        return numbered_path(self._path, max(numbers) + 1)

    def _open_file(self, path: Path, status: os.stat_result | None) -> None:
        """Open *path*, unless the open file has *status*."""
        if status is not None and self._has_open(status):
            return
        self._close_file()
        self._descriptor = self._disk.open(path, _MADE)

    def _has_open(self, status: os.stat_result) -> bool:
        # Another file system in the folder's place may use the inode number, too.
        return self._descriptor >= 0 and os.path.samestat(status, os.fstat(self._descriptor))

    def _close_file(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        _close_descriptor(descriptor)


def _close_descriptor(descriptor: int) -> None:
    """Close *descriptor*, if it is one. An error means nothing: what was acked was synced."""
    if descriptor >= 0:
        with suppress(OSError):
            os.close(descriptor)


def has_length(path: Path, disk: Disk) -> bool:
    """Return whether *path* is, or will be, a regular file and not a stream of the process.

    A stream may lead to a file, but nothing can be stored beside it.
    """
    if str(path) in _STREAMS or str(path.parent) in _STREAM_FOLDERS:
        return False
    status = disk.status(path)
    return status is None or stat.S_ISREG(status.st_mode)
