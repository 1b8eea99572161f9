"""The stream of a replication slot, on the wire: start, receive, report progress.

See "Streaming Replication Protocol" in PostgreSQL's manual. Messages are passed on as they come.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NoReturn

import psycopg
from psycopg import generators, pq, sql

from transporter.errors import SourceUnavailable, TransporterError
from transporter_adaptors.postgres.session import translate_error, translate_errors
from transporter_adaptors.postgres_cdc.lsn import format_lsn
from transporter_adaptors.postgres_cdc.messages import encode_status
from transporter_adaptors.postgres_cdc.session import PATIENCE
from transporter_adaptors.postgres_cdc.state import BEGIN_ANEW

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transporter_adaptors.postgres.session import BoundedConnection

_LOST: Final = "lost the replication session"
_AHEAD: Final = 4 << 20
"""Bytes of memory for messages that are taken from the socket while no call receives, about."""
_OBJECT: Final = 48
"""Bytes of memory that a message takes beside its own: most have fewer than a hundred."""
_LOOK: Final = 50
"""Milliseconds after which the thread that takes them sees that it is to end."""


class SlotStream:
    """The changes of one slot, as the server sends them. Belongs to one thread.

    It takes *connection* over, which no other statement can use any more.
    """

    def __init__(
        self, connection: BoundedConnection, slot: str, at: int, options: Mapping[str, str]
    ) -> None:
        """Start to stream *slot* from the LSN *at*, with *options* of the plugin.

        Raises:
            SourceUnavailable: the slot is in use, or the session was lost.
            SourceError: the server refuses the slot or the options.

        """
        self._connection, self._pgconn = connection, connection.pgconn
        self._poll, self._poll_both = select.poll(), select.poll()
        self._lock = threading.Lock()  # of libpq
        self._turn = self._ahead = 0
        self._read = deque[bytes]()
        self._failure: TransporterError | None = None
        listed = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.Literal(value))
            for name, value in options.items()
        )
        start = sql.SQL("START_REPLICATION SLOT {} LOGICAL {} ({})").format(
            sql.Identifier(slot), sql.SQL(format_lsn(at)), listed
        )
        command = start.as_bytes(connection)
        with translate_errors(f"cannot read from the replication slot {slot}"):
            if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
                # The bytes of such a database come as they are. The server would end the stream
                # where they are not UTF-8.
                connection.execute("SET client_encoding = 'SQL_ASCII'")
            self._pgconn.send_query(command)
            (result,) = connection.wait(generators.execute(self._pgconn))
            if result.status != pq.ExecStatus.COPY_BOTH:
                raise psycopg.errors.error_from_result(result)
            self._pgconn.nonblocking = 1
        self._socket = self._pgconn.socket
        self._poll.register(self._socket, select.POLLIN)
        self._poll_both.register(self._socket, select.POLLIN | select.POLLOUT)

    def receive(self, count: int, size: int, timeout: float) -> list[bytes]:
        """Return what is here, up to *count* messages and about *size* bytes.

        Waits up to *timeout* seconds for the first message. Without one the list is empty.

        Raises:
            SourceUnavailable: the session was lost, or the server is stopping.
            SourceError: the server cannot decode further.

        """
        self._stop_reading_ahead()
        found: list[bytes] = []
        ends = None
        while len(found) < count and size > 0:
            message = self._take_message()
            if message is not None:
                found.append(message)
                size -= len(message)
                continue
            now = time.monotonic()
            ends = now + timeout if ends is None else ends
            if not self._poll.poll(0 if found else max(0.0, ends - now) * 1000):
                break
            with translate_errors(_LOST):
                self._pgconn.consume_input()
        return found

    def _take_message(self) -> bytes | None:
        """Return the next message that was read ahead or is in libpq's buffer, if there is one."""
        if self._read:
            message = self._read.popleft()
            self._ahead -= len(message) + _OBJECT
            return message
        if self._failure is not None:
            raise self._failure
        return self._next_message()

    def _next_message(self) -> bytes | None:
        try:
            length, data = self._pgconn.get_copy_data(1)
        except psycopg.Error as error:
            raise translate_error(error, _LOST) from error
        if length < 0:
            self._raise_end()
        return bytes(data) if length > 0 else None

    def read_ahead(self) -> None:
        """Let a thread take messages until the next call of :meth:`receive`.

        The server would wait as soon as the buffers of the socket are full, which are small.
        """
        self._turn += 1
        threading.Thread(target=self._read_messages, args=[self._turn], daemon=True).start()

    def _read_messages(self, turn: int) -> None:
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        while self._ahead < _AHEAD and self._turn == turn and self._failure is None:
            if not waiting.poll(_LOOK):
                continue
            with self._lock:
                if self._turn != turn:
                    return
                try:
                    with translate_errors(_LOST):
                        self._pgconn.consume_input()
                    # All of it: libpq's buffer never shrinks, and nothing else bounds it.
                    while (message := self._next_message()) is not None:
                        self._read.append(message)
                        self._ahead += len(message) + _OBJECT
                except TransporterError as error:
                    self._failure = error  # of the call that finds nothing before it

    def _stop_reading_ahead(self) -> None:
        """Return once libpq is only used by this thread."""
        with self._lock:
            self._turn += 1

    @property
    def has_input(self) -> bool:
        """Whether the server has sent something that is not received yet."""
        return bool(self._read) or bool(self._poll.poll(0))

    def report(self, at: int, *, reply: bool = False) -> None:
        """Report that everything up to *at* is durable here. With *reply* request an answer.

        Raises:
            SourceUnavailable: the session was lost, or the server takes nothing.

        """
        status = encode_status(at, time.time_ns() // 1000, reply_requested=reply)
        ends = time.monotonic() + PATIENCE
        with self._lock, translate_errors(_LOST):
            self._pgconn.put_copy_data(status)
            while self._pgconn.flush():
                if time.monotonic() > ends:
                    raise SourceUnavailable(f"{_LOST}: the server takes no reports")
                # Not select(): it refuses descriptors from 1024 on.
                self._poll_both.poll(1000)
                self._pgconn.consume_input()

    def close(self) -> None:
        """End the session. Safe to call twice."""
        self._stop_reading_ahead()
        self._connection.close()

    def _raise_end(self) -> NoReturn:
        """Raise the server's reason for the end of the stream."""
        with translate_errors(_LOST):
            if self._pgconn.status == pq.ConnStatus.BAD:
                result = self._pgconn.get_result()  # The socket is closed: all of it is here.
            else:
                # get_result() would wait without a limit, and no other thread would run.
                result = self._connection.wait(generators.fetch(self._pgconn))
        if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
            raise SourceUnavailable(f"{_LOST}: the server has ended the stream")
        error = psycopg.errors.error_from_result(result)
        found = translate_error(error, _LOST)
        if isinstance(error, psycopg.errors.InternalError_ | psycopg.errors.UndefinedObject):
            # As of a table that was created, or emptied, while the server was creating the slot, or
            # of a publication that is younger than the slot.
            raise type(found)(
                f"{found}; the server cannot decode its log for the slot: if that happens again, "
                f"{BEGIN_ANEW}"
            ) from error
        raise found
