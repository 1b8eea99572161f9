"""A disk in memory that may lose, reorder, tear or garble any change that no sync has covered.

The most hostile reading of POSIX that a log can still be built on:

- ``sync`` makes a file's bytes and length durable, not its name
- ``sync_directory`` makes the names in one directory durable, not the files they name
- of everything else any part may be on the disk after a power cut, see :mod:`disks.crashes`
- a sync that fails drops the bytes it should have written: they stay readable, and no later
  sync writes them ("fsyncgate"), unless they are written again

A write never changes bytes beside its own, not even when power fails: the log promises nothing on a
disk that garbles neighbours.
"""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

KEPT: Final = 16
"""Unsynced changes of a file that are tracked singly. Older ones have reached the disk."""
SITE_DEPTH: Final = 3
"""Functions outside ``filesystem.py`` that name the call site of a sync, at most."""
SEAM_USERS: Final = ("log", "offsets")
"""The packages whose functions count, because only they call sync."""

Tree = dict[str, Any]
"""Contents of a disk: the bytes of a file or the tree of a directory, by name."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change to the bytes ``start`` to ``end`` of a file, with ``data`` except for a resize."""

    start: int
    end: int
    data: bool


@dataclass(slots=True, eq=False)
class Inode:
    """A file: the content that programs read, and the possible stages on the disk.

    ``stages[0]`` is durable. ``changes[n]`` leads from ``stages[n]`` to the next.
    """

    stages: list[bytes]
    cached: bytes
    changes: list[Change] = field(default_factory=list)

    def write(self, data: bytes, byte: int) -> None:
        """Put *data* at *byte*."""
        change = Change(byte, byte + len(data), data=True)
        self._apply(change, lambda content: _written(content, data, byte))

    def resize(self, size: int) -> None:
        """Cut to *size* bytes or extend with zeros."""
        low, high = sorted((size, len(self.cached)))
        if low < high:
            change = Change(low, high, data=False)
            self._apply(change, lambda content: content[:size].ljust(size, b"\0"))

    def settle(self) -> None:
        """Make all written data durable."""
        self.stages, self.changes = [self.stages[-1]], []

    def forget(self) -> None:
        """Drop changes that are not durable, as a failed sync does. Programs still read them."""
        self.stages, self.changes = [self.stages[0]], []

    def _apply(self, change: Change, alter: Callable[[bytes], bytes]) -> None:
        known = self.cached is self.stages[-1]
        self.cached = alter(self.cached)
        self.stages.append(self.cached if known else alter(self.stages[-1]))
        self.changes.append(change)
        if len(self.changes) > KEPT:
            del self.stages[0], self.changes[0]


def _written(content: bytes, data: bytes, byte: int) -> bytes:
    return content[:byte].ljust(byte, b"\0") + data + content[byte + len(data) :]


@dataclass(frozen=True, slots=True, eq=False)
class Naming:
    """A creation, removal or rename in one directory: the nodes that the names have afterwards."""

    what: str
    names: dict[str, Inode | Folder | None]


@dataclass(slots=True, eq=False)
class Folder:
    """A directory: the names that programs see, the durable ones, and the changes between."""

    entries: dict[str, Inode | Folder] = field(default_factory=dict)
    durable: dict[str, Inode | Folder] = field(default_factory=dict)
    pending: list[Naming] = field(default_factory=list)

    def apply(self, naming: Naming) -> None:
        """Change the names, durable after the next sync."""
        rename(self.entries, naming)
        self.pending.append(naming)

    def settle(self) -> None:
        """Make the names durable."""
        self.durable, self.pending = dict(self.entries), []


def rename(entries: dict[str, Inode | Folder], naming: Naming) -> None:
    """Apply *naming* to *entries*."""
    for name, node in naming.names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _nothing(_: str) -> None:
    """Watch nothing."""


