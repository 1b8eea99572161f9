"""A route's durable progress: events appended to two files used in turn."""

from __future__ import annotations

import errno
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from transporter.audit import AuditFile
from transporter.errors import (
    Corrupt,
    EngineUnreachable,
    EnvironmentFault,
    LockLost,
    LogFull,
    LogPoisoned,
    OffsetRefused,
    UnknownName,
)
from transporter.log.filesystem import (
    NO_SPACE,
    RealFileSystem,
    SyncFailed,
    make_directory,
    open_file,
    remove_tree,
    sync,
    sync_directory,
)
from transporter.log.inspection import inspect
from transporter.log.retention_gate import RetentionGate
from transporter.offsets import record as records
from transporter.offsets import state as states
from transporter.offsets.state import RELEASED, Range, RouteState, begin_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from transporter.audit import Operator
    from transporter.log.filesystem import File, FileSystem
    from transporter.log.inspection import LogInfo

    _Contents = dict[int, tuple[str, bytes]]

FOLDER: Final = "offsets"
NAMES: Final = ("0.offsets", "1.offsets")
SPARE: Final = "spare.offsets"
"""The file in which the next open will begin its turn."""
FILE_BYTES: Final = 1 << 20
"""Size in bytes up to which each of these files grows."""
_FIRST_BYTES: Final = 64 << 10
"""Bytes preallocated when they are made. More is preallocated only once that is used, so a commit
needs no new block. The files of a busy route double with each turn."""
RANGES_A_RECORD: Final = 100_000
"""Superseded ranges in one record. More are split."""
_TRANSIENT_ERRORS: Final = (*NO_SPACE, errno.EMFILE, errno.ENFILE)
"""Transient errors of a write or an open. On copy-on-write file systems, overwriting needs room,
too."""


def route_folder(directory: Path, route: str) -> Path:
    """Return the folder of *route* below the log *directory*."""
    return directory / FOLDER / route


def declared_routes(directory: Path, files: FileSystem | None = None) -> list[str]:
    """Return the routes that have an offset log. Each pins its unsettled entries."""
    files, folder = files or RealFileSystem(), directory / FOLDER
    return [name for name in files.names(folder) if _has_log(files, folder, name)]


def is_declared(directory: Path, route: str, files: FileSystem | None = None) -> bool:
    """Return whether *route* has an offset log, without a look at each other route."""
    files, folder = files or RealFileSystem(), directory / FOLDER
    return route in files.names(folder) and _has_log(files, folder, route)


def _has_log(files: FileSystem, folder: Path, name: str) -> bool:
    # Other programs leave files here, and hidden folders.
    return not name.startswith(".") and files.is_directory(folder / name)


def read_state(directory: Path, route: str, files: FileSystem | None = None) -> RouteState:
    """Return the state of *route* as read from disk. Takes no lock."""
    files = files or RealFileSystem()
    folder = route_folder(directory, route)
    if not is_declared(directory, route, files):
        known = ", ".join(declared_routes(directory, files)) or "none"
        raise UnknownName(f"{folder}: no route of this name has run here (known: {known})")
    return _read_turn(files, folder).state


class StoredRoutes:
    """The states of a directory's offset logs, each read only once.

    For a start, which needs them repeatedly, because a full offset log takes long to read. Use
    it only with the log's lock held. The writer of a route's files takes the state over.
    """

    def __init__(self, directory: Path, files: FileSystem | None = None) -> None:
        """Read nothing yet."""
        self._directory, self._files = directory, files or RealFileSystem()
        self._read: dict[str, _Turn] = {}

    def highest_offset(self) -> int:
        """Return the highest offset that any of them proves durable, or -1."""
        routes = declared_routes(self._directory, self._files)
        return max((self._turn(route).state.highest_offset() for route in routes), default=-1)

    def state(self, route: str) -> RouteState:
        """Return the state of *route*."""
        return self._turn(route).state

    def take_turn(self, route: str) -> _Turn:
        """Return the newest turn of *route* for its writer, and drop it from here."""
        found = self._turn(route)
        del self._read[route]
        return found

    def _turn(self, route: str) -> _Turn:
        if route not in self._read:
            self._read[route] = _read_turn(self._files, route_folder(self._directory, route))
        return self._read[route]


