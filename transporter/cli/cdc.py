"""Commands ``transporter cdc``: set up, check, watch and remove a reader's source.

A command finds the reader in the pipeline file, with its log.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transporter.cli.command_group import command_group
from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson  # noqa: TC001 - Typer reads the annotations
from transporter.cli.output import (
    confirm,
    printable,
    problem_text,
    text_lines,
    write,
    write_json,
    write_table,
)
from transporter.errors import ConfigError, EnvironmentFault, LogLocked, TransporterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.change_source import (
        ChangeSource,
        SlotStatus,
        SourceObject,
        SourceStatus,
        TableStatus,
    )
    from transporter.pipeline.secrets import Secrets

VARIABLE: Final = "TRANSPORTER_CDC_DSN"
_READER: Final = "postgres-cdc"

PipelineFile = Annotated[Path, typer.Argument(help="Pipeline file.", metavar="PIPELINE")]
ReaderName = Annotated[
    str | None,
    typer.Argument(help="Reader's name, if several follow a database.", metavar="READER"),
]


def write_status(reader: str, found: SourceStatus) -> None:
    """Print the status of *reader*: facts about its slot, and a line a table."""
    facts = {
        "reader": reader,
        "publication": ", ".join(found.publications),
        "logged": found.logged or "nothing yet",
        "server": found.server_end or "unknown",
        **_slot_facts(found.slot),
    }
    for name, value in facts.items():
        write(printable(f"{name:<13}{value}"))
    if found.tables:
        write()
        columns = ("table", "phase", "run", "copied", "rows", "%")
        write_table(columns, [_table_row(each) for each in found.tables])


def _slot_facts(slot: SlotStatus | None) -> dict[str, str]:
    from transporter.units import display_size  # noqa: PLC0415 - imports pydantic

    if slot is None:
        return {"slot": "none"}
    state = "active" if slot.is_active else "not active"
    reason = f", invalidated: {slot.reason}" if slot.reason else ""
    return {
        "slot": f"{slot.name}: {state}, {slot.wal_status or 'lost'}{reason}",
        "retained": "unknown" if slot.retained is None else display_size(slot.retained),
        "safe": "unlimited" if slot.safe is None else display_size(max(0, slot.safe)),
        "lag": "unknown" if slot.lag is None else display_size(slot.lag),
    }


def _table_row(table: TableStatus) -> tuple[object, ...]:
    copied, rows = ("" if each is None else f"{each:,}" for each in (table.copied, table.estimated))
    if table.phase in {"in sync", "catching up"}:
        copied = copied or ("all" if table.has_copy else "none")
    percent = "" if table.percent is None else table.percent
    return (table.name, table.phase, table.run or "", copied, rows, percent)


class ServiceName(StrEnum):
    """Values of ``--for``."""

    PLAIN = "plain"
    RDS = "rds"
    CLOUD_SQL = "cloud-sql"
    AZURE = "azure"
    SUPABASE = "supabase"
    NEON = "neon"


def build() -> typer.Typer:
    """Build the group."""
    return command_group(
        "Operate the source of a postgres-cdc reader.",
        init=init,
        check=check,
        status=status,
        drop=drop,
    )


def init(
    pipeline: PipelineFile,
    reader: ReaderName = None,
    *,
    service: Annotated[
        ServiceName, typer.Option("--for", help="Kind of server, whose rights differ.")
    ] = ServiceName.PLAIN,
    run: Annotated[bool, typer.Option("--run", help="Create what is missing.")] = False,
    dsn: Annotated[
        str | None,
        typer.Option(
            "--dsn",
            help="Connection string of a DBA for --run, by default the reader's own. Other users "
            f"can see a command line, so put a password into {VARIABLE}.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Print or run the SQL that a reader needs.

    The SQL creates the reader's role with its rights, the publication and the slot. It
    needs the database only to find the tables of patterns. With --run it creates what is
    missing and reports each object, so you can run it repeatedly. A publication or slot
    that the log follows is never created again, because changes would be missing.

    Examples:
        transporter cdc init shop.yaml --for rds
        transporter cdc init shop.yaml shop --run
    """
    if dsn is not None and not run:
        raise typer.BadParameter("--dsn requires --run")
    target = _resolve_target(pipeline, reader, needs_dsn=run)
    if run:
        return _set_up(target, service, dsn, as_json=as_json)
    with target.redacted():
        script = target.source.setup_script(service.value)
    notes = [target.secrets.hide(each) for each in (target.problem, *script.notes) if each]
    if as_json:
        write_json({"reader": target.reader, "sql": script.sql, "notes": notes})
        return 0
    sys.stdout.write(script.sql)
    for each in notes:
        note(printable(f"warning: {each}"))
    return 0


def _parse_dba_dsn(given: str | None) -> tuple[str | None, list[str]]:
    """Return the connection string of a DBA, if there is one, and its secrets."""
    from transporter.postgres_dsn import parse_dsn  # noqa: PLC0415 - imports psycopg

    dsn = given if given is not None else os.environ.get(VARIABLE) or None
    try:
        password = parse_dsn(dsn or "").get("password")
    except ValueError as error:
        raise ConfigError(f"--dsn or {VARIABLE}: this {error}") from None
    return dsn, [each for each in (dsn, password) if each]


