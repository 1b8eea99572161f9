"""A small queue of notifications, while the log stays full over very many commits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from engine_tools import Events, delivered, running
from integration.test_outbox_notifications import LED, full_log, pipeline
from leader_tools import await_true
from outbox_tools import insert
from services.postgres import fresh_database

from transporter.outbox import outbox_sql

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from services.postgres import Database, PostgresService

    from transporter.engine.engine import Engine

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(3600)]

COMMITS, SAMPLE = 200_000, 40_000
"""Of an application: a queue of 64 pages holds some 21 000 notifications of the trigger."""
ROUND = 1_000
"""Commits between two looks at the queue: a twentieth of it."""
PACE = 0.05
"""Minimum seconds of a round: no server commits more than that to a disk."""
SMALL = 0.5
"""The part of the queue that may be in use: the reader drains it each half second."""
# Each row is its own transaction, so that no notifications are merged.
_APPLICATION = """
CREATE PROCEDURE commit_rows(first int, past int) LANGUAGE plpgsql AS $$
BEGIN
    FOR n IN first..past - 1 LOOP
        INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
            VALUES ('t', 'k' || n % 100, n::text);
        COMMIT;
    END LOOP;
END $$
"""


@pytest.fixture
def small(small_queue_server: PostgresService) -> Iterator[Database]:
    """Create an outbox, and an application, on a server with a small queue of notifications."""
    with fresh_database(small_queue_server) as database:
        database.execute(outbox_sql())
        database.execute(_APPLICATION)
        # The query also removes unread notifications, with which an earlier test filled the queue.
        assert in_use(database) < 1 / 64 + 0.001
        yield database


def in_use(database: Database) -> float:
    """Return the share of the queue in use."""
    return float(database.execute("SELECT pg_notification_queue_usage()")[0][0])


def commit_rounds(database: Database, count: int) -> Iterator[int]:
    """Commit *count* rows, numbered from one, and yield the number of rows after each round."""
    with database.connect() as application:
        for first in range(1, count + 1, ROUND):
            ends, past = time.monotonic() + PACE, min(first + ROUND, count + 1)
            application.execute("CALL commit_rows(%s, %s)", [first, past])
            yield past - 1
            time.sleep(max(0.0, ends - time.monotonic()))


def arrived(engine: Engine) -> int:
    """Return the number of entries that the route delivered."""
    return engine.status().routes[0].delivered


@pytest.mark.parametrize(
    "reader",
    [{}, {"release": "delivered", "elector": {"kind": "postgres", "term": "5s"}}],
    ids=["alone", "elected"],
)
def test_no_commit_fails_however_long_the_log_is_full(
    reader: dict[str, Any], small: Database, tmp_path: Path, exhaustive: bool
) -> None:
    """The queue stays nearly empty, the term continues, and every row arrives (Invariant 14)."""
    commits, path, events = COMMITS if exhaustive else SAMPLE, tmp_path / "out.jsonl", Events()
    insert(small, value="0")
    term = "SELECT term, leader_id FROM transporter_term"
    given = pipeline(tmp_path, small, **reader)
    with full_log() as room, running(given, events=events) as engine:
        events.await_count("log-full")
        before = small.execute(term)
        most = 0.0
        for _ in commit_rounds(small, commits):
            most = max(most, in_use(small))
            assert small.execute(term) == before
        assert most < SMALL
        assert arrived(engine) == 0
        room.set()
        await_true(lambda: arrived(engine) == 1 + commits, 1800)
        await_true(lambda: small.execute("SELECT count(*) FROM outbox") == [(0,)])
        assert small.execute(term) == before
    assert sorted(int(line["data"]) for line in delivered(path)) == list(range(1 + commits))
    assert [name for name, _ in events.all if name in LED] in ([], ["leader-acquired"])


def test_a_session_that_does_not_read_fills_the_queue(small: Database) -> None:
    """A commit fails long before as many as above, which are therefore enough as a test."""
    committed = [0]
    with small.connect() as session:
        session.execute("LISTEN outbox")
        with pytest.raises(psycopg.OperationalError, match="too many notifications"):
            committed.extend(commit_rounds(small, COMMITS))
    assert committed[-1] < COMMITS / 2
