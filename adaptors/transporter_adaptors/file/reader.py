"""Reader of JSON lines from files."""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import json
import os
import re
import stat
import threading
import time
from bisect import insort_left
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Final, NamedTuple, Self

from transporter.adaptor import Batch, EndOfSource, Finding
from transporter.errors import EnvironmentFault, SourceError, SourceUnavailable
from transporter_adaptors.file.config import FileReaderConfig
from transporter_adaptors.file.lines import Origin, TextLines, read_lines, to_batch
from transporter_adaptors.passing_errors import PASSING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from transporter.adaptor import AdaptorConfig, Resume


HEAD_BYTES: Final = 1024
"""Bytes of a file's beginning, as far as it was read, that distinguish it from another one."""

_LINK: Final = "it is a symbolic link; name the file itself, or set follow_links"
_IRREGULAR: Final = "it is not a regular file"
_NOT_TEXT: Final = "its name is not UTF-8, so no message can carry it; rename the file"
_DIGITS: Final = re.compile("([0-9]+)")
_WILDCARD: Final = re.compile(r"[*?[]")


class ExistingFile(NamedTuple):
    """An existing file. *id* is its inode, with the device if that is not the folder's.

    *moved* if its name no longer matches. Then *name* is the one before.
    """

    name: str
    path: Path
    id: str
    size: int
    changed: int
    moved: bool = False


class FileProgress(NamedTuple):
    """The progress in a file, and a digest of its beginning up to there."""

    byte: int
    head: str


