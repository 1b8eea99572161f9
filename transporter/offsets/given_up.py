"""Lines about entries that a route skipped, or delivered after they had been parked.

The watermark absorbs such entries without a trace. ``given-up.jsonl`` in the route's folder has
one JSON object for each, and ``given-up.1.jsonl`` the ones before. Each file holds 8 MiB. A file
ends in blank lines: room that is reserved for a full disk.
"""

from __future__ import annotations

import json
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from transporter.log.filesystem import (
    BACK_PRESSURE,
    RealFileSystem,
    SyncFailed,
    open_file,
    sync,
    sync_directory,
    translate_os_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from transporter.log.filesystem import File, FileSystem

NEWEST: Final = "given-up.jsonl"
OLDER: Final = "given-up.1.jsonl"
FILE_BYTES: Final = 8 << 20
"""Size at which a file becomes the older one."""
RESERVE: Final = 64 << 10
"""Blank bytes behind the last line, for some hundred lines on a full disk (Invariant 14)."""
WAITING: Final = 1_000
"""Lines that wait in memory for room on the disk (Invariant 17)."""
_LONGEST: Final = 2_000
"""Characters of an error in a line."""
_AGAIN: Final = 1.0
"""Seconds between two tries to write lines that wait."""


class GivenUpLog:
    """Writes the lines of one route. Belongs to the route's thread.

    A line is durable before :meth:`record` returns true, and the caller moves the watermark
    after that. A crash in between repeats the line. On a full disk a line takes reserved room.
    Once that is used up, lines wait in memory, because a line must not keep a route from
    delivering (Invariant 14): only a crash then loses those.
    """

    def __init__(
        self,
        folder: Path,
        files: FileSystem | None = None,
        guard: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Touch nothing yet. *guard* raises ``LockLost`` as that of the parked entries does."""
        self._folder, self._files = folder, files or RealFileSystem()
        self._guard, self._clock = guard, clock
        self.waiting: deque[dict[str, Any]] = deque(maxlen=WAITING)
        """The lines that wait in memory for room."""
        self._dropped = 0
        self._next_try = 0.0
        self._named = False

    def reserve(self) -> None:
        """Reserve room for lines, as far as the disk has any. Nothing depends on it yet."""
        try:
            self._guard()
            with self._open() as file:
                self._extend(file, _end_of_lines(file), 0)
        except OSError:
            return  # The first line finds out what is wrong, and reports it.

    def record(self, event: str, offset: int, error: str, **details: Any) -> bool:  # noqa: ANN401 - plain values
        """Write a line about the entry at *offset*. Return false if it has to wait in memory.

        Raises:
            LogPoisoned: a sync failed (Invariant 13).
            EnvironmentFault: the file cannot be written, for another reason than room.

        """
        line = {"at": time.time(), "event": event, "offset": offset, **details}
        self._add_waiting(line | {"error": error[:_LONGEST]})
        self._write_waiting()
        return not self.waiting

    def write_waiting(self, *, now: bool = False) -> None:
        """Write the lines that wait for room, at most once a second unless *now*.

        Raises as :meth:`record` does.
        """
        if self.waiting and (now or self._clock() >= self._next_try):
            self._write_waiting()

    def _add_waiting(self, line: dict[str, Any]) -> None:
        self._dropped += len(self.waiting) == WAITING
        self.waiting.append(line)

    def _write_waiting(self) -> None:
        self._next_try = self._clock() + _AGAIN
        self._guard()
        with translate_os_errors(self._folder / NEWEST):
            try:
                while self.waiting and self._append(self.waiting[0]):
                    self.waiting.popleft()
                if self._dropped and not self.waiting and self._append(self._dropped_line()):
                    self._dropped = 0
            except SyncFailed:
                raise
            except OSError as error:
                if error.errno not in BACK_PRESSURE:
                    raise

    def _dropped_line(self) -> dict[str, Any]:
        return {"at": time.time(), "event": "lines-dropped", "count": self._dropped}

    def _append(self, line: dict[str, Any]) -> bool:
        """Append *line*, durably on return, or return false if there is no room for it."""
        data = _encode(line)
        with self._open() as file:
            end = _end_of_lines(file)
            if end and end + len(data) > FILE_BYTES:
                file.close()
                self._files.rename(self._folder / NEWEST, self._folder / OLDER)
                self._named = False
                return self._append(line)
            if not self._extend(file, end, len(data)):
                # Without its error, the line may still fit into what is left of the reserve.
                data = _encode({name: line[name] for name in line if name != "error"})
                if end + len(data) > file.size():
                    return False
            file.pwrite(data, end)
            sync(file)
            if not self._named:
                sync_directory(self._files, self._folder)
                self._named = True
        return True

    def _extend(self, file: File, end: int, needed: int) -> bool:
        """Let blank lines follow *end*. Return whether *needed* bytes have room before their end.

        Room for a line never depends on new blocks while the reserve lasts, so a line that has
        begun is not cut short.
        """
        size = file.size()
        if size - end - needed < RESERVE // 2:
            try:
                file.pwrite(b"\n" * (end + needed + RESERVE - size), size)
            except OSError as error:
                if error.errno not in BACK_PRESSURE:
                    raise
        if needed > (room := file.size() - end) and self._remove_older():
            return self._extend(file, end, needed)
        return needed <= room

    def _remove_older(self) -> bool:
        """Give the room of the older file back; return whether there was one."""
        if OLDER not in self._files.names(self._folder):
            return False
        self._files.remove(self._folder / OLDER)
        return True

    def _open(self) -> Any:  # noqa: ANN401 - a context manager
        return open_file(self._files, self._folder / NEWEST, write=True, create=True)


def _encode(line: dict[str, Any]) -> bytes:
    return b"\n" + json.dumps(line).encode() + b"\n"


def _end_of_lines(file: File) -> int:
    """Return the place behind the last byte that is not blank.

    A line begins with a line end of its own, so one that a crash has torn does not reach it.
    """
    end = file.size()
    while end > 0:
        start = max(0, end - 2 * RESERVE)
        found = file.pread(end - start, start).rstrip(b"\n\0")
        if found:
            return start + len(found)
        end = start
    return 0


def read_given_up(folder: Path, files: FileSystem | None = None) -> Iterator[dict[str, Any]]:
    """Yield the lines of the route in *folder*, the oldest first, as far as they are whole.

    Takes no lock. An engine may make a file the older one meanwhile, so a line may be missing or
    come twice at that moment.

    Raises:
        EnvironmentFault: a file cannot be read.

    """
    files = files or RealFileSystem()
    for name in (OLDER, NEWEST):
        with translate_os_errors(folder / name, reading=True):
            if name not in files.names(folder):
                continue
            with open_file(files, folder / name) as file:
                data = file.pread(min(file.size(), FILE_BYTES + 2 * RESERVE), 0)
        for line in data.split(b"\n"):
            if (found := _parse_line(line)) is not None:
                yield found


def _parse_line(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None  # blank, or torn by a crash
    return found if isinstance(found, dict) and "event" in found else None
