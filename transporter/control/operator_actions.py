"""Operator actions on one route, on its open offset log.

Each action is checked, then recorded in the audit file, then done: whatever an action
changed, the audit file has it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from transporter.control import requests
from transporter.control.action_offsets import count_contents, plan_replay
from transporter.control.offline_status import route_progress
from transporter.control.parked_notes import ACTION, check_note
from transporter.control.parked_selection import (
    MOST_NAMED,
    more_text,
    named_offsets,
    range_text,
    requested_ranges,
    select_parked,
)
from transporter.errors import ActionRefused, Corrupt, EnvironmentFault, OffsetRefused
from transporter.log.filesystem import RealFileSystem
from transporter.log.reader import LogReader
from transporter.log.search import EntryFilter
from transporter.offsets.offset_log import route_folder
from transporter.offsets.parked import ParkedStore, parked_offsets, skip_entries
from transporter.offsets.state import Range, is_settled

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from transporter.audit import AuditFile, Operator
    from transporter.control.action_offsets import ReplayPlan
    from transporter.control.parked_selection import ParkedSelection
    from transporter.control.requests import (
        Ack,
        CancelReplay,
        NoteParked,
        OffsetRequest,
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
    from transporter.log.operator_pauses import PausedReaders
    from transporter.offsets.offset_log import OffsetLog
    from transporter.offsets.state import RouteState

NOT_PAUSED: Final = "was not paused"
"""Text of a resume that had nothing to do."""
IF_UPSERTS: Final = "if the sink keeps the newest value of a key: "
"""Beginning of a warning where the sink is unknown."""


def action_result(log: OffsetLog, done: str, /, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - plain values
    """Return the result of an action."""
    return _result_fields(log.route, log.state, done, **more)


def ack_range(
    log: CommitLog, offsets: OffsetLog, request: Ack, operator: Operator
) -> dict[str, Any]:
    """Settle a range without delivery. A replay inside it continues after it."""
    part = Range(request.first, request.last, "operator")
    offsets.refuse_settling(part, log.durable)
    done = _ack_text(offsets, part)
    with offsets.audit_change(
        "ack", operator, first=part.first, last=part.last, reason=request.reason
    ):
        offsets.settle(part, log.durable)
        offsets.sync()
        state = offsets.state
        running = state.replay
        if running is not None and part.first <= running.next <= part.last:
            through = min(part.last, running.last)
            offsets.advance_replay(through, state.generation, is_delivery=False)
            offsets.sync()
    return action_result(offsets, done)


def _ack_text(offsets: OffsetLog, part: Range) -> str:
    """Return what an ack of *part* does: nothing for entries that are settled, as parked ones."""
    state = offsets.state
    idle = state.replay is None and is_settled(state, part.first, part.last)
    span = range_text([(part.first, part.last)])
    text = f"{span} was settled already" if idle else f"acked {span}"
    inside = _parked_between(offsets.folder, part.first, part.last)
    if not inside:
        return text
    stays = "stays" if len(inside) == 1 else "stay"
    return f"{text}; {named_offsets(inside)} {stays} parked, see 'transporter parked skip'"


def preview_replay(
    directory: Path,
    durable: int,
    request: Replay,
    state: RouteState,
    *,
    upserts: bool | None,
    on_progress: Callable[[int], object] = lambda _: None,
) -> dict[str, Any]:
    """Return the plan of a replay.

    Reads all of the range without blocking other requests. *on_progress* is called at each frame,
    and may raise.
    """
    with LogReader(directory) as reader:
        plan = plan_replay(reader, durable, state.watermark, request, on_progress)
        found = count_contents(reader, plan, on_progress).to_json()
    folder = route_folder(directory, request.route)
    parked = {"parked": len(_parked_within(folder, plan))}
    fields = _plan_fields(plan, state, upserts) | parked | found
    done = f"{plan.first}..{plan.last} would be replayed"
    return _result_fields(request.route, state, done, **fields)


def begin_replay(
    log: CommitLog, offsets: OffsetLog, request: Replay, operator: Operator, *, upserts: bool | None
) -> dict[str, Any]:
    """Begin the redelivery of a range.

    *upserts* is whether the sink keeps the newest value of a key, ``None`` if unknown.
    """
    rewritten = log.gate.rewrite_count
    plan = _plan(log, offsets, request)
    with log.gate:
        # Invariant 11: the planned range is still there, and held from now on.
        if log.gate.rewrite_count != rewritten:
            plan = _plan(log, offsets, request)
        _refuse_removed(log, offsets, plan)
        offsets.refuse_replay(plan.first, plan.last)
        with offsets.audit_change(
            "replay",
            operator,
            first=plan.first,
            last=plan.last,
            namespace=plan.namespace,
            reason=request.reason,
        ):
            offsets.begin_replay(plan.first, plan.last, plan.namespace)
    parked = _parked_within(offsets.folder, plan)
    fields = _plan_fields(plan, offsets.state, upserts) | {"parked": len(parked)}
    done = f"{plan.first}..{plan.last} will be delivered again"
    if parked:
        done += f", but for {_parked_count(parked)}: see 'transporter parked retry'"
    return action_result(offsets, done, **fields)


def _parked_within(folder: Path, plan: ReplayPlan) -> list[int]:
    """Return the parked entries of *plan*, which a replay passes."""
    inside = _parked_between(folder, plan.first, plan.last)
    if not plan.namespace:
        return inside
    wanted = EntryFilter(plan.namespace)
    return [each for each in inside if _is_parked_in(folder, each, wanted)]


def _parked_between(folder: Path, first: int, last: int) -> list[int]:
    parked = parked_offsets(folder, RealFileSystem())
    return [each for each in parked if first <= each <= last]


def _is_parked_in(folder: Path, offset: int, wanted: EntryFilter) -> bool:
    """Return whether the parked entry at *offset* is in a *wanted* namespace, or unreadable."""
    try:
        copy = ParkedStore.read_entry(folder, offset)
    except (Corrupt, EnvironmentFault):
        return True
    return bool(wanted.apply(copy.entries).num_rows)


def _plan(log: CommitLog, offsets: OffsetLog, request: Replay) -> ReplayPlan:
    with LogReader(log.directory) as reader:
        return plan_replay(reader, log.durable, offsets.state.watermark, request)


def _refuse_removed(log: CommitLog, offsets: OffsetLog, plan: ReplayPlan) -> None:
    with LogReader(log.directory) as reader:
        oldest = reader.first_offset()
    if oldest > plan.first:
        raise ActionRefused(
            f"route {offsets.route}: retention has just removed the entries before {oldest}, so "
            f"{plan.first}..{plan.last} cannot be replayed; replay from there"
        )


def cancel_replay(offsets: OffsetLog, request: CancelReplay, operator: Operator) -> dict[str, Any]:
    """End the replay where it is."""
    running = offsets.state.replay
    if running is None:
        raise ActionRefused(f"route {offsets.route}: there is no replay to cancel")
    left = f"{running.next}..{running.last}"
    with offsets.audit_change(
        "replay cancel", operator, first=running.next, last=running.last, reason=request.reason
    ):
        offsets.cancel_replay()
    return action_result(offsets, f"the replay is cancelled; {left} were not delivered again")


def perform_simple(
    log: CommitLog,
    offsets: OffsetLog,
    request: OffsetRequest,
    operator: Operator,
    store: Callable[[], ParkedStore],
) -> dict[str, Any]:
    """Perform a request that needs only the log and the offset log, with or without an engine.

    *store* opens the parked entries on demand.
    """
    match request:
        case requests.Ack():
            return ack_range(log, offsets, request, operator)
        case requests.CancelReplay():
            return cancel_replay(offsets, request, operator)
        case requests.Pause():
            return pause_route(offsets, request, operator)
        case requests.Resume():
            return resume_route(offsets, request, operator)
        case requests.RetryParked():
            return retry_parked(offsets, store(), request, operator)
        case requests.NoteParked():
            return note_parked(offsets, request, operator)


def pause_route(offsets: OffsetLog, request: Pause, operator: Operator) -> dict[str, Any]:
    """Let nothing more be delivered, whatever restarts."""
    with offsets.audit_change("route pause", operator, reason=request.reason):
        offsets.pause()
    return action_result(offsets, "paused")


def resume_route(offsets: OffsetLog, request: Resume, operator: Operator) -> dict[str, Any]:
    """End a pause."""
    done = "resumed" if offsets.state.paused else NOT_PAUSED
    with offsets.audit_change("route resume", operator, reason=request.reason):
        offsets.resume()
    return action_result(offsets, done)


def set_reader_paused(
    readers: PausedReaders,
    audit: AuditFile,
    request: PauseReader | ResumeReader,
    operator: Operator,
) -> dict[str, Any]:
    """Record that a reader is paused, or not, whatever restarts."""
    paused = isinstance(request, requests.PauseReader)
    action = "reader pause" if paused else "reader resume"
    done = "paused" if paused else "resumed" if request.reader in readers.names else NOT_PAUSED
    with audit.change(action, operator, reader=request.reader, reason=request.reason):
        readers.set_paused(request.reader, paused=paused)
    return {"reader": request.reader, "done": done, "paused": paused}


def retry_parked(
    offsets: OffsetLog, store: ParkedStore, request: RetryParked, operator: Operator
) -> dict[str, Any]:
    """Have parked entries delivered, each key in order, and then those behind them."""
    found = _select_parked(offsets, request, store.damaged)
    chosen = found.chosen
    behind = store.waiting_behind(frozenset(chosen))
    details = {"offsets": chosen, "only": request.only, "reason": request.reason}
    with offsets.audit_change("parked retry", operator, **details):
        offsets.request_retries(chosen, only=request.only)
    done = f"{_parked_count(chosen)} will be delivered"
    followers, left = ([], behind) if request.only else (behind, [])
    return _result_with_followers(offsets, done, found, followers, left)


def skip_parked(
    offsets: OffsetLog, store: ParkedStore, request: SkipParked, operator: Operator
) -> dict[str, Any]:
    """Drop parked entries, and have those behind them delivered."""
    found = _select_parked(offsets, request)
    chosen = found.chosen
    behind = store.waiting_behind(frozenset(chosen))
    # Behind an earlier one of their key that stays parked, they stay, too.
    heads = [] if request.only else store.followers(frozenset(chosen))
    followers = sorted({*heads, *store.waiting_behind(frozenset(heads))})
    details = {"offsets": chosen, "only": request.only, "reason": request.reason}
    with offsets.audit_change("parked skip", operator, **details) as results:
        gone = skip_entries(store, offsets, chosen, only=request.only)
        results["skipped"] = len(gone)
    left = sorted({*behind}.difference(followers))
    # Another request may have removed some since.
    lost = [(each, each) for each in chosen if each not in {*gone}]
    found = replace(found, chosen=gone, missing=sorted([*found.missing, *lost]))
    return _result_with_followers(offsets, f"{_parked_count(gone)} skipped", found, followers, left)


def note_parked(offsets: OffsetLog, request: NoteParked, operator: Operator) -> dict[str, Any]:
    """Record a note about a parked entry, in the audit file alone."""
    check_note(request.text)
    if request.offset not in parked_offsets(offsets.folder, RealFileSystem()):
        raise OffsetRefused(f"route {offsets.route}: nothing is parked at {request.offset}")
    details = {"offset": request.offset, "note": request.text, "reason": request.reason}
    with offsets.audit_change(ACTION, operator, **details):
        pass
    done = f"the note about offset {request.offset} is {'recorded' if request.text else 'removed'}"
    return action_result(offsets, done)


def _result_with_followers(
    offsets: OffsetLog,
    done: str,
    found: ParkedSelection,
    followers: Sequence[int],
    left: Sequence[int],
) -> dict[str, Any]:
    """Return the answer for the entries *found*, with the entries that follow them."""
    chosen = found.chosen
    place = "behind it" if len(chosen) == 1 else "behind them"
    for behind, one, many in (
        (followers, "will follow", "will follow"),
        (left, "stays parked", "stay parked"),
    ):
        if behind:
            done = f"{done}; {named_offsets(behind)} {place} {one if len(behind) == 1 else many}"
    if found.absent:
        shown = range_text(found.absent[:MOST_NAMED])
        done = f"{done}; nothing is parked at {shown}{more_text(len(found.absent))}"
    for first, last, reason in found.refused[:MOST_NAMED]:
        done = f"{done}; {range_text([(first, last)])} refused: {reason}"
    named_all = {"offsets": list(chosen), "followers": list(followers), "left": list(left)}
    return action_result(offsets, done, **named_all, **found.to_json())


def _parked_count(offsets: Sequence[int]) -> str:
    return f"{len(offsets)} parked {'entry' if len(offsets) == 1 else 'entries'}"


def step_route(offsets: OffsetLog, through: int, request: Step, operator: Operator) -> None:
    """Let a paused route deliver up to *through*."""
    with offsets.audit_change("route step", operator, through=through, reason=request.reason):
        offsets.step(through)


def _select_parked(
    offsets: OffsetLog, request: RetryParked | SkipParked, unreadable: Collection[int] = ()
) -> ParkedSelection:
    """Return the parked entries that *request* names; raise if there is nothing to do."""
    known = parked_offsets(offsets.folder, RealFileSystem())
    found = select_parked(known, requested_ranges(request), unreadable)
    if not found.chosen:
        if found.refused:
            first, last, reason = found.refused[0]
            place = range_text([(first, last)])
            raise ActionRefused(f"route {offsets.route}: the parked entry {place}: {reason}")
        place = range_text(found.absent[:MOST_NAMED]) or "any offset"
        raise OffsetRefused(
            f"route {offsets.route}: nothing is parked at {place}{more_text(len(found.absent))}"
        )
    return found


def _result_fields(route: str, state: RouteState, done: str, /, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - plain values
    return {"route": route, "done": done, **route_progress(state), **more}


def _plan_fields(plan: ReplayPlan, state: RouteState, upserts: bool | None) -> dict[str, Any]:  # noqa: FBT001 - three values
    return {
        "first": plan.first,
        "last": plan.last,
        "namespace": plan.namespace or None,
        "missing": [list(each) for each in plan.missing],
        "dropped": plan.dropped,
        "warning": _overwrite_warning(state, plan.last, upserts),
    }


def _overwrite_warning(state: RouteState, last: int, upserts: bool | None) -> str | None:  # noqa: FBT001 - three values
    if upserts is False:
        return None
    condition = "" if upserts else IF_UPSERTS
    if last < state.watermark:
        return (
            f"{condition}older values overwrite newer ones, and stay until {last + 1}.."
            f"{state.watermark} is replayed too"
        )
    return f"{condition}older values overwrite newer ones until the replay has ended"
