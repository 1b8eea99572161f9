"""The seam to the disk as the only one: a gate over the names used in ``log`` and ``offsets``.

Crash tests replace :mod:`transporter.log.filesystem` by a disk that loses power. They
prove nothing about calls that bypass it. So the gate allows a list of harmless names and
reports every other one.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import transporter

if TYPE_CHECKING:
    from collections.abc import Iterator


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PACKAGE: Final = Path(transporter.__file__).parent
FOLDERS: Final = ("log", "offsets")
SEAMS: Final = {
    "log/filesystem.py": "the seam itself",
    "log/lock.py": "flock, which only the real system has; it keeps nothing that must survive",
}
JUSTIFIED: Final = {
    ("audit.py", "import os"): "only to tell who the user is",
    ("audit.py", "import pwd"): "only to tell who the user is",
    ("audit.py", "import pathlib"): "only for /proc",
    ("audit.py", ".read_text"): "of /proc, to tell who has logged in",
    ("log/export.py", "import pyarrow.parquet"): "writes into a sink in memory, never by a name",
}
"""The reported names that may stay, each with its reason."""
HARMLESS: Final = _words(
    """
    __future__ abc bisect collections contextlib copy crc32c datetime dataclasses enum errno
    functools getpass hashlib heapq itertools json math operator pyarrow re secrets struct
    threading time types typing uuid
    """
)
"""Modules without files, or (getpass, secrets, time, uuid) with none of a user's."""
OURS: Final = "transporter."
SEAM_NAMES: Final = ("files", "_files")
"""The names of a :class:`FileSystem` in the code: its ``open`` and ``rename`` are allowed."""
PATH_METHODS: Final = _words(
    """
    absolute chmod copy copy_into cwd exists expanduser glob group hardlink_to home
    is_block_device is_char_device is_dir is_fifo is_file is_junction is_mount is_socket
    is_symlink iterdir lchmod link_to lstat mkdir move move_into open owner read_bytes read_text
    readlink rename replace resolve rglob rmdir samefile stat symlink_to touch unlink walk
    write_bytes write_text
    """
)
"""Methods of a :class:`Path` that read or change the disk."""
ARROW_FILES: Final = _words(
    """
    FileSystem LocalFileSystem MemoryMappedFile NativeFile OSFile create_memory_map csv dataset
    feather fs input_stream memory_map open_csv open_file orc output_stream parquet
    """
)
"""The parts of pyarrow that open files by name."""
BUILTINS: Final = frozenset({"open", "exec", "eval", "compile", "__import__", "input"})


def touches(source: str) -> list[str]:
    """Return the nodes of *source* that can reach the disk past the seam, with their lines."""
    tree = ast.parse(source)
    passed = _only_for_types(tree) | _given_the_seam(tree)
    return [
        f"{getattr(node, 'lineno', 0)}: {what}"
        for node in ast.walk(tree)
        if id(node) not in passed
        for what in _reported(node)
    ]


def _reported(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (f"import {each.name}" for each in names if not _is_harmless(each.name))
        case ast.ImportFrom(module=module, level=level, names=names):
            if level or not _is_harmless(module or ""):
                yield f"import {'.' * level}{module}"
            # A harmless module's own imports are not a way round either.
            yield from (f"{module}.{each.name}" for each in names if _is_disguised(module, each))
        case ast.Attribute(value=value, attr=attr) if not _is_seam(value):
            if attr in PATH_METHODS | ARROW_FILES:
                yield f".{attr}"
        case ast.Name(id=name) if name in BUILTINS:
            yield name


def _only_for_types(tree: ast.Module) -> set[int]:
    """Return the imports below ``if TYPE_CHECKING``, which are absent at run time."""
    return {
        id(each)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        for each in ast.walk(statement)
    }


def _is_harmless(module: str) -> bool:
    first, *rest = module.split(".")
    opens_files = first == "pyarrow" and not ARROW_FILES.isdisjoint(rest)
    return module.startswith(OURS) or (first in HARMLESS and not opens_files)


def _is_disguised(module: str | None, name: ast.alias) -> bool:
    """Return whether a name is a re-exported module or a file function of Arrow."""
    stray = name.name in {"os", "io", "shutil", "tempfile", "mmap", "glob", "fcntl", "pathlib"}
    return stray or ((module or "").startswith("pyarrow") and name.name in ARROW_FILES)


def _is_seam(value: ast.expr) -> bool:
    match value:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(), attr=name):
            return name in SEAM_NAMES
    # ``(files or RealFileSystem()).names(...)`` is the seam as well.
    return isinstance(value, ast.BoolOp) and _is_seam(value.values[0])


