"""Runs: row changes of transactions one after another, kept as the bytes of their messages. Pure.

A large run is decoded column by column, a small one change by change.

::

    XLogData w start:8 end:8 clock:8 | kind:1 oid:4 marker:1 count:2 column ...
             0 1       9     17      | 25     26    30       31
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from transporter_adaptors.postgres_cdc.messages import EPOCH, Begin, decode_message
from transporter_adaptors.postgres_cdc.position import Inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transporter_adaptors.postgres_cdc.messages import (
        Delete,
        Insert,
        LogicalMessage,
        Truncate,
        Update,
    )

PAYLOAD: Final = 25
"""The first byte of the plugin's message in a message of the stream."""
HEAD_END: Final = 31
"""The byte behind the kind, the relation and the marker of a row change."""
MOST_HEADS: Final = 250
"""Kinds, relations and markers in a run. Each has a number of one byte there."""
_BEGIN: Final = Struct(">QqI")
_HEAD: Final = Struct(">BIB")


@dataclass(frozen=True, slots=True)
class Change:
    """A change at its LSN in a transaction.

    ``count`` counts those with the same LSN, and ``order`` all of the transaction, from 1. A
    logical message has the count 0.
    """

    begin: Begin
    lsn: int
    count: int
    what: Insert | Update | Delete | Truncate | LogicalMessage
    order: int = 0

    @property
    def inside(self) -> Inside:
        """The place behind it in its transaction."""
        return Inside(self.begin.commit_lsn, self.lsn, self.count)


@dataclass(frozen=True, slots=True)
class WholeUpTo:
    """All transactions up to the LSN ``at`` are here as a whole."""

    at: int


@dataclass(frozen=True, slots=True)
class LooseMessage:
    """A logical message outside of a transaction, and the server's time (µs UTC)."""

    what: LogicalMessage
    sent_at: int


def read_begin(fields: bytes) -> Begin:
    """Return the start of a transaction from the 20 bytes behind the kind of its message."""
    lsn, time, xid = _BEGIN.unpack(fields)
    return Begin(lsn, time + EPOCH, xid)


@dataclass(slots=True)
class Run:
    """Row changes in the order of the stream. Not thread-safe.

    ``messages``, ``codes``, ``lsns`` and ``counts`` have an item a row.

    Attributes:
        messages: the messages of the stream.
        codes: the place of each row's head in ``heads``.
        lsns: the LSN of each row, 8 bytes.
        counts: see :class:`Change`.
        heads: kind, relation and marker, the bytes 25 to 30 of messages, with their codes.
        firsts: the first row of each transaction.
        begins: the 20 bytes of each transaction's Begin, behind its kind.
        orders: the number of changes of each transaction before its first row here.
        end_rows: the number of rows before each of ``ends``.
        ends: LSNs up to which all transactions are here as a whole.

    """

    messages: list[bytes] = field(default_factory=list)
    codes: bytearray = field(default_factory=bytearray)
    lsns: list[bytes] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    heads: dict[bytes, int] = field(default_factory=dict)
    firsts: list[int] = field(default_factory=list)
    begins: list[bytes] = field(default_factory=list)
    orders: list[int] = field(default_factory=list)
    end_rows: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.messages)

    def appenders(self) -> tuple[Callable[[Any], None], ...]:
        """Return the methods that add a row: its message, its code, its LSN and its count."""
        return self.messages.append, self.codes.append, self.lsns.append, self.counts.append

    def begin(self, fields: bytes, order: int = 0) -> None:
        """Let the rows that follow be those of the transaction with this Begin.

        *order* of its changes came before.
        """
        self.firsts.append(len(self.messages))
        self.begins.append(fields)
        self.orders.append(order)

    @property
    def rows_of_last(self) -> int:
        """The number of rows of the last transaction."""
        return len(self.messages) - self.firsts[-1] if self.firsts else 0

    def end(self, at: int) -> None:
        """Record that all transactions up to the LSN *at* end with the rows so far."""
        self.end_rows.append(len(self.messages))
        self.ends.append(at)

    def relations(self) -> list[tuple[int, int, int]]:
        """Return kind, relation and marker of each code."""
        return [_HEAD.unpack(head) for head in self.heads]

    def begin_of(self, row: int) -> Begin:
        """Return the transaction of the row at the place *row*."""
        return read_begin(self.begins[bisect_right(self.firsts, row) - 1])

    def inside(self, row: int) -> Inside:
        """Return the place behind the row at the place *row* in its transaction."""
        lsn = int.from_bytes(self.lsns[row], "big")
        return Inside(self.begin_of(row).commit_lsn, lsn, self.counts[row])

    def change(self, row: int) -> Change:
        """Return the row at the place *row*, decoded.

        Raises:
            ProtocolError: its bytes are not those of a change.

        """
        transaction = bisect_right(self.firsts, row) - 1
        return self._decode(row, transaction, read_begin(self.begins[transaction]))

    def items(self) -> Iterator[Change | WholeUpTo]:
        """Yield the rows, decoded, with the ends between them.

        Raises:
            ProtocolError: the bytes of a row are not those of a change.

        """
        end, transaction = 0, -1
        begin: Begin | None = None
        for row in range(len(self.messages) + 1):
            while end < len(self.ends) and self.end_rows[end] == row:
                yield WholeUpTo(self.ends[end])
                end += 1
            if row < len(self.messages):
                while transaction + 1 < len(self.firsts) and self.firsts[transaction + 1] <= row:
                    transaction, begin = transaction + 1, None
                begin = begin or read_begin(self.begins[transaction])
                yield self._decode(row, transaction, begin)

    def _decode(self, row: int, transaction: int, begin: Begin) -> Change:
        what = decode_message(self.messages[row][PAYLOAD:])
        lsn = int.from_bytes(self.lsns[row], "big")
        order = self.orders[transaction] + row - self.firsts[transaction] + 1
        return Change(begin, lsn, self.counts[row], what, order)  # type: ignore[arg-type]
