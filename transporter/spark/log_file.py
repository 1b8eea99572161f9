"""The log file of Spark and its workers, kept within a size while they run."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

MOST: Final = 10 << 20
"""Bytes above which the file is truncated, and the most that is kept of it."""

_TAIL: Final = 64 << 10
_ERROR: Final = re.compile(rb"^\S+ \S+ ERROR (\w+): (.{1,500})", re.MULTILINE)
_NOT_LET_IN: Final = b"Exception while bootstrapping client"
_LOOK_AT: Final = (
    "; a connection was refused: the cluster needs the same spark.authenticate.secret as the "
    "pipeline file, and the same encryption, see docs/cluster.md"
)


def rotate(path: Path, most: int = MOST) -> None:
    """Truncate *path* if it is longer than *most*, after copying its end to ``<path>.1``.

    Its writers keep it open for appending, so it is truncated and not moved. Text that they
    write between the copy and the truncation is lost.
    """
    try:
        size = path.stat().st_size
    except OSError:
        return
    if size <= most:
        return
    # A full disk must not prevent the truncation.
    with suppress(OSError):
        _copy_tail(path, size - most, most)
    with suppress(OSError):
        os.truncate(path, 0)


def last_error(path: Path) -> str:
    """Return the last error that Spark has written to *path*, or an empty text without one.

    A scheduler error takes precedence: it ended Spark, and later errors are consequences.
    If the cluster refused a connection, the text names the settings to check.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            tail = file.read(_TAIL)
            found: list[tuple[bytes, bytes]] = _ERROR.findall(tail)
    except OSError:
        return ""
    ending = [text for logger, text in found if b"Scheduler" in logger]
    others = [text for _, text in found]
    text = (ending or others or [b""])[-1].decode(errors="replace")
    return f"{text}{_LOOK_AT}" if _NOT_LET_IN in tail else text


def _copy_tail(path: Path, start: int, count: int) -> None:
    with path.open("rb") as file:
        file.seek(start)
        end = file.read(count)
    kept = os.open(f"{path}.1", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(kept, "wb") as file:
        file.write(end)
