"""Command ``transporter reload``, by which a running engine reads its pipeline file again."""

from __future__ import annotations

from transporter.cli.action_options import Reason, perform_request
from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson, Target  # noqa: TC001 - Typer reads the annotations at run time
from transporter.cli.output import printable, write, write_json
from transporter.control.requests import Reload


def reload(target: Target, *, reason: Reason = "", as_json: AsJson = False) -> None:
    """Reload the running engine's pipeline file.

    SIGHUP does the same. Routes apply changed steps, filters, writers, retries and
    limits after their present slice. Readers with changed settings are reopened, and
    modules beside the file are imported again. New readers and routes start, and
    removed ones end. Settings that cannot change while the engine runs, such as the
    log's directory and Spark's, are refused with their line, and then nothing changes.

    Example:
        transporter reload pipeline.yaml --reason "division by zero fixed"
    """
    from transporter.pipeline.reload_changes import member_texts  # noqa: PLC0415 - imports the configuration

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
        note(printable(f"reader {reader}: {problem}"))
