"""Spark's Python daemon, which imports every worker's libraries before it forks.

Named by ``spark.python.daemon.module``. A worker then starts in milliseconds
and shares the memory of its libraries, and it ends with the daemon even when it hangs.

The daemon itself ends when its standard input is closed, as it is when its JVM ends. It
cannot be bound to the JVM, because the JVM thread that forked it ends after a minute.
"""

from __future__ import annotations

import gc
import importlib
import os
from typing import Final

from pyspark.daemon import manager

from transporter.spark.parent_death import end_with_parent

_PRELOADED: Final = ("pyspark.worker", "pyarrow.compute", "transporter.worker.worker")


def main() -> None:
    """Import the libraries, freeze them, and fork workers on Spark's request."""
    for module in _PRELOADED:
        importlib.import_module(module)
    # A collection never touches frozen objects, so their pages stay shared.
    gc.collect()
    gc.freeze()
    _bind_workers()
    manager()


def _bind_workers() -> None:
    """Bind every process that this one forks to it, but not the processes that those fork."""
    daemon = os.getpid()
    bound = False

    def bind() -> None:
        nonlocal bound
        if not bound:
            bound = True
            end_with_parent(daemon)

    os.register_at_fork(after_in_child=bind)


if __name__ == "__main__":
    main()
