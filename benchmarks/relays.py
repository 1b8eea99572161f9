"""Hand-written relays between two topics of Kafka, the rivals of ``kafka-kafka``.

``python -m benchmarks.relays SHAPE BOOTSTRAP_SERVERS SOURCE TARGET``: joins a group, prints
``ready`` when it has the partitions, and relays until it is killed.
"""

from __future__ import annotations

import sys
import uuid
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, Producer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import Message

ROWS: Final = 1000
_WAIT: Final = 0.5
_SECONDS: Final = 30.0


class Relay:
    """Relay of consumed messages, which commits them to its group when the broker has them."""

    def __init__(self, servers: str, source: str, target: str, *, transactional: bool) -> None:
        """Connect."""
        self._target, self._transactional = target, transactional
        self._failures: dict[object, object] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"relay-{source}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": 10,
            }
        )
        settings: dict[str, Any] = {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "partitioner": "murmur2_random",
            "delivery.report.only.error": True,
        }
        if transactional:
            settings["transactional.id"] = uuid.uuid4().hex
        self._producer = Producer(settings)
        if transactional:
            self._producer.init_transactions(_SECONDS)
        self._consumer.subscribe([source])
        while not self._consumer.assignment():
            self._consumer.poll(0.05)

    def step(self) -> int:
        """Relay the messages that are there, at most a batch, and return their number."""
        records = self._consumer.consume(1, _WAIT)
        if records:
            records += self._consumer.consume(ROWS - 1, 0)
            if self._transactional:
                self._in_transaction(records)
            else:
                self._send(records)
                self._consumer.commit(asynchronous=False)
        return len(records)

    def _in_transaction(self, records: Sequence[Message]) -> None:
        consumer, producer = self._consumer, self._producer
        producer.begin_transaction()
        self._send(records)
        places = consumer.position(consumer.assignment())
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(places, group, _SECONDS)
        producer.commit_transaction(_SECONDS)

    def _send(self, records: Sequence[Message]) -> None:
        for record in records:
            self._producer.produce(
                self._target,
                record.value(),
                record.key(),
                on_delivery=self._failures.setdefault,
                timestamp=record.timestamp()[1],
                headers=record.headers(),
            )
        self._producer.flush()
        if self._failures:
            raise RuntimeError(f"not delivered: {self._failures}")


SHAPES: Final = {"plain": False, "transactional": True}


def main(shape: str, servers: str, source: str, target: str) -> None:
    """Relay for ever."""
    relay = Relay(servers, source, target, transactional=SHAPES[shape])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        relay.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
