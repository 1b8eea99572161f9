"""Messages for benchmarks: JSON documents of about 200 bytes, the same in every run."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Final

from transporter.message import Message, messages_to_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

KEYS: Final = 1000
_SEED: Final = 20
_STATES: Final = ("placed", "paid", "packed", "shipped", "returned")


def documents(count: int) -> Iterator[tuple[str, bytes]]:
    """Yield *count* keys and documents of orders: names that repeat, values that do not."""
    chance = random.Random(_SEED)  # noqa: S311 - the same numbers in every run
    for number in range(count):
        key = f"customer-{chance.randrange(KEYS)}"
        order = {
            "order": number,
            "customer": key,
            "state": chance.choice(_STATES),
            "amount": chance.randrange(100, 100_000) / 100,
            "currency": "EUR",
            "trace": f"{chance.getrandbits(128):032x}",
            "note": "leave it with the neighbours, please ring twice",
        }
        yield key, json.dumps(order).encode()


def messages(count: int) -> list[Message]:
    """Return *count* messages, as a reader makes them of rows."""
    return [
        Message("orders", data, key.encode(), source_id=f"outbox/{number}")
        for number, (key, data) in enumerate(documents(count))
    ]


def batches(count: int, rows: int) -> list[pa.RecordBatch]:
    """Return *count* record batches of *rows* messages."""
    found = messages(count * rows)
    return [messages_to_batch(found[at : at + rows]) for at in range(0, len(found), rows)]
