"""The file writer facing a file that has changed since its last slice."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c
from file_sink import EndingDisk, Engine, Killed, aside, line
from root_tools import cannot_run

from transporter.errors import RouteFault, SinkUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file that does not exist yet."""
    return tmp_path / "out.jsonl"


def test_what_others_appended_is_moved_aside(path: Path) -> None:
    """Lines of other programs are copied to a file of their own, then cut off."""
    engine = Engine(path)
    engine.start()
    engine.deliver(3)
    for text in (b"theirs\n", b"again"):
        with path.open("ab") as file:
            file.write(text)
        engine.deliver(3)
    engine.stop()

    assert path.read_bytes() == engine.expected()
    assert aside(path.parent) == [b"theirs\n", b"again"]


def test_what_only_looks_like_a_slice_is_moved_aside(path: Path) -> None:
    """Foreign bytes are kept aside even if they are as long as the unfinished slice."""
    engine = Engine(path)
    disk = EndingDisk()
    engine.start(disk)
    engine.deliver(2)
    disk.at = disk.calls + 2
    with pytest.raises(Killed):
        engine.deliver(1)
    engine.stop()
    theirs = b"y" * len(line(3)) + b"\n"
    with path.open("ab") as file:
        file.write(theirs)
    engine.finish()

    assert path.read_bytes() == engine.expected()
    assert aside(path.parent) == [theirs]


def test_a_file_that_is_too_short_is_refused(path: Path) -> None:
    """A file without all acknowledged lines stops the route, which reports both sizes."""
    engine = Engine(path)
    engine.start()
    engine.deliver(9)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 5)

    assert not engine.deliver(1)
    engine.stop()
    with pytest.raises(RouteFault, match=rf"has {size - 5} bytes, and {size} were written"):
        engine.start()
    engine.stop()
    path.rename(path.with_suffix(".damaged"))
    engine.finish()

    assert path.read_bytes() == b"".join(line(n) + b"\n" for n in range(10, 41))


def test_an_emptied_file_is_begun_again(path: Path) -> None:
    """A file that was cut to nothing, as by copytruncate, is written from its beginning."""
    engine = Engine(path, total=8)
    engine.start()
    engine.deliver(4)
    path.write_bytes(b"")
    engine.deliver(2)
    engine.stop()
    engine.finish()

    assert path.read_bytes() == b"".join(line(n) + b"\n" for n in range(5, 9))


@pytest.mark.parametrize("running", [True, False])
def test_a_rotated_file_is_left_alone(path: Path, running: bool) -> None:
    """After a rename the next lines go to a new file and nothing is repeated."""
    engine = Engine(path, total=8)
    engine.start()
    engine.deliver(4)
    before = path.read_bytes()
    if not running:
        engine.stop()
    path.rename(path.with_suffix(".1"))
    if not running:
        engine.start()
    engine.deliver(4)
    engine.stop()

    assert path.with_suffix(".1").read_bytes() == before
    assert path.read_bytes() == b"".join(line(n) + b"\n" for n in range(5, 9))


def test_a_file_that_took_the_place_is_appended_to(path: Path) -> None:
    """Another file under the name is kept whole, and its broken last line is ended."""
    engine = Engine(path, total=6)
    engine.start()
    engine.deliver(4)
    engine.stop()
    other = path.with_suffix(".new")
    other.write_bytes(b"x" * 5000)
    other.rename(path)
    engine.finish()

    assert path.read_bytes() == b"x" * 5000 + b"\n" + b"".join(line(n) + b"\n" for n in (5, 6))
    assert not aside(path.parent)


def test_a_file_with_the_same_inode_is_known_by_its_end(path: Path) -> None:
    """A file that was rewritten in its place, and is longer, loses nothing."""
    engine = Engine(path, total=6)
    engine.start()
    engine.deliver(4)
    engine.stop()
    path.write_bytes(b"edited\n" * 100)
    engine.finish()

    assert path.read_bytes() == b"edited\n" * 100 + line(5) + b"\n" + line(6) + b"\n"


