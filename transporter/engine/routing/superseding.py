"""Superseding: entries of an ended term that its source redelivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.engine.routing.parking import Parking
    from transporter.log.reader import LogReader
    from transporter.offsets.offset_log import OffsetLog


def supersede(
    reader: str, through: int, log: LogReader, offsets: OffsetLog, parking: Parking
) -> None:
    """Pass this route's undelivered entries of *reader* up to *through*.

    Durable on return. The offset log has the request already, so the next open finishes it after
    a crash or a failure. Entries that were passed before are left as they were. Its parked entries
    are removed, because the source redelivers them, and a retry would deliver them after later
    entries of their key. Only to be called by the route's thread, between two slices.
    """
    # Entries that were logged before the route first served the source do not come again: see
    # DeliveryProgress.spare_new_routes. All that came later up to here was passed, or is delivered.
    # A replay may have parked it since. It stays, because its source does not give it again.
    superseded = offsets.state.superseded.get(reader, -1)
    first = max(offsets.state.next_unsettled(), superseded + 1)
    parts = list(_ranges_logged_by(reader, first, through, log)) if first <= through else []
    parked = [offset for offset in sorted(parking.parked_offsets) if superseded < offset <= through]
    own = [offset for offset in parked if parking.reader_of(offset) == reader]
    if own:
        offsets.audit("supersede", offsets=own, reason="its source gives it again")
        parking.skip(own)
    # In this order: after a crash this is repeated, and finds the rest.
    offsets.supersede(reader, through, parts, through)


def _ranges_logged_by(
    reader: str, first: int, through: int, log: LogReader
) -> Iterator[tuple[int, int]]:
    """Yield the ranges that *reader* has logged, ascending, as few as there are."""
    begin, end = first, first - 1
    for found in log.frames(first, through):
        source = found.source()
        if source is None or source.reader != reader:
            continue
        start = max(found.frame.first, first)
        if start > end + 1:
            if begin <= end:
                yield begin, end
            begin = start
        end = min(found.frame.last, through)
    if begin <= end:
        yield begin, end
