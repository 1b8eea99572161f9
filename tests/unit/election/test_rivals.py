"""At most one leader among rival machines and leases, with delays, losses and pauses."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from transporter.election.lease import Beat, Lease, RecordKind
from transporter.election.state_machine import ElectionState, Observation, Standing

TERM = 4.0
WHO = st.integers(0, 2)
SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=200,
    stateful_step_count=60,
    suppress_health_check=[HealthCheck.too_slow],
)


@dataclass
class Session:
    """A session on the server, with the time at which it expires."""

    expires: float


@dataclass
class Candidate:
    """A candidate for the lock, with its machine, its session and its messages under way."""

    machine: ElectionState = field(default_factory=lambda: ElectionState(TERM))
    session: Session | None = None
    asked: float | None = None
    answers: deque[Observation] = field(default_factory=deque)


class Lock(RuleBasedStateMachine):
    """A lock whose server ends sessions that are idle for a term. All else is arbitrary."""

    @initialize()
    def begin(self) -> None:
        """Start without a leader."""
        self.now = 100.0
        self.rivals = [Candidate() for _ in range(3)]
        self.holder: Session | None = None

    @rule(seconds=st.floats(0, 1.5 * TERM))
    def wait(self, seconds: float) -> None:
        """Let time pass. A candidate without a pulse meanwhile was paused."""
        self.now += seconds

    @rule(who=WHO)
    def ask(self, who: int) -> None:
        """Send a query for the lock."""
        rival = self.rivals[who]
        if rival.asked is None and not rival.answers:
            rival.asked = self.now

    @rule(who=WHO)
    def serve(self, who: int) -> None:
        """Deliver the query to the server."""
        rival = self.rivals[who]
        if rival.asked is None:
            return
        asked, rival.asked = rival.asked, None
        if self.holder is not None and self.now >= self.holder.expires:
            self.holder = None
        if rival.session is None:
            rival.session = Session(0)
        elif self.now >= rival.session.expires:
            rival.answers.append(
                Observation(holding=False, asked_at=asked, why="the session ended")
            )
            rival.session = None
            return
        rival.session.expires = self.now + TERM
        if self.holder is None:
            self.holder = rival.session
        holding = self.holder is rival.session
        rival.answers.append(Observation(holding=holding, asked_at=asked, why="answered"))

    @rule(who=WHO)
    def pulse(self, who: int) -> None:
        """Let a candidate check the time, and then the next answer."""
        rival = self.rivals[who]
        fenced = rival.machine.pulse(self.now)
        if fenced:
            # Its session is dropped, and the server is not notified.
            rival.session, rival.asked = None, None
            rival.answers.clear()
        elif rival.answers:
            rival.machine.pulse(self.now, rival.answers.popleft())

    @rule(who=WHO)
    def cut(self, who: int) -> None:
        """Cut a connection. The candidate notices, and the server does not."""
        rival = self.rivals[who]
        rival.session, rival.asked = None, None
        rival.answers.clear()
        rival.machine.pulse(self.now, Observation(holding=False, asked_at=self.now, why="cut"))

    @invariant()
    def one_leads_and_it_holds_the_lock(self) -> None:
        """Assert that at most one candidate leads, and that it holds the lock on the server."""
        leaders = [each for each in self.rivals if each.machine.standing(self.now) == "leader"]
        assert len(leaders) <= 1
        for each in leaders:
            assert each.session is self.holder
            assert self.holder is not None
            assert self.now < self.holder.expires


TestLock = Lock.TestCase
TestLock.settings = SETTINGS


@dataclass
class Member:
    """A writer and reader of the partition, with its unread and unwritten records."""

    name: int
    lease: Lease
    machine: ElectionState = field(default_factory=lambda: ElectionState(TERM))
    read: int = 0
    outbox: deque[Beat] = field(default_factory=deque)
    assigned: bool = False


class Group(RuleBasedStateMachine):
    """A group with arbitrary assignments, even of the partition to several members."""

    @initialize()
    def begin(self) -> None:
        """Start without a leader."""
        self.now = 100.0
        self.log: list[Beat] = []
        self.names = 0
        self.members = [self.member() for _ in range(3)]

    def member(self) -> Member:
        """Return a new member that reads from the end on."""
        self.names += 1
        lease = Lease("e", str(self.names), TERM)
        lease.start_listening(self.now)
        return Member(self.names, lease, read=len(self.log))

    @rule(seconds=st.floats(0, TERM))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    @rule(who=WHO)
    def assign(self, who: int) -> None:
        """Assign the partition to a member, whichever member has it."""
        self.members[who].assigned = True
        self.members[who].lease.note_assignment()

    @rule(who=WHO)
    def revoke(self, who: int) -> None:
        """Revoke the assignment, so that the member resigns."""
        member = self.members[who]
        member.assigned = False
        member.machine.pulse(self.now, Observation(holding=False, asked_at=self.now, why="revoked"))
        if beat := member.lease.resign(self.now):
            member.outbox.append(beat)

    @rule(who=WHO)
    def restart(self, who: int) -> None:
        """Replace a member by a new one. Records of the old one still arrive."""
        old, self.members[who] = self.members[who], self.member()
        self.log += old.outbox

    @rule(who=WHO)
    def miss(self, who: int) -> None:
        """Move a member to the end of the partition."""
        member = self.members[who]
        member.read = len(self.log)
        member.lease.start_listening(self.now)
        self.hear(member)

    @rule(who=WHO)
    def arrive(self, who: int) -> None:
        """Write the next record that a member has sent."""
        if self.members[who].outbox:
            self.log.append(self.members[who].outbox.popleft())

    @rule(who=WHO)
    def lose(self, who: int) -> None:
        """Lose the next record that a member has sent."""
        if self.members[who].outbox:
            self.members[who].outbox.popleft()

    @rule(who=WHO, count=st.integers(1, 5), write=st.booleans())
    def pulse(self, who: int, count: int, write: bool) -> None:
        """Let a member read some records, write, and update its machine."""
        member = self.members[who]
        member.machine.pulse(self.now)
        for beat in self.log[member.read : member.read + count]:
            member.lease.apply(beat, member.read, self.now)
            member.read += 1
        kind = member.lease.next_kind(self.now) if member.assigned and write else None
        if kind is not None:
            member.outbox.append(member.lease.next_record(kind, self.now))
        self.hear(member)

    @rule(who=WHO)
    def round_trip(self, who: int) -> None:
        """Let all succeed for a member, so that there are leaders."""
        for _ in range(2):
            self.assign(who)
            self.pulse(who, 50, write=True)
            while self.members[who].outbox:
                self.arrive(who)
            self.pulse(who, 50, write=False)

    def hear(self, member: Member) -> None:
        """Pass the lease's state to a member's machine."""
        proved = member.lease.proof_time(self.now)
        if not (member.assigned and member.lease.is_ours):
            member.machine.pulse(
                self.now, Observation(holding=False, asked_at=self.now, why="lost")
            )
        elif proved is not None:
            member.machine.pulse(self.now, Observation(holding=True, asked_at=proved, why="proved"))

    @invariant()
    def one_leads(self) -> None:
        """Assert that at most one member leads, whichever members are assigned."""
        leaders = [
            each.name for each in self.members if each.machine.standing(self.now) is Standing.LEADER
        ]
        assert len(leaders) <= 1


TestGroup = Group.TestCase
TestGroup.settings = SETTINGS


def test_leaders_come_about_in_these_worlds() -> None:
    """The rules above can make a leader, so their invariants are not vacuous."""
    lock = Lock()
    lock.begin()
    lock.ask(1)
    lock.serve(1)
    lock.pulse(1)
    assert lock.rivals[1].machine.standing(lock.now) is Standing.LEADER
    group = Group()
    group.begin()
    group.wait(TERM)
    group.round_trip(2)
    assert group.members[2].machine.standing(group.now) is Standing.LEADER
    assert group.log[0].kind is RecordKind.CLAIM
