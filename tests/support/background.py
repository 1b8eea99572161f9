"""Work that runs beside a test, in a thread of its own."""

from __future__ import annotations

import threading
from typing import Self


class Background:
    """A base that runs ``_run`` in a thread during its block. Setting ``_stopping`` ends it."""

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
