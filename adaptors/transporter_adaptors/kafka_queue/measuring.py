"""Depth of a queue and the age of its oldest message, measured at intervals for operators."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from transporter.queue.backlog import BacklogEstimator
from transporter_adaptors.kafka.survey import ClusterSurvey

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from transporter.adaptor import Resume
    from transporter.queue import QueueConsumer, QueueSettings

_ANSWER: Final = 3.0
"""Time limit of one estimate by the brokers. Closing may wait as long."""
_SHOW: Final = 1.0
"""Seconds after which an age that has grown is reported again."""


class _QueueContents(NamedTuple):
    """The contents of a queue for the engine at some moment."""

    depth: int
    oldest: float | None
    """Send time of the oldest message that the engine has not taken yet, in seconds since 1970."""
    unknown: bool
    """Whether messages wait whose time is unknown."""


class QueueBacklogMeter:
    """Measurement of a queue's backlog for the engine, on a thread of its own.

    It counts messages that no consumer has begun, and those that *consumer* has begun and not
    acked. Messages begun by other consumers are not included. Closed and used by one thread.
    :meth:`measure` never waits for brokers.
    """

    def __init__(self, settings: QueueSettings, consumer: QueueConsumer) -> None:
        """Make the first estimate due at once."""
        self._consumer = consumer
        self._estimator = BacklogEstimator(settings, consumer.queue)
        self._executor = ThreadPoolExecutor(1, "queue-measuring")
        self._survey = ClusterSurvey[_QueueContents](self._start_estimate)
        self._reported_at = 0.0

    def measure(self, resume: Resume, oldest: Callable[[], float | None]) -> None:
        """Report the newest estimate to *resume*, if that is due.

        *oldest* returns the send time of the oldest message that the engine has and has not
        acked, in seconds since 1970. Without an answer from the brokers all is unknown.
        """
        now = time.monotonic()
        if not self._survey.poll(now) and now < self._reported_at + _SHOW:
            return
        self._reported_at = now
        found = self._survey.answer
        resume.measure("backlog_messages", None if found is None else found.depth)
        resume.measure("lag_seconds", None if found is None else _oldest_age(found, oldest()))

    def close(self) -> None:
        """End the thread, after the estimate that is under way. Safe to call twice."""
        self._executor.shutdown(cancel_futures=True)
        self._estimator.close()

    def _start_estimate(self) -> Future[_QueueContents]:
        return self._executor.submit(self._estimate)

    def _estimate(self) -> _QueueContents:
        waiting = self._estimator.estimate(_ANSWER)
        # Afterwards: a message that is begun meanwhile counts twice, rather than not at all.
        begun, held = self._consumer.oldest_sent(), self._consumer.metrics().in_progress
        oldest = min((each for each in (waiting.oldest, begun) if each is not None), default=None)
        unknown = waiting.depth > 0 and waiting.oldest is None
        return _QueueContents(waiting.depth + held, oldest, unknown)


def _oldest_age(found: _QueueContents, oldest: float | None) -> float | None:
    times = [each for each in (found.oldest, oldest) if each is not None]
    if times and found.depth:
        # The sender's clock may be ahead.
        return max(0.0, time.time() - min(times))
    # Without a time: messages in progress have been acked since.
    return None if found.unknown else 0.0
