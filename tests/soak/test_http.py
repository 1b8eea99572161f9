"""The real command with a hostile HTTP receiver, and a kill in between."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from acceptance_tools import await_true, gone, running, transporter
from http_tools import OK, Receiver, Reply

if TYPE_CHECKING:
    from pathlib import Path

    from http_tools import Request

LINES = 3200
SEED = 20_260
PIPELINE = """
log: {{dir: log}}
readers: [{{name: lines, adaptor: file, path: in.jsonl, namespace: orders.placed}}]
routes:
  - name: http
    slice_rows: 400
    retry: {{backoff: 10ms..100ms}}
    writer: {{adaptor: http, url: "{url}", batch_rows: 80, timeout: 500ms}}
"""
FATES = {
    "taken": (OK, 60),
    "busy": (Reply(429, (("Retry-After", "1"),)), 1),
    "broken": (Reply(500, body=b"oops"), 4),
    "reset behind the request": (Reply(after=0), 4),
    "reset in the answer": (Reply(body=b"x" * 50, after=60), 4),
    "no answer in time": (Reply(hold=True), 2),
    "taken too late": (Reply(late=True), 2),
    "reset in the request": (OK, 4),
}

pytestmark = pytest.mark.spark


@dataclass
class Hostile:
    """A receiver that draws the fate of each request, and each fate at least once."""

    chance: random.Random
    met: Counter[str] = field(default_factory=Counter)
    reached: threading.Event = field(default_factory=threading.Event)
    taken: int = 0

    def __post_init__(self) -> None:
        self.name = ""
        self.left = list(FATES)

    def early(self) -> bool:
        """Draw the fate of the next request."""
        weights = [weight for _, weight in FATES.values()]
        drawn = self.left.pop() if self.left else self.chance.choices(list(FATES), weights)[0]
        self.name = drawn
        self.met[drawn] += 1
        return drawn == "reset in the request"

    def decide(self, _: Request) -> Reply:
        """Return the reply that was drawn."""
        self.taken += self.name == "taken"
        if self.taken >= LINES // 80 // 3:
            self.reached.set()
        return FATES[self.name][0]


def test_a_hostile_receiver_gets_everything_in_order(tmp_path: Path) -> None:
    """With any answers, and a kill of the engine, nothing is lost, and repeats keep their ids."""
    (tmp_path / "in.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(LINES)))
    hostile = Hostile(random.Random(SEED))
    problems: list[str] = []
    with Receiver(hostile.decide, hostile.early) as receiver:
        (tmp_path / "p.yaml").write_text(PIPELINE.format(url=receiver.url))
        with running(tmp_path / "p.yaml") as engine:
            await_true(hostile.reached.is_set, 120, "a third of it is taken")
            left = engine.kill()
            problems += problems_of(engine.events)
        with running(tmp_path / "p.yaml") as engine:
            assert engine.wait(120) == 0
            problems += problems_of(engine.events)
        gone(left)
        receiver.await_closed()

    (route,) = transporter("offsets", "list", str(tmp_path / "log"))
    assert (route["watermark"], route["lag"]) == (LINES - 1, 0)
    assert hostile.met.keys() == FATES.keys()
    assert all("answered" in each or "HTTP receiver" in each for each in problems)
    # A short Retry-After is waited for, without repeated reports.
    assert sum("429" in each for each in problems) >= 1
    assert not any("left alone" in each for each in problems)
    check_arrivals(receiver.requests)


def problems_of(events: list[dict[str, Any]]) -> list[str]:
    """Return the problems that the route reported for its retries."""
    return [event["problem"] for event in events if event["event"] == "route-retrying"]


def check_arrivals(requests: list[Request]) -> None:
    """Check that all entries came, first in order, with equal repeats under the same id and key."""
    first: dict[str, Any] = {}
    bodies: dict[str, bytes] = {}
    count = 0
    for request in requests:
        key = request.headers["idempotency-key"]
        assert bodies.setdefault(key, request.body) == request.body
        for entry in json.loads(request.body):
            count += 1
            assert first.setdefault(entry["id"], entry["data"]) == entry["data"]
            assert entry["id"].endswith(f"/{entry['offset']}")
    assert [data["n"] for data in first.values()] == list(range(LINES))
    assert count > LINES  # some entries were delivered again
