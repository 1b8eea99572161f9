"""A folder of data files to which each slice is added once, whole or not at all.

Spark first writes a slice's files into ``_transporter/``, which readers ignore. One rename,
that of the commit record, commits the slice. Then its files are moved to their places, under
names that identify the slice. The next writer moves files that a commit record still finds there.
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
"""Folder of a job's tasks until the job ends. Removed with it."""
_RECORDS: Final = ("committed.json", "retried.json")
"""Records of the newest slice, and of the newest parked entry, with a generation below 0."""


@dataclass(frozen=True, slots=True)
class _Record:
    """A commit record: the route's progress, and the folder of the slice's files."""

    stored: StoredOffset
    aside: str


@dataclass(frozen=True, slots=True)
class DataFolder:
    """The data files of one route in ``path``. Used by one thread."""

    path: Path
    context: WriterContext

    def recover(self) -> StoredOffset | None:
        """Finish or undo the work of an earlier writer, and return the committed offset.

        Raises:
            RouteFault: An engine that opened the log later has written here.

        """
        _make_durable(self._home)
        # A process that has ended may have renamed it, and a power cut must not undo that now.
        _sync(self._home)
        committed, retried = (self._read_record(record) for record in _RECORDS)
        for found in (committed, retried):
            if found is not None:
                self._publish(found)
        self._remove_abandoned()
        return committed.stored if committed else None

    def make_aside(self, generation: int, last: int) -> Path:
        """Make the new folder into which the slice that ends at *last* is to be written.

        An abandoned job may still be writing to the folder of the last attempt.
        """
        made = self._home / f"{self._slice_name(generation, last)}.{uuid.uuid4().hex[:12]}"
        # Hadoop would run a chmod process for each folder that it makes itself, some 5 ms each.
        (made / _HADOOP).mkdir(parents=True)
        return made

    def commit(self, aside: Path, generation: int, last: int) -> None:
        """Add the files in *aside* to the data, durably.

        After an error the slice may be committed or not, and :meth:`recover` finds which.
        """
        record = _RECORDS[generation < 0]
        self._read_record(record)
        for each in _walk(aside):
            _sync(each)
        written = _Record(self.context.stored(generation, last), aside.name)
        draft = self._home / f"{record}.new"
        draft.write_text(json.dumps(asdict(written)), encoding="utf-8")
        _sync(draft)
        draft.rename(self._home / record)
        _sync(self._home)
        self._publish(written)
        self._remove_abandoned()

    @property
    def _home(self) -> Path:
        # A folder of this log alone, because other logs may have routes of the same name here.
        return self.path / _HOME / self.context.log_id[:8] / self.context.route

    def _slice_name(self, generation: int, last: int) -> str:
        context = self.context
        return f"slice-{context.route}-{context.log_id[:8]}-{generation}-{last:020d}"

    def _read_record(self, record: str) -> _Record | None:
        """Return the content of *record*, or raise if a later engine has written it."""
        path, context = self._home / record, self.context
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            stored, aside = StoredOffset(**fields["stored"]), str(fields["aside"])
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise RouteFault(
                f"{path} cannot be read: it records which slices were written; "
                "move the folder away, or give the route another path"
            ) from error
        if stored.log_id == context.log_id and stored.epoch > context.epoch:
            raise RouteFault(
                f"{self.path}: fenced by epoch {stored.epoch}; this writer has epoch "
                f"{context.epoch}: another engine has opened the log since"
            )
        return _Record(stored, aside)

    def _publish(self, record: _Record) -> None:
        """Move the files of the committed slice to their places, again if need be."""
        aside, folders = self._home / Path(record.aside).name, {self.path}
        if not aside.exists():
            return
        name = self._slice_name(record.stored.generation, record.stored.offset)
        for each in [*aside.rglob("*")]:
            place = self.path / each.relative_to(aside).parent
            if _is_data_file(each) and not each.is_relative_to(aside / _HADOOP.parts[0]):
                place.mkdir(parents=True, exist_ok=True)
                # Spark's own name, unique to each job, stays, so a retry moves only the rest.
                each.rename(place / f"{name}-{each.name}")
            elif each.is_dir() and (self.path / each.relative_to(aside)).is_dir():
                # Its files may have been moved by a process that ended before it synced.
                place = self.path / each.relative_to(aside)
            else:
                continue
            folders |= _folders_between(self.path, place)
        for folder in folders:
            _sync(folder)
        shutil.rmtree(aside)

    def _remove_abandoned(self) -> None:
        """Remove the files of abandoned jobs.

        A late task of one of them, on a host that was cut off or stood still, may add files
        meanwhile. These are never published, and are removed with the next slice.
        """
        for left in self._home.glob("slice-*"):
            shutil.rmtree(left, ignore_errors=True)


def _make_durable(folder: Path) -> None:
    """Make *folder* and its parents durably, because it is to hold acked entries."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        _sync(each.parent)


def _folders_between(top: Path, bottom: Path) -> set[Path]:
    """Return the folders from *bottom* up to *top*, each of which may hold a new name."""
    found = {bottom}
    while bottom != top:
        bottom = bottom.parent
        found.add(bottom)
    return found


def _is_data_file(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(("_", "."))


def _walk(folder: Path) -> Iterator[Path]:
    yield folder
    yield from folder.rglob("*")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
