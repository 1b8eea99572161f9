"""The audit file of a log directory: every change to it, written before it is made.

One JSON object per line. A change has an ``id``. A later line ``{"of": id, "outcome": …}``
records its outcome. Nothing here or elsewhere removes a line.
"""

from __future__ import annotations

import json
import os
import pwd
import threading
import time
import uuid
from collections import OrderedDict
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from transporter.errors import ActionRefused, TransporterError
from transporter.log.filesystem import (
    RealFileSystem,
    open_file,
    sync,
    sync_directory,
    translate_os_errors,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transporter.log.filesystem import FileSystem

AUDIT: Final = "audit.jsonl"
DONE: Final = "done"
_PROC: Final = Path("/proc")
_UNSET: Final = (1 << 32) - 1
"""The login uid of a process without a login."""


@dataclass(frozen=True, slots=True)
class OnBehalfOf:
    """The person for whom a front end acts, as that front end has authenticated them.

    Attributes:
        who: the person's name, such as ``ann@example.org``.
        via: the front end, such as ``console``.
        origin: the place from which the person acts, such as an address (``from`` in JSON).

    Raises:
        ActionRefused: a text is missing, too long, or has control characters.

    """

    who: str
    via: str = ""
    origin: str = ""

    def __post_init__(self) -> None:
        _check_text("who", self.who, 256)
        _check_text("via", self.via, 64)
        _check_text("from", self.origin, 256)
        if not self.who.strip():
            raise ActionRefused('for.who is empty; name the person, or leave "for" out')

    @classmethod
    def decode(cls, content: object) -> Self:
        """Return the person in *content*: an object of ``who``, ``via`` and ``from``."""
        if not isinstance(content, dict) or set(content) - {"who", "via", "from"}:
            raise ActionRefused('for: use an object of "who", "via" and "from"')
        return cls(content.get("who", ""), content.get("via", ""), content.get("from", ""))

    def encode(self) -> dict[str, str]:
        """Return the object that :meth:`decode` accepts."""
        return {"who": self.who, "via": self.via, "from": self.origin}


def _check_text(name: str, text: object, longest: int) -> None:
    if not isinstance(text, str):
        raise ActionRefused(f"for.{name} is not text")
    if len(text) > longest:
        raise ActionRefused(f"for.{name} is longer than {longest} characters")
    if not text.isprintable():
        raise ActionRefused(f"for.{name} has control characters")


@dataclass(frozen=True, slots=True)
class Operator:
    """The originator of a change.

    Attributes:
        who: the name of the user who logged in, if the system records that (``loginuid``),
            even after sudo or su. Otherwise it is the name of the process's user.
        uid: the user of the process.
        pid: the process.
        loginuid: the login uid, if the system records one.
        on_behalf_of: the person for whom the process acts, if it named one.

    """

    who: str
    uid: int
    pid: int
    loginuid: int | None = None
    on_behalf_of: OnBehalfOf | None = None

    @classmethod
    def of_process(cls, pid: int, uid: int, proc: Path = _PROC) -> Self:
        """Return the operator behind the process *pid*, which runs as *uid*."""
        login = _login_uid(pid, proc)
        return cls(user_name(uid if login is None else login), uid, pid, login)

    def acting_for(self, person: OnBehalfOf | None) -> Self:
        """Return this operator as it acts on behalf of *person*."""
        return replace(self, on_behalf_of=person)

    def event_fields(self) -> dict[str, Any]:
        """Return the fields for an event: the person, and the process that made the request."""
        person = self.on_behalf_of
        named = {"who": self.who, "via": "", "from": ""} if person is None else person.encode()
        return {**named, "uid": self.uid, "pid": self.pid}

    def fields(self) -> dict[str, Any]:
        """Return the fields for an audit line."""
        by_login = {} if self.loginuid is None else {"loginuid": self.loginuid}
        peer = {**by_login, "uid": self.uid, "pid": self.pid}
        if self.on_behalf_of is not None:
            return {**self.on_behalf_of.encode(), "known_by": "for", "by": self.who, **peer}
        return {"who": self.who, "known_by": "loginuid" if by_login else "uid", **peer}


def this_operator() -> Operator:
    """Return the operator behind this process."""
    return Operator.of_process(os.getpid(), os.getuid())


def user_name(uid: int) -> str:
    """Return the name of the system's user *uid*, or the number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _login_uid(pid: int, proc: Path) -> int | None:
    try:
        found = int((proc / str(pid) / "loginuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None  # ended, in another namespace, or a kernel without audit
    return None if found == _UNSET else found


class AuditFile:
    """The audit file of one log directory. Thread-safe.

    Only the holder of the log's lock writes, so all parts of an engine share one instance.
    The file is opened for each line, because an operator may move it aside at any time.
    """

    def __init__(self, directory: Path, files: FileSystem | None = None) -> None:
        """Open nothing yet."""
        self._path, self._files = directory / AUDIT, files or RealFileSystem()
        self._lock = threading.Lock()

    def record(self, action: str, by: Operator | None = None, /, **details: Any) -> str:  # noqa: ANN401 - plain JSON values
        """Append the coming *action*, durably on return, and return its id.

        Without *by* the engine itself is the originator.

        Raises:
            LogFull: the disk has no room for the line, so the action must not be done.
            EnvironmentFault: the line could not be written, so the action must not be done.

        """
        made = uuid.uuid4().hex[:16]
        who = {"who": "the engine"} if by is None else by.fields()
        self._append({"id": made, "action": action, **who, **details}, durably=True)
        return made

    @contextmanager
    def change(
        self,
        action: str,
        by: Operator,
        /,
        **details: Any,  # noqa: ANN401 - plain JSON values
    ) -> Iterator[dict[str, Any]]:
        """Record *action* before the block, and its outcome after it.

        The block may put results into the yielded dictionary, which are recorded with the
        outcome. An error is recorded by its class only, because its text may hold a secret. The
        outcome may be missing after a crash.

        Raises:
            LogFull, EnvironmentFault: as :meth:`record`. The block is not run.

        """
        made = self.record(action, by, **details)
        results: dict[str, Any] = {}
        try:
            yield results
        except BaseException as error:
            self._record_outcome(made, {"outcome": f"failed: {type(error).__name__}"})
            raise
        self._record_outcome(made, {"outcome": DONE, **results})

    def _record_outcome(self, made: str, outcome: dict[str, Any]) -> None:
        # The action is complete, even if the disk has no room to record it.
        with suppress(TransporterError):
            self._append({"of": made, **outcome}, durably=False)

    def _append(self, content: dict[str, Any], *, durably: bool) -> None:
        line = json.dumps({"at": time.time(), **content}).encode() + b"\n"
        with (
            self._lock,
            translate_os_errors(self._path),
            open_file(self._files, self._path, write=True, create=True) as file,
        ):
            end = file.size()
            # A line that a crash tore must not corrupt this one.
            torn = end > 0 and file.pread(1, end - 1) != b"\n"
            file.pwrite(b"\n" * torn + line, end)
            if durably:
                sync(file)
                sync_directory(self._files, self._path.parent)


def read_audit(lines: Iterable[bytes], limit: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the changes in *lines*, the oldest first, each with its ``outcome`` (or ``None``).

    With *limit* only the newest that many, which also limits the memory. Anything that is not a
    line of an audit file, such as a line torn by a crash, is skipped.
    """
    changes: OrderedDict[str, dict[str, Any]] = OrderedDict()
    for line in lines:
        content = _parse_line(line)
        if "action" in content:
            # Lines of the engine's own actions have no outcome and appear as they are.
            name = str(content.get("id", len(changes)))
            changes[name] = content | {"outcome": None}
            if limit and len(changes) > limit:
                changes.popitem(last=False)
        elif (change := changes.get(str(content.get("of")))) is not None:
            change |= {key: content[key] for key in content if key not in {"of", "at"}}
    yield from changes.values()


def _parse_line(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
