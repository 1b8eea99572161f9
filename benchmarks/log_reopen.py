"""Opening a log whose engine was killed, small or large, with room on the disk or without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.figures import OURS, Aim, Comparison, Section
from benchmarks.messages import batches
from benchmarks.setting import ROOT
from transporter.errors import LogFull
from transporter.log.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.setting import Setting

_AIM: Final = Aim(0.5, at_least=False, figure=OURS)
_MIB: Final = 1 << 20
_ROWS: Final = 20_000
_APPENDED: Final = 32 * _MIB
_SPACE: Final = 64 * _MIB
_LEFT: Final = _MIB
_ROOM: Final = 1024 * _MIB
_CHILD: Final = "from benchmarks.log_reopen import run_engine; run_engine()"

METHOD: Final = f"""\
An engine's process appends frames of 6 MiB, each durable. It is killed with SIGKILL in between, so
that a whole frame above the floor must be copied. Then the log's files leave the page cache
(`POSIX_FADV_DONTNEED`), and a new process times its `CommitLog.open`: the chain of segments
checked, the tail recovered, `meta` written, all of it synced. Segments have 1 GiB. The rival is a
log with only such a tail.

"{_LEFT >> 20} MiB free" uses a small ext4. The engine appends until the disk is full and is killed,
and the rest is filled except for that. This needs root."""
LIMITS: Final = """\
The copy of the frames above the floor and its syncs, and before it the reads of each segment's
ends."""
NOT_RUN: Final = "**Not run**: with {left} MiB free on the disk ({why})."


def measure(setting: Setting) -> Section:
    """Time opens of logs of several sizes in turns, after a kill each."""
    sizes = {
        "1 GiB": setting.scale(1024, 64) * _MIB,
        "10 GiB": setting.scale(10 * 1024, 640) * _MIB,
    }
    with ExitStack() as stack:
        place = setting.make_folder("logs")
        stack.callback(shutil.rmtree, place)
        logs = {"nothing": CrashedLog(place / "nothing")}
        logs |= {name: CrashedLog(place / name.replace(" ", "-")) for name in sizes}
        why = mount_problem()
        if not why:
            small = stack.enter_context(
                small_disk(setting.make_folder("small"), sizes["1 GiB"] + _ROOM)
            )
            logs["full"] = CrashedLog(small / "log", filler=small / "filler")
        for name, size in (sizes | ({} if why else {"full": sizes["1 GiB"]})).items():
            setting.report(f"making a log of {size >> 20} MiB: {name}")
            logs[name].grow(size)
        found = setting.interleave({name: partial(log.reopen) for name, log in logs.items()})
    subjects = {name: f"reopen of {size >> 20} MiB" for name, size in sizes.items()}
    subjects["full"] = f"{subjects['1 GiB']}, {_LEFT >> 20} MiB free"
    comparisons = tuple(
        Comparison(subjects[name], "of a tail alone", "s", times, found["nothing"], _AIM)
        for name, times in found.items()
        if name != "nothing"
    )
    notes = (NOT_RUN.format(left=_LEFT >> 20, why=why),) if why else ()
    return Section("log-reopen", METHOD, comparisons, notes, LIMITS)


class CrashedLog:
    """A log in *directory* whose engine is killed again and again.

    With a *filler*, the disk is filled up by that file while the log is opened.
    """

    def __init__(self, directory: Path, filler: Path | None = None) -> None:
        """Make nothing yet."""
        self._directory, self._filler = directory, filler

    def grow(self, size: int) -> None:
        """Append until the log takes *size* bytes more, and kill the engine."""
        _kill_engine(self._directory, size)

    def reopen(self) -> float:
        """Kill an engine that appends. Return the seconds that the next one takes to open."""
        with ExitStack() as stack:
            if self._filler is not None:
                stack.callback(self._filler.unlink)
                fill_up(self._filler, _SPACE)
            _kill_engine(self._directory, _SPACE if self._filler else _APPENDED)
            if self._filler is not None:
                fill_up(self._filler, _LEFT)
            drop_cached_pages(self._directory)
            return _kill_engine(self._directory, 0)


def _kill_engine(directory: Path, size: int) -> float:
    """Run an engine that appends *size* bytes, and kill it in the act. Return its open's seconds.

    One that is to append nothing, or finds the disk full, waits for its death.
    """
    command = [sys.executable, "-c", _CHILD, str(directory), str(size)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        lines = [process.stdout.readline() for _ in ("opened", "appended")]
        process.kill()
    if not all(lines):
        raise RuntimeError(f"the engine of {directory} ended by itself: {process.returncode}")
    return float(lines[0])


def run_engine() -> None:
    """Open a log, print the time, append, print again, and go on until killed."""
    directory, size = Path(sys.argv[1]), int(sys.argv[2])
    began = time.perf_counter()
    with CommitLog.open(directory, compression=None) as log:
        _print(f"{time.perf_counter() - began}")
        with suppress(LogFull):
            _append(log, size)
        _print("no more")
        sys.stdin.read()


def _append(log: CommitLog, size: int) -> None:
    """Append for ever, if anything at all, and print when *size* bytes were appended."""
    (ready,) = batches(1, _ROWS)
    appended = 0
    while size:
        log.append(ready, "bench", "position")
        appended += ready.nbytes
        if appended - ready.nbytes < size <= appended:
            _print("appended")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def drop_cached_pages(directory: Path) -> None:
    """Let the files of *directory* leave the page cache, as far as they are on the disk."""
    for path in directory.iterdir():
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def fill_up(filler: Path, left: int) -> None:
    """Reserve the disk's space in *filler*, behind its contents, until *left* bytes are free."""
    with filler.open("ab") as file:
        disk = os.statvfs(filler.parent)
        size = disk.f_bavail * disk.f_frsize - left
        if size > 0:
            os.posix_fallocate(file.fileno(), file.tell(), size)


def mount_problem() -> str:
    """Return the reason why no disk can be mounted here, or an empty text."""
    if os.geteuid() != 0:
        return "it needs root"
    missing = [tool for tool in ("mkfs.ext4", "mount", "umount") if shutil.which(tool) is None]
    return f"there is no {missing[0]}" if missing else ""


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """Mount an ext4 of *size* bytes below *folder* for the length of a ``with`` block."""
    image, mount = folder / "image", folder / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)  # noqa: S607
    subprocess.run(["mount", "-o", "loop", image, mount], check=True)  # noqa: S607
    try:
        yield mount
    finally:
        subprocess.run(["umount", mount], check=True)  # noqa: S607
        image.unlink()
