"""Leader ids: random, except for one part that names the log and one that names the lineage.

A log has one engine at a time. So when a living leader is replaced by another leader of its
own log, two readers of one pipeline read the same outbox.

Terms of one log that follow one another, with no other leader in between, are one *lineage*.
When a reader finds the lineage of its last logged batch in the table of terms, this proves
that no other leader has led since, whatever has become of the process that logged it.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final
from uuid import UUID, uuid4

_LINEAGE: Final = slice(0, 6)
_LOG: Final = slice(10, 16)
"""The bytes that name the log. Those between are random but for version and variant."""


def new_leader(log_id: str, lineage: str = "") -> UUID:
    """Return an id that no leader had before, for one that reads into the log *log_id*.

    The id continues *lineage*, or begins a new lineage if that is empty.
    """
    found = bytearray(uuid4().bytes)
    found[_LOG] = sha256(log_id.encode()).digest()[: _LOG.stop - _LOG.start]
    if lineage:
        found[_LINEAGE] = bytes.fromhex(lineage)
    return UUID(bytes=bytes(found))


def lineage_of(leader: UUID) -> str:
    """Return the part of *leader* that all leaders of its lineage share, in hexadecimal."""
    return leader.bytes[_LINEAGE].hex()


def is_same_log(one: UUID, other: UUID) -> bool:
    """Return whether both leaders read into the same log, by chance wrongly once in 2**48 times."""
    return one.bytes[_LOG] == other.bytes[_LOG]
