"""Command ``transporter reload``, by which a running engine reads its pipeline file again."""

from __future__ import annotations

import os
from pathlib import Path

from transporter.cli.action_options import Reason, perform_request
from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson, Target, log_directory
from transporter.cli.output import printable, problem_text, write, write_json
from transporter.control.requests import Reload, Status


def reload(target: Target, *, reason: Reason = "", as_json: AsJson = False) -> None:
    """Reload the running engine's pipeline file.

    SIGHUP does the same. Routes apply changed steps, filters, writers, retries and
    limits after their present slice. Readers with changed settings are reopened, and
    modules beside the file are imported again. New readers and routes start, and
    removed ones end. Settings that cannot change while the engine runs, such as the
    log's directory and Spark's, are refused with their line, and then nothing changes.
    So is SQL that does not parse, if there is Java.

    Example:
        transporter reload pipeline.yaml --reason "division by zero fixed"
    """
    from transporter.pipeline.reload_changes import member_texts  # noqa: PLC0415 - imports the configuration

    _refuse_invalid_sql(target)
    result = perform_request(target, Reload(reason))
    if as_json:
        write_json(result)
        return
    changes = {
        "routes updated:": result["routes"],
        "readers reopened:": result["readers"],
        "new:": member_texts(result["added"]),
        "removed:": member_texts(result["removed"]),
    }
    parts = [
        f"{title} {', '.join(map(printable, names))}" for title, names in changes.items() if names
    ]
    write(f"{printable(result['file'])}: {'; '.join(parts) or 'no reader or route changed'}")
    for route in result["pending"]:
        note(f"route {route} is still delivering a slice; the change applies after it")
    for name in result["leaving"]:
        note(printable(f"{name} is removed, and ends after its present work"))
    for reader, problem in result["problems"].items():
        note(problem_text(f"reader {reader}: {problem}"))


def _refuse_invalid_sql(target: Path) -> None:
    """Refuse the file that a running engine would reload if its SQL does not parse.

    Spark itself would report that only at the next entry, and the route would stop.
    """
    file = _file_to_reload(target)
    if file is None or not perform_request(target, Status())["running"]:
        return
    from transporter.cli.check_sql import refuse_invalid_sql  # noqa: PLC0415 - heavy

    refuse_invalid_sql(file, os.environ)


def _file_to_reload(target: Path) -> Path | None:
    """Return the pipeline file: *target*, or the one that has last run on this log directory."""
    if not target.is_dir():
        return target
    from transporter.log.filesystem import RealFileSystem  # noqa: PLC0415 - imports pyarrow
    from transporter.log.pipeline_record import read_pipeline_record  # noqa: PLC0415 - the same

    record = read_pipeline_record(RealFileSystem(), log_directory(target))
    return Path(record.file) if record is not None else None
