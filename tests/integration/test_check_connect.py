"""``transporter check --connect`` with a real PostgreSQL and a real Kafka."""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from services.postgres import fresh_database

from transporter.cli import app
from transporter.outbox import outbox_sql

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from services.kafka import Broker
    from services.postgres import Database

Found = dict[str, list[tuple[str, str]]]


@pytest.fixture
def look(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Found]]:
    """Return a function that checks a pipeline and returns its exit code and findings."""

    def look(reader: dict[str, Any], writer: dict[str, Any]) -> tuple[int, Found]:
        document = {
            "log": {"dir": "log"},
            "readers": [{"name": "in", **reader}],
            "routes": [{"name": "out", "writer": writer}],
        }
        (tmp_path / "p.yaml").write_text(json.dumps(document, default=str))
        code = app.execute(["check", "--connect", "--json", str(tmp_path / "p.yaml")])
        said = json.loads(capsys.readouterr().out)
        assert said["ok"] == (code == 0), said
        return code, {
            each["name"]: [(found["level"], found["text"]) for found in each["findings"]]
            for each in said["result"]["connections"]
        }

    return look


SCREEN = {"adaptor": "file", "path": "-"}


@pytest.mark.postgres
def test_an_outbox(postgres: Database, look: Callable[..., tuple[int, Found]]) -> None:
    """A missing table or trigger is named, and the check changes neither rows nor tables."""
    reader = {"adaptor": "postgres-outbox", "dsn": postgres.dsn}
    code, found = look(reader, SCREEN)
    assert code == 3
    assert found["in"][0][1].startswith("PostgreSQL ")
    assert found["in"][1][0] == "problem"
    assert "'transporter outbox init" in found["in"][1][1]

    postgres.execute(outbox_sql("outbox"))
    code, found = look(reader, SCREEN)
    assert (code, [level for level, _ in found["in"]]) == (0, ["fine"] * 4)
    assert postgres.execute("SELECT to_regclass('transporter_term')") == [(None,)]

    postgres.execute("ALTER TABLE outbox DISABLE TRIGGER ALL")
    code, found = look(reader, SCREEN)
    assert code == 0
    level, text = found["in"][-1]
    assert level == "warning"
    assert "poll_interval" in text
    assert "'transporter outbox init PIPELINE --run' installs the trigger" in text

    postgres.execute("ALTER TABLE outbox ENABLE TRIGGER ALL")
    code, found = look({**reader, "notify_channel": "other"}, SCREEN)
    assert found["in"][-1][0] == "warning"
    assert "notifies the channel other" in found["in"][-1][1]


@pytest.mark.postgres
def test_a_role_without_rights(postgres: Database, look: Callable[..., tuple[int, Found]]) -> None:
    """A missing right on the table, or a missing table of terms, is named."""
    role = f"reader_{uuid.uuid4().hex[:8]}"
    postgres.execute(outbox_sql("outbox"))
    postgres.execute(f"CREATE ROLE {role}")
    postgres.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    postgres.execute(f"GRANT SELECT, UPDATE ON outbox TO {role}")
    reader = {"adaptor": "postgres-outbox", "dsn": f"{postgres.dsn} options='-c role={role}'"}
    try:
        code, found = look(reader, SCREEN)
        assert (code, found["in"][-1][0]) == (3, "problem")
        assert "lacks DELETE" in found["in"][-1][1]
        postgres.execute(f"GRANT DELETE ON outbox TO {role}")
        code, found = look(reader, SCREEN)
        assert code == 3
        assert ("problem", "there is no table public.transporter_term") in [
            (level, text.split(",")[0]) for level, text in found["in"]
        ]
    finally:
        postgres.execute(f"DROP OWNED BY {role}")
        postgres.execute(f"DROP ROLE {role}")


