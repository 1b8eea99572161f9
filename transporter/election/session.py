"""A PostgreSQL session whose every call has a deadline."""

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
"""Socket events to wait for before the next poll of libpq, none once connected."""


class SessionLost(Exception):
    """The session is unusable. The text gives the reason and never quotes the DSN."""

    def __init__(self, problem: str, sqlstate: str = "", /) -> None:
        """Keep the server's *sqlstate*, if the server reported the problem."""
        super().__init__(problem, sqlstate)
        self.problem, self.sqlstate = problem, sqlstate


class Session:
    """One connection with at most one query at a time, and a deadline for every wait.

    psycopg's connections wait for a silent server as long as the kernel does.
    Times are those of ``time.monotonic``. Not thread-safe. Every method may
    raise :class:`SessionLost`. The lookup of a host name has no deadline.
    """

    def __init__(self, conninfo: str) -> None:
        """Start to connect."""
        self._connection = pq.PGconn.connect_start(conninfo.encode())
        if self._connection.status == pq.ConnStatus.BAD:
            raise SessionLost(self._error_text())
        self._awaited_events = selectors.EVENT_WRITE
        self._row: Row = ()

    def wait_until_connected(self, until: float) -> bool:
        """Return whether the session is connected, waiting *until* then at most."""
        connection = self._connection
        # If polled before the socket is ready, libpq reports a connection in progress as done.
        while self._awaited_events and self._wait_for(self._awaited_events, until):
            status = connection.connect_poll()
            if status not in _POLLS or connection.status == pq.ConnStatus.BAD:
                raise SessionLost(self._error_text())
            self._awaited_events = _POLLS[status]
            connection.nonblocking = not self._awaited_events
        return not self._awaited_events

    def check_connection(self) -> None:
        """Raise if the connection has ended, as far as can be detected without a query."""
        try:
            if self._wait_for(selectors.EVENT_READ, 0):
                self._connection.consume_input()
        except Error as error:
            raise SessionLost(self._error_text()) from error

    def send_query(self, query: str, values: Sequence[str]) -> None:
        """Send *query*, which returns one row."""
        try:
            self._row = ()
            self._connection.send_query_params(query.encode(), [each.encode() for each in values])
        except Error as error:
            raise SessionLost(self._error_text()) from error

    def receive_row(self, until: float) -> Row | None:
        """Return the row of the query, or ``None`` if it does not arrive *until* then."""
        try:
            return self._receive_row(until)
        except Error as error:
            raise SessionLost(self._error_text()) from error

    def close(self) -> None:
        """End the session. The server frees its locks as soon as it detects the end."""
        self._connection.finish()

    def _receive_row(self, until: float) -> Row | None:
        connection = self._connection
        while connection.flush():
            if not self._wait_for(selectors.EVENT_READ | selectors.EVENT_WRITE, until):
                return None
            connection.consume_input()
        while True:
            connection.consume_input()
            while not connection.is_busy():
                result = connection.get_result()
                if result is None:
                    return self._row
                self._read_result(result)
            if not self._wait_for(selectors.EVENT_READ, until):
                return None

    def _read_result(self, result: pq.abc.PGresult) -> None:
        if result.status != pq.ExecStatus.TUPLES_OK:
            text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
            state = result.error_field(pq.DiagnosticField.SQLSTATE)
            raise SessionLost(
                text.decode(errors="replace") if text else self._error_text(),
                state.decode() if state else "",
            )
        values = (result.get_value(0, column) for column in range(result.nfields))
        self._row = tuple(None if value is None else value.decode() for value in values)

    def _wait_for(self, events: int, until: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection.socket, events)
            return bool(selector.select(max(0.0, until - time.monotonic())))

    def _error_text(self) -> str:
        lines = self._connection.error_message.decode(errors="replace").split("\n")
        lines_with_text = [line.strip() for line in lines if line.strip()]
        return lines_with_text[0] if lines_with_text else "the connection broke"
