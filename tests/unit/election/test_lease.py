"""The lease that candidates read from one partition."""

from __future__ import annotations

import json

import pytest

from transporter.election.lease import Beat, Lease, RecordKind, decode_beat

TERM = 10.0


class Partition:
    """A log with readers that all read each record, in order, at once."""

    def __init__(self, *names: str, start: float = 0.0) -> None:
        self.offset = 0
        self.leases = {name: Lease("e", name, TERM) for name in names}
        for lease in self.leases.values():
            lease.start_listening(start)

    def __getitem__(self, name: str) -> Lease:
        return self.leases[name]

    def append(self, beat: Beat, now: float) -> None:
        """Append *beat* and apply it to all leases."""
        for lease in self.leases.values():
            lease.apply(beat, self.offset, now)
        self.offset += 1

    def write(self, name: str, now: float) -> RecordKind | None:
        """Write the record that *name* has due, if any, and return its kind."""
        kind = self[name].next_kind(now)
        if kind is not None:
            self.append(self[name].next_record(kind, now), now)
        return kind

    def leaders(self, now: float) -> list[str]:
        """Return the candidates that may believe that they lead."""
        proofs = {name: lease.proof_time(now) for name, lease in self.leases.items()}
        return [name for name, at in proofs.items() if at is not None and now < at + TERM]


def led_by_a(now: float = 20.0) -> Partition:
    """Return a partition on which a has led since before *now*."""
    log = Partition("a", "b")
    log.write("a", 0)
    log.write("a", now)
    assert log.leaders(now) == ["a"]
    return log


def test_a_lone_candidate_claims_and_leads_after_a_term() -> None:
    """A candidate leads a term after it began to listen, since a rival may lead until then."""
    log = Partition("a")
    assert log.write("a", 1) is RecordKind.CLAIM
    assert log.write("a", 9) is RecordKind.BEAT
    assert log.leaders(9.9) == []
    assert log.leaders(10) == ["a"]


def test_nothing_is_claimed_before_the_partition_is_heard() -> None:
    """A candidate that has not begun to listen claims nothing."""
    lease = Lease("e", "a", TERM)
    assert lease.next_kind(1000) is None
    assert lease.proof_time(1000) is None


def test_a_leader_leads_for_a_term_after_it_sent_what_came_back() -> None:
    """A term counts from the time of sending, not from that of reading."""
    log = led_by_a()
    beat = log["a"].next_record(RecordKind.BEAT, 22)
    log.append(beat, 29)
    assert log["a"].proof_time(29) == 22


def test_a_later_claim_ends_a_leadership_at_once() -> None:
    """A later claim ends a leadership once it is read, and beats under way are void."""
    log = led_by_a()
    late = log["a"].next_record(RecordKind.BEAT, 20.4)
    assert log.write("b", 20.5) is RecordKind.CLAIM
    assert not log["a"].is_ours
    log.append(late, 20.6)
    assert log["a"].proof_time(20.6) is None
    assert log.leaders(20.6) == []


def test_a_claimant_waits_for_what_its_forerunner_may_believe() -> None:
    """A claimant leads a term after it has read the last valid beat."""
    log = led_by_a(20)
    log.write("b", 25)
    log.write("b", 29)
    assert log.leaders(29.9) == []
    assert log.leaders(30) == ["b"]


def test_nobody_waits_for_one_who_resigned() -> None:
    """A resignation hands over at once."""
    log = led_by_a(20)
    beat = log["a"].resign(21)
    assert beat is not None
    assert log["a"].proof_time(21) is None
    log.append(beat, 21)
    log.write("b", 21)
    assert log.leaders(21) == ["b"]


def test_who_resigns_vouches_for_himself_only() -> None:
    """After a resignation the leader before it may still lead for its term."""
    log = Partition("a", "b", "c")
    log.write("a", 0)
    log.write("a", 20)
    log.write("b", 21)
    beat = log["b"].resign(22)
    assert beat is not None
    log.append(beat, 22)
    log.write("c", 23)
    log.write("c", 29)
    assert log.leaders(29) == []
    assert log.leaders(30) == ["c"]


