"""The progress of a route as a value, and the effect of events on it. Pure.

A route's state is the fold of its events. The offset log stores the events and, at
intervals, the state itself.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from transporter.errors import OffsetRefused, UnknownFormat
from transporter.offsets.record import MAX_RECORD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_NAMESPACES: Final = 10_000
"""Limit of namespaces with a newest offset kept for the operator. Others are left out."""
MAX_STATE: Final = MAX_RECORD - (2 << 20)
"""Bytes of ranges and retries in a state, so that its snapshot with names fits into a record."""
RANGE_BYTES: Final = 64
RETRY_BYTES: Final = 21
"""Largest size of a settled range, or of a retry, in a snapshot."""
NAMESPACE_BYTES: Final = 256 << 10
"""Bytes in a snapshot for the newest offset of each namespace."""
_NUMBER_BYTES: Final = 24
_MAX_NUMBER: Final = (1 << 63) - 1
_MORE_NAMESPACES: Final = MAX_NAMESPACES // 4
"""Namespaces beyond that limit before the oldest are dropped, so that few settles search them."""


class Range(NamedTuple):
    """The offsets ``first`` to ``last``, both included, and how they were settled."""

    first: int
    last: int
    kind: str = "acked"


RELEASED: Final = "released"
SUPERSEDED: Final = "superseded"
KINDS: Final = ("acked", "skipped", "operator", "parked", RELEASED, SUPERSEDED)
"""Kinds of settled offsets.

- ``acked``: delivered or filtered out
- ``skipped``: dropped after a failure
- ``operator``: acked by an operator, undelivered
- ``parked``: parked
- ``released``: dropped undelivered because the log's budget was spent
- ``superseded``: passed undelivered because its source redelivers it
"""
MOST_RELEASED: Final = 100
"""Newest released ranges that a state keeps. The audit file has all of them."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A range that the route redelivers, and the next offset of it to deliver.

    With a ``namespace`` (a regular expression) only the matching entries.
    """

    first: int
    last: int
    next: int
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class RouteState:
    """The progress of one route.

    Attributes:
        watermark: every offset up to it is settled (Invariant 5).
        above: the settled ranges beyond it. They are disjoint, ascending, and never adjacent
            to the watermark.
        generation: the number of replays.
        retries: the parked offsets that an operator wants delivered, in order. Entries parked
            behind one of them follow it once it is delivered, unless it is among ``only``.
        namespaces: the newest settled offset of each namespace, for the operator only.
        released: the ranges dropped undelivered, for the operator only.
        superseded: for each reader, the offset up to which the route has passed the
            undelivered entries that come again.
        superseding: for each reader, the offset up to which all undelivered entries come again
            from its source. Those beyond ``superseded`` are still to be passed.
        paused: whether nothing is delivered, except up to the offset ``step``.
        declared: the epoch in which an engine declared the route, 0 if that is not known. A
            route of this name that was forgotten before had other generations.
        skips: the skipped parked offsets. Their copies may still exist.

    """

    watermark: int = -1
    above: tuple[Range, ...] = ()
    generation: int = 0
    shards: int = 1
    replay: Replay | None = None
    retries: tuple[int, ...] = ()
    namespaces: dict[str, int] = field(default_factory=dict)
    released: tuple[Range, ...] = ()
    superseded: dict[str, int] = field(default_factory=dict)
    superseding: dict[str, int] = field(default_factory=dict)
    paused: bool = False
    step: int | None = None
    declared: int = 0
    only: tuple[int, ...] = ()
    skips: tuple[int, ...] = ()

    def readers_to_supersede(self) -> dict[str, int]:
        """Return the readers whose entries the route still has to pass, and their last offsets."""
        return {
            reader: through
            for reader, through in self.superseding.items()
            if through > self.superseded.get(reader, -1)
        }

    def next_unsettled(self) -> int:
        """Return the first offset that is not settled."""
        return self.watermark + 1

    def next_offset(self) -> int:
        """Return the next offset to deliver: of the replay, if there is one."""
        return self.next_unsettled() if self.replay is None else self.replay.next

    def delivery_limit(self) -> int | None:
        """Return the last offset that may be delivered, or ``None`` without a limit."""
        if not self.paused:
            return None
        return self.next_offset() - 1 if self.step is None else self.step

    def highest_offset(self) -> int:
        """Return the highest offset that this state proves durable (Invariant 3)."""
        return max([self.watermark, *(part.last for part in self.above)])

    def validate(self) -> None:
        """Raise ``ValueError`` if no events can lead to this state (Invariant 17).

        For states read from files: a checksum proves the absence of damage, not the author.
        """
        parts = (*self.above, *self.released)
        replayed = (self.replay.first, self.replay.last, self.replay.next) if self.replay else ()
        numbers = (
            *(self.watermark, self.generation, self.shards, self.declared, self.step or 0),
            *(offset for part in parts for offset in part[:2]),
            *replayed,
            *self.retries,
            *self.only,
            *self.skips,
            *self.namespaces.values(),
            *self.superseded.values(),
            *self.superseding.values(),
        )
        if {*map(type, numbers)} != {int} or not -1 <= min(numbers) <= max(numbers) <= _MAX_NUMBER:
            raise ValueError("an offset is invalid")
        names = (*self.namespaces, *self.superseded, *self.superseding)
        texts = (*names, self.replay.namespace if self.replay else "")
        if {*map(type, texts)} != {str} or type(self.paused) is not bool:
            raise ValueError("a name is invalid")
        if any(part.first > part.last or part.kind not in KINDS for part in parts):
            raise ValueError("a range is invalid")
        ends = (self.watermark, *(part.last for part in self.above))
        if any(part.first <= before for part, before in zip(self.above, ends, strict=False)):
            raise ValueError("its ranges do not ascend from its watermark")

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain values, for a snapshot."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Decode the result of :meth:`to_json`."""
        replay = fields["replay"]
        return cls(
            watermark=fields["watermark"],
            above=tuple(Range(*part) for part in fields["above"]),
            generation=fields["generation"],
            shards=fields["shards"],
            replay=Replay(**replay) if replay else None,
            retries=tuple(fields.get("retries", ())),
            namespaces=fields["namespaces"],
            released=tuple(Range(*part) for part in fields.get("released", ())),
            superseded=fields.get("superseded", {}),
            # Released versions kept one mark for both.
            superseding=fields.get("superseding", fields.get("superseded", {})),
            paused=fields.get("paused", False),
            step=fields.get("step"),
            declared=fields.get("declared", 0),
            only=tuple(fields.get("only", ())),
            skips=tuple(fields.get("skips", ())),
        )


def settle(state: RouteState, part: Range, namespaces: dict[str, int] | None = None) -> RouteState:
    """Return *state* with the offsets of *part* settled.

    Settling an offset twice changes nothing. The watermark never goes back.
    """
    watermark, above = _absorb(state.watermark, _merge_parts(state.above, (part,)))
    released = state.released
    if part.kind == RELEASED:
        released = _join_adjacent(sorted([*released, part]))[-MOST_RELEASED:]
    known = state.namespaces
    if namespaces:
        known = {**known, **namespaces}
        if len(known) > MAX_NAMESPACES + _MORE_NAMESPACES:
            known = dict(sorted(known.items(), key=lambda pair: -pair[1])[:MAX_NAMESPACES])
    return replace(state, watermark=watermark, above=above, namespaces=known, released=released)


def is_settled(state: RouteState, first: int, last: int) -> bool:
    """Return whether all offsets from *first* to *last* are settled."""
    offset = max(first, state.watermark + 1)
    for part in state.above:
        if part.first <= offset <= part.last:
            offset = part.last + 1
    return offset > last


def _merge_parts(above: tuple[Range, ...], parts: Iterable[Range]) -> tuple[Range, ...]:
    """Insert *parts*, which ascend. Offsets that are settled already keep their kind.

    Linear in the number of ranges: a reader's entries may lie in as many as there are frames.
    """
    merged: list[Range] = []
    place = 0
    for part in parts:
        first = part.first
        while place < len(above) and above[place].first <= part.last:
            known = above[place]
            if first < known.first:
                merged.append(Range(first, known.first - 1, part.kind))
            first = max(first, known.last + 1)
            if known.last > part.last:
                # The next part may begin inside it.
                break
            place += 1
        if first <= part.last:
            merged.append(Range(first, part.last, part.kind))
    # Two ascending runs: sorting them is a merge.
    return _join_adjacent(sorted([*above, *merged]))


def _join_adjacent(parts: list[Range]) -> tuple[Range, ...]:
    joined: list[Range] = []
    for part in parts:
        if joined and joined[-1].kind == part.kind and joined[-1].last + 1 == part.first:
            joined[-1] = Range(joined[-1].first, part.last, part.kind)
        else:
            joined.append(part)
    return tuple(joined)


def _absorb(watermark: int, above: tuple[Range, ...]) -> tuple[int, tuple[Range, ...]]:
    """Move the watermark over the settled ranges right behind it."""
    passed = 0
    while passed < len(above) and above[passed].first <= watermark + 1:
        watermark = max(watermark, above[passed].last)
        passed += 1
    return watermark, above[passed:]


def begin_superseding(state: RouteState, reader: str, through: int) -> RouteState:
    """Return *state* with *reader*'s undelivered entries up to *through* to be passed."""
    return replace(state, superseding=_raise_mark(state.superseding, reader, through))


def supersede(
    state: RouteState,
    reader: str,
    through: int,
    parts: tuple[tuple[int, int], ...],
    redelivered_through: int | None = None,
) -> RouteState:
    """Return *state* with the offsets of *parts*, ascending, passed.

    They are all the entries that *reader* logged up to *through* and that were not settled.
    Its source redelivers them. *redelivered_through* is the end of that redelivery, *through* by
    default. It is less for a route that is new to the reader, which passes no earlier entries.
    """
    ranges = (Range(first, last, SUPERSEDED) for first, last in parts)
    watermark, above = _absorb(state.watermark, _merge_parts(state.above, ranges))
    return replace(
        state,
        watermark=watermark,
        above=above,
        superseded=_raise_mark(state.superseded, reader, through),
        superseding=_raise_mark(
            state.superseding,
            reader,
            through if redelivered_through is None else redelivered_through,
        ),
    )


def _raise_mark(marks: dict[str, int], reader: str, through: int) -> dict[str, int]:
    return {**marks, reader: max(through, marks.get(reader, -1))}


def begin_replay(state: RouteState, first: int, last: int, namespace: str = "") -> RouteState:
    """Return *state* in the next generation, with *first* to *last* to be redelivered."""
    replay = Replay(first, last, first, namespace)
    # A step was meant for the entries that came next before this.
    return replace(state, generation=state.generation + 1, replay=replay, step=None)


def advance_replay(state: RouteState, through: int, generation: int) -> RouteState:
    """Return *state* with its replay settled up to *through*. At its end the replay is gone.

    A replay of another *generation* is left alone, because it began after these deliveries.
    """
    if state.replay is None or generation != state.generation or through < state.replay.next:
        return state
    if through >= state.replay.last:
        return replace(state, replay=None, step=None)
    return replace(state, replay=replace(state.replay, next=through + 1))


def cancel_replay(state: RouteState) -> RouteState:
    """Return *state* without its replay. The generation stays, because sinks have seen it."""
    return replace(state, replay=None, step=None)


def pause(state: RouteState) -> RouteState:
    """Return *state* with deliveries stopped."""
    return replace(state, paused=True, step=None)


def resume(state: RouteState) -> RouteState:
    """Return *state* with deliveries continuing where they stopped."""
    return replace(state, paused=False, step=None)


def step_to(state: RouteState, through: int) -> RouteState:
    """Return the paused *state* with deliveries up to *through* allowed."""
    return replace(state, step=through)


def begin_at(state: RouteState, first: int, declared: int = 0) -> RouteState:
    """Return the state of a new route, *declared* in that epoch, whose first entry is *first*."""
    return replace(state, watermark=max(state.watermark, first - 1), declared=declared)


def request_retries(
    state: RouteState, offsets: tuple[int, ...], *, only: bool = False
) -> RouteState:
    """Return *state* with a request to deliver the parked *offsets*.

    With *only* the entries behind them stay parked, unless they were requested before.
    """
    new = {*offsets}
    alone = {*state.only, *(new.difference(state.retries))} if only else {*state.only} - new
    retries = tuple(sorted({*state.retries, *new}))
    return replace(state, retries=retries, only=tuple(sorted(alone)))


