"""``transporter reload``: let the running engine read its pipeline file again."""

from __future__ import annotations

from transporter.cli.acting import Reason, act
from transporter.cli.log_entries import note
from transporter.cli.output import printable, write, write_json
from transporter.cli.target import AsJson, Target  # noqa: TC001 - Typer reads the annotations at run time
from transporter.control.requests import Reload


def reload(target: Target, *, reason: Reason = "", as_json: AsJson = False) -> None:
    """Let the running engine read its pipeline file again, as SIGHUP does.

    Routes take up their steps, filters, writers, retries and limits after the slice
    they are at; readers with other settings are opened anew; modules beside the file
    are imported anew. New readers and routes begin, and those that the file names no
    more end. What cannot change while the engine runs (the log's place, Spark) is
    refused with its line, and then nothing changes.

    Example: transporter reload pipeline.yaml --reason "the step divides by zero no more"
    """
    from transporter.pipeline.reloading import named  # noqa: PLC0415 - imports the configuration

    result = act(target, Reload(reason))
    if as_json:
        write_json(result)
        return
    said = {
        "taken up by": result["routes"],
        "opened anew:": result["readers"],
        "new:": named(result["added"]),
        "removed:": named(result["removed"]),
    }
    parts = [f"{what} {', '.join(map(printable, names))}" for what, names in said.items() if names]
    write(f"{printable(result['file'])}: {'; '.join(parts) or 'no reader or route changed'}")
    for route in result["pending"]:
        note(f"route {route} is still delivering a slice; it takes that up behind it")
    for name in result["leaving"]:
        note(printable(f"{name} is removed, and has not ended yet: it ends behind what it is at"))
    for reader, problem in result["problems"].items():
        note(printable(f"reader {reader}: {problem}"))