class SimulatedDisk:
    """A ``FileSystem`` in memory, for one thread.

    ``before`` and ``after`` are called around every call that changes something, with a line that
    describes it. ``drops`` returns for a sync's call site whether that sync silently does nothing.
    ``fails`` returns the error that it fails with, if any. ``sites`` collects the call sites when
    it is a set.
    """

    def __init__(self, tree: Tree | None = None) -> None:
        """Hold the content of *tree*, all of it durable."""
        self.root = _planted(tree or {})
        self.before: Callable[[str], None] = _nothing
        self.after: Callable[[str], None] = _nothing
        self.drops: Callable[[str], bool] | None = None
        self.fails: Callable[[str], OSError | None] | None = None
        self.sites: set[str] | None = None
        self.latest: Inode | None = None
        self._known: dict[str, Folder] = {}

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> _Handle:
        """Open *path*. An absent file is created in the directory that programs see."""
        folder, name = self._place(path)
        node = folder.entries.get(name)
        if node is None and create:
            node = Inode([b""], b"")
            self._name(folder, f"create {path}", {name: node})
        if isinstance(node, Folder):
            raise _error(errno.EISDIR, path)
        if node is None:
            raise _error(errno.ENOENT, path)
        return _Handle(self, node, str(path), writable=write or create)

    def rename(self, source: Path, target: Path) -> None:
        """Replace *target* by *source*, both in one directory."""
        folder, old = self._place(source)
        other, new = self._place(target)
        node, replaced = folder.entries.get(old), other.entries.get(new)
        if node is None:
            raise _error(errno.ENOENT, source)
        if folder is not other:
            raise _error(errno.EXDEV, target)
        if isinstance(replaced, Folder) and (replaced.entries or isinstance(node, Inode)):
            raise _error(errno.ENOTEMPTY, target)
        self._name(folder, f"rename {source} to {target.name}", {old: None, new: node})

    def remove(self, path: Path) -> None:
        """Remove the file *path* if it is there."""
        try:
            folder, name = self._place(path)
        except FileNotFoundError:
            return
        if isinstance(folder.entries.get(name), Folder):
            raise _error(errno.EISDIR, path)
        if name in folder.entries:
            self._name(folder, f"remove {path}", {name: None})

    def names(self, directory: Path) -> list[str]:
        """Return the sorted names that programs see in *directory*."""
        try:
            return sorted(self._folder(directory).entries)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def is_directory(self, path: Path) -> bool:
        """Return true if *path* is a directory."""
        try:
            self._folder(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_file(self, path: Path) -> bool:
        """Return true if *path* is a file."""
        return self.inode_at(path) is not None

    def inode_at(self, path: Path) -> Inode | None:
        """Return the file that *path* names, or ``None`` when there is none."""
        try:
            folder, name = self._place(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        found = folder.entries.get(name)
        return found if isinstance(found, Inode) else None

    def create_directory(self, directory: Path) -> None:
        """Create *directory* if it is absent."""
        folder, name = self._place(directory)
        if name not in folder.entries:
            self._name(folder, f"create {directory}/", {name: Folder()})
        elif isinstance(folder.entries[name], Inode):
            raise _error(errno.EEXIST, directory)

    def remove_directory(self, directory: Path) -> None:
        """Remove the empty *directory*."""
        if self._folder(directory).entries:
            raise _error(errno.ENOTEMPTY, directory)
        folder, name = self._place(directory)
        self._name(folder, f"remove {directory}/", {name: None})

    def sync_directory(self, directory: Path) -> None:
        """Make the names in *directory* durable."""
        folder = self._folder(directory)
        self.sync(f"sync_directory {directory}", "sync_directory", folder.settle, _kept)

    def free_bytes(self, directory: Path) -> int:
        """Return a size with room for all writes of a test."""
        return 1 << 50 if self.is_directory(directory) else 0

    def change(self, what: str, act: Callable[[], None]) -> None:
        """Do *act*, calling the watchers before and after."""
        self.before(what)
        act()
        self.after(what)

    def sync(
        self, what: str, kind: str, settle: Callable[[], None], forget: Callable[[], None]
    ) -> None:
        """Do *settle*, unless the sync's call site has it dropped or failing."""
        self.before(what)
        site = "" if self.sites is self.drops is self.fails is None else f"{kind} {_site()}"
        if self.sites is not None:
            self.sites.add(site)
        error = self.fails(site) if self.fails else None
        if error is not None:
            forget()
            self.after(f"{what}: fails")
            raise error
        if self.drops is None or not self.drops(site):
            settle()
        self.after(what)

    def content(self, path: Path) -> bytes:
        """Return the content of the file *path* as programs read it."""
        folder, name = self._place(path)
        node = folder.entries.get(name)
        if not isinstance(node, Inode):
            raise _error(errno.ENOENT, path)
        return node.cached

    def _name(self, folder: Folder, what: str, names: dict[str, Inode | Folder | None]) -> None:
        self._known.clear()
        self.change(what, lambda: folder.apply(Naming(what, names)))

    def _folder(self, path: Path) -> Folder:
        return self._folder_at(str(path))

    def _folder_at(self, text: str) -> Folder:
        known = self._known.get(text)
        if known is not None:
            return known
        node: Inode | Folder = self.root
        for name in text.split("/"):
            if name and isinstance(node, Folder):
                if name not in node.entries:
                    raise _error(errno.ENOENT, text)
                node = node.entries[name]
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, text)
        self._known[text] = node
        return node

    def _place(self, path: Path) -> tuple[Folder, str]:
        folder, _, name = str(path).rpartition("/")
        return self._folder_at(folder), name


class _Handle:
    """An open file of a simulated disk."""

    def __init__(self, disk: SimulatedDisk, inode: Inode, name: str, *, writable: bool) -> None:
        self._disk, self._inode, self._name = disk, inode, name
        self._writable, self._open = writable, True

    def pread(self, size: int, byte: int) -> bytes:
        self._usable()
        return self._inode.cached[byte : byte + size]

    def pread_into(self, buffer: memoryview, byte: int) -> int:
        found = self.pread(len(buffer), byte)
        buffer[: len(found)] = found
        return len(found)

    def pwrite(self, data: bytes, byte: int) -> None:
        self._usable(write=True)
        whole = bytes(data)
        self._change(f"write {len(whole)} at {byte}", lambda: self._inode.write(whole, byte))

    def size(self) -> int:
        self._usable()
        return len(self._inode.cached)

    def truncate(self, size: int) -> None:
        self._usable(write=True)
        self._change(f"truncate to {size}", lambda: self._inode.resize(size))

    def allocate(self, byte: int, size: int) -> None:
        self._usable(write=True)
        end = max(byte + size, len(self._inode.cached))
        self._change(f"allocate to {end}", lambda: self._inode.resize(end))

    def sync(self) -> None:
        self._usable()
        inode = self._inode
        self._disk.sync(f"{self._name}: sync", "sync", inode.settle, inode.forget)

    def is_at(self, path: Path) -> bool:
        return self._disk.inode_at(path) is self._inode

    def close(self) -> None:
        self._open = False

    def _change(self, what: str, act: Callable[[], None]) -> None:
        self._disk.change(f"{self._name}: {what}", act)
        self._disk.latest = self._inode

    def _usable(self, *, write: bool = False) -> None:
        if not self._open or (write and not self._writable):
            raise _error(errno.EBADF, self._name)


def _kept() -> None:
    """Leave the names as they are after a failed directory sync: each may be durable or not."""


def _error(number: int, path: Path | str) -> OSError:
    return OSError(number, os.strerror(number), str(path))


def copied(tree: Tree) -> Tree:
    """Return *tree* with folders of its own."""
    return {name: copied(node) if isinstance(node, dict) else node for name, node in tree.items()}


def _planted(tree: Tree) -> Folder:
    nodes: dict[str, Inode | Folder] = {
        name: Inode([node], node) if isinstance(node, bytes) else _planted(node)
        for name, node in tree.items()
    }
    return Folder(nodes, dict(nodes))


def _site() -> str:
    """Name the call site of a sync: the lines of ``filesystem.py``, and their callers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    chain: list[str] = []
    depth = 0
    while frame is not None and depth < SITE_DEPTH:
        path = Path(frame.f_code.co_filename)
        if path.parent.name not in SEAM_USERS:
            break
        seam = path.name == "filesystem.py"
        line = f"+{frame.f_lineno - frame.f_code.co_firstlineno}" if seam else ""
        chain.append(f"{path.stem}.{frame.f_code.co_name}{line}")
        depth += not seam
        frame = frame.f_back
    return " < ".join(chain)
