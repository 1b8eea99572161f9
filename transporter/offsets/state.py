"""How far a route has come, as a value, and how events move it. Pure.

A route's state is the fold of its events; the offset log stores the events and,
now and then, the state itself.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

MAX_NAMESPACES: Final = 10_000
"""Namespaces whose newest offset is kept for the operator; more are left out."""


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
    the parked offsets that an operator wants delivered, in order. ``namespaces`` tells the newest
    settled offset of each namespace, for the operator only, and so does ``released``: what
    was given up undelivered. ``superseded`` tells for each reader up to where its entries were
    looked through for what its source gives again. While ``paused`` nothing is delivered, except
    up to the offset ``step``.
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
    paused: bool = False
    step: int | None = None

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
            paused=fields.get("paused", False),
            step=fields.get("step"),
        )


def settle(state: RouteState, part: Range, namespaces: dict[str, int] | None = None) -> RouteState:
    """Return *state* with the offsets of *part* settled.

    Settling an offset twice changes nothing; the watermark never goes back.
    """
    watermark, above = _absorb(state.watermark, _merge(state.above, part))
    released = state.released
    if part.kind == RELEASED:
        released = _joined(sorted([*released, part]))[-MOST_RELEASED:]
    known = state.namespaces
    if namespaces:
        known = {**known, **namespaces}
        if len(known) > MAX_NAMESPACES:
            known = dict(sorted(known.items(), key=lambda pair: -pair[1])[:MAX_NAMESPACES])
    return replace(state, watermark=watermark, above=above, namespaces=known, released=released)


def _merge(above: tuple[Range, ...], part: Range) -> tuple[Range, ...]:
    """Insert *part*; offsets that are settled already keep the kind they have."""
    merged: list[Range] = []
    first = part.first
    for known in above:
        if known.first > part.last:
            break
        if first < known.first:
            merged.append(Range(first, known.first - 1, part.kind))
        first = max(first, known.last + 1)
    if first <= part.last:
        merged.append(Range(first, part.last, part.kind))
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
    rest = list(above)
    while rest and rest[0].first <= watermark + 1:
        watermark = max(watermark, rest.pop(0).last)
    return watermark, tuple(rest)


def supersede(
    state: RouteState, reader: str, through: int, parts: tuple[tuple[int, int], ...]
) -> RouteState:
    """Return *state* with the offsets of *parts* passed: *reader*'s source gives them again.

    All that *reader* logged up to *through* and that was not settled is among them.
    """
    for first, last in parts:
        state = settle(state, Range(first, last, SUPERSEDED))
    known = max(through, state.superseded.get(reader, -1))
    return replace(state, superseded={**state.superseded, reader: known})


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


def begin_at(state: RouteState, first: int) -> RouteState:
    """Return the state of a new route whose first entry will be *first*."""
    return replace(state, watermark=max(state.watermark, first - 1))


def request_retries(state: RouteState, offsets: tuple[int, ...]) -> RouteState:
    """Return *state* with the parked *offsets* to be delivered as well."""
    return replace(state, retries=tuple(sorted({*state.retries, *offsets})))


def answer_retry(state: RouteState, offset: int) -> RouteState:
    """Return *state* with the retry of *offset* answered, whatever came of it."""
    return replace(state, retries=tuple(each for each in state.retries if each != offset))
