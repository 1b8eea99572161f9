"""Operator actions on one route, on its open offset log.

Each action is checked, then recorded in the audit file, then done: whatever an action
changed, the audit file has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from transporter.control import requests
from transporter.control.offline_status import progress
from transporter.control.replay_range import contents, plan
from transporter.errors import ActionRefused, OffsetRefused
from transporter.log.filesystem import RealFileSystem
from transporter.log.reader import LogReader
from transporter.offsets.parked import parked_offsets, skip_entries
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from transporter.audit import AuditFile, Operator
    from transporter.control.replay_range import ReplayPlan
    from transporter.control.requests import (
        Ack,
        CancelReplay,
        Pause,
        PauseReader,
        Replay,
        Resume,
        ResumeReader,
        RetryParked,
        SkipParked,
        Step,
    )
    from transporter.log.commit_log import CommitLog
    from transporter.log.paused_readers import PausedReaders
    from transporter.offsets.offset_log import OffsetLog
    from transporter.offsets.parked import ParkedStore
    from transporter.offsets.state import RouteState

_MOST_OFFSETS: Final = 10_000
"""Parked entries that one request may name: as many as a route parks by default."""
_MOST_NAMED: Final = 20
"""Offsets that the text of an answer lists; the JSON has all of them."""


def answer(log: OffsetLog, done: str, /, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - plain values
    """Return the result of an action."""
    return _answer(log.route, log.state, done, **more)


def ack(log: CommitLog, offsets: OffsetLog, request: Ack, by: Operator) -> dict[str, Any]:
    """Settle a range without delivery. A replay inside it continues after it."""
    part = Range(request.first, request.last, "operator")
    offsets.refuse_settling(part, log.durable)
    with offsets.audit_change("ack", by, first=part.first, last=part.last, reason=request.reason):
        offsets.settle(part, log.durable)
        offsets.sync()
        state = offsets.state
        running = state.replay
        if running is not None and part.first <= running.next <= part.last:
            offsets.advance_replay(min(part.last, running.last), state.generation)
            offsets.sync()
    return answer(offsets, f"acked {part.first}..{part.last}")


def preview(
    directory: Path,
    durable: int,
    request: Replay,
    state: RouteState,
    *,
    upserts: bool | None,
    seen: Callable[[int], object] = lambda _: None,
) -> dict[str, Any]:
    """Return the plan of a replay.

    Reads all of the range without blocking other requests. *seen* is called at each frame,
    and may raise.
    """
    with LogReader(directory) as reader:
        planned = plan(reader, durable, state.watermark, request, seen)
        told = _told(planned, state, upserts) | contents(reader, planned, seen).to_json()
    done = f"{planned.first}..{planned.last} would be replayed"
    return _answer(request.route, state, done, **told)


def replay(
    log: CommitLog, offsets: OffsetLog, request: Replay, by: Operator, *, upserts: bool | None
) -> dict[str, Any]:
    """Begin the redelivery of a range.

    *upserts* is whether the sink keeps the newest value of a key, ``None`` if unknown.
    """
    rewritten = log.gate.rewrite_count
    planned = _planned(log, offsets, request)
    with log.gate:
        # Invariant 11: the planned range is still there, and held from now on.
        if log.gate.rewrite_count != rewritten:
            planned = _planned(log, offsets, request)
        _refuse_what_is_gone(log, offsets, planned)
        offsets.refuse_replay(planned.first, planned.last)
        with offsets.audit_change(
            "replay",
            by,
            first=planned.first,
            last=planned.last,
            namespace=planned.namespace,
            reason=request.reason,
        ):
            offsets.begin_replay(planned.first, planned.last, planned.namespace)
    told = _told(planned, offsets.state, upserts)
    return answer(offsets, f"{planned.first}..{planned.last} will be delivered again", **told)


def _planned(log: CommitLog, offsets: OffsetLog, request: Replay) -> ReplayPlan:
    with LogReader(log.directory) as reader:
        return plan(reader, log.durable, offsets.state.watermark, request)


def _refuse_what_is_gone(log: CommitLog, offsets: OffsetLog, planned: ReplayPlan) -> None:
    with LogReader(log.directory) as reader:
        oldest = reader.first_offset()
    if oldest > planned.first:
        raise ActionRefused(
            f"route {offsets.route}: retention has just removed what comes before {oldest}, so "
            f"{planned.first}..{planned.last} cannot be replayed; ask again for what is left"
        )


def cancel_replay(offsets: OffsetLog, request: CancelReplay, by: Operator) -> dict[str, Any]:
    """End the replay where it is."""
    running = offsets.state.replay
    if running is None:
        raise ActionRefused(f"route {offsets.route}: there is no replay to cancel")
    left = f"{running.next}..{running.last}"
    with offsets.audit_change(
        "replay cancel", by, first=running.next, last=running.last, reason=request.reason
    ):
        offsets.cancel_replay()
    return answer(offsets, f"the replay is cancelled; {left} had not been delivered again")


def simple(
    log: CommitLog,
    offsets: OffsetLog,
    request: Any,  # noqa: ANN401 - one of those below
    by: Operator,
    store: Callable[[], ParkedStore],
) -> dict[str, Any]:
    """Perform a request that needs only the log and the offset log, with or without an engine.

    *store* opens the parked entries on demand.
    """
    match request:
        case requests.Ack():
            return ack(log, offsets, request, by)
        case requests.CancelReplay():
            return cancel_replay(offsets, request, by)
        case requests.Pause():
            return pause(offsets, request, by)
        case requests.Resume():
            return resume(offsets, request, by)
        case requests.RetryParked():
            return retry_parked(offsets, store(), request, by)
    raise ActionRefused(f"{type(request).__name__} is nothing to do to a route")


def pause(offsets: OffsetLog, request: Pause, by: Operator) -> dict[str, Any]:
    """Let nothing more be delivered, whatever restarts."""
    with offsets.audit_change("route pause", by, reason=request.reason):
        offsets.pause()
    return answer(offsets, "paused")


def resume(offsets: OffsetLog, request: Resume, by: Operator) -> dict[str, Any]:
    """End a pause."""
    with offsets.audit_change("route resume", by, reason=request.reason):
        offsets.resume()
    return answer(offsets, "resumed")


def set_paused(
    readers: PausedReaders, audit: AuditFile, request: PauseReader | ResumeReader, by: Operator
) -> dict[str, Any]:
    """Record that a reader is paused, or not, whatever restarts."""
    paused = isinstance(request, requests.PauseReader)
    action = "reader pause" if paused else "reader resume"
    with audit.change(action, by, reader=request.reader, reason=request.reason):
        readers.set_paused(request.reader, paused=paused)
    return {"reader": request.reader, "done": "paused" if paused else "resumed", "paused": paused}


def retry_parked(
    offsets: OffsetLog, store: ParkedStore, request: RetryParked, by: Operator
) -> dict[str, Any]:
    """Have parked entries delivered, each key in order, and then those behind them."""
    chosen = chosen_parked(offsets, request.first, request.last)
    behind = store.waiting_behind(frozenset(chosen))
    details = {"offsets": chosen, "only": request.only, "reason": request.reason}
    with offsets.audit_change("parked retry", by, **details):
        offsets.request_retries(chosen, only=request.only)
    done = f"{len(chosen)} parked will be delivered"
    followers, left = ([], behind) if request.only else (behind, [])
    return _with_those_behind(offsets, done, chosen, followers, left)


def skip_parked(
    offsets: OffsetLog, store: ParkedStore, request: SkipParked, by: Operator
) -> dict[str, Any]:
    """Drop parked entries, and have those behind them delivered."""
    chosen = chosen_parked(offsets, request.first, request.last)
    behind = store.waiting_behind(frozenset(chosen))
    # Behind an earlier one of their key that stays parked, they stay, too.
    heads = [] if request.only else store.followers(frozenset(chosen))
    followers = sorted({*heads, *store.waiting_behind(frozenset(heads))})
    details = {"offsets": chosen, "only": request.only, "reason": request.reason}
    with offsets.audit_change("parked skip", by, **details) as results:
        gone = skip_entries(store, offsets, chosen, only=request.only)
        results["skipped"] = len(gone)
    left = sorted({*behind}.difference(followers))
    return _with_those_behind(offsets, f"{len(gone)} parked skipped", gone, followers, left)


def _with_those_behind(
    offsets: OffsetLog,
    done: str,
    chosen: Sequence[int],
    followers: Sequence[int],
    left: Sequence[int],
) -> dict[str, Any]:
    """Return the answer for the *chosen* entries, with the entries that follow them."""
    for behind, fate in (followers, "behind will follow"), (left, "behind stay parked"):
        if behind:
            named = ", ".join(map(str, behind[:_MOST_NAMED]))
            more = f" and {len(behind) - _MOST_NAMED} more" if len(behind) > _MOST_NAMED else ""
            done = f"{done}; {named}{more} {fate}"
    named_all = {"offsets": list(chosen), "followers": list(followers), "left": list(left)}
    return answer(offsets, done, **named_all)


def step(offsets: OffsetLog, through: int, request: Step, by: Operator) -> None:
    """Let a paused route deliver up to *through*."""
    with offsets.audit_change("route step", by, through=through, reason=request.reason):
        offsets.step(through)


def chosen_parked(offsets: OffsetLog, first: int, last: int) -> list[int]:
    """Return the parked offsets from *first* to *last*, at most so many as one request names."""
    known = parked_offsets(offsets.folder, RealFileSystem())
    chosen = [offset for offset in known if first <= offset <= last]
    if not chosen:
        place = (
            "any offset" if last > 1 << 61 else f"{first}..{last}" if last > first else f"{first}"
        )
        raise OffsetRefused(f"route {offsets.route}: nothing is parked at {place}")
    return chosen[:_MOST_OFFSETS]


def _answer(route: str, state: RouteState, done: str, /, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - plain values
    return {"route": route, "done": done, **progress(state), **more}


def _told(planned: ReplayPlan, state: RouteState, upserts: bool | None) -> dict[str, Any]:  # noqa: FBT001 - three values
    return {
        "first": planned.first,
        "last": planned.last,
        "namespace": planned.namespace or None,
        "missing": [list(each) for each in planned.missing],
        "dropped": planned.dropped,
        "warning": _warning(state, planned.last, upserts),
    }


def _warning(state: RouteState, last: int, upserts: bool | None) -> str | None:  # noqa: FBT001 - three values
    if upserts is False:
        return None
    condition = "" if upserts else "if the sink keeps the newest value of a key: "
    if last < state.watermark:
        return (
            f"{condition}older values overwrite newer ones, and stay where {last + 1}.."
            f"{state.watermark} is not delivered again too"
        )
    return f"{condition}older values overwrite newer ones until the replay has ended"
