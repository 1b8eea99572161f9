"""Mutation controls: with one rule reverted, a test fails.

The smallest edit that reverts a rule is made in a copy of the packages, and there the tests of that
rule must fail. The same tests pass in a copy without an edit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
PACKAGES = ("transporter", "adaptors", "pyspark_transporter")
_SHARED = ("tests", ".cache")
"""Entries that a copy shares with its origin. The cache holds the services."""


@dataclass(frozen=True)
class Mend:
    """A rule, the edit that reverts it, and the tests that notice."""

    name: str
    file: str
    """Path below the package ``transporter``, or the path of one of ``adaptors``."""
    old: str
    """Text that stands in the file once."""
    new: str
    tested_by: str
    """A file below ``tests/unit``, or the path of one of the other tests."""
    tests: tuple[str, ...]
    """Tests that each fail with the edit."""

    @property
    def nodes(self) -> list[str]:
        """Return the tests as pytest names them."""
        path = (
            self.tested_by
            if self.tested_by.startswith("tests/")
            else f"tests/unit/{self.tested_by}"
        )
        return [f"{path}::{test}" for test in self.tests]

    def source(self, folder: Path) -> Path:
        """Return the path of the file in the packages below *folder*."""
        package = folder if self.file.startswith("adaptors/") else folder / "transporter"
        return package / self.file

    def fits(self) -> bool:
        """Return true if the edit changes exactly one place of the code, and its tests exist."""
        once = self.source(ROOT).read_text().count(self.old) == 1 and self.old != self.new
        tests = (ROOT / self.nodes[0].partition("::")[0]).read_text()
        names = (name.partition("[")[0].rpartition("::")[2] for name in self.tests)
        return once and all(f"def {name}(" in tests for name in names)

    def control(self, folder: Path, limit: int) -> None:
        """Revert the rule in a copy in *folder*, and check that each test fails there."""
        source = self.source(copied(folder))
        source.write_text(source.read_text().replace(self.old, self.new))
        run = outcome_of(folder, self.nodes, limit)
        assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
        for node in self.nodes:
            assert f"\nFAILED {node}" in run.stdout, run.stdout


def copied(folder: Path) -> Path:
    """Copy the packages into *folder*, beside the real tests."""
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in _SHARED:
        (folder / name).symlink_to(ROOT / name)
    return folder


def outcome_of(
    folder: Path, nodes: Iterable[str], limit: int, patience: float = 280
) -> subprocess.CompletedProcess[str]:
    """Run the tests *nodes* on the packages in *folder*, which child processes import as well.

    Each of them fails after *limit* seconds, all of them after *patience*.
    """
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", f"--timeout={limit}"]
    environ = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *nodes],
        cwd=folder,
        env={**environ, "PYTHONPATH": f"{folder}:{folder / 'adaptors'}"},
        capture_output=True,
        text=True,
        timeout=patience,
        check=False,
    )


def assert_green(folder: Path, mends: Iterable[Mend], limit: int, patience: float = 280) -> None:
    """Check that the tests of all *mends* pass in a copy without an edit."""
    nodes = sorted({node for mend in mends for node in mend.nodes})
    run = outcome_of(copied(folder), nodes, limit, patience)
    assert run.returncode == pytest.ExitCode.OK, run.stdout + run.stderr
