"""Parking of entries that a route cannot deliver, with the order of their keys."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from transporter.errors import EnvironmentFault, OffsetRefused
from transporter.offsets.parked import (
    ParkedEntry,
    ParkedStore,
    ParkReason,
    finish_skip,
    skip_entries,
)
from transporter.offsets.state import Range
from transporter.pipeline.namespace_filter import NamespaceFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from transporter.log.commit_log import CommitLog
    from transporter.log.reader import LogReader
    from transporter.offsets.offset_log import OffsetLog
    from transporter.pipeline.config import RouteConfig
    from transporter.protocol.messages import Slice


_TOGETHER: Final = 100
"""Entries that are parked before the mailbox is checked again."""


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
        """Load the parked entries."""
        self._log, self._reader, self._offsets = log, reader, offsets
        self._clock = clock
        self.store = ParkedStore(offsets.folder, lenient=True, guard=log.check_lock)
        finish_skip(self.store, offsets)
        self.configure(config)

    def configure(self, config: RouteConfig) -> None:
        """Go on with these settings of the route."""
        self._config, self._namespace = config, NamespaceFilter(config.namespace)

    def __len__(self) -> int:
        return len(self.store)

    @property
    def parked_offsets(self) -> frozenset[int]:
        """The parked offsets. May be read by any thread."""
        return self.store.known_offsets

    def check_damaged(self) -> None:
        """Raise the fault of a damaged parked entry. Its key is unknown, so no entry may pass."""
        for offset, error in self.store.damaged.items():
            raise EnvironmentFault(
                f"the parked entry {offset} cannot be read: {error}; skip it with 'transporter "
                "parked skip', or restore it from the log with 'transporter log repair'"
            ) from error

    @property
    def is_full(self) -> bool:
        """Whether ``park_limit`` is reached."""
        limit = self._config.park_limit
        return len(self.store) >= limit.entries or self.store.size >= limit.bytes

    def park(self, offset: int, error: str, attempts: int) -> None:
        """Set the entry at *offset* aside, durably, before anything later is delivered."""
        entries = next(batch for batch in self._reader.read(offset, offset) if batch.num_rows)
        self._park_all([ParkedEntry(offset, entries, ParkReason(error, attempts, self._clock()))])

    def park_followers(self, slice_: Slice) -> Slice | None:
        """Park the entries of *slice_* whose key has a parked one; return the rest of the slice.

        They are parked before the slice is delivered, because a sink that stores its offset
        would otherwise claim them (Invariants 5 and 9). Entries that are parked already stay as
        they are. The slice ends before an entry without room, and after a bounded number, so
        that a stop need not wait. ``None`` if there is no room at all.
        """
        held = list(islice(self._followers(slice_), _TOGETHER + 1))
        parked = self._select_fitting(held[:_TOGETHER])
        self._park_all(parked)
        last = slice_.last if len(parked) == len(held) else held[len(parked)].offset - 1
        if last < slice_.first:
            return None
        aside = {each.offset for each in parked}
        aside.update(each for each in self.store.known_offsets if slice_.first <= each <= last)
        return slice_._replace(last=last, without=tuple(sorted(aside)))

    def next_retry(self) -> int | None:
        """Return the offset of the next requested retry; drop requests for missing entries."""
        # A failed disk may have left copies of skipped entries.
        finish_skip(self.store, self._offsets)
        if self._offsets.state.paused:
            return None
        for offset in self._offsets.state.retries:
            if offset in self.store:
                # Invariant 9: the earlier parked ones of its key go first.
                return self._first_in_line(offset)
            self._offsets.finish_retry(offset)
        return None

    def skip(self, offsets: Sequence[int]) -> list[int]:
        """Skip the parked entries at *offsets*; return those that were still parked."""
        return skip_entries(self.store, self._offsets, offsets)

    def remove_delivered(self, offset: int) -> None:
        """Remove the parked entry at *offset*, whose retry was delivered. The next follows."""
        state = self._offsets.state
        if offset in state.retries and offset not in state.only:
            followers = set(self.store.followers({offset})).difference(state.retries)
            if followers:
                # Durable before the copy goes: a kill in between delivers this one again, and
                # leaves nothing parked behind an entry that is gone (Invariants 6 and 15).
                self._offsets.request_followers(sorted(followers))
        self.store.remove(offset)
        self._offsets.finish_retry(offset)

    def record_failure(self, offset: int, error: str) -> None:
        """Keep the parked entry at *offset*, and with it all retries of its key."""
        parked = self.store.load(offset)
        known = parked.reason
        again = replace(known, error=error, attempts=known.attempts + 1, parked_at=self._clock())
        self.store.park(replace(parked, reason=again))
        retries = self._offsets.state.retries
        self._finish_retries(
            [e for e in retries if e == offset or self.store.have_same_key(e, offset)]
        )

    def _finish_retries(self, offsets: Sequence[int]) -> None:
        slice_ = set(self._offsets.state.retries)
        for offset in slice_.intersection(offsets):
            self._offsets.finish_retry(offset)

    def _first_in_line(self, offset: int) -> int:
        if self._config.park_order == "key":
            return self.store.first_of_same_key(offset)
        return offset

    def _followers(self, slice_: Slice) -> Iterator[ParkedEntry]:
        """Yield the entries of *slice_* that follow a parked entry of their key.

        Entries that are parked already are left out.
        """
        parked = self.store.keys() if self._config.park_order == "key" else {}
        if not parked:
            return
        keys = pa.array(list(parked), pa.binary())
        for entries in self._reader.read(slice_.first, slice_.last):
            behind = entries.filter(pc.is_in(entries.column("key"), keys))
            behind = self._namespace.select(behind)
            if slice_.namespace:
                behind = behind.filter(
                    NamespaceFilter(slice_.namespace).mask(behind.column("namespace"))
                )
            for row, offset in enumerate(behind.column("offset").to_pylist()):
                first = parked[behind.column("key")[row].as_py()]
                if first < offset and offset not in self.store:
                    error = f"parked behind offset {first}, an earlier entry of its key"
                    reason = ParkReason(error, 0, self._clock(), first)
                    yield ParkedEntry(offset, behind.slice(row, 1), reason)

    def _select_fitting(self, wanted: Sequence[ParkedEntry]) -> list[ParkedEntry]:
        """Return the first of *wanted*: those for which ``park_limit`` leaves room."""
        limit, found = self._config.park_limit, []
        count, size = len(self.store), self.store.size
        for parked in wanted:
            if count >= limit.entries or size >= limit.bytes:
                break
            found.append(parked)
            count, size = count + 1, size + parked.entries.nbytes
        return found

    def _park_all(self, parked: Sequence[ParkedEntry]) -> None:
        if not parked:
            return
        self.store.park_all([self._add_reader(each) for each in parked])
        for each in parked:
            self._offsets.settle(Range(each.offset, each.offset, "parked"), self._log.durable)
        self._offsets.sync()

    def _add_reader(self, parked: ParkedEntry) -> ParkedEntry:
        reader = self._find_reader(parked.offset)
        return replace(parked, reason=replace(parked.reason, reader=reader))

    def reader_of(self, offset: int) -> str | None:
        """Return the reader of the parked entry at *offset*, or ``None`` if it is unknown."""
        return self.store.load(offset).reason.reader or self._find_reader(offset)

    def reason_of(self, offset: int) -> ParkReason:
        """Return why the entry at *offset* is parked."""
        return self.store.load(offset).reason

    def error_of(self, offset: int) -> str:
        """Return the error for which the entry at *offset* is parked."""
        return self.reason_of(offset).error

    def _find_reader(self, offset: int) -> str | None:
        try:
            return self._reader.reader_of(offset)
        except OffsetRefused:
            return None
