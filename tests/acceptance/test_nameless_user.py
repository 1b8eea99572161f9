"""A user id without a name in the system, as in containers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from root_tools import need_root

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.exhaustive, pytest.mark.timeout(900)]
NAMELESS = "54321"
FRAMES = """
log: {dir: log}
observe: {listen: "off"}
readers: [{name: lines, adaptor: file, path: in.jsonl}]
routes:
  - {name: copy, writer: {adaptor: file, path: out.jsonl, format: data}}
  - {name: query, steps: [{sql: {query: SELECT * FROM entries}}],
     writer: {adaptor: spark, path: out, format: json}}
"""


@pytest.fixture
def theirs() -> Iterator[Path]:
    """Create a folder of the nameless user, because pytest's are closed to others."""
    _as_nameless()
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, int(NAMELESS), int(NAMELESS))
        yield Path(name)


@pytest.mark.parametrize("home", ["", "/nowhere"])
def test_spark_starts_for_a_user_without_a_name(theirs: Path, home: str) -> None:
    """A pipeline delivers by both kinds of routes, and shell runs, without a home."""
    (theirs / "in.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (theirs / "p.yaml").write_text(FRAMES)
    _run(theirs, home, "run", "p.yaml")
    assert (theirs / "out.jsonl").read_text() == '{"a": 1}\n{"a": 2}\n'
    assert any((theirs / "out").glob("*.json"))
    assert (theirs / "out.jsonl").stat().st_uid == int(NAMELESS)
    assert not (theirs / "?").exists()
    counted = _run(theirs, home, "shell", "p.yaml", "--execute", "SELECT count(*) AS n FROM log")
    assert counted.split() == ["N", "2"]


def _run(folder: Path, home: str, *arguments: str) -> str:
    """Run a command in *folder* as the nameless user, and return its output."""
    kept = {name: value for name, value in os.environ.items() if name != "HOME"}
    done = subprocess.run(
        [*_as_nameless(), sys.executable, "-m", "transporter.cli.app", *arguments],
        cwd=folder,
        env=kept | ({"HOME": home} if home else {}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _as_nameless() -> list[str]:
    """Return the command prefix of a user without a passwd entry, who may read everything."""
    need_root("another user's id needs root and setpriv", "setpriv")
    kept = "+dac_override,+dac_read_search"
    user = ["--reuid", NAMELESS, "--regid", NAMELESS, "--clear-groups"]
    return ["setpriv", *user, "--inh-caps", kept, "--ambient-caps", kept]