def test_a_lost_progress_file_is_made_again(path: Path) -> None:
    """Without its progress file a file counts as found, and lines are appended to it."""
    engine = Engine(path, total=8)
    engine.start()
    engine.deliver(4)
    path.with_name("out.jsonl.progress").unlink()
    engine.deliver(2)
    engine.stop()
    engine.finish()

    assert path.read_bytes() == engine.expected()


def test_a_folder_that_disappears_is_waited_for(tmp_path: Path) -> None:
    """It may be that of a disk, so nothing is written in its place until it is back."""
    folder = tmp_path / "mounted"
    engine = Engine(folder / "out.jsonl")
    engine.start()
    engine.deliver(3)
    folder.rename(tmp_path / "away")
    assert not engine.deliver(1)
    assert not engine.deliver(1)
    assert not folder.exists()
    (tmp_path / "away").rename(folder)
    assert engine.deliver(1)
    engine.stop()
    assert (folder / "out.jsonl").read_bytes() == engine.expected()


def test_a_folder_that_disappears_in_the_midst_of_a_slice_is_waited_for(tmp_path: Path) -> None:
    """It is the same outage a moment later, and not a fault of the settings."""
    folder = tmp_path / "mounted"

    class Unmounting(EndingDisk):
        armed = False

        def status(self, path: Path) -> os.stat_result | None:
            found = super().status(path)
            if self.armed:
                self.armed = False
                folder.rename(tmp_path / "away")
            return found

    engine, disk = Engine(folder / "out.jsonl"), Unmounting()
    engine.start(disk)
    engine.deliver(3)
    disk.armed = True
    assert not engine.deliver(1)
    assert isinstance(engine.failures[-1], SinkUnavailable)
    (tmp_path / "away").rename(folder)
    assert engine.deliver(1)
    engine.stop()
    assert (folder / "out.jsonl").read_bytes() == engine.expected()


