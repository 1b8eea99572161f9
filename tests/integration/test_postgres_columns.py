"""Outbox tables with custom column names, on a real PostgreSQL."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from outbox_tools import Log, ids, messages, readers
from transporter_adaptors.postgres.config import OutboxConfig

from transporter.cli import app
from transporter.errors import EnvironmentFault
from transporter.outbox import Columns, Record, outbox_sql, stash, stash_many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from services.postgres import Database

pytestmark = pytest.mark.postgres

TABLE = '"My 5% Shop"."Out""box;%s"'
HOSTILE = {
    "id": '"Row %s"',
    "created": '"made at; --"',
    "topic": '"id"',
    "key": '"%(low)s"',
    "value": '"va""lue"',
    "header_keys": '"{table}"',
    "header_values": '"größe 鍵"',
    "leader": '"SELECT"',
}
"""Spaces, quotes, placeholders of every kind, and the usual name of another column."""
KEYWORDS = {
    "id": "size",
    "created": "found",
    "topic": "last",
    "key": "first",
    "value": "term",
    "header_keys": "large",
    "header_values": "text",
    "leader": "kafka_topic",
}
"""Names that our statements use for other things."""
RECORD = Record("orders", "7", '{"id": 7}', [("trace", "a"), ("n", "1")])


@dataclass(frozen=True)
class Outbox:
    """A table with arbitrary column names."""

    database: Database
    columns: dict[str, str]

    @property
    def settings(self) -> dict[str, Any]:
        return {"table": TABLE, "columns": self.columns}

    def stash(self, *records: Record) -> None:
        with self.database.connect() as connection:
            stash_many(connection.cursor(), records, table=TABLE, columns=Columns(**self.columns))

    def select(self, role: str) -> list[Any]:
        names = {"id": "id", "leader": "leader_id"} | self.columns
        query = f"SELECT {names[role]} FROM {TABLE} ORDER BY {names['id']}"
        return [row[0] for row in self.database.execute(query)]


@pytest.fixture(params=[HOSTILE, KEYWORDS, {"id": '"n%"', "value": '"V"'}])
def outbox(request: pytest.FixtureRequest, postgres: Database) -> Outbox:
    """Create an outbox in which some or all names are awkward."""
    postgres.execute('CREATE SCHEMA "My 5% Shop"')
    postgres.execute(outbox_sql(TABLE, columns=Columns(**request.param)))
    return Outbox(postgres, request.param)


@pytest.fixture(params=["mark", "take"])
def opened(request: pytest.FixtureRequest, postgres: Database) -> Iterator[Callable[..., Any]]:
    """Open readers on the database, and close all at the end."""
    with readers(postgres, request.param) as opener:
        yield opener


def test_rows_are_read_and_purged(outbox: Outbox, opened: Callable[..., Any]) -> None:
    """With any column names a row arrives whole, notifies the reader, and is purged."""
    reader = opened(**outbox.settings, poll_interval=60)
    assert ids(reader.poll(0)) == []
    outbox.stash(RECORD, Record("orders", "8", None))
    batch = reader.poll(20)
    first, second = messages(batch)
    assert (first.namespace, first.key, first.data) == ("orders", b"7", b'{"id": 7}')
    assert first.headers == (("trace", b"a"), ("n", b"1"))
    assert (second.op, second.key) == ("delete", b"8")
    assert first.source_id == f"{TABLE}/1"
    reader.commit(batch.position)
    assert outbox.select("id") == []


def test_late_rows_and_sweeps(outbox: Outbox, opened: Callable[..., Any]) -> None:
    """Gaps are looked at by the column that numbers the rows."""
    reader = opened(**outbox.settings, poll_interval=0.01)
    with psycopg.connect(outbox.database.dsn) as slow:
        stash(slow, RECORD, table=TABLE, columns=Columns(**outbox.columns))
        outbox.stash(RECORD, RECORD)
        batch = reader.poll(5)
        assert ids(batch) == [2, 3]
        reader.commit(batch.position)
        slow.commit()
    batch = reader.poll(5)
    assert ids(batch) == [1]
    reader.commit(batch.position)
    assert outbox.select("id") == []


def test_rows_are_recognised(outbox: Outbox, opened: Callable[..., Any]) -> None:
    """Rows logged before a crash are purged at the next open."""
    log = Log()
    outbox.stash(RECORD, RECORD)
    reader = opened(log, **outbox.settings)
    log.append(reader.poll(5))
    reader.close()
    assert outbox.select("id") == [1, 2]
    opened(log, **outbox.settings)
    assert outbox.select("id") == []


def test_bad_and_large_rows_are_told_of_by_name(outbox: Outbox, opened: Callable[..., Any]) -> None:
    """Raw columns, sizes and the suggested statement use the table's column names."""
    outbox.stash(RECORD, RECORD)
    found = OutboxConfig(dsn="", columns=outbox.columns).columns.names  # type: ignore[arg-type]
    quoted = {role: '"' + name.replace('"', '""') + '"' for role, name in found.items()}
    outbox.database.execute(
        f"UPDATE {TABLE} SET {quoted['header_keys']} = '{{a}}' WHERE {quoted['id']} = 1;"
        f"UPDATE {TABLE} SET {quoted['value']} = repeat('x', 9000000) WHERE {quoted['id']} = 2"
    )
    reader = opened(**outbox.settings)
    batch = reader.poll(5)
    bad, large = messages(batch)
    raw = json.loads(bad.data or b"")
    assert (raw[found.id], raw[found.topic]) == (1, "orders")
    document = json.loads(large.data or b"")
    assert document["row"][found.key] == "7"
    assert document["bytes"][found.value] == 9_000_000
    reader.commit(batch.position)
    assert outbox.select("id") == [2]
    statement = dict(large.headers)["transporter-error"].decode().partition("; then ")[2]
    outbox.database.execute(statement)
    assert outbox.select("id") == []


