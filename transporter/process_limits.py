"""Limits of processes: memory and time of a worker, descriptors of an engine, a host's memory."""

from __future__ import annotations

import faulthandler
import resource
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


MOST_DESCRIPTORS: Final = 1 << 16
"""More than any pipeline needs. Some systems allow a billion, and programs count them all."""
SWITCH_SECONDS: Final = 0.0005
CGROUP: Final = Path("/sys/fs/cgroup")
MEMINFO: Final = Path("/proc/meminfo")


def raise_descriptor_limit() -> None:
    """Let this process and its children open as many files as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # A system may allow less than its hard limit. The present limit must then suffice.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def switch_threads_often() -> None:
    """Let a thread with work wait for the interpreter for half a millisecond, instead of five.

    A thread that reads a socket in many small steps, as a copy does, would otherwise wait for one
    that computes at each step. It costs some microseconds a switch.
    """
    sys.setswitchinterval(SWITCH_SECONDS)


def end_first_without_memory() -> None:
    """Make this process, and its children, the first that a system without memory ends."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def limit_memory(size: int | None) -> None:
    """Limit this process to *size* bytes more than it has now."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = resource.RLIM_INFINITY if size is None else _data_bytes() + size
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    """Return the bytes that already count, because allocators reserve ahead, a GiB at a time."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[5]
    except OSError:
        return 0  # not Linux
    return int(pages) * resource.getpagesize()


@contextmanager
def limit_process(seconds: float, memory: int | None) -> Iterator[None]:
    """End this process when the block takes longer than *seconds*, for any reason."""
    limit_memory(memory)
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        # The process may be used again, for another task.
        faulthandler.cancel_dump_traceback_later()


def available_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Return the bytes that this host and its container still have, if the system reports them."""
    found = []
    with suppress(OSError, StopIteration, ValueError, IndexError):
        lines = meminfo.read_text(encoding="ascii").splitlines()
        line = next(each for each in lines if each.startswith("MemAvailable:"))
        found.append(int(line.split()[1]) * 1024)
    most, used = read_number(cgroup / "memory.max"), read_number(cgroup / "memory.current")
    if most is not None:
        found.append(max(0, most - (used or 0)))
    return min(found, default=None)


def read_number(path: Path) -> int | None:
    """Return the number in a file of the kernel, or nothing for ``max`` and an absent file."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
