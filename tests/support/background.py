"""Work that goes on beside a test, in a thread of its own."""

from __future__ import annotations

import threading
from typing import Self


class Background:
    """Runs ``_run`` in a thread while its block lasts; it ends when ``_stopping`` is set."""

    def __init__(self, name: str) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the work, and wait until it has ended."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError
