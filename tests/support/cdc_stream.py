"""Messages of a replication session, as a server would send them, of random transactions."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

CLOCK = 800_000_000_000_000
Cell = bytes | str | None
"""A text, NULL, or ``unchanged``."""


def xlog(lsn: int, payload: bytes) -> bytes:
    """Return a message with a message of the plugin."""
    return struct.pack(">cQQq", b"w", lsn, lsn, CLOCK) + payload


def keepalive(end: int) -> bytes:
    """Return a message that has nothing but the end of the server's log."""
    return struct.pack(">cQqB", b"k", end, CLOCK, 0)


def begin(commit_lsn: int, time: int, xid: int) -> bytes:
    """Return the start of a transaction."""
    return xlog(commit_lsn, b"B" + struct.pack(">QqI", commit_lsn, time, xid))


def commit(lsn: int, end: int, time: int) -> bytes:
    """Return the end of a transaction."""
    return xlog(lsn, b"C" + struct.pack(">BQQq", 0, lsn, end, time))


def row(cells: Sequence[Cell]) -> bytes:
    """Return the values of a row."""
    return struct.pack(">H", len(cells)) + b"".join(map(_cell, cells))


def _cell(value: Cell) -> bytes:
    if isinstance(value, bytes):
        return b"t" + struct.pack(">I", len(value)) + value
    return b"n" if value is None else b"u"


@dataclass
class StreamTable:
    """A table of the stream: name, type and texts of each column, and which are its key."""

    oid: int
    names: list[str]
    types: list[int]
    texts: list[list[bytes]]
    key: list[int]
    is_followed: bool = True

    def relation(self) -> bytes:
        """Return the definition of the table."""
        columns = b"".join(
            struct.pack(">B", place in self.key)
            + name.encode()
            + b"\0"
            + struct.pack(">Ii", self.types[place], -1)
            for place, name in enumerate(self.names)
        )
        head = struct.pack(">I", self.oid) + b"public\0t%d\0d" % self.oid
        return b"R" + head + struct.pack(">H", len(self.names)) + columns

    def random_row(self, rng: random.Random, unchanged: float = 0.0) -> list[Cell]:
        """Return a row of its texts. The key's columns have values."""
        return [
            rng.choice(texts)
            if place in self.key or rng.random() < 0.8
            else "unchanged"
            if rng.random() < unchanged
            else None
            for place, texts in enumerate(self.texts)
        ]

    def key_only(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return a row with its key alone, as the old one is sent."""
        return [cell if place in self.key else None for place, cell in enumerate(cells)]

    def change(self, rng: random.Random) -> bytes:
        """Return a random change of a row."""
        oid, new = struct.pack(">I", self.oid), self.random_row(rng)
        old = self.random_row(rng)
        match rng.randrange(13):
            case 0 | 1 | 2 | 3 | 4:
                rest = b"I" + oid + b"N" + row(new)
            case 5 | 6 | 7:
                rest = b"U" + oid + b"N" + row(self.random_row(rng, unchanged=0.1))
            case 8:
                rest = b"U" + oid + b"K" + row(self.key_only(old)) + b"N" + row(new)
            case 9:
                rest = b"U" + oid + b"O" + row(old) + b"N" + row(new)
            case 10:
                new = self.random_row(rng, unchanged=0.1)
                old = [new[at] if at in self.key else cell for at, cell in enumerate(old)]
                rest = b"U" + oid + b"O" + row(old) + b"N" + row(new)
            case 11:
                rest = b"D" + oid + b"O" + row(old)
            case _:
                rest = b"D" + oid + b"K" + row(self.key_only(old))
        return rest


@dataclass
class RandomStream:
    """Transactions with changes of *tables*, and what else a server sends between them."""

    tables: list[StreamTable]
    rng: random.Random
    largest: int
    messages: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """The LSN that each message's transaction ends at. What is before a place comes no more."""
    lsn: int = 1000

    def add_transaction(self) -> None:
        """Add a transaction with up to *largest* changes."""
        rng, made, known = self.rng, list[bytes](), set[int]()
        time = CLOCK + rng.randrange(10**12)
        places = accumulate(
            rng.choice((0, 1, 40, 200)) for _ in range(rng.randint(1, self.largest))
        )
        lsns = [self.lsn + place for place in places]
        commit_lsn = lsns[-1] + 8
        # A stretch of one table, then of several.
        few = [rng.choice(self.tables)]
        for lsn in lsns:
            if rng.random() < 0.02:
                few = rng.sample(self.tables, rng.randint(1, len(self.tables)))
            table = rng.choice(few)
            if table.oid not in known:
                known.add(table.oid)
                made.append(xlog(0, table.relation()))
            if rng.random() < 0.003:
                truncated = struct.pack(">IBI", 1, rng.randrange(4), table.oid)
                made.append(xlog(lsn, b"T" + truncated))
            else:
                made.append(xlog(lsn, table.change(rng)))
            if rng.random() < 0.01:
                made.append(keepalive(lsn))
        self.lsn = commit_lsn + 48
        xid = rng.randrange(3, 2**32)
        self._send([begin(commit_lsn, time, xid), *made, commit(commit_lsn, self.lsn, time)])
        if rng.random() < 0.1:
            self.lsn += 500
            self._send([keepalive(self.lsn)])

    def _send(self, messages: list[bytes]) -> None:
        self.messages += messages
        self.ends += [self.lsn] * len(messages)

    def after(self, at: int) -> list[bytes]:
        """Return what a server sends when it is started at an LSN."""
        return [message for message, end in zip(self.messages, self.ends, strict=True) if end > at]


class FixedStream:
    """A session that has these messages, and gives them in stretches of random length."""

    def __init__(self, messages: Sequence[bytes], rng: random.Random) -> None:
        """Begin before the first of *messages*."""
        self.left, self._rng = deque(messages), rng

    def receive(self, count: int, size: int, timeout: float) -> list[bytes]:
        """Return the next messages, as :class:`SlotStream` does."""
        assert count > 0
        assert size > 0
        assert timeout >= 0
        found = list[bytes]()
        for _ in range(min(count, self._rng.choice((1, 10, 1000, 10_000)), len(self.left))):
            found.append(self.left.popleft())
            size -= len(found[-1])
            if size <= 0:
                break
        return found

    def read_ahead(self) -> None:
        """Do nothing: all messages are here."""