class StaleDisk(EndingDisk):
    """A disk whose descriptors may fail for ever from a moment on, though its paths do not."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.stale, self.opened = 0, set[int](), set[int]()

    def expire(self, code: int) -> None:
        """Have all calls on the descriptors of this moment fail with *code*."""
        self.code, self.stale = code, set(self.opened)

    def open(self, path: Path, flags: int) -> int:
        descriptor = super().open(path, flags)
        self.opened.add(descriptor)
        self.stale.discard(descriptor)
        return descriptor

    def read(self, descriptor: int, size: int, byte: int) -> bytes:
        self._check(descriptor)
        return super().read(descriptor, size, byte)

    def append(self, descriptor: int, text: memoryview) -> int:
        self._check(descriptor)
        return super().append(descriptor, text)

    def write_at(self, descriptor: int, text: bytes, byte: int) -> None:
        self._check(descriptor)
        super().write_at(descriptor, text, byte)

    def truncate(self, descriptor: int, length: int) -> None:
        self._check(descriptor)
        super().truncate(descriptor, length)

    def sync(self, descriptor: int) -> None:
        self._check(descriptor)
        super().sync(descriptor)

    def _check(self, descriptor: int) -> None:
        if descriptor in self.stale:
            raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize("settings", [{}, {"roll_bytes": 100}])
@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO])
@pytest.mark.parametrize("which", ["both", "file"])
def test_descriptors_that_fail_for_ever_are_opened_again(
    path: Path, code: int, which: str, settings: dict[str, int]
) -> None:
    """A server of files that has restarted costs one try, and each line is there once."""
    engine, disk = Engine(path, settings), StaleDisk()
    engine.start(disk)
    engine.deliver(3)
    disk.expire(code)
    if which == "file":
        disk.stale.discard(min(disk.stale))  # that of the progress, which is opened first

    assert not engine.deliver(2)

    assert isinstance(engine.failures[-1], SinkUnavailable)
    assert engine.deliver(2)
    engine.stop()
    engine.finish()
    files = sorted(path.parent.glob("out*.jsonl"))
    assert b"".join(each.read_bytes() for each in files) == engine.expected()
    assert not aside(path.parent)


@pytest.mark.parametrize("settings", [{}, {"roll_bytes": 100}])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_commit_that_cannot_be_taken_back_is_not_repeated(
    path: Path, settings: dict[str, int], size: int
) -> None:
    """If the progress fails to be synced, and all else from then on, its lines are kept."""

    class Expiring(StaleDisk):
        syncs = -1

        def sync(self, descriptor: int) -> None:
            self.syncs -= 1
            if not self.syncs:
                self.expire(errno.EIO)
            super().sync(descriptor)

    engine, disk = Engine(path, {"exact_after": "power-cut", **settings}), Expiring()
    engine.start(disk)
    engine.deliver(3)
    disk.syncs = 2  # first the lines, then the progress

    assert not engine.deliver(2)

    assert engine.deliver(size)
    assert engine.deliver(size)
    engine.stop()
    engine.finish()
    files = sorted(path.parent.glob("out*.jsonl"))
    assert b"".join(each.read_bytes() for each in files) == engine.expected()
    assert not aside(path.parent)


def test_a_full_table_of_descriptors_is_waited_for(path: Path) -> None:
    """A process that cannot open its file again halts no route (Invariant 14)."""
    engine = Engine(path)
    engine.start()
    engine.deliver(3)
    path.rename(path.with_suffix(".1"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert not engine.deliver(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert isinstance(engine.failures[-1], SinkUnavailable)
    assert engine.deliver(1)
    engine.stop()
    assert path.read_bytes() == line(4) + b"\n"


@contextmanager
def another_disk(folder: Path) -> Iterator[None]:
    """Mount another file system over *folder*, with files of the same names and inode numbers."""
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    inodes = {each.name: each.stat().st_ino for each in folder.iterdir()}
    mount_memory(folder)
    try:
        for name in sorted(inodes, key=inodes.__getitem__):
            shutil.copyfile(copy / name, folder / name)
        if inodes != {each.name: each.stat().st_ino for each in folder.iterdir()}:
            cannot_run("a file system in memory numbers its inodes differently here")
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mount_memory(folder: Path) -> None:
    """Mount a file system in memory at *folder*, if this machine lets a test do so."""
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        cannot_run("a test may not mount a file system here")


def test_a_file_system_that_takes_the_place_is_noticed(tmp_path: Path) -> None:
    """Files of another disk may have the same inode numbers, and are not those that are open."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    mount_memory(folder)
    try:
        engine = Engine(folder / "out.jsonl")
        engine.start()
        engine.deliver(3)
        with another_disk(folder):
            delivered = engine.deliver(2)
            engine.stop()
            assert delivered
            assert (folder / "out.jsonl").read_bytes() == engine.expected()
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("harm", ["damaged", "version"])
def test_progress_that_cannot_be_read_is_refused(path: Path, harm: str) -> None:
    """A damaged progress file, or one of another version, stops the route with its name."""
    engine = Engine(path)
    engine.start()
    engine.deliver(4)
    engine.stop()
    progress = path.with_name("out.jsonl.progress")
    if harm == "damaged":
        progress.write_bytes(b"\xff" * progress.stat().st_size)
    else:
        progress.write_bytes(of_another_version(progress.read_bytes()))

    with pytest.raises(RouteFault, match=r"out\.jsonl\.progress .*move it away"):
        engine.start()
    engine.stop()
    progress.unlink()
    engine.finish()

    assert path.read_bytes() == engine.expected()


def of_another_version(content: bytes) -> bytes:
    """Return a progress file as a later version might write it."""
    text = json.dumps({"version": 2, "turn": 99, "more": []}).encode()
    return (b"%08x %b\n" % (crc32c(text), text)).ljust(8192) + content[8192:]
