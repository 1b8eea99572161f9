"""``transporter route``: pause, resume and step a route, and forget one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from transporter.cli.acting import Reason, RouteName, act, report
from transporter.cli.groups import group
from transporter.cli.log_entries import note
from transporter.cli.output import confirm, printable
from transporter.cli.target import AsJson, Target, log_directory
from transporter.control.requests import Forget, Pause, Resume, Step
from transporter.errors import ActionRefused

if TYPE_CHECKING:
    from pathlib import Path


def build() -> typer.Typer:
    """Put the group together."""
    return group(
        "Pause, resume, step or forget a route.",
        pause=pause,
        resume=resume,
        step=step,
        forget=forget,
    )


def pause(
    target: Target, route: RouteName, *, reason: Reason = "", as_json: AsJson = False
) -> None:
    """Let a route deliver nothing more, until it is resumed; it stays so over restarts.

    The slice that it is at comes to its end. Readers and other routes go on.

    Example: transporter route pause pipeline.yaml events --reason "sink is being moved"
    """
    result = act(target, Pause(route, reason))
    report(result, as_json=as_json)
    if not as_json and not result.get("in_effect", True):
        note("the slice that it is at goes on until its end")


def resume(
    target: Target, route: RouteName, *, reason: Reason = "", as_json: AsJson = False
) -> None:
    """Let a route go on that is paused, that has halted at a failure, or that waits to try again.

    Example: transporter route resume pipeline.yaml events
    """
    report(act(target, Resume(route, reason)), as_json=as_json)


def step(target: Target, route: RouteName, *, reason: Reason = "", as_json: AsJson = False) -> None:
    """Let a paused route deliver the next entry that it takes, and stay paused.

    Reports whether that was delivered, parked or skipped, or has failed, and why.

    Example: transporter route step pipeline.yaml events
    """
    result = act(target, Step(route, reason))
    report(result, as_json=as_json)
    if not as_json and not result["settled"]:
        note("it is not settled yet; 'transporter status' shows what the route is doing")


def forget(
    target: Target,
    route: RouteName,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Remove all that is kept of a route that is in the pipeline no more; it pins the log.

    Its parked entries go, too. Refused for a route that runs, or that the file names.

    Example: transporter route forget pipeline.yaml old-events --yes
    """
    from transporter.offsets.offset_log import read_state  # noqa: PLC0415 - imports pyarrow

    watermark = read_state(log_directory(target), route).watermark
    if not target.is_dir():
        _refuse_named(target, route)
    if not yes:
        question = f"Forget that route {printable(route)} has come to offset {watermark}?"
        confirm(question)
    report(act(target, Forget(route, reason)), as_json=as_json)


def _refuse_named(file: Path, route: str) -> None:
    from transporter.pipeline.place import route_lines  # noqa: PLC0415 - heavy

    line = route_lines(file, os.environ).get(route)
    if line is not None:
        raise ActionRefused(
            f"{file}:{line}: route {route} is in the pipeline; remove it there first, "
            "or let it begin anew with 'transporter offsets delete'"
        )
