"""Shared tools for tests of queues: topics of their own, and scripted consumers."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kafka_tools import consume

from transporter.queue import QueueSettings, settings_of
from transporter.queue.failures import QueueUnavailable
from transporter.queue.topics import make_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services.kafka import Broker

    from transporter.queue import QueueConsumer, QueueMessage

PATIENCE = 60.0


def fresh(broker: Broker, partitions: int = 2, **values: Any) -> QueueSettings:
    """Return settings of a new queue with a short redelivery delay, and make its topics."""
    broker.start()
    name = uuid.uuid4().hex[:8]
    settings = settings_of(
        bootstrap_servers=broker.bootstrap_servers,
        queue_topic=f"queue-{name}",
        markers_topic=f"markers-{name}",
        dead_letter_topic=f"dead-{name}",
        **{"redeliver_after": 0.4, "hold": 0, "commit_interval": 0.1, **values},
    )
    try:
        make_topics(settings, partitions)
    except QueueUnavailable:
        # The client asks once for the controller. A busy machine may have fenced the broker then.
        make_topics(settings, partitions)
    return settings


def until(holds: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Check *holds* repeatedly, and fail after *seconds*."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


def receive_until(
    consumer: QueueConsumer,
    holds: Callable[[], object],
    act: Callable[[QueueMessage], object],
    seconds: float = PATIENCE,
) -> None:
    """Pass every message that comes to *act*, until *holds*."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        for message in consumer.receive_many(100, 0.05):
            act(message)


def dead_letters(broker: Broker, settings: QueueSettings) -> list[Any]:
    """Return the records of the dead-letter topic."""
    return consume(broker, settings.dead_letter_topic)


class Seen(Counter[bytes]):
    """Receipts counted by value."""

    def note(self, message: QueueMessage) -> None:
        """Count *message*."""
        self[message.value or b""] += 1


@contextmanager
def process(program: str, settings: QueueSettings) -> Iterator[subprocess.Popen[str]]:
    """Run *program* beside the test, and kill it at the end."""
    child = subprocess.Popen(
        [sys.executable, "-c", program, settings.model_dump_json()],
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            yield child
        finally:
            child.kill()
