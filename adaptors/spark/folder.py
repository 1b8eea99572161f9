"""A folder of data files to which each slice is added once, whole or not at all.

Spark writes a slice's files aside, into ``_transporter/``, which readers pass over. One rename,
that of the commit record, makes the slice count; then its files are moved to their places, under
names that tell the slice. Whoever finds a commit record whose files are still aside moves them.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from transporter.adaptor import StoredOffset
from transporter.errors import RouteFault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.adaptor import WriterContext

_HOME: Final = "_transporter"
_HADOOP: Final = Path("_temporary", "0", "_temporary")
"""Where a job's tasks write until it ends; removed with it."""
_RECORDS: Final = ("committed.json", "retried.json")
"""The newest slice, and the newest parked entry: those have a generation of their own, below 0."""


@dataclass(frozen=True, slots=True)
class _Record:
    """What a commit record tells: how far the route has come, and which folder holds its files."""

    stored: StoredOffset
    aside: str


@dataclass(frozen=True, slots=True)
class DataFolder:
    """The data files of one route in ``path``. Used by one thread."""

    path: Path
    context: WriterContext

    def recover(self) -> StoredOffset | None:
        """Finish, or take back, what an earlier writer has left; return what is committed.

        Raises:
            RouteFault: an engine that opened the log later has written here.

        """
        _make(self._home)
        # Renamed by a process that has ended: a power cut must not take it back now.
        _sync(self._home)
        committed, retried = (self._read(record) for record in _RECORDS)
        for found in (committed, retried):
            if found is not None:
                self._publish(found)
        self._clear()
        return committed.stored if committed else None

    def aside(self, generation: int, last: int) -> Path:
        """Make the new folder into which the slice that ends at *last* is to be written.

        A job that was given up may still be writing to the one of the last attempt.
        """
        made = self._home / f"{self._name(generation, last)}.{uuid.uuid4().hex[:12]}"
        # What Hadoop makes itself it has a process of its own chmod, some 5 ms each.
        (made / _HADOOP).mkdir(parents=True)
        return made

    def commit(self, aside: Path, generation: int, last: int) -> None:
        """Make what was written to *aside* part of the data, durably.

        An error leaves open whether it counts: :meth:`recover` finds that out.
        """
        record = _RECORDS[generation < 0]
        self._read(record)
        for each in _tree(aside):
            _sync(each)
        written = _Record(self.context.stored(generation, last), aside.name)
        draft = self._home / f"{record}.new"
        draft.write_text(json.dumps(asdict(written)), encoding="utf-8")
        _sync(draft)
        draft.rename(self._home / record)
        _sync(self._home)
        self._publish(written)
        self._clear()

    @property
    def _home(self) -> Path:
        # Of this log's alone: others may write to the same folder, by routes of the same name.
        return self.path / _HOME / self.context.log_id[:8] / self.context.route

    def _name(self, generation: int, last: int) -> str:
        context = self.context
        return f"slice-{context.route}-{context.log_id[:8]}-{generation}-{last:020d}"

    def _read(self, record: str) -> _Record | None:
        """Return what *record* tells; refuse to go on behind a later engine."""
        path, context = self._home / record, self.context
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            stored, aside = StoredOffset(**told["stored"]), str(told["aside"])
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise RouteFault(
                f"{path} cannot be read: it tells which slices were written; "
                "move the folder away, or give the route another path"
            ) from error
        if stored.log_id == context.log_id and stored.epoch > context.epoch:
            raise RouteFault(
                f"{self.path}: fenced by epoch {stored.epoch}; this writer has epoch "
                f"{context.epoch}: another engine has opened the log since"
            )
        return _Record(stored, aside)

    def _publish(self, record: _Record) -> None:
        """Move the files of the committed slice to their places; again, if need be."""
        aside, folders = self._home / Path(record.aside).name, {self.path}
        if not aside.exists():
            return
        name = self._name(record.stored.generation, record.stored.offset)
        for each in [*aside.rglob("*")]:
            place = self.path / each.relative_to(aside).parent
            if _is_data(each) and not each.is_relative_to(aside / _HADOOP.parts[0]):
                place.mkdir(parents=True, exist_ok=True)
                # Spark's own name, unlike in each job, stays: a second try moves what is left.
                each.rename(place / f"{name}-{each.name}")
            elif each.is_dir() and (self.path / each.relative_to(aside)).is_dir():
                # Its files may have been moved by a process that ended before it synced.
                place = self.path / each.relative_to(aside)
            else:
                continue
            folders |= _between(self.path, place)
        for folder in folders:
            _sync(folder)
        shutil.rmtree(aside)

    def _clear(self) -> None:
        """Remove what jobs that were given up have left.

        A task of one of them may be late, on a host that was cut off or stood still, and add to
        that meanwhile: nobody publishes it, and what it makes now goes with the next slice.
        """
        for left in self._home.glob("slice-*"):
            shutil.rmtree(left, ignore_errors=True)


def _make(folder: Path) -> None:
    """Make *folder* and those above it, durably: it is to hold what was acked."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        _sync(each.parent)


def _between(top: Path, bottom: Path) -> set[Path]:
    """Return the folders from *bottom* up to *top*, each of which may hold a new name."""
    found = {bottom}
    while bottom != top:
        bottom = bottom.parent
        found.add(bottom)
    return found


def _is_data(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(("_", "."))


def _tree(folder: Path) -> Iterator[Path]:
    yield folder
    yield from folder.rglob("*")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
