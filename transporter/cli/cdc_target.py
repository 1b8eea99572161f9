"""Reader of a ``transporter cdc`` command, with its log and its source."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transporter.errors import ConfigError, LogLocked, TransporterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.change_source import ChangeSource
    from transporter.pipeline.secrets import Secrets

VARIABLE: Final = "TRANSPORTER_CDC_DSN"
_READER: Final = "postgres-cdc"

PipelineFile = Annotated[Path, typer.Argument(help="Pipeline file.", metavar="PIPELINE")]
ReaderName = Annotated[
    str | None,
    typer.Argument(help="Reader's name, if several follow a database.", metavar="READER"),
]


@dataclass(frozen=True, slots=True)
class CdcTarget:
    """A reader, the directory of its log, which need not exist, and its source.

    ``problem`` says why the source is without the connection string.
    """

    reader: str
    directory: Path
    source: ChangeSource
    secrets: Secrets = field(repr=False)
    problem: str = ""

    @contextmanager
    def redacted(self) -> Iterator[None]:
        """Redact the reader's secrets in errors of the block (Invariant 20)."""
        try:
            yield
        except TransporterError as error:
            self.secrets.hide_in(error)
            raise

    @contextmanager
    def audited(
        self, action: str, *, needs_lock: bool, **details: object
    ) -> Iterator[dict[str, Any] | None]:
        """Record *action* in the log's audit file around the block, if there is a log.

        Yields a dictionary for results, or ``None`` if nothing is recorded. Without *needs_lock*
        that is so while an engine runs.

        Raises:
            LogLocked: an engine runs.

        """
        from transporter.audit import AuditFile, this_operator  # noqa: PLC0415 - only commands that act
        from transporter.log.filesystem import RealFileSystem  # noqa: PLC0415 - imports pyarrow
        from transporter.log.lock import DirectoryLock  # noqa: PLC0415
        from transporter.log.meta import read_meta  # noqa: PLC0415

        if not self.directory.is_dir() or read_meta(RealFileSystem(), self.directory) is None:
            yield None
            return
        try:
            lock = DirectoryLock(self.directory)
        except LogLocked:
            if needs_lock:
                raise
            yield None
            return
        audit = AuditFile(self.directory)
        with lock, audit.change(action, this_operator(), reader=self.reader, **details) as results:
            yield results


def resolve_target(pipeline: Path, reader: str | None, *, needs_dsn: bool = True) -> CdcTarget:
    """Return the *reader* of the *pipeline* file that follows a database, or the only one.

    Without *needs_dsn* the variable of its connection string need not be set.

    Raises:
        ConfigError: there is no such reader, or its settings are not valid.

    """
    from transporter.cli.reader_section import load_reader  # noqa: PLC0415 - imports pydantic
    from transporter.log.logged_reader import find_logged_reader  # noqa: PLC0415 - imports pyarrow
    from transporter.pipeline.log_location import log_directory  # noqa: PLC0415

    kind = "readers that follow a database"
    problem = ""
    try:
        found = load_reader(pipeline, _READER, reader, kind, needs_dsn=True)
    except ConfigError as error:
        if needs_dsn:
            raise
        found = load_reader(pipeline, _READER, reader, kind, needs_dsn=False)
        problem = f"dsn is not used, nor are its role and database known: {error}"
    directory = log_directory(pipeline, os.environ)
    logged = find_logged_reader(directory, found.name)
    made: Any = found.cls(found.config)
    return CdcTarget(found.name, directory, made.change_source(logged), found.secrets, problem)
