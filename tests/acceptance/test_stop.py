"""Stops of ``transporter run`` by a signal, from the first moment on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from acceptance_tools import TRANSPORTER, await_true, gone

ROOT = Path(__file__).parents[2]
PIPELINE = """
log: {dir: log}
observe: {listen: "off"}
shutdown_timeout: 1s
readers: [{name: lines, adaptor: demo, rate: 5}]
routes: [{name: copy, writer: {adaptor: file, path: out.jsonl}}]
"""
LATEST = 1.5
"""Latest time of a signal, in seconds after the start."""


@pytest.mark.spark
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive)]
)
def test_a_signal_at_any_moment_ends_a_run_with_exit_0(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Imports, the opening of the log and Spark's start end without a traceback."""
    (tmp_path / "p.yaml").write_text(PIPELINE)
    rng = random.Random(25)
    delays = [step * LATEST / 6 + rng.uniform(0, LATEST / 6) for step in range(6)]
    for delay in [0.0, *delays]:
        process = subprocess.Popen(
            [*TRANSPORTER, "run", "--log-format", "json", str(tmp_path / "p.yaml")],
            stderr=subprocess.PIPE,
            text=True,
        )
        # Before that only Python itself has run.
        await_true(lambda pid=process.pid: _catches(pid), 20, "a handler", pause=0.001)
        time.sleep(delay)
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, said = process.communicate(timeout=180)
        assert (delay, process.returncode) == (delay, 0), said
        assert "Traceback" not in said
        assert gone(below) == []


def test_signals_are_handled_before_anything_heavy_is_imported() -> None:
    """The code that runs before the handlers are set has imported no library."""
    heavy = ("typer", "pydantic", "pyarrow", "rich", "json")
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import transporter.cli.app\n"
        f"print(*sorted(set({heavy!r}) & (set(sys.modules) - before)))\n"
    )
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def _catches(pid: int) -> bool:
    """Return whether the process handles SIGTERM, because Python itself handles SIGINT."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    mask = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"transporter" in command and bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)
