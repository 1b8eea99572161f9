"""Lease that is derived from one partition of a log. Pure: time is an argument.

A consumer group alone cannot prevent two leaders, because a member that the group
has dropped detects it last. But every record of a partition has one place in an
order that all readers share. Therefore:

- The candidate that is assigned the partition writes a *claim*. From there on only
  the last claim's *beats* count, and the former leader's are void.
- A leader leads for a term from the time it *sent* its last beat that it has read
  back, with no later claim before it.
- A claimant waits until a term after it *read* the former leader's last valid beat,
  or after it began to read. A record is read only after it is sent, so the former
  leader has stopped leading by then, regardless of the group's view.
- A candidate that leaves *resigns* with a record, and the next one need not wait.

Two candidates that both consider themselves assigned cannot depose each other for
ever. A superseded claim is repeated only after a new assignment, or once the rival
has been silent for a term. The clocks of two machines may differ arbitrarily if
they run at the same speed.
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
"""Size of the largest record that is decoded, in bytes."""
_NO_CLAIM: Final = -1


class RecordKind(StrEnum):
    """Kind of a record."""

    CLAIM = "claim"
    BEAT = "beat"
    RESIGN = "resign"


@dataclass(frozen=True, slots=True)
class Beat:
    """One record of a candidate in an election, under one of its claims."""

    election: str
    candidate: str
    """Unique name of one elector, never used by another."""
    claim: int
    """Offset of the record's claim in the partition; -1 in a claim itself."""
    number: int
    """Sequence number among the records of the candidate."""
    kind: RecordKind

    def encode(self) -> bytes:
        """Return the record's value."""
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()


def decode_beat(value: bytes | None) -> Beat | None:
    """Return the beat in *value*, or ``None`` if it was not written by an elector."""
    try:
        found = json.loads(value) if value and len(value) <= _LONGEST else None
        if not isinstance(found, dict) or found.pop("version", None) != _VERSION:
            return None
        beat = Beat(**found)
        beat = replace(beat, kind=RecordKind(beat.kind))
    except (ValueError, TypeError, RecursionError):
        return None
    texts = isinstance(beat.election, str) and isinstance(beat.candidate, str)
    return beat if texts and type(beat.claim) is type(beat.number) is int else None


class Lease:
    """One candidate's view of the lease. Not thread-safe. Times are monotonic seconds.

    Call :meth:`start_listening` first, and again when records may have been missed.
    Then pass every record of the partition to :meth:`apply` in order.
    """

    def __init__(self, election: str, candidate: str, term: float) -> None:
        """Take part in *election* as *candidate*, a name that is never used again."""
        self._election, self._candidate, self._term = election, candidate, term
        self._number = 0
        self._send_times: OrderedDict[int, float] = OrderedDict()
        self._proved_at = self._former_until = -math.inf
        self._reset(math.inf)

    def start_listening(self, now: float) -> None:
        """Discard all records from before *now*, and claim once we are assigned."""
        self._reset(now)

    def _reset(self, since: float) -> None:
        self._listening_since = since
        self._last_claim = _NO_CLAIM
        """Offset of the last claim."""
        self._last_claim_until = -math.inf
        """Time until which the last claim's author may consider itself the leader."""
        self._pending_claim: int | None = None
        """Number of our claim that was not read back yet."""
        self._own_claim: int | None = None
        self._may_claim_at_once = True

    def apply(self, beat: Beat, offset: int, now: float) -> None:
        """Apply the record at *offset*, which was read at *now*."""
        claim = offset if beat.kind is RecordKind.CLAIM else beat.claim
        if claim < self._last_claim:
            return  # Void: its author had not yet read the claim that supersedes its own.
        if claim > self._last_claim:
            self._start_claim(claim, beat)
        resigned = beat.kind is RecordKind.RESIGN
        self._last_claim_until = -math.inf if resigned else now + self._term
        if claim == self._own_claim:
            self._proved_at = max(self._proved_at, self._send_times.pop(beat.number, -math.inf))

    def _start_claim(self, claim: int, beat: Beat) -> None:
        self._former_until = max(self._former_until, self._last_claim_until)
        self._last_claim, self._own_claim = claim, None
        if (beat.candidate, beat.number) == (self._candidate, self._pending_claim):
            self._own_claim, self._pending_claim = claim, None

    def note_assignment(self) -> None:
        """Record that the group has just assigned us the partition, so that we claim at once."""
        self._may_claim_at_once = True

    def next_kind(self, now: float) -> RecordKind | None:
        """Return the kind of record that an assigned candidate writes next; ``None``: none yet.

        A claim that does not come back within a term is repeated.
        """
        if self._own_claim is not None:
            return RecordKind.BEAT
        if self._pending_claim is not None:
            waits = now < self._send_times.get(self._pending_claim, -math.inf) + self._term
            return None if waits else RecordKind.CLAIM
        silent = now >= max(self._free_at, self._last_claim_until)
        listening = now >= self._listening_since
        return RecordKind.CLAIM if listening and (self._may_claim_at_once or silent) else None

    def next_record(self, kind: RecordKind, now: float) -> Beat:
        """Return the record to write. *now* must lie before it is handed to a client."""
        self._number += 1
        if kind is RecordKind.CLAIM:
            self._pending_claim, self._may_claim_at_once = self._number, False
        self._send_times[self._number] = now
        # A record that comes back later than that proves nothing (Invariant 17).
        while self._send_times and next(iter(self._send_times.values())) <= now - self._term:
            self._send_times.popitem(last=False)
        claim = _NO_CLAIM
        if kind is not RecordKind.CLAIM and self._own_claim is not None:
            claim = self._own_claim
        return Beat(self._election, self._candidate, claim, self._number, kind)

    def resign(self, now: float) -> Beat | None:
        """Drop our claim and return the resignation to write, if we had a claim."""
        beat = None if self._own_claim is None else self.next_record(RecordKind.RESIGN, now)
        self._own_claim = self._pending_claim = None
        self._proved_at = -math.inf
        return beat

    @property
    def is_ours(self) -> bool:
        """Whether the last claim in the partition is ours."""
        return self._own_claim is not None

    def proof_time(self, now: float) -> float | None:
        """Return the time from which the lease is proved ours, or ``None`` if it is not yet.

        The lease lasts for a term from that time, and no longer.
        """
        return self._proved_at if self._own_claim is not None and now >= self._free_at else None

    @property
    def _free_at(self) -> float:
        return max(self._listening_since + self._term, self._former_until)
