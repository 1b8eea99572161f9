"""Commands ``transporter route``: pause, resume, step and forget a route."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from transporter.cli.action_options import (
    Reason,
    RouteName,
    perform_request,
    progress_question,
    report_result,
)
from transporter.cli.command_group import command_group
from transporter.cli.entry_output import note
from transporter.cli.log_target import AsJson, Target, log_directory
from transporter.cli.output import confirm
from transporter.control.requests import Forget, Pause, Resume, Step
from transporter.errors import ActionRefused

if TYPE_CHECKING:
    from pathlib import Path


def build() -> typer.Typer:
    """Build the group."""
    return command_group(
        "Pause, resume, step or forget a route.",
        pause=pause,
        resume=resume,
        step=step,
        forget=forget,
    )


def pause(
    target: Target, route: RouteName, *, reason: Reason = "", as_json: AsJson = False
) -> None:
    """Stop a route's deliveries until resumed.

    The pause survives restarts of the engine. The route finishes its present slice.
    Readers and other routes continue.

    Example:
        transporter route pause pipeline.yaml events --reason "sink is moving"
    """
    result = perform_request(target, Pause(route, reason))
    report_result(result, as_json=as_json)
    if not as_json and not result.get("in_effect", True):
        note("the route finishes its present slice first")


def resume(
    target: Target, route: RouteName, *, reason: Reason = "", as_json: AsJson = False
) -> None:
    """Continue a paused, halted or waiting route.

    A halted route has stopped at a failure. A waiting one retries at once.

    Example:
        transporter route resume pipeline.yaml events
    """
    result = perform_request(target, Resume(route, reason))
    report_result(result, as_json=as_json, later=result["done"] == "resumed")


def step(target: Target, route: RouteName, *, reason: Reason = "", as_json: AsJson = False) -> None:
    """Deliver one entry of a paused route.

    That is the next entry that the route's filter accepts. The route stays paused. The
    command reports whether the entry was delivered, parked or skipped, or why it failed.

    Example:
        transporter route step pipeline.yaml events
    """
    result = perform_request(target, Step(route, reason))
    report_result(result, as_json=as_json)
    if not as_json and not result["settled"]:
        note("the entry is not settled yet; 'transporter status' shows the route's state")


def forget(
    target: Target,
    route: RouteName,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Remove the progress of a former route.

    Such a route is no longer in the pipeline file but still pins the log. Its parked
    entries are removed too. A route that runs, or that the file names, is refused.

    Example:
        transporter route forget pipeline.yaml old-events --yes
    """
    from transporter.offsets.offset_log import read_state  # noqa: PLC0415 - imports pyarrow

    watermark = read_state(log_directory(target), route).watermark
    if not target.is_dir():
        _refuse_named(target, route)
    if not yes:
        confirm(progress_question("Remove", route, watermark))
    report_result(perform_request(target, Forget(route, reason)), as_json=as_json, later=False)


def _refuse_named(file: Path, route: str) -> None:
    from transporter.pipeline.log_location import route_lines  # noqa: PLC0415 - heavy

    line = route_lines(file, os.environ).get(route)
    if line is not None:
        raise ActionRefused(
            f"{file}:{line}: route {route} is in the pipeline; remove it there first, "
            "or restart it from the beginning with 'transporter offsets delete'"
        )
