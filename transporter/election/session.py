"""A session with PostgreSQL that nobody ever waits for longer than he says."""

from __future__ import annotations

import selectors
import time
from typing import TYPE_CHECKING, Final

from psycopg import Error, pq

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = tuple[str | None, ...]

_POLLS: Final[dict[int, int]] = {
    pq.PollingStatus.READING: selectors.EVENT_READ,
    pq.PollingStatus.WRITING: selectors.EVENT_WRITE,
    pq.PollingStatus.OK: 0,
}
"""What to wait for before libpq is asked again; nothing when the session is there."""


class SessionLost(Exception):
    """The session is of no more use; the text says why, and never quotes the DSN."""

    def __init__(self, problem: str, sqlstate: str = "", /) -> None:
        """Keep the server's *sqlstate*, when it was the server that lines_with_text so."""
        super().__init__(problem, sqlstate)
        self.problem, self.sqlstate = problem, sqlstate


class Session:
    """One connection, at most one question at a time, and every wait with an end.

    psycopg's connections wait for a silent server as long as the kernel does.
    Times are those of ``time.monotonic``. Not thread-safe. Every method may
    raise :class:`SessionLost`; looking up a host's name is not bounded.
    """

    def __init__(self, conninfo: str) -> None:
        """Begin to connect."""
        self._connection = pq.PGconn.connect_start(conninfo.encode())
        if self._connection.status == pq.ConnStatus.BAD:
            raise SessionLost(self._error_text())
        self._awaited = selectors.EVENT_WRITE
        self._row: Row = ()

    def wait_connected(self, until: float) -> bool:
        """Tell whether the session is there, waiting for it *until* then at most."""
        connection = self._connection
        # Asked before the socket is ready, libpq takes a connection that comes about for one.
        while self._awaited and self._wait(self._awaited, until):
            status = connection.connect_poll()
            if status not in _POLLS or connection.status == pq.ConnStatus.BAD:
                raise SessionLost(self._error_text())
            self._awaited = _POLLS[status]
            connection.nonblocking = not self._awaited
        return not self._awaited

    def check(self) -> None:
        """Raise when the connection has ended, as far as is known without asking."""
        try:
            if self._wait(selectors.EVENT_READ, 0):
                self._connection.consume_input()
        except Error as error:
            raise SessionLost(self._error_text()) from error

    def send_query(self, query: str, values: Sequence[str]) -> None:
        """Send *query*, whose answer is one row."""
        try:
            self._row = ()
            self._connection.send_query_params(query.encode(), [each.encode() for each in values])
        except Error as error:
            raise SessionLost(self._error_text()) from error

    def receive_row(self, until: float) -> Row | None:
        """Return the row that was asked for, or ``None`` when it is not there *until* then."""
        try:
            return self._receive_row(until)
        except Error as error:
            raise SessionLost(self._error_text()) from error

    def close(self) -> None:
        """End the session: the server frees what it holds as soon as it hears of it."""
        self._connection.finish()

    def _receive_row(self, until: float) -> Row | None:
        connection = self._connection
        while connection.flush():
            if not self._wait(selectors.EVENT_READ | selectors.EVENT_WRITE, until):
                return None
            connection.consume_input()
        while True:
            connection.consume_input()
            while not connection.is_busy():
                result = connection.get_result()
                if result is None:
                    return self._row
                self._take(result)
            if not self._wait(selectors.EVENT_READ, until):
                return None

    def _take(self, result: pq.abc.PGresult) -> None:
        if result.status != pq.ExecStatus.TUPLES_OK:
            text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
            state = result.error_field(pq.DiagnosticField.SQLSTATE)
            raise SessionLost(
                text.decode(errors="replace") if text else self._error_text(),
                state.decode() if state else "",
            )
        values = (result.get_value(0, column) for column in range(result.nfields))
        self._row = tuple(None if value is None else value.decode() for value in values)

    def _wait(self, events: int, until: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection.socket, events)
            return bool(selector.select(max(0.0, until - time.monotonic())))

    def _error_text(self) -> str:
        lines = self._connection.error_message.decode(errors="replace").split("\n")
        lines_with_text = [line.strip() for line in lines if line.strip()]
        return lines_with_text[0] if lines_with_text else "the connection broke"
