"""Spark's Python daemon, with what every worker needs imported before it forks.

Named by ``spark.python.daemon.module``. A worker then starts in milliseconds
and shares the memory of its libraries.
"""

from __future__ import annotations

import gc
import importlib
from typing import Final

from pyspark.daemon import manager

_PRELOADED: Final = ("pyspark.worker", "pyarrow.compute", "transporter.engine.worker")


def main() -> None:
    """Import, freeze, and fork workers as Spark asks."""
    for module in _PRELOADED:
        importlib.import_module(module)
    # What is frozen is never touched by a collection, so its pages stay shared.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
