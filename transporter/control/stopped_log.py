"""Operations on a log that no engine runs on, under its lock."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transporter.audit import AuditFile
from transporter.control import operator_actions, requests
from transporter.control.metadata import read_metadata
from transporter.control.offline_status import read_status
from transporter.errors import ActionRefused, EngineUnreachable, EnvironmentFault, UnknownName
from transporter.log.commit_log import CommitLog
from transporter.log.filesystem import RealFileSystem, translate_os_errors
from transporter.log.inspection import inspect
from transporter.log.lock import DirectoryLock, owner_of
from transporter.log.maintenance import read_maintenance
from transporter.log.operator_pauses import PausedReaders
from transporter.offsets.offset_log import (
    OffsetLog,
    delete_route,
    inspect_log,
    proved_offset,
    read_state,
    refuse_renaming,
    rename_route,
)
from transporter.offsets.parked import ParkedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from transporter.audit import Operator
    from transporter.control.requests import Request


class StoppedLog:
    """Operates the log in *directory*; implements ``requests.Operations``."""

    def __init__(self, directory: Path) -> None:
        """Touch nothing yet."""
        self._directory = directory

    def perform(
        self,
        request: Request,
        operator: Operator,
        is_abandoned: Callable[[], bool] = lambda: False,  # noqa: ARG002 - the client is this process
    ) -> dict[str, Any]:
        """Perform *request*; see :class:`~transporter.control.requests.Operations`.

        Raises besides:
            LogLocked: an engine runs.

        """
        match request:
            case requests.Status():
                return read_status(self._directory)
            case requests.Readiness():
                self._refuse_unreachable()
                raise EnvironmentFault(
                    f"{self._directory}: no engine runs on this log; start it with "
                    "'transporter run'"
                )
            case requests.LogMetadata():
                last = inspect_log(self._directory).last
                return read_metadata(self._directory, last, request)
            case requests.Reload() | requests.Step() | requests.Events() | requests.History():
                self._refuse_unreachable()
                raise ActionRefused(
                    f"{self._directory}: no engine runs on this log, and this needs one; "
                    "start it with 'transporter run'"
                )
            case requests.RestartReader():
                self._refuse_unreachable()
                raise ActionRefused(
                    f"{self._directory}: no engine runs on this log, so the reader is opened again "
                    "by the next 'transporter run'"
                )
            case requests.PauseReader() | requests.ResumeReader():
                return self._set_reader_paused(request, operator)
            case requests.Forget(route, reason):
                delete_progress(self._directory, "route forget", route, operator, reason)
                return {"route": route, "done": "forgotten; it no longer pins the log"}
            case requests.Replay(dry_run=True):
                return self._preview_replay(request)
            case _:
                with self._open_route(request.route) as (log, offsets):
                    return _perform_on_route(log, offsets, request, operator)

    def _refuse_unreachable(self) -> None:
        """Raise unless this user can see that no engine runs.

        Raises:
            EngineUnreachable: one runs, and does not answer yet or any more.
            EnvironmentFault: this user may not enter the directory.

        """
        with translate_os_errors(self._directory, reading=True):
            owner = owner_of(self._directory)
        if owner is not None:
            raise EngineUnreachable(
                f"{self._directory}: the engine with pid {owner} does not answer operators; it "
                "starts or stops, or this user may not reach it"
            )

    def _set_reader_paused(
        self, request: requests.PauseReader | requests.ResumeReader, operator: Operator
    ) -> dict[str, Any]:
        with lock_log(self._directory) as audit:
            readers = PausedReaders(self._directory)
            record = read_maintenance(RealFileSystem(), self._directory)
            known = {*readers.names, *(record.readers if record else ())}
            if request.reader not in known:
                raise UnknownName(
                    f"no engine has run with a reader {request.reader!r} on this log "
                    f"(known: {', '.join(sorted(known)) or 'none'})"
                )
            return operator_actions.set_reader_paused(readers, audit, request, operator)

    def _preview_replay(self, request: requests.Replay) -> dict[str, Any]:
        # Without the lock: an engine may start while it looks.
        last = inspect_log(self._directory).last
        state = read_state(self._directory, request.route)
        return operator_actions.preview_replay(self._directory, last, request, state, upserts=None)

    @contextmanager
    def _open_route(self, route: str) -> Iterator[tuple[CommitLog, OffsetLog]]:
        """Open the log and the offset log, which must both exist."""
        directory = self._directory
        inspect_log(directory)
        read_state(directory, route)
        with (
            CommitLog.open(directory, proved=lambda: proved_offset(directory)) as log,
            OffsetLog(directory, route) as offsets,
        ):
            yield log, offsets


@contextmanager
def lock_log(directory: Path) -> Iterator[AuditFile]:
    """Hold the log's lock, so that no engine runs; yield the audit file."""
    inspect(directory)
    with DirectoryLock(directory):
        yield AuditFile(directory)


def delete_progress(
    directory: Path, action: str, route: str, operator: Operator, reason: str
) -> None:
    """Remove all progress of *route*, as the command *action* asks."""
    with lock_log(directory) as audit:
        watermark = read_state(directory, route).watermark
        with audit.change(action, operator, route=route, watermark=watermark, reason=reason):
            delete_route(directory, route)


def rename_progress(directory: Path, route: str, new: str, operator: Operator, reason: str) -> None:
    """Give the progress of *route* the name *new*."""
    with lock_log(directory) as audit:
        refuse_renaming(directory, route, new)
        with audit.change("offsets rename", operator, route=route, new=new, reason=reason):
            rename_route(directory, route, new)


def _perform_on_route(
    log: CommitLog,
    offsets: OffsetLog,
    request: requests.OffsetRequest | requests.Replay | requests.SkipParked,
    operator: Operator,
) -> dict[str, Any]:
    match request:
        case requests.Replay():
            return operator_actions.begin_replay(log, offsets, request, operator, upserts=None)
        case requests.SkipParked():
            return operator_actions.skip_parked(offsets, _parked_store(offsets), request, operator)
        case _:
            return operator_actions.perform_simple(
                log, offsets, request, operator, lambda: _parked_store(offsets)
            )


def _parked_store(offsets: OffsetLog) -> ParkedStore:
    return ParkedStore(offsets.folder, lenient=True)