def finish_retry(state: RouteState, offset: int) -> RouteState:
    """Return *state* with the retry of *offset* answered, whatever its result."""
    retries, only = _remove_offset(state.retries, offset), _remove_offset(state.only, offset)
    return replace(state, retries=retries, only=only)


def begin_skip(
    state: RouteState, offsets: tuple[int, ...], followers: tuple[int, ...]
) -> RouteState:
    """Return *state* with the parked *offsets* skipped and *followers* to be delivered."""
    gone = {*offsets}
    return replace(
        state,
        retries=tuple(sorted({*state.retries, *followers} - gone)),
        only=tuple(each for each in state.only if each not in gone),
        skips=tuple(sorted({*state.skips, *gone})),
    )


def end_skip(state: RouteState) -> RouteState:
    """Return *state* once no copy of the skipped entries is left."""
    return replace(state, skips=())


def _remove_offset(offsets: tuple[int, ...], offset: int) -> tuple[int, ...]:
    """Return *offsets*, which ascend, without *offset*."""
    place = bisect_left(offsets, offset)
    if offsets[place : place + 1] != (offset,):
        return offsets
    return offsets[:place] + offsets[place + 1 :]


def snapshot_event(state: RouteState) -> dict[str, Any]:
    """Return the event that holds all of *state*, with as many namespaces as have room."""
    return {"type": "snapshot", **state.to_json(), "namespaces": _fit_namespaces(state.namespaces)}


def _fit_namespaces(namespaces: dict[str, int]) -> dict[str, int]:
    """Return the newest of *namespaces* that fit into :data:`NAMESPACE_BYTES`."""
    most = 4 * sum(map(len, namespaces)) + _NUMBER_BYTES * len(namespaces)
    if most <= NAMESPACE_BYTES:
        return namespaces
    newest = sorted(namespaces.items(), key=lambda pair: -pair[1])
    sizes = accumulate(len(name.encode()) + _NUMBER_BYTES for name, _ in newest)
    room = (pair for pair, size in zip(newest, sizes, strict=True) if size <= NAMESPACE_BYTES)
    return dict(room)


def state_size(state: RouteState) -> int:
    """Return the most bytes that the parts of *state* which can grow take in a snapshot."""
    asked = len(state.retries) + len(state.only) + len(state.skips)
    return RANGE_BYTES * len(state.above) + RETRY_BYTES * asked


def refuse_growth(route: str, state: RouteState) -> None:
    """Raise :class:`OffsetRefused` if a snapshot of *state* could not be read again."""
    if state_size(state) > MAX_STATE:
        raise OffsetRefused(
            f"route {route}: too many ranges beyond its watermark ({len(state.above)}) and retries "
            f"({len(state.retries)}) for one offset log; let the route continue, then try again"
        )


def settled_event(part: Range, namespaces: dict[str, int]) -> dict[str, Any]:
    """Return the event that settles *part*, with the newest of *namespaces*."""
    return {"type": "settled", "range": list(part), "namespaces": _fit_namespaces(namespaces)}


def superseding_event(reader: str, through: int) -> dict[str, Any]:
    """Return the event that requires *reader*'s entries up to *through* to be superseded."""
    return {"type": "superseding", "reader": reader, "through": through}


def superseded_event(
    reader: str,
    through: int,
    parts: Sequence[tuple[int, int]],
    redelivered_through: int | None = None,
) -> dict[str, Any]:
    """Return the event that passes *parts*, because *reader*'s source redelivers them."""
    ranges = [list(part) for part in parts]
    event = {"type": "superseded", "reader": reader, "through": through, "ranges": ranges}
    return event if redelivered_through is None else {**event, "asked": redelivered_through}


def replay_begun_event(first: int, last: int, namespace: str = "") -> dict[str, Any]:
    """Return the event that begins a replay."""
    begun = {"type": "replay", "first": first, "last": last}
    return {**begun, "namespace": namespace} if namespace else begun


def replay_advanced_event(through: int, generation: int) -> dict[str, Any]:
    """Return the event that settles the replay of *generation* up to *through*."""
    return {"type": "replayed", "through": through, "generation": generation}


def replay_cancelled_event() -> dict[str, Any]:
    """Return the event that ends a replay before its end."""
    return {"type": "replay-cancelled"}


def paused_event() -> dict[str, Any]:
    """Return the event that stops deliveries."""
    return {"type": "paused"}


