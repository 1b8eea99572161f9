"""Where a partition begins that was just assigned to us. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from adaptors.kafka.position import Place, Position


class Edge(Enum):
    """A place that is not a number."""

    RECREATED = "another topic has this name now: its beginning"
    UNKNOWN = "nobody knows a place: where ``start`` says, or the beginning of what came later"


@dataclass(frozen=True, slots=True)
class Mark:
    """What this reader writes beside an offset that it commits to the group.

    ``logged`` is the next offset behind what the log held then; the committed
    one is greater when no record lies between, only ends of transactions.
    """

    owner: str
    topic_id: str
    logged: int | None

    def __str__(self) -> str:
        told = {"transporter": self.owner, "topic": self.topic_id, "logged": self.logged}
        return json.dumps(told, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Return the mark that is *text*; ``None`` when another program wrote it, or nothing."""
        try:
            found = json.loads(text or "")
            return cls(found["transporter"], found["topic"], found["logged"])
        except (ValueError, TypeError, LookupError):
            return None


@dataclass(frozen=True, slots=True)
class Committed:
    """What the group remembers of a partition."""

    place: Place
    mark: Mark | None


def beginning(
    position: Position, topic: str, topic_id: str, partition: int, committed: Committed | None
) -> Place | Edge:
    """Return where to begin, from what the log and the group remember.

    The log's place counts when the group's was left by this very reader, or when
    there is none. Otherwise somebody else has read on, or an operator has reset
    the group: then the group's counts. Places of a topic that is gone count for
    nothing, and the one that took its name is read from its beginning.
    """
    gone = position.recreated(topic, topic_id)
    if committed and committed.mark and _is_other(committed.mark.topic_id, topic_id):
        committed, gone = None, True
    logged = position.place(topic, topic_id, partition)
    if committed is None:
        return logged or (Edge.RECREATED if gone else Edge.UNKNOWN)
    mark = committed.mark
    if logged is None or mark is None or mark.owner != position.owner:
        return committed.place
    return committed.place if mark.logged == logged.next else logged


def _is_other(known: str, topic_id: str) -> bool:
    return bool(known and topic_id and known != topic_id)
