"""Tests that only root can run: skipped visibly elsewhere, but a failure in CI."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

NOBODY = 65534
"""The id of a user who owns nothing, and of the corresponding group."""


def need_root(reason: str, *tools: str) -> None:
    """Skip the test, with *reason*, unless this is root and the *tools* are on the path."""
    if os.geteuid() or not all(map(shutil.which, tools)):
        cannot_run(reason)


def cannot_run(reason: str) -> NoReturn:
    """Skip the test with *reason*. With ``CI`` set, fail it, so that no promise goes unchecked."""
    if os.environ.get("CI"):
        pytest.fail(f"CI has to run this: {reason}")
    pytest.skip(reason)
