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
    they are at; modules beside the file are imported anew. What cannot change while
    the engine runs (readers, the log's place, which routes there are) is refused
    with its line, and then nothing changes.

    Example: transporter reload pipeline.yaml --reason "the step divides by zero no more"
    """
    result = act(target, Reload(reason))
    if as_json:
        write_json(result)
        return
    routes = ", ".join(map(printable, result["routes"]))
    write(
        f"{printable(result['file'])}: {f'taken up by {routes}' if routes else 'no route changed'}"
    )
    for route in result["pending"]:
        note(f"route {route} is still delivering a slice; it takes that up behind it")
