"""Tests of the contracts as an author of an adaptor runs them: by pytest, in another project."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_ADAPTOR_TEST = """
from transporter.testing.contracts import WriterContract
from transporter.testing.doubles import ListWriter, ListWriterConfig


class TestForgetful(WriterContract):
    def make_writer(self):
        return ListWriter(ListWriterConfig())

    def delivered(self):
        return []
"""


def test_a_broken_contract_shows_the_values_that_differ(tmp_path: Path) -> None:
    """A failed assertion of a contract names what was expected, as one of the test file does."""
    (tmp_path / "test_forgetful.py").write_text(_ADAPTOR_TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_ADDOPTS": "", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "assert [] == [(" in done.stdout
    assert "PytestAssertRewriteWarning" not in done.stdout + done.stderr