@pytest.mark.postgres
def test_a_server_that_is_away(look: Callable[..., tuple[int, Found]]) -> None:
    """An unreachable server is reported within seconds, without the password."""
    dsn = "host=127.0.0.1 port=1 user=ada password=word-of-ada"
    code, found = look({"adaptor": "postgres-outbox", "dsn": dsn}, SCREEN)
    ((level, text),) = found["in"]
    assert (code, level) == (3, "problem")
    assert "cannot connect" in text
    assert "word-of-ada" not in text


@pytest.mark.kafka
def test_topics(
    kafka_broker: Broker, kafka_topic: str, look: Callable[..., tuple[int, Found]]
) -> None:
    """Existing topics are listed with their partitions, and a missing topic is a problem."""
    place = {"adaptor": "kafka", "bootstrap_servers": kafka_broker.bootstrap_servers}
    group = uuid.uuid4().hex
    code, found = look(
        {**place, "topics": [kafka_topic], "group": group}, {**place, "topic": kafka_topic}
    )
    assert code == 0, found["in"][-1]
    told = ("fine", f"topic {kafka_topic}: 1 partition, 1 copy")
    assert told in found["in"]
    assert told in found["out"]
    assert ("fine", f"group {group}: new, and starts at earliest") in found["in"]

    missing = f"missing-{uuid.uuid4().hex[:8]}"
    code, found = look(
        {**place, "topics": [kafka_topic, missing], "group": group}, {**place, "topic": missing}
    )
    assert code == 3
    for name in ("in", "out"):
        assert any(
            level == "problem" and text.startswith(f"topic {missing} does not exist")
            for level, text in found[name]
        )
    code, found = look(
        {**place, "topics": [kafka_topic], "group": group},
        {**place, "topic": missing, "create_topics": True},
    )
    assert code == 0
    assert missing not in kafka_broker.admin().list_topics(timeout=10).topics


@pytest.mark.kafka
def test_a_queue_without_topics(
    kafka_broker: Broker, look: Callable[..., tuple[int, Found]]
) -> None:
    """The command that creates the missing topics is named."""
    name = f"q-{uuid.uuid4().hex[:8]}"
    place = {"bootstrap_servers": kafka_broker.bootstrap_servers, "queue_topic": name}
    reader = {"adaptor": "kafka-queue", **place, "queue": "jobs", "markers_topic": f"{name}-m"}
    code, found = look(reader, {"adaptor": "kafka-queue", **place, "queue": "jobs"})
    assert code == 3
    for each in ("in", "out"):
        assert "transporter queue init" in found[each][-1][1]


@pytest.mark.exhaustive
@pytest.mark.kafka
def test_brokers_that_are_away(look: Callable[..., tuple[int, Found]]) -> None:
    """Unreachable brokers are a problem of both ends."""
    place = {"adaptor": "kafka", "bootstrap_servers": "127.0.0.1:1"}
    code, found = look({**place, "topics": ["t"], "group": "g"}, {**place, "topic": "t"})
    assert code == 3
    assert [found[name][-1][0] for name in ("in", "out")] == ["problem", "problem"]