def test_a_void_resignation_vouches_for_nobody() -> None:
    """A resignation after a rival's claim is void, because the rival may lead."""
    log = Partition("a", "b", "c")
    log.write("a", 0)
    late = log["a"].resign(11)
    assert late is not None
    log.write("b", 11)
    log.write("b", 20)
    assert log.leaders(20) == ["b"]
    log.append(late, 21)
    log.write("c", 22)
    log.write("c", 29)
    assert log.leaders(29.9) == []
    assert log.leaders(30) == ["c"]


def test_who_has_no_claim_has_nothing_to_resign() -> None:
    """A candidate without a claim writes no resignation."""
    assert Partition("a")["a"].resign(1) is None


def test_a_superseded_claim_is_repeated_when_the_rival_is_silent() -> None:
    """A superseded claim is repeated only after a term without the rival's beats."""
    log = led_by_a(20)
    log.write("b", 21)
    assert log.write("a", 22) is None
    assert log.write("b", 30) is RecordKind.BEAT
    assert log.write("a", 39.9) is None
    assert log.write("a", 40) is RecordKind.CLAIM


def test_a_new_assignment_claims_at_once() -> None:
    """A new assignment by the group leads to a claim at once."""
    log = led_by_a(20)
    log.write("b", 21)
    log["a"].note_assignment()
    assert log.write("a", 21) is RecordKind.CLAIM


def test_a_claim_that_does_not_come_back_is_repeated() -> None:
    """A claim that does not come back within a term is repeated."""
    lease = Lease("e", "a", TERM)
    lease.start_listening(0)
    lease.next_record(RecordKind.CLAIM, 1)
    assert lease.next_kind(10.9) is None
    assert lease.next_kind(11) is RecordKind.CLAIM


def test_who_comes_late_takes_the_newest_claim_for_the_holder() -> None:
    """A late reader uses the newest claim, because each beat names its claim."""
    log = led_by_a(20)
    stale = log["a"].next_record(RecordKind.BEAT, 20.1)
    log.write("b", 20.2)
    late = log.leases["c"] = Lease("e", "c", TERM)
    late.start_listening(20.3)
    log.append(stale, 20.4)
    log.write("b", 29)
    log.write("c", 29.5)
    log.write("c", 38)
    assert log.leaders(38.9) == []
    assert log.leaders(39) == ["c"]


def test_who_has_lost_its_place_listens_anew() -> None:
    """A leader that listens again leads no more, and waits a term."""
    log = led_by_a(20)
    log["a"].start_listening(21)
    assert log.leaders(21) == []
    log.write("a", 22)
    log.write("a", 30)
    assert log.leaders(30.9) == []
    assert log.leaders(32) == ["a"]


def test_what_a_lease_remembers_is_bounded() -> None:
    """Beats that never come back are dropped after a term (Invariant 17)."""
    lease = Lease("e", "a", TERM)
    lease.start_listening(0)
    for now in range(1000):
        lease.next_record(RecordKind.BEAT, now)
    assert len(lease._send_times) == TERM


def test_a_beat_survives_its_encoding() -> None:
    """A beat reads back as it was written."""
    beat = Beat("orders", "a" * 32, 12, 34, RecordKind.RESIGN)
    assert decode_beat(beat.encode()) == beat


GOOD = {
    "version": 1,
    "election": "e",
    "candidate": "c",
    "claim": 1,
    "number": 2,
    "kind": "beat",
}


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"1700000000%someone",
        b"\xff\xfe",
        b"[]",
        b"[" * 4000,
        json.dumps(GOOD | {"version": 2}).encode(),
        json.dumps(GOOD | {"kind": "coup"}).encode(),
        json.dumps(GOOD | {"claim": "1"}).encode(),
        json.dumps(GOOD | {"number": True}).encode(),
        json.dumps(GOOD | {"election": 7}).encode(),
        json.dumps(GOOD | {"more": 7}).encode(),
        json.dumps({"version": 1}).encode(),
        json.dumps(GOOD | {"candidate": "c" * 5000}).encode(),
    ],
)
def test_what_no_elector_wrote_is_no_beat(value: bytes | None) -> None:
    """A record that no elector wrote is not a beat."""
    assert decode_beat(value) is None
    assert decode_beat(json.dumps(GOOD).encode()) is not None
