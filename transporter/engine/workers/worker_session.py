"""The session of a route with its workers: requests, answers, and waiting for them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from transporter.protocol.messages import Announcement, Output, PartialOutcome, Proceed

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from transporter.engine.workers.shard_group import ShardGroup
    from transporter.engine.workers.worker_connection import WorkerConnection
    from transporter.protocol.messages import Outcome, Retry, Slice

IDLE: Final = 0.5
"""Seconds an idle route waits before it looks whether it should stop."""


class WorkerSession:
    """The route's side. Belongs to the route's thread.

    ``announced`` is the entry that the worker has announced and is delivering alone.
    """

    def __init__(
        self, stopping: threading.Event, on_wait: Callable[[], None] = lambda: None
    ) -> None:
        """Listen until *stopping* is set. *on_wait* is called while it waits, each moment."""
        self._stopping, self._on_wait = stopping, on_wait
        self.announced: int | None = None

    def request(
        self,
        worker: WorkerConnection | ShardGroup,
        message: Slice | Retry,
        settle: Callable[[Outcome], None] | None = None,
    ) -> object:
        """Send *message*, and return the result of :meth:`receive_answer`."""
        self.announced = None
        worker.send(message)
        return self.receive_answer(worker, settle)

    def receive_answer(
        self, worker: WorkerConnection | ShardGroup, settle: Callable[[Outcome], None] | None = None
    ) -> object:
        """Return the worker's next answer, or ``None`` if the route must stop without it.

        *settle* is called with each partial outcome that comes before the answer. Raises
        ``EOFError`` if the worker is gone, after all that it has sent.
        """
        self.announced = None
        while True:
            while not worker.poll(IDLE):
                self._on_wait()
                if self._stopping.is_set():
                    return None
            match worker.recv():
                case Output(text):
                    sys.stdout.write(text)
                    sys.stdout.flush()
                case Announcement(offset):
                    self.announced = offset
                    worker.send(Proceed())
                case PartialOutcome(outcome):
                    if settle is not None:
                        settle(outcome)
                case answer:
                    return answer
