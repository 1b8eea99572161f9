"""Tests that need root: skipped on a developer's machine, never in CI."""

from __future__ import annotations

import os
import sys

import pytest
from _pytest.outcomes import Failed, Skipped
from root_tools import need_root

REASON = "another user's id needs root"


@pytest.mark.parametrize(("setting", "outcome"), [("true", Failed), ("", Skipped)])
def test_without_root_a_test_is_skipped_but_fails_in_ci(
    setting: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that needs another user is skipped with its reason, and fails in CI."""
    monkeypatch.setenv("CI", setting)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(outcome, match=REASON):
        need_root(REASON)


def test_a_missing_tool_counts_as_missing_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root alone is not enough for a test that names a missing tool."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    need_root(REASON, sys.executable)
    with pytest.raises(Failed, match=REASON):
        need_root(REASON, "no-such-tool-anywhere")
