"""An application that writes an outbox, independent of the pipeline, with realistic rows.

Run as a process of its own: ``python outbox_client.py DSN ROWS TOPIC SEED``. Every row's header
``seq`` counts the rows of its key in the order of their commits.
"""

from __future__ import annotations

import random
import sys

import psycopg

KEYS = 1000
ROWS_PER_TRANSACTION = 20
LARGE = 1_000_000
SCHEMA = """
CREATE TABLE outbox (
    id                  BIGSERIAL PRIMARY KEY,
    create_time         TIMESTAMP WITH TIME ZONE NOT NULL,
    kafka_topic         VARCHAR(249) NOT NULL,
    kafka_key           VARCHAR(100) NOT NULL,
    kafka_value         VARCHAR,
    kafka_header_keys   TEXT[] NOT NULL,
    kafka_header_values TEXT[] NOT NULL,
    leader_id           UUID
)
"""
INSERT = (
    "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value,"
    " kafka_header_keys, kafka_header_values) VALUES (clock_timestamp(), %s, %s, %s, %s, %s)"
)


def value(chance: random.Random, number: int) -> str | None:
    """Return a realistic value: mostly JSON, some NULL, a few large."""
    if number % 5000 == 17:
        return '{"blob": "' + "x" * LARGE + '"}'
    if chance.random() < 0.03:
        return None
    return f'{{"number": {number}, "price": 12345678901234567890.10, "note": "Grüße, 世界 🚚"}}'


def main(dsn: str, rows: int, topic: str, seed: int) -> None:
    """Commit *rows* rows. Every fiftieth transaction commits late, behind higher ids."""
    chance = random.Random(seed)
    sequences: dict[str, int] = {}
    number = 0

    def transaction(connection: psycopg.Connection, keys: list[str]) -> None:
        nonlocal number
        parameters = []
        for key in keys:
            sequences[key] = sequences.get(key, 0) + 1
            headers = {"seq": str(sequences[key]), "trace": f"t-{number}"}
            names, values = list(headers), list(headers.values())
            parameters.append((topic, key, value(chance, number), names, values))
            number += 1
        connection.cursor().executemany(INSERT, parameters)

    with psycopg.connect(dsn) as main_connection, psycopg.connect(dsn) as late:
        held: list[str] = []
        for count in range(rows // ROWS_PER_TRANSACTION):
            # One transaction at a time writes a key, as row locks enforce in a real application.
            keys = [f"key-{chance.randrange(KEYS)}" for _ in range(ROWS_PER_TRANSACTION)]
            keys = [f"{key}-spare" if key in held else key for key in keys]
            if count % 50 == 10 and not held:
                transaction(late, keys)
                held = keys
                continue
            transaction(main_connection, keys)
            main_connection.commit()
            if count % 50 == 20:
                late.commit()
                held = []
        late.commit()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
