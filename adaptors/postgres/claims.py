"""The two ways to claim rows: *mark* them, or *take* them in one transaction.

Either way a look hands out rows of one snapshot, and a purge deletes exactly
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

    from adaptors.postgres.gaps import Bounds
    from adaptors.postgres.outbox import Found, Outbox


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a look found, and how to delete exactly that once it is logged.

    A ``purge`` that has failed may be called again.
    """

    found: Found
    purge: Callable[[], None]


class Claim(Protocol):
    """A way to claim the rows of an outbox during one term. Not thread-safe."""

    rights: ClassVar[tuple[str, ...]]
    """What the reader's role must be allowed to do with the table."""

    @property
    def holding(self) -> bool:
        """Whether nothing more can be claimed before the last rows are purged."""

    def claim(self, bounds: Bounds, rows: int, size: int) -> Claimed:
        """Claim up to *rows* rows within *bounds*, about *size* bytes, at least one if any."""

    def let_go(self) -> None:
        """Hold no transaction open: the rows that were claimed last wait to be logged."""


class Mark:
    """Marks rows with the leader id in a transaction of its own; purges by id and mark.

    Nothing is held open while rows are logged. Rows that an earlier leader
    marked are found again, those marked in this term are not.
    """

    rights: ClassVar[tuple[str, ...]] = ("SELECT", "UPDATE", "DELETE")
    holding = False

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def claim(self, bounds: Bounds, rows: int, size: int) -> Claimed:
        """Mark the rows, so that no later look of this term finds them again."""
        found = self._outbox.mark(bounds, rows, size)
        return Claimed(found, partial(self._outbox.purge, found.ids))

    def let_go(self) -> None:
        """Nothing is open."""


class Take:
    """Copies rows out of a snapshot and deletes them in the same transaction.

    The transaction is open from a look that found rows until their purge, or until the log
    turns out to be full: while it is open no row becomes reusable, and the server keeps every
    notification. The server ends it after ``idle_in_transaction_session_timeout``. Nothing
    but the purge itself is written, but nothing more can be read before it.
    """

    rights: ClassVar[tuple[str, ...]] = ("SELECT", "DELETE")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._holding = self._open = False

    @property
    def holding(self) -> bool:
        """Whether the last rows are not purged."""
        return self._holding

    def claim(self, bounds: Bounds, rows: int, size: int) -> Claimed:
        """Copy the rows; the transaction stays open only when there are some."""
        self._outbox.begin()
        try:
            found = self._outbox.copy(bounds, rows, size)
            self._holding = self._open = bool(found.ids)
        finally:
            if not self._open:
                self._outbox.roll_back()
        return Claimed(found, partial(self._purge, bounds.low, found))

    def let_go(self) -> None:
        """End the transaction; its rows are purged by what they hold."""
        if self._open:
            self._open = False
            self._outbox.roll_back()

    def _purge(self, low: int, found: Found) -> None:
        """Delete what was copied: in its own snapshot, else by what the rows hold.

        The snapshot serves once. When its transaction has failed the rows are
        still there, and are purged like those of a crash.
        """
        self._holding = False
        if not (self._open and self._delete(low, found)):
            self._outbox.purge_logged(Entries(with_offsets(found.messages, 0, 0)))

    def _delete(self, low: int, found: Found) -> bool:
        """Delete and commit; false when that did not hit exactly the rows that are to go."""
        self._open = False
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