@dataclass(slots=True)
class ReadPosition:
    """The reader's position: the file being read, and all files that were read.

    *file* is the name under which it was begun, which stays when it is renamed.
    """

    file: str = ""
    id: str = ""
    files: dict[str, FileProgress] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = {"file": self.file, "id": self.id, "files": self.files}
        return json.dumps(shown, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text that ``str`` wrote, or raise ``SourceError`` for anything else."""
        try:
            found = json.loads(text)
            files = {
                each: FileProgress(int(at), str(head))
                for each, (at, head) in found["files"].items()
            }
            file_id = str(found["id"])
            # The file that is being read is among them.
            files = {file_id: files[file_id]} | files
            return cls(str(found["file"]), file_id, files)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise SourceError(
                f"the log holds the position {text[:100]!r} for this reader, which was not "
                "written by this file reader; give the reader another name"
            ) from error


def natural_key(name: str) -> tuple[list[str | int], str]:
    """Return a sort key for *name* in which numbers count as numbers."""
    parts = _DIGITS.split(name)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)], name


def matching_files(path: Path, *, links: bool) -> tuple[list[ExistingFile], dict[str, str]]:
    """Return the files whose names match *path*, in natural order, and why others are refused.

    Only regular files are read, and no link unless *links* are. Otherwise a user with rights to
    the folder could choose files elsewhere for the reader, or block it with a pipe.
    """
    names = _matching_names(path.parent, path.name)
    return _list_files(path.parent, sorted(names, key=natural_key), links=links)


def find_renamed(folder: Path, ids: AbstractSet[str], *, links: bool) -> list[ExistingFile]:
    """Return the files of *folder* that have one of *ids*, whatever their names are."""
    names: list[str] = []
    with suppress(FileNotFoundError, PermissionError):  # A named file may be read without.
        names = os.listdir(folder)  # noqa: PTH208 - names are wanted
    found, _ = _list_files(folder, names, links=links)
    return [each for each in found if each.id in ids]


def name_before(name: str, pattern: str) -> str:
    """Return the longest beginning of *name* that matches *pattern*, or *name* if none does.

    Rotations append to a name.
    """
    if name.startswith(pattern) or not _WILDCARD.search(pattern):
        return pattern
    beginnings = (name[:end] for end in range(len(name), 0, -1))
    return next((each for each in beginnings if fnmatch.fnmatch(each, pattern)), name)


def open_regular(path: Path, *, links: bool, file_id: str = "") -> BinaryIO:
    """Open the regular file at *path*, without waiting for a pipe, or following links by default.

    Raises:
        SourceUnavailable: It is something else by now, or another file than *file_id*.
        OSError: It may not be read.
    """
    # Opening a pipe would wait for its writer. O_NONBLOCK has no effect on a regular file.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    flags |= 0 if links else os.O_NOFOLLOW
    try:
        file = open(os.open(path, flags), "rb")  # noqa: PTH123, SIM115 - the caller closes it
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise SourceUnavailable(f"{path}: it has just been replaced") from error
        raise
    try:
        status = os.fstat(file.fileno())
    except OSError:
        file.close()
        raise
    ids = ("", str(status.st_ino), f"{status.st_dev}:{status.st_ino}")
    if stat.S_ISREG(status.st_mode) and file_id in ids:
        return file
    file.close()
    raise SourceUnavailable(f"{path}: it has just been replaced")


def abandoned_ids(found: Iterable[ExistingFile]) -> set[str]:
    """Return the ids of files that are left, because a later one in natural order changed since.

    A file that is rotated to a later name is older, and does not count. Nor does an empty one:
    a rotation makes it before the writer leaves the old file.
    """
    left, latest = set(), -1
    for each in reversed(list(found)):
        if each.changed <= latest:
            left.add(each.id)
        if each.size and not each.moved:
            latest = max(latest, each.changed)
    return left


def head_digest(descriptor: int, byte: int) -> str:
    """Return a digest of the first :data:`HEAD_BYTES` of a file, but of none behind *byte*."""
    text = os.pread(descriptor, min(HEAD_BYTES, byte), 0)
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def is_same_file(descriptor: int, known: FileProgress) -> bool:
    """Return whether an open file is still the one of *known*, and not shorter than that."""
    return (
        os.fstat(descriptor).st_size >= known.byte
        and head_digest(descriptor, known.byte) == known.head
    )


def _matching_names(folder: Path, pattern: str) -> list[str]:
    """Return the names in *folder* that match *pattern*, which may be a name itself.

    No error but a missing folder means that there are none. ``glob`` suppresses others, and
    files that cannot be seen for a moment would count as lost.
    """
    if not _WILDCARD.search(pattern) or _exists(folder / pattern):
        return [pattern]
    with suppress(FileNotFoundError):
        return fnmatch.filter(os.listdir(folder), pattern)  # noqa: PTH208 - names are wanted
    return []


def _exists(path: Path) -> bool:
    with suppress(FileNotFoundError):
        path.lstat()
        return True
    return False


def _list_files(
    folder: Path, names: list[str], *, links: bool
) -> tuple[list[ExistingFile], dict[str, str]]:
    found: list[ExistingFile] = []
    refused: dict[str, str] = {}
    device = 0
    with suppress(FileNotFoundError):
        # The device's number may differ after each start of the machine.
        device = folder.stat().st_dev
    for name in names:
        path = folder / name
        if (shown := _escape_name(name)) != name:
            refused[shown] = _NOT_TEXT
            continue
        with suppress(FileNotFoundError):
            status = path.stat(follow_symlinks=links)
            if not stat.S_ISREG(status.st_mode):
                refused[name] = _LINK if stat.S_ISLNK(status.st_mode) else _IRREGULAR
                continue
            own = status.st_dev == device
            file_id = str(status.st_ino) if own else f"{status.st_dev}:{status.st_ino}"
            found.append(ExistingFile(name, path, file_id, status.st_size, status.st_mtime_ns))
    return found, refused


def _escape_name(name: str) -> str:
    """Return *name* with every byte that is not UTF-8 escaped."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


@contextmanager
def _translate_os_errors(path: Path) -> Iterator[None]:
    """Turn errors of the operating system about *path*, or a file of it, into a source's.

    Raises:
        SourceUnavailable: The same call may succeed later.
        EnvironmentFault: It will not.
    """
    try:
        yield
    except OSError as error:
        text = f"{error.filename or path}: {error.strerror or error}"
        if error.errno in PASSING or error.errno == errno.ENOENT:
            raise SourceUnavailable(text) from error
        raise EnvironmentFault(
            f"{text}: check the path, and the right of this user to read it"
        ) from error


_LOOK_SECONDS: Final = 0.1
"""Interval of checks for the end of a followed file, because no portable call waits for it."""

_SEARCHES: Final = 3
"""Searches of a folder for a file that is missing: one may be in the midst of a rotation."""

_MOVED_FILES: Final = 32
"""Files whose names no longer match that are looked at: those that were changed last."""

_CUT: Final = "it was cut short or overwritten: it is read from its beginning"
_GONE: Final = "it is gone from its folder: its unread lines are lost"


class FileReader:
    """Reader of the lines of one file, or of several in the order of their names, as messages.

    ``data`` is the line, byte for byte. Blank lines are skipped. A line that
    is not JSON becomes a message with an error header. Numbers in names count as
    numbers.

    A file is identified by device, inode and its beginning, not by its name. So one that
    was renamed is read on where it was left, and one that was replaced, cut short or
    overwritten is read from its beginning. With ``follow`` the folder is checked
    whenever an end was reached: for files that are new, whatever their names, and
    for those that have grown. A last line without an end is read when a file with a
    later name, or another one with its own name, was written to since. A file that was
    renamed so that it no longer matches is read on, too, because its writer may still have it.
    """

    Config: ClassVar[type[AdaptorConfig]] = FileReaderConfig

    def __init__(self, config: FileReaderConfig) -> None:
        """Keep *config*."""
        self._config = config
        self._file: BinaryIO | None = None
        self._position = ReadPosition()
        self._unchanged: dict[str, tuple[int, int, bool]] = {}
        """Size and time of the files in which nothing was found to read, and if they were left."""
        self._refusals: dict[str, str] = {}
        """Refused files in the folder, with the reason. Reported when first seen."""
        self._moved: dict[str, str] = {}
        """The names by now of files that were read, and whose names do not match."""
        self._missing: AbstractSet[str] = set()
        """Files that were read, and are not found. Searched for :data:`_SEARCHES` times."""
        self._searches = 0
        self._resume: Resume
        self._pause = threading.Event()  # never set: waiting on it is a bounded pause

    def open(self, resume: Resume) -> None:
        """Continue at the newest logged position, in the file that holds it.

        Raises:
            SourceUnavailable: No file exists, and ``follow`` does not wait for one. Or nothing
                can be read at the moment.
            EnvironmentFault: It may not be read, or is not a regular file.
        """
        with _translate_os_errors(self._config.path):
            self._open(resume)

    def poll(self, timeout: float) -> Batch:
        """Return the next lines, waiting up to *timeout* seconds for one when following."""
        with _translate_os_errors(self._config.path):
            return self._poll(time.monotonic() + timeout)

    def commit(self, position: str) -> None:
        """Do nothing, because the files stay as they are."""

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def probe(self) -> Iterable[Finding]:
        """Check which files exist, and whether they may be read."""
        path = self._config.path
        found, refused = matching_files(path, links=self._config.follow_links)
        for name, problem in refused.items():
            yield Finding(f"{name}: {problem}", "problem" if name == path.name else "warning")
        for each in found:
            if not os.access(each.path, os.R_OK):
                who = f"this user (id {os.geteuid()})"
                yield Finding(f"{each.path}: {who} may not read it", "problem")
        if not found and not refused:
            if self._config.follow:
                yield Finding(
                    f"{path}: the file does not exist yet; the reader waits for it", "warning"
                )
            else:
                yield Finding(f"{path}: the file does not exist", "problem")
        elif found:
            yield Finding(f"{path}: {len(found)} {'file' if len(found) == 1 else 'files'}")

    def _open(self, resume: Resume) -> None:
        self._resume, self._position = resume, ReadPosition()
        self._unchanged, self._refusals, self._moved, self._missing = {}, {}, {}, set()
        found = self._list_files()
        if not found and not self._config.follow:
            if problem := self._refusals.get(self._config.path.name):
                raise EnvironmentFault(f"{self._config.path}: {problem}")
            raise SourceUnavailable(f"{self._config.path}: the file does not exist")
        if resume.position is not None:
            folder = self._config.path.parent
            if not found and not _exists(folder):
                raise SourceUnavailable(f"{folder}: the folder does not exist; mount it or make it")
            self._position = ReadPosition.parse(resume.position)
            self._resume_file(found)

    def _poll(self, deadline: float) -> Batch:
        while True:
            if batch := self._read():
                return batch
            if self._advance():
                continue
            if not self._config.follow:
                raise EndOfSource
            left = deadline - time.monotonic()
            if left <= 0:
                return Batch([])
            self._pause.wait(min(left, _LOOK_SECONDS))

    def _read(self) -> Batch | None:
        """Return the next lines of the open file, if there are any to return."""
        if self._file is None:
            return None
        status, left = os.fstat(self._file.fileno()), False
        lines = self._read_lines(self._file, partial=False)
        if not lines:
            left = not self._config.follow or self._is_left(status.st_mtime_ns)
            lines = self._read_lines(self._file, partial=left)
        known = self._position.files.get(self._position.id)
        # Checked after the read: a file overwritten before it has another beginning now.
        if known is not None and not is_same_file(self._file.fileno(), known):
            self._report_loss(known, _CUT)
            self.close()
            return None
        byte = self._file.tell()
        self._position.files[self._position.id] = FileProgress(
            byte, head_digest(self._file.fileno(), byte)
        )
        if not lines:
            self._unchanged[self._position.id] = status.st_size, status.st_mtime_ns, left
            return None
        name = self._position.file
        namespace = self._config.namespace or name.rsplit(".", 1)[0] or name
        origin = Origin(namespace, name, status.st_mtime_ns // 1000, self._config.key)
        return Batch(to_batch(lines, origin), str(self._position))

    def _read_lines(self, file: BinaryIO, *, partial: bool) -> TextLines:
        config = self._config
        return read_lines(
            file, config.batch_rows, config.batch_bytes, config.max_line_bytes, partial=partial
        )

    def _is_left(self, changed: int) -> bool:
        """Return whether the file, *changed* then, is left: see :func:`abandoned_ids`.

        It keeps the name with which it was begun, which may be another file's by now.
        """
        mine = self._position
        return any(
            found.id != mine.id
            and found.size
            and natural_key(found.name) >= natural_key(mine.file)
            and found.changed >= changed
            for found in self._list_files()
        )

    def _report_loss(self, known: FileProgress, problem: str) -> None:
        """Report that *known*, the file of the position, cannot be read on, and forget it."""
        self._resume.report("file-lost", file=self._position.file, byte=known.byte, problem=problem)
        del self._position.files[self._position.id]

    def _resume_file(self, found: list[ExistingFile]) -> None:
        """Continue in the file of the position, which may have another name by now.

        It is lost if only others were *found*. A folder without any may be a mount that is not
        there yet, so its file stays in the position and is looked for again.
        """
        place, config = self._position, self._config
        known = place.files[place.id]
        there = [each for each in found if each.id == place.id]
        for each in there or find_renamed(
            config.path.parent, {place.id}, links=config.follow_links
        ):
            if self._is_known(each):
                self._open_at(each, place.file)
                return
        if found:
            self._report_loss(known, _CUT if there else _GONE)

    def _advance(self) -> bool:
        """Leave the file, whose end was reached, if there is another to continue with."""
        found = self._list_files()
        if found and self._file is None and self._position.id in self._position.files:
            self._resume_file(found)
            if self._file is not None:
                return True
        following = self._next_file(found)
        if following is None:
            return False
        self.close()
        self._open_at(following, following.name)
        return True

    def _list_files(self) -> list[ExistingFile]:
        """Return the files in the folder, and report those that are refused for the first time."""
        found, refused = matching_files(self._config.path, links=self._config.follow_links)
        for name, problem in refused.items():
            if name not in self._refusals:
                self._resume.report("file-refused", file=name, problem=problem)
        self._refusals = refused
        return found

    def _next_file(self, found: list[ExistingFile]) -> ExistingFile | None:
        """Return the first file of *found*, in natural order, that has something to read.

        Files that are renamed by now come before those that have their names.
        """
        for each in reversed(self._moved_files(found)):
            insort_left(found, each, key=lambda each: natural_key(each.name))
        mine = self._position.id if self._file is not None else None
        left = abandoned_ids(found)
        others = (each for each in found if each.id != mine)
        following = next((each for each in others if self._has_unread(each, each.id in left)), None)
        if following is not None:
            self._forget_all_but({each.id for each in found} | {self._position.id})
        return following

    def _moved_files(self, found: list[ExistingFile]) -> list[ExistingFile]:
        """Return files that were read and have names by now that do not match, the oldest first.

        A writer goes on in such a file until it opens the new one, as with logrotate's
        ``create``. The folder is searched only when one is missing under its last name.
        """
        folder, links = self._config.path.parent, self._config.follow_links
        wanted = self._position.files.keys() - {each.id for each in found}
        names = [self._moved[each] for each in wanted if each in self._moved]
        there = {
            each.id: each
            for each in _list_files(folder, names, links=links)[0]
            if self._moved.get(each.id) == each.name
        }
        missing = wanted - there.keys()
        if missing != self._missing:
            self._missing, self._searches = missing, 0
        if missing and self._searches < _SEARCHES:
            self._searches += 1
            renamed = find_renamed(folder, missing, links=links)
            there |= {each.id: each for each in renamed if self._is_moved(each)}
        self._moved = {each.id: each.name for each in there.values()}
        newest = sorted(there.values(), key=lambda each: each.changed)[-_MOVED_FILES:]
        pattern = self._config.path.name
        return [each._replace(name=name_before(each.name, pattern), moved=True) for each in newest]

    def _is_moved(self, found: ExistingFile) -> bool:
        """Return whether *found* was read. Its inode may be another's by now, unless it is open."""
        if self._file is not None and found.id == self._position.id:
            return True
        with suppress(PermissionError, FileNotFoundError, SourceUnavailable):  # or renamed again
            return self._position.files[found.id].byte > 0 and self._is_known(found)
        return False

    def _forget_all_but(self, there: set[str]) -> None:
        """Forget the files that are gone, because the position would grow for ever with them."""
        files, quiet = self._position.files, self._unchanged
        self._position.files = {each: known for each, known in files.items() if each in there}
        self._unchanged = {each: state for each, state in quiet.items() if each in there}

    def _has_unread(self, found: ExistingFile, left: bool) -> bool:  # noqa: FBT001 - one of its properties
        """Return whether *found* is new, has grown, is left, or is another file by now.

        Another file does not count if its name does not match.
        """
        state = found.size, found.changed, left
        if self._unchanged.get(found.id) == state:
            return False
        known = self._position.files.get(found.id)
        is_read = known is not None and known.byte == found.size
        if found.moved:
            unread = not is_read and self._is_known(found)
        else:
            unread = not is_read or not self._is_known(found)
        if unread:
            return True
        self._unchanged[found.id] = state
        return False

    def _is_known(self, found: ExistingFile) -> bool:
        known = self._position.files.get(found.id)
        if known is None:
            return False
        with self._open_file(found) as file:
            return is_same_file(file.fileno(), known)

    def _open_at(self, found: ExistingFile, name: str) -> None:
        """Open *found*, which was begun as *name*, and seek to the place where it was left."""
        self._position.file, self._position.id = name, found.id
        self._file = self._open_file(found)
        known = self._position.files.get(found.id)
        if known is not None and is_same_file(self._file.fileno(), known):
            self._file.seek(known.byte)
        else:
            self._position.files.pop(found.id, None)

    def _open_file(self, found: ExistingFile) -> BinaryIO:
        return open_regular(found.path, links=self._config.follow_links, file_id=found.id)
