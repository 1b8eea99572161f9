"""The reader ``postgres-cdc`` and the step ``debezium-envelope`` on a real server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cdc_tools import MemoryLog, clean_slots
from engine_tools import until
from live_tools import operated_table
from step_tools import LOGGED_AT, batch_of, rows_of

from transporter.control import requests
from transporter.pipeline.config import load
from transporter.pipeline.steps.chain import compile_steps
from transporter.pipeline.steps.step import StepConfig
from transporter.pipeline.yaml_document import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database

    from transporter.message import Message

pytestmark = pytest.mark.postgres

PAGE = Path(__file__).parents[2] / "docs" / "debezium.md"
LARGE = "SELECT string_agg(md5(n::text), '') FROM generate_series(1, 400) n"
VALUES = [
    # type, literal, JSON as the page has it
    ("numeric", "1.10", "1.10"),
    ("numeric", "NaN", '"NaN"'),
    ("float8", "Infinity", '"Infinity"'),
    ("money", "1.10", '"$1.10"'),
    ("oid", "26", '"26"'),
    ("date", "2026-01-31", '"2026-01-31"'),
    ("time", "10:20:30.123456", '"10:20:30.123456"'),
    ("timestamp", "2026-01-31 10:20:30.123456", '"2026-01-31T10:20:30.123456"'),
    ("timestamptz", "2026-01-31 10:20:30.123456+00", '"2026-01-31T10:20:30.123456+00:00"'),
    ("timetz", "10:20:30+01", '"10:20:30+01"'),
    ("interval", "1 year 2 mons 3 days 04:05:06.78", '"P1Y2M3DT4H5M6.78S"'),
    ("bytea", r"\x0aff", r'"\\x0aff"'),
    ("bit(1)", "1", '"1"'),
    ("bit(3)", "101", '"101"'),
    ("point", "(1,2)", '"(1,2)"'),
]


@pytest.fixture
def shop(postgres: Database) -> Iterator[Database]:
    """Yield a database whose slots are dropped at the end."""
    with clean_slots(postgres):
        yield postgres


def events(log: MemoryLog, **given: Any) -> list[Message]:
    """Return what the step makes of all that is logged, without positions and ends of copies."""
    config = StepConfig(
        name="debezium-envelope", settings={"name": "shop", "db": "sales", "key": ["id"], **given}
    )
    step = compile_steps([config], Path())
    entries = [each for each in log.messages if each.op != "noop"]
    return [entry.message for entry in rows_of(step.apply(batch_of(*entries)))]


def test_each_change_is_an_event_of_debezium(shop: Database) -> None:
    """Copy, insert, update, changed key, delete and TRUNCATE have the events of the connector."""
    shop.execute("CREATE TABLE items (id int PRIMARY KEY, price numeric)")
    shop.execute("INSERT INTO items VALUES (1, 1.10)")
    log = MemoryLog(shop, old=True)
    log.drain(shop)
    shop.execute("INSERT INTO items VALUES (2, 12345678901234567890.10)")
    shop.execute("UPDATE items SET price = 2 WHERE id = 1")
    shop.execute("UPDATE items SET id = 3 WHERE id = 1")
    shop.execute("DELETE FROM items WHERE id = 2")
    shop.execute("TRUNCATE items")
    log.drain(shop)
    log.kill()
    made = events(log)
    found = [each.data and json.loads(each.data) for each in made]
    assert [
        (each.key and each.key.decode(), event and (event["op"], event["before"], event["after"]))
        for each, event in zip(made, found, strict=True)
    ] == [
        ('{"id":1}', ("r", None, {"id": 1, "price": 1.10})),
        ('{"id":2}', ("c", None, {"id": 2, "price": 12345678901234567890.10})),
        ('{"id":1}', ("u", None, {"id": 1, "price": 2})),
        ('{"id":1}', ("d", {"id": 1}, None)),
        ('{"id":1}', None),
        ('{"id":3}', ("c", None, {"id": 3, "price": 2})),
        ('{"id":2}', ("d", {"id": 2}, None)),
        ('{"id":2}', None),
        (None, ("t", None, None)),
    ]
    assert b'"price":12345678901234567890.10}' in (made[1].data or b"")
    sources = [event["source"] for event in found if event]
    assert {(each["schema"], each["table"]) for each in sources} == {("public", "items")}
    assert [each["snapshot"] for each in sources] == ["true", *["false"] * 6]
    assert sources[0]["lsn"] is None
    lsns = [each["lsn"] for each in sources[1:]]
    assert lsns == sorted(lsns)
    for each in sources[1:]:
        commit, change = map(int, json.loads(each["sequence"]))
        assert change == each["lsn"] < commit
    (end,) = shop.execute("SELECT pg_current_wal_lsn() - '0/0'")[0]
    assert lsns[-1] < end
    (now,) = shop.execute("SELECT (extract(epoch FROM now()) * 1000)::bigint")[0]
    assert all(now - 60_000 < each["ts_ms"] <= now for each in sources)
    assert {event["ts_us"] for event in found if event} == {LOGGED_AT}


def test_the_whole_old_row_is_before(shop: Database) -> None:
    """With ``REPLICA IDENTITY FULL`` updates and deletions have the old row."""
    shop.execute("CREATE TABLE items (id text PRIMARY KEY, n int)")
    shop.execute("ALTER TABLE items REPLICA IDENTITY FULL")
    log = MemoryLog(shop, old=True)
    log.drain(shop)
    shop.execute("INSERT INTO items VALUES ('7', 1)")
    shop.execute("UPDATE items SET n = 2")
    shop.execute("DELETE FROM items")
    log.drain(shop)
    log.kill()
    _, changed, deleted, tombstone = events(log)
    assert json.loads(changed.data or b"")["before"] == {"id": "7", "n": 1}
    assert json.loads(deleted.data or b"")["before"] == {"id": "7", "n": 2}
    assert deleted.key == tombstone.key == b'{"id":"7"}'
    assert (deleted.headers, tombstone.data) == ((), None)


def test_a_large_value_that_was_not_sent_is_the_placeholder(shop: Database) -> None:
    """A column that an update has left alone has Debezium's text instead of its value."""
    shop.execute("CREATE TABLE items (id int PRIMARY KEY, large text, n int)")
    shop.execute("ALTER TABLE items ALTER large SET STORAGE EXTERNAL")
    log = MemoryLog(shop, copy="none", old=True)
    log.drain(shop)
    shop.execute(f"INSERT INTO items VALUES (1, ({LARGE}), 1)")
    shop.execute("UPDATE items SET n = 2")
    log.drain(shop)
    log.kill()
    _, changed = events(log)
    after = json.loads(changed.data or b"")["after"]
    assert after == {"id": 1, "n": 2, "large": "__debezium_unavailable_value"}