def _given_the_seam(tree: ast.Module) -> set[int]:
    """Return the ``open`` calls with the seam as an argument: ``part.open(files)``."""
    calls = [call for call in ast.walk(tree) if isinstance(call, ast.Call)]
    return {
        id(call.func)
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "open"
        and any(_is_seam(argument) for argument in call.args)
    }


def modules() -> list[Path]:
    """Return the modules that must keep to the seam."""
    inside = (path for folder in FOLDERS for path in sorted((PACKAGE / folder).rglob("*.py")))
    return [path for path in (PACKAGE / "audit.py", *inside) if _name(path) not in SEAMS]


def _name(module: Path) -> str:
    return str(module.relative_to(PACKAGE))


@pytest.mark.parametrize("module", modules(), ids=_name)
def test_nothing_else_touches_files(module: Path) -> None:
    """Every other module of the log and the offset logs reaches the disk by the seam alone."""
    name = _name(module)
    found = [(name, what.partition(": ")[2]) for what in touches(module.read_text())]
    assert [each for each in found if each not in JUSTIFIED] == []


def test_every_module_is_looked_at() -> None:
    """The gate covers both packages, and the exceptions are existing files."""
    seen = set(map(_name, modules()))
    assert {"audit.py", "log/commit_log.py", "log/recovery.py", "log/meta.py"} <= seen
    assert {"offsets/offset_log.py", "offsets/parked.py"} <= seen
    assert all((PACKAGE / name).is_file() for name in SEAMS)
    assert not seen & SEAMS.keys()


def test_the_exceptions_would_be_reported() -> None:
    """The seam and the lock are exceptions, because the gate would report them."""
    for name in (*SEAMS, *(module for module, _ in JUSTIFIED)):
        assert touches((PACKAGE / name).read_text()) != []


@pytest.mark.parametrize(
    "snippet",
    [
        "import os",
        "import os.path",
        "import io, json",
        "import shutil as s",
        "import tempfile",
        "import mmap",
        "import glob",
        "import fcntl",
        "import posix",
        "import sqlite3",
        "import ctypes",
        "import subprocess",
        "import importlib",
        "from os import path",
        "from os.path import exists",
        "from pathlib import Path",
        "from . import filesystem",
        "def f():\n    import os",
        "from transporter.log.filesystem import os",
        "from pyarrow import fs",
        "import pyarrow.fs as disk",
        "from pyarrow.parquet import read_table",
        "import pyarrow as pa\npa.OSFile('x')",
        "pa.memory_map(name)",
        "pa.parquet.read_table(name)",
        "open('x')",
        "with open(path) as file:\n    pass",
        "look = open",
        "__import__('os')",
        "exec(text)",
        "path.open()",
        "self.path.open('rb')",
        "path.read_bytes()",
        "path.write_bytes(b'')",
        "path.read_text()",
        "path.write_text('')",
        "path.exists()",
        "(directory / name).is_dir()",
        "path.is_file()",
        "path.stat().st_size",
        "path.unlink(missing_ok=True)",
        "path.unlink(files)",
        "path.mkdir()",
        "path.rmdir()",
        "path.replace(other)",
        "path.rename(other)",
        "list(path.iterdir())",
        "path.glob('*')",
        "path.rglob('*')",
        "path.touch()",
        "path.resolve()",
        "remove = path.unlink",
        "map(type(path).exists, paths)",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import os",
    ],
)
def test_a_way_past_the_seam_is_reported(snippet: str) -> None:
    """Each way to a file that bypasses the seam is reported."""
    assert touches(snippet) != []


@pytest.mark.parametrize(
    "snippet",
    [
        "from transporter.log.filesystem import RealFileSystem, open_file",
        "if TYPE_CHECKING:\n    from pathlib import Path\n    import os",
        "files.open(path, write=True)",
        "self._files.rename(one, other)",
        "(files or RealFileSystem()).rename(one, other)",
        "path.with_name(path.name + '.tmp')",
        "directory / 'meta'",
        "replace(header, byte=7)",
        "part.open(self._files)",
        "pa.ipc.new_stream(sink, schema)",
        "import pyarrow.compute as pc",
        "from collections.abc import Iterator",
    ],
)
def test_what_touches_no_file_is_not_reported(snippet: str) -> None:
    """The seam's own calls and plain values are not reported."""
    assert touches(snippet) == []
