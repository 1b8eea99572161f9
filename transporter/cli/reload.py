"""Command ``transporter reload``, by which a running engine reads its pipeline file again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from transporter.cli.action_options import Reason, perform_request
from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson, Target, log_directory
from transporter.cli.output import printable, problem_text, value_text, write, write_json
from transporter.control.requests import Reload, Status
from transporter.errors import ConfigError

_UNSET: Final = "environment variable "
_ENVIRONMENT: Final = (
    "the variables of the engine's start count, not those of this shell; restart it to set one"
)


def reload(
    target: Target,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")
    ] = False,
    reason: Reason = "",
    as_json: AsJson = False,
) -> int:
    """Reload the running engine's pipeline file.

    SIGHUP does the same. Routes apply changed steps, filters, writers, retries and
    limits after their present slice. Readers with changed settings are reopened, and
    modules beside the file are imported again. New readers and routes start, and
    removed ones end. Settings that cannot change while the engine runs, such as the
    log's directory and Spark's, are refused with their line, and then nothing changes.
    So is SQL that does not parse, if there is Java.

    With --dry-run it shows the changed settings, the routes that would get new workers,
    and every refusal.

    Examples:
        transporter reload pipeline.yaml --reason "division by zero fixed"
        transporter reload pipeline.yaml --dry-run
    """
    _refuse_invalid_sql(target)
    if dry_run:
        return _show_preview(perform_request(target, Reload(dry_run=True)), as_json=as_json)
    try:
        result = perform_request(target, Reload(reason))
    except ConfigError as error:
        if _UNSET in str(error):
            note(_ENVIRONMENT)
        raise
    if as_json:
        write_json(result)
        return 0
    write(f"{printable(result['file'])}: {_changes_text(result)}")
    for route in result["pending"]:
        note(f"route {route} is still delivering a slice; the change applies after it")
    for name in result["leaving"]:
        note(printable(f"{name} is removed, and ends after its present work"))
    for reader, problem in result["problems"].items():
        note(problem_text(f"reader {reader}: {problem}"))
    return 0


def _changes_text(result: dict[str, Any]) -> str:
    """Return the readers and routes that a reload changes."""
    from transporter.pipeline.reload_changes import member_texts  # noqa: PLC0415 - imports the configuration

    changes = {
        "routes updated:": result["routes"],
        "readers reopened:": result["readers"],
        "new:": member_texts(result["added"]),
        "removed:": member_texts(result["removed"]),
    }
    parts = [
        f"{title} {', '.join(map(printable, names))}" for title, names in changes.items() if names
    ]
    return "; ".join(parts) or "no reader or route changed"


def _show_preview(result: dict[str, Any], *, as_json: bool) -> int:
    """Show what a reload would do. Return the exit code that it would have."""
    refusals = result["refusals"]
    code = ConfigError.exit_code if refusals else 0
    if as_json:
        write_json(result, ok=not refusals)
        return code
    changes = "" if refusals and not result["diff"] else f": {_changes_text(result)}"
    write(f"{printable(result['file'])}: {result['done']}{changes}")
    for each in result["diff"]:
        before, after = (_setting_text(each[when]) for when in ("before", "after"))
        write(f"  {printable(each['setting'])}: {before} -> {after}")
    for each in refusals:
        place = f"{each['file']}:{each['line']}: " if each["line"] else ""
        write(problem_text(f"{place}{each['problem']}"))
    if any(_UNSET in each["problem"] for each in refusals):
        note(_ENVIRONMENT)
    return code


def _setting_text(value: Any) -> str:  # noqa: ANN401 - a plain value
    return "not set" if value is None else problem_text(value_text(value))


def _refuse_invalid_sql(target: Path) -> None:
    """Refuse the file that a running engine would reload if its SQL does not parse.

    Spark itself would report that only at the next entry, and the route would stop.
    """
    file = _file_to_reload(target)
    if file is None or not perform_request(target, Status())["running"]:
        return
    from transporter.cli.check_sql import refuse_invalid_sql  # noqa: PLC0415 - heavy

    refuse_invalid_sql(file.absolute(), os.environ)


def _file_to_reload(target: Path) -> Path | None:
    """Return the pipeline file: *target*, or the one that has last run on this log directory."""
    if not target.is_dir():
        return target
    from transporter.log.filesystem import RealFileSystem  # noqa: PLC0415 - imports pyarrow
    from transporter.log.pipeline_record import read_pipeline_record  # noqa: PLC0415 - the same

    record = read_pipeline_record(RealFileSystem(), log_directory(target))
    return Path(record.file) if record is not None else None
