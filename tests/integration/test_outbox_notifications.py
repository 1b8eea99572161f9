"""Notifications that no session reads never fill the server's queue.

For a session that listens and does not read, unsent notifications stay in a queue that all
databases of a server share. Once it is full every commit that notifies fails.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, offsets, running, until
from outbox_tools import insert, remaining
from services.postgres import fresh_database

from transporter.errors import LogFull
from transporter.log.commit_log import CommitLog
from transporter.outbox import outbox_sql
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from services.postgres import Database, PostgresService

    from transporter.pipeline.config import Pipeline

pytestmark = pytest.mark.postgres
ELECTOR = {"kind": "postgres", "term": "1s"}
LED = ("leader-acquired", "leader-refreshed", "leader-revoked", "leader-fenced")
TERM = "SELECT term, leader_id FROM transporter_term"
ROUNDS = 10
ROWS = 30
"""Rows of a round: with the notification below, each fills most of a page, and there are 64."""
COMMIT = (
    "BEGIN; INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES ('t', 'k', 'v');"
    "SELECT pg_notify('outbox', repeat('x', 7900)); COMMIT"
)


@pytest.fixture
def small(small_queue_server: PostgresService) -> Iterator[Database]:
    """Create an outbox on a server with a small queue of notifications."""
    with fresh_database(small_queue_server) as database:
        database.execute(outbox_sql())
        yield database


def pipeline(folder: Path, database: Database, **reader: Any) -> Pipeline:
    """Return a pipeline from the outbox of *database* into a file."""
    common = {"name": "in", "adaptor": "postgres-outbox", "dsn": database.dsn}
    writer = {"adaptor": "engine_tools:LinesWriter", "path": "out.jsonl"}
    document = {
        "readers": [common | reader],
        "routes": [{"name": "out", "retry": {"backoff": "10ms..50ms"}, "writer": writer}],
        "log": {"dir": "log"},
        "commit_interval": "50ms",
    }
    file = folder / "pipeline.yaml"
    file.write_text(json.dumps(document))
    return load(file, {})


@contextmanager
def full_log() -> Iterator[threading.Event]:
    """Let every log refuse appends until the event is set."""
    room, append = threading.Event(), CommitLog.append

    def full(self: CommitLog, *values: Any) -> Any:
        if not room.is_set():
            raise LogFull("no room for the test")
        return append(self, *values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitLog, "append", full)
        yield room
        room.set()


def commit_much(database: Database) -> None:
    """Commit several times the queue's capacity, as an application does, with each round read."""
    with database.connect() as connection:
        for _ in range(ROUNDS):
            for _ in range(ROWS):
                connection.execute(COMMIT)
            until(lambda: database.execute("SELECT pg_notification_queue_usage()") == [(0.0,)])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"claim": "mark"}, id="mark"),
        pytest.param({"claim": "take"}, id="take"),
        pytest.param({"release": "delivered"}, id="delivered"),
        pytest.param({"elector": ELECTOR}, id="elected"),
    ],
)
def test_commits_go_on_while_the_log_is_full(
    small: Database, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Back-pressure reaches the reader, and never the application (Invariant 14)."""
    events = Events()
    insert(small)
    with full_log() as room, running(pipeline(tmp_path, small, **settings), events=events):
        events.await_count("log-full")
        commit_much(small)
        room.set()
        until(lambda: remaining(small) == [])
    assert offsets(tmp_path / "out.jsonl") == list(range(1 + ROUNDS * ROWS))


@pytest.mark.exhaustive
def test_a_term_goes_on_while_the_log_is_full(small: Database, tmp_path: Path) -> None:
    """Back-pressure ends no term, so nothing is superseded and redelivered (Invariant 14)."""
    events = Events()
    insert(small)
    with full_log() as room, running(pipeline(tmp_path, small, elector=ELECTOR), events=events):
        # The pauses are up to a second each, so eight span several terms.
        events.await_count("log-full", 8)
        room.set()
        until(lambda: remaining(small) == [])
        assert [name for name, _ in events.all if name in LED] == ["leader-acquired"]


@pytest.mark.exhaustive
def test_a_term_goes_on_while_max_in_flight_is_reached(small: Database, tmp_path: Path) -> None:
    """An unavailable sink ends no term, so its undelivered entries are not superseded."""
    events = Events()
    given = pipeline(tmp_path, small, elector=ELECTOR, max_in_flight=1)
    (tmp_path / "out.down").write_text("write")
    insert(small)
    with running(given, events=events) as engine:
        until(lambda: "max_in_flight" in engine.status().readers[0].problem)
        before = small.execute(TERM)
        time.sleep(3.0)  # Terms are one second each, so this spans several.
        assert "max_in_flight" in engine.status().readers[0].problem
        (tmp_path / "out.down").unlink()
        until(lambda: remaining(small) == [])
        assert small.execute(TERM) == before
        assert [name for name, _ in events.all if name in LED] == ["leader-acquired"]


def test_commits_go_on_while_a_route_is_paused(small: Database, tmp_path: Path) -> None:
    """An operator's pause blocks the reader, and not the application."""
    given = pipeline(tmp_path, small, release="delivered", max_in_flight=1)
    with running(given) as engine:
        found = engine.route("out")
        assert found is not None
        found[1].pause()
        insert(small)
        until(lambda: "max_in_flight" in engine.status().readers[0].problem)
        commit_much(small)
        assert offsets(tmp_path / "out.jsonl") == []
        found[1].resume()
        found[0].submit(lambda: None)
        until(lambda: remaining(small) == [])


@pytest.mark.exhaustive
def test_commits_go_on_while_max_in_flight_is_reached(small: Database, tmp_path: Path) -> None:
    """An unavailable sink blocks the reader, and not the application."""
    given = pipeline(tmp_path, small, release="delivered", max_in_flight=1)
    (tmp_path / "out.down").write_text("write")
    insert(small)
    with running(given) as engine:
        until(lambda: "max_in_flight" in engine.status().readers[0].problem)
        commit_much(small)
        (tmp_path / "out.down").unlink()
        until(lambda: remaining(small) == [])