def _set_up(target: _Target, service: ServiceName, given: str | None, *, as_json: bool) -> int:
    from transporter.pipeline.secrets import secrets_in  # noqa: PLC0415 - imports pydantic

    found: list[SourceObject] = []
    dsn, hidden = _parse_dba_dsn(given)
    secrets = target.secrets | secrets_in(hidden, None)
    with (
        replace(target, secrets=secrets).redacted(),
        target.audited("cdc init", needs_lock=False, service=service.value) as audited,
    ):
        for each in target.source.set_up(service.value, dsn):
            found.append(each)
            if not as_json:
                detail = f": {each.detail}" if each.detail else ""
                write(printable(secrets.hide(f"{each.name}: {each.outcome}{detail}")))
        if audited is not None:
            audited["created"] = [each.name for each in found if each.outcome == "created"]
    has_problem = any(each.outcome == "problem" for each in found)
    if as_json:
        objects = [secrets.hide_all(asdict(each)) for each in found]
        result = {"reader": target.reader, "objects": objects, "audited": audited is not None}
        write_json(result, ok=not has_problem)
    return EnvironmentFault.exit_code if has_problem else 0


def check(pipeline: PipelineFile, reader: ReaderName = None, *, as_json: AsJson = False) -> int:
    """Check all that a reader needs at its source.

    It reports every problem at once, and changes nothing. It checks the server and its
    settings, rights, tables, the publication and the slot, and compares them with the log.
    'transporter check --connect' checks the same for all readers and sinks.

    Example:
        transporter cdc check shop.yaml
    """
    from transporter.adaptor import Finding  # noqa: PLC0415 - imports pydantic

    target = _resolve_target(pipeline, reader)
    found: list[Finding] = []
    try:
        found.extend(target.source.check())
    except TransporterError as error:
        found.append(Finding(str(error), "problem"))
    found = [Finding(target.secrets.hide(each.text), each.level) for each in found]
    has_problem = any(each.level == "problem" for each in found)
    if as_json:
        findings = [asdict(each) for each in found]
        write_json({"reader": target.reader, "findings": findings}, ok=not has_problem)
    else:
        for each in found:
            mark = "" if each.level == "fine" else f"{each.level}: "
            for line in text_lines(mark + each.text):
                write(line)
    return EnvironmentFault.exit_code if has_problem else 0


def status(pipeline: PipelineFile, reader: ReaderName = None, *, as_json: AsJson = False) -> int:
    """Show the slot and the copy of each table.

    It needs no engine. The phase of a table is waiting, copying, catching up with the
    changes, in sync, or a gap. The lag is what the server has written behind the position in the
    log, which moves at least once a minute. The rows of a table are the server's estimate;
    copied is how many of them were copied, all once the table is in sync.

    Example:
        transporter cdc status shop.yaml
    """
    target = _resolve_target(pipeline, reader)
    with target.redacted():
        found = target.source.status()
    problem = target.secrets.hide(found.problem)
    if as_json:
        tables = [asdict(each) | {"percent": each.percent} for each in found.tables]
        result = {"reader": target.reader, **asdict(found), "tables": tables, "problem": problem}
        write_json(result, ok=not problem)
    else:
        write_status(target.reader, found)
        if problem:
            note(f"warning: {problem_text(problem)}")
    return EnvironmentFault.exit_code if problem else 0


def drop(
    pipeline: PipelineFile,
    reader: ReaderName = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drop a reader's slot and publication.

    Stop the engine first. The server keeps no more of its log for the reader, which can
    then only begin again, by a higher copy_run. Objects that manage leaves to the DBA
    stay. It also lists objects of other logs in this database that begin with
    transporter_, which are leftovers if their pipelines are gone.

    Example:
        transporter cdc drop shop.yaml
    """
    target = _resolve_target(pipeline, reader)
    with target.redacted():
        found = target.source.find_removable()
        dropped = [*found.objects]
        if dropped:
            if not yes:
                confirm(f"Drop {' and '.join(dropped)}? Reader {target.reader} must begin again.")
            with target.audited("cdc drop", needs_lock=True, objects=dropped):
                target.source.drop()
    if as_json:
        facts: dict[str, Any] = {"reader": target.reader, "dropped": dropped}
        write_json({**facts, "kept": found.kept, "leftovers": found.leftovers})
        return
    write(printable(f"{' and '.join(dropped)} dropped" if dropped else "nothing to drop"))
    for each in found.kept:
        note(printable(f"kept: {each}"))
    for each in found.leftovers:
        note(printable(f"of another reader or log: {each}"))


@dataclass(frozen=True, slots=True)
class _Target:
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


def _resolve_target(pipeline: Path, reader: str | None, *, needs_dsn: bool = True) -> _Target:
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
    return _Target(found.name, directory, made.change_source(logged), found.secrets, problem)
