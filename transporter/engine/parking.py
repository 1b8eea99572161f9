"""Setting entries aside that a route cannot deliver, and keeping their keys in order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from transporter.message import ENTRY_SCHEMA, concat
from transporter.offsets.parked import Parked, ParkedStore, Reason
from transporter.offsets.state import Range
from transporter.pipeline.namespace import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transporter.engine.protocol import Slice
    from transporter.log.commit_log import CommitLog
    from transporter.log.reader import LogReader
    from transporter.offsets.offset_log import OffsetLog
    from transporter.pipeline.config import RouteConfig


_NOTHING: Final = pa.RecordBatch.from_pylist([], schema=ENTRY_SCHEMA)


class Parking:
    """The parked entries of one running route. Belongs to the route's thread."""

    def __init__(
        self,
        config: RouteConfig,
        log: CommitLog,
        reader: LogReader,
        offsets: OffsetLog,
        clock: Callable[[], int],
    ) -> None:
        """Take up what is parked already."""
        self._log, self._reader, self._offsets = log, reader, offsets
        self._clock = clock
        self._store = ParkedStore(offsets.folder)
        self.configure(config)

    def configure(self, config: RouteConfig) -> None:
        """Go on with these settings of the route."""
        self._config, self._namespace = config, Namespace(config.namespace)

    def __len__(self) -> int:
        return len(self._store)

    @property
    def known(self) -> frozenset[int]:
        """The parked offsets; may be read by any thread."""
        return self._store.known

    @property
    def full(self) -> bool:
        """Whether ``park_limit`` is reached."""
        limit = self._config.park_limit
        return len(self._store) >= limit.entries or self._store.size >= limit.bytes

    def park(self, offset: int, error: str, attempts: int) -> None:
        """Set the entry at *offset* aside, durably, before anything later is delivered."""
        entries = next(batch for batch in self._reader.read(offset, offset) if batch.num_rows)
        self._keep(entries, Reason(error, attempts, self._clock()))
        self._offsets.sync()

    def screen(self, asked: Slice) -> Slice | None:
        """Park those entries of *asked* whose key has a parked one; return what is left of it.

        They are parked before the slice is delivered, not after: a sink that
        stores its offset would otherwise claim them (Invariants 5 and 9). Where
        there is no room for one, the slice ends before it; ``None`` when it begins there.
        """
        held = self._behind(asked)
        offsets = held.column("offset").to_pylist()
        last, parked = asked.last, 0
        for row, offset in enumerate(offsets):
            if self.full:
                last = offset - 1
                break
            entry = held.slice(row, 1)
            first = self._store.first_of(entry.column("key")[0].as_py())
            error = f"an earlier entry of its key is parked, at offset {first}"
            self._keep(entry, Reason(error, 0, self._clock(), first))
            parked += 1
        if parked:
            self._offsets.sync()
        if last < asked.first:
            return None
        return replace(asked, last=last, without=tuple(offsets[:parked]))

    def next_retry(self) -> int | None:
        """Return the parked offset that an operator wants delivered next; drop what is gone."""
        if self._offsets.state.paused:
            return None
        for offset in self._offsets.state.retries:
            if offset in self._store:
                return offset
            self._offsets.answer_retry(offset)
        return None

    def skip(self, offsets: Sequence[int]) -> list[int]:
        """Give the parked entries at *offsets* up; return those that were still parked."""
        found = [offset for offset in offsets if offset in self._store]
        for offset in found:
            self._store.remove(offset)
            self._offsets.answer_retry(offset)
        return found

    def delivered(self, offset: int) -> None:
        """Forget the parked entry at *offset*: its retry has been delivered."""
        self._store.remove(offset)
        self._offsets.answer_retry(offset)

    def failed_again(self, offset: int, error: str) -> None:
        """Keep the parked entry at *offset*, and with it all retries of its key."""
        parked = self._store.load(offset)
        reason = Reason(error, parked.reason.attempts + 1, self._clock(), parked.reason.behind)
        self._store.park(replace(parked, reason=reason))
        for each in self._offsets.state.retries:
            if each == offset or (each in self._store and self._store.same_key(each, offset)):
                self._offsets.answer_retry(each)

    def _behind(self, asked: Slice) -> pa.RecordBatch:
        """Return the entries of *asked* that this route takes and whose key is parked."""
        parked = self._store.keys() if self._config.park_order == "key" else ()
        if not parked:
            return _NOTHING
        entries = concat(self._reader.read(asked.first, asked.last))
        taken = entries.filter(self._namespace.mask(entries.column("namespace")))
        if asked.namespace:
            taken = taken.filter(Namespace(asked.namespace).mask(taken.column("namespace")))
        keys = pa.array(list(parked), pa.binary())
        return taken.filter(pc.is_in(taken.column("key"), keys))

    def _keep(self, entry: pa.RecordBatch, reason: Reason) -> None:
        offset = entry.column("offset")[0].as_py()
        self._store.park(Parked(offset, entry, reason))
        self._offsets.settle(Range(offset, offset, "parked"), self._log.durable)
