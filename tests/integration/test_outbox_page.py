"""The code and the pipeline of docs/outbox.md, executed."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from acceptance_tools import await_true, running
from outbox_tools import remaining

from transporter.cli import app
from transporter.outbox import outbox_sql

if TYPE_CHECKING:
    from services.postgres import Database

pytestmark = pytest.mark.postgres

PAGE = (Path(__file__).parents[2] / "docs" / "outbox.md").read_text()
FENCES = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def fences(kind: str) -> list[str]:
    """Return the blocks of one language."""
    return [text for each, text in FENCES if each == kind]


@pytest.fixture
def shop(postgres: Database) -> dict[str, Any]:
    """Create the page's table of orders and return the names that its code defines."""
    (orders,) = fences("sql")
    postgres.execute(orders)
    found: dict[str, Any] = {}
    for text in fences("python"):
        exec(compile(text, "docs/outbox.md", "exec"), found)  # noqa: S102 - the page's code is the test's subject
    return found


async def ship(dsn: str, shop: dict[str, Any], orders: list[int]) -> None:
    """Run the page's async code."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await shop["ship_orders"](connection, orders)


def test_the_code_stashes_in_the_transaction_of_the_change(
    postgres: Database, shop: dict[str, Any]
) -> None:
    """Orders and events commit together, or neither does."""
    postgres.execute(outbox_sql())
    with postgres.connect() as connection:
        orders = [shop["place_order"](connection, cents) for cents in (500, 700)]
        asyncio.run(ship(postgres.dsn, shop, orders))
        rows = connection.execute(
            "SELECT kafka_topic, kafka_key, kafka_value FROM outbox ORDER BY id"
        ).fetchall()
        assert [row[:2] for row in rows] == [
            ("orders.placed", "1"),
            ("orders.placed", "2"),
            ("orders.shipped", "1"),
            ("orders.shipped", "2"),
        ]
        assert json.loads(rows[1][2]) == {"id": 2, "total_cents": 700}
        connection.execute("DROP TABLE outbox")
        with pytest.raises(psycopg.errors.UndefinedTable):
            shop["place_order"](connection, 900)
    with pytest.raises(psycopg.errors.UndefinedTable):
        asyncio.run(ship(postgres.dsn, shop, [1]))
    shipped = "SELECT count(*), count(shipped_at) FROM orders"
    assert postgres.execute(shipped) == [(2, 2)]


@pytest.mark.spark
def test_the_five_minutes(
    postgres: Database, shop: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's commands and its pipeline bring the page's events to the terminal."""
    pipeline, *_ = fences("yaml")
    file = tmp_path / "orders.yaml"
    file.write_text(pipeline)
    monkeypatch.setenv("ORDERS_DSN", postgres.dsn)
    for line in "\n".join(fences("sh")).splitlines():
        program, *words = line.partition("#")[0].split() or [""]
        if program == "transporter" and words[0] == "outbox":
            here = {"orders.yaml": str(file), "10": "1000"}  # the events are not needed here
            assert app.execute([here.get(word, word) for word in words]) == 0
    with postgres.connect() as connection:
        order = shop["place_order"](connection, 500)
    asyncio.run(ship(postgres.dsn, shop, [order]))
    with running(file) as engine:
        engine.await_output('{"id":1}', timeout=120)
        await_true(lambda: remaining(postgres) == [], 60, "an empty outbox")
        assert engine.stop() == 0
    shown = [json.loads(line) for line in engine.output]
    assert shown[-2:] == [{"id": 1, "total_cents": 500}, {"id": 1}]
    assert len(shown) == 102


@pytest.mark.spark
def test_a_table_is_waited_for_but_not_its_columns(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration may create the table at any time. One with other columns ends the engine."""
    pipeline, *_ = fences("yaml")
    file = tmp_path / "orders.yaml"
    file.write_text(pipeline)
    monkeypatch.setenv("ORDERS_DSN", postgres.dsn)
    with running(file) as engine:
        problem = engine.await_event("reader-unavailable", timeout=60)["problem"]
        assert "there is no outbox table" in problem
        postgres.execute(outbox_sql())
        engine.await_event("reader-opened", timeout=60)
        engine.events.clear()
        postgres.execute("DROP TABLE outbox")
        engine.await_event("reader-unavailable", timeout=60)
        postgres.execute("CREATE TABLE outbox (id bigint PRIMARY KEY)")
        assert "is not an outbox" in engine.await_event("reader-stopped", timeout=60)["problem"]
        assert engine.wait() == 1


def test_every_command_of_the_page_is_there() -> None:
    """Each command that the page names has a help page."""
    commands = re.findall(r"\*\*`outbox (\w+)`\*\*", PAGE)
    assert commands == ["init", "pump", "reset", "drop"]
    for command in commands:
        assert app.execute(["outbox", command, "--help"]) == 0
