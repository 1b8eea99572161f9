"""Depth of a queue and the age of its oldest message, measured now and then for operators."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from adaptors.kafka.survey import Survey
from transporter.queue.backlog import Backlog, BacklogEstimator

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from transporter.adaptor import Resume
    from transporter.queue import QueueConsumer, QueueSettings

_ANSWER: Final = 3.0
"""Seconds that the brokers get for one estimate; closing may wait as long."""
_SHOW: Final = 1.0
"""Seconds after which an age that has grown is reported again."""


class Measuring:
    """Measures what a queue holds for the engine, on a thread of its own.

    That is what no consumer has begun, and what *consumer* has begun and not acked. What other
    consumers have begun is not included. Closed and used by one thread; :meth:`measure` never
    waits for brokers.
    """

    def __init__(self, settings: QueueSettings, consumer: QueueConsumer) -> None:
        """Be due at once."""
        self._consumer = consumer
        self._estimator = BacklogEstimator(settings, consumer.queue)
        self._executor = ThreadPoolExecutor(1, "queue-measuring")
        self._survey = Survey[Backlog](self._ask)
        self._shown = 0.0

    def measure(self, resume: Resume, oldest: Callable[[], float | None]) -> None:
        """Report the newest estimate to *resume*, if that is due.

        *oldest* returns when the oldest message was sent that the engine has and has not acked,
        in seconds since 1970. Without an answer of the brokers nothing is known.
        """
        now = time.monotonic()
        if not self._survey.look(now) and now < self._shown + _SHOW:
            return
        self._shown = now
        found = self._survey.answer
        resume.measure("backlog_messages", None if found is None else found.depth)
        resume.measure("lag_seconds", None if found is None else _age(found, oldest()))

    def close(self) -> None:
        """End the thread, after the estimate that is under way; safe to call twice."""
        self._executor.shutdown(cancel_futures=True)
        self._estimator.close()

    def _ask(self) -> Future[Backlog]:
        return self._executor.submit(self._estimate)

    def _estimate(self) -> Backlog:
        found = self._estimator.estimate(_ANSWER)
        # Afterwards: a message that is begun meanwhile counts twice, rather than not at all.
        return Backlog(found.depth + self._consumer.metrics().in_progress, found.oldest)


def _age(found: Backlog, oldest: float | None) -> float | None:
    if not found.depth:
        return 0.0
    times = [each for each in (found.oldest, oldest) if each is not None]
    # The clock of who has sent it may be ahead.
    return max(0.0, time.time() - min(times)) if times else None
