"""A partition assigned to a reader: its beginning, and its logged and committed places. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Self

from transporter_adaptors.kafka.position import KafkaOffset

if TYPE_CHECKING:
    from transporter_adaptors.kafka.position import Position


class Edge(Enum):
    """A place that is not a number."""

    RECREATED = "another topic has this name now: its beginning"
    UNKNOWN = "no known place: as ``start`` says, or the beginning of a later partition or topic"


@dataclass(frozen=True, slots=True)
class GroupMark:
    """Metadata that this reader commits to the group beside an offset.

    ``logged`` is the next offset behind the records that the log held then. The committed
    offset is greater when no record lies between, only ends of transactions.
    """

    owner: str
    topic_id: str
    logged: int | None

    def __str__(self) -> str:
        fields = {"transporter": self.owner, "topic": self.topic_id, "logged": self.logged}
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Parse the mark *text*, or return ``None`` for text of another program or none."""
        try:
            found = json.loads(text or "")
            return cls(found["transporter"], found["topic"], found["logged"])
        except (ValueError, TypeError, LookupError):
            return None


@dataclass(frozen=True, slots=True)
class Committed:
    """The group's commit for a partition."""

    place: KafkaOffset
    mark: GroupMark | None

    @property
    def start(self) -> KafkaOffset:
        """The committed place, without an epoch that is not of the record before it.

        Earlier versions committed the epoch of the last logged record also with a later offset. The
        client would then take all records behind that epoch for lost.
        """
        if self.mark is None or self.mark.logged == self.place.next:
            return self.place
        return KafkaOffset(self.place.next)


def choose_start(
    position: Position, topic: str, topic_id: str, partition: int, committed: Committed | None
) -> KafkaOffset | Edge:
    """Return the place to begin at, from the log's position and the group's commit.

    The log's place counts when the group's was committed by this very reader, or when
    there is none. Otherwise another member has read on, or an operator has reset
    the group. Then the group's place counts. Places of a deleted topic do not count,
    and the topic that took its name is read from its beginning.
    """
    gone = position.is_recreated(topic, topic_id)
    if committed and committed.mark and _is_other_topic(committed.mark.topic_id, topic_id):
        committed, gone = None, True
    logged = position.place(topic, topic_id, partition)
    if committed is None:
        return logged or (Edge.RECREATED if gone else Edge.UNKNOWN)
    mark = committed.mark
    if logged is None or mark is None or mark.owner != position.owner:
        return committed.start
    return committed.start if mark.logged == logged.next else logged


def _is_other_topic(known: str, topic_id: str) -> bool:
    return bool(known and topic_id and known != topic_id)


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
    earlier: KafkaOffset | None = None
    """The place up to which earlier assignments handed out records that were not settled then."""
    is_at_end: bool = False
    """Whether the end was reached and no record was read since."""

    def settle_earlier(self, settled: KafkaOffset | None) -> None:
        """Record that records of earlier assignments are *settled*, up to that place.

        A place behind them is one of before the partition was set back, or of this assignment.
        """
        if self.earlier and settled and settled.next <= self.earlier.next:
            self.logged = settled

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
    def next_offset(self) -> int:
        """The offset to read next, or 0 before anything is known."""
        place = self.returned
        if self.passed and (place is None or self.passed[0] == place):
            return self.passed[1]
        place = place or self.logged
        return place.next if place else 0

    @property
    def due(self) -> KafkaOffset | None:
        """The place that the group should have, or ``None`` while there is none.

        Its epoch is that of the record before it. Behind other records than ours it is unknown.
        """
        place = self.logged
        if self.passed and self.passed[0] == place and (not place or place.next != self.passed[1]):
            return KafkaOffset(self.passed[1])
        return place

    def commit_metadata(self, owner: str) -> str:
        """Return the metadata beside that place when *owner* commits it."""
        return str(GroupMark(owner, self.topic_id, self.logged.next if self.logged else None))
