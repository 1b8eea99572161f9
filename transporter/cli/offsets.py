"""``transporter offsets``, ``ack`` and ``replay``: how far routes have come, and changing it.

What changes state takes the log's lock, so it is refused while an engine runs.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.output import printable, table, write, write_json
from transporter.cli.target import AsJson, Target, log_directory, offset_range

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.log.commit_log import CommitLog
    from transporter.offsets.offset_log import OffsetLog
    from transporter.offsets.state import RouteState

RouteName = Annotated[str, typer.Argument(help="The route's name.", metavar="ROUTE")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept in the audit file.")]


def build() -> typer.Typer:
    """Put the group together."""
    group = typer.Typer(help="Show how far routes have come.", no_args_is_help=True)
    group.command("list")(list_routes)
    group.command("show")(show)
    group.command("rename")(rename)
    group.command("delete")(delete)
    return group


def list_routes(target: Target, *, as_json: AsJson = False) -> None:
    """List the routes that have run on a log, with watermark and lag."""
    directory = log_directory(target)
    last, states = _states(directory)
    rows = [
        {"route": name, "watermark": state.watermark, "lag": max(0, last - state.watermark)}
        | {"generation": state.generation, "replaying": state.replay is not None}
        for name, state in states.items()
    ]
    if as_json:
        write_json(rows)
    else:
        columns = ("route", "watermark", "lag", "generation", "replaying")
        table(columns, [[row[column] for column in columns] for row in rows])


def show(target: Target, route: RouteName, *, as_json: AsJson = False) -> None:
    """Show all that is known of one route, its newest offset in each namespace among it."""
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
    for part in state.above:
        write(f"above       {part.first}..{part.last} {part.kind}")
    write()
    table(("namespace", "newest offset"), sorted(state.namespaces.items()))


def rename(
    target: Target, route: RouteName, new: Annotated[str, typer.Argument(metavar="NEW")]
) -> None:
    """Give a route's progress to another name, before the pipeline file is changed.

    A sink that stores its own offset does so under the old name, and is not asked any more.
    """
    from transporter.offsets.offset_log import rename_route  # noqa: PLC0415 - imports pyarrow

    _check_name(new)
    directory = log_directory(target)
    with locked(directory):
        rename_route(directory, route, new)
    write(f"route {printable(route)} is now {printable(new)}")


def delete(
    target: Target,
    route: RouteName,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Forget all progress of a route, its parked entries included; it then holds nothing back."""
    from transporter.offsets.offset_log import delete_route, read_state  # noqa: PLC0415 - pyarrow

    directory = log_directory(target)
    watermark = read_state(directory, route).watermark
    if not yes:
        question = f"Forget that route {printable(route)} has come to offset {watermark}?"
        typer.confirm(question, abort=True, err=True)
    with locked(directory):
        delete_route(directory, route)
    write(f"route {printable(route)} is forgotten; a route of this name would begin anew")


def ack(
    target: Target,
    route: RouteName,
    offsets: Annotated[str, typer.Argument(help="An offset, or a range.", metavar="X..Y")],
    *,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Mark entries as settled for a route without delivering them.

    Example: transporter ack pipeline.yaml events 14 --reason "broken order, see ticket 7"
    """
    from transporter.offsets.state import Range  # noqa: PLC0415 - imports pyarrow

    first, last = offset_range(offsets)
    with opened(log_directory(target), route) as (log, offset_log):
        state = offset_log.settle(Range(first, last, "operator"), log.durable)
        offset_log.sync()
        offset_log.audit("ack", first=first, last=last, reason=reason)
    _report(route, state, f"acked {first}..{last}", as_json=as_json)


def replay(
    target: Target,
    route: RouteName,
    *,
    start: Annotated[str, typer.Option("--from", help="An offset, or a time in ISO 8601.")],
    end: Annotated[
        int | None, typer.Option("--to", help="The last offset; by default the watermark.", min=0)
    ] = None,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Deliver entries again, at the next run, before what is new.

    A sink that keeps the latest value of a key ends with the replayed, older one
    until what follows is replayed too: replay up to the watermark there.

    Example: transporter replay pipeline.yaml events --from 2030-01-31T08:00 --to 1200
    """
    with opened(log_directory(target), route) as (log, offset_log):
        first = int(start) if start.isdecimal() else _offset_at(log, start)
        last = offset_log.state.watermark if end is None else end
        state = offset_log.begin_replay(first, last)
        offset_log.audit("replay", first=first, last=last, reason=reason)
    _report(route, state, f"{first}..{last} will be delivered again", as_json=as_json)


def _check_name(name: str) -> None:
    """Refuse what a pipeline file could not name a route."""
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - heavy

    from transporter.pipeline.config import Name  # noqa: PLC0415

    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise typer.BadParameter(f"a route's name {reason}") from error


def _states(directory: Path) -> tuple[int, dict[str, RouteState]]:
    from transporter.log.inspect import inspect  # noqa: PLC0415 - imports pyarrow
    from transporter.offsets.offset_log import (  # noqa: PLC0415
        declared_routes,
        proved_offset,
        read_state,
    )

    last = inspect(directory, proved_offset(directory)).last
    return last, {name: read_state(directory, name) for name in declared_routes(directory)}


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the log's lock, so that no engine runs."""
    from transporter.log.inspect import inspect  # noqa: PLC0415 - imports pyarrow
    from transporter.log.lock import DirectoryLock  # noqa: PLC0415

    inspect(directory)
    lock = DirectoryLock(directory)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def opened(directory: Path, route: str) -> Iterator[tuple[CommitLog, OffsetLog]]:
    """Open log and offset log under the log's lock; the route must have run before."""
    from transporter.log.commit_log import CommitLog  # noqa: PLC0415 - imports pyarrow
    from transporter.log.inspect import inspect  # noqa: PLC0415
    from transporter.offsets.offset_log import (  # noqa: PLC0415
        OffsetLog,
        proved_offset,
        read_state,
    )

    inspect(directory, proved_offset(directory))
    read_state(directory, route)
    with (
        CommitLog.open(directory, proved=lambda: proved_offset(directory)) as log,
        OffsetLog(directory, route) as offset_log,
    ):
        yield log, offset_log


def _offset_at(log: CommitLog, text: str) -> int:
    from transporter.log.reader import LogReader  # noqa: PLC0415 - imports pyarrow

    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is neither an offset nor a time such as 2030-01-31T08:00:00+00:00"
        ) from error
    # Without a zone it is the operator's own time.
    moment = int(time.astimezone(UTC).timestamp() * 1e6)
    with LogReader(log.directory) as reader:
        return reader.offset_at(moment, log.durable)


def _report(route: str, state: RouteState, done: str, *, as_json: bool) -> None:
    result: dict[str, Any] = {"route": route, "done": done, "watermark": state.watermark}
    if as_json:
        write_json(result | {"generation": state.generation})
    else:
        write(f"route {printable(route)}: {done}; watermark {state.watermark}")
