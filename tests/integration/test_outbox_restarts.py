"""An engine that is restarted again and again while one of its routes is away."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from crash_points import CODE, ask
from engine_tools import delivered
from leader_tools import Node, await_true
from outbox_tools import remaining
from restart_tools import (
    ELECTORS,
    in_file,
    in_lmdb,
    insert,
    lead_elsewhere,
    logged,
    node_of,
    settled,
    terms,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from services.postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]


@pytest.fixture
def engine(tmp_path: Path, outbox: Database) -> Iterator[Callable[..., Node]]:
    """Make an engine whose route ``away`` is away, and kill it at the end."""
    made = list[Node]()

    def make(elector: Any, **reader: Any) -> Node:
        made.append(node_of(tmp_path / "node", outbox, elector, **reader))
        return made[-1]

    yield make
    for node in made:
        node.stop(signal.SIGKILL)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "elector", ["alone", pytest.param("elected", marks=pytest.mark.exhaustive)]
)
def test_restarts_repeat_nothing_while_a_route_is_away(
    elector: str, engine: Callable[..., Node], outbox: Database
) -> None:
    """Exact sinks hold each row once, and the log does not grow, over stops and kills."""
    node = engine(ELECTORS[elector])
    rows = 0
    for turn in range(6):
        insert(outbox, rows, 50)
        rows += 50
        node.start()
        await_true(lambda after=turn: terms(node) > after)
        await_true(lambda count=rows: len(in_file(node.folder)) >= count)
        node.stop(signal.SIGKILL if turn % 2 else signal.SIGTERM)
    (node.folder / "away.down").unlink()
    node.start()
    await_true(lambda: remaining(outbox) == [])
    node.stop()
    assert Counter(in_file(node.folder)) == Counter(range(rows))
    assert sorted(in_lmdb(node.folder)) == list(range(rows))
    assert [int(line["data"]) for line in delivered(node.folder / "away.jsonl")] == list(
        range(rows)
    )
    assert logged(node) == rows


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "point",
    ["before a supersession begins", "behind the beginning of a supersession", None],
)
def test_only_a_takeover_supersedes(
    point: str | None, engine: Callable[..., Node], outbox: Database
) -> None:
    """After another engine has led, remaining rows come again, even with a crash on the way.

    Rows that the other engine delivered and purged are not delivered here.
    """
    node = engine("none")
    insert(outbox, 0, 50)
    node.start()
    await_true(lambda: len(in_file(node.folder)) == 50 and settled(node) == 49)
    node.stop(signal.SIGKILL)
    lead_elsewhere(outbox)
    outbox.execute("DELETE FROM outbox WHERE id <= 20")
    if point is not None:
        ask(node.folder, point)
        node.start()
        assert node.await_end() == CODE
    (node.folder / "away.down").unlink()
    node.start()
    await_true(lambda: remaining(outbox) == [])
    node.stop()
    away = [int(line["data"]) for line in delivered(node.folder / "away.jsonl")]
    assert away == list(range(20, 50))
    assert (logged(node), set(in_file(node.folder))) == (80, set(range(50)))


@pytest.mark.parametrize(
    "point",
    [pytest.param("before it is adopted", marks=pytest.mark.exhaustive), "behind it is adopted"],
)
@pytest.mark.parametrize(
    "elector", ["alone", pytest.param("elected", marks=pytest.mark.exhaustive)]
)
def test_a_crash_while_rows_are_adopted_changes_nothing(
    elector: str, point: str, engine: Callable[..., Node], outbox: Database
) -> None:
    """Each row is in the exact sinks once, and in the log once, over repeated crashes."""
    node = engine(ELECTORS[elector])
    insert(outbox, 0, 150)
    node.start()
    await_true(lambda: len(in_file(node.folder)) == 150)
    node.stop(signal.SIGKILL)
    for _ in range(2):
        ask(node.folder, point)
        node.start()
        assert node.await_end() == CODE
    (node.folder / "away.down").unlink()
    node.start()
    await_true(lambda: remaining(outbox) == [])
    node.stop()
    assert (logged(node), sorted(in_file(node.folder))) == (150, list(range(150)))
    assert [int(line["data"]) for line in delivered(node.folder / "away.jsonl")] == list(range(150))


@pytest.mark.exhaustive
def test_a_row_that_cannot_be_logged_is_told_of_once(
    engine: Callable[..., Node], outbox: Database
) -> None:
    """The row stays in the table, its entry stays parked, and restarts log no second entry."""
    node = engine("none")
    insert(outbox, 0, 1)
    outbox.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys,"
        " kafka_header_values) VALUES ('rows', 'k', repeat('x', 9000000), '{}', '{}')"
    )
    (node.folder / "away.down").unlink()
    for turn in range(3):
        node.start()
        await_true(lambda after=turn: terms(node) > after)
        parked = node.folder / "log/offsets/file/parked"
        await_true(lambda at=parked: len(list(at.glob("*.entry"))) == 1)
        node.stop()
    assert (logged(node), remaining(outbox)) == (2, [2])


@pytest.mark.exhaustive
def test_a_key_keeps_its_order_over_restarts(engine: Callable[..., Node], outbox: Database) -> None:
    """Invariant 9 with ``max_in_flight_per_key``: a key's next entry waits for the route away."""
    node = engine(ELECTORS["elected"], batch_rows=1)
    node.change(lambda document: document["routes"][0].update(max_in_flight_per_key=1))
    insert(outbox, 0, 10)
    for turn in range(3):
        node.start()
        await_true(lambda after=turn: terms(node) > after)
        await_true(lambda: len(in_file(node.folder)) >= 1)
        node.stop(signal.SIGKILL)
    held = in_file(node.folder)
    (node.folder / "away.down").unlink()
    node.start()
    await_true(lambda: remaining(outbox) == [])
    node.stop()
    assert held == list(range(len(held)))
    assert len(held) <= 5
    assert in_file(node.folder) == list(range(10))
