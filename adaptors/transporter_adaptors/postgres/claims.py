"""The two ways to claim rows: *mark* them, or *take* them in one transaction.

Either way a look returns rows of one snapshot, and a purge deletes exactly
the rows of that look, requiring the reader's own term number (Invariant 7).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol

from psycopg.errors import SerializationFailure

from transporter.errors import SourceUnavailable
from transporter.message import Entries, with_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter_adaptors.postgres.gaps import IdBounds
    from transporter_adaptors.postgres.outbox import Outbox, PolledRows


@dataclass(frozen=True, slots=True)
class ClaimedRows:
    """The rows that a look found, and the function that deletes exactly these once logged.

    A ``purge`` that has failed may be called again.
    """

    found: PolledRows
    purge: Callable[[], None]


class Claim(Protocol):
    """A way to claim the rows of an outbox during one term. Not thread-safe."""

    rights: ClassVar[tuple[str, ...]]
    """Privileges on the table that the reader's role needs."""

    @property
    def is_holding(self) -> bool:
        """Whether no more rows can be claimed before the last ones are purged."""

    def claim(self, bounds: IdBounds, rows: int, size: int) -> ClaimedRows:
        """Claim rows within *bounds*: up to *rows*, about *size* bytes, at least one if any."""

    def end_transaction(self) -> None:
        """Close any open transaction, because the claimed rows are waiting to be logged."""


class MarkClaim:
    """A claim that marks rows with the leader id in its own transaction, and purges by id and mark.

    No transaction is open while rows are logged. Rows that an earlier leader
    marked are found again, but not rows marked in this term.
    """

    rights: ClassVar[tuple[str, ...]] = ("SELECT", "UPDATE", "DELETE")
    is_holding = False

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def claim(self, bounds: IdBounds, rows: int, size: int) -> ClaimedRows:
        """Mark the rows, so that no later look of this term returns them again."""
        found = self._outbox.mark(bounds, rows, size)
        return ClaimedRows(found, partial(self._outbox.purge, found.ids))

    def end_transaction(self) -> None:
        """Do nothing, because no transaction is open."""


class TakeClaim:
    """A claim that copies rows out of a snapshot and deletes them in the same transaction.

    The transaction is open from a look that found rows until their purge, or until the log
    turns out to be full. While it is open no row becomes reusable, and the server keeps every
    notification. The server ends it after ``idle_in_transaction_session_timeout``. The purge
    is the only write, but no more rows can be read before it.
    """

    rights: ClassVar[tuple[str, ...]] = ("SELECT", "DELETE")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._is_holding = self._is_open = False

    @property
    def is_holding(self) -> bool:
        """Whether the last rows are not purged."""
        return self._is_holding

    def claim(self, bounds: IdBounds, rows: int, size: int) -> ClaimedRows:
        """Copy the rows, and keep the transaction open only when there are some."""
        self._outbox.begin()
        try:
            found = self._outbox.copy(bounds, rows, size)
            self._is_holding = self._is_open = bool(found.ids)
        finally:
            if not self._is_open:
                self._outbox.roll_back()
        return ClaimedRows(found, partial(self._purge, bounds.low, found))

    def end_transaction(self) -> None:
        """End the transaction, so that its rows are purged by content."""
        if self._is_open:
            self._is_open = False
            self._outbox.roll_back()

    def _purge(self, low: int, found: PolledRows) -> None:
        """Delete the copied rows in their own snapshot, or else by content.

        The snapshot serves once. When its transaction has failed the rows are
        still in the table, and are purged like those that a crash left.
        """
        self._is_holding = False
        if not (self._is_open and self._delete(low, found)):
            self._outbox.purge_logged(Entries(with_offsets(found.messages, 0, 0)))

    def _delete(self, low: int, found: PolledRows) -> bool:
        """Delete and commit, and return whether that matched exactly the copied rows."""
        self._is_open = False
        exact = False
        try:
            exact = self._outbox.delete(low, found.ids)
            if exact:
                self._outbox.commit()
        except SourceUnavailable as error:
            if not isinstance(error.__cause__, SerializationFailure):
                raise
        finally:
            if not exact:
                self._outbox.roll_back()
        return exact
