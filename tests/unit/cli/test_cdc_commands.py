"""Commands of ``transporter cdc`` without a database: choice of the reader, and its SQL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from transporter.cli import app
from transporter.cli.cdc import VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

PIPELINE = """
log: {dir: "log"}
readers:
  - {name: lines, adaptor: file, path: "${LINES:?set LINES}"}
  - {name: shop, adaptor: postgres-cdc, dsn: "${SHOP_DSN}", release: logged,
     tables: [orders, {table: 'sales."Order"', columns: [id, "a b"]}, public.tmp, "!public.t*"]}
  - {name: stock, adaptor: postgres-cdc, dsn: "${STOCK_DSN:?set it}", tables: ["public.*"]}
routes: [{name: all, writer: {adaptor: kafka, bootstrap_servers: "${KAFKA:?set KAFKA}"}}]
"""
ONE = """
readers:
  - {name: Shop, adaptor: postgres-cdc, dsn: "host=127.0.0.1 port=1 user=ada password=word-of-ada",
     tables: [orders], slot: shop_slot, manage: nothing, copy: none, failover: false}
"""
NONE = "readers: [{name: lines, adaptor: file, path: in.jsonl}]\n"
PUBLICATION = (
    'CREATE PUBLICATION "transporter_shop" FOR TABLE "public"."orders", "sales"."Order" '
    """("id", "a b") WITH (publish = 'insert, update, delete, truncate', """
    "publish_via_partition_root = true);"
)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write pipeline files, and remove the machine's variables that name a database."""
    for name in (VARIABLE, "SHOP_DSN", "STOCK_DSN", "KAFKA", "LINES"):
        monkeypatch.delenv(name, raising=False)
    for name, text in (("p.yaml", PIPELINE), ("one.yaml", ONE), ("none.yaml", NONE)):
        (tmp_path / name).write_text(text)
    return tmp_path


def statements(script: str) -> list[str]:
    """Return the statements of *script*."""
    return [line for line in script.splitlines() if line and not line.startswith("--")]


def test_named_tables_need_no_database(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role and the database come from the dsn, which is not used."""
    monkeypatch.setenv("SHOP_DSN", "postgresql://reader:secret-word@127.0.0.1:1/shop")
    assert app.execute(["cdc", "init", str(folder / "p.yaml"), "shop"]) == 0
    out, err = capsys.readouterr()
    assert statements(out) == [
        """CREATE ROLE "reader" LOGIN REPLICATION PASSWORD :'password';""",
        'GRANT CONNECT ON DATABASE "shop" TO "reader";',
        'GRANT USAGE ON SCHEMA "public" TO "reader";',
        'GRANT USAGE ON SCHEMA "sales" TO "reader";',
        'GRANT SELECT ON "public"."orders" TO "reader";',
        'GRANT SELECT ("id", "a b") ON "sales"."Order" TO "reader";',
        PUBLICATION,
    ]
    assert "-- Its name is made of the log's id" in out
    assert "secret-word" not in out
    assert err == ""


def test_without_a_dsn_the_role_is_a_placeholder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What can be printed is printed, and what is missing is said."""
    assert app.execute(["cdc", "init", str(folder / "p.yaml"), "shop"]) == 0
    out, err = capsys.readouterr()
    assert 'GRANT CONNECT ON DATABASE "transporter" TO "transporter";' in statements(out)
    assert "warning: dsn is not used, nor are its role and database known: " in err
    assert "SHOP_DSN" in err


def test_patterns_without_a_database_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tables are missing, and so is the publication."""
    monkeypatch.setenv("STOCK_DSN", "host=127.0.0.1 port=1 user=ada password=word-of-ada")
    assert app.execute(["cdc", "init", str(folder / "p.yaml"), "stock", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["reader"] == "stock"
    assert not any("PUBLICATION" in each for each in statements(result["sql"]))
    (note,) = result["notes"]
    assert note.startswith("the tables of public.* are not in it, because only the database knows")
    assert "cannot connect to the database" in note
    assert "word-of-ada" not in json.dumps(result)


@pytest.mark.parametrize(
    ("service", "role", "setting"),
    [
        ("plain", ['CREATE ROLE "ada" LOGIN REPLICATION PASSWORD'], "wal_level = logical"),
        ("rds", ['CREATE ROLE "ada" LOGIN PASSWORD', 'GRANT rds_replication TO "ada"'],
         "rds.logical_replication = 1"),
        ("cloud-sql", ['CREATE ROLE "ada" LOGIN PASSWORD', 'ALTER USER "ada" WITH REPLICATION'],
         "cloudsql.logical_decoding = on"),
        ("azure", ['CREATE ROLE "ada" LOGIN PASSWORD', 'ALTER ROLE "ada" WITH REPLICATION'],
         "server parameter wal_level = logical"),
        ("supabase", ['CREATE ROLE "ada" LOGIN PASSWORD', 'ALTER ROLE "ada" WITH REPLICATION'],
         "db.<project>.supabase.co:5432, not a pooler"),
        ("neon", ['CREATE ROLE "ada" LOGIN PASSWORD', 'ALTER ROLE "ada" WITH REPLICATION'],
         "without -pooler"),
    ],
)  # fmt: skip
def test_services_differ_in_role_and_settings(
    folder: Path, capsys: pytest.CaptureFixture[str], service: str, role: list[str], setting: str
) -> None:
    """Each has its statements for the role. The rest is the same."""
    assert app.execute(["cdc", "init", str(folder / "one.yaml"), "--for", service]) == 0
    out = capsys.readouterr().out
    found = statements(out)
    assert [line[: len(text)] for line, text in zip(found, role, strict=False)] == role
    assert found[len(role) :] == [
        'GRANT CONNECT ON DATABASE "ada" TO "ada";',
        PUBLICATION.replace(""", "sales"."Order" ("id", "a b")""", ""),
        "SELECT pg_create_logical_replication_slot('shop_slot', 'pgoutput');",
    ]
    assert setting in out
    assert "The first start creates it" not in out


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["init", "p.yaml"], 2, "name one of the readers (shop, stock)"),
        (["check", "p.yaml", "shopp"], 2, "there is no reader 'shopp'; did you mean 'shop'?"),
        (["status", "none.yaml"], 2, "there is no postgres-cdc reader"),
        (["drop", "p.yaml", "stock"], 2, "set it"),
        (["init", "p.yaml", "stock", "--run"], 2, "set it"),
        (["init", "one.yaml", "--dsn", "dbname=x"], 2, "--dsn requires --run"),
        (["init", "one.yaml", "--for", "oracle"], 2, "'oracle' is not one of"),
        (["init", "one.yaml", "--run"], 3, "cannot connect to the database"),
        (["init", "one.yaml", "--run", "--dsn", "word-of-ada"], 2, "--dsn or "),
        (["drop", "one.yaml"], 3, "cannot connect to the database"),
        (["check", "one.yaml"], 3, "cannot connect to the database"),
        (["status", "one.yaml"], 3, "cannot connect to the database"),
    ],
)
def test_errors(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, text: str
) -> None:
    """Each has its exit code, and no text has the password."""
    command, file, *rest = words
    assert app.execute(["cdc", command, str(folder / file), *rest]) == code
    out, err = capsys.readouterr()
    assert text in out + err
    assert "word-of-ada" not in out + err


def test_status_without_a_database_is_that_of_the_log(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code and ``ok`` say that a part is missing."""
    assert app.execute(["cdc", "status", str(folder / "one.yaml"), "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    result = found["result"]
    assert (result["reader"], result["slot"], result["tables"]) == ("Shop", None, [])
    assert result["publications"] == ["transporter_shop"]
    assert result["problem"].startswith("cannot connect to the database")
