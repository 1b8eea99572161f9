"""The state of one reader in the log, and the services that a reader may use."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from transporter.adaptor import Entries
from transporter.errors import Corrupt
from transporter.log.reader import LogReader
from transporter.log.reader_states import ReaderStates
from transporter.offsets.offset_log import declared_routes, read_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from transporter.adaptor import Gauge
    from transporter.engine.events import Observer
    from transporter.engine.reading.delivery_progress import DeliveryProgress
    from transporter.log.commit_log import CommitLog
    from transporter.log.format import Source
    from transporter.log.reader import LocatedFrame
    from transporter.offsets.state import Range


_MOST_SNAPSHOTS: Final = 32
"""Ends of terms for which the deliveries are kept (Invariant 17)."""


_SILENT_BLOCKS: Final = 64
"""Blocks of about 1 MiB in which a reader has logged nothing before more are passed over."""


class _DeliverySnapshot(NamedTuple):
    """The deliveries of every route when ``last`` was the log's last offset."""

    last: int
    through: int
    parked: frozenset[int]
    released: tuple[Range, ...] = ()

    def is_delivered(self, offset: int) -> bool:
        """Return whether every route had delivered *offset*."""
        return (
            offset <= self.through
            and offset not in self.parked
            and not any(part.first <= offset <= part.last for part in self.released)
        )

    def is_left(self, offset: int) -> bool:
        """Return whether some route had still to deliver *offset*, or had parked it.

        An entry that was released from a route is neither left nor delivered: its source
        redelivers it.
        """
        return offset > self.through or offset in self.parked


class _NothingFurther(Exception):
    """The reader has logged nothing further back."""


class _SilentBlocks:
    """Finds blocks of the log without entries of a reader, by the positions in each block.

    A frame without a position belongs to a batch that ends in a later frame, or that a crash
    has cut short. Blocks are therefore skipped only after many silent ones. An entry that is
    missed would be read from its source again.
    """

    def __init__(self, reader: str, position: str | None, known_after: int) -> None:
        """Begin at the end of the log, where *reader*'s newest position is *position*."""
        self._reader, self._position = reader, position
        self._known_after, self._is_past = known_after, False
        self.silent_blocks = 0

    def can_skip(self, first: LocatedFrame) -> bool:
        """Return whether to skip the block that begins with *first*. See ``frames_backwards``."""
        if self._is_past:
            raise _NothingFurther
        self._is_past = first.frame.last <= self._known_after
        source = first.source()
        if source is None or source.checkpoint is None:
            return False
        position = source.checkpoint.get(self._reader)
        self.silent_blocks = self.silent_blocks + 1 if position == self._position else 0
        self._position = position
        if self.silent_blocks <= _SILENT_BLOCKS:
            return False
        if position is None:
            raise _NothingFurther
        return True


