"""``transporter cdc`` against a real server, with a log on disk that a reader has written."""

from __future__ import annotations

import io
import json
import re
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from cdc_tools import MemoryLog, clean_slots, locked, need_version, open_patiently, version
from psycopg.conninfo import make_conninfo
from services.postgres import fresh_database, served
from transporter_adaptors.postgres_cdc import reader as module
from transporter_adaptors.postgres_cdc.reader import CdcReader

from transporter.adaptor import state_name
from transporter.audit import read_audit
from transporter.cli import app
from transporter.log.commit_log import CommitLog
from transporter.log.reader_states import ReaderStates
from transporter.message import NOOP, Message, messages_to_batch
from transporter.testing import FixedResume
from transporter.testing.contracts import messages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from services.postgres import Database

    from transporter.adaptor import Batch

pytestmark = pytest.mark.postgres
PARTITIONED = """
CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY HASH (id);
CREATE PUBLICATION transporter_reader FOR TABLE items, parts;
"""


class DiskLog(MemoryLog):
    """A log in a directory, as an engine writes it, which holds its lock until ``close``."""

    def __init__(self, database: Database, directory: Path, **settings: Any) -> None:
        super().__init__(database, **settings)
        self.log, self.kept = CommitLog.open(directory), ReaderStates(directory, "reader")

    def reader(self) -> CdcReader:
        if self._reader is None:
            reader = CdcReader(CdcReader.Config.model_validate(self.settings))
            resume = FixedResume(self.position, self.log.log_id)
            resume.states = dict(self.states)
            self._reader = open_patiently(reader, resume)
        return self._reader

    def append(self, batch: Batch) -> None:
        super().append(batch)
        if batch.state is not None:
            self.kept.keep(state_name(batch.state), batch.state)
        if batch.position is not None:
            messages = messages_of(batch.messages) or [Message("reader", None, None, NOOP)]
            self.log.append(messages_to_batch(messages), "reader", batch.position)

    def close(self) -> None:
        """End reader and log, as a stopped engine does."""
        self.kill()
        self.log.close()


@pytest.fixture
def shop(postgres: Database) -> Iterator[Database]:
    """Yield a database with a table of items, whose slots are dropped at the end."""
    postgres.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    postgres.execute("INSERT INTO items SELECT n, 'a' FROM generate_series(1, 100) n")
    postgres.execute("ANALYZE items")
    with clean_slots(postgres):
        yield postgres


@pytest.fixture
def cdc(
    tmp_path: Path, shop: Database, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, Any]]:
    """Return a function that runs a command with ``--json``, with settings of the reader.

    It returns the exit code, and the result or the error's text.
    """

    def run(command: str, *words: str, **settings: Any) -> tuple[int, Any]:
        reader = {"name": "reader", "adaptor": "postgres-cdc", "dsn": shop.dsn, **settings}
        reader.setdefault("tables", ["public.*"])
        writer = {"adaptor": "file", "path": "out.jsonl"}
        routes = [{"name": "all", "writer": writer}]
        document = {"log": {"dir": "log"}, "readers": [reader], "routes": routes}
        (tmp_path / "p.yaml").write_text(json.dumps(document))
        code = app.execute(["cdc", command, str(tmp_path / "p.yaml"), *words, "--json"])
        said = json.loads(capsys.readouterr().out)
        assert said["ok"] == (code == 0), said
        return code, said["result"] if "result" in said else said["error"]["message"]

    return run


def started(database: Database, directory: Path, **settings: Any) -> DiskLog:
    """Return the log of a reader that has copied everything and is open."""
    log = DiskLog(database, directory, **{"tables": ["public.*"], **settings})
    log.drain(database)
    return log


def texts(result: dict[str, Any], level: str) -> list[str]:
    """Return the texts of the findings of this *level*."""
    return [each["text"] for each in result["findings"] if each["level"] == level]


def outcomes(result: dict[str, Any]) -> dict[str, str]:
    """Return what became of each object."""
    return {each["name"]: each["outcome"] for each in result["objects"]}


