"""Operation of the reader's source without a database: phases of tables, gaps, scripts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transporter_adaptors.postgres_cdc.config import CdcConfig
from transporter_adaptors.postgres_cdc.handover import TableCopy
from transporter_adaptors.postgres_cdc.operating.logged import LoggedState
from transporter_adaptors.postgres_cdc.operating.progress import table_statuses
from transporter_adaptors.postgres_cdc.operating.setup_sql import (
    SetupTarget,
    make_script,
    target_of,
)
from transporter_adaptors.postgres_cdc.plan import Names, Published
from transporter_adaptors.postgres_cdc.position import Position
from transporter_adaptors.postgres_cdc.state import FollowedTable, TablesState

from transporter.change_source import LoggedReader, TableStatus


def followed(oid: int, run: int = 1) -> FollowedTable:
    """Return a table that is copied by its column ``id``."""
    return FollowedTable(oid, "public", f"t{oid}", 1, ("id",), ("id",), 5, run)


def config(**settings: Any) -> CdcConfig:
    """Return settings with named tables."""
    given = {"dsn": "user=ada dbname=shop", "tables": ["orders"], **settings}
    return CdcConfig.model_validate(given)


def test_each_table_has_its_phase() -> None:
    """The queue beyond the begun waits, a complete copy catches up, the rest is in sync.

    A table whose rows are not copied is known as that.
    """
    tables = {oid: followed(oid, run=oid) for oid in (1, 2, 3, 4)}
    copies = (
        TableCopy(2, 5, run=2, rows=10, is_complete=True),
        TableCopy(3, 5, run=3, rows=3),
    )
    position = Position("s", 1, at=9, copies=copies, begun=2)
    state = TablesState({"pub": 7}, tables, queue=(2, 3, 4))
    logged = LoggedState("r", Names("p", "s"), position, state)
    rows = {2: 10, 3: 4, 4: None}
    found = config(tables=["public.*", {"table": "t1", "copy": "none"}])
    assert table_statuses(found, logged, rows) == [
        TableStatus("public.t1", "in sync", 1, has_copy=False),
        TableStatus("public.t2", "catching up", 2, 10, 10),
        TableStatus("public.t3", "copying", 3, 3, 4),
        TableStatus("public.t4", "waiting", 4),
    ]
    assert table_statuses(found, LoggedState("r", Names("p", "s")), rows) == []


@pytest.mark.parametrize(
    ("phase", "copied", "estimated", "percent"),
    [
        ("copying", 3, 4, 75),
        ("copying", 9, 4, 99),
        ("catching up", 3, 4, 100),
        ("copying", 3, 0, None),
        ("copying", 3, None, None),
        ("in sync", None, 4, 100),
        ("waiting", None, 4, None),
    ],
)
def test_percent_is_below_100_until_the_copy_is_complete(
    phase: Any, copied: int | None, estimated: int | None, percent: int | None
) -> None:
    """The estimate may be too low."""
    assert TableStatus("t", phase, 1, copied, estimated).percent == percent


def test_the_slot_has_no_name_before_its_log() -> None:
    """It is made of the log's id, unless the file names it."""
    before = LoggedReader("Shop!", "", None, str)
    after = LoggedReader("Shop!", "0123abcd-0000", None, str)
    assert LoggedState.parse(config(), before).slot == ""
    assert LoggedState.parse(config(slot="mine"), before).slot == "mine"
    assert LoggedState.parse(config(), after) == LoggedState(
        "Shop!", Names("transporter_shop_", "transporter_shop__0123abcd")
    )


def test_publishing_again_is_known_as_a_gap() -> None:
    """A table that left is named, and one that is copied again is not."""
    position, state = (
        Position("s", 1, at=9),
        TablesState({"pub": 7}, {1: followed(1), 2: followed(2)}),
    )
    logged = LoggedState("r", Names("pub", "s"), position, state)
    settings = config(tables=["t1", "t2"])
    plan: Any = SimpleNamespace(
        tables={
            oid: (SimpleNamespace(full_name=f"t{oid}"), settings.tables[oid - 1], None)
            for oid in (1, 2)
        }
    )
    found: Any = SimpleNamespace(oid=7, name="pub", version=1)
    member: Any = SimpleNamespace(membership=1)
    both = Published({"pub": found}, {1: member, 2: member})
    one = Published({"pub": found}, {1: member})
    assert logged.find_gaps(settings, plan, both) == ([], set())
    problems, left = logged.find_gaps(settings, plan, one)
    assert (left, len(problems)) == ({2}, 1)
    assert problems[0].startswith("table public.t2 has left the publication pub: ")
    problems, left = logged.find_gaps(settings, plan, Published({}, {}))
    assert (left, len(problems)) == ({1, 2}, 1)
    assert problems[0].startswith("publication pub is gone: ")
    again = config(tables=["t1", {"table": "t2", "copy_run": 2}])
    plan.tables[2] = (plan.tables[2][0], again.tables[1], None)
    assert logged.find_gaps(again, plan, one) == ([], set())


def test_the_role_is_that_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the dsn names neither role nor database, libpq's environment does."""
    monkeypatch.setenv("PGUSER", "eve")
    monkeypatch.delenv("PGDATABASE", raising=False)
    assert target_of(config(dsn="host=db")) == SetupTarget("eve", "eve")
    monkeypatch.setenv("PGDATABASE", "stock")
    assert target_of(config(dsn="host=db")) == SetupTarget("eve", "stock")
    assert target_of(config()) == SetupTarget("ada", "shop")
    assert target_of(config(dsn="")) == SetupTarget("transporter", "transporter")


def test_the_last_item_counts_in_the_script() -> None:
    """A table that a later item leaves out is not published, and none is twice."""
    settings = config(tables=["a", "b", {"table": "a", "columns": ["id"]}, "!b", "tmp.*", "!tmp.*"])
    logged = LoggedState("r", Names("pub", ""))
    script = make_script(settings, logged, "plain")
    assert 'FOR TABLE "public"."a" ("id") WITH' in script.sql
    assert '"b"' not in script.sql


def test_a_right_that_only_a_copy_uses_is_a_comment() -> None:
    """Servers before PostgreSQL 16 lack its function."""
    logged = LoggedState("r", Names("pub", ""))
    line = "--   GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO "
    assert line in make_script(config(tables=["a"]), logged, "plain").sql
    assert line not in make_script(config(tables=["a"], copy="none"), logged, "plain").sql
