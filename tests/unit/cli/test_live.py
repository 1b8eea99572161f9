"""What a running engine writes to standard error, wherever that leads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TELLING = """
import sys
from transporter.cli.live import lasting_errors, reporter
with lasting_errors(), reporter("json", live=False, hints="") as report:
    for turn in range(5_000):
        report("engine-started", log="log", turn=turn)
    print("delivered", flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize("leads_to", ["a full disk", "a closed pipe", "a file"])
def test_what_cannot_be_told_ends_nothing(leads_to: str, tmp_path: Path) -> None:
    """A log disk that is full, or a reader of the log that has died, leaves the pipeline alone."""
    place = Path("/dev/full") if leads_to == "a full disk" else tmp_path / "stderr"
    with place.open("w") as file:
        told = subprocess.PIPE if leads_to == "a closed pipe" else file
        process = subprocess.Popen(
            [sys.executable, "-c", TELLING], stdout=subprocess.PIPE, stderr=told, text=True
        )
        if process.stderr is not None:
            process.stderr.close()
        output, _ = process.communicate(timeout=60)
    assert (output, process.returncode) == ("delivered\n", 7)
    if leads_to == "a file":
        assert len(place.read_text().splitlines()) == 5_000