def test_keys_of_several_columns_need_no_old_row(shop: Database) -> None:
    """Copied, changed and deleted rows have the same key, also without ``old``."""
    shop.execute('CREATE TABLE lines (o text, "l" int, n int, PRIMARY KEY (o, l))')
    shop.execute("""INSERT INTO lines VALUES ('é"', 1)""")
    log = MemoryLog(shop)
    log.drain(shop)
    shop.execute("UPDATE lines SET n = 2")
    shop.execute("DELETE FROM lines")
    log.drain(shop)
    log.kill()
    made = events(log, key=None, keys={"public.lines": ["o", "l"]})
    assert {each.key for each in made} == {'{"o":"é\\"","l":1}'.encode()}
    assert [each.data is None for each in made] == [False, False, False, True]


def test_moving_over_delivers_what_was_committed_after_the_pause(
    shop: Database, folder: Path
) -> None:
    """A route that is paused, gets its real sink by a reload, and goes on, leaves nothing out."""
    shop.execute("CREATE TABLE items (id int PRIMARY KEY, price numeric)")
    shop.execute("CREATE TABLE lines (order_id int, line int, PRIMARY KEY (order_id, line))")
    (_, text), *_ = re.findall(
        r"^```(yaml)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    pipeline = parse(text, "debezium.md", {"SHOP_DSN": shop.dsn}).root
    pipeline["log"]["dir"] = "log"
    pipeline["readers"][0]["copy"] = "none"
    pipeline["routes"][0]["writer"] = {"adaptor": "file", "path": "check.jsonl"}
    file = folder / "pipeline.yaml"
    file.write_text(json.dumps(pipeline))

    def ops(name: str) -> list[str | None]:
        path = folder / name
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line).get("data", {}).get("op") for line in lines]

    with operated_table(load(file, {})) as op:
        op.events.await_count("slot-created")
        shop.execute("INSERT INTO items VALUES (1, 1.10)")
        until(lambda: ops("check.jsonl") == ["c"])
        op(requests.Pause("events"))
        shop.execute("UPDATE items SET price = 2")
        shop.execute("INSERT INTO lines VALUES (1, 1)")
        shop.execute("DELETE FROM lines")

        def move(document: dict[str, Any]) -> None:
            document["routes"][0]["writer"]["path"] = "real.jsonl"

        op.change(move)
        op(requests.Reload())
        assert op.route("events")["paused"]
        op(requests.Resume("events"))
        until(lambda: len(ops("real.jsonl")) == 4)
        assert ops("real.jsonl") == ["u", "c", "d", None]
    assert ops("check.jsonl") == ["c"]


def test_the_page_lists_values_as_the_server_writes_them(shop: Database) -> None:
    """Each value of the page is that of a copied row and of a change."""
    columns = ", ".join(f"c{number} {kind}" for number, (kind, _, _) in enumerate(VALUES))
    shop.execute(f"CREATE TABLE items (id int PRIMARY KEY, {columns})")
    literals = ", ".join(f"'{literal}'" for _, literal, _ in VALUES)
    shop.execute(f"INSERT INTO items VALUES (1, {literals})")
    log = MemoryLog(shop)
    log.drain(shop)
    shop.execute(f"INSERT INTO items VALUES (2, {literals})")
    log.drain(shop)
    log.kill()
    copied, inserted = (each.data or b"" for each in events(log))
    page = PAGE.read_text()
    for number, (kind, _, text) in enumerate(VALUES):
        member = f'"c{number}":{text}'.encode()
        assert member in copied, (kind, copied)
        assert member in inserted, (kind, inserted)
        assert f"`{text}`" in page, kind
