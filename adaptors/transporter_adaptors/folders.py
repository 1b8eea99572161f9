"""Checks that a file or a folder can be made at the path in a writer's settings."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from transporter.adaptor import Finding

if TYPE_CHECKING:
    from pathlib import Path


def check_writable(path: Path) -> Finding:
    """Report whether *path*, which may not exist yet, can be written, and the room left there."""
    nearest = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if nearest != path and not nearest.is_dir():
        return Finding(f"{path}: {nearest} is not a directory", "problem")
    if not os.access(nearest, os.W_OK | (os.X_OK if nearest.is_dir() else 0)):
        who = f"this user (id {os.geteuid()})"
        return Finding(f"{path}: {who} may not write {nearest}", "problem")
    state = "exists" if nearest == path else "does not exist yet"
    room = shutil.disk_usage(nearest if nearest.is_dir() else nearest.parent).free
    return Finding(f"{path}: {state}, may be written; {room / 2**30:.1f} GiB free")
