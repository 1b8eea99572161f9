"""Points at which an engine of ``leader_tools`` exits abruptly, for tests of the remains."""

from __future__ import annotations

import functools
import json
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from transporter_adaptors.postgres.outbox import Outbox

from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import _RealFile
from transporter.offsets.offset_log import OffsetLog

if TYPE_CHECKING:
    from pathlib import Path

CODE = 9
"""Exit code of an engine that has ended so."""


class Point(NamedTuple):
    """A call, by its class and name, and whether the engine ends behind it or before."""

    owner: type
    method: str
    behind: bool


POINTS = {
    "before the mark": Point(Outbox, "mark", behind=False),
    "behind the mark": Point(Outbox, "mark", behind=True),
    "before the append": Point(CommitLog, "append", behind=False),
    "before the fsync": Point(_RealFile, "sync", behind=False),
    "behind the append": Point(CommitLog, "append", behind=True),
    "before the settling": Point(OffsetLog, "settle", behind=False),
    "behind the settling": Point(OffsetLog, "settle", behind=True),
    "before the purge": Point(Outbox, "purge", behind=False),
    "behind the purge": Point(Outbox, "purge", behind=True),
    "before it is adopted": Point(Outbox, "adopt", behind=False),
    "behind it is adopted": Point(Outbox, "adopt", behind=True),
    "before a supersession begins": Point(OffsetLog, "begin_superseding", behind=False),
    "behind the beginning of a supersession": Point(OffsetLog, "begin_superseding", behind=True),
    "before what is known is purged": Point(Outbox, "purge_logged", behind=False),
    "behind what is known is purged": Point(Outbox, "purge_logged", behind=True),
}


def ask(folder: Path, point: str) -> None:
    """Make the next engine in *folder* end at *point*, the first time that it has rows."""
    folder.mkdir(exist_ok=True)
    (folder / "die.json").write_text(json.dumps(point))


def arm(folder: Path) -> None:
    """Be that engine: follow the test's request once."""
    file = folder / "die.json"
    if not file.exists():
        return
    owner, method, behind = POINTS[json.loads(file.read_text())]
    file.unlink()
    # The first sync of an append, not one of the log's opening.
    ready = _noted(CommitLog, "append") if owner is _RealFile else None
    original = getattr(owner, method)

    @functools.wraps(original)
    def dying(*values: Any, **named: Any) -> Any:
        if not behind and (ready is None or ready.is_set()):
            os._exit(CODE)
        found = original(*values, **named)
        if behind and getattr(found, "ids", True):
            os._exit(CODE)
        return found

    setattr(owner, method, dying)


def _noted(owner: type, method: str) -> threading.Event:
    """Return an event that is set once *method* of *owner* was called."""
    called, original = threading.Event(), getattr(owner, method)

    @functools.wraps(original)
    def noting(*values: Any, **named: Any) -> Any:
        called.set()
        return original(*values, **named)

    setattr(owner, method, noting)
    return called
