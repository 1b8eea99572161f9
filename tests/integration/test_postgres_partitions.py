"""Partitioned outbox tables, on a real PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from outbox_tools import Log, ids, insert, read, readers, remaining

from transporter.errors import EnvironmentFault
from transporter.outbox import outbox_sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services.postgres import Database

pytestmark = pytest.mark.postgres

BY_DAY = ("id, create_time", "RANGE (create_time)", "FROM ('2000-01-01') TO ('2020-01-01')")
BY_KEY = ("id, kafka_key", "HASH (kafka_key)", "WITH (MODULUS 2, REMAINDER 0)")
BY_ID = ("id", "RANGE (id)", "FROM (MINVALUE) TO (4)")


def partitioned(database: Database, unique: str, by: str, bounds: str) -> None:
    """Create an outbox like the usual one, with two partitions."""
    database.execute(outbox_sql())
    database.execute(f"""
        ALTER TABLE outbox RENAME TO usual;
        CREATE TABLE outbox (LIKE usual INCLUDING DEFAULTS, PRIMARY KEY ({unique}))
            PARTITION BY {by};
        CREATE TABLE first PARTITION OF outbox FOR VALUES {bounds};
    """)
    other = "FOR VALUES WITH (MODULUS 2, REMAINDER 1)" if "HASH" in by else "DEFAULT"
    database.execute(f"CREATE TABLE other PARTITION OF outbox {other}")


@pytest.fixture(params=["mark", "take"])
def opened(postgres: Database, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Open readers on the database, and close all at the end."""
    with readers(postgres, request.param) as opener:
        yield opener


def put(database: Database, number: int) -> None:
    """Insert a row with this id, dated on one of two days in turn."""
    day = "2019-05-03" if number % 2 else "2026-05-03"
    database.execute(
        "INSERT INTO outbox (id, create_time, kafka_topic, kafka_key) VALUES (%s, %s, 't', %s)",
        [number, day, str(number)],
    )


@pytest.mark.parametrize("kind", [BY_DAY, BY_KEY, BY_ID])
def test_partitions_are_read_as_one_table(
    postgres: Database, opened: Callable[..., Any], kind: tuple[str, str, str]
) -> None:
    """Rows of all partitions come in id order, late ones first, and are purged in their place."""
    partitioned(postgres, *kind)
    for number in (2, 3, 5, 6):
        put(postgres, number)
    log = Log()
    reader = opened(log, poll_interval=0.05)
    batch = reader.poll(5)
    assert ids(batch) == [2, 3, 5, 6]
    log.append(batch)
    reader.close()  # before the purge: the rows are recognised
    for number in (1, 4, 7):
        put(postgres, number)
    reader = opened(log, poll_interval=0.05)
    assert read(reader) == [1, 4, 7]
    assert remaining(postgres) == []


def test_a_row_that_commits_late_in_another_partition_is_not_overtaken(
    postgres: Database, opened: Callable[..., Any]
) -> None:
    """Gaps span all partitions, and a partition added during reading is read, too."""
    partitioned(postgres, *BY_DAY)
    reader = opened(poll_interval=0.05)
    with postgres.connect(autocommit=False) as late:
        assert insert(late) == 1
        assert insert(postgres) == 2
        assert read(reader) == [2]
        late.commit()
    assert read(reader) == [1]
    postgres.execute(
        "CREATE TABLE third PARTITION OF outbox FOR VALUES FROM ('2030-01-01') TO (MAXVALUE)"
    )
    postgres.execute(
        "INSERT INTO outbox (create_time, kafka_topic, kafka_key) VALUES ('2030-05-03', 't', 'k')"
    )
    assert read(reader) == [3]
    assert remaining(postgres) == []


def test_partitions_without_an_index_by_id_are_refused(
    postgres: Database, opened: Callable[..., Any]
) -> None:
    """Each look would read and sort all partitions, and the suggested command fixes that."""
    partitioned(postgres, "create_time, id", *BY_DAY[1:])
    with pytest.raises(EnvironmentFault, match="no index begins with it; run CREATE INDEX") as told:
        opened()
    postgres.execute(str(told.value).partition("; run ")[2])
    number = insert(postgres)
    assert read(opened()) == [number]
