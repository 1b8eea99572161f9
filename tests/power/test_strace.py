"""Every system call of a real process fails once, or is its last."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from child_paths import python_path
from crash.workload import held
from power.appender import APPENDS, ROUTE

import transporter
from transporter.log.commit_log import CommitLog
from transporter.log.reader import LogReader
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog, declared_routes, proved_offset, read_state

if TYPE_CHECKING:
    from collections.abc import Callable

SYSTEM_CALLS: Final = "mkdir,openat,pwrite64,ftruncate,fallocate,rename,fsync,fdatasync"
_LINE: Final = re.compile(r"(\d+) +(\w+)\(")
PROGRAM: Final = ["-m", "power.appender"]
CARELESS: Final = [
    "-c",
    """
import os, sys
from contextlib import suppress
from pathlib import Path
real = os.fdatasync
def careless(descriptor):
    with suppress(OSError):
        real(descriptor)
os.fdatasync = careless
from power.appender import main
sys.exit(main(Path(sys.argv[1])))
""",
]
"""The same program, except that a failed sync is ignored."""


@dataclass(frozen=True)
class Ended:
    """A traced process that has ended: its output, and its system calls in order."""

    code: int
    said: list[str]
    problem: str
    calls: list[str]

    def places(self, call: str, directory: Path) -> list[int]:
        """Return the numbers, from 1, of its *call* s that concerned *directory*."""
        mine = [line for line in self.calls if _name(line) == call]
        return [at for at, line in enumerate(mine, 1) if str(directory) in line]

    def told_after_injection(self) -> list[str]:
        """Return the lines it wrote to standard output after the injected failure."""
        (struck,) = (at for at, line in enumerate(self.calls) if "(INJECTED)" in line)
        return [line for line in self.calls[struck:] if line.startswith("write(1")]


def _name(line: str) -> str:
    return line.partition("(")[0]


def _kills(inject: str | None) -> bool:
    return inject is not None and "signal=KILL" in inject


def run(directory: Path, inject: str | None = None, program: list[str] = PROGRAM) -> Ended:
    """Run *program* over the log in *directory* under strace, with a failure to *inject*."""
    trace = directory.with_suffix(".trace")
    strace = ["strace", "-f", "-y", "-o", str(trace)]
    if not _kills(inject):
        # Faster, but a signal is not injected at the stops that a filter makes.
        strace.append("--seccomp-bpf")
    strace += ["-e", f"trace={SYSTEM_CALLS},write"]
    strace += ["-e", f"inject={inject}"] if inject else []
    path = python_path(str(Path(transporter.__file__).parents[1]))
    ended = subprocess.run(
        [*strace, sys.executable, *program, str(directory)],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    matches = [(_LINE.match(line), line) for line in trace.read_text().splitlines()]
    found = [(match, line[match.end(1) :].strip()) for match, line in matches if match]
    # Threads of Arrow do nothing of interest.
    main = found[0][0][1]
    calls = [line for match, line in found if match[1] == main]
    return Ended(ended.returncode, ended.stdout.splitlines(), ended.stderr, calls)


def check_restart(directory: Path, said: list[str]) -> None:
    """Open the log that the process left, twice, and check its acknowledged entries."""
    acked = {
        int(line.split()[1]): line.split()[2].encode() for line in said if line.startswith("acked")
    }
    settled = [int(line.split()[1]) for line in said if line.startswith("settled")]
    if settled:
        assert ROUTE in declared_routes(directory)
        assert read_state(directory, ROUTE).watermark >= settled[-1]
    for _ in range(2):
        with (
            CommitLog.open(directory, proved=lambda: proved_offset(directory)) as log,
            OffsetLog(directory, ROUTE),
            LogReader(directory) as reader,
        ):
            found = held(reader, log.durable)
            assert found | acked == found
            batch = messages_to_batch([Message("n", b"after", b"k")])
            assert log.append(batch, "r")[0] > max(found, default=-1)


def check_end(ended: Ended, inject: str) -> None:
    """Compare the end of a process with the injected failure."""
    assert "Traceback" not in ended.problem, ended.problem
    if _kills(inject):
        assert ended.code == -9
        return
    assert (ended.code == 0) == (ended.said[-1:] == ["done"])
    assert ended.code in (0, 1, 3), "the exit codes of errors of ours"
    if inject.startswith(("fsync:error=EIO", "fdatasync:error=EIO")):
        assert ended.told_after_injection() == [], "acked after a failed sync"
        assert ended.code != 0
    if "EINTR" in inject:
        assert ended.code == 0, ended.problem


def problem(folder: Path, inject: str, program: list[str]) -> str | None:
    """Run *program* in *folder* with a failure to *inject*. Return the problem."""
    folder.mkdir()
    try:
        ended = run(folder / "log", inject, program)
        assert _kills(inject) or any(
            "(INJECTED)" in line and str(folder) in line for line in ended.calls
        ), "it did not hit the log"
        check_end(ended, inject)
        check_restart(folder / "log", ended.said)
    except Exception as error:  # noqa: BLE001 - each of them is a finding
        return f"{inject}: {error!r}"
    return None


def problems(folder: Path, call: str, what: str, program: list[str] = PROGRAM) -> list[str]:
    """Inject *what* into each *call* of the process. Return the problems."""
    whole = run(folder / "log", program=program)
    assert whole.said[-1] == "done", whole.problem
    places = whole.places(call, folder)
    assert places, f"no {call} in {whole.calls}"
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(
            lambda at: problem(folder / str(at), f"{call}:{what}:when={at}", program), places
        )
        return [each for each in found if each is not None]


CASES: Final = [
    ("fdatasync", "error=EIO"),
    ("fdatasync", "error=ENOSPC"),
    ("fdatasync", "error=EINTR"),
    ("fdatasync", "signal=KILL"),
    ("fsync", "error=EIO"),
    ("fsync", "signal=KILL"),
    ("pwrite64", "error=EIO"),
    ("pwrite64", "error=ENOSPC"),
    ("pwrite64", "error=EINTR"),
    ("pwrite64", "signal=KILL"),
    ("ftruncate", "error=EIO"),
    ("ftruncate", "signal=KILL"),
    ("fallocate", "error=EIO"),
    ("fallocate", "error=ENOSPC"),
    ("fallocate", "error=EOPNOTSUPP"),
    ("rename", "error=EIO"),
    ("rename", "signal=KILL"),
    ("mkdir", "error=ENOSPC"),
    ("mkdir", "signal=KILL"),
    ("openat", "error=EMFILE"),
    ("openat", "error=EIO"),
    ("openat", "signal=KILL"),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("call", "what"), CASES)
def test_whatever_system_call_fails_nothing_told_is_lost(
    tmp_path: Path, needs: Callable[..., None], call: str, what: str
) -> None:
    """Invariants 1, 2, 13 and 14 on a real process: no ack after a failed sync, restart clean."""
    needs("strace")
    assert problems(tmp_path, call, what) == []


@pytest.mark.timeout(900)
def test_a_process_that_passes_over_a_failed_sync_is_found(
    tmp_path: Path, needs: Callable[..., None]
) -> None:
    """Control: a program that ignores the error of its sync acks after it, and is seen."""
    needs("strace")
    found = problems(tmp_path, "fdatasync", "error=EIO", CARELESS)
    assert any("acked after a failed sync" in problem for problem in found)


def test_the_process_says_all_it_should(tmp_path: Path, needs: Callable[..., None]) -> None:
    """Without a fault, the process acks every append and settles every second one."""
    needs("strace")
    said = run(tmp_path / "log").said
    assert sum(line.startswith("acked") for line in said) == 2 * APPENDS
    settles = sum(number % 2 for number in range(2 * APPENDS))
    assert sum(line.startswith("settled") for line in said) == settles
