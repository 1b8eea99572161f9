"""The stream as changes, each with its transaction, in commit order."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from transporter_adaptors.postgres_cdc.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    Keepalive,
    LogicalMessage,
    ProtocolError,
    Relation,
    Truncate,
    Update,
    decode_copy,
    decode_message,
)
from transporter_adaptors.postgres_cdc.position import Inside, LoggedPart

if TYPE_CHECKING:
    from transporter_adaptors.postgres_cdc.messages import Message, XLogData
    from transporter_adaptors.postgres_cdc.wire import SlotStream

RowChange = Insert | Update | Delete


@dataclass(frozen=True, slots=True)
class Change:
    """A change at its LSN in a transaction.

    ``count`` counts those with the same LSN, and ``order`` all of the transaction, from 1. A
    message has the count 0.
    """

    begin: Begin
    lsn: int
    count: int
    what: RowChange | Truncate | LogicalMessage
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


Item = Change | Relation | WholeUpTo | LooseMessage


class TransactionReader:
    """Reads transactions from a slot. Belongs to one thread."""

    def __init__(self, stream: SlotStream, inside: Inside | None) -> None:
        """Leave out the changes up to *inside* a transaction, which are logged."""
        self._stream = stream
        self._logged = LoggedPart(inside)
        self._begin: Begin | None = None
        self._last_lsn, self._count, self._order = 0, 0, 0
        self.wants_reply = False
        """Whether the server waits for a report."""
        self.heard_at = monotonic()
        """When the server has sent something last."""

    def receive(self, rows: int, size: int, timeout: float) -> list[Item]:
        """Return what comes, about *rows* changes or *size* bytes at most.

        Waits up to *timeout* seconds for the first, and as long for the end of a transaction. A
        large one is returned in parts.
        """
        found, bytes_ = list[Item](), 0
        ends = monotonic() + timeout
        while len(found) < rows and bytes_ < size:
            waits = not found or self._begin is not None
            data = self._stream.receive(max(0.0, ends - monotonic()) if waits else 0.0)
            if data is None:
                break
            self.heard_at = monotonic()
            bytes_ += len(data)
            if (item := self._take(data)) is not None:
                found.append(item)
        return found

    def _take(self, data: bytes) -> Item | None:
        message = decode_copy(data)
        if isinstance(message, Keepalive):
            self.wants_reply = self.wants_reply or message.reply_requested
            # The server has nothing for us before that.
            return WholeUpTo(message.end) if self._begin is None else None
        return self._take_message(decode_message(message.payload), message)

    def _take_message(self, what: Message, message: XLogData) -> Item | None:
        match what:
            case Begin():
                self._begin, self._last_lsn, self._count, self._order = what, 0, 0, 0
            case Commit(end_lsn=end):
                if self._begin is None:
                    raise ProtocolError("a transaction ends that has not begun")
                self._begin = None
                return WholeUpTo(end)
            case Relation():
                return what
            case LogicalMessage(transactional=False):
                return LooseMessage(what, message.sent_at_us)
            case LogicalMessage():
                return self._message(what)
            case Insert() | Update() | Delete() | Truncate():
                return self._change(what, message.start)
            case _:
                pass
        return None

    def _message(self, what: LogicalMessage) -> Change | None:
        if self._begin is None:
            raise ProtocolError("a transactional message comes outside of a transaction")
        self._order += 1
        # It has the LSN of its end, which may be that of the next change: it is not counted.
        if self._logged.has_message(self._begin.commit_lsn, what.lsn):
            return None
        return Change(self._begin, what.lsn, 0, what, self._order)

    def _change(self, what: RowChange | Truncate, lsn: int) -> Change | None:
        if self._begin is None:
            raise ProtocolError("a change comes outside of a transaction")
        self._count = self._count + 1 if lsn == self._last_lsn else 1
        self._last_lsn = lsn
        self._order += 1
        if self._logged.has(self._begin.commit_lsn, lsn):
            return None
        return Change(self._begin, lsn, self._count, what, self._order)
