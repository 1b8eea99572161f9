"""The import path of processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).parents[1]


def python_path(*more: str) -> str:
    """Return ``PYTHONPATH`` with the tests, their support, *more*, and this process's own."""
    folders = (str(TESTS), str(TESTS / "support"), *more, os.environ.get("PYTHONPATH"))
    return os.pathsep.join(filter(None, folders))
