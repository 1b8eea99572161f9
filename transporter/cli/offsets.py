"""Commands ``transporter offsets``: the stored progress of routes.

``rename`` and ``delete`` take the log's lock, so they are refused while an engine runs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.action_options import Reason, RouteName, progress_question
from transporter.cli.command_group import command_group
from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson, Target, log_directory
from transporter.cli.output import (
    confirm,
    printable,
    problem_text,
    value_text,
    write,
    write_json,
    write_table,
)
from transporter.control.entry_values import time_text

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.offsets.state import RouteState


def build() -> typer.Typer:
    """Build the group."""
    return command_group(
        "Show and manage the progress of routes.",
        list=list_routes,
        show=show,
        given_up=given_up,
        rename=rename,
        delete=delete,
    )


def list_routes(target: Target, *, as_json: AsJson = False) -> None:
    """List routes with their watermark and lag.

    These are all routes that have run on the log, also those that the file no longer names.

    Example:
        transporter offsets list pipeline.yaml
    """
    directory = log_directory(target)
    last, states = _read_states(directory)
    rows = [
        {"route": name, "watermark": state.watermark, "lag": max(0, last - state.watermark)}
        | {"generation": state.generation, "replaying": state.replay is not None}
        | {"paused": state.paused}
        for name, state in states.items()
    ]
    if as_json:
        write_json(rows)
    else:
        columns = ("route", "watermark", "lag", "generation", "replaying", "paused")
        write_table(columns, [[value_text(row[column]) for column in columns] for row in rows])


def show(target: Target, route: RouteName, *, as_json: AsJson = False) -> None:
    """Show the stored progress of one route.

    It includes the route's newest offset in each namespace.

    Example:
        transporter offsets show pipeline.yaml events
    """
    from transporter.offsets.offset_log import read_state  # noqa: PLC0415 - imports pyarrow

    state = read_state(log_directory(target), route)
    if as_json:
        write_json({"route": route, **asdict(state), "above": [p._asdict() for p in state.above]})
        return
    replay = state.replay
    write(f"route       {printable(route)}")
    write(f"watermark   {state.watermark}")
    write(f"generation  {state.generation}")
    write(
        f"replay      {f'{replay.first}..{replay.last}, next {replay.next}' if replay else 'none'}"
    )
    if replay and replay.namespace:
        write(f"            of {printable(replay.namespace)} only")
    write(f"paused      {'yes' if state.paused else 'no'}")
    for part in state.above:
        write(f"above       {part.first}..{part.last} {part.kind}")
    write()
    write_table(("namespace", "newest offset"), sorted(state.namespaces.items()))


def given_up(
    target: Target,
    route: RouteName,
    *,
    last: Annotated[
        int, typer.Option("--last", help="Number of lines to show, the newest; 0: all.", min=0)
    ] = 50,
    as_json: AsJson = False,
) -> None:
    """Show skipped and late delivered entries.

    A route writes a line when on_error: skip passes an entry, and when it delivers a
    parked one. An operator's acts are in the audit file instead.

    Example:
        transporter offsets given-up pipeline.yaml events --last 10
    """
    from transporter.offsets.given_up import read_given_up  # noqa: PLC0415 - imports pyarrow
    from transporter.offsets.offset_log import read_state, route_folder  # noqa: PLC0415

    directory = log_directory(target)
    read_state(directory, route)
    found = deque(read_given_up(route_folder(directory, route)), maxlen=last or None)
    if as_json:
        write_json(list(found))
        return
    if not found:
        note(f"route {route} has skipped no entry, and delivered no parked one")
        return
    columns = ("at", "event", "offset", "attempts", "error")
    write_table(columns, [_given_up_row(each) for each in found])


def _given_up_row(line: dict[str, Any]) -> tuple[object, ...]:
    at = line.get("at")
    known = isinstance(at, int | float) and isfinite(at)
    return (
        time_text(round(at * 1_000_000)) if known else "",  # type: ignore[operator]
        line["event"],
        line.get("offset", line.get("count", "")),
        line.get("attempts", ""),
        problem_text(line.get("error", "")),
    )


def rename(
    target: Target,
    route: RouteName,
    new: Annotated[str, typer.Argument(help="New name.", metavar="NEW")],
    *,
    reason: Reason = "",
) -> None:
    """Move a route's progress to another name.

    Do this before you change the pipeline file, while no engine runs. A sink that stores
    its own offset keeps it under the old name, and that offset is no longer used.

    Example:
        transporter offsets rename pipeline.yaml events orders
    """
    from transporter.audit import this_operator  # noqa: PLC0415 - only commands that act

    _check_name(new)
    directory = log_directory(target)
    from transporter.control import stopped_log  # noqa: PLC0415 - imports pyarrow

    stopped_log.rename_progress(directory, route, new, this_operator(), reason)
    write(f"route {printable(route)} is now {printable(new)}")


def delete(
    target: Target,
    route: RouteName,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    reason: Reason = "",
) -> None:
    """Delete all progress of a route.

    That includes its parked entries. The route then no longer pins the log. No engine
    may be running.

    Example:
        transporter offsets delete pipeline.yaml events
    """
    from transporter.audit import this_operator  # noqa: PLC0415 - only commands that act
    from transporter.offsets.offset_log import read_state  # noqa: PLC0415 - imports pyarrow

    directory = log_directory(target)
    watermark = read_state(directory, route).watermark
    if not yes:
        confirm(progress_question("Delete", route, watermark))
    from transporter.control import stopped_log  # noqa: PLC0415 - imports pyarrow

    stopped_log.delete_progress(directory, "offsets delete", route, this_operator(), reason)
    write(f"route {printable(route)} is forgotten; a route of this name would start again")


def _check_name(name: str) -> None:
    """Refuse a name that a pipeline file would refuse."""
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - heavy

    from transporter.pipeline.config import Name  # noqa: PLC0415

    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise typer.BadParameter(f"a route's name {reason}") from error


def _read_states(directory: Path) -> tuple[int, dict[str, RouteState]]:
    from transporter.offsets.offset_log import (  # noqa: PLC0415
        declared_routes,
        inspect_log,
        read_state,
    )

    last = inspect_log(directory).last
    return last, {name: read_state(directory, name) for name in declared_routes(directory)}
