"""Journals of a storm: lines of JSON that several processes append to, and one reads."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Journal:
    """Appends to one file, each line by one call, so lines never mix. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def write(self, **fields: Any) -> None:
        """Append one line, with the monotonic time ``t`` that all processes share."""
        line = json.dumps({"t": time.monotonic(), **fields}, separators=(",", ":"), default=str)
        # The leading newline keeps a line that a kill has torn from spoiling this one.
        os.write(self._descriptor, b"\n" + line.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class Follower:
    """Reads the lines appended to a journal since the last read."""

    def __init__(self, path: Path) -> None:
        self._path, self._byte = path, 0

    def news(self) -> Iterator[dict[str, Any]]:
        """Yield each line that was completed since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._byte)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._byte += len(line)
                if (found := whole(line)) is not None:
                    yield found


def whole(line: bytes) -> dict[str, Any] | None:
    """Return the content of a journal's *line*, or ``None`` if it is empty or torn."""
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return found


class Switch:
    """A small JSON value in a file, which one process sets and others read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[int, Any] = (0, None)

    def set(self, value: Any) -> None:
        """Publish *value* to all processes from now on."""
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}.draft")
        draft.write_text(json.dumps(value))
        draft.replace(self._path)

    def get(self) -> Any:
        """Return the value, or ``None`` before the first."""
        try:
            stamp = os.stat(self._path)  # noqa: PTH116 - looked at before every call of a sink
        except FileNotFoundError:
            return None
        mark = stamp.st_mtime_ns ^ stamp.st_ino
        if self._known[0] != mark:
            self._known = mark, json.loads(self._path.read_text())
        return self._known[1]
