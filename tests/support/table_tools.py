"""A table whose rows a reader returns until they are delivered, and pipelines that read it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, ClassVar

from engine_tools import LinesReader

from transporter.adaptor import AdaptorConfig, Batch, EndOfSource, LocalPath
from transporter.engine.routing.parking import Parking
from transporter.log.commit_log import CommitLog
from transporter.log.reader import LogReader
from transporter.message import Message
from transporter.offsets.offset_log import OffsetLog
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transporter.adaptor import Resume
    from transporter.pipeline.config import Pipeline


class TableConfig(AdaptorConfig):
    """Settings of a :class:`TableReader`."""

    path: LocalPath
    rows: int = 100
    end: bool = True

    @property
    def needs_delivery(self) -> bool:
        return True

    @property
    def shared(self) -> bool:
        return True


class TableReader:
    """Reads lines of a file like rows of a table: each open reads the remaining ones.

    A line is a key and its data. The numbers of delivered rows are appended to ``<path>.told``, and
    such rows are not read again. Each line of ``<path>.asked`` is one check whether it still leads.
    """

    Config: ClassVar[type[AdaptorConfig]] = TableConfig

    def __init__(self, config: TableConfig) -> None:
        self._config = config
        self._batches: dict[str, list[int]] = {}
        self._read: set[int] = set()

    def open(self, resume: Resume) -> None:
        known = [int(each.source_id or 0) for _, part in resume.recent() for each in _all(part)]
        self._write("told", known)
        self._resume = resume
        resume.supersede()
        self._count = int(resume.position or 0)
        self._read = set(told(self._config.path))

    def poll(self, timeout: float) -> Batch:
        lines = list(enumerate(self._config.path.read_text().splitlines()))
        found = [each for each in lines if each[0] not in self._read][: self._config.rows]
        if not found:
            if self._config.end:
                raise EndOfSource
            time.sleep(min(timeout, 0.01))
            return Batch([])
        self._count += 1
        self._batches[str(self._count)] = [number for number, _ in found]
        self._read |= {number for number, _ in found}
        return Batch([_message(*each) for each in found], str(self._count), term=7)

    def commit(self, position: str) -> None:
        raise AssertionError(f"{position} was committed as if durable were enough")

    def delivered(self, position: str, rows: Sequence[int]) -> None:
        self._write("told", [self._batches[position][row] for row in rows])

    def keep_alive(self) -> None:
        pass

    def confirm(self) -> None:
        self._write("asked", [0])

    def close(self) -> None:
        pass

    def _write(self, suffix: str, numbers: list[int]) -> None:
        with self._config.path.with_suffix(f".{suffix}").open("a") as file:
            file.writelines(f"{number}\n" for number in numbers)


class GoingOn(TableReader):
    """Reads the same rows, and resumes from the log's copies, which no other reader has.

    While a file ``<path>.undecided`` exists this is not yet confirmed.
    """

    def open(self, resume: Resume) -> None:
        parts = [(entries.offsets, _all(entries)) for _, entries in resume.undelivered()]
        known = [int(each.source_id or 0) for _, part in resume.recent() for each in _all(part)]
        self._write("told", [number for number in known if number not in told(self._config.path)])
        self._resume = resume
        self._count = int(resume.position or 0)
        self._read = set(told(self._config.path))
        for place, (_, messages) in enumerate(parts):
            self._batches[f"again {place}"] = [int(each.source_id or 0) for each in messages]
            self._read |= set(self._batches[f"again {place}"])
        resume.reopen((f"again {place}", each) for place, (each, _) in enumerate(parts))

    def confirm(self) -> bool:
        super().confirm()
        return not self._config.path.with_suffix(".undecided").exists()


class Committed(LinesReader):
    """Reads lines, and records the committed positions."""

    def commit(self, position: str) -> None:
        with self._config.path.with_suffix(".told").open("a") as file:
            file.write(f"{position}\n")


class Passing(LinesReader):
    """Reads lines, and supersedes undelivered entries at each open."""

    def open(self, resume: Resume) -> None:
        super().open(resume)
        resume.supersede()


def _all(part: Any) -> list[Message]:
    return [entry.message for entry in part]


def _message(number: int, line: str) -> Message:
    key, data = line.split(" ", 1)
    return Message("rows", data.encode(), key=key.encode(), source_id=str(number))


def told(path: Path) -> list[int]:
    """Return the rows that were acknowledged to the source, in that order."""
    file = path.with_suffix(".told")
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def table(folder: Path, lines: list[str], *routes: dict[str, Any], **reader: Any) -> Pipeline:
    """Return a pipeline from a table of *lines* into ``<route>.jsonl`` for each of *routes*."""
    with (folder / "table.txt").open("a") as file:
        file.writelines(f"{line}\n" for line in lines)
    default = {"name": "in", "adaptor": "table_tools:TableReader", "path": "table.txt"}
    document = {
        "readers": [default | reader],
        "routes": [_route(**route) for route in routes],
        "log": {"dir": "log"},
        "commit_interval": "50ms",
    }
    file = folder / "pipeline.yaml"
    file.write_text(json.dumps(document))
    return load(file, {})


def _route(name: str, writer: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    default = {"adaptor": "engine_tools:LinesWriter", "path": f"{name}.jsonl"}
    retry = {"attempts": 2, "backoff": "1ms..5ms"}
    return {"name": name, "retry": retry, **keys, "writer": default | (writer or {})}


class RouteParts:
    """A log and one route's parts, as in an engine, with nothing running."""

    def __init__(self, folder: Path) -> None:
        self.log = CommitLog.open(folder / "log")
        self.reader = LogReader(folder / "log")
        self.offsets = OffsetLog(folder / "log", "out", guard=self.log.check_lock)
        (route,) = table(folder, [], {"name": "out"}).routes
        self.parking = Parking(route, self.log, self.reader, self.offsets, lambda: 0)

    def close(self) -> None:
        """Close all of it, the log last."""
        self.reader.close()
        self.offsets.close()
        self.log.close()
