"""``transporter replay``: deliver what was delivered before again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.acting import Reason, RouteName, act, report
from transporter.cli.log_entries import note, time_text
from transporter.cli.log_range import moment
from transporter.cli.output import write
from transporter.cli.target import AsJson, Target  # noqa: TC001 - Typer reads the annotations at run time
from transporter.control.requests import CancelReplay, Replay

if TYPE_CHECKING:
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
        bool, typer.Option("--dry-run", help="Only count what would be delivered again.")
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Also when the log does not hold all of it any more.")
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
    report(result, as_json=as_json)
    if not as_json:
        _explain(result)


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
    if "entries" in result:
        times = (result["oldest"], result["newest"])
        logged = (
            ", logged from {} to {}".format(*map(time_text, times)) if None not in times else ""
        )
        write(f"{result['entries']} entries{logged}")