def proved_offset(directory: Path, files: FileSystem | None = None) -> int:
    """Return the highest offset that any offset log proves durable, or -1."""
    return StoredRoutes(directory, files).highest_offset()


def inspect_log(directory: Path) -> LogInfo:
    """Inspect the log in *directory* as far as the offset logs prove it durable. Takes no lock."""
    return inspect(directory, proved_offset(directory))


def rename_route(directory: Path, route: str, new: str, files: FileSystem | None = None) -> None:
    """Rename the offset log of *route* to *new*, durably. No engine may be running.

    Raises:
        UnknownName: there is no such route.
        EnvironmentFault: *new* has an offset log already.

    """
    files = files or RealFileSystem()
    refuse_renaming(directory, route, new, files)
    files.rename(route_folder(directory, route), route_folder(directory, new))
    sync_directory(files, directory / FOLDER)


def refuse_renaming(directory: Path, route: str, new: str, files: FileSystem | None = None) -> None:
    """Raise the errors of :func:`rename_route`, and change nothing."""
    read_state(directory, route, files)
    if is_declared(directory, new, files):
        raise EnvironmentFault(f"{route_folder(directory, new)}: a route of this name has run here")


def delete_route(directory: Path, route: str, files: FileSystem | None = None) -> None:
    """Delete *route*, including its parked entries, durably. No engine may be running."""
    files = files or RealFileSystem()
    read_state(directory, route, files)
    remove_tree(files, route_folder(directory, route))


