"""Hand-written relays from an outbox to Kafka, the rivals of ``outbox-kafka-backlog``.

``python -m benchmarks.pollers SHAPE DSN BOOTSTRAP_SERVERS TOPIC``: connects and prints ``ready``.
For each line of standard input it takes the rows that are there until there are none.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import psycopg
from confluent_kafka import Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROWS: Final = 1000
_COLUMNS: Final = (
    "id, kafka_key, kafka_value, kafka_header_keys, kafka_header_values,"
    " (extract(epoch FROM create_time) * 1000)::bigint"
)
_FIRST: Final = f"id = ANY (ARRAY(SELECT id FROM outbox ORDER BY id LIMIT {ROWS}))"  # noqa: S608 - a constant
_TAKE: Final = f"DELETE FROM outbox WHERE {_FIRST} RETURNING {_COLUMNS}"  # noqa: S608 - constants
_MARK: Final = f"""
UPDATE outbox SET leader_id = '00000000-0000-0000-0000-000000000001'
WHERE id = ANY (ARRAY(SELECT id FROM outbox WHERE leader_id IS NULL ORDER BY id LIMIT {ROWS}))
RETURNING {_COLUMNS}"""  # noqa: S608 - constants

Connection = psycopg.Connection[Any]


def send_by_batch(connection: Connection, send: Callable[[Sequence[tuple[Any, ...]]], None]) -> int:
    """Delete a batch, send it, commit: one transaction for all of it. Return its rows."""
    with connection.transaction():
        rows = sorted(connection.execute(_TAKE).fetchall())
        send(rows)
    return len(rows)


def send_by_row(connection: Connection, send: Callable[[Sequence[tuple[Any, ...]]], None]) -> int:
    """Mark a batch, send it, and delete each row in a commit of its own. Return its rows."""
    rows = sorted(connection.execute(_MARK).fetchall())
    send(rows)
    for row in rows:
        connection.execute("DELETE FROM outbox WHERE id = %s", row[:1])
    return len(rows)


SHAPES: Final = {"batch": send_by_batch, "row": send_by_row}


class Sender:
    """Sender of rows to one topic that waits for the broker, with the settings that we use too."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        """Connect."""
        self._topic = topic
        self._failures: dict[object, object] = {}
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "partitioner": "murmur2_random",
                "delivery.report.only.error": True,
            }
        )
        self._producer.list_topics(topic, timeout=30)

    def __call__(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Send *rows*, and return when the broker has them all."""
        for _, key, value, names, values, time in rows:
            headers = list(zip(names, values, strict=True))
            self._producer.produce(
                self._topic,
                value,
                key,
                on_delivery=self._failures.setdefault,
                timestamp=time,
                headers=headers,
            )
        self._producer.flush()
        if self._failures:
            raise RuntimeError(f"not delivered: {self._failures}")


def main(shape: str, dsn: str, bootstrap_servers: str, topic: str) -> None:
    """Serve one line of standard input after the other."""
    send = Sender(bootstrap_servers, topic)
    with psycopg.connect(dsn, autocommit=True) as connection:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            while SHAPES[shape](connection, send):
                pass


if __name__ == "__main__":
    main(*sys.argv[1:])
