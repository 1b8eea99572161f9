"""Changes that were received and are not logged yet, taken frame by frame."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pyarrow as pa

from transporter.message import Message
from transporter_adaptors.postgres_cdc.changes import PreparedChange
from transporter_adaptors.postgres_cdc.copier import LARGEST
from transporter_adaptors.postgres_cdc.entries import size_of
from transporter_adaptors.postgres_cdc.run_batches import RunBatch, join_parts
from transporter_adaptors.postgres_cdc.runs import Change, WholeUpTo

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transporter_adaptors.postgres_cdc.changes import ChangeTranslator, Prepared
    from transporter_adaptors.postgres_cdc.handover import Handover
    from transporter_adaptors.postgres_cdc.position import Inside
    from transporter_adaptors.postgres_cdc.transactions import Item


class PendingChanges:
    """Changes in the order of the stream. Belongs to one thread."""

    def __init__(self, translator: ChangeTranslator, handover: Handover) -> None:
        """Have nothing yet. The bounds of *handover* may move only while this is empty."""
        self._translator, self._handover = translator, handover
        self._items: deque[Prepared] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, items: Iterable[Item]) -> None:
        """Add what the stream has sent."""
        self._items.extend(self._translator.prepare(items, self._handover))

    def take(
        self, at: int, inside: Inside | None
    ) -> tuple[pa.RecordBatch | None, int, Inside | None]:
        """Return messages, as far as one frame holds them, and the position behind them.

        Args:
            at: the LSN behind the last whole transaction that was taken.
            inside: the place in the transaction behind it, if a part of that was taken.

        """
        found, size = list[pa.RecordBatch | list[Message]](), 0
        while self._items and size < LARGEST:
            item = self._items[0]
            made: list[Message] = []
            match item:
                case WholeUpTo(at=end) if inside is None or end > inside.commit_lsn:
                    at, inside = max(at, end), None
                case PreparedChange():
                    made = self._translator.messages(item, self._handover)
                    inside = item.change.inside
                case Change():
                    made = self._translator.truncations(item, self._handover)
                    inside = item.inside
                case RunBatch():
                    batch, taken = item.take(LARGEST - size)
                    at, inside = item.pass_taken(at, inside)
                    found.append(batch)
                    size += taken
                    if not item.is_done:
                        break
            size += sum(map(size_of, made))
            found.append(made)
            self._items.popleft()
        return join_parts(found), at, inside