class OffsetLog:
    """The offset log of one route. Thread-safe.

    An event is *written* at once and *durable* after :meth:`sync`. A kill loses no written
    event. A power cut loses at most the events after the last sync (Invariant 6).
    """

    def __init__(  # noqa: PLR0913 - an engine shares what one alone makes for itself
        self,
        directory: Path,
        route: str,
        files: FileSystem | None = None,
        first_offset: Callable[[], int] = lambda: 0,
        gate: RetentionGate | None = None,
        stored_routes: StoredRoutes | None = None,
        epoch: int = 0,
        *,
        audit: AuditFile | None = None,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the offset log of *route*, declaring the route durably if it is new.

        Every open begins a new turn. Nothing is ever appended behind records that an unclean
        stop may have left.

        Args:
            directory: the log's directory.
            route: the route's name.
            files: the file system, the real one by default.
            first_offset: returns a new route's first offset, which must not lie beyond the first
                offset that is not durable.
            gate: in an engine the gate of its log, through which a replay begins.
            stored_routes: has read the offset log already, with the lock held.
            epoch: the log's epoch, which a new route keeps.
            audit: in an engine the audit file that all its parts share.
            guard: in an engine raises ``LockLost`` once the files may be another engine's
                (Invariant 12).

        """
        self.route = route
        self._gate = gate or RetentionGate()
        self._files = files or RealFileSystem()
        self._folder = route_folder(directory, route)
        self._lock = threading.Condition()
        self.on_replay_delivered: Callable[[states.Replay], None] = lambda _: None
        """Called on the delivering thread when a replay was delivered to its end."""
        self._file: File | None = None
        self._end = self._spare_bytes = 0
        self._dirty = self._pending = False
        self._failure: OSError | None = None
        self._audit = audit or AuditFile(directory, self._files)
        self._guard = guard
        try:
            make_directory(self._files, self._folder)
            found = (
                stored_routes.take_turn(route)
                if stored_routes
                else _read_turn(self._files, self._folder)
            )
            self._state = found.state
            self.is_new = found.highest == 0
            if self.is_new:
                self._declare(first_offset(), epoch)
            else:
                self._replace_file(1 - found.slot, found.highest + 1)
        except OSError as error:
            raise EnvironmentFault(f"{self._folder}: {error.strerror}") from error

    @property
    def state(self) -> RouteState:
        """The route's progress."""
        return self._state

    @property
    def pending(self) -> bool:
        """Whether an event could not be written for lack of room. See :meth:`write_pending`."""
        return self._pending

    @property
    def turn(self) -> int:
        """The number of turns begun."""
        return self._turn

    @property
    def folder(self) -> Path:
        """The route's own folder."""
        return self._folder

    def wait_beyond(self, offset: int, timeout: float) -> int:
        """Wait up to *timeout* seconds for the watermark to pass *offset*. Return the watermark."""
        with self._lock:
            self._lock.wait_for(lambda: self._state.watermark > offset, timeout)
            return self._state.watermark

    def wait_for(self, condition: Callable[[RouteState], bool], timeout: float) -> bool:
        """Wait up to *timeout* seconds until *condition* accepts the state. Return whether so."""
        with self._lock:
            return self._lock.wait_for(lambda: condition(self._state), timeout)

    def pause(self) -> RouteState:
        """Stop deliveries, also across restarts. Durable on return."""
        return self._write_durably(states.paused_event())

    def resume(self) -> RouteState:
        """End a pause. Durable on return."""
        return self._write_durably(states.resumed_event())

    def step(self, through: int) -> RouteState:
        """Let a paused route deliver up to *through*. Durable on return."""
        if not self._state.paused:
            raise OffsetRefused(f"route {self.route} is not paused; pause it, then step")
        return self._write_durably(states.step_event(through))

    def request_retries(self, offsets: Sequence[int], *, only: bool = False) -> RouteState:
        """Request the delivery of the parked entries at *offsets*. Durable on return.

        Those behind them follow, unless *only* is given.
        """
        return self._write_durably(states.retries_requested_event(offsets, only=only))

    def request_followers(self, offsets: Sequence[int]) -> None:
        """Request the parked entries at *offsets*, behind one that was just delivered.

        Durable on return. Raises ``LogFull`` without room, and the request is pending then.
        """
        self._write(states.retries_requested_event(offsets), fact=True)
        self.sync()

    def begin_skip(self, offsets: Sequence[int], followers: Sequence[int]) -> RouteState:
        """Skip the parked *offsets* and request *followers*. Durable on return."""
        return self._write_durably(states.skip_begun_event(offsets, followers))

    def end_skip(self) -> RouteState:
        """Record that no copy of the skipped entries is left. Durable on return."""
        return self._write_durably(states.skip_ended_event(), fact=True)

    def finish_retry(self, offset: int) -> RouteState:
        """Record that the retry of the parked entry at *offset* is over. Durable on return."""
        return self._write_durably(states.retry_finished_event(offset), fact=True)

    def settle(
        self, part: Range, durable: int, namespaces: dict[str, int] | None = None
    ) -> RouteState:
        """Write that the offsets of *part* are settled, and return the new state.

        A delivery counts even if there is no room to write it (see :meth:`write_pending`). An
        operator's ack or a release raises ``LogFull`` then.
        """
        self.refuse_settling(part, durable)
        fact = part.kind not in ("operator", RELEASED)
        return self._write(states.settled_event(part, namespaces or {}), fact=fact)

    def begin_superseding(self, reader: str, through: int) -> RouteState:
        """Record that *reader*'s entries up to *through* come again. Durable on return.

        On a full disk the record is pending (see :meth:`write_pending`). Nothing new is logged
        then, either.
        """
        return self._write_durably(states.superseding_event(reader, through), fact=True)

    def supersede(
        self, reader: str, through: int, parts: Sequence[tuple[int, int]], durable: int
    ) -> RouteState:
        """Record that *reader*'s source redelivers the offsets of *parts*. Durable on return.

        They are the entries that *reader* has logged up to *through* and that this route has not
        settled. The last record of many carries the mark *through*, because until then not all of
        them are passed.

        Raises:
            EnvironmentFault: they are so many that the state could not be read again.

        """
        for first, last in parts:
            self.refuse_settling(Range(first, last), durable)
        state, before = self._state, self._state.superseded.get(reader, -1)
        for place in range(0, max(len(parts), 1), RANGES_A_RECORD):
            some = parts[place : place + RANGES_A_RECORD]
            mark = through if place + len(some) >= len(parts) else before
            try:
                state = self._write(states.superseded_event(reader, mark, some), fact=True)
            except OffsetRefused as error:
                raise EnvironmentFault(f"{self._folder}: {error}") from error
        if not self._pending:
            self.sync()
        return state

    def skip_superseding(self, reader: str, through: int, redelivered_through: int) -> RouteState:
        """Record that this route passes nothing that *reader* logged up to *through*.

        For a route that is new to the reader. *redelivered_through* is the offset up to which the
        source redelivers the undelivered entries of other routes. Durable on return.
        """
        return self._write_durably(
            states.superseded_event(reader, through, (), redelivered_through), fact=True
        )

    def refuse_settling(self, part: Range, durable: int) -> None:
        """Raise :class:`OffsetRefused` unless all of *part* is in the log."""
        if part.last > durable or part.first < 0 or part.first > part.last:
            # Invariant 3: a record proves its offsets durable, so it must not run ahead.
            named = (
                f"offset {part.first} is"
                if part.first == part.last
                else f"offsets {part.first}..{part.last} are"
            )
            raise OffsetRefused(
                f"route {self.route}: {named} not in the log, "
                f"whose last durable offset is {durable}"
            )

    def begin_replay(self, first: int, last: int, namespace: str = "") -> RouteState:
        """Record that *first* to *last* are to be redelivered. Durable on return.

        Only entries whose namespace matches *namespace* count, if one is given.
        """
        with self._gate.register_hold():
            # Invariant 11: no entry of it is removed between the last check of the holds and now.
            self.refuse_replay(first, last)
            return self._write_durably(states.replay_begun_event(first, last, namespace))

    def refuse_replay(self, first: int, last: int) -> None:
        """Raise :class:`OffsetRefused` if *first* to *last* cannot be replayed now."""
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

    def advance_replay(
        self, through: int, generation: int, *, is_delivery: bool = True
    ) -> RouteState:
        """Write that the replay of *generation* came to *through*. Durable on return at its end.

        A later replay that an operator has begun meanwhile is not affected. A *delivery* to its
        end is told to ``on_replay_delivered``.
        """
        before = self._state
        state = self._write(states.replay_advanced_event(through, generation), fact=True)
        if state.replay is None and not self._pending:
            self.sync()
        replay = before.replay if before.generation == generation else None
        if is_delivery and replay is not None and through >= replay.last:
            self.on_replay_delivered(replay)
        return state

    def cancel_replay(self) -> RouteState:
        """End the replay where it is. Durable on return."""
        return self._write_durably(states.replay_cancelled_event())

    def audit(self, action: str, **details: Any) -> None:  # noqa: ANN401 - plain JSON values
        """Record a coming action of the engine itself in the audit file. Durable on return."""
        self._audit.record(action, route=self.route, **details)

    def audit_change(
        self,
        action: str,
        by: Operator,
        /,
        **details: Any,  # noqa: ANN401 - as above
    ) -> AbstractContextManager[dict[str, Any]]:
        """Record an operator's change of the route. See :meth:`AuditFile.change`."""
        return self._audit.change(action, by, route=self.route, **details)

    def sync(self) -> None:
        """Make everything so far durable.

        Raises:
            LogFull: there is still no room for a pending event, which stays pending.
            LogPoisoned: the sync failed. The process must end (Invariant 13).

        """
        with self._lock:
            if self._file is None:
                return  # A closed offset log is durable already.
            self.write_pending()
            if self._dirty:
                self._sync()

    def confirmed_state(self) -> RouteState:
        """Return the state that no power cut can take back, without pending events.

        For code that makes room, which must not wait for the room it makes (Invariants 11, 14).

        Raises:
            LogPoisoned: a sync failed (Invariant 13).

        """
        with self._lock:
            if self._dirty:
                self._sync()
            return self._written_state

    def write_pending(self) -> None:
        """Write the events that had no room, because a kill must not cost more than a slice.

        Nothing more may be delivered before this returns (Invariant 14).

        Raises:
            LogFull: there is still no room. The events stay pending.
            LogPoisoned: the disk failed (Invariant 13).

        """
        with self._lock:
            if self._pending:
                self._put_whole_state()

    def close(self) -> None:
        """Sync a last snapshot, and close."""
        with self._lock:
            if self._file is None:
                return
            try:
                if self._failure is None:
                    # Without room, or the lock, written events stay and the rest is redelivered.
                    with suppress(LogFull, LockLost):
                        self._put_whole_state()
                    self._sync()
            finally:
                self._file.close()
                self._file = None

    def _write(self, event: dict[str, Any], *, fact: bool = False) -> RouteState:
        """Write *event*, and return the state after it.

        Without room a request is refused, and nothing has changed. A *fact* has happened, so the
        state includes it. It is pending until the whole state can be written (Invariant 14).
        """
        with self._lock:
            after = states.apply_event(self._state, event)
            if states.state_size(after) > states.state_size(self._state):
                states.refuse_growth(self.route, after)
            try:
                self._put_event(event, after)
            except LogFull:
                if not fact:
                    raise
                self._pending = True
            self._state = after
            self._lock.notify_all()
            return after

    def _write_durably(self, event: dict[str, Any], *, fact: bool = False) -> RouteState:
        state = self._write(event, fact=fact)
        if not (fact and self._pending):
            self.sync()
        return state

    def _put_whole_state(self) -> None:
        self._put_event(states.snapshot_event(self._state), self._state)

    def _put_event(self, event: dict[str, Any], after: RouteState) -> None:
        """Write *event*, which leads to the state *after*, or all of *after* if events are pending.

        The next write overwrites the remains of a failed write behind the last record.
        """
        if self._failure is not None:
            raise self._poison_error()
        if self._file is None:
            raise EngineUnreachable(f"route {self.route} has ended; nothing was changed")
        self._guard()
        try:
            self._append(states.snapshot_event(after) if self._pending else event, after)
        except OSError as error:
            if isinstance(error, SyncFailed) or error.errno not in _TRANSIENT_ERRORS:
                self._failure = error
                raise self._poison_error() from error
            raise LogFull(f"{self._folder}: {error.strerror}; its route waits for room") from error
        self._pending, self._written_state = False, after

    def _append(self, event: dict[str, Any], after: RouteState) -> None:
        assert self._file is not None  # noqa: S101 - closed logs are not written
        data = records.Record(self._turn, self._sequence, event).encode()
        if self._byte + len(data) > self._end:
            # The snapshot that begins the next turn holds this event already.
            self._begin_turn(1 - self._slot, self._turn + 1, after)
            self._grow_spare()
            return
        self._file.pwrite(data, self._byte)
        self._byte += len(data)
        self._sequence += 1
        self._dirty = True

    def _declare(self, first: int, epoch: int) -> None:
        """Make both files. The first one appears whole, so a bad one is never a torn one."""
        self._create_file(NAMES[1])
        # In its very first record, so that an existing route begins at its intended offset.
        self._state = begin_at(self._state, first, epoch)
        self._replace_file(0, 1)

    def _replace_file(self, slot: int, turn: int) -> None:
        """Begin a turn in a file that takes the place of *slot*. Durable on return.

        It is never begun in place. After a failed sync, the data that an open has read may exist
        in the page cache only, and the other file may be all that the disk has (Invariant 13).
        """
        if SPARE not in self._files.names(self._folder):
            self._create_file(SPARE)
        self._begin_turn(slot, turn, self._state, SPARE)
        self._files.rename(self._folder / SPARE, self._folder / NAMES[slot])
        # Also for the files of a process that was killed before it came to this sync.
        sync_directory(self._files, self._folder)
        self._reserve_spare()

    def _reserve_spare(self) -> None:
        """Reserve the next open's file, in the room that was just freed if the disk is full."""
        try:
            self._create_file(SPARE)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._files.remove(self._folder / SPARE)
        else:
            self._spare_bytes = min(_FIRST_BYTES, FILE_BYTES)
            self._grow_spare()

    def _grow_spare(self) -> None:
        """Reserve as much as this turn may take, if there is room, for the next open's snapshot.

        That is no longer than the records that it stands for. The disk may be full by then, and
        only an engine that has opened its routes can make room (Invariant 14).
        """
        wanted = self._end
        if 0 < self._spare_bytes < wanted:
            path = self._folder / SPARE
            with suppress(OSError), open_file(self._files, path, write=True) as file:
                if (size := file.size()) < wanted:
                    file.allocate(size, wanted - size)
                self._spare_bytes = wanted

    def _create_file(self, name: str) -> None:
        with open_file(self._files, self._folder / name, write=True, create=True) as file:
            file.truncate(0)
            file.allocate(0, min(_FIRST_BYTES, FILE_BYTES))

    def _begin_turn(self, slot: int, turn: int, state: RouteState, name: str | None = None) -> None:
        """Switch to the other file with a snapshot of *state*, synced before this one is left."""
        data = records.Record(turn, 0, states.snapshot_event(state)).encode()
        file = self._files.open(self._folder / (name or NAMES[slot]), write=True)
        try:
            room = self._preallocate(file, len(data))
            file.pwrite(data, 0)
            sync(file)
        except BaseException:
            file.close()
            raise
        if self._file is not None:
            self._file.close()
        self._file, self._dirty, self._written_state = file, False, state
        self._slot, self._turn, self._sequence, self._byte = slot, turn, 1, len(data)
        # A state that fills its file alone still has room for events behind it, as far as it is
        # read again.
        self._end = min(max(room, len(data) + room // 2), _most_read())

    def _preallocate(self, file: File, snapshot: int) -> int:
        """Preallocate more of *file* for a turn that begins with *snapshot* bytes. Return its size.

        Twice the size of the turn before, and four times the snapshot, or less if there is no room.
        """
        size = file.size()
        wanted = min(FILE_BYTES, max(2 * self._end, 4 * snapshot))
        try:
            if size < wanted:
                file.allocate(size, wanted - size)
                size = wanted
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            file.truncate(size)
        return size

    def _sync(self) -> None:
        assert self._file is not None  # noqa: S101 - closed logs are not synced
        if self._failure is not None:
            raise self._poison_error()
        try:
            self._file.sync()
        except OSError as error:
            self._failure = error
            raise self._poison_error() from error
        self._dirty = False

    def _poison_error(self) -> LogPoisoned:
        reason = self._failure.strerror if self._failure else "closed"
        return LogPoisoned(
            f"{self._folder}: an offset could not be made durable ({reason}); restart the engine"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Turn(NamedTuple):
    """The newest turn of an offset log: its slot, the highest turn of both files, its state."""

    slot: int
    highest: int
    state: RouteState


def _read_turn(files: FileSystem, folder: Path) -> _Turn:
    """Return the newest turn of the files in *folder*, or turn 0 if there are none.

    Only the file of the newest turn is folded.

    Raises:
        Corrupt: there are files, but none of them begins with a whole snapshot, or the records
            of one are whole but not the writing of an engine.

    """
    contents = _read_contents(files, folder)
    begun = {slot: _first_turn(data, path) for slot, (path, data) in contents.items()}
    slot = max(begun, key=lambda each: begun[each], default=1)
    if begun.get(slot, -1) >= 0:
        path, data = contents[slot]
        return _Turn(slot, _highest_turn(contents), _fold_records(data, path))
    if 0 in contents:
        raise Corrupt(
            "no file of this route's offset log begins with a whole snapshot; "
            "restore them, or see 'transporter log repair'",
            str(folder / NAMES[0]),
            0,
        )
    return _Turn(1, _highest_turn(contents), RouteState())


def _highest_turn(contents: _Contents) -> int:
    """Return the highest turn that was ever begun, or 0 for a new route.

    Records of a turn with a damaged snapshot count as well. They must never follow the
    snapshot of a later turn of that number.
    """
    found = (records.highest_turn(data, path) for path, data in contents.values())
    return max(found, default=0)


def _read_contents(files: FileSystem, folder: Path) -> _Contents:
    """Return the path and the bytes of the file in each slot that exists."""
    names = files.names(folder)
    found = {}
    for slot, name in enumerate(NAMES):
        if name in names:
            # Whoever reads without the lock may meet a route that is being forgotten.
            with suppress(FileNotFoundError), open_file(files, folder / name) as file:
                data = file.pread(min(file.size(), _most_read()), 0)
                found[slot] = (str(folder / name), data)
    return found


def _most_read() -> int:
    """Return the bytes of a file that an open reads. Its snapshot may exceed what it grows to."""
    return FILE_BYTES + records.MAX_RECORD


def _first_turn(data: bytes, file: str) -> int:
    with _translate_errors(file):
        return records.first_turn(data, file)


def _fold_records(data: bytes, file: str) -> RouteState:
    """Return the state from the records in *data*, of which the first is a snapshot."""
    with _translate_errors(file):
        state = states.fold_events(
            RouteState(), (record.event for record in records.decode_records(data, file))
        )
        state.validate()
    return state


@contextmanager
def _translate_errors(file: str) -> Iterator[None]:
    """Raise :class:`Corrupt` if records of *file* have valid checksums but invalid content.

    A log copied from an untrusted author then fails with a defined error (Invariant 17).
    """
    try:
        yield
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        problem = (
            "a record of this offset log is not one that an engine writes "
            f"({type(error).__name__}: {error}); restore the file, or see 'transporter log repair'"
        )
        raise Corrupt(problem, file, 0) from error
