"""Election by an advisory lock of PostgreSQL, over a session whose every call has a deadline.

The holder of the lock leads. The lock belongs to a dedicated session, which the
server ends after a term without a query (``idle_session_timeout``). The lock of a
leader that was stopped, cut off or has crashed is therefore free within a term of
its last query. The leader queries each third of a term whether it still holds the
lock. It counts its term from the time of the query, which the server cannot have
received earlier. The leader's term therefore ends before the server's time-out.

A session that an administrator ends, or a server that fails, frees the lock before
its holder detects it, at its next pulse. The term number in the database makes the
statements until then ineffective, as with every elector.

The lock's key is the first 8 bytes of SHA-256 of ``transporter:<name>``, as a
signed big-endian number. Advisory locks belong to one database, so all candidates
must use the same one.
"""

from __future__ import annotations

import hashlib
import random
import selectors
import time
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from psycopg import Error, OperationalError, pq
from psycopg.conninfo import conninfo_attempts, conninfo_to_dict, make_conninfo

from transporter.election.elector import Pulse, answer_timeout
from transporter.election.state_machine import ElectionState, Observation, Standing, StandingChange
from transporter.errors import EnvironmentFault
from transporter.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic import SecretStr

_Row = tuple[str | None, ...]
_POLLS: Final[dict[int, int]] = {
    pq.PollingStatus.READING: selectors.EVENT_READ,
    pq.PollingStatus.WRITING: selectors.EVENT_WRITE,
    pq.PollingStatus.OK: 0,
}
"""Socket events to wait for before the next poll of libpq, none once connected."""
_TRIES: Final = 5
"""Attempts of a candidate per term."""
_QUESTIONS: Final = 3
"""Queries of a leader per term."""
_LONGEST_BACKOFF: Final = 10.0
_UNKNOWN_SETTING: Final = "42704"

# A pooler that shares one server session among several clients makes the lock worthless, because
# the lock is re-entrant and each of them gets it. Each client marks its session, unless another
# has marked it, and checks the mark with each query.
_PREPARE: Final = """
SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery(),
       pg_catalog.set_config('idle_session_timeout', $2, false),
       CASE WHEN coalesce(pg_catalog.current_setting('transporter.elector', true), '') = ''
            THEN pg_catalog.set_config('transporter.elector', $1, false)
            ELSE pg_catalog.current_setting('transporter.elector') END
"""
_ASK: Final = """
SELECT pg_catalog.pg_backend_pid(),
       pg_catalog.current_setting('transporter.elector', true),
       EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory'
               AND pid = pg_catalog.pg_backend_pid() AND granted AND objsubid = 1
               AND database = (SELECT oid FROM pg_catalog.pg_database
                               WHERE datname = pg_catalog.current_database())
               AND (classid::bigint << 32) | objid::bigint = $1::bigint)
"""
_TRY: Final = """
SELECT pg_catalog.pg_backend_pid(),
       pg_catalog.current_setting('transporter.elector', true),
       CASE WHEN pg_catalog.current_setting('transporter.elector', true) = $2
                 AND pg_catalog.pg_backend_pid() = $3::int
            THEN pg_catalog.pg_try_advisory_lock($1::bigint) END
"""


