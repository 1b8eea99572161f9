"""Checks of the disk below a log: rights, kind of file system, space, and the cost of a sync."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from transporter.adaptor import Finding
from transporter.log.active_segment import PREALLOCATION
from transporter.log.filesystem import RealFileSystem
from transporter.log.inspection import segments_size
from transporter.log.reserve import RESERVE_BYTES
from transporter.pipeline.path_checks import log_problem, nearest_existing
from transporter.units import display_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.log.filesystem import File, FileSystem

_APPENDS: Final = 100
_APPEND: Final = bytes(4096)
_PATIENCE: Final = 5.0
"""Seconds for all appends together, on a disk that is very slow."""
_SLOW: Final = 0.1
"""Seconds for a sync. Above it a reader of single messages logs fewer than ten a second."""
_UNBELIEVABLE: Final = 10e-6
"""Seconds for a sync below which no device can have been asked."""
_LITTLE: Final = 1 << 30
"""Free bytes below which a log fills soon: one segment of the default size."""
_ESCAPE: Final = re.compile(r"\\(\d{3})")
_REMOTE: Final = frozenset({"9p", "cifs", "nfs", "nfs4", "smb3", "vboxsf", "virtiofs"})
_MOUNTS: Final = Path("/proc/self/mountinfo")


class Mount(NamedTuple):
    """One mounted file system."""

    point: str
    kind: str
    read_only: bool


def check_rights(directory: Path) -> Iterator[Finding]:
    """Yield findings about who may use *directory*, and the folder above it."""
    if text := log_problem(directory):
        yield Finding(f"{directory}: {text}" if str(directory) not in text else text, "problem")
        return
    found = nearest_existing(directory)
    open_to = [each for each in (found, found.parent) if _is_open_to_others(each)]
    for each in open_to:
        yield Finding(
            f"{each} can be written by other users, who could replace the log: chmod go-w {each}",
            "warning",
        )
    if found == directory and (directory / "meta").exists() and _is_readable_by_others(directory):
        yield Finding(f"other users may read the log: chmod go= {directory}", "warning")
    elif not open_to:
        yield Finding(f"this user (id {os.geteuid()}) may write to {found}")


def check_cache(cache: Path) -> Iterator[Finding]:
    """Yield findings about the folders for generated and for temporary files."""
    if text := log_problem(cache):
        yield Finding(f"{text} (XDG_CACHE_HOME names it)", "problem")
    else:
        yield Finding(f"generated files go to {cache}")
    try:
        yield Finding(f"temporary files go to {tempfile.gettempdir()}")
    except FileNotFoundError:
        yield Finding("no folder for temporary files can be written to: set TMPDIR", "problem")


def check_file_system(directory: Path, mounts: Path = _MOUNTS) -> Iterator[Finding]:
    """Yield a finding about the kind of file system that holds *directory*."""
    try:
        table = os.fsdecode(mounts.read_bytes())
        mount = find_mount(nearest_existing(directory), table)
    except OSError:
        mount = None
    if mount is None:
        yield Finding("its kind is not known on this system", "warning")
        return
    name = f"{mount.kind} at {mount.point}"
    if mount.read_only:
        yield Finding(f"{name} is mounted read-only: name another log.dir", "problem")
    elif mount.kind in ("ramfs", "tmpfs"):
        yield Finding(f"{name} is memory: a log there is lost with the power", "warning")
    elif mount.kind == "overlay":
        yield Finding(
            f"{name} is a container's own layer: a log there is lost with the container; mount a "
            "volume",
            "warning",
        )
    elif mount.kind in _REMOTE or mount.kind.startswith("fuse"):
        yield Finding(
            f"{name} may confirm a sync that no disk has done, and its locks may fail: use a local "
            "disk or a block device",
            "warning",
        )
    else:
        yield Finding(name)


def find_mount(path: Path, mountinfo: str) -> Mount | None:
    """Return the mounted file system of *path*, by the contents of ``/proc/self/mountinfo``."""
    real, found = os.path.realpath(path), None
    for line in mountinfo.splitlines():
        fields = line.split()
        with suppress(ValueError, IndexError):
            kind = fields[fields.index("-") + 1]
            point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
            inside = real == point or real.startswith(point.rstrip("/") + "/")
            # A later mount at the same place hides an earlier one.
            if inside and (found is None or len(point) >= len(found.point)):
                found = Mount(point, kind, "ro" in fields[5].split(","))
    return found


def check_space(
    directory: Path, budget: int | None = None, files: FileSystem | None = None
) -> Iterator[Finding]:
    """Yield findings about the free space for a log in *directory* that *budget* bytes limit."""
    files = files or RealFileSystem()
    try:
        place = nearest_existing(directory)
        free, used = files.free_bytes(place), segments_size(directory, files)
        inodes = os.statvfs(place)
    except OSError as error:
        yield Finding(f"the free space cannot be read: {error.strerror}", "problem")
        return
    text = f"{display_size(free)} are free"
    if inodes.f_files and not inodes.f_favail:
        yield Finding("no inode is free: remove files, or name another log.dir", "problem")
    if free < RESERVE_BYTES + PREALLOCATION:
        yield Finding(
            f"{text}: too little for a segment and the reserve, so readers would wait; make room",
            "problem",
        )
    elif budget is not None and free + used < budget:
        yield Finding(
            f"{text}, and log.max_bytes lets the log grow by {display_size(budget - used)}: make "
            "room, or lower log.max_bytes",
            "warning",
        )
    elif free < _LITTLE:
        yield Finding(f"{text}; 'transporter plan' shows how much a log needs", "warning")
    else:
        yield Finding(text)


def check_speed(directory: Path, files: FileSystem | None = None) -> Iterator[Finding]:
    """Yield a finding about the time of a sync, measured in *directory* or the nearest above it."""
    files = files or RealFileSystem()
    folder = directory
    try:
        folder = nearest_existing(directory)
        # A name that nobody can guess: other users may write to the folder, such as /tmp.
        path = folder / f"doctor.{uuid4().hex}.tmp"
        try:
            times = _measure(files, path)
        finally:
            with suppress(OSError):
                files.remove(path)
    except OSError as error:
        yield Finding(f"a file in {folder} cannot be synced: {error.strerror}", "problem")
        return
    yield _speed_finding(times, folder)


def _measure(files: FileSystem, path: Path) -> list[float]:
    """Return the seconds that appends of 4 KiB took, each synced as the log's are, sorted."""
    file = files.open(path, write=True, create=True)
    try:
        file.allocate(0, _APPENDS * len(_APPEND))
        file.sync()
        times: list[float] = []
        begin = perf_counter()
        while len(times) < _APPENDS and perf_counter() - begin < _PATIENCE:
            times.append(_append(file, len(times) * len(_APPEND)))
        return sorted(times)
    finally:
        file.close()


def _append(file: File, byte: int) -> float:
    begin = perf_counter()
    file.pwrite(_APPEND, byte)
    file.sync()
    return perf_counter() - begin


def _speed_finding(times: list[float], folder: Path) -> Finding:
    half, most = (times[round(part * (len(times) - 1))] for part in (0.5, 0.99))
    text = (
        f"an append with fdatasync in {folder} takes {half * 1e3:.3f} ms (p50), "
        f"{most * 1e3:.3f} ms (p99) of {len(times)}"
    )
    if half < _UNBELIEVABLE:
        return Finding(f"{text}: no disk is so fast, so a power cut may lose entries", "warning")
    if most > _SLOW:
        return Finding(
            f"{text}: a source waits as long for each acknowledgement; use a faster disk, or one "
            "that other programs do not sync",
            "warning",
        )
    return Finding(text)


def _is_open_to_others(folder: Path) -> bool:
    with suppress(OSError):
        mode = folder.stat().st_mode
        return bool(mode & (stat.S_IWGRP | stat.S_IWOTH)) and not mode & stat.S_ISVTX
    return False


def _is_readable_by_others(folder: Path) -> bool:
    with suppress(OSError):
        return bool(folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))
    return False
