"""Metrics of consumers and trackers, as immutable values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumerMetrics:
    """Counters of one consumer since its creation. Ages are in seconds."""

    received: int = 0
    """Messages handed to the program."""
    acked: int = 0
    nacked: int = 0
    redelivered: int = 0
    """Received messages that had been delivered before."""
    lapsed: int = 0
    """Messages neither acked nor nacked within ``hold``, and left to the tracker."""
    released: int = 0
    """Messages released before the program received them."""
    lost: int = 0
    """Offsets of the queue topic deleted before they were read, including other queues'."""
    in_progress: int = 0
    oldest_age: float = 0.0


@dataclass(frozen=True, slots=True)
class TrackerMetrics:
    """Counters of one tracker since its creation. Ages are in seconds."""

    received: int = 0
    """Messages whose Start was read."""
    acked: int = 0
    nacked: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    restated: int = 0
    """Messages whose Start was written again because of its age."""
    refused: int = 0
    """Records of the markers topic that are not markers."""
    lost: int = 0
    """Offsets of the markers topic that were deleted before they were read."""
    in_progress: int = 0
    oldest_age: float = 0.0
    partitions: int = 0
    """Partitions of the markers topic that are assigned to this tracker now."""