@contextmanager
def role_of(database: Database) -> Iterator[str]:
    """Yield a new role's name, and drop the role with its rights at the end."""
    role = f"cdc_{uuid.uuid4().hex[:8]}"
    try:
        yield role
    finally:
        if database.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]):
            database.execute(f"DROP OWNED BY {role}")
            database.execute(f"DROP ROLE {role}")


def test_a_source_from_its_setup_to_its_end(
    shop: Database, tmp_path: Path, cdc: Callable[..., tuple[int, Any]]
) -> None:
    """A DBA sets up, a role of few rights reads, an operator watches and removes."""
    with role_of(shop) as role:
        shop.execute("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
        mine = {"dsn": make_conninfo(shop.dsn, user=role, password="a%b"), "slot": "cdc_slot"}
        code, result = cdc("init", "--run", "--dsn", shop.dsn, **mine)
        assert (code, result["audited"]) == (0, False)
        assert outcomes(result) == {
            f"role {role}": "created",
            f'CONNECT ON DATABASE "{shop.name}"': "exists",
            'USAGE ON SCHEMA "public"': "created",
            'SELECT ON "public"."items"': "created",
            "publication transporter_reader": "created",
            "slot cdc_slot": "created",
        }
        stored = "SELECT rolpassword FROM pg_authid WHERE rolname = %s"
        assert shop.execute(stored, [role])[0][0].startswith("SCRAM-SHA-256$")
        ((version, failover),) = shop.execute(
            "SELECT current_setting('server_version_num')::int, to_jsonb(s)->'failover'"
            " FROM pg_replication_slots s WHERE slot_name = 'cdc_slot'"
        )
        assert failover == (True if version >= 170000 else None)
        for words in (["--run", "--dsn", shop.dsn], ["--run"]):
            code, result = cdc("init", *words, **mine)
            assert (code, {*outcomes(result).values()}) == (0, {"exists"})
        code, result = cdc("check", **mine)
        assert (code, texts(result, "problem"), texts(result, "warning")) == (0, [], [])
        assert "to copy: 1 table, 16KiB, about 100 rows" in texts(result, "fine")

        log = started(shop, tmp_path / "log", **mine)
        # The next position that is logged says that the copy is passed.
        shop.execute("INSERT INTO items VALUES (0, 'b')")
        log.drain(shop)
        code, result = cdc("status", **mine)
        assert (code, result["slot"]["is_active"], result["slot"]["wal_status"]) == (
            0, True, "reserved"
        )  # fmt: skip
        assert result["tables"] == [
            {"name": "public.items", "phase": "in sync", "run": 1, "copied": None,
             "estimated": 100, "has_copy": True, "percent": 100}
        ]  # fmt: skip
        code, error = cdc("drop", "--yes", **mine)
        assert (code, "slot cdc_slot is active for PID" in error) == (1, True)
        assert cdc("check", **mine)[0] == 0
        log.close()

        shop.execute("INSERT INTO items SELECT n, 'b' FROM generate_series(101, 5000) n")
        code, result = cdc("status", **mine)
        assert (code, result["slot"]["is_active"]) == (0, False)
        assert result["slot"]["lag"] > 100_000
        assert result["slot"]["retained"] >= result["slot"]["lag"]
        code, result = cdc("drop", "--yes", **mine)
        assert (code, result["dropped"]) == (0, ["slot cdc_slot"])
        assert 'have the owner run DROP PUBLICATION "transporter_reader"' in result["kept"][0]
        assert cdc("drop", "--yes", **{**mine, "dsn": shop.dsn})[1]["dropped"] == [
            "publication transporter_reader"
        ]
        code, result = cdc("status", **mine)
        assert (code, result["slot"]) == (3, None)
        assert "slot cdc_slot is gone" in result["problem"]
        code, result = cdc("check", **mine)
        gone = [text.split(";")[0] for text in texts(result, "problem")]
        assert (code, len(gone)) == (3, 2)
        assert gone[0].startswith("publication transporter_reader is gone: changes since then")
        assert gone[1].startswith("slot cdc_slot is gone")
    lines = read_audit((tmp_path / "log" / "audit.jsonl").read_bytes().splitlines())
    assert [(each["action"], each["reader"], each["outcome"]) for each in lines] == [
        ("cdc drop", "reader", "done"),
        ("cdc drop", "reader", "done"),
    ]


def test_status_waits_for_no_migration(
    shop: Database, tmp_path: Path, cdc: Callable[..., tuple[int, Any]]
) -> None:
    """One that has a table for itself is when an operator looks most."""
    log = started(shop, tmp_path / "log")
    log.close()
    shop.execute("ANALYZE items")
    with locked(shop, "items"):
        code, result = cdc("status")
    assert (code, result["problem"], result["tables"][0]["estimated"]) == (0, "", 100)


def test_a_table_that_is_left_out_is_a_warning(
    shop: Database, tmp_path: Path, cdc: Callable[..., tuple[int, Any]]
) -> None:
    """The reader goes on without it, and its status names it."""
    log = started(shop, tmp_path / "log", tables=["public.*"])
    log.close()
    shop.execute("CREATE TABLE bare (a int); ANALYZE bare")
    code, result = cdc("check", tables=["public.*"])
    (found,) = texts(result, "warning")
    assert (code, texts(result, "problem")) == (0, [])
    assert found.startswith("public.bare has no primary key")
    assert found.endswith("; until then the reader leaves it out")
    code, result = cdc("status", tables=["public.*"])
    assert [(each["name"], each["phase"]) for each in result["tables"]] == [
        ("public.items", "catching up"),
        ("public.bare", "left out"),
    ]


def test_what_the_log_follows_is_not_created_again(
    shop: Database, tmp_path: Path, cdc: Callable[..., tuple[int, Any]]
) -> None:
    """Changes in between would be missing, and the log would not show it."""
    log = started(shop, tmp_path / "log")
    code, result = cdc("init", "--run")
    slot = f"transporter_reader_{log.log.log_id[:8]}"
    assert (code, result["audited"], outcomes(result)[f"slot {slot}"]) == (0, False, "exists")
    log.close()
    shop.execute("ALTER PUBLICATION transporter_reader DROP TABLE items")
    code, result = cdc("init", "--run")
    assert (code, result["audited"]) == (3, True)
    assert "table public.items has left the publication" in result["objects"][-1]["detail"]
    (left,) = texts(cdc("check")[1], "problem")
    assert left.startswith("table public.items has left the publication transporter_reader: ")
    shop.execute("DROP PUBLICATION transporter_reader")
    assert "is gone: changes since" in cdc("init", "--run")[1]["objects"][-1]["detail"]
    # With a higher copy_run every table is copied again, so nothing can be missing.
    assert texts(cdc("check", copy_run=2)[1], "problem") == []
    code, result = cdc("init", "--run", copy_run=2)
    assert (code, outcomes(result)["publication transporter_reader"]) == (0, "created")
    assert outcomes(result)[f"slot {slot}"] == "later"
    *_, last = read_audit((tmp_path / "log" / "audit.jsonl").read_bytes().splitlines())
    assert (last["action"], last["created"]) == ("cdc init", ["publication transporter_reader"])
    assert "was dropped and created again" in texts(cdc("check")[1], "problem")[0]


@pytest.mark.exhaustive
def test_phases_of_tables(
    shop: Database,
    tmp_path: Path,
    cdc: Callable[..., tuple[int, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log has each table's phase, also while the reader is open."""
    # The position of an idle source is logged once a minute.
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.5)
    shop.execute("CREATE TABLE later (id int PRIMARY KEY); ANALYZE later")
    log = DiskLog(shop, tmp_path / "log", tables=["public.*"], copy_rows=50)
    seen = []
    while not seen or {phase for phase, *_ in seen[-1]} != {"in sync"}:
        log.poll()
        found = [
            (each["phase"], each["copied"], each["percent"]) for each in cdc("status")[1]["tables"]
        ]
        if found not in seen[-1:]:
            seen.append(found)
    log.close()
    waiting = ("waiting", None, None)
    assert [("waiting", None, None), waiting] in seen
    assert [("copying", 50, 50), waiting] in seen
    assert any(each[0] in {("catching up", 100, 100), ("in sync", None, 100)} for each in seen)
    assert seen[-1] == [("in sync", None, 100)] * 2


@pytest.mark.parametrize(
    ("sql", "settings", "text"),
    [
        ("CREATE TABLE bare (a int)", {}, "public.bare has no primary key and no replica identity"),
        ("SELECT 1", {"tables": ["public.nothere"]}, "there is no table public.nothere"),
        ("SELECT 1", {"tables": ["other.*"]}, "no table matches tables"),
        ("CREATE VIEW v AS SELECT 1 AS a", {"tables": ["public.v"]}, "is a view"),
        ("SELECT 1", {"tables": [{"table": "items", "key": ["name"]}]}, "key names name, which"),
        ("CREATE TABLE f (a int); ALTER TABLE f REPLICA IDENTITY FULL",
         {"tables": [{"table": "f", "key": ["a"]}]}, "cannot be copied in an order"),
        ("SELECT 1", {"manage": "slot"}, "there is no publication transporter_reader, and manage"),
        ("CREATE PUBLICATION transporter_reader", {"manage": "slot"},
         "publication transporter_reader lacks public.items, and manage is slot"),
        ("CREATE PUBLICATION transporter_reader FOR TABLE items WITH (publish = 'insert')", {},
         "leaves out updates, deletes, truncates"),
        (PARTITIONED, {}, "SET (publish_via_partition_root = true)"),
        ("SELECT 1", {"manage": "nothing"}, "and manage is nothing: name it by slot"),
        ("SELECT 1", {"manage": "nothing", "slot": "mine"},
         "run SELECT pg_create_logical_replication_slot('mine', 'pgoutput')"),
    ],
)  # fmt: skip
def test_check_reports_each_problem(
    shop: Database,
    cdc: Callable[..., tuple[int, Any]],
    sql: str,
    settings: dict[str, Any],
    text: str,
) -> None:
    """Its text says what to do, and nothing is created by the check."""
    shop.execute(sql)
    before = shop.execute("SELECT oid FROM pg_publication")
    code, result = cdc("check", **settings)
    assert code == 3
    assert any(text in each for each in texts(result, "problem")), result
    assert shop.execute("SELECT oid FROM pg_publication") == before
    assert shop.execute("SELECT 1 FROM pg_replication_slots WHERE database = %s", [shop.name]) == []


def test_check_and_init_compare_items_with_what_is_published(
    shop: Database, tmp_path: Path, cdc: Callable[..., tuple[int, Any]]
) -> None:
    """Before a copy they refuse other columns. With one, the reader or the DBA publishes them."""
    need_version(shop, 15, "column lists")
    log = started(shop, tmp_path / "log")
    log.close()
    listed: dict[str, Any] = {"table": "public.items", "columns": ["id"]}
    text = (
        "public.items: the publication transporter_reader has all columns, and the item of tables "
        "asks for the columns id"
    )
    code, result = cdc("check", tables=[listed])
    ((problem,), fine) = (texts(result, "problem"), texts(result, "fine"))
    assert code == 3
    assert problem.startswith(f"{text}; that takes effect when the table is copied again")
    assert not any("has all 1 table" in each for each in fine)
    code, result = cdc("init", "--run", tables=[listed])
    assert outcomes(result)["publication transporter_reader: public.items"] == "problem"

    again = {"tables": [{**listed, "copy_run": 2}]}
    code, result = cdc("check", **again)
    assert code == 0
    assert f"{text}; the next open of the reader copies it so" in texts(result, "fine")
    code, result = cdc("check", manage="slot", **again)
    (problem,) = texts(result, "problem")
    assert problem.startswith(f"{text}; manage is slot; have the tables' owner run ALTER")
    code, result = cdc("init", "--run", manage="slot", **again)
    assert outcomes(result)["publication transporter_reader: public.items"] == "created"
    code, result = cdc("check", manage="slot", **again)
    assert (code, texts(result, "problem")) == (0, [])
    assert "publication transporter_reader: has all 1 table" in texts(result, "fine")


def test_check_reports_all_rights_at_once(
    shop: Database, cdc: Callable[..., tuple[int, Any]]
) -> None:
    """One run names every right that a role lacks, and a DBA's setup mends what SQL can."""
    shop.execute("CREATE TABLE private (id int PRIMARY KEY)")
    shop.execute("ALTER TABLE items ENABLE ROW LEVEL SECURITY")
    shop.execute("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
    with role_of(shop) as role:
        shop.execute(f"CREATE ROLE {role} LOGIN")
        mine = {"dsn": shop.dsn_as(role)}
        absent = "there is no publication transporter_reader"
        code, result = cdc("check", **mine)
        assert (code, [text.partition(":")[0] for text in texts(result, "problem")]) == (
            3,
            [
                f"role {role} may not replicate",
                f"role {role} may not use the schema public",
                f"role {role} may not read public.items",
                f"row security filters public.items for {role}, so its copy would lack rows",
                f"role {role} may not read public.private",
                f"{absent}, and role {role} may not publish the tables",
            ],
        )
        code, result = cdc("init", "--run", **mine)
        found = outcomes(result)
        assert (code, found[f"role {role}: replication"]) == (3, "problem")
        code, result = cdc("init", "--run", "--dsn", shop.dsn, **mine)
        assert (code, outcomes(result)[f"role {role}: replication"]) == (0, "created")
        code, result = cdc("check", **mine)
        assert [text.partition(":")[0] for text in texts(result, "problem")] == [
            f"row security filters public.items for {role}, so its copy would lack rows"
        ]
        shop.execute(f"ALTER ROLE {role} BYPASSRLS")
        assert cdc("check", **mine)[0] == 0


def test_setup_leaves_tables_without_identity_alone(
    shop: Database, cdc: Callable[..., tuple[int, Any]]
) -> None:
    """Once published, their updates would fail in the application."""
    shop.execute("CREATE TABLE bare (a int)")
    code, result = cdc("init", "--run")
    assert code == 3
    assert {each["name"] for each in result["objects"] if each["outcome"] == "problem"} == {
        "tables"
    }
    assert shop.execute("SELECT 1 FROM pg_publication") == []
    result = cdc("init")[1]
    assert any("public.bare has no primary key" in each for each in result["notes"])


def test_a_table_in_both_publications_is_read_from_its_own(
    shop: Database, tmp_path: Path, cdc: Callable[..., tuple[int, Any]]
) -> None:
    """Neither command takes it for one that has left its publication and come back."""
    shop.execute("CREATE TABLE clicks (at int)")
    tables = ["public.items", {"table": "public.clicks", "insert_only": True, "copy": "none"}]
    started(shop, tmp_path / "log", tables=tables).close()
    shop.execute("ALTER PUBLICATION transporter_reader_inserts ADD TABLE items")
    code, result = cdc("check", tables=tables)
    assert (code, texts(result, "problem")) == (0, [])
    code, result = cdc("init", "--run", tables=tables)
    assert (code, {each["outcome"] for each in result["objects"]}) == (0, {"exists"})


def test_setup_in_another_database_is_refused(
    shop: Database, cdc: Callable[..., tuple[int, Any]]
) -> None:
    """A DBA's connection string without a database would set up the wrong one."""
    code, error = cdc("init", "--run", "--dsn", shop.server.dsn)
    assert code == 2
    assert f"and the reader's to {shop.name}; name that one" in error


def test_the_printed_sql_can_be_run(shop: Database, cdc: Callable[..., tuple[int, Any]]) -> None:
    """Without psql's variable it is what a reader needs, in this order."""
    with role_of(shop) as role:
        mine = {"dsn": shop.dsn_as(role), "slot": "cdc_slot", "tables": ["items"]}
        script = cdc("init", **mine)[1]["sql"].replace(":'password'", "'x'")
        for line in script.splitlines():
            if line and not line.startswith("--"):
                shop.execute(line)
        code, result = cdc("check", **mine)
        assert (code, texts(result, "problem")) == (0, [])


def test_any_name_is_quoted(shop: Database, cdc: Callable[..., tuple[int, Any]]) -> None:
    """A name of role, schema, table or column may have any letter, also in what is proposed."""
    shop.execute('CREATE SCHEMA "a%s b"')
    shop.execute('CREATE TABLE "a%s b"."c ""d%%" ("e""%f" int PRIMARY KEY, g text)')
    role = f'cdc "%s {uuid.uuid4().hex[:8]}'
    item: dict[str, Any] = {"table": '"a%s b"."c ""d%%"'}
    if version(shop) >= 15:
        item["columns"] = ['e"%f']
    mine = {"dsn": make_conninfo(shop.dsn, user=role), "slot": "cdc_slot", "tables": [item]}
    quoted = '"' + role.replace('"', '""') + '"'
    try:
        shop.execute(f"CREATE ROLE {quoted} LOGIN REPLICATION")
        problems = texts(cdc("check", **mine)[1], "problem")
        grants = [text.partition(": run ")[2] for text in problems if ": run " in text]
        assert len(grants) == 2
        for grant in grants:
            shop.execute(grant)
        code, result = cdc("init", "--run", "--dsn", shop.dsn, **mine)
        assert (code, {*outcomes(result).values()}) == (0, {"exists", "created"})
        assert cdc("check", **mine)[0] == 0
        assert cdc("init", "--run", **mine)[0] == 0
    finally:
        shop.execute(f"DROP OWNED BY {quoted}")
        shop.execute(f"DROP ROLE {quoted}")


def test_drop_spares_what_others_need(
    shop: Database, tmp_path: Path, cdc: Callable[..., tuple[int, Any]]
) -> None:
    """A publication is shared by logs of the same reader's name. Leftovers are listed."""
    create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
    shop.execute(create, ["transporter_reader_0123abcd"])
    shop.execute(create, ["transporter_reader_eu_0123abcd"])
    shop.execute("CREATE PUBLICATION transporter_old")
    assert cdc("drop", "--yes")[1] == {
        "reader": "reader",
        "dropped": [],
        "kept": ["the slot: its name is made of the log's id, and there is no log yet"],
        "leftovers": ["slot transporter_reader_0123abcd", "slot transporter_reader_eu_0123abcd",
                      "publication transporter_old"],
    }  # fmt: skip
    log = started(shop, tmp_path / "log")
    name = f"slot transporter_reader_{log.log.log_id[:8]}"
    log.kill()
    code, error = cdc("drop", "--yes")
    assert (code, "stop it first" in error) == (3, True)
    log.close()
    code, result = cdc("drop", "--yes")
    assert (code, result["dropped"]) == (0, [name])
    (kept,) = result["kept"]
    assert "slot transporter_reader_0123abcd, of another log, may need it" in kept
    shop.execute("SELECT pg_drop_replication_slot('transporter_reader_0123abcd')")
    kept = cdc("drop", "--yes", manage="slot")[1]["kept"]
    assert kept == ["publication transporter_reader: manage is slot"]
    assert cdc("drop", "--yes")[1]["dropped"] == ["publication transporter_reader"]
    assert cdc("drop", "--yes")[1]["dropped"] == []


def test_drop_asks_first(
    shop: Database,
    tmp_path: Path,
    cdc: Callable[..., tuple[int, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without an answer nothing is dropped."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    shop.execute("CREATE PUBLICATION transporter_reader")
    code, error = cdc("drop")
    assert code == 2
    assert "add --yes" in error
    assert shop.execute("SELECT pubname FROM pg_publication") == [("transporter_reader",)]
    assert not (tmp_path / "log").exists()


def test_check_connect_has_the_same_findings(
    shop: Database,
    tmp_path: Path,
    cdc: Callable[..., tuple[int, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The check of a whole pipeline knows the log as well."""
    log = started(shop, tmp_path / "log")
    log.close()
    shop.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE "
                 "database = current_database()")  # fmt: skip
    code, result = cdc("check")
    assert (code, len(texts(result, "problem"))) == (3, 1)
    assert app.execute(["check", "--connect", "--json", str(tmp_path / "p.yaml")]) == 3
    (found, *_) = json.loads(capsys.readouterr().out)["result"]["connections"]
    assert (found["name"], found["findings"]) == ("reader", result["findings"])


def test_limits_of_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Too few slots and senders are problems, and what may cost the slot is said."""
    settings = {
        "wal_level": "replica",
        "max_replication_slots": "1",
        "max_wal_senders": "0",
        "max_slot_wal_keep_size": "64MB",
        "idle_replication_slot_timeout": "1d",
    }
    with served(**settings) as server, fresh_database(server) as database:
        database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
        database.execute("SELECT pg_create_physical_replication_slot('standby')")
        reader = {"name": "r", "adaptor": "postgres-cdc", "dsn": database.dsn, "tables": ["items"]}
        (tmp_path / "p.yaml").write_text(json.dumps({"name": "p", "readers": [reader]}))
        assert app.execute(["cdc", "check", str(tmp_path / "p.yaml"), "--json"]) == 3
        result = json.loads(capsys.readouterr().out)["result"]
        database.execute("SELECT pg_drop_replication_slot('standby')")
    assert [text.partition(":")[0] for text in texts(result, "problem")] == [
        "wal_level is replica", "replication slots", "walsenders"
    ]  # fmt: skip
    assert [text.split()[0] for text in texts(result, "warning")] == [
        "idle_replication_slot_timeout", "synchronized_standby_slots"
    ]  # fmt: skip
    fine = texts(result, "fine")
    assert any(text.startswith("max_slot_wal_keep_size is 64MB") for text in fine)
    assert any("public.items: a large value of name that an update" in text for text in fine)


def test_results_for_people(
    shop: Database,
    tmp_path: Path,
    cdc: Callable[..., tuple[int, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without ``--json`` a result is lines, and what is only noted goes to stderr."""
    log = started(shop, tmp_path / "log")
    log.close()
    slot = f"transporter_reader_{log.log.log_id[:8]}"
    shop.execute("CREATE PUBLICATION transporter_old")
    cdc("status")

    def text(*words: str) -> tuple[list[str], list[str]]:
        app.execute(["cdc", words[0], str(tmp_path / "p.yaml"), *words[1:]])
        return tuple(each.splitlines() for each in capsys.readouterr())  # type: ignore[return-value]

    out, err = text("status")
    assert out[:2] == ["reader       reader", "publication  transporter_reader"]
    assert out[4] == f"slot         {slot}: not active, reserved"
    assert [line.split()[0] for line in out[2:8]] == [
        "logged", "server", "slot", "retained", "safe", "lag"
    ]  # fmt: skip
    sizes = [line.split(maxsplit=1)[1] for line in (out[5], out[7])]
    assert all(re.fullmatch(r"[0-9.,]+ ([KMGT]i)?B", size) for size in sizes), sizes
    assert out[9:] == [
        "TABLE         PHASE        RUN  COPIED  ROWS  %",
        "public.items  catching up  1    100     100   100",
    ]
    assert err == []
    out, err = text("init", "--run")
    assert out[-1] == f"slot {slot}: exists"
    shop.execute("ALTER PUBLICATION transporter_reader SET (publish = 'insert')")
    out, err = text("check")
    assert out[1].startswith("problem: publication transporter_reader was altered")
    assert out[2].startswith("problem: publication transporter_reader leaves out updates")
    out, err = text("drop", "--yes")
    assert out == [f"slot {slot} and publication transporter_reader dropped"]
    assert err == ["of another reader or log: publication transporter_old"]
    out, err = text("drop", "--yes")
    assert out == ["nothing to drop"]
