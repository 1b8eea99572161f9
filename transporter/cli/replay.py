"""Command ``transporter replay``, which delivers earlier entries again."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.action_options import Reason, RouteName, perform_request, report_result
from transporter.cli.entry_output import note, note_dropped
from transporter.cli.entry_selection import offset_bound, parse_moment
from transporter.cli.log_target import AsJson, Target, log_directory
from transporter.cli.output import count_text, others_print_to_stderr, printable, write
from transporter.control.entry_values import time_text
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
            help="First entry: an offset, a time in ISO 8601, or a duration ago such as 10m.",
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="OFFSET|TIME", help="Last entry, inclusive; by default the watermark."
        ),
    ] = None,
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace", metavar="REGEX", help="Only namespaces that match (RE2 syntax)."
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count the entries to read and deliver.")
    ] = False,
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Replay even if entries were removed, lost or compacted."),
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End the replay in progress where it is.")
    ] = False,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Deliver earlier entries again.

    The replay begins with the next slice and goes before new entries. A sink that keeps
    the latest value of a key then holds the older, replayed value until the entries
    behind it are replayed too. Replay up to the watermark for such a sink.

    Examples:
        transporter replay pipeline.yaml events --from 2030-01-31T08:00 --to 1200
        transporter replay pipeline.yaml events --from 2h --dry-run
        transporter replay pipeline.yaml events --cancel --reason "wrong range"
    """
    chosen = any((start, end, namespace, dry_run, partial))
    if cancel == bool(start) or (cancel and chosen):
        raise typer.BadParameter("give its start with --from, or --cancel without other options")
    request: Request = CancelReplay(route, reason)
    if not cancel:
        request = Replay(
            route,
            **_range_bound(start, "first", "since"),
            **_range_bound(end, "last", "until"),
            namespace=namespace,
            dry_run=dry_run,
            partial=partial,
            reason=reason,
        )
    result = perform_request(target, request)
    with others_print_to_stderr():
        if not result["live"] and result.get("warning"):
            result["warning"] = _warning_for_sink(target, route, result["warning"])
        if dry_run:
            result["deliveries"] = _deliveries(target, result, namespace)
    report_result(result, as_json=as_json, later=not (cancel or dry_run))
    if not as_json:
        _report_plan(result)


def _warning_for_sink(target: Path, route: str, warning: str) -> str | None:
    """Return the *warning* about a sink that was not known, as it is for the file's own."""
    from transporter.control.operator_actions import IF_UPSERTS  # noqa: PLC0415 - imports pyarrow

    upserts = None if target.is_dir() else _has_upserts(target, route)
    if upserts is None:
        return warning
    return warning.removeprefix(IF_UPSERTS) if upserts else None


def _has_upserts(file: Path, route: str) -> bool | None:
    """Return whether the sink of *route* keeps the newest value of a key, if the file shows it.

    Its variables need not be set.
    """
    from transporter.pipeline.adaptor_registry import find_writer  # noqa: PLC0415 - heavy
    from transporter.pipeline.log_location import route_writer  # noqa: PLC0415 - the same
    from transporter.units import FOLDER  # noqa: PLC0415 - the same

    folder = file.absolute().parent
    settings = route_writer(file, os.environ, route)
    try:
        cls = find_writer(str(settings.pop("adaptor", "")), folder)
        return bool(cls.Config.model_validate(settings, context={FOLDER: folder}).upserts)
    except Exception:  # noqa: BLE001 - the author's code; the request has been recorded
        return None


def _deliveries(target: Path, planned: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Count the deliveries of the file's route. If that fails, ``unknown`` is the reason."""
    if target.is_dir():
        return {"unknown": "a log directory has no steps; give the pipeline file"}
    from transporter.cli.spark_process import trial_spark  # noqa: PLC0415 - imports pyarrow
    from transporter.dry_run.replay_outcome import count_deliveries  # noqa: PLC0415 - the same
    from transporter.dry_run.routes import select_route, trial_routes  # noqa: PLC0415 - the same

    directory, first, last = log_directory(target), planned["first"], planned["last"]
    with trial_spark() as spark:
        try:
            route = select_route(
                trial_routes(target, os.environ, spark), planned["route"], str(target)
            )
            return count_deliveries(directory, route, first, last, namespace).to_json()
        except (ConfigError, EnvironmentFault) as error:
            return {"unknown": str(error)}


def _range_bound(text: str | None, offset: str, time: str) -> dict[str, Any]:
    if text is None:
        return {}
    if text.isdecimal():
        return {offset: offset_bound(text)}
    return {time: parse_moment(text, datetime.now(UTC))}


def _report_plan(result: dict[str, Any]) -> None:
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
        entries = count_text(result["entries"], "entry", "entries")
        write(f"{entries} would be read{logged}")
        write(_deliveries_text(result["deliveries"]))


def _deliveries_text(found: dict[str, Any]) -> str:
    if "unknown" in found:
        reason = printable(found["unknown"].partition("\n")[0])
        return f"the number of deliveries is unknown: {reason}"
    text = f"{found['delivered']} of them would be delivered"
    if found["messages"] != found["delivered"]:
        text += f", as {count_text(found['messages'], 'message', 'messages')}"
    left_out = count_text(found["left_out"], "is", "are")
    text += f"; {left_out} left out by the route's namespace and steps"
    text += f", {found['failing']} would fail" if found["failing"] else ""
    stay = count_text(found["parked"], "stays", "stay")
    return text + (f", {stay} parked" if found["parked"] else "")