class LogResume:
    """Implements ``adaptor.Resume`` for one reader. Belongs to its feed's thread."""

    def __init__(  # noqa: PLR0913 - each callback has another owner
        self,
        log: CommitLog,
        reader: str,
        observe: Observer,
        deliveries: DeliveryProgress | None = None,
        on_superseded: Callable[[], None] = lambda: None,
        on_reopened: Callable[[Iterable[tuple[str, Sequence[int]]]], None] = lambda _: None,
        superseded_through: Callable[[str], int] | None = None,
        *,
        on_measure: Callable[[Gauge, float | None], None] = lambda *_: None,
    ) -> None:
        """Look at *log*.

        Args:
            log: the log into which *reader* is read.
            reader: its name.
            observe: receives the reader's events.
            deliveries: the deliveries of the routes, with ``release: delivered``.
            on_superseded: called when undelivered entries are superseded.
            on_reopened: called with the unacknowledged entries, by position and offsets.
            superseded_through: returns the offset up to which any route has passed a reader's
                entries; by default it is read from the offset logs.
            on_measure: called with the reader's measures of its source.

        """
        self._log, self._reader, self._observe = log, reader, observe
        self._deliveries, self._on_superseded = deliveries, on_superseded
        self._superseded_through = superseded_through or self._read_superseded
        self._on_reopened, self._on_measure = on_reopened, on_measure
        self.states = ReaderStates(log.directory, reader, log.files, log.check_lock)
        self._known_after = self._superseded_to = -1
        self.last = log.durable
        """The last offset that this reader may have logged."""
        # A route passes entries at any moment after the request, and its watermark no longer
        # shows their deliveries. So these are recorded before the request.
        self._snapshots: deque[_DeliverySnapshot] = deque()

    def begin(self) -> None:
        """Load the state that earlier runs have left. Called once, before any route runs."""
        if self._deliveries is not None:
            self._known_after = self._superseded_to = self._deliveries.superseded_through(
                self._reader
            )
            self._deliveries.spare_new_routes(self._reader)
            return
        self._known_after = self._superseded_through(self._reader)

    def _read_superseded(self, reader: str) -> int:
        directory = self._log.directory
        states = (read_state(directory, route) for route in declared_routes(directory))
        return max((state.superseding.get(reader, -1) for state in states), default=-1)

    @property
    def log_id(self) -> str:
        """Names the log."""
        return self._log.log_id

    @property
    def reader(self) -> str:
        """Its name."""
        return self._reader

    @property
    def position(self) -> str | None:
        """The newest position logged by this reader."""
        return self._log.positions.get(self._reader)

    def state(self, name: str) -> str:
        """Return the state of this *name*."""
        return self.states.read(name)

    @property
    def committable(self) -> str | None:
        """The newest position up to which all may be forgotten by the source."""
        if self._deliveries is None:
            return self.position
        snapshot = self._take_snapshot()
        last = min(snapshot.last, snapshot.through, *(offset - 1 for offset in snapshot.parked))
        with LogReader(self._log.directory) as reader:
            for found, source in self._find_frames(reader, last):
                if found.frame.first <= self._known_after:
                    return None  # Passed, perhaps: it is no longer certain.
                if found.frame.last > last or source.position is None:
                    continue
                if not self._has_parked_behind(reader, found, snapshot):
                    return source.position
        return None

    def _has_parked_behind(
        self, reader: LogReader, found: LocatedFrame, snapshot: _DeliverySnapshot
    ) -> bool:
        """Return whether a parked entry behind *found* may belong to its position.

        Once every route has passed an entry, compaction may drop it from the end of its frame,
        parked or not. Then it lies between that frame and this reader's next one.
        """
        behind = (offset for offset in snapshot.parked if offset > found.frame.last)
        first = min(filter(self._may_be_ours, behind), default=None)
        if first is None:
            return False
        with suppress(Corrupt):
            for each in reader.frames(found.frame.last + 1, first):
                source = each.source()
                if source is not None and source.reader == self._reader:
                    return False
        return True

    def _may_be_ours(self, parked: int) -> bool:
        copy = self._deliveries.read_copy(parked) if self._deliveries is not None else None
        return copy is None or copy.reason.reader in (None, self._reader)

    def recent(self) -> Iterator[tuple[str | None, Entries]]:
        """Yield the entries that may be acknowledged to the source, by frame, newest first."""
        snapshot = self._take_snapshot()
        with LogReader(self._log.directory) as reader:
            for found, source in self._find_frames(reader, snapshot.last):
                if found.frame.last <= self._known_after:
                    return
                snapshots = (
                    snapshot for snapshot in self._snapshots if found.frame.last <= snapshot.last
                )
                entries = self._select_entries(found, next(snapshots, snapshot))
                yield source.position, Entries(entries, self._log.log_id)

    def _find_frames(self, reader: LogReader, last: int) -> Iterator[tuple[LocatedFrame, Source]]:
        """Yield this reader's entries up to *last*, newest first."""
        blocks = _SilentBlocks(self._reader, self.position, self._known_after)
        with suppress(_NothingFurther):
            for found in reader.frames_backwards(last, blocks.can_skip):
                source = found.source()
                if source is not None and source.reader == self._reader:
                    blocks.silent_blocks = 0
                    yield found, source

    def undelivered(self) -> Iterator[tuple[str | None, Entries]]:
        """Yield entries that some route has yet to deliver or has parked, by frame, oldest first.

        Superseded ones are left out. So is a frame that cannot be read, because the route that
        needs it halts there (Invariant 3).
        """
        position, held, is_copy = None, None, False
        for following, entries, is_copy in self._find_undelivered():
            if held is not None:
                # A copy may belong to the position of the frame before: see _has_parked_behind.
                yield None if is_copy else position, held
            position, held = position if is_copy else following, entries
        if held is not None:
            # The last copies may also belong to positions whose frames are gone.
            yield None if is_copy else position, held

    def _find_undelivered(self) -> Iterator[tuple[str | None, Entries, bool]]:
        """Yield the items of :meth:`undelivered`, and whether each is a copy between frames."""
        if self._deliveries is None:
            return
        snapshot = self._take_snapshot()
        parked = deque(sorted(each for each in snapshot.parked if each > self._superseded_to))
        with LogReader(self._log.directory) as reader, suppress(Corrupt):
            first = max(reader.first_offset(), self._superseded_to + 1, snapshot.through + 1)
            for found in reader.frames(first, snapshot.last):
                source = found.source()
                if source is None or source.reader != self._reader:
                    continue
                for copy in self._parked_copies(parked, found.frame.first - 1):
                    yield None, Entries(copy, self._log.log_id), True
                with suppress(Corrupt):
                    entries = self._select_entries(found, snapshot, delivered=False)
                    if parked and parked[0] <= found.frame.last:
                        # Compaction may have removed it from the middle of the frame.
                        logged = frozenset[int](entries.column("offset").to_pylist())
                        copies = self._parked_copies(parked, found.frame.last, logged)
                        entries = pa.concat_batches([entries, *copies]).sort_by("offset")
                    yield source.position, Entries(entries, self._log.log_id), False
        for copy in self._parked_copies(parked, snapshot.last):
            yield None, Entries(copy, self._log.log_id), True

    def _parked_copies(
        self, parked: deque[int], through: int, logged: AbstractSet[int] = frozenset()
    ) -> Iterator[pa.RecordBatch]:
        """Take offsets up to *through* from *parked*, and yield the copies of those not *logged*.

        Where all routes have passed an entry, or a route has begun again since, the log may lack
        it. Copies of earlier versions do not name their reader, so their entries come again.
        """
        while parked and parked[0] <= through:
            offset = parked.popleft()
            if offset not in logged and self._deliveries is not None:
                copy = self._deliveries.read_copy(offset)
                if copy is not None and copy.reason.reader == self._reader:
                    yield copy.entries

    def _take_snapshot(self) -> _DeliverySnapshot:
        last = self._log.durable
        if self._deliveries is None:
            return _DeliverySnapshot(last, last, frozenset())
        # In this order: an entry is parked before a watermark passes it.
        through = self._deliveries.through
        return _DeliverySnapshot(last, through, self._deliveries.parked, self._deliveries.released)

    def _select_entries(
        self, found: LocatedFrame, snapshot: _DeliverySnapshot, *, delivered: bool = True
    ) -> pa.RecordBatch:
        """Return the entries of a frame that every route had delivered, or the others.

        Superseded ones are left out, because compaction may have merged the frames.
        """
        entries = found.entries()
        offsets = entries.column("offset").to_pylist()
        which = snapshot.is_delivered if delivered else snapshot.is_left
        after = self._known_after if delivered else self._superseded_to
        mask = [offset > after and which(offset) for offset in offsets]
        return entries.filter(pa.array(mask, pa.bool_()))

    def supersede(self) -> None:
        """Make every route pass its undelivered entries of this reader."""
        if self._deliveries is not None:
            self._record_snapshot(self._take_snapshot())
            # In this order: a route that waited for the source finds the request first.
            self._deliveries.supersede(self._reader, self.last)
            self._superseded_to = max(self._superseded_to, self.last)
            self._on_superseded()
            self._deliveries.notify_acknowledged()

    def reopen(self, batches: Iterable[tuple[str, Sequence[int]]]) -> None:
        """Continue with the undelivered entries, which the source holds and waits for."""
        if self._deliveries is not None:
            self._on_reopened(batches)

    def _record_snapshot(self, snapshot: _DeliverySnapshot) -> None:
        if self._snapshots and snapshot.last <= self._snapshots[-1].last:
            # Nothing was logged since, and an earlier scan had more information.
            return
        self._snapshots.append(snapshot)
        if len(self._snapshots) > _MOST_SNAPSHOTS:
            self._known_after = max(self._known_after, self._snapshots.popleft().last)

    def measure(self, gauge: Gauge, value: float | None) -> None:
        """Forward the reader's measures of its source."""
        self._on_measure(gauge, value)

    def report(self, event: str, **details: object) -> None:
        """Report the event to the engine's observers."""
        self._observe(event, reader=self._reader, **details)
