"""The stream as changes, each with its transaction, in commit order."""

from __future__ import annotations

from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, Final

from transporter_adaptors.postgres_cdc.messages import (
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
from transporter_adaptors.postgres_cdc.position import LoggedPart
from transporter_adaptors.postgres_cdc.runs import (
    HEAD_END,
    MOST_HEADS,
    PAYLOAD,
    Change,
    LooseMessage,
    Run,
    WholeUpTo,
    read_begin,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transporter_adaptors.postgres_cdc.messages import Begin
    from transporter_adaptors.postgres_cdc.position import Inside
    from transporter_adaptors.postgres_cdc.wire import SlotStream

Item = Change | Run | Relation | WholeUpTo | LooseMessage

_XLOG: Final = ord("w")
_BEGIN, _COMMIT, _ROWS = b"wB", b"wC", (b"wI", b"wU", b"wD")
"""The first byte of messages of the stream, and that of the plugin's message in them."""
_BEGIN_SIZE: Final = 46
_COMMIT_SIZE: Final = 51
_COMMIT_END: Final = Struct(">B8xQ").unpack_from
"""The flags of a Commit, and the LSN of its end."""
_NO_HEADS: Final[dict[bytes, int]] = {}
_BUSY: Final = 64 << 10
"""Bytes that take a while to log, so that the next ones are taken from the server meanwhile."""


class TransactionReader:
    """Reads transactions from a slot. Belongs to one thread."""

    def __init__(self, stream: SlotStream, inside: Inside | None) -> None:
        """Leave out the changes up to *inside* a transaction, which are logged."""
        self._stream = stream
        self._logged = LoggedPart(inside)
        self._logged_commit = inside and inside.commit_lsn.to_bytes(8, "big")
        self._begin_fields: bytes | None = None
        """The Begin of the transaction that has not ended, behind its kind."""
        self._is_partly_logged = False
        self._last_lsn, self._count = b"", 0
        self._order = 0
        """Changes of the transaction before those in the run."""
        self._run = Run()
        self._code_of = _NO_HEADS.get
        """The codes of heads that the run may take without a look at the rest of the message."""
        self.wants_reply = False
        """Whether the server waits for a report."""
        self.heard_at = monotonic()
        """When the server has sent something last."""

    @property
    def _begin(self) -> Begin | None:
        """The transaction that has not ended."""
        return None if self._begin_fields is None else read_begin(self._begin_fields)

    def receive(self, rows: int, size: int, timeout: float) -> list[Item]:
        """Return what comes, about *rows* changes or *size* bytes at most.

        Waits up to *timeout* seconds for the first, and as long for the end of a transaction. A
        large one is returned in parts.
        """
        found: list[Item] = []
        ends, taken, bytes_ = monotonic() + timeout, 0, 0
        while taken < rows and bytes_ < size:
            waits = self._begin_fields is not None or not (found or self._run.ends)
            messages = self._stream.receive(
                rows - taken, size - bytes_, max(0.0, ends - monotonic()) if waits else 0.0
            )
            if not messages:
                break
            self.heard_at = monotonic()
            bytes_ += sum(map(len, messages))
            self._collect(messages, found)
            taken = sum(len(item) if isinstance(item, Run) else 1 for item in found)
            taken += max(len(self._run), len(self._run.ends))
        if bytes_ >= _BUSY:
            self._stream.read_ahead()
        self._close_run(found)
        return found

    def _collect(self, messages: Iterable[bytes], found: list[Item]) -> None:
        """Add *messages* to the run, and what is not a change of a row to *found*."""
        last, count = self._last_lsn, self._count
        add_message, add_code, add_lsn, add_count = self._run.appenders()
        for data in messages:
            code = self._code_of(data[PAYLOAD:HEAD_END])
            if code is not None and data[0] == _XLOG:
                lsn = data[1:9]
                count = count + 1 if lsn == last else 1
                last = lsn
                add_message(data)
                add_code(code)
                add_lsn(lsn)
                add_count(count)
                continue
            size, kind = len(data), data[: PAYLOAD + 1 : PAYLOAD]
            if kind == _BEGIN and size == _BEGIN_SIZE:
                self._begin_transaction(data[PAYLOAD + 1 :])
                last, count = b"", 0
            elif kind == _COMMIT and size == _COMMIT_SIZE and self._begin_fields is not None:
                self._end_transaction(data)
            else:
                self._last_lsn, self._count = last, count
                self._collect_other(data, found)
                last, count = self._last_lsn, self._count
                add_message, add_code, add_lsn, add_count = self._run.appenders()
        self._last_lsn, self._count = last, count

    def _collect_other(self, data: bytes, found: list[Item]) -> None:
        """Add a message that is neither a usual change nor an end of a transaction."""
        if data[: PAYLOAD + 1 : PAYLOAD] in _ROWS and self._begin_fields is not None:
            self._add_row(data, found)
            return
        item = self._take(data)
        if isinstance(item, WholeUpTo):
            self._run.end(item.at)
        elif item is not None:
            self._close_run(found)
            found.append(item)

    def _begin_transaction(self, fields: bytes) -> None:
        self._begin_fields, self._order = fields, 0
        self._run.begin(fields)
        self._is_partly_logged = fields[:8] == self._logged_commit
        self._choose_codes()

    def _end_transaction(self, data: bytes) -> None:
        flags, end = _COMMIT_END(data, PAYLOAD + 1)
        if flags:
            decode_message(data[PAYLOAD:])  # It refuses them.
        self._begin_fields = None
        self._code_of = _NO_HEADS.get
        self._run.end(end)

    def _choose_codes(self) -> None:
        """Let known heads be taken in a transaction, but not one of which a part is logged."""
        takes_known = self._begin_fields is not None and not self._is_partly_logged
        self._code_of = self._run.heads.get if takes_known else _NO_HEADS.get

    def _add_row(self, data: bytes, found: list[Item]) -> None:
        """Add a change whose head is new, or one that is perhaps logged already."""
        if self._is_logged(data[1:9]):
            # Those that are logged come first.
            self._order += 1
            self._run.orders[-1] = self._order
            return
        head = data[PAYLOAD:HEAD_END]
        if len(self._run.heads) == MOST_HEADS and head not in self._run.heads:
            self._close_run(found)
        heads = self._run.heads
        code = heads.setdefault(head, len(heads))
        row = (data, code, self._last_lsn, self._count)
        for append, value in zip(self._run.appenders(), row, strict=True):
            append(value)

    def _is_logged(self, lsn: bytes) -> bool:
        """Count a change at *lsn*, and return whether it is logged already."""
        self._count = self._count + 1 if lsn == self._last_lsn else 1
        self._last_lsn = lsn
        begin = self._begin
        if begin is None:
            raise ProtocolError("a change comes outside of a transaction")
        return self._logged.has(begin.commit_lsn, int.from_bytes(lsn, "big"))

    def _close_run(self, found: list[Item]) -> None:
        """Add what the run has to *found*, and begin another one."""
        run, self._run = self._run, Run()
        if self._begin_fields is not None:
            self._order += run.rows_of_last
            self._run.begin(self._begin_fields, self._order)
        self._choose_codes()
        found.extend([run] if run.messages else map(WholeUpTo, run.ends))

    def _take(self, data: bytes) -> Item | None:
        message = decode_copy(data)
        if isinstance(message, Keepalive):
            self.wants_reply = self.wants_reply or message.reply_requested
            # The server has nothing for us before that.
            return WholeUpTo(message.end) if self._begin_fields is None else None
        what = decode_message(message.payload)
        if isinstance(what, LogicalMessage):
            return (
                self._message(what)
                if what.transactional
                else LooseMessage(what, message.sent_at_us)
            )
        match what:
            case Insert() | Update() | Delete():
                raise ProtocolError("a change comes outside of a transaction")
            case Commit():
                raise ProtocolError("a transaction ends that has not begun")
            case Relation():
                return what
            case Truncate():
                return self._change(what, data[1:9])
            case _:
                return None

    def _change(self, what: Truncate, lsn: bytes) -> Change | None:
        order = self._next_order()
        if self._is_logged(lsn):
            return None
        begin = self._begin
        assert begin is not None  # noqa: S101 - it was just looked at
        return Change(begin, int.from_bytes(lsn, "big"), self._count, what, order)

    def _message(self, what: LogicalMessage) -> Change | None:
        order, begin = self._next_order(), self._begin
        if begin is None:
            raise ProtocolError("a transactional message comes outside of a transaction")
        # It has the LSN of its end, which may be that of the next change: it is not counted.
        if self._logged.has_message(begin.commit_lsn, what.lsn):
            return None
        return Change(begin, what.lsn, 0, what, order)

    def _next_order(self) -> int:
        """Count a change that is in no run, and return its place in the transaction."""
        self._order += 1
        order = self._order + self._run.rows_of_last
        if self._run.orders and not self._run.rows_of_last:
            self._run.orders[-1] = self._order
        return order
