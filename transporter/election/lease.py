"""A lease that is read from one partition of a log. Pure: time is an argument.

A consumer group alone cannot keep two from leading: a member that the group
has dropped learns of it last. But every record of a partition has one place
that all readers agree about. So:

- Whoever is assigned the partition writes a *claim*; from that place on only
  the last claim's *beats* count, and the former leader's are void.
- A leader leads for a term from when it *sent* its last beat that it has read
  back, with no later claim before it.
- A claimant waits until a term after it *read* the former leader's last beat
  that counts, or after it began to read. Nothing is read before it is sent, so
  the former leader has ceased to believe by then, whatever the group says.
- Who leaves says so (*resigns*), and need not be waited for.

Two who both believe to be assigned cannot drive each other out for ever: a
claim that was superseded is repeated only with a new assignment, or when the
rival has been silent for a term. Clocks of two machines may differ as they
like, if they run at the same speed.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Final

_VERSION: Final = 1
_LONGEST: Final = 4096
"""Bytes of the largest record that is looked at."""
_NO_CLAIM: Final = -1


class Kind(StrEnum):
    """What a record says."""

    CLAIM = "claim"
    BEAT = "beat"
    RESIGN = "resign"


@dataclass(frozen=True, slots=True)
class Beat:
    """One record: who, by which of its claims, says what about which election."""

    election: str
    candidate: str
    """Names one elector, and no other one ever."""
    claim: int
    """The record's claim, named by its offset in the partition; -1 in a claim itself."""
    number: int
    """Counts the records of the candidate."""
    kind: Kind

    def encode(self) -> bytes:
        """Return the record's value."""
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()


def decode(value: bytes | None) -> Beat | None:
    """Return the beat that *value* stands for; ``None`` when it was not written by an elector."""
    try:
        found = json.loads(value) if value and len(value) <= _LONGEST else None
        if not isinstance(found, dict) or found.pop("version", None) != _VERSION:
            return None
        beat = Beat(**found)
        beat = replace(beat, kind=Kind(beat.kind))
    except (ValueError, TypeError, RecursionError):
        return None
    texts = isinstance(beat.election, str) and isinstance(beat.candidate, str)
    return beat if texts and type(beat.claim) is type(beat.number) is int else None


class Lease:
    """One candidate's view of the lease. Not thread-safe; times are monotonic seconds.

    Call :meth:`start_listening` first, and again when records may have been missed;
    then feed it every record of the partition in order.
    """

    def __init__(self, election: str, candidate: str, term: float) -> None:
        """Take part in *election* as *candidate*, a name that nobody else ever has."""
        self._election, self._candidate, self._term = election, candidate, term
        self._number = 0
        self._sent: OrderedDict[int, float] = OrderedDict()
        self._proved = self._former_until = -math.inf
        self._reset(math.inf)

    def start_listening(self, now: float) -> None:
        """Know nothing of what was written before *now*, and claim when we are assigned."""
        self._reset(now)

    def _reset(self, since: float) -> None:
        self._listening_since = since
        self._holder = _NO_CLAIM
        """The last claim, by its offset."""
        self._holder_until = -math.inf
        """Until when its author may believe to lead."""
        self._pending: int | None = None
        """The number of a claim of ours that was not read back yet."""
        self._mine: int | None = None
        self._eager = True

    def apply(self, beat: Beat, offset: int, now: float) -> None:
        """Take in the record at *offset*, which was read at *now*."""
        claim = offset if beat.kind is Kind.CLAIM else beat.claim
        if claim < self._holder:
            return  # Void: its author had not read yet that it is superseded.
        if claim > self._holder:
            self._start_claim(claim, beat)
        resigned = beat.kind is Kind.RESIGN
        self._holder_until = -math.inf if resigned else now + self._term
        if claim == self._mine:
            self._proved = max(self._proved, self._sent.pop(beat.number, -math.inf))

    def _start_claim(self, claim: int, beat: Beat) -> None:
        self._former_until = max(self._former_until, self._holder_until)
        self._holder, self._mine = claim, None
        if (beat.candidate, beat.number) == (self._candidate, self._pending):
            self._mine, self._pending = claim, None

    def note_assignment(self) -> None:
        """Take note that the group has just given us the partition: claim it at once."""
        self._eager = True

    def next_kind(self, now: float) -> Kind | None:
        """Return what an assigned candidate writes next: a claim, beats, or nothing yet.

        A claim that does not come back within a term is repeated.
        """
        if self._mine is not None:
            return Kind.BEAT
        if self._pending is not None:
            waits = now < self._sent.get(self._pending, -math.inf) + self._term
            return None if waits else Kind.CLAIM
        silent = now >= max(self._free_at, self._holder_until)
        listening = now >= self._listening_since
        return Kind.CLAIM if listening and (self._eager or silent) else None

    def next_record(self, kind: Kind, now: float) -> Beat:
        """Return the record to write; *now* is before it is handed to anybody."""
        self._number += 1
        if kind is Kind.CLAIM:
            self._pending, self._eager = self._number, False
        self._sent[self._number] = now
        # What comes back later than that proves nothing any more (Invariant 17).
        while self._sent and next(iter(self._sent.values())) <= now - self._term:
            self._sent.popitem(last=False)
        claim = _NO_CLAIM if kind is Kind.CLAIM or self._mine is None else self._mine
        return Beat(self._election, self._candidate, claim, self._number, kind)

    def resign(self, now: float) -> Beat | None:
        """Give our claim up; return the record that tells so, if we have one."""
        beat = None if self._mine is None else self.next_record(Kind.RESIGN, now)
        self._mine = self._pending = None
        self._proved = -math.inf
        return beat

    @property
    def is_ours(self) -> bool:
        """Whether the last claim that was read is ours."""
        return self._mine is not None

    def proof_time(self, now: float) -> float | None:
        """Return since when the lease is proved ours; ``None`` when it is not, or not yet.

        It holds for a term from then, and no longer.
        """
        return self._proved if self._mine is not None and now >= self._free_at else None

    @property
    def _free_at(self) -> float:
        return max(self._listening_since + self._term, self._former_until)