def test_missing_columns_are_named_with_their_setting(
    outbox: Outbox, opened: Callable[..., Any]
) -> None:
    """The error names the missing column and its key in columns."""
    settings = {**outbox.settings, "columns": {**outbox.columns, "value": '"No 5%"'}}
    with pytest.raises(EnvironmentFault, match=r'"No 5%" \(columns: value\) is missing'):
        opened(**settings)


def test_ids_must_be_unique(outbox: Outbox, opened: Callable[..., Any]) -> None:
    """A numbering column that is not unique is refused, with the remedy (Invariant 7)."""
    ((name,),) = outbox.database.execute(
        "SELECT conname FROM pg_constraint WHERE contype = 'p' AND conrelid = %s::regclass",
        [TABLE],
    )
    quoted = name.replace('"', '""')
    outbox.database.execute(f'ALTER TABLE {TABLE} DROP CONSTRAINT "{quoted}"')
    with pytest.raises(EnvironmentFault, match="has no unique index") as caught:
        opened(**outbox.settings)
    outbox.database.execute(str(caught.value).partition("; run ")[2])
    opened(**outbox.settings)


def test_the_commands_take_columns_from_the_pipeline_file(
    postgres: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Init creates, pump fills and reset clears a table whose columns the file names."""
    postgres.execute('CREATE SCHEMA "My 5% Shop"')
    file = tmp_path / "p.yaml"
    reader = {"name": "in", "adaptor": "postgres-outbox", "dsn": postgres.dsn}
    settings = {"table": TABLE, "columns": HOSTILE}
    file.write_text(json.dumps({"readers": [{**reader, **settings}]}, ensure_ascii=False))
    for words in (["init", "--run"], ["init", "--run"], ["pump", "--records", "5"]):
        assert app.execute(["outbox", words[0], str(file), *words[1:]]) == 0, capsys.readouterr()
    outbox = Outbox(postgres, HOSTILE)
    ghost = "00000000-0000-0000-0000-000000000007"
    postgres.execute(f"UPDATE {TABLE} SET \"SELECT\" = '{ghost}'")
    assert app.execute(["outbox", "reset", str(file), "--yes"]) == 0
    assert outbox.select("leader") == [None] * 5
    capsys.readouterr()
    assert app.execute(["outbox", "init", str(file)]) == 0
    assert capsys.readouterr().out == outbox_sql(TABLE, columns=Columns(**HOSTILE))


def test_the_commands_take_columns_as_options(
    postgres: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a pipeline file --column gives the name of a column."""
    words = ["--dsn", postgres.dsn, "--column", "id=event_id", "--column", 'value="The Value"']
    assert app.execute(["outbox", "init", "--run", *words]) == 0
    assert app.execute(["outbox", "pump", "--records", "3", *words]) == 0
    assert postgres.execute('SELECT event_id, "The Value" IS NULL FROM outbox') == [
        (1, False),
        (2, False),
        (3, False),
    ]
    assert app.execute(["outbox", "reset", "--yes", *words]) == 0
    assert app.execute(["outbox", "reset", "--yes", "--dsn", postgres.dsn]) == 0
    capsys.readouterr()
    assert app.execute(["outbox", "pump", "--dsn", postgres.dsn]) == 3
    assert 'column "kafka_value" of relation "outbox" does not exist' in capsys.readouterr().err


def test_a_partitioned_table(postgres: Database, opened: Callable[..., Any]) -> None:
    """A unique index that also contains the partition key is accepted."""
    postgres.execute(
        "CREATE TABLE outbox (id bigserial, create_time timestamptz NOT NULL DEFAULT now(),"
        " kafka_topic text, kafka_key text, kafka_value text, leader_id uuid,"
        " kafka_header_keys text[], kafka_header_values text[], PRIMARY KEY (id, create_time)"
        ") PARTITION BY RANGE (create_time);"
        "CREATE TABLE all_of_it PARTITION OF outbox DEFAULT"
    )
    reader = opened()
    with postgres.connect() as connection:
        stash_many(connection.cursor(), [RECORD, RECORD])
    batch = reader.poll(5)
    assert ids(batch) == [1, 2]
    reader.commit(batch.position)
    assert postgres.execute("SELECT count(*) FROM outbox") == [(0,)]


@pytest.mark.parametrize("kind", ["smallint", "integer"])
def test_narrow_ids(postgres: Database, opened: Callable[..., Any], kind: str) -> None:
    """A table with smallint or integer ids is read and purged like any other."""
    postgres.execute(outbox_sql())
    postgres.execute(f"ALTER TABLE outbox ALTER id TYPE {kind}")
    outbox = Outbox(postgres, {})
    reader = opened(poll_interval=0.01)
    for _ in range(2):
        postgres.execute("INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', 'k')")
        batch = reader.poll(5)
        assert len(ids(batch)) == 1
        reader.commit(batch.position)
    assert postgres.execute("SELECT count(*) FROM outbox") == [(0,)]
    assert outbox.columns == {}
