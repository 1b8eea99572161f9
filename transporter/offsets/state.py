"""How far a route has come, as a value, and how events move it. Pure.

A route's state is the fold of its events; the offset log stores the events and,
now and then, the state itself.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_NAMESPACES: Final = 10_000
"""Namespaces whose newest offset is kept for the operator; more are left out."""
_MAX_NUMBER: Final = (1 << 63) - 1
_MORE_NAMESPACES: Final = MAX_NAMESPACES // 4
"""How many more there may be before the oldest go: not every settle has to find these."""


class Range(NamedTuple):
    """The offsets ``first`` to ``last``, both included, and how they were settled."""

    first: int
    last: int
    kind: str = "acked"


RELEASED: Final = "released"
SUPERSEDED: Final = "superseded"
KINDS: Final = ("acked", "skipped", "operator", "parked", RELEASED, SUPERSEDED)
"""Delivered or filtered out; given up on; acked by an operator undelivered; set aside; given up
undelivered because the log's budget was spent; passed undelivered: its source gives it again."""
MOST_RELEASED: Final = 100
"""Released ranges that a state tells of: the newest. The audit file has all of them."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A range that the route delivers again, and the next offset of it to deliver.

    With a ``namespace`` (a regular expression) only the entries it matches.
    """

    first: int
    last: int
    next: int
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class RouteState:
    """How far one route has come.

    Every offset up to ``watermark`` is settled (Invariant 5); ``above`` holds the
    settled ranges beyond it: disjoint, ascending, never adjacent to the
    watermark. ``generation`` counts replays. ``retries`` are
    the parked offsets that an operator wants delivered, in order. Those parked behind one of them
    follow it once it is delivered, unless it is among ``only``. ``skips`` are parked offsets that
    are given up and whose copies may still be there. ``namespaces`` tells the newest
    settled offset of each namespace, for the operator only, and so does ``released``: what
    was given up undelivered. ``superseding`` tells for each reader up to where all that is not
    delivered comes again from its source, and ``superseded`` up to where the route has passed
    that: in between it still has to. While ``paused`` nothing is delivered, except up to the
    offset ``step``. ``declared`` is the epoch in which an engine declared the route, 0 where
    that is not known: a route of this name that was forgotten before had other generations.
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

    def to_supersede(self) -> dict[str, int]:
        """Return the readers of which the route still has to pass entries, and up to where."""
        return {
            reader: through
            for reader, through in self.superseding.items()
            if through > self.superseded.get(reader, -1)
        }

    def next_live(self) -> int:
        """Return the first offset that is not settled."""
        return self.watermark + 1

    def next_offset(self) -> int:
        """Return the next offset to deliver: of the replay, if there is one."""
        return self.next_live() if self.replay is None else self.replay.next

    def limit(self) -> int | None:
        """Return the last offset that may be delivered; ``None`` while nothing limits that."""
        if not self.paused:
            return None
        return self.next_offset() - 1 if self.step is None else self.step

    def highest(self) -> int:
        """Return the highest offset that this state proves durable (Invariant 3)."""
        return max([self.watermark, *(part.last for part in self.above)])

    def check(self) -> None:
        """Raise ``ValueError`` when this is no state that events can lead to (Invariant 17).

        For what was read from files: their checksums tell of damage, not of who wrote them.
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
            raise ValueError("an offset in it is none")
        names = (*self.namespaces, *self.superseded, *self.superseding)
        texts = (*names, self.replay.namespace if self.replay else "")
        if {*map(type, texts)} != {str} or type(self.paused) is not bool:
            raise ValueError("a name in it is none")
        if any(part.first > part.last or part.kind not in KINDS for part in parts):
            raise ValueError("a range in it is none")
        ends = (self.watermark, *(part.last for part in self.above))
        if any(part.first <= before for part, before in zip(self.above, ends, strict=False)):
            raise ValueError("its ranges do not ascend from its watermark")

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain values, for a snapshot."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Read what :meth:`to_json` gave."""
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

    Settling an offset twice changes nothing; the watermark never goes back.
    """
    watermark, above = _absorb(state.watermark, _merge(state.above, (part,)))
    released = state.released
    if part.kind == RELEASED:
        released = _joined(sorted([*released, part]))[-MOST_RELEASED:]
    known = state.namespaces
    if namespaces:
        known = {**known, **namespaces}
        if len(known) > MAX_NAMESPACES + _MORE_NAMESPACES:
            known = dict(sorted(known.items(), key=lambda pair: -pair[1])[:MAX_NAMESPACES])
    return replace(state, watermark=watermark, above=above, namespaces=known, released=released)


def _merge(above: tuple[Range, ...], parts: Iterable[Range]) -> tuple[Range, ...]:
    """Insert *parts*, which ascend; offsets that are settled already keep the kind they have.

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
    return _joined(sorted([*above, *merged]))


