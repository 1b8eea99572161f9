"""The entry that a paused route delivers next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.errors import ActionRefused
from transporter.log.search import frames_with_retry
from transporter.pipeline.namespace_filter import NamespaceFilter

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.log.reader import LogReader
    from transporter.offsets.state import RouteState


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
            if state.replay is not None or not _is_settled(state, offset):
                return int(offset)
        on_progress(found.frame.last)
    if state.replay is not None:
        # Nothing is left of it: a step ends it.
        return last
    raise ActionRefused("there is no entry to deliver yet: the route is at the end of the log")


def _is_settled(state: RouteState, offset: int) -> bool:
    return any(part.first <= offset <= part.last for part in state.above)
