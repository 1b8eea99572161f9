"""What the log remembers of one reader, and what a reader may ask of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from transporter.adaptor import Entries
from transporter.log.reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transporter.engine.deliveries import Deliveries
    from transporter.engine.events import Observer
    from transporter.log.commit_log import CommitLog
    from transporter.log.reader import Located


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

    @property
    def log_id(self) -> str:
        """Names the log."""
        return self._log.log_id

    @property
    def position(self) -> str | None:
        """The newest position logged by this reader."""
        return self._log.positions.get(self._reader)

    def recent(self) -> Iterator[tuple[str | None, Entries]]:
        """Yield what the source may be told of, a frame each, newest first."""
        settled = -1 if self._deliveries is None else self._deliveries.superseded(self._reader)
        with LogReader(self._log.directory) as reader:
            for found in reader.backwards(self._log.durable):
                if found.frame.last <= settled:
                    return
                source = found.source()
                if source is not None and source.reader == self._reader:
                    yield source.position, Entries(self._told(found), self._log.log_id)

    def _told(self, found: Located) -> pa.RecordBatch:
        """Return the entries of a frame, but for those that some route still has to deliver."""
        entries = found.entries()
        if self._deliveries is None:
            return entries
        through, parked = self._deliveries.through, self._deliveries.parked
        offsets = entries.column("offset").to_pylist()
        return entries.filter(pa.array([o <= through and o not in parked for o in offsets]))

    def supersede(self) -> None:
        """Have every route pass what it has not delivered of this reader."""
        if self._deliveries is not None:
            # In this order: a route that waited for the source finds what it is to pass first.
            self._deliveries.supersede(self._reader)
            self._superseded()
            self._deliveries.told()

    def tell(self, event: str, **details: object) -> None:
        """Tell everybody who watches the engine."""
        self._observe(event, reader=self._reader, **details)
