"""What the log remembers of one reader, and what a reader may ask of the engine."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from transporter.adaptor import Entries
from transporter.log.reader import LogReader
from transporter.offsets.offset_log import declared_routes, read_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transporter.engine.deliveries import Deliveries
    from transporter.engine.events import Observer
    from transporter.log.commit_log import CommitLog
    from transporter.log.reader import Located


_MOST_LOOKS: Final = 32
"""Ends of terms before which it is known what was delivered (Invariant 17)."""


class _Look(NamedTuple):
    """What every route had delivered when ``last`` was the log's last offset."""

    last: int
    through: int
    parked: frozenset[int]


class LogResume:
    """Implements ``adaptor.Resume`` for one reader. Belongs to its feed's thread."""

    def __init__(
        self,
        log: CommitLog,
        reader: str,
        observe: Observer,
        deliveries: Deliveries | None = None,
        superseded: Callable[[], None] = lambda: None,
    ) -> None:
        """Look at *log*.

        Args:
            log: what *reader* is read into.
            reader: its name.
            observe: hears what the reader tells.
            deliveries: what the routes have delivered, when the source is told only of that.
            superseded: called when what is logged and not delivered is superseded.

        """
        self._log, self._reader, self._observe = log, reader, observe
        self._deliveries, self._superseded = deliveries, superseded
        self._known_after = -1
        # A route that was asked to pass entries does so at any moment, and its watermark tells
        # no more which of them were delivered. So that is kept from before it was asked.
        self._looks: deque[_Look] = deque()

    def begin(self) -> None:
        """Take up what earlier runs have left; called once, before any route runs."""
        if self._deliveries is not None:
            self._known_after = self._deliveries.superseded(self._reader)
            self._deliveries.keep(self._reader)
            return
        directory = self._log.directory
        states = [read_state(directory, route) for route in declared_routes(directory)]
        marks = (state.superseded.get(self._reader, -1) for state in states)
        self._known_after = max(marks, default=-1)

    @property
    def log_id(self) -> str:
        """Names the log."""
        return self._log.log_id

    @property
    def position(self) -> str | None:
        """The newest position logged by this reader."""
        return self._log.positions.get(self._reader)

    @property
    def committable(self) -> str | None:
        """The newest position up to which all may be forgotten by the source."""
        if self._deliveries is None:
            return self.position
        now = self._look()
        last = min(now.last, now.through, *(offset - 1 for offset in now.parked))
        with LogReader(self._log.directory) as reader:
            for found in reader.backwards(last):
                if found.frame.first <= self._known_after:
                    return None  # Passed, perhaps: nobody can tell any more.
                source = found.source()
                if source is None or source.reader != self._reader or found.frame.last > last:
                    continue
                if source.position is not None:
                    return source.position
        return None

    def recent(self) -> Iterator[tuple[str | None, Entries]]:
        """Yield what the source may be told of, a frame each, newest first."""
        now = self._look()
        with LogReader(self._log.directory) as reader:
            for found in reader.backwards(now.last):
                if found.frame.last <= self._known_after:
                    return
                source = found.source()
                if source is not None and source.reader == self._reader:
                    looks = (look for look in self._looks if found.frame.last <= look.last)
                    entries = self._told(found, next(looks, now))
                    yield source.position, Entries(entries, self._log.log_id)

    def _look(self) -> _Look:
        last = self._log.durable
        if self._deliveries is None:
            return _Look(last, last, frozenset())
        # In this order: an entry is parked before a watermark passes it.
        through = self._deliveries.through
        return _Look(last, through, self._deliveries.parked)

    @staticmethod
    def _told(found: Located, look: _Look) -> pa.RecordBatch:
        """Return the entries of a frame, but for those that some route had to deliver still."""
        entries, (_, through, parked) = found.entries(), look
        offsets = entries.column("offset").to_pylist()
        return entries.filter(pa.array([o <= through and o not in parked for o in offsets]))

    def supersede(self) -> None:
        """Have every route pass what it has not delivered of this reader."""
        if self._deliveries is not None:
            self._keep(self._look())
            # In this order: a route that waited for the source finds what it is to pass first.
            self._deliveries.supersede(self._reader)
            self._superseded()
            self._deliveries.told()

    def _keep(self, look: _Look) -> None:
        if self._looks and look.last <= self._looks[-1].last:
            # Nothing was logged since, and of what had been an earlier look knows better.
            return
        self._looks.append(look)
        if len(self._looks) > _MOST_LOOKS:
            self._known_after = max(self._known_after, self._looks.popleft().last)

    def tell(self, event: str, **details: object) -> None:
        """Tell everybody who watches the engine."""
        self._observe(event, reader=self._reader, **details)
