"""Points of the server's log where decoding can begin again, which bound what a slot keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from transporter_adaptors.postgres.session import Connection

_FUNCTION: Final = 160000
"""The first version with a function for that."""
_MAY_WRITE: Final = (
    "SELECT has_function_privilege('pg_catalog.pg_log_standby_snapshot()', 'EXECUTE')"
)
_WRITE: Final = "SELECT pg_catalog.pg_log_standby_snapshot()"
_INTERVAL: Final = 64 << 20
"""Bytes of the server's log between two points."""


class RestartPoints:
    """Requests restart points while a copy makes the server write its log. Belongs to one thread.

    A slot keeps the log from the newest restart point that is confirmed: a list of the running
    transactions. The server writes one each 15 seconds. The first reader of a page sets bits in
    it, and with data checksums the server logs that page as a whole. So a copy of rows that nobody
    has read yet makes the slot keep hundreds of megabytes between two points.
    """

    def __init__(self, queries: Connection) -> None:
        """Request them by the session *queries*, if its server and its role allow that."""
        self._queries = queries
        self._last: int | None = None
        self._may_write: bool | None = None

    def request(self, end: int) -> None:
        """Request a point if one is due. The server's log has come to the LSN *end*."""
        if self._last is None:
            self._last = end
        if end - self._last < _INTERVAL:
            return
        self._last = end
        if self._may_write is None:
            self._may_write = self._find_right()
        if self._may_write:
            self._queries.execute(_WRITE)

    def _find_right(self) -> bool:
        if self._queries.info.server_version < _FUNCTION:
            return False
        row = self._queries.execute(_MAY_WRITE).fetchone()
        return bool(row and row[0])
