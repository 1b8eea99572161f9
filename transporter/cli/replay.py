"""``transporter replay``: deliver what was delivered before again."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.acting import Reason, RouteName, act, report
from transporter.cli.log_entries import note, note_dropped, time_text
from transporter.cli.log_range import moment
from transporter.cli.output import printable, write
from transporter.cli.target import AsJson, Target, log_directory
from transporter.control.requests import CancelReplay, Replay
from transporter.errors import ConfigError, EnvironmentFault

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.control.requests import Request


def replay(  # noqa: PLR0913 - one for each option
    target: Target,
    route: RouteName,
    *,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="OFFSET|TIME",
            help="An offset, a time in ISO 8601, or a duration ago such as 10m.",
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="OFFSET|TIME", help="This one included; by default the watermark."
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", metavar="REGEX", help="Only what it matches (RE2).")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count what would be read and delivered.")
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Also where entries were removed, lost or compacted.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End the replay that is under way, where it is.")
    ] = False,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Deliver entries again, at the next slice, before what is new; or cancel that.

    A sink that keeps the latest value of a key ends with the replayed, older one
    until what follows is replayed too: replay up to the watermark there.

    Example: transporter replay pipeline.yaml events --from 2030-01-31T08:00 --to 1200
    Example: transporter replay pipeline.yaml events --from 2h --namespace '^orders' --dry-run
    Example: transporter replay pipeline.yaml events --cancel --reason "wrong range"
    """
    chosen = any((start, end, namespace, dry_run, partial))
    if cancel == bool(start) or (cancel and chosen):
        raise typer.BadParameter("say where it begins with --from, or --cancel and nothing else")
    request: Request = CancelReplay(route, reason)
    if not cancel:
        request = Replay(
            route,
            **_bound(start, "first", "since"),
            **_bound(end, "last", "until"),
            namespace=namespace,
            dry_run=dry_run,
            partial=partial,
            reason=reason,
        )
    result = act(target, request)
    if dry_run:
        result["deliveries"] = _deliveries(target, result, namespace)
    report(result, as_json=as_json)
    if not as_json:
        _explain(result)


def _deliveries(target: Path, planned: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Count what the route of the file *target* would deliver; else ``unknown`` is the reason."""
    if target.is_dir():
        return {"unknown": "a log directory has no steps; give the pipeline file"}
    from transporter.cli.spark_process import trial_spark  # noqa: PLC0415 - imports pyarrow
    from transporter.trial.replays import deliveries  # noqa: PLC0415 - the same
    from transporter.trial.routes import chosen, trial_routes  # noqa: PLC0415 - the same

    directory, first, last = log_directory(target), planned["first"], planned["last"]
    with trial_spark() as spark:
        try:
            route = chosen(trial_routes(target, os.environ, spark), planned["route"], str(target))
            return deliveries(directory, route, first, last, namespace).to_json()
        except (ConfigError, EnvironmentFault) as error:
            return {"unknown": str(error)}


def _bound(text: str | None, offset: str, time: str) -> dict[str, Any]:
    if text is None:
        return {}
    if text.isdecimal():
        return {offset: int(text)}
    return {time: moment(text, datetime.now(UTC))}


def _explain(result: dict[str, Any]) -> None:
    if (warning := result.get("warning")) is not None:
        note(f"warning: {warning}")
    for first, last in result.get("missing", ()):
        note(f"warning: {first}..{last} are gone from the log")
    if "dropped" in result:
        note_dropped(result["dropped"], result["first"], result["last"])
    if "entries" in result:
        times = (result["oldest"], result["newest"])
        logged = (
            ", logged from {} to {}".format(*map(time_text, times)) if None not in times else ""
        )
        entries = "1 entry" if result["entries"] == 1 else f"{result['entries']} entries"
        write(f"{entries} would be read{logged}")
        write(_deliveries_text(result["deliveries"]))


def _deliveries_text(found: dict[str, Any]) -> str:
    if "unknown" in found:
        reason = printable(found["unknown"].partition("\n")[0])
        return f"how many of them would be delivered is not known: {reason}"
    text = f"{found['delivered']} of them would be delivered"
    if found["messages"] != found["delivered"]:
        text += f", as {found['messages']} messages"
    text += f"; {found['left_out']} are left out by the route's namespace and steps"
    text += f", {found['failing']} would fail" if found["failing"] else ""
    return text + (f", {found['parked']} stay parked" if found["parked"] else "")
