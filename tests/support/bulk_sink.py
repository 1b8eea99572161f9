"""A sink that takes entries in bulks, and can fail in the middle of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_tools import LinesWriter

from transporter.errors import RouteFault

if TYPE_CHECKING:
    from transporter.adaptor import Ack
    from transporter.message import Entries

BULK = 4
"""Entries that a :class:`BulkWriter` sends at once."""


class BulkWriter(LinesWriter):
    """Sends bulks, and acks the entries of a bulk once all of it has arrived.

    While the file ``<path>.broken`` exists, bulks behind the second of the log fail half-way.
    """

    def write(self, batch: Entries, ack: Ack) -> None:
        entries = list(batch)
        for bulk in (entries[start : start + BULK] for start in range(0, len(entries), BULK)):
            for at, (offset, _, message) in enumerate(bulk):
                if at == BULK // 2 and offset >= 2 * BULK and self._beside("broken").exists():
                    raise RouteFault("the connection was cut in the middle of a bulk")
                self._deliver(offset, message, batch.generation)
            ack([entry.offset for entry in bulk])
