"""A route's durable memory: events appended to two files used in turn."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Self

from transporter.errors import Corrupt, EnvironmentFault, LogPoisoned, OffsetRefused
from transporter.log.filesystem import (
    NO_SPACE,
    RealFileSystem,
    make_directory,
    opened,
    remove_tree,
    sync_directory,
)
from transporter.offsets import record as records
from transporter.offsets.audit import write_down
from transporter.offsets.state import Range, RouteState, begin_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from transporter.log.filesystem import File, FileSystem

    _Contents = dict[int, tuple[str, bytes]]

FOLDER: Final = "offsets"
AUDIT: Final = "audit.jsonl"
NAMES: Final = ("0.offsets", "1.offsets")
SPARE: Final = "spare.offsets"
"""The file that the next open will begin its turn in."""
FILE_BYTES: Final = 1 << 20
"""Bytes of each of these files, reserved when they are made: a commit needs no new block."""


def route_folder(directory: Path, route: str) -> Path:
    """Return the folder of *route* below the log *directory*."""
    return directory / FOLDER / route


def declared_routes(directory: Path, files: FileSystem | None = None) -> list[str]:
    """Return the routes that have an offset log: each pins what it has not settled."""
    names = (files or RealFileSystem()).names(directory / FOLDER)
    return [name for name in names if not name.startswith(".")]


def read_state(directory: Path, route: str, files: FileSystem | None = None) -> RouteState:
    """Return how far *route* has come, as the disk tells it; takes no lock."""
    files = files or RealFileSystem()
    folder = route_folder(directory, route)
    if route not in declared_routes(directory, files):
        known = ", ".join(declared_routes(directory, files)) or "none"
        raise EnvironmentFault(f"{folder}: no route of this name has run here (known: {known})")
    return _newest(_contents(files, folder), folder)[1]


def proved_offset(directory: Path, files: FileSystem | None = None) -> int:
    """Return the highest offset that any offset log proves durable; -1 when none does."""
    routes = declared_routes(directory, files)
    return max((read_state(directory, route, files).highest() for route in routes), default=-1)


def rename_route(directory: Path, route: str, new: str, files: FileSystem | None = None) -> None:
    """Give the offset log of *route* the name *new*, durably; no engine may be running.

    Raises:
        EnvironmentFault: there is no such route, or *new* has an offset log already.

    """
    files = files or RealFileSystem()
    read_state(directory, route, files)
    if new in declared_routes(directory, files):
        raise EnvironmentFault(f"{route_folder(directory, new)}: a route of this name has run here")
    files.rename(route_folder(directory, route), route_folder(directory, new))
    sync_directory(files, directory / FOLDER)


def delete_route(directory: Path, route: str, files: FileSystem | None = None) -> None:
    """Forget *route*, its parked entries included, durably; no engine may be running."""
    files = files or RealFileSystem()
    read_state(directory, route, files)
    remove_tree(files, route_folder(directory, route))


class OffsetLog:
    """The offset log of one route. Thread-safe.

    An event is *written* at once and *durable* after :meth:`sync`: a kill loses
    nothing that was written, a power cut at most what came after the last sync
    (Invariant 6).
    """

    def __init__(
        self,
        directory: Path,
        route: str,
        files: FileSystem | None = None,
        begin: Callable[[], int] = lambda: 0,
    ) -> None:
        """Open the offset log of *route*, declaring the route durably if it is new.

        *begin* tells a new route's first offset, which must not lie beyond the
        first that is not durable.

        Every open begins a new turn: nothing is ever appended behind records that
        an unclean stop may have left.
        """
        self.route = route
        self._files = files or RealFileSystem()
        self._folder = route_folder(directory, route)
        self._lock = threading.Condition()
        self._file: File | None = None
        self._dirty = False
        self._failure: OSError | None = None
        self._auditing = threading.Lock()
        try:
            make_directory(self._files, self._folder)
            contents = _contents(self._files, self._folder)
            slot, self._state = _newest(contents, self._folder)
            turn = _highest_turn(contents)
            self.is_new = turn == 0
            if self.is_new:
                self._declare(begin())
            else:
                self._replace(1 - slot, turn + 1)
        except OSError as error:
            raise EnvironmentFault(f"{self._folder}: {error.strerror}") from error

    @property
    def state(self) -> RouteState:
        """How far the route has come."""
        return self._state

    @property
    def folder(self) -> Path:
        """The route's own folder."""
        return self._folder

    def wait_beyond(self, offset: int, timeout: float) -> int:
        """Wait up to *timeout* seconds for the watermark to pass *offset*; return the watermark."""
        with self._lock:
            self._lock.wait_for(lambda: self._state.watermark > offset, timeout)
            return self._state.watermark

    def wait_for(self, reached: Callable[[RouteState], bool], timeout: float) -> bool:
        """Wait up to *timeout* seconds for a state that is *reached*; tell whether it is."""
        with self._lock:
            return self._lock.wait_for(lambda: reached(self._state), timeout)

    def pause(self) -> RouteState:
        """Let nothing more be delivered, whatever restarts; durable on return."""
        return self._write_durably(records.paused())

    def resume(self) -> RouteState:
        """End a pause; durable on return."""
        return self._write_durably(records.resumed())

    def step(self, through: int) -> RouteState:
        """Let a paused route deliver what comes up to *through*; durable on return."""
        if not self._state.paused:
            raise OffsetRefused(f"route {self.route} is not paused; pause it, then step")
        return self._write_durably(records.stepped(through))

    def request_retries(self, offsets: Sequence[int]) -> RouteState:
        """Ask for the parked entries at *offsets* to be delivered; durable on return."""
        return self._write_durably(records.retries_requested(offsets))

    def answer_retry(self, offset: int) -> RouteState:
        """Record that the retry of the parked entry at *offset* is over; durable on return."""
        return self._write_durably(records.retry_answered(offset))

    def settle(
        self, part: Range, durable: int, namespaces: dict[str, int] | None = None
    ) -> RouteState:
        """Write that the offsets of *part* are settled, and return the new state."""
        self.refuse_settling(part, durable)
        return self._write(records.settled(part, namespaces or {}))

    def supersede(
        self, reader: str, through: int, parts: Sequence[tuple[int, int]], durable: int
    ) -> RouteState:
        """Record that *reader*'s source gives the offsets of *parts* again; durable on return.

        They are what *reader* has logged up to *through* and this route has not settled.
        """
        for first, last in parts:
            self.refuse_settling(Range(first, last), durable)
        return self._write_durably(records.superseded(reader, through, parts))

    def refuse_settling(self, part: Range, durable: int) -> None:
        """Raise :class:`OffsetRefused` when *part* is not all in the log."""
        if part.last > durable or part.first < 0 or part.first > part.last:
            # Invariant 3: a record proves its offsets durable, so it must not run ahead.
            raise OffsetRefused(
                f"route {self.route}: offsets {part.first}..{part.last} are not in the log, "
                f"whose last durable offset is {durable}"
            )

    def begin_replay(self, first: int, last: int, namespace: str = "") -> RouteState:
        """Record that *first* to *last* are to be delivered again; durable on return.

        Of them only the entries whose namespace matches *namespace*, if one is given.
        """
        self.refuse_replay(first, last)
        return self._write_durably(records.replay_begun(first, last, namespace))

    def refuse_replay(self, first: int, last: int) -> None:
        """Raise :class:`OffsetRefused` when *first* to *last* cannot be replayed now."""
        if (running := self._state.replay) is not None:
            raise OffsetRefused(
                f"route {self.route}: the replay of {running.first}..{running.last} still has "
                f"{running.next}..{running.last} to deliver; let it end first, or cancel it"
            )
        if not 0 <= first <= last <= self._state.watermark:
            raise OffsetRefused(
                f"route {self.route}: {first}..{last} cannot be replayed; "
                f"it has delivered the offsets up to {self._state.watermark}"
            )

    def advance_replay(self, through: int, generation: int) -> RouteState:
        """Write that the replay of *generation* came to *through*; durable on return at its end.

        An operator may have begun another one meanwhile, of which nothing is said then.
        """
        state = self._write(records.replay_advanced(through, generation))
        if state.replay is None:
            self.sync()
        return state

    def cancel_replay(self) -> RouteState:
        """End the replay where it is; durable on return."""
        return self._write_durably(records.replay_cancelled())

    def audit(self, action: str, **details: Any) -> None:  # noqa: ANN401 - plain JSON values
        """Append what an operator does, when and why, to the audit file; durable on return.

        *details* may say ``who`` does it: by default the user of this process.
        """
        with self._auditing:
            write_down(self._files, self._folder / AUDIT, action, details)

    def sync(self) -> None:
        """Make everything written so far durable.

        Raises:
            LogPoisoned: the sync failed; the process must end (Invariant 13).

        """
        with self._lock:
            if self._dirty:
                self._sync()

    def close(self) -> None:
        """Sync a last snapshot, and close."""
        with self._lock:
            if self._file is None:
                return
            try:
                if self._failure is None:
                    self._append(records.snapshot(self._state))
                    self._sync()
            except OSError as error:
                self._failure = error
                raise self._poisoned() from error
            finally:
                self._file.close()
                self._file = None

    def _write(self, event: dict[str, Any]) -> RouteState:
        with self._lock:
            if self._failure is not None:
                raise self._poisoned()
            self._state = records.apply(self._state, event)
            try:
                self._append(event)
            except OSError as error:
                self._failure = error
                raise self._poisoned() from error
            self._lock.notify_all()
            return self._state

    def _write_durably(self, event: dict[str, Any]) -> RouteState:
        state = self._write(event)
        self.sync()
        return state

    def _append(self, event: dict[str, Any]) -> None:
        data = records.Record(self._turn, self._sequence, event).encode()
        if self._byte + len(data) > FILE_BYTES:
            # The snapshot that begins the next turn holds this event already.
            self._begin_turn(1 - self._slot, self._turn + 1)
            return
        self._put(data)

    def _put(self, data: bytes) -> None:
        assert self._file is not None  # noqa: S101 - closed logs are not written
        self._file.pwrite(data, self._byte)
        self._byte += len(data)
        self._sequence += 1
        self._dirty = True

    def _declare(self, first: int) -> None:
        """Make both files; the first one appears whole, so a bad one is never a torn one."""
        self._reserve(NAMES[1])
        # In its very first record: a route that exists begins where it was meant to.
        self._state = begin_at(self._state, first)
        self._replace(0, 1)

    def _replace(self, slot: int, turn: int) -> None:
        """Begin a turn in a file that takes the place of *slot*; durable on return.

        Never in place: after a sync that failed, what an open has read may be in the
        page cache only, and the other file all that the disk has (Invariant 13).
        """
        if SPARE not in self._files.names(self._folder):
            self._reserve(SPARE)
        self._begin_turn(slot, turn, SPARE)
        self._files.rename(self._folder / SPARE, self._folder / NAMES[slot])
        # Also for what a process created that was killed before it came to this sync.
        sync_directory(self._files, self._folder)
        self._keep_spare()

    def _keep_spare(self) -> None:
        """Reserve the next open's file, in the room that was just freed if the disk is full."""
        try:
            self._reserve(SPARE)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._files.remove(self._folder / SPARE)

    def _reserve(self, name: str) -> None:
        with opened(self._files, self._folder / name, write=True, create=True) as file:
            file.truncate(0)
            file.allocate(0, FILE_BYTES)

    def _begin_turn(self, slot: int, turn: int, name: str | None = None) -> None:
        """Take up the other file with a snapshot, synced before this one may be reused."""
        file = self._files.open(self._folder / (name or NAMES[slot]), write=True)
        if self._file is not None:
            self._file.close()
        self._file = file
        self._slot, self._turn, self._sequence, self._byte = slot, turn, 0, 0
        self._put(records.Record(turn, 0, records.snapshot(self._state)).encode())
        self._sync()

    def _sync(self) -> None:
        assert self._file is not None  # noqa: S101 - closed logs are not synced
        if self._failure is not None:
            raise self._poisoned()
        try:
            self._file.sync()
        except OSError as error:
            self._failure = error
            raise self._poisoned() from error
        self._dirty = False

    def _poisoned(self) -> LogPoisoned:
        reason = self._failure.strerror if self._failure else "closed"
        return LogPoisoned(
            f"{self._folder}: an offset could not be made durable ({reason}); restart the engine"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _newest(contents: _Contents, folder: Path) -> tuple[int, RouteState]:
    """Return the slot in use and the state that its records give.

    Raises:
        Corrupt: there are files, and none of them begins with a whole snapshot.

    """
    found: list[tuple[int, int, RouteState]] = []
    for slot, (path, data) in contents.items():
        if (read := _fold(data, path)) is not None:
            found.append((read[0], slot, read[1]))
    if found:
        _, slot, state = max(found, key=lambda entry: entry[0])
        return slot, state
    if 0 in contents:
        raise Corrupt(
            "no file of this route's offset log begins with a whole snapshot; "
            "restore them, or see 'transporter log repair'",
            str(folder / NAMES[0]),
            0,
        )
    return 1, RouteState()


def _highest_turn(contents: _Contents) -> int:
    """Return the highest turn that was ever begun; 0 for a new route.

    Records of a turn whose snapshot is damaged count as well: they must never
    follow the snapshot of a later turn of that number.
    """
    found = (records.highest_turn(data, path) for path, data in contents.values())
    return max(found, default=0)


def _contents(files: FileSystem, folder: Path) -> _Contents:
    """Return the path and the bytes of the file in each slot that there is."""
    names = files.names(folder)
    found = {}
    for slot, name in enumerate(NAMES):
        if name in names:
            with opened(files, folder / name) as file:
                # A snapshot may be larger than the file was meant to be.
                data = file.pread(min(file.size(), FILE_BYTES + records.MAX_RECORD), 0)
            found[slot] = (str(folder / name), data)
    return found


def _fold(data: bytes, file: str) -> tuple[int, RouteState] | None:
    """Return the turn and the state of the records in *data*; ``None`` without a snapshot."""
    state, turn = RouteState(), -1
    for record in records.decode_records(data, file):
        if turn < 0 and record.event.get("type") != "snapshot":
            return None
        state, turn = records.apply(state, record.event), record.turn
    return None if turn < 0 else (turn, state)
