"""The audit file of a route: what operators did, who, when and why."""

from __future__ import annotations

import json
import os
import pwd
import time
from typing import TYPE_CHECKING, Any

from transporter.log.filesystem import faults_of, opened, sync, sync_directory

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.log.filesystem import FileSystem


def user_name(uid: int) -> str:
    """Return the name of the system's user *uid*, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def write_down(files: FileSystem, path: Path, action: str, details: dict[str, Any]) -> None:
    """Append one line to the audit file at *path*; durable on return. Not thread-safe."""
    who = {} if "who" in details else {"who": user_name(os.getuid())}
    entry = {"at": time.time(), **who, "action": action, **details}
    with faults_of(path):
        with opened(files, path, write=True, create=True) as file:
            end = file.size()
            # A line that a crash tore must not take this one with it.
            torn = end > 0 and file.pread(1, end - 1) != b"\n"
            file.pwrite(b"\n" * torn + json.dumps(entry).encode() + b"\n", end)
            sync(file)
        sync_directory(files, path.parent)
