"""The real disk below an engine of the storm: it fills up, fails, is slow, or loses power.

It replaces the methods of ``RealFileSystem``, so everything that the engine's process writes goes
through it. While it *records*, it keeps a simulated disk beside the real one, from which any legal
image of a power cut can be taken.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disks.crashes import crash_states
from disks.simulated import SimulatedDisk

from transporter.log import filesystem

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

_FREE = ("open", "rename", "remove", "create_directory", "remove_directory", "sync_directory")
_IMAGES = 8


class HostileDisk:
    """A layer between an engine and its disk. Thread-safe."""

    def __init__(self, directory: Path, *, record: bool) -> None:
        """Watch the files below *directory*, and leave other files alone."""
        self._directory = directory
        self._lock = threading.RLock()
        self._fault: dict[str, Any] = {}
        self.misused: list[str] = []
        self._shadow = SimulatedDisk(_planted(directory)) if record else None

    def install(self) -> None:
        """Take the place of the real file system in this process."""
        real = {name: getattr(filesystem.RealFileSystem, name) for name in _FREE}
        disk = self

        def opened(this: Any, path: Path, *, write: bool = False, create: bool = False) -> Any:
            with disk._lock:
                file = real["open"](this, path, write=write, create=create)
                if not disk._ours(path):
                    return file
                shadow = None
                if disk._shadow is not None:
                    shadow = disk._shadow.open(disk._short(path), write=write, create=create)
                return _File(disk, path.name, file, shadow)

        def changing(name: str) -> Callable[..., None]:
            def change(this: Any, *paths: Path) -> None:
                with disk._lock:
                    disk.meet(name, paths[-1].name)
                    real[name](this, *paths)
                    if disk._shadow is not None and disk._ours(paths[-1]):
                        getattr(disk._shadow, name)(*map(disk._short, paths))

            return change

        filesystem.RealFileSystem.open = opened  # type: ignore[method-assign]
        for name in _FREE[1:]:
            setattr(filesystem.RealFileSystem, name, changing(name))

    def set_fault(self, fault: dict[str, Any]) -> None:
        """Apply *fault* from now on. An empty one heals the disk."""
        with self._lock:
            self._fault = dict(fault)

    def meet(self, kind: str, name: str, *, grows: bool = False) -> None:
        """Fail the call if the disk is to. With *grows* it needs new room."""
        fault = self._fault
        match fault.get("mode"):
            case "slow":
                if kind in fault["kinds"] and name.endswith(fault.get("files", "")):
                    time.sleep(fault["seconds"])
            case "full":
                if grows or kind == "create_directory":
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "full-cow":
                # Copy-on-write: an overwrite needs room, too.
                if kind in ("pwrite", "allocate", "create_directory"):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "fail":
                self._fail_once(fault, kind)

    def _fail_once(self, fault: dict[str, Any], kind: str) -> None:
        if kind in fault["kinds"]:
            fault["after"] -= 1
            if fault["after"] < 0:
                self._fault = {}
                raise OSError(fault["errno"], os.strerror(fault["errno"]))

    def cut_power(self, rng: Random, target: Path) -> str:
        """Write the surviving state to *target*. Nothing of this process goes on after it."""
        self._lock.acquire()
        assert self._shadow is not None
        images = list(crash_states(self._shadow, rng, _IMAGES))
        image = rng.choice(images)
        _write(image.tree, target)
        return image.label

    def _ours(self, path: Path) -> bool:
        return path == self._directory or self._directory in path.parents

    def _short(self, path: Path) -> Path:
        return Path("/") / path.relative_to(self._directory)


class _File:
    """One open file. Any use of a closed file is recorded as misuse."""

    def __init__(self, disk: HostileDisk, name: str, real: Any, shadow: Any) -> None:
        self._disk, self._name, self._real, self._shadow = disk, name, real, shadow
        self._closed = False

    def pread(self, size: int, byte: int) -> bytes:
        self._check("pread")
        return self._real.pread(size, byte)

    def pread_into(self, buffer: memoryview, byte: int) -> int:
        self._check("pread")
        return self._real.pread_into(buffer, byte)

    def size(self) -> int:
        self._check("size")
        return self._real.size()

    def is_at(self, path: Path) -> bool:
        return self._real.is_at(path)

    def pwrite(self, data: bytes, byte: int) -> None:
        with self._disk._lock:
            try:
                self._check("pwrite", grows=byte + len(data) > self._real.size())
            except OSError:
                # A full disk takes as much as has room. A failing one may have taken some, too.
                half = bytes(data[: len(data) // 2])
                if half and not self._closed:
                    self._put(half, byte)
                raise
            self._put(data, byte)

    def truncate(self, size: int) -> None:
        with self._disk._lock:
            self._check("truncate")
            self._real.truncate(size)
            if self._shadow is not None:
                self._shadow.truncate(size)

    def allocate(self, byte: int, size: int) -> None:
        with self._disk._lock:
            self._check("allocate", grows=byte + size > self._real.size())
            self._real.allocate(byte, size)
            if self._shadow is not None:
                self._shadow.allocate(byte, size)

    def sync(self) -> None:
        self._check("sync")
        if self._shadow is None:
            self._real.sync()
            return
        with self._disk._lock:
            # Writes during a sync are not covered, so one at a time is the plainest order.
            self._real.sync()
            self._shadow.sync()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._real.close()
            if self._shadow is not None:
                self._shadow.close()

    def __getattr__(self, name: str) -> Any:
        """Delegate calls that change nothing to the real file."""
        return getattr(self._real, name)

    def _put(self, data: bytes, byte: int) -> None:
        self._real.pwrite(data, byte)
        if self._shadow is not None:
            self._shadow.pwrite(data, byte)

    def _check(self, kind: str, *, grows: bool = False) -> None:
        if self._closed:
            # The descriptor's number may be another file's by now.
            self._disk.misused.append(f"{kind} of {self._name} after it was closed")
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        self._disk.meet(kind, self._name, grows=grows)


def _planted(directory: Path) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    if directory.is_dir():
        for path in directory.iterdir():
            if path.is_dir():
                tree[path.name] = _planted(path)
            elif path.is_file():
                tree[path.name] = path.read_bytes()
    return tree


def _write(tree: dict[str, Any], target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name, node in tree.items():
        if isinstance(node, dict):
            _write(node, target / name)
        else:
            (target / name).write_bytes(node)
