"""A partition that is assigned to us, with its logged and committed places. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from transporter_adaptors.kafka.beginning import GroupMark

if TYPE_CHECKING:
    from transporter_adaptors.kafka.position import KafkaOffset


@dataclass(slots=True, eq=False)
class AssignedPartition:
    """One partition, from one assignment to the end of it.

    Records that a former assignment handed out do not count for a later one, because another
    member may have read the partition in between. So each assignment has an object of its own.
    """

    topic: str
    topic_id: str
    partition: int
    logged: KafkaOffset | None = None
    """The place behind the records that are durable in the log, maybe from earlier assignments."""
    passed: tuple[KafkaOffset | None, int] | None = None
    """A place (of ``logged``), and the offset before which there is nothing to log behind it."""
    committed: int | None = None
    """The offset that the group has from us."""
    returned: KafkaOffset | None = None
    """The place behind the records that were handed out, or ``None`` before the first record."""
    is_at_end: bool = False
    """Whether the end was reached and no record was read since."""

    def record_returned(self, place: KafkaOffset) -> None:
        """Record that everything before *place* is handed out."""
        self.returned, self.is_at_end = place, False

    def record_end(self, end: int) -> None:
        """Record that *end*, the present end, follows the last record that was handed out.

        Any offsets in between are those of ends of transactions.
        """
        if self.returned and end < self.returned.next:
            return  # The end has grown since.
        self.is_at_end = True
        behind = self.returned or self.logged
        if behind is None or end > behind.next:
            self.passed = (behind, end)

    @property
    def due(self) -> int | None:
        """The offset that the group should have, or ``None`` while there is none."""
        if self.passed and self.passed[0] == self.logged:
            return self.passed[1]
        return self.logged.next if self.logged else None

    def commit_metadata(self, owner: str) -> str:
        """Return the metadata beside that offset when *owner* commits it."""
        return str(GroupMark(owner, self.topic_id, self.logged.next if self.logged else None))
