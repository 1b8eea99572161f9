"""The reader's position: the logged place of each partition. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Self

from transporter.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class KafkaOffset(NamedTuple):
    """The next offset of Kafka to read, and the leader epoch of the record before it (or -1)."""

    next: int
    epoch: int = -1


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """The partitions of one topic. *id* distinguishes it from a later topic of its name."""

    id: str = ""
    places: Mapping[int, KafkaOffset] = field(default_factory=dict)

    def is_other(self, topic_id: str) -> bool:
        """Return whether *topic_id* is another topic's, or false where old brokers have no ids."""
        return bool(self.id and topic_id and self.id != topic_id)


class PositionStep(NamedTuple):
    """The place that a batch reaches in one partition."""

    topic: str
    topic_id: str
    partition: int
    place: KafkaOffset


@dataclass(frozen=True, slots=True)
class Position:
    """The logged places of *owner*, one reader of one log, in each partition it ever had.

    ``owner`` is ``<log id>/<a random text>``. It is made when the reader logs its first
    batch, and kept in every position since. The reader's commits to the group
    carry it too. Stored as JSON. Unknown keys are ignored, so later versions may add some.
    """

    owner: str
    topics: Mapping[str, TopicPosition] = field(default_factory=dict)

    def place(self, topic: str, topic_id: str, partition: int) -> KafkaOffset | None:
        """Return the logged place of a partition, or ``None`` for another topic's or none."""
        known = self.topics.get(topic)
        if known is None or known.is_other(topic_id):
            return None
        return known.places.get(partition)

    def is_recreated(self, topic: str, topic_id: str) -> bool:
        """Return whether another topic has taken the name of one that was read."""
        known = self.topics.get(topic)
        return known is not None and known.is_other(topic_id)

    def advance(self, steps: Iterable[PositionStep]) -> Position:
        """Return the position behind *steps*."""
        topics = dict(self.topics)
        for topic, topic_id, partition, place in steps:
            known = topics.get(topic, TopicPosition())
            places = {} if known.is_other(topic_id) else known.places
            topics[topic] = TopicPosition(topic_id or known.id, {**places, partition: place})
        return replace(self, topics=topics)

    def __str__(self) -> str:
        topics = {
            name: {"id": topic.id, "next": topic.places} for name, topic in self.topics.items()
        }
        return json.dumps({"owner": self.owner, "topics": topics}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text that ``str`` wrote, or raise ``SourceError`` for anything else."""
        try:
            found = json.loads(text)
            topics = {name: _parse_topic_position(topic) for name, topic in found["topics"].items()}
            return cls(str(found["owner"]), topics)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise SourceError(
                f"the log holds the position {text[:100]!r} for this reader, which was not "
                "written by a kafka reader; give the reader another name"
            ) from error


def _parse_topic_position(found: Mapping[str, object]) -> TopicPosition:
    places = found["next"]
    if not isinstance(places, dict):
        raise TypeError(type(places))
    known = {int(number): KafkaOffset(*map(int, place)) for number, place in places.items()}
    return TopicPosition(str(found["id"]), known)
