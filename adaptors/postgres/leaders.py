"""The ids of leaders: random, but for a part that tells which log a leader reads into.

A log has one engine at a time. So a leader that is replaced, while it still lives, by another
one of its own log knows that two readers of one pipeline read the same outbox.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final
from uuid import UUID, uuid4

_LOG: Final = slice(10, 16)
"""Which of the bytes tell the log; what is before them is random, version and variant included."""


def new_leader(log_id: str) -> UUID:
    """Return an id that nobody had before, for a leader that reads into the log *log_id*."""
    found = bytearray(uuid4().bytes)
    found[_LOG] = sha256(log_id.encode()).digest()[: _LOG.stop - _LOG.start]
    return UUID(bytes=bytes(found))


def of_one_log(one: UUID, other: UUID) -> bool:
    """Tell whether both leaders read into the same log; by chance so once in 2**48 times."""
    return one.bytes[_LOG] == other.bytes[_LOG]
