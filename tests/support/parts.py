"""A long suite in parts: ``--part 2/3`` runs every third file, and records the outcome.

A part takes a fixed share of the test files, so all parts together are the whole suite. The outcome
of a part, with its commit, is appended to ``build/parts.jsonl``.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

RECORD = Path("build/parts.jsonl")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--part", default="", metavar="I/N", help="run the I-th of N parts only")


def pytest_configure(config: pytest.Config) -> None:
    """Record the start time, and reject an invalid part."""
    config.stash[_BEGUN] = time.time()
    if config.getoption("--part"):
        part_of(config.getoption("--part"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the files of the other parts."""
    if not config.getoption("--part"):
        return
    index, count = part_of(config.getoption("--part"))
    files = sorted({item.path for item in items})
    mine = set(files[index - 1 :: count])
    left_out = [item for item in items if item.path not in mine]
    items[:] = [item for item in items if item.path in mine]
    config.hook.pytest_deselected(items=left_out)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Record the outcome of the part."""
    config = session.config
    if not config.getoption("--part") or hasattr(config, "workerinput"):
        return
    counts = _counts(config)
    line = {
        "part": config.getoption("--part"),
        "arguments": config.invocation_params.args,
        "commit": _git("rev-parse", "HEAD"),
        "changed": bool(_git("status", "--porcelain")),
        "began": round(config.stash[_BEGUN]),
        "seconds": round(time.time() - config.stash[_BEGUN]),
        "exit": int(exitstatus),
        **counts,
    }
    RECORD.parent.mkdir(exist_ok=True)
    with RECORD.open("a") as file:
        file.write(json.dumps(line, default=list) + "\n")


def part_of(text: str) -> tuple[int, int]:
    """Return the part's number and the number of parts from *text*."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise pytest.UsageError(f"--part {text}: not a part; use 1/3, 2/3 or 3/3 for example")
    return int(index), int(count)


def _counts(config: pytest.Config) -> dict[str, int]:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    names = ("passed", "failed", "error", "skipped")
    return {name: len(reporter.stats.get(name, ())) for name in names}


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], capture_output=True, text=True, check=False
    ).stdout.strip()


_BEGUN = pytest.StashKey[float]()
