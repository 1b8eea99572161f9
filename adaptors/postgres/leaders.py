"""Leader ids: random, but for one part that names the log and one that names the lineage.

A log has one engine at a time. So a leader that is replaced, while it still lives, by another
one of its own log knows that two readers of one pipeline read the same outbox.

Terms of one log that follow one another, with no other leader in between, are one *lineage*.
A reader that finds the lineage of what it logged last in the table of terms has the proof that
nobody else has led since, whatever has become of its process.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final
from uuid import UUID, uuid4

_LINEAGE: Final = slice(0, 6)
_LOG: Final = slice(10, 16)
"""Which of the bytes name the log; what stands between is random but for version and variant."""


def new_leader(log_id: str, lineage: str = "") -> UUID:
    """Return an id that nobody had before, for a leader that reads into the log *log_id*.

    It goes on with *lineage*, or begins one.
    """
    found = bytearray(uuid4().bytes)
    found[_LOG] = sha256(log_id.encode()).digest()[: _LOG.stop - _LOG.start]
    if lineage:
        found[_LINEAGE] = bytes.fromhex(lineage)
    return UUID(bytes=bytes(found))


def lineage_of(leader: UUID) -> str:
    """Return the part of *leader* that all leaders of its lineage share, in hexadecimal."""
    return leader.bytes[_LINEAGE].hex()


def of_one_log(one: UUID, other: UUID) -> bool:
    """Tell whether both leaders read into the same log; by chance so once in 2**48 times."""
    return one.bytes[_LOG] == other.bytes[_LOG]
