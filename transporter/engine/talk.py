"""What a route and its worker say to each other."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from transporter.engine.protocol import Output, Proceed, Progress

if TYPE_CHECKING:
    import threading

    from transporter.engine.line import Line
    from transporter.engine.team import Team

IDLE: Final = 0.5
"""Seconds an idle route waits before it looks whether it should stop."""


class Talk:
    """The route's side. Belongs to the route's thread.

    ``announced`` is the entry that the worker has said to be delivering, alone.
    """

    def __init__(self, stopping: threading.Event) -> None:
        """Listen until *stopping* is set."""
        self._stopping = stopping
        self.announced: int | None = None

    def answer(self, worker: Line | Team) -> object:
        """Return the worker's next answer; ``None`` when the route must stop without it.

        Raises ``EOFError`` when the worker is gone.
        """
        self.announced = None
        while True:
            while not worker.poll(IDLE):
                if self._stopping.is_set():
                    return None
            match worker.recv():
                case Output(text):
                    sys.stdout.write(text)
                    sys.stdout.flush()
                case Progress(offset):
                    self.announced = offset
                    worker.send(Proceed())
                case answer:
                    return answer
