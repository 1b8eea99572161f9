"""Offsets that an action delivers: the range of a replay with its gaps, and the entry of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transporter.errors import ActionRefused, OffsetRefused
from transporter.log.reader import dropped_text
from transporter.log.search import (
    EntryFilter,
    first_offset_since,
    frames_with_retry,
    matching_entries,
    offset_before_newer,
    offset_behind_older,
)
from transporter.offsets.state import is_settled
from transporter.pipeline.namespace_filter import NamespaceFilter

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.control.requests import Replay
    from transporter.log.reader import LogReader
    from transporter.offsets.state import RouteState


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The offsets ``first`` to ``last``.

    ``missing`` are the ranges among them that retention has removed. ``dropped`` counts the
    entries that compaction has removed from the rest.
    """

    first: int
    last: int
    namespace: str
    missing: tuple[tuple[int, int], ...]
    dropped: int


@dataclass(frozen=True, slots=True)
class RangeContents:
    """Entries of the requested namespaces in a range: their count and their log times."""

    entries: int
    oldest: int | None
    newest: int | None

    def to_json(self) -> dict[str, Any]:
        """Return plain values; times are in µs UTC."""
        return {"entries": self.entries, "oldest": self.oldest, "newest": self.newest}


def plan_replay(
    reader: LogReader,
    durable: int,
    watermark: int,
    request: Replay,
    on_progress: Callable[[int], object] = lambda _: None,
) -> ReplayPlan:
    """Resolve the range of *request* in a log whose last durable offset is *durable*.

    *on_progress* is called with the offset up to which the log has been searched, and may raise.

    Raises:
        ActionRefused: parts of it are gone, and ``partial`` is not set.
        OffsetRefused: nothing of it is in the log.

    """
    _refuse_bad_pattern(request.namespace)
    first = _first_offset(reader, durable, request)
    last = min(_last_offset(reader, durable, request, watermark), watermark)
    if first > last:
        raise OffsetRefused(
            f"route {request.route}: there is nothing to replay: it has delivered offsets up to "
            f"{watermark}, and the requested range begins at {first} and ends at {last}"
        )
    missing = tuple(_missing_ranges(reader, first, last))
    dropped = reader.count_dropped(first, last, on_progress)
    if (missing or dropped) and not request.partial:
        ranges = ", ".join(f"{begin}..{end}" for begin, end in missing)
        gone = [f"the log does not hold {ranges} any more"] if missing else []
        gone += [dropped_text(dropped)] if dropped else []
        raise ActionRefused(
            f"route {request.route}: of {first}..{last} {', and '.join(gone)}; "
            "add --partial to replay the rest"
        )
    begin = max(first, min(reader.first_offset(), last))
    return ReplayPlan(begin, last, request.namespace, missing, dropped)


def count_contents(
    reader: LogReader, plan: ReplayPlan, on_progress: Callable[[int], object] = lambda _: None
) -> RangeContents:
    """Count the entries that *plan* would redeliver, before the route's own filter.

    *on_progress* is called with the offset up to which the log has been read, and may raise.
    """
    count, oldest, newest = 0, None, None
    wanted = EntryFilter(plan.namespace)
    for entries in matching_entries(reader, plan.first, plan.last, wanted, on_progress):
        if entries.num_rows:
            times = entries.column("logged_at")
            oldest = times[0].value if oldest is None else oldest
            newest = times[entries.num_rows - 1].value
            count += entries.num_rows
    return RangeContents(count, oldest, newest)


def _refuse_bad_pattern(pattern: str) -> None:
    try:
        EntryFilter(pattern)
    except ValueError as error:
        raise ActionRefused(f"--namespace {error}") from error


def _first_offset(reader: LogReader, durable: int, request: Replay) -> int:
    if request.first is not None:
        return request.first
    since = request.since or 0
    return offset_behind_older(reader, since, 0, first_offset_since(reader, since, durable))


def _last_offset(reader: LogReader, durable: int, request: Replay, watermark: int) -> int:
    if request.last is not None:
        if request.last > watermark:
            raise OffsetRefused(
                f"route {request.route}: it has delivered the offsets up to {watermark} only, so "
                f"{request.last} cannot be replayed yet; end the range at {watermark}"
            )
        return request.last
    return (
        watermark
        if request.until is None
        else offset_before_newer(reader, request.until, 0, durable)
    )


def _missing_ranges(reader: LogReader, first: int, last: int) -> list[tuple[int, int]]:
    """Return the ranges that retention has removed or a repair could not save."""
    oldest = reader.first_offset()
    found = [(first, min(oldest - 1, last))] if first < oldest else []
    at = max(first, oldest)
    while at <= last and (gap := reader.lost_gap(at, last)) is not None:
        found.append((max(at, gap.first), min(gap.last, last)))
        at = gap.last + 1
    return found


def next_entry(
    reader: LogReader,
    durable: int,
    state: RouteState,
    namespace: str,
    on_progress: Callable[[int], object] = lambda _: None,
) -> int:
    """Return the offset of the next entry that a route of this *namespace* filter delivers.

    Entries that are already settled above the watermark are skipped. *on_progress* is called with
    the offset up to which the log has been read, and may raise.

    Raises:
        ActionRefused: the log has no such entry yet.

    """
    filters = [NamespaceFilter(namespace)]
    last = durable
    if state.replay is not None:
        last = state.replay.last
        filters.append(NamespaceFilter(state.replay.namespace))
    for found in frames_with_retry(reader, state.next_offset(), last):
        entries = found.entries_within(state.next_offset(), last)
        for each in filters:
            entries = each.select(entries)
        for offset in entries.column("offset").to_pylist():
            if state.replay is not None or not is_settled(state, offset, offset):
                return int(offset)
        on_progress(found.frame.last)
    if state.replay is not None:
        # Nothing is left of it: a step ends it.
        return last
    raise ActionRefused("there is no entry to deliver yet: the route is at the end of the log")