class PostgresElector:
    """Elector that leads while it holds the advisory lock of *name*.

    See :class:`~.elector.Elector`. It does not guarantee that the former leader
    has ended its work. It needs PostgreSQL 14 or newer, and a direct connection
    or a session pool.
    """

    def __init__(
        self,
        name: str,
        dsn: SecretStr,
        term: float,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Keep the settings without connecting. *term* is in seconds."""
        self._name, self._term, self._jitter = name, term, jitter
        self._key = str(lock_key(name))
        self._session_mark = uuid4().hex
        self._machine = ElectionState(term)
        self._dsn = dsn
        self._session: _Session | None = None
        self._pid = ""
        """Process id of the server's backend, once the session is prepared."""
        self._asked_at: float | None = None
        """Time of the query that is not answered yet."""
        self._opened_at = self._due_at = -1.0
        self._failures = 0
        self._problem = ""
        self._fault: EnvironmentFault | None = None
        self._closed = False

    def pulse(self, now: float) -> Pulse:
        """Try to get the lock, or query whether it is still ours. See ``Elector.pulse``."""
        if self._fault is not None:
            raise self._fault
        began = time.monotonic()
        changed = self._machine.pulse(now)
        if changed:
            self._drop_session()  # Fenced: free our lock for the next candidate.
        observation = self._observe(now, began + answer_timeout(self._term))
        later = now + time.monotonic() - began
        behind = self._machine.pulse(later, observation)
        if behind and behind[-1].change is StandingChange.FENCED:
            self._drop_session()
        return Pulse(self._machine.standing(later), changed + behind, self._problem)

    def standing(self, now: float) -> Standing:
        """Return the standing at *now*."""
        return self._machine.standing(now)

    def close(self) -> None:
        """End the session without waiting, which frees the lock."""
        self._closed = True
        self._machine = ElectionState(self._term)
        self._drop_session()

    def _observe(self, now: float, until: float) -> Observation | None:
        try:
            return self._advance(now, until)
        except _SessionLost as lost:
            self._drop_session()
            self._note_failure(lost, now)
            return Observation(holding=False, asked_at=now, why=self._problem)

    def _note_failure(self, lost: _SessionLost, now: float) -> None:
        self._problem = f"{self._place}: {lost.problem}"
        self._failures += 1
        wait = min(self._term / _TRIES * 2 ** min(self._failures - 1, 8), self._term)
        self._due_at = now + min(wait, _LONGEST_BACKOFF) * (0.5 + self._jitter() / 2)
        if lost.sqlstate == _UNKNOWN_SETTING:
            self._fault = EnvironmentFault(
                f"{self._place}: the server does not support idle_session_timeout, which frees "
                "the lock of a dead leader; use PostgreSQL 14 or newer, or another elector"
            )

    def _advance(self, now: float, until: float) -> Observation | None:
        session = self._session
        if session is None:
            if now < self._due_at or self._closed:
                return None
            session = self._open_session(now)
        if not session.wait_until_connected(until):
            self._raise_if_overdue(now, self._opened_at, "no connection was established")
            return None
        if self._asked_at is None:
            session.check_connection()
        observation = None
        while self._asked_at is not None or self._send_next_query(session, now):
            row = session.receive_row(until)
            if row is None:
                self._raise_if_overdue(now, self._asked_at or now, "a query was not answered")
                break
            observation = self._interpret_answer(row, now)
        return observation

    def _open_session(self, now: float) -> _Session:
        self._opened_at = self._due_at = now
        attempts = _conninfo_per_address(self._dsn.get_secret_value(), self._term)
        self._session = _Session(attempts[self._failures % len(attempts)])
        return self._session

    def _send_next_query(self, session: _Session, now: float) -> bool:
        """Send the next query, if it is due."""
        if not self._pid:
            session.send_query(_PREPARE, [self._session_mark, str(round(self._term * 1000))])
        elif now < self._due_at:
            return False
        elif self._machine.standing(now) is Standing.LEADER:
            session.send_query(_ASK, [self._key])
        else:
            session.send_query(_TRY, [self._key, self._session_mark, self._pid])
        self._asked_at = now
        return True

    def _interpret_answer(self, row: _Row, now: float) -> Observation | None:
        """Return the observation in the answer *row*, if it contains one."""
        asked_at, self._asked_at = self._asked_at or now, None
        if not self._pid:
            self._finish_preparation(row)
            return None
        pid, mark, holds = row
        if pid != self._pid or mark != self._session_mark:
            self._refuse_shared_session()
        self._failures, self._problem = 0, ""
        holding = holds == "t"
        spread = 1.0 if holding else 0.75 + self._jitter() / 2
        self._due_at = now + spread * self._term / (_QUESTIONS if holding else _TRIES)
        why = "the lock is ours" if holding else "another session holds the lock"
        return Observation(holding=holding, asked_at=asked_at, why=f"{self._place}: {why}")

    def _finish_preparation(self, row: _Row) -> None:
        pid, standby, _, mark = row
        if mark != self._session_mark:
            self._refuse_shared_session()
        if standby == "t":
            raise _SessionLost("this server is a standby, whose locks other servers do not share")
        self._pid = pid or ""

    def _refuse_shared_session(self) -> None:
        self._fault = EnvironmentFault(
            f"{self._place}: other clients use this server session, too, so a lock does not "
            "exclude them; a pooler such as PgBouncer in transaction mode does that: give the "
            "elector a dsn that goes to the server directly, or through a session pool"
        )
        raise _SessionLost("a pooler shares this session among several clients")

    def _raise_if_overdue(self, now: float, since: float, what: str) -> None:
        if now - since >= self._term:
            raise _SessionLost(f"{what} within {format_duration(self._term)}")

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        self._pid, self._asked_at = "", None
        if session is not None:
            session.close()

    @property
    def _place(self) -> str:
        return f"the elector of {self._name} on PostgreSQL"


def lock_key(name: str) -> int:
    """Return the key of the advisory lock for *name*, a signed 64-bit number."""
    digest = hashlib.sha256(f"transporter:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _conninfo_per_address(dsn: str, term: float) -> list[str]:
    """Return a connection string for each address of *dsn*.

    With a single one, libpq would spend the whole wait on the first address.

    Raises:
        _SessionLost: If no host name can be resolved.
    """
    third = str(max(1, int(term / 3)))
    forced = {
        "application_name": "transporter elector",
        "client_encoding": "UTF8",
        # Unconfirmed sends and unanswered queries end within about a term. Our own waits do not
        # rely on it.
        "tcp_user_timeout": str(round(term * 1000)),
        "keepalives": "1",
        "keepalives_idle": third,
        "keepalives_interval": third,
        "keepalives_count": "2",
    }
    parts = conninfo_to_dict(dsn, **forced)
    try:
        return [make_conninfo("", **each) for each in conninfo_attempts(parts)]
    except OperationalError as error:
        raise _SessionLost(str(error)) from error


class _SessionLost(Exception):
    """The session is unusable. The text gives the reason and never quotes the DSN."""

    def __init__(self, problem: str, sqlstate: str = "", /) -> None:
        """Keep the server's *sqlstate*, if the server reported the problem."""
        super().__init__(problem, sqlstate)
        self.problem, self.sqlstate = problem, sqlstate


class _Session:
    """One connection with at most one query at a time, and a deadline for every wait.

    psycopg's connections wait for a silent server as long as the kernel does.
    Times are those of ``time.monotonic``. Not thread-safe. Every method may
    raise :class:`_SessionLost`. The lookup of a host name has no deadline.
    """

    def __init__(self, conninfo: str) -> None:
        """Start to connect."""
        self._connection = pq.PGconn.connect_start(conninfo.encode())
        if self._connection.status == pq.ConnStatus.BAD:
            raise _SessionLost(self._error_text())
        self._awaited_events = selectors.EVENT_WRITE
        self._row: _Row = ()

    def wait_until_connected(self, until: float) -> bool:
        """Return whether the session is connected, waiting *until* then at most."""
        connection = self._connection
        # If polled before the socket is ready, libpq reports a connection in progress as done.
        while self._awaited_events and self._wait_for(self._awaited_events, until):
            status = connection.connect_poll()
            if status not in _POLLS or connection.status == pq.ConnStatus.BAD:
                raise _SessionLost(self._error_text())
            self._awaited_events = _POLLS[status]
            connection.nonblocking = not self._awaited_events
        return not self._awaited_events

    def check_connection(self) -> None:
        """Raise if the connection has ended, as far as can be detected without a query."""
        try:
            if self._wait_for(selectors.EVENT_READ, 0):
                self._connection.consume_input()
        except Error as error:
            raise _SessionLost(self._error_text()) from error

    def send_query(self, query: str, values: Sequence[str]) -> None:
        """Send *query*, which returns one row."""
        try:
            self._row = ()
            self._connection.send_query_params(query.encode(), [each.encode() for each in values])
        except Error as error:
            raise _SessionLost(self._error_text()) from error

    def receive_row(self, until: float) -> _Row | None:
        """Return the row of the query, or ``None`` if it does not arrive *until* then."""
        try:
            return self._receive_row(until)
        except Error as error:
            raise _SessionLost(self._error_text()) from error

    def close(self) -> None:
        """End the session. The server frees its locks as soon as it detects the end."""
        self._connection.finish()

    def _receive_row(self, until: float) -> _Row | None:
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
            raise _SessionLost(
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
