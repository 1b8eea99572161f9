"""``transporter parked``: what routes have set aside, and what becomes of it.

What changes state takes the log's lock; a retry is a durable request that the
next run executes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from transporter.cli.log_entries import entry_json, time_text
from transporter.cli.offsets import Reason, RouteName, opened
from transporter.cli.output import printable, table, write, write_json
from transporter.cli.target import AsJson, Target, log_directory, offset_range

if TYPE_CHECKING:
    from transporter.offsets.parked import Parked, ParkedStore

Which = Annotated[
    str | None, typer.Argument(help="An offset, or a range; all by default.", metavar="[X..Y]")
]


def build() -> typer.Typer:
    """Put the group together."""
    group = typer.Typer(help="Show, retry or skip parked entries.", no_args_is_help=True)
    group.command("list")(list_parked)
    group.command("retry")(retry)
    group.command("skip")(skip)
    return group


def list_parked(target: Target, route: RouteName, *, as_json: AsJson = False) -> None:
    """List a route's parked entries, each with its error."""
    from transporter.offsets.offset_log import read_state, route_folder  # noqa: PLC0415 - pyarrow
    from transporter.offsets.parked import ParkedStore  # noqa: PLC0415

    directory = log_directory(target)
    wanted = set(read_state(directory, route).retries)
    store = ParkedStore(route_folder(directory, route))
    found = [store.load(offset) for offset in store.offsets()]
    if as_json:
        write_json([_json(parked, waiting=parked.offset in wanted) for parked in found])
        return
    columns = ("offset", "parked at", "key", "attempts", "error", "")
    table(columns, [_row(parked, waiting=parked.offset in wanted) for parked in found])


def retry(
    target: Target,
    route: RouteName,
    offsets: Which = None,
    *,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Ask for parked entries to be delivered by the next run, each key in order.

    Example: transporter parked retry pipeline.yaml events 14
    """
    with opened(log_directory(target), route) as (_, offset_log):
        chosen = _chosen(_store(offset_log.folder), offsets)
        offset_log.request_retries(chosen)
        offset_log.audit("parked retry", offsets=chosen, reason=reason)
    _report(route, chosen, "will be delivered by the next run", as_json=as_json)


def skip(
    target: Target,
    route: RouteName,
    offsets: Annotated[str, typer.Argument(help="An offset, or a range.", metavar="X..Y")],
    *,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Give parked entries up for good; they stay in the log as long as it keeps them.

    Example: transporter parked skip pipeline.yaml events 14 --reason "test order"
    """
    with opened(log_directory(target), route) as (_, offset_log):
        store = _store(offset_log.folder)
        chosen = _chosen(store, offsets)
        offset_log.audit("parked skip", offsets=chosen, reason=reason)
        for offset in chosen:
            store.remove(offset)
    _report(route, chosen, "skipped", as_json=as_json)


def _store(folder: Any) -> ParkedStore:  # noqa: ANN401 - a path
    from transporter.offsets.parked import ParkedStore  # noqa: PLC0415 - imports pyarrow

    return ParkedStore(folder)


def _chosen(store: ParkedStore, text: str | None) -> list[int]:
    from transporter.errors import OffsetRefused  # noqa: PLC0415 - only here

    first, last = offset_range(text) if text else (0, 1 << 62)
    chosen = [offset for offset in store.offsets() if first <= offset <= last]
    if not chosen:
        raise OffsetRefused(f"nothing is parked at {text or 'any offset'}")
    return chosen


def _report(route: str, offsets: list[int], done: str, *, as_json: bool) -> None:
    if as_json:
        write_json({"route": route, "offsets": offsets, "done": done})
    else:
        write(f"route {printable(route)}: {len(offsets)} parked {done}")


def _json(parked: Parked, *, waiting: bool) -> dict[str, Any]:
    from transporter.message import Entries  # noqa: PLC0415 - imports pyarrow

    entry = next(iter(Entries(parked.entries)))
    return {
        "offset": parked.offset,
        "error": parked.reason.error,
        "attempts": parked.reason.attempts,
        "parked_at": time_text(parked.reason.parked_at),
        "behind": parked.reason.behind,
        "retry_requested": waiting,
        "entry": entry_json(entry, confirmed=parked.offset),
    }


def _row(parked: Parked, *, waiting: bool) -> tuple[object, ...]:
    key = parked.key.decode(errors="replace") if parked.key is not None else "null"
    reason = parked.reason
    note = "retry requested" if waiting else ""
    return (
        parked.offset,
        time_text(reason.parked_at),
        key,
        reason.attempts,
        reason.error,
        note,
    )
