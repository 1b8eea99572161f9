"""Changes that were received and are not logged yet, taken frame by frame."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pyarrow as pa

from transporter.message import Message
from transporter_adaptors.postgres_cdc.changes import PreparedChange
from transporter_adaptors.postgres_cdc.copier import LARGEST
from transporter_adaptors.postgres_cdc.entries import size_of
from transporter_adaptors.postgres_cdc.messages import LogicalMessage
from transporter_adaptors.postgres_cdc.run_batches import RunBatch, join_parts
from transporter_adaptors.postgres_cdc.runs import Change, LooseMessage, WholeUpTo
from transporter_adaptors.postgres_cdc.schema_log import NewColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transporter_adaptors.postgres_cdc.changes import ChangeTranslator, Prepared
    from transporter_adaptors.postgres_cdc.handover import Handover
    from transporter_adaptors.postgres_cdc.position import Inside
    from transporter_adaptors.postgres_cdc.transactions import Item


class PendingChanges:
    """Changes in the order of the stream. Belongs to one thread."""

    def __init__(
        self,
        translator: ChangeTranslator,
        handover: Handover,
        take_other: Callable[[NewColumns | LooseMessage], list[Message]],
    ) -> None:
        """Have nothing yet. The bounds of *handover* may move only while this is empty.

        *take_other* is called, in its turn, with what is not a change of a transaction.
        """
        self._translator, self._handover, self._take_other = translator, handover, take_other
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
            if isinstance(item, RunBatch):
                batch, taken = item.take(LARGEST - size, is_first=not size)
                if taken or item.is_done:
                    at, inside = item.pass_taken(at, inside)
                    found.append(batch)
                    size += taken
                if not item.is_done:
                    break
            else:
                made, behind = self._turn(item, at, inside)
                made_size = sum(map(size_of, made))
                if size and size + made_size > LARGEST and _may_wait(item):
                    # Two appends would not do: a crash between them repeats the first one, because
                    # only the last has the position.
                    break
                at, inside = behind
                size += made_size
                found.append(made)
            self._items.popleft()
        return join_parts(found), at, inside

    def _turn(
        self, item: Prepared, at: int, inside: Inside | None
    ) -> tuple[list[Message], tuple[int, Inside | None]]:
        """Return the messages of *item*, and the position behind it, from that before it."""
        made: list[Message] = []
        match item:
            case WholeUpTo(at=end) if inside is None or end > inside.commit_lsn:
                at, inside = max(at, end), None
            case PreparedChange():
                made, inside = self._translator.messages(item, self._handover), item.inside
            case NewColumns():
                made = self._take_other(item)
            case LooseMessage():
                made, at = self._take_other(item), max(at, item.what.lsn)
            case Change(what=LogicalMessage()):
                made, inside = self._translator.logical(item), item.inside
            case Change():
                made, inside = self._translator.truncations(item, self._handover), item.inside
        return made, (at, inside)


def _may_wait(item: Prepared) -> bool:
    """Return whether *item* may be large, and may be turned into messages once more."""
    return isinstance(item, PreparedChange | LooseMessage) or (
        isinstance(item, Change) and isinstance(item.what, LogicalMessage)
    )
