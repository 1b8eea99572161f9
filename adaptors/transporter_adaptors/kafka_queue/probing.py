"""Checks of a queue's topics before anything is read or sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.adaptor import Finding
from transporter.queue.topics import partition_counts, retention_problems

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transporter.queue import QueueSettings


def probe_queue(settings: QueueSettings, topics: Sequence[str]) -> Iterator[Finding]:
    """Yield findings about *topics*, and about needed messages that they may delete."""
    for name, count in zip(topics, partition_counts(settings, topics), strict=True):
        yield Finding(f"topic {name}: {count} {'partition' if count == 1 else 'partitions'}")
    for problem in retention_problems(settings, topics):
        yield Finding(problem, "warning")
