"""A route's durable memory: events appended to two files used in turn."""

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
    opened,
    remove_tree,
    sync,
    sync_directory,
)
from transporter.log.gate import RetentionGate
from transporter.offsets import record as records
from transporter.offsets.state import RELEASED, Range, RouteState, begin_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from transporter.audit import Operator
    from transporter.log.filesystem import File, FileSystem

    _Contents = dict[int, tuple[str, bytes]]

FOLDER: Final = "offsets"
NAMES: Final = ("0.offsets", "1.offsets")
SPARE: Final = "spare.offsets"
"""The file that the next open will begin its turn in."""
FILE_BYTES: Final = 1 << 20
"""Bytes that each of these files grows to."""
_FIRST_BYTES: Final = 64 << 10
"""Bytes that are set aside when they are made. What is set aside is written to before more is
asked for, so a commit needs no new block; the files of a busy route double with each turn."""
RANGES_A_RECORD: Final = 100_000
"""Superseded ranges in one record; more are split."""
_PASSING: Final = (*NO_SPACE, errno.EMFILE, errno.ENFILE)
"""What a write or an open fails with that goes away again. Where files are copied on write,
overwriting needs room, too."""


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
        raise UnknownName(f"{folder}: no route of this name has run here (known: {known})")
    return _read(files, folder).state


class StoredRoutes:
    """What the offset logs of a directory said when they were read, each of them once.

    For a start, which asks again and again, and a full offset log takes long to read. Only to
    be used with the log's lock held; who is to write to a route's files takes what was read.
    """

    def __init__(self, directory: Path, files: FileSystem | None = None) -> None:
        """Read nothing yet."""
        self._directory, self._files = directory, files or RealFileSystem()
        self._read: dict[str, _Turn] = {}

    def highest(self) -> int:
        """Return the highest offset that any of them proves durable; -1 when none does."""
        routes = declared_routes(self._directory, self._files)
        return max((self._turn(route).state.highest() for route in routes), default=-1)

    def state(self, route: str) -> RouteState:
        """Return how far *route* had come."""
        return self._turn(route).state

    def take(self, route: str) -> _Turn:
        """Return the newest turn of *route*, for whoever writes to its files from now on."""
        found = self._turn(route)
        del self._read[route]
        return found

    def _turn(self, route: str) -> _Turn:
        if route not in self._read:
            self._read[route] = _read(self._files, route_folder(self._directory, route))
        return self._read[route]


def proved_offset(directory: Path, files: FileSystem | None = None) -> int:
    """Return the highest offset that any offset log proves durable; -1 when none does."""
    return StoredRoutes(directory, files).highest()


def rename_route(directory: Path, route: str, new: str, files: FileSystem | None = None) -> None:
    """Give the offset log of *route* the name *new*, durably; no engine may be running.

    Raises:
        UnknownName: there is no such route.
        EnvironmentFault: *new* has an offset log already.

    """
    files = files or RealFileSystem()
    refuse_renaming(directory, route, new, files)
    files.rename(route_folder(directory, route), route_folder(directory, new))
    sync_directory(files, directory / FOLDER)


def refuse_renaming(directory: Path, route: str, new: str, files: FileSystem | None = None) -> None:
    """Raise what :func:`rename_route` would refuse, and change nothing."""
    read_state(directory, route, files)
    if new in declared_routes(directory, files):
        raise EnvironmentFault(f"{route_folder(directory, new)}: a route of this name has run here")


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

    def __init__(  # noqa: PLR0913 - an engine shares what one alone makes for itself
        self,
        directory: Path,
        route: str,
        files: FileSystem | None = None,
        begin: Callable[[], int] = lambda: 0,
        gate: RetentionGate | None = None,
        stored: StoredRoutes | None = None,
        epoch: int = 0,
        *,
        audit: AuditFile | None = None,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the offset log of *route*, declaring the route durably if it is new.

        *begin* tells a new route's first offset, which must not lie beyond the
        first that is not durable. In an engine *gate* is that of its log, through which
        a replay begins. *stored* has read it already, with the lock held. *epoch* is the log's,
        which a new route keeps. In an engine *audit* is the one that all of it shares, and
        *guard* raises ``LockLost`` once the files may be another engine's (Invariant 12).

        Every open begins a new turn: nothing is ever appended behind records that
        an unclean stop may have left.
        """
        self.route = route
        self._gate = gate or RetentionGate()
        self._files = files or RealFileSystem()
        self._folder = route_folder(directory, route)
        self._lock = threading.Condition()
        self._file: File | None = None
        self._end = 0
        self._dirty = self._pending = False
        self._failure: OSError | None = None
        self._audit = audit or AuditFile(directory, self._files)
        self._guard = guard
        try:
            make_directory(self._files, self._folder)
            found = stored.take(route) if stored else _read(self._files, self._folder)
            self._state = found.state
            self.is_new = found.highest == 0
            if self.is_new:
                self._declare(begin(), epoch)
            else:
                self._replace(1 - found.slot, found.highest + 1)
        except OSError as error:
            raise EnvironmentFault(f"{self._folder}: {error.strerror}") from error

    @property
    def state(self) -> RouteState:
        """How far the route has come."""
        return self._state

    @property
    def pending(self) -> bool:
        """Whether something has happened that found no room yet; see :meth:`write_pending`."""
        return self._pending

    @property
    def turn(self) -> int:
        """How often a file was begun."""
        return self._turn

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

    def request_retries(self, offsets: Sequence[int], *, only: bool = False) -> RouteState:
        """Ask for the parked entries at *offsets* to be delivered; durable on return.

        Those behind them follow, unless *only* these are asked for.
        """
        return self._write_durably(records.retries_requested(offsets, only=only))

    def let_follow(self, offsets: Sequence[int]) -> None:
        """Ask for the parked entries at *offsets*, behind one that was delivered just now.

        Durable on return. Raises ``LogFull`` without room: it is pending then.
        """
        self._write(records.retries_requested(offsets), fact=True)
        self.sync()

    def begin_skip(self, offsets: Sequence[int], followers: Sequence[int]) -> RouteState:
        """Give the parked *offsets* up, and ask for *followers*; durable on return."""
        return self._write_durably(records.skip_begun(offsets, followers))

    def end_skip(self) -> RouteState:
        """Record that no copy of what was given up is left; durable on return."""
        return self._write_durably(records.skip_ended(), fact=True)

    def answer_retry(self, offset: int) -> RouteState:
        """Record that the retry of the parked entry at *offset* is over; durable on return."""
        return self._write_durably(records.retry_answered(offset), fact=True)

    def settle(
        self, part: Range, durable: int, namespaces: dict[str, int] | None = None
    ) -> RouteState:
        """Write that the offsets of *part* are settled, and return the new state.

        What was delivered is taken although there is no room to write it: see
        :meth:`write_pending`. An operator's ack, and a release, raise ``LogFull`` then.
        """
        self.refuse_settling(part, durable)
        fact = part.kind not in ("operator", RELEASED)
        return self._write(records.settled(part, namespaces or {}), fact=fact)

    def begin_superseding(self, reader: str, through: int) -> RouteState:
        """Record that what *reader* logged up to *through* comes again; durable on return.

        On a full disk it is pending, see :meth:`write_pending`; nothing new is logged then, either.
        """
        return self._write_durably(records.superseding(reader, through), fact=True)

    def supersede(
        self, reader: str, through: int, parts: Sequence[tuple[int, int]], durable: int
    ) -> RouteState:
        """Record that *reader*'s source gives the offsets of *parts* again; durable on return.

        They are what *reader* has logged up to *through* and this route has not settled.
        The mark *through* comes with the last record of many: until then not all is passed.

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
                state = self._write(records.superseded(reader, mark, some), fact=True)
            except OffsetRefused as error:
                raise EnvironmentFault(f"{self._folder}: {error}") from error
        if not self._pending:
            self.sync()
        return state

    def spare(self, reader: str, through: int, asked: int) -> RouteState:
        """Record that this route passes nothing that *reader* logged up to *through*.

        For a route that is new to the reader; of what other routes have *asked* is up to
        where its source gives again what they had not delivered. Durable on return.
        """
        return self._write_durably(records.superseded(reader, through, (), asked), fact=True)

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
        with self._gate.registering():
            # Invariant 11: nothing of it goes between the last look at the holds and now.
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
        state = self._write(records.replay_advanced(through, generation), fact=True)
        if state.replay is None and not self._pending:
            self.sync()
        return state

    def cancel_replay(self) -> RouteState:
        """End the replay where it is; durable on return."""
        return self._write_durably(records.replay_cancelled())

    def audit(self, action: str, **details: Any) -> None:  # noqa: ANN401 - plain JSON values
        """Record in the audit file what the engine itself is about to do; durable on return."""
        self._audit.record(action, route=self.route, **details)

    def audited(
        self,
        action: str,
        by: Operator,
        /,
        **details: Any,  # noqa: ANN401 - as above
    ) -> AbstractContextManager[dict[str, Any]]:
        """Record what an operator does to the route; see :meth:`AuditFile.change`."""
        return self._audit.change(action, by, route=self.route, **details)

    def sync(self) -> None:
        """Make everything so far durable.

        Raises:
            LogFull: there is still no room for what happened; it stays pending.
            LogPoisoned: the sync failed; the process must end (Invariant 13).

        """
        with self._lock:
            if self._file is None:
                return  # As it was closed, what it has is durable.
            self.write_pending()
            if self._dirty:
                self._sync()

    def confirmed(self) -> RouteState:
        """Return the state that no power cut can take back; what is pending is not in it.

        For whoever makes room: that must not wait for the room it makes (Invariants 11, 14).

        Raises:
            LogPoisoned: a sync failed (Invariant 13).

        """
        with self._lock:
            if self._dirty:
                self._sync()
            return self._written

    def write_pending(self) -> None:
        """Write what happened while there was no room; a kill must not cost more than a slice.

        Nothing more is to be delivered before this returns (Invariant 14).

        Raises:
            LogFull: there is still no room; it stays pending.
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
                    # Without room, or the lock, what was written stays, and the rest is
                    # delivered again.
                    with suppress(LogFull, LockLost):
                        self._put_whole_state()
                    self._sync()
            finally:
                self._file.close()
                self._file = None

    def _write(self, event: dict[str, Any], *, fact: bool = False) -> RouteState:
        """Write *event*, and return the state after it.

        Without room a request is refused, and nothing has changed. A *fact* has happened, so
        the state takes it: it is pending until the whole state could be written (Invariant 14).
        """
        with self._lock:
            after = records.apply(self._state, event)
            if records.size_of(after) > records.size_of(self._state):
                records.refuse_growth(self.route, after)
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
        self._put_event(records.snapshot(self._state), self._state)

    def _put_event(self, event: dict[str, Any], after: RouteState) -> None:
        """Write *event*, after which the state is *after*; or that whole if some is pending.

        What a failed write has left behind the last record is written over by the next one.
        """
        if self._failure is not None:
            raise self._poisoned()
        if self._file is None:
            raise EngineUnreachable(f"route {self.route} has ended; nothing was changed")
        self._guard()
        try:
            self._append(records.snapshot(after) if self._pending else event, after)
        except OSError as error:
            if isinstance(error, SyncFailed) or error.errno not in _PASSING:
                self._failure = error
                raise self._poisoned() from error
            raise LogFull(f"{self._folder}: {error.strerror}; its route waits for room") from error
        self._pending, self._written = False, after

    def _append(self, event: dict[str, Any], after: RouteState) -> None:
        assert self._file is not None  # noqa: S101 - closed logs are not written
        data = records.Record(self._turn, self._sequence, event).encode()
        if self._byte + len(data) > self._end:
            # The snapshot that begins the next turn holds this event already.
            self._begin_turn(1 - self._slot, self._turn + 1, after)
            return
        self._file.pwrite(data, self._byte)
        self._byte += len(data)
        self._sequence += 1
        self._dirty = True

    def _declare(self, first: int, epoch: int) -> None:
        """Make both files; the first one appears whole, so a bad one is never a torn one."""
        self._reserve(NAMES[1])
        # In its very first record: a route that exists begins where it was meant to.
        self._state = begin_at(self._state, first, epoch)
        self._replace(0, 1)

    def _replace(self, slot: int, turn: int) -> None:
        """Begin a turn in a file that takes the place of *slot*; durable on return.

        Never in place: after a sync that failed, what an open has read may be in the
        page cache only, and the other file all that the disk has (Invariant 13).
        """
        if SPARE not in self._files.names(self._folder):
            self._reserve(SPARE)
        self._begin_turn(slot, turn, self._state, SPARE)
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
            file.allocate(0, min(_FIRST_BYTES, FILE_BYTES))

    def _begin_turn(self, slot: int, turn: int, state: RouteState, name: str | None = None) -> None:
        """Take up the other file with a snapshot of *state*, synced before this one is left."""
        data = records.Record(turn, 0, records.snapshot(state)).encode()
        file = self._files.open(self._folder / (name or NAMES[slot]), write=True)
        try:
            room = self._widened(file, len(data))
            file.pwrite(data, 0)
            sync(file)
        except BaseException:
            file.close()
            raise
        if self._file is not None:
            self._file.close()
        self._file, self._dirty, self._written = file, False, state
        self._slot, self._turn, self._sequence, self._byte = slot, turn, 1, len(data)
        # A state that fills its file alone has room for events behind it all the same.
        self._end = max(room, len(data) + room // 2)

    def _widened(self, file: File, snapshot: int) -> int:
        """Set more of *file* aside for a turn that begins with *snapshot* bytes; return its size.

        Twice what the turn before had, and four times the snapshot; less where there is no room.
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


class _Turn(NamedTuple):
    """The newest turn of an offset log: its slot, the highest turn of both files, its state."""

    slot: int
    highest: int
    state: RouteState


def _read(files: FileSystem, folder: Path) -> _Turn:
    """Return what the files in *folder* say; turn 0 where there are none.

    Only the file of the newest turn is folded.

    Raises:
        Corrupt: there are files, and none of them begins with a whole snapshot, or the records
            of one are whole and yet nothing that an engine writes.

    """
    contents = _contents(files, folder)
    begun = {slot: _first_turn(data, path) for slot, (path, data) in contents.items()}
    slot = max(begun, key=lambda each: begun[each], default=1)
    if begun.get(slot, -1) >= 0:
        path, data = contents[slot]
        return _Turn(slot, _highest_turn(contents), _fold(data, path))
    if 0 in contents:
        raise Corrupt(
            "no file of this route's offset log begins with a whole snapshot; "
            "restore them, or see 'transporter log repair'",
            str(folder / NAMES[0]),
            0,
        )
    return _Turn(1, _highest_turn(contents), RouteState())


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


def _first_turn(data: bytes, file: str) -> int:
    with _sense(file):
        return records.first_turn(data, file)


def _fold(data: bytes, file: str) -> RouteState:
    """Return the state that the records in *data* give, whose first is a snapshot."""
    with _sense(file):
        state = records.fold(
            RouteState(), (record.event for record in records.decode_records(data, file))
        )
        state.check()
    return state


@contextmanager
def _sense(file: str) -> Iterator[None]:
    """Raise :class:`Corrupt` where the records of *file* have sound checksums but make no sense.

    So a copy of a log that somebody else has made ends in an error of its own (Invariant 17).
    """
    try:
        yield
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        problem = (
            "a record of this offset log is nothing that an engine writes "
            f"({type(error).__name__}: {error}); restore the file, or see 'transporter log repair'"
        )
        raise Corrupt(problem, file, 0) from error
