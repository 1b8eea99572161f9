"""Passing what a source gives again: a term, or a reader, has ended before it was delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.errors import OffsetRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.engine.parking import Parking
    from transporter.log.reader import LogReader
    from transporter.offsets.offset_log import OffsetLog


def supersede(
    reader: str, through: int, log: LogReader, offsets: OffsetLog, parking: Parking
) -> None:
    """Pass what *reader* has logged up to *through* and this route has not delivered.

    Durable on return. What it had looked through before is left as it was. Parked entries
    of it are removed: their source gives them again, so a retry would deliver them behind
    what has come since. Only to be called by the route's thread, between two slices.
    """
    # What was logged when the route first heard of the source is not given again: see
    # Deliveries.keep. All that came later up to here was passed, or is delivered.
    known = offsets.state.superseded.get(reader, -1)
    first = max(offsets.state.next_live(), known + 1)
    parts = list(_logged_by(reader, first, through, log)) if first <= through else []
    parked = [offset for offset in sorted(parking.known) if known < offset <= through]
    mine = [offset for offset in parked if _reader_of(offset, log) == reader]
    if parts or mine:
        # Not without need: behind it nobody can tell any more what was delivered.
        offsets.supersede(reader, through, parts, through)
    if mine:
        offsets.audit(
            "supersede", who="the engine", offsets=mine, reason="its source gives it again"
        )
        parking.skip(mine)


def _logged_by(reader: str, first: int, through: int, log: LogReader) -> Iterator[tuple[int, int]]:
    for found in log.frames(first, through):
        source = found.source()
        if source is not None and source.reader == reader:
            yield max(found.frame.first, first), min(found.frame.last, through)


def _reader_of(offset: int, log: LogReader) -> str | None:
    """Return who has logged *offset*; ``None`` when the log does not hold it any more."""
    try:
        source = next(log.frames(offset, offset)).source()
    except OffsetRefused:
        return None
    return source.reader if source is not None else None
