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
    """Pass what *reader* has logged up to *through* and this route has not delivered.

    Durable on return; the offset log says already that it is to be done, so the next open
    finishes what a crash, or a failure, has cut short. What it had looked through before is left
    as it was. Parked entries of it are removed: their source gives them again, so a retry would
    deliver them behind what has come since. Only to be called by the route's thread, between two
    slices.
    """
    # What was logged when the route first heard of the source is not given again: see
    # Deliveries.keep. All that came later up to here was passed, or is delivered.
    known = offsets.state.superseded.get(reader, -1)
    first = max(offsets.state.next_live(), known + 1)
    parts = list(_logged_by(reader, first, through, log)) if first <= through else []
    parked = [offset for offset in sorted(parking.known) if known < offset <= through]
    mine = [offset for offset in parked if parking.reader_of(offset) == reader]
    if mine:
        offsets.audit("supersede", offsets=mine, reason="its source gives it again")
        parking.skip(mine)
    # In this order: what a crash cuts short is begun again, and finds what is left.
    offsets.supersede(reader, through, parts, through)


def _logged_by(reader: str, first: int, through: int, log: LogReader) -> Iterator[tuple[int, int]]:
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
