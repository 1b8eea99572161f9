"""The pipeline and the commands of docs/cdc.md, executed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from acceptance_tools import await_true, running
from cdc_tools import clean_slots
from ruamel.yaml import YAML
from transporter_adaptors.postgres_cdc.config import CdcConfig

from transporter.cli import app
from transporter.engine.events import EVENTS

if TYPE_CHECKING:
    from services.postgres import Database

PAGE = (Path(__file__).parents[2] / "docs" / "cdc.md").read_text()
FENCES = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.exhaustive
@pytest.mark.postgres
@pytest.mark.spark
def test_the_five_minutes(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's commands and its pipeline bring rows and changes to the terminal."""
    pipeline = next(text for kind, text in FENCES if kind == "yaml")
    file = tmp_path / "shop.yaml"
    file.write_text(pipeline)
    monkeypatch.setenv("SHOP_DSN", postgres.dsn)
    postgres.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, total numeric);"
        "INSERT INTO orders VALUES (1, 9.90);"
        "CREATE TABLE tmp_load (id int)"
    )

    def commands(name: str) -> list[list[str]]:
        lines = "\n".join(text for kind, text in FENCES if kind == "sh").splitlines()
        found = [line.partition("#")[0].split() for line in lines]
        chosen = [words[1:] for words in found if words[:3] == ["transporter", "cdc", name]]
        assert chosen
        return [[str(file) if word == "shop.yaml" else word for word in each] for each in chosen]

    def run(name: str) -> None:
        for words in commands(name):
            assert app.execute(words) == 0

    with clean_slots(postgres):
        run("check")
        with running(file) as engine:
            engine.await_output('{"id":1,"total":9.90}', timeout=120)
            postgres.execute("UPDATE orders SET total = 10 WHERE id = 1")
            engine.await_output('{"id":1,"total":10}', timeout=60)
            postgres.execute("DELETE FROM orders")
            engine.await_output('"op":"delete"', timeout=60)
            run("status")
            assert engine.stop() == 0
        run("drop")
        assert (
            postgres.execute(
                "SELECT 1 FROM pg_replication_slots WHERE database = current_database()"
            )
            == []
        )
    shown = [json.loads(line) for line in engine.output]
    assert [each["op"] for each in shown] == ["insert", "update", "delete"]
    assert [each["key"] for each in shown] == ["1"] * 3
    assert [each.get("data", {}).get("total") for each in shown] == [9.9, 10, None]
    await_true(lambda: postgres.execute("SELECT 1 FROM pg_publication") == [], 10, "no publication")


def test_the_items_of_tables_are_valid() -> None:
    """The page's example is a list that the reader accepts, with each key of an item in use."""
    example = [text for kind, text in FENCES if kind == "yaml"][1]
    items = YAML(typ="safe", pure=True).load(example)["tables"]
    config = CdcConfig.model_validate({"dsn": "dbname=x", "tables": items})
    (audit,) = [each for each in config.tables if each.insert_only]
    assert (audit.table, audit.copy_table) == ("public.audit_log", "none")


def test_every_error_and_event_of_the_page_is_there() -> None:
    """Each text that the page explains is one of the reader's."""
    folder = Path(__file__).parents[2] / "adaptors" / "transporter_adaptors" / "postgres_cdc"
    source = re.sub(r'"\s*\n\s*f?"', "", "\n".join(p.read_text() for p in folder.glob("*.py")))
    table = PAGE.partition("## When changes may be missing")[2].partition("##")[0]
    texts = re.findall(r"`([^`]*)`", "\n".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert len(texts) == 12
    for text in texts:
        for part in filter(None, map(str.strip, text.split("…"))):
            assert part in re.sub(r"\{[^}]*\}", "…", source), part
    for event in re.findall(r"event `([a-z-]+)`", PAGE):
        assert event in EVENTS