@pytest.mark.postgres
def test_the_columns_that_a_router_lacks_are_sql_to_copy(
    postgres: Database,
    look: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The printed statement has lines of its own, and mends the table as it is."""
    postgres.execute(
        "CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype text NOT NULL,"
        " aggregateid text NOT NULL, type text NOT NULL, payload jsonb)"
    )
    reader = {"adaptor": "postgres-outbox", "dsn": postgres.dsn}
    place = {**reader, "table": "outboxevent", "router": {}}
    assert look(place, SCREEN)[0] == 3
    assert app.execute(["check", "--connect", str(tmp_path / "p.yaml")]) == 3
    told = capsys.readouterr().out
    statement = re.search(r"^    ALTER TABLE .*?;$", told, re.MULTILINE | re.DOTALL)
    assert statement, told
    postgres.execute(statement[0])
    assert look(place, SCREEN)[0] == 0


@pytest.mark.postgres
@pytest.mark.kafka
def test_what_an_election_rests_on(
    postgres: Database, kafka_broker: Broker, kafka_topic: str, look: Callable[..., Any]
) -> None:
    """The elector's topic, or its own database, is checked."""
    postgres.execute(outbox_sql("outbox"))
    reader = {"adaptor": "postgres-outbox", "dsn": postgres.dsn}
    elector = {"kind": "kafka", "bootstrap_servers": kafka_broker.bootstrap_servers}
    code, found = look({**reader, "elector": {**elector, "topic": kafka_topic}}, SCREEN)
    assert (code, found["in"][-1][0]) == (0, "fine")
    assert kafka_topic in found["in"][-1][1]
    code, found = look({**reader, "elector": {**elector, "topic": "nowhere"}}, SCREEN)
    assert (code, found["in"][-1][0]) == (3, "problem")
    alone = {"kind": "postgres", "dsn": "host=127.0.0.1 port=1 password=word-of-eve"}
    code, found = look({**reader, "elector": alone}, SCREEN)
    assert (code, found["in"][-1][0]) == (3, "problem")
    assert "word-of-eve" not in found["in"][-1][1]


@pytest.mark.postgres
def test_a_target_in_postgres(postgres: Database, look: Callable[..., tuple[int, Found]]) -> None:
    """A missing table is named, and the check creates nothing."""
    kind = "transporter_adaptors.postgres_writer.writer:PostgresWriter"
    writer = {"adaptor": kind, "dsn": postgres.dsn, "table": "orders"}
    code, found = look({"adaptor": "demo"}, writer)
    assert code == 3
    assert [level for level, _ in found["out"]] == ["fine", "fine", "problem"]
    assert "table orders does not exist" in found["out"][2][1]
    postgres.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    code, found = look({"adaptor": "demo"}, writer)
    assert (code, found["out"][2][0]) == (0, "fine")
    assert postgres.execute("SELECT to_regclass('transporter_progress')") == [(None,)]


@pytest.mark.postgres
def test_tables_of_a_source_that_a_target_cannot_have(
    postgres: Database, look: Callable[..., tuple[int, Found]]
) -> None:
    """A type that only the source has is known before anything is copied, and nothing is created.

    So is a table without a key, and a source that is away is told once, by its own reader.
    """
    postgres.execute(
        "CREATE SCHEMA shop; CREATE TYPE shop.mood AS ENUM ('sad');"
        "CREATE TABLE shop.people (id int PRIMARY KEY, mood shop.mood, age numeric(5, 2));"
        "CREATE TABLE shop.fine (id int PRIMARY KEY, made shop.mood"
        " GENERATED ALWAYS AS ('sad'::shop.mood) STORED);"
        "CREATE TABLE shop.other (id int PRIMARY KEY, mood shop.mood)"
    )
    reader = {
        "adaptor": "postgres-cdc",
        "dsn": postgres.dsn,
        "tables": ["shop.*", "!shop.other"],
        "schema": "entries",
    }
    with fresh_database(postgres.server) as target:
        writer = {"adaptor": "postgres", "dsn": target.dsn, "evolve": "create"}
        code, found = look(reader, writer)
        assert code == 3
        problems = [text for level, text in found["out"] if level == "problem"]
        (problem,) = problems
        assert problem == (
            "shop.people: the type shop.mood of column mood is not in this database: create the "
            "type, or the column with another type"
        )
        assert {level for level, _ in found["in"]} == {"fine"}
        target.execute("CREATE SCHEMA shop; CREATE TYPE shop.mood AS ENUM ('sad')")
        assert look(reader, writer)[0] == 0
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname IN ('shop', 'public')"
        assert target.execute(tables) == [(0,)]
        away = {**reader, "dsn": "host=127.0.0.1 port=1 connect_timeout=2"}
        code, found = look(away, writer)
        assert code == 3
        assert {level for level, _ in found["out"]} == {"fine"}
