"""Requirements of this folder's tests on the machine, and a prominent summary."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from root_tools import cannot_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from _pytest.terminal import TerminalReporter

CAP_SYS_ADMIN: Final = 21
FIGURES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin a list of measurements."""
    config.stash[FIGURES] = []


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return a function that adds a line to the summary."""
    return request.config.stash[FIGURES].append


def may_mount() -> bool:
    """Return true if this process may mount file systems."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    rights = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return rights is not None and bool(int(rights[1], 16) >> CAP_SYS_ADMIN & 1)


@pytest.fixture
def needs() -> Callable[..., None]:
    """Return a function that skips a test without a tool or the right to mount, or fails in CI."""

    def need(*tools: str, root: bool = False) -> None:
        if root and not may_mount():
            cannot_run("NOT RUN: only root (with CAP_SYS_ADMIN) may mount file systems")
        for tool in tools:
            if shutil.which(tool) is None:
                cannot_run(f"NOT RUN: {tool} is not installed")

    return need


def pytest_terminal_summary(
    terminalreporter: TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Show the measurements, and the tests that were not run with the reasons."""
    if lines := config.stash[FIGURES]:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.line(line)
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if "/power/" in r.nodeid]
    if skipped:
        terminalreporter.section("NOT RUN: this machine lacks what these need", red=True)
        for report in skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            terminalreporter.line(f"WARNING {report.nodeid}: {reason}", red=True)
