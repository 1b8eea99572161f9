"""A partition that is assigned to us, and how far everybody knows about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adaptors.kafka.beginning import Mark

if TYPE_CHECKING:
    from adaptors.kafka.position import Place


@dataclass(slots=True, eq=False)
class Held:
    """One partition, from one assignment to the end of it.

    What a former assignment has handed out says nothing to a later one: somebody
    else may have read the partition in between. So each has an object of its own.
    """

    topic: str
    topic_id: str
    partition: int
    logged: Place | None = None
    """Behind what the log holds durably; perhaps from long before this assignment."""
    passed: tuple[Place | None, int] | None = None
    """Behind a place (of ``logged``) comes nothing to log before this offset."""
    told: int | None = None
    """What the group knows from us."""
    handed: Place | None = None
    """Behind what was handed out; ``None`` before the first record."""
    ended: bool = False
    """Whether the end was reached, and nothing was read since."""

    def hand(self, place: Place) -> None:
        """Take note that everything before *place* is handed out."""
        self.handed, self.ended = place, False

    def reach(self, end: int) -> None:
        """Take note that nothing lies between what was handed out and *end*, where it ends now.

        The offsets in between, if there are any, are those of ends of transactions.
        """
        if self.handed and end < self.handed.next:
            return  # An end that has grown since.
        self.ended = True
        behind = self.handed or self.logged
        if behind is None or end > behind.next:
            self.passed = (behind, end)

    @property
    def due(self) -> int | None:
        """The offset that the group should know; ``None`` while there is none."""
        if self.passed and self.passed[0] == self.logged:
            return self.passed[1]
        return self.logged.next if self.logged else None

    def mark_of(self, owner: str) -> str:
        """Return what stands beside that offset when *owner* commits it."""
        return str(Mark(owner, self.topic_id, self.logged.next if self.logged else None))
