"""Messages that were handed out and not acked, by batch and row. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transporter.queue.message import MessageId


@dataclass(slots=True)
class _Batch:
    ids: Sequence[MessageId]
    left: int
    oldest: float | None


class Unsettled:
    """The messages of batches that wait for their delivery. Not thread-safe.

    Only ids are kept, 8 bytes a message besides the consumer's own memory (Invariant 17).
    """

    def __init__(self) -> None:
        self._batches: dict[int, _Batch] = {}

    def __len__(self) -> int:
        """Return the number of batches that are not wholly settled."""
        return len(self._batches)

    def add(self, batch: int, ids: Sequence[MessageId], oldest: float | None = None) -> None:
        """Add the messages of *batch*, by row. *oldest* is the send time of the oldest."""
        self._batches[batch] = _Batch(ids, len(ids), oldest)

    @property
    def oldest(self) -> float | None:
        """Send time of the oldest message in batches that are not wholly settled.

        It may be settled itself, because times are kept for batches, not for messages.
        """
        times = [each.oldest for each in self._batches.values() if each.oldest is not None]
        return min(times, default=None)

    def settle(self, batch: int, rows: Sequence[int]) -> list[MessageId]:
        """Return the ids of *rows* of *batch*, each of which is settled once."""
        found = self._batches[batch]
        found.left -= len(rows)
        if not found.left:
            del self._batches[batch]
        return [found.ids[row] for row in rows]

    def settle_through(self, batch: int) -> list[MessageId]:
        """Return the ids of all batches up to *batch*, none of which was settled in part."""
        reached = [each for each in self._batches if each <= batch]
        return [each for number in reached for each in self._batches.pop(number).ids]
