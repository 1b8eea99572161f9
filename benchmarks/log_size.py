"""A log of years: the memory that reading, exporting, verifying and compacting it take."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.compaction import write_log
from benchmarks.figures import Aim, Comparison, Section
from transporter.log.inspection import inspect
from transporter.log.reader import LogReader
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from benchmarks.setting import Setting

_FLAT: Final = Aim(1.1, at_least=False)
_PIPELINE: Final = """\
name: years
log: {dir: log, compaction: {after: 0s, keep: key}}
readers: [{name: lines, adaptor: file, path: "none/*.jsonl"}]
routes: [{name: out, writer: {adaptor: file, path: out.jsonl}}]
"""

# A small process of its own in between, because the memory of a process before it became another
# program counts to that program's peak.
_WITNESS: Final = """\
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""

METHOD: Final = """\
The log of the compaction benchmark at {large} GiB and at half of that. Each is handed whole to a
command in its own process, and memory is that process's peak (`ru_maxrss`). "Read" decodes every
entry with `LogReader`; the others are the operators' commands. The smaller log is larger than the
amount that any of them may keep, so a figure that grew with the log would show."""


def measure(setting: Setting) -> Section:
    """Take the peak memory of each command on two sizes of a log."""
    large = setting.scale(10 << 30, 128 << 20)
    found = [_peaks(setting, size) for size in (large, large // 2)]
    comparisons = tuple(
        Comparison(what, "half the log", "MiB", (peak,), (found[1][what],), _FLAT)
        for what, peak in found[0].items()
    )
    return Section("log-size", METHOD.format(large=round(large / (1 << 30), 2)), comparisons)


def _peaks(setting: Setting, size: int) -> dict[str, float]:
    """Return the peak in MiB of each command on a log of *size* bytes."""
    folder = setting.make_folder(f"log-{size >> 20}")
    setting.report(f"writing {size >> 20} MiB")
    write_log(folder / "log", size, setting.scale(1 << 30, 16 << 20))
    (folder / "years.yaml").write_text(_PIPELINE, encoding="utf-8")
    _deliver_all(folder / "log")
    transporter = [str(Path(sys.executable).with_name("transporter")), "log"]
    commands = {
        "read": [sys.executable, "-m", "benchmarks.log_size", str(folder / "log")],
        "log verify": [*transporter, "verify", "years.yaml"],
        "log export, JSON lines": [*transporter, "export", "years.yaml", "out.jsonl"],
        "log export, Parquet": [*transporter, "export", "years.yaml", "out.parquet"],
        "log compact": [*transporter, "compact", "years.yaml"],
    }
    try:
        return {what: _peak(setting, what, command, folder) for what, command in commands.items()}
    finally:
        shutil.rmtree(folder)


def _deliver_all(directory: Path) -> None:
    """Release everything to compaction: its one route has come to the end."""
    last = inspect(directory).last
    with OffsetLog(directory, "out") as offsets:
        offsets.settle(Range(0, last), last)


def _peak(setting: Setting, what: str, command: list[str], folder: Path) -> float:
    """Return the most memory, in MiB, that *command* took."""
    setting.report(what)
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-S", "-c", _WITNESS, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{what} failed: {done.stderr[-500:]}")
    for each in folder.glob("out.*"):
        each.unlink()
    return int(done.stdout) / 1024


def _read(directory: Path) -> None:
    with LogReader(directory) as log:
        entries = sum(
            batch.num_rows for batch in log.read(log.first_offset(), inspect(directory).last)
        )
    sys.stdout.write(f"{entries}\n")


if __name__ == "__main__":
    _read(Path(sys.argv[1]))
