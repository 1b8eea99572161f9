"""A small real process that fills a disk: its log, command by command, until it is killed.

``python -m power.filler DIRECTORY`` opens the log and writes ``open``. Each line of its standard
input is a command, each answer a line: ``acked <offset> <crc>``, or ``full`` where the log had no
room. ``append SIZE`` answers once, ``pair SIZE`` twice: two threads append, and the first sync
returns only once both groups are written, as on a slow disk. ``close`` closes the log and ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from child_paths import python_path

from transporter.errors import LogFull
from transporter.log import active_segment
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import File, RealFileSystem
from transporter.message import Message, messages_to_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

READER: Final = "r"
PATIENCE: Final = 60


class SlowDisk(RealFileSystem):
    """The real disk. Once armed, a segment's sync returns only after two writes."""

    def __init__(self) -> None:
        """Begin unarmed."""
        self._changed = threading.Condition()
        self._written = 2

    def arm(self) -> None:
        """Make the next sync wait for two writes from here on."""
        self._written = 0

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open *path*, a segment with its syncs held."""
        file = super().open(path, write=write, create=create)
        return _Held(self, file) if write and path.suffix == ".log" else file

    def wrote(self) -> None:
        """Count a write."""
        with self._changed:
            self._written += 1
            self._changed.notify_all()

    def await_two_writes(self) -> None:
        """Return once two writes were counted."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._written >= 2, PATIENCE)


class _Held:
    def __init__(self, disk: SlowDisk, file: File) -> None:
        self._disk, self._file = disk, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def pwrite(self, data: bytes, byte: int) -> None:
        self._file.pwrite(data, byte)
        self._disk.wrote()

    def sync(self) -> None:
        self._file.sync()
        self._disk.await_two_writes()


class Filler:
    """The process, with the commands of a test."""

    def __init__(self, process: subprocess.Popen[str], acked: dict[int, int]) -> None:
        """Record in *acked* the checksum of each acked entry, by its offset."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._acked = process, acked
        self._commands: IO[str] = process.stdin
        self._answers: IO[str] = process.stdout

    def append(self, size: int) -> bool:
        """Append one message of *size* bytes. Return true if there was room."""
        self._command(f"append {size}")
        return self._answered()

    def append_pair(self, size: int) -> None:
        """Append two of *size* bytes, of which neither proves the other durable."""
        self._command(f"pair {size}")
        assert [self._answered(), self._answered()] == [True, True]

    def close(self) -> None:
        """Close the log in order."""
        self._command("close")
        assert self._process.wait(PATIENCE) == 0

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def _command(self, line: str) -> None:
        self._commands.write(f"{line}\n")
        self._commands.flush()

    def _answered(self) -> bool:
        said = self._answers.readline().split()
        if said == ["full"]:
            return False
        word, offset, checksum = said
        assert word == "acked"
        assert int(offset) not in self._acked, "given twice"
        self._acked[int(offset)] = int(checksum)
        return True


@contextmanager
def filler(directory: Path, acked: dict[int, int]) -> Iterator[Filler]:
    """Run a :class:`Filler` on the log in *directory*, which must open. Kill it afterwards."""
    command = [sys.executable, "-m", "power.filler", str(directory)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": python_path()},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n", "the log does not open"
            yield Filler(process, acked)
        finally:
            process.kill()


def tell(line: str) -> None:
    """Write one line to standard output, in one call and at once."""
    os.write(1, f"{line}\n".encode())


def append(log: CommitLog, size: int) -> None:
    """Append a message of *size* bytes that no compression makes small."""
    data = os.urandom(size)
    try:
        offset, _ = log.append(messages_to_batch([Message("n", data)]), READER)
    except LogFull:
        tell("full")
    else:
        tell(f"acked {offset} {zlib.crc32(data)}")


def append_pair(log: CommitLog, disk: SlowDisk, size: int) -> None:
    """Append two messages of *size* bytes, both written before the first sync returns."""
    disk.arm()
    threads = [threading.Thread(target=append, args=(log, size)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(directory: Path) -> None:
    """Open the log and execute the commands of standard input.

    A segment sets little aside, so that a full disk is full for the next group, too.
    """
    active_segment.PREALLOCATION = 64 << 10  # type: ignore[misc]
    disk = SlowDisk()
    with CommitLog.open(directory, files=disk) as log:
        tell("open")
        for line in sys.stdin:
            match line.split():
                case ["append", size]:
                    append(log, int(size))
                case ["pair", size]:
                    append_pair(log, disk, int(size))
                case ["close"]:
                    return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
