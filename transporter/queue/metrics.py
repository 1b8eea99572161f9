"""What producers, consumers and trackers have counted; values, the same for everybody who asks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumerMetrics:
    """What one consumer has done since it was made; ages are in seconds."""

    received: int = 0
    """Handed to the program."""
    acked: int = 0
    nacked: int = 0
    redelivered: int = 0
    """Of those received: had been delivered before."""
    lapsed: int = 0
    """Neither acked nor nacked within ``hold``, and left to the tracker."""
    released: int = 0
    """Given back before the program asked for them."""
    lost: int = 0
    """Offsets of the queue topic that were deleted before they were read, other queues' too."""
    in_progress: int = 0
    oldest_age: float = 0.0


@dataclass(frozen=True, slots=True)
class TrackerMetrics:
    """What one tracker has done since it was made; ages are in seconds."""

    received: int = 0
    """Messages of which a Start was seen."""
    acked: int = 0
    nacked: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    restated: int = 0
    """Starts written anew because they grew old."""
    refused: int = 0
    """Records of the markers topic that are no markers."""
    lost: int = 0
    """Offsets of the markers topic that were gone before they were read."""
    in_progress: int = 0
    oldest_age: float = 0.0
    partitions: int = 0
    """Partitions of the markers topic that are this tracker's now."""