def resumed_event() -> dict[str, Any]:
    """Return the event that ends a pause."""
    return {"type": "resumed"}


def step_event(through: int) -> dict[str, Any]:
    """Return the event that lets a paused route deliver up to *through*."""
    return {"type": "step", "through": through}


def retries_requested_event(offsets: Sequence[int], *, only: bool = False) -> dict[str, Any]:
    """Return the event that requests the delivery of parked entries."""
    event = {"type": "retries", "offsets": list(offsets)}
    return {**event, "only": True} if only else event


def retry_finished_event(offset: int) -> dict[str, Any]:
    """Return the event that ends the retry of one parked entry."""
    return {"type": "retried", "offset": offset}


def skip_begun_event(offsets: Sequence[int], followers: Sequence[int]) -> dict[str, Any]:
    """Return the event that skips parked entries and requests delivery of those behind them."""
    return {"type": "skipping", "offsets": list(offsets), "followers": list(followers)}


def skip_ended_event() -> dict[str, Any]:
    """Return the event that records that no copy of the skipped entries is left."""
    return {"type": "skipped"}


def apply_event(state: RouteState, event: dict[str, Any]) -> RouteState:
    """Return *state* after *event*. Only this function defines the meaning of events."""
    match event:
        case {"type": "snapshot"}:
            after = RouteState.from_json(event)
        case {"type": "settled", "range": part, "namespaces": namespaces}:
            after = settle(state, Range(*part), namespaces)
        case {"type": "superseding" | "superseded"}:
            after = _apply_superseding(state, event)
        case {"type": "replay", "first": first, "last": last}:
            after = begin_replay(state, first, last, event.get("namespace", ""))
        case {"type": "replayed", "through": through}:
            # Records of older versions have no generation: they mean the current one.
            generation = event.get("generation", state.generation)
            after = advance_replay(state, through, generation)
        case {"type": "replay-cancelled"}:
            after = cancel_replay(state)
        case {"type": "paused" | "resumed" | "step"}:
            after = _apply_pause(state, event)
        case {"type": "retries" | "retried" | "skipping" | "skipped"}:
            after = _apply_parked(state, event)
        case _:
            raise UnknownFormat(
                f"an offset log record has the unknown type {event.get('type')!r}; "
                "use the version that wrote it, or one that can read it"
            )
    return after


def _apply_parked(state: RouteState, event: dict[str, Any]) -> RouteState:
    match event["type"]:
        case "retries":
            only = event.get("only", False)
            return request_retries(state, tuple(event["offsets"]), only=only)
        case "retried":
            return finish_retry(state, event["offset"])
        case "skipping":
            return begin_skip(state, tuple(event["offsets"]), tuple(event["followers"]))
    return end_skip(state)


def _apply_superseding(state: RouteState, event: dict[str, Any]) -> RouteState:
    reader, through = event["reader"], event["through"]
    if event["type"] == "superseding":
        return begin_superseding(state, reader, through)
    parts = tuple((first, last) for first, last in event["ranges"])
    return supersede(state, reader, through, parts, event.get("asked"))


def fold_events(state: RouteState, events: Iterable[dict[str, Any]]) -> RouteState:
    """Return *state* after *events*, as :func:`apply_event` one by one. Most are consecutive."""
    run: dict[str, Any] | None = None
    for event in events:
        if run is not None and _follows_on(event, run["range"]):
            run["range"][1] = event["range"][1]
            run["namespaces"].update(event["namespaces"])
            continue
        if run is not None:
            state, run = apply_event(state, run), None
        if event.get("type") == "settled":
            run = {**event, "namespaces": dict(event["namespaces"])}
        else:
            state = apply_event(state, event)
    return state if run is None else apply_event(state, run)


def _follows_on(event: dict[str, Any], part: list[Any]) -> bool:
    """Return whether *event* settles the offsets right behind *part*, in the same way."""
    if event.get("type") != "settled":
        return False
    first, _, kind = event["range"]
    return bool(first == part[1] + 1 and kind == part[2])


def _apply_pause(state: RouteState, event: dict[str, Any]) -> RouteState:
    match event["type"]:
        case "paused":
            return pause(state)
        case "resumed":
            return resume(state)
    return step_to(state, event["through"])
