"""Commands of ``transporter outbox`` without a database: choice of the outbox, and its SQL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from transporter.cli import app
from transporter.cli.outbox_target import VARIABLE
from transporter.outbox import Columns, outbox_sql

if TYPE_CHECKING:
    from pathlib import Path

PIPELINE = """
readers:
  - {name: lines, adaptor: file, path: "${LINES:?set LINES}"}
  - {name: orders, adaptor: postgres-outbox, dsn: "${ORDERS_DSN:?set it}", table: shop.outbox,
     notify_channel: shop}
  - {name: users, adaptor: postgres-outbox, dsn: "${USERS_DSN:?set it}", table: "${USERS_TABLE}"}
routes: [{name: all, writer: {adaptor: kafka, bootstrap_servers: "${KAFKA:?set KAFKA}"}}]
"""
ONE = "readers: [{name: orders, adaptor: postgres-outbox, dsn: '${ORDERS_DSN}'}]\n"
ROUTER = ONE.replace("}]", ", router: {}}]").replace("${ORDERS_DSN}", "dbname=x")
NONE = "readers: [{name: lines, adaptor: file, path: in.jsonl}]\n"


@pytest.fixture(autouse=True)
def _no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all variables of the machine that name a database."""
    for name in (VARIABLE, "ORDERS_DSN", "USERS_DSN", "KAFKA", "LINES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """Write pipeline files with two, one and no readers of an outbox."""
    for name, text in (
        ("p.yaml", PIPELINE),
        ("one.yaml", ONE),
        ("none.yaml", NONE),
        ("router.yaml", ROUTER),
    ):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_init_prints_sql_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """The output can be piped into psql."""
    assert app.execute(["outbox", "init", "--table", "Shop.events", "--channel", "c"]) == 0
    assert capsys.readouterr() == (outbox_sql("shop.events", "c"), "")


def test_init_names_columns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Options and the pipeline file give the same SQL, which quotes only renamed columns."""
    expected = outbox_sql(columns=Columns(id='"Row=%"', leader="taken"))
    assert '"Row=%"             BIGSERIAL PRIMARY KEY' in expected
    assert '"taken"             UUID' in expected
    assert "    kafka_key           VARCHAR NOT NULL" in expected
    words = ["--column", 'id="Row=%"', "--column", "leader=taken"]
    assert app.execute(["outbox", "init", *words]) == 0
    assert capsys.readouterr() == (expected, "")
    text = ONE.replace("}]", ", columns: {id: '\"Row=%\"', leader: taken}}]")
    (folder / "columns.yaml").write_text(text)
    assert app.execute(["outbox", "init", str(folder / "columns.yaml")]) == 0
    assert capsys.readouterr() == (expected, "")


def test_keys_of_every_reader_are_no_settings_of_an_outbox(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader may say when its rows are acknowledged, and how many may be in flight."""
    text = ONE.replace("}]", ", release: delivered, max_in_flight: 10}]")
    (folder / "keys.yaml").write_text(text)
    assert app.execute(["outbox", "init", str(folder / "keys.yaml")]) == 0
    assert capsys.readouterr() == (outbox_sql(), "")


def test_init_reads_table_and_channel_of_a_pipeline(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printing the SQL needs no variable of a database or a sink."""
    assert app.execute(["outbox", "init", str(folder / "p.yaml"), "orders"]) == 0
    assert capsys.readouterr() == (outbox_sql("shop.outbox", "shop"), "")
    assert app.execute(["outbox", "init", str(folder / "one.yaml"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert result == {"table": "outbox", "channel": "outbox", "sql": outbox_sql()}


def test_init_of_an_event_router_prints_its_trigger(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the trigger is printed, because the rest of that table is the application's."""
    assert app.execute(["outbox", "init", str(folder / "router.yaml")]) == 0
    text = capsys.readouterr().out
    assert outbox_sql().endswith("\n" + text)
    assert "CREATE TABLE" not in text
    assert 'TRIGGER "outbox_notify" AFTER INSERT ON "outbox"' in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["init", "{}/p.yaml"], "p.yaml:2: name one of the readers (orders, users)"),
        (["init", "{}/p.yaml", "oders"], "no reader 'oders'; did you mean 'orders'?"),
        (["init", "{}/p.yaml", "users"], "environment variable USERS_TABLE is not set"),
        (["init", "{}/none.yaml"], "none.yaml:1: there is no postgres-outbox reader"),
        (["reset", "{}/router.yaml"], "router.yaml reads the table of an event router"),
        (["init", "{}/gone.yaml"], "gone.yaml: cannot be read"),
        (["init", "{}/one.yaml", "--table", "x"], "names database and table"),
        (["init", "--table", "a b"], "'a b' is not a table name"),
        (["init", "{}/one.yaml", "--column", "id=x"], "names database and table"),
        (["init", "--column", "idd=x"], "there is no 'idd'; did you mean 'id'?"),
        (["init", "--column", "id"], "'' is not a column name"),
        (["init", "--column", "id=a b"], "'a b' is not a column name"),
        (["init", "--column", "id=kafka_key"], "two columns are called"),
        (["init", "--dsn", "dbname=x"], "--dsn requires --run"),
        (["init", "--run"], VARIABLE),
        (["init", "{}/one.yaml", "--run"], "environment variable ORDERS_DSN is not set"),
        (["pump"], VARIABLE),
        (["pump", "{}/p.yaml", "orders"], "environment variable ORDERS_DSN is not set: set it"),
        (["pump", "--dsn", "x=1", "--keys", "0"], "--keys"),
        (["pump", "--dsn", "", "--rate", "inf"], "--rate inf"),
        (["pump", "--dsn", "", "--topic", ""], "--topic: topic has 0 characters"),
        (["pump", "--dsn", "", "--rows", "10000", "--value-bytes", "7000"], "exceed 67108864"),
        (["reset"], VARIABLE),
        (["drop"], VARIABLE),
    ],
)
def test_wrong_usage_is_exit_2(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    """Missing or duplicate settings are named, and nothing is connected to."""
    assert app.execute(["outbox", *(word.format(folder) for word in words)]) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    "dsn",
    [
        "password=hunter22 and nonsense",
        "postgresql://app:hunter22%zz@h/d",
        "postgresql://app:a@hunter22@h/d",
        "postgresql://app:hunter22/x@h/d",
        "postgresql://app:x/hunter22@h/d",
        "postgresql://app:1/hunter22@h/d",
    ],
)
@pytest.mark.parametrize("way", ["option", "variable", "pipeline"])
def test_a_broken_dsn_is_not_quoted(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    dsn: str,
    way: str,
) -> None:
    """A password that breaks its connection string shows in no error (Invariant 20)."""
    words = {"option": ["--dsn", dsn], "variable": [], "pipeline": [str(folder / "one.yaml")]}
    monkeypatch.setenv({"option": "X", "variable": VARIABLE, "pipeline": "ORDERS_DSN"}[way], dsn)
    assert app.execute(["outbox", "pump", *words[way]]) == 2
    captured = capsys.readouterr()
    assert "connection string" in captured.err
    assert "hunter22" not in captured.err + captured.out


def test_help_shows_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The help names the variable, not its value."""
    monkeypatch.setenv(VARIABLE, "password=hunter22")
    for command in ("init", "pump", "reset", "drop"):
        assert app.execute(["outbox", command, "--help"]) == 0
        captured = capsys.readouterr()
        assert "      transporter outbox" in captured.out
        assert "hunter22" not in captured.out
