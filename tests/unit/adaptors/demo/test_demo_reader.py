"""Messages and rate of the demo reader."""

from __future__ import annotations

import json
import time

import pytest
from pydantic import ValidationError
from transporter_adaptors.demo.reader import DemoReader, order_message

from transporter.adaptor import EndOfSource
from transporter.testing import FixedResume
from transporter.testing.contracts import joined, read_all


def test_every_order_is_placed_before_it_is_shipped() -> None:
    """Each order is placed once and shipped once, later, under the same key."""
    messages = [order_message(0, number) for number in range(400)]

    placed = {m.key: n for n, m in enumerate(messages) if m.namespace == "orders.placed"}
    shipped = {m.key: n for n, m in enumerate(messages) if m.namespace == "orders.shipped"}

    assert placed.keys() == shipped.keys()
    assert len(placed) == 200
    assert all(placed[key] < shipped[key] for key in placed)


def test_the_total_is_that_of_the_items() -> None:
    """An order's total is the sum of its items."""
    order = json.loads(order_message(0, 0).data or b"")

    assert order["total"] == sum(item["quantity"] * item["cents"] for item in order["items"])


def test_the_seed_makes_the_messages() -> None:
    """The same seed makes the same messages, and another seed makes others."""
    one, again, other = ([order_message(seed, n) for n in range(20)] for seed in (1, 1, 2))

    assert one == again
    assert one != other


@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_count_ends_the_source(count: int) -> None:
    """The source ends after count messages over all runs."""
    config = DemoReader.Config(count=count, rate=10_000)

    assert len(joined(read_all(DemoReader(config)))) == count
    assert read_all(DemoReader(config), str(count + 3)) == []


def test_without_a_count_there_is_no_end() -> None:
    """Without a count the source goes on behind any position."""
    reader = DemoReader(DemoReader.Config())
    reader.open(FixedResume("1000000"))

    assert reader.poll(1.0).messages[0].source_id == "0/1000000"


@pytest.mark.parametrize(("rate", "due"), [(20, 11), (2, 2), (0.1, 1), (1_000_000, 1000)])
def test_the_rate_decides_how_many_are_due(rate: float, due: int) -> None:
    """Half a second after the first message was due, half the rate follows, in bounded batches."""
    reader = DemoReader(DemoReader.Config(rate=rate))
    reader._due = 100.0

    assert reader._count_due(100.5) == due


def test_after_a_pause_it_does_not_catch_up() -> None:
    """Messages missed during a long pause are not made in a burst."""
    reader = DemoReader(DemoReader.Config(rate=100))
    reader._due = 0.0

    assert reader._count_due(1e6) == 1000
    assert reader._count_due(1e6) == 1


def test_a_poll_is_never_longer_than_its_timeout() -> None:
    """A poll without a due message returns an empty batch at its timeout."""
    reader = DemoReader(DemoReader.Config(rate=0.01))
    reader.open(FixedResume())
    reader.poll(0.0)
    start = time.monotonic()

    batch = reader.poll(0.05)

    assert len(batch.messages) == 0
    assert batch.position is None
    assert time.monotonic() - start < 1
    reader.close()


@pytest.mark.parametrize("settings", [{"rate": 0}, {"rate": -1}, {"count": -1}])
def test_what_makes_no_sense_is_refused(settings: dict[str, float]) -> None:
    """A rate that is not positive, or a negative count, is refused."""
    with pytest.raises(ValidationError):
        DemoReader.Config.model_validate(settings)


def test_an_exhausted_reader_keeps_saying_so() -> None:
    """Every poll after the end raises it again."""
    reader = DemoReader(DemoReader.Config(count=0))
    reader.open(FixedResume())
    for _ in range(2):
        with pytest.raises(EndOfSource):
            reader.poll(0.0)
