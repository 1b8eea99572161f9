"""A periodic query to brokers that never blocks the thread that runs it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from confluent_kafka import KafkaException

from transporter.errors import TransporterError

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY: Final = 5.0
"""Seconds between two queries."""
LATE: Final = 5.0
"""Seconds after which the previous answer is too old to be shown."""

T_co = TypeVar("T_co", covariant=True)


class PendingQuery(Protocol[T_co]):
    """A query under way, such as a ``Future``. It ends by itself, with an answer or without."""

    def done(self) -> bool:
        """Return whether :meth:`result` returns or raises at once."""

    def result(self) -> T_co:
        """Return the answer, or raise the reason why there is none."""


class ClusterSurvey(Generic[T_co]):
    """A query at most each :data:`EVERY` seconds. Not thread-safe. Never waits."""

    def __init__(self, start_query: Callable[[], PendingQuery[T_co]]) -> None:
        """Make the first query due at once. *start_query* does not wait for the answer."""
        self._start_query = start_query
        self._query: PendingQuery[T_co] | None = None
        self._due_at = self._late_at = 0.0
        self.answer: T_co | None = None
        """The newest answer, or ``None`` while there is none or when the last query failed."""

    def poll(self, now: float) -> bool:
        """Take an answer that has come, or start a due query, and return whether that is news.

        A failure is news, too, and so is a late answer, because the previous one is old then.
        The reader reports the problem, if it lasts.
        """
        if self._query is None:
            return now >= self._due_at and not self._try_query(now)
        if not self._query.done():
            # The client may take a minute to time out on a broker that is frozen.
            return now >= self._late_at and self._take_answer(None)
        asked, self._query = self._query, None
        return self._take_answer(asked)

    def _try_query(self, now: float) -> bool:
        """Start a query, and return whether that was possible."""
        self._due_at, self._late_at = now + EVERY, now + LATE
        with suppress(KafkaException, TransporterError):
            self._query = self._start_query()
            return True
        self.answer = None
        return False

    def _take_answer(self, asked: PendingQuery[T_co] | None) -> bool:
        self.answer = None
        if asked is not None:
            with suppress(KafkaException, TransporterError):
                self.answer = asked.result()
        return True

    def reset(self) -> None:
        """Drop the answer, and the query that is under way."""
        self._query = self.answer = None