def _joined(parts: list[Range]) -> tuple[Range, ...]:
    joined: list[Range] = []
    for part in parts:
        if joined and joined[-1].kind == part.kind and joined[-1].last + 1 == part.first:
            joined[-1] = Range(joined[-1].first, part.last, part.kind)
        else:
            joined.append(part)
    return tuple(joined)


def _absorb(watermark: int, above: tuple[Range, ...]) -> tuple[int, tuple[Range, ...]]:
    """Move the watermark over what is settled right behind it."""
    passed = 0
    while passed < len(above) and above[passed].first <= watermark + 1:
        watermark = max(watermark, above[passed].last)
        passed += 1
    return watermark, above[passed:]


def begin_superseding(state: RouteState, reader: str, through: int) -> RouteState:
    """Return *state* with what *reader* logged up to *through*, undelivered, to be passed."""
    return replace(state, superseding=_raised(state.superseding, reader, through))


def supersede(
    state: RouteState,
    reader: str,
    through: int,
    parts: tuple[tuple[int, int], ...],
    asked: int | None = None,
) -> RouteState:
    """Return *state* with the offsets of *parts*, ascending, passed.

    They are all that *reader* logged up to *through* and that was not settled: its source
    gives them again. *asked* is up to where it does that, *through* by default; it is less
    for a route that is new to the reader, which passes nothing of what was logged before.
    """
    ranges = (Range(first, last, SUPERSEDED) for first, last in parts)
    watermark, above = _absorb(state.watermark, _merge(state.above, ranges))
    return replace(
        state,
        watermark=watermark,
        above=above,
        superseded=_raised(state.superseded, reader, through),
        superseding=_raised(state.superseding, reader, through if asked is None else asked),
    )


def _raised(marks: dict[str, int], reader: str, through: int) -> dict[str, int]:
    return {**marks, reader: max(through, marks.get(reader, -1))}


def begin_replay(state: RouteState, first: int, last: int, namespace: str = "") -> RouteState:
    """Return *state* in the next generation, with *first* to *last* to be delivered again."""
    replay = Replay(first, last, first, namespace)
    # A step was meant for what came next before this.
    return replace(state, generation=state.generation + 1, replay=replay, step=None)


def advance_replay(state: RouteState, through: int, generation: int) -> RouteState:
    """Return *state* with its replay settled up to *through*; at its end the replay is gone.

    A replay of another *generation* is left alone: it began after what has come so far.
    """
    if state.replay is None or generation != state.generation or through < state.replay.next:
        return state
    if through >= state.replay.last:
        return replace(state, replay=None, step=None)
    return replace(state, replay=replace(state.replay, next=through + 1))


def cancel_replay(state: RouteState) -> RouteState:
    """Return *state* without its replay; the generation stays, for sinks have seen it."""
    return replace(state, replay=None, step=None)


def pause(state: RouteState) -> RouteState:
    """Return *state* with nothing more to be delivered."""
    return replace(state, paused=True, step=None)


def resume(state: RouteState) -> RouteState:
    """Return *state* going on where it is."""
    return replace(state, paused=False, step=None)


def step_to(state: RouteState, through: int) -> RouteState:
    """Return the paused *state* with what comes up to *through* to be delivered all the same."""
    return replace(state, step=through)


def begin_at(state: RouteState, first: int, declared: int = 0) -> RouteState:
    """Return the state of a new route, *declared* in that epoch, whose first entry is *first*."""
    return replace(state, watermark=max(state.watermark, first - 1), declared=declared)


def request_retries(
    state: RouteState, offsets: tuple[int, ...], *, only: bool = False
) -> RouteState:
    """Return *state* with the parked *offsets* to be delivered as well.

    With *only* those behind them stay parked, unless that was asked for before.
    """
    new = {*offsets}
    alone = {*state.only, *(new.difference(state.retries))} if only else {*state.only} - new
    retries = tuple(sorted({*state.retries, *new}))
    return replace(state, retries=retries, only=tuple(sorted(alone)))


def answer_retry(state: RouteState, offset: int) -> RouteState:
    """Return *state* with the retry of *offset* answered, whatever came of it."""
    retries, only = _without(state.retries, offset), _without(state.only, offset)
    return replace(state, retries=retries, only=only)


def begin_skip(
    state: RouteState, offsets: tuple[int, ...], followers: tuple[int, ...]
) -> RouteState:
    """Return *state* with the parked *offsets* given up, and *followers* to be delivered."""
    gone = {*offsets}
    return replace(
        state,
        retries=tuple(sorted({*state.retries, *followers} - gone)),
        only=tuple(each for each in state.only if each not in gone),
        skips=tuple(sorted({*state.skips, *gone})),
    )


def end_skip(state: RouteState) -> RouteState:
    """Return *state* once no copy of what was given up is left."""
    return replace(state, skips=())


def _without(offsets: tuple[int, ...], offset: int) -> tuple[int, ...]:
    """Return *offsets*, which ascend, without *offset*."""
    place = bisect_left(offsets, offset)
    if offsets[place : place + 1] != (offset,):
        return offsets
    return offsets[:place] + offsets[place + 1 :]
