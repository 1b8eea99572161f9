"""Delivery of a whole log by the HTTP writer to a receiver with random faults."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from http_tools import OK, Receiver, Reply, ids_of, messages_of
from transporter_adaptors.http.writer import HttpWriter

from transporter.adaptor import WriterContext
from transporter.engine.routing.failure_policy import RedeliveryPlan
from transporter.message import Message
from transporter.pipeline.namespace_filter import NamespaceFilter
from transporter.protocol.messages import FailureKind
from transporter.testing import entries
from transporter.worker.delivery import Delivery, deliver, deliver_singly

if TYPE_CHECKING:
    from http_tools import Request

    from transporter.protocol.messages import Outcome

CONTEXT = WriterContext(log_id="log", route="route", epoch=1, deadline=1.0)
ROUTE = Delivery(NamespaceFilter(), "log")
ENTRIES = 180
REFUSED = frozenset({17, 90, 91, 180})
"""Offsets that the receiver never takes."""

CHANCES = {
    "ok": (OK, 40),
    "large": (Reply(201, body=b"x" * 100_000), 4),
    "closed": (Reply(202, close=True), 4),
    "busy": (Reply(429, (("Retry-After", "0"),)), 5),
    "later": (Reply(503, (("Retry-After", "1"),)), 3),
    "broken": (Reply(500, body=b"oops"), 6),
    "cut at once": (Reply(after=0), 6),
    "cut in the answer": (Reply(body=b"x" * 50, after=60), 6),
    "hangs": (Reply(hold=True), 2),
    "late": (Reply(late=True), 3),
    "slow": (Reply(drip=0.02), 1),
    "early": (OK, 7),  # The connection is reset in the middle of the request.
}


@dataclass
class Chaos:
    """A random fault for each request, each kind at least once."""

    chance: random.Random
    taken: set[str] = field(default_factory=set)
    """Ids of entries that the receiver has accepted, even if the answer was lost."""

    def __post_init__(self) -> None:
        self.name = ""
        self.left = list(CHANCES)
        self.chance.shuffle(self.left)

    def early(self) -> bool:
        """Choose the fault of the next request, and return whether it is cut in its middle."""
        weights = [weight for _, weight in CHANCES.values()]
        self.name = self.left.pop() if self.left else self.chance.choices([*CHANCES], weights)[0]
        return self.name == "early"

    def decide(self, request: Request) -> Reply:
        """Return the reply to *request*, a refusal if it would be accepted with a refused entry."""
        reply = CHANCES[self.name][0]
        if reply.status < 300 and is_refused(request):
            return Reply(422, body=b"never")
        if reply.status < 300:
            self.taken.update(ids_of(request))
        return reply


def is_refused(request: Request) -> bool:
    """Return whether *request* holds an entry that is never accepted."""
    return any(message.namespace == "refused" for message in messages_of(request))


def deliver_all(writer: HttpWriter, chance: random.Random) -> list[int]:
    """Deliver the log as a route does, and return the offsets that were skipped."""
    messages = [
        Message("refused" if offset in REFUSED else "n", b"%d" % offset, b"k%d" % (offset % 7))
        for offset in range(1, ENTRIES + 1)
    ]
    log = entries(messages, log_id="log").batch
    first, plan, given_up = 1, RedeliveryPlan(), []
    while first <= ENTRIES:
        last, single = plan.cut(first, min(ENTRIES, first + chance.randrange(60)))
        part = log.slice(first - 1, last - first + 1)
        outcome = one(writer, part, (first, last), single=single)
        first = outcome.through + 1
        plan = plan.after_settling(outcome.through)
        failed = outcome.failure
        if failed is None:
            continue
        if failed.kind is FailureKind.REJECTED:
            plan = plan.after_failure(first, last, failed.offset, single=single)
            if plan.attempts(first) >= 2:
                given_up.append(first)
                plan, first = plan.after_settling(first), first + 1
        else:
            assert failed.kind.retriable, failed
            threading.Event().wait(0.005)  # A route would wait longer.
    return given_up


def one(writer: HttpWriter, part: object, bounds: tuple[int, int], *, single: bool) -> Outcome:
    """Deliver one slice, in bulk or one at a time."""
    first, last = bounds
    if not single:
        return deliver(part, last, 0, ROUTE, writer)
    return deliver_singly(part, (first, last, 0), ROUTE, writer, lambda _: None)


@pytest.mark.parametrize(("form", "seed"), [("entries", 1), ("entries", 2), ("data", 3)])
def test_whatever_the_receiver_does_nothing_is_lost_and_nothing_overtakes(
    form: str, seed: int
) -> None:
    """Each entry arrives, first receipts keep each key's order, and ids never change."""
    chance = random.Random(seed)
    chaos = Chaos(random.Random(seed + 100))
    with Receiver(chaos.decide, chaos.early) as receiver:
        settings = {"timeout": 0.1, "retry_after_max": 0.03, "format": form}
        settings |= {} if form == "data" else {"batch_rows": 9}
        writer = HttpWriter(HttpWriter.Config(url=receiver.url, **settings))
        writer.open(CONTEXT)
        try:
            given_up = deliver_all(writer, chance)
        finally:
            writer.close()
        receiver.await_closed()

    assert not chaos.left  # Otherwise this shows too little.
    assert given_up == sorted(REFUSED)
    assert chaos.taken == {
        f"log/{offset}" for offset in range(1, ENTRIES + 1) if offset not in REFUSED
    }
    check_receipts(receiver.requests)


def check_receipts(requests: list[Request]) -> None:
    """Check ids, keys and order of everything that arrived, accepted or not."""
    first: dict[str, Message] = {}
    order: dict[bytes | None, list[int]] = {}
    repeated = 0
    ranges: dict[tuple[str, ...], str] = {}
    for request in requests:
        ids = ids_of(request)
        assert (
            ranges.setdefault(tuple(ids), request.headers["idempotency-key"])
            == (request.headers["idempotency-key"])
        )
        for each, message in zip(ids, messages_of(request), strict=True):
            assert each == f"log/{int(message.data or b'')}"
            repeated += each in first
            if first.setdefault(each, message) is message:
                order.setdefault(message.key, []).append(int(message.data or b""))
            assert first[each] == message
    assert repeated > 0
    assert len(set(ranges.values())) == len(ranges)
    assert all(each == sorted(each) for each in order.values())
