"""File systems in a file, mounted and unmounted by system calls, whose power can be cut."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from root_tools import cannot_run

if TYPE_CHECKING:
    from collections.abc import Iterator

_GOINGDOWN: Final = 0x8004587D
"""``EXT4_IOC_SHUTDOWN`` and ``XFS_IOC_GOINGDOWN``: no write reaches the device any more."""
_NO_LOG_FLUSH: Final = 2
"""Not even the file system's own journal is written first: a power cut."""
_WRITE_BACK: Final = 2
"""``SYNC_FILE_RANGE_WRITE``: begin to write dirty pages back, and prove nothing."""
_DETACH: Final = 2
"""``MNT_DETACH``."""
_PATIENCE: Final = 60.0
SIZE: Final = 320 << 20
"""Bytes of the (sparse) image, because XFS wants 300 MiB."""
MAKE: Final = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}


class Loop:
    """One file system of *kind* in an image in *folder*, on a loop device of its own."""

    def __init__(self, folder: Path, kind: str) -> None:
        """Make the image and the file system, without mounting it."""
        self.kind, self.place = kind, folder / "mounted"
        self._image = folder / "image"
        self.place.mkdir()
        self.format()
        self._device = _output("losetup", "--find", "--show", str(self._image))

    def format(self) -> None:
        """Begin again with an empty file system."""
        with self._image.open("wb") as image:
            image.truncate(SIZE)
        subprocess.run([*MAKE[self.kind], str(self._image)], check=True)

    def mount(self, options: str = "") -> None:
        """Mount. The file system replays its journal if it must."""
        mount(self._device, self.place, self.kind, options)

    def unmount(self) -> None:
        """Unmount. Every file must be closed.

        A process that got mounts of its own meanwhile, as hosts of cluster tests do, keeps the file
        system alive. The next mount would then be of the one whose power was cut.
        """
        unmount(self.place)
        alive = Path("/sys/fs") / self.kind / Path(self._device).name
        deadline = time.monotonic() + _PATIENCE
        while alive.exists():
            assert time.monotonic() < deadline, f"{self._device}: mounted in another namespace"
            time.sleep(0.01)

    def cut_power(self) -> None:
        """Keep everything that is not on the device from reaching it."""
        descriptor = os.open(self.place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, _GOINGDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def write_back(self, descriptor: int, byte: int, size: int) -> None:
        """Write some dirty pages of a file back, in no order, as the kernel may at any time."""
        arguments = (ctypes.c_int64(byte), ctypes.c_int64(size), ctypes.c_uint(_WRITE_BACK))
        _libc().sync_file_range(descriptor, *arguments)

    def detach(self) -> None:
        """Unmount if need be, even while files are open, and free the device."""
        with suppress(OSError):
            unmount(self.place, at_once=True)
        subprocess.run(["losetup", "--detach", self._device], check=True)


@contextmanager
def loop(folder: Path, kind: str) -> Iterator[Loop]:
    """Hold a :class:`Loop` that is gone afterwards, also when a test fails.

    Skips the test where there is no loop device, or this kernel does not support the *kind*. With
    ``CI`` set, only the latter is a reason.
    """
    with memory(folder / "memory", 2 * SIZE):
        try:
            made = Loop(folder / "memory", kind)
        except subprocess.CalledProcessError as error:
            cannot_run(f"NOT RUN: {error}")
        try:
            _try(made)
            yield made
        finally:
            made.detach()


def _try(made: Loop) -> None:
    try:
        made.mount()
        made.unmount()
    except OSError as error:
        reason = f"NOT RUN: {made.kind} cannot be mounted here: {error}"
        if error.errno == errno.ENODEV:
            pytest.skip(reason)
        cannot_run(reason)


@contextmanager
def memory(place: Path, size: int) -> Iterator[None]:
    """Hold a file system of *size* bytes in memory at *place*."""
    place.mkdir()
    mount("tmpfs", place, "tmpfs", f"size={size}")
    try:
        yield
    finally:
        unmount(place, at_once=True)


def mount(source: str, place: Path, kind: str, options: str) -> None:
    """Mount *source* at *place*."""
    names = [os.fsencode(each) for each in (source, place, kind)]
    _check(_libc().mount(*names, 0, options.encode()), "mount", place)


def unmount(place: Path, *, at_once: bool = False) -> None:
    """Unmount. Every file must be closed, or (*at_once*) it is done when the last one is."""
    _check(_libc().umount2(os.fsencode(place), _DETACH if at_once else 0), "umount", place)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str, place: Path) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}", str(place))


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
