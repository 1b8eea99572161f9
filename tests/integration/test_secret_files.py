"""Secrets in files are replaced while the engine runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, running, until
from http_tools import OK, Receiver, Reply, Request
from outbox_tools import insert, remaining
from psycopg.conninfo import make_conninfo
from services.postgres import ROTATING_ROLE as ROLE

from transporter.audit import this_operator
from transporter.control.requests import Reload
from transporter.control.running_engine import RunningEngine
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from services.postgres import Database

    from transporter.pipeline.config import Pipeline

WRITER = {"adaptor": "engine_tools:LinesWriter", "path": "out.jsonl"}
FIRST, SECOND = "first-canary/1", "second-canary/2"


@pytest.fixture
def role(outbox: Database) -> Iterator[Database]:
    """Create a role whose password is :data:`FIRST`."""
    outbox.execute(f"DROP ROLE IF EXISTS {ROLE}")
    outbox.execute(f"CREATE ROLE {ROLE} LOGIN SUPERUSER PASSWORD '{FIRST}'")
    yield outbox
    outbox.execute(f"DROP OWNED BY {ROLE}")
    end_sessions(outbox)
    outbox.execute(f"DROP ROLE {ROLE}")


def end_sessions(database: Database) -> None:
    """End all sessions of the role, as a fail-over does."""
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [ROLE]
    )


def load_with(folder: Path, reader: dict[str, Any], writer: dict[str, Any]) -> Pipeline:
    """Return a pipeline of one reader and one route."""
    document = {
        "log": {"dir": "log"},
        "observe": {"listen": "off"},
        "readers": [{"name": "in", **reader}],
        "routes": [{"name": "out", "writer": writer}],
    }
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps(document))
    return load(path, {})


@pytest.mark.postgres
@pytest.mark.parametrize("of", ["reader", "elector"])
def test_a_password_is_replaced_while_the_engine_runs(
    role: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """The next connection reads the file again, and neither password is in any event."""
    monkeypatch.setattr("transporter.engine.reading.feed._SECRETS_CHECK", 0.2)
    secret = tmp_path / "password"
    secret.write_text(f"{FIRST}\n")
    place = make_conninfo(role.tcp_dsn(), user=ROLE, password="x")
    dsn = place.replace("password=x", "password=${file:password}")
    reader = {"adaptor": "postgres-outbox", "dsn": dsn, "elector": "none"}
    if of == "elector":
        # It has its own sessions, and the reader stays open when they are refused.
        reader |= {"dsn": role.dsn, "elector": {"kind": "postgres", "dsn": dsn, "term": "1s"}}
    events = Events()
    with running(load_with(tmp_path, reader, WRITER), events=events) as engine:
        insert(role)
        until(lambda: remaining(role) == [])
        role.execute(f"ALTER ROLE {ROLE} PASSWORD '{SECOND}'")
        end_sessions(role)
        told = "reader-unavailable" if of == "reader" else "election-unavailable"
        until(lambda: any("authentication" in str(each) for each in events.named(told)))
        if of == "elector":
            # The reader continues until its term is over.
            until(lambda: events.named("leader-fenced") or events.named("leader-revoked"))
        insert(role)
        assert remaining(role) != []
        secret.write_text(f"{SECOND}\n")
        until(lambda: remaining(role) == [])
        events.await_count("reader-secrets-renewed")
        assert FIRST not in engine._secrets.hide(FIRST)
        assert SECOND not in engine._secrets.hide(SECOND)
    assert FIRST not in str(events.all)
    assert SECOND not in str(events.all)


@pytest.mark.exhaustive
def test_a_sink_that_refuses_the_old_token_gets_the_new_one(tmp_path: Path) -> None:
    """A refused route takes a new worker once the secret's file has changed."""
    secret = tmp_path / "token"
    secret.write_text(FIRST)
    wanted = [FIRST]

    def decide(request: Request) -> Reply:
        return OK if request.headers["authorization"] == f"Bearer {wanted[0]}" else Reply(503)

    source = tmp_path / "source.txt"
    source.write_text("a 1\n")
    events = Events()
    with Receiver(decide) as sink:
        writer = {
            "adaptor": "http",
            "url": sink.url,
            "headers": {"Authorization": "Bearer ${file:token}"},
        }
        reader = {"adaptor": "engine_tools:LinesReader", "path": "source.txt", "end": False}
        with running(load_with(tmp_path, reader, writer), events=events) as engine:
            until(lambda: engine.status().routes[0].watermark == 0)
            wanted[0] = SECOND
            with source.open("a") as lines:
                lines.write("a 2\n")
            events.await_count("route-retrying")
            assert engine.status().routes[0].watermark == 0
            secret.write_text(SECOND)
            until(lambda: engine.status().routes[0].watermark == 1)
            events.await_count("route-secrets-renewed")
            # The pipeline is unchanged, so a reload accepts it and refuses nothing.
            secret.write_text("third-canary/3")
            wanted[0] = "third-canary/3"
            assert RunningEngine(engine, {}).perform(Reload(), this_operator())["routes"] == ["out"]
            with source.open("a") as lines:
                lines.write("a 3\n")
            until(lambda: engine.status().routes[0].watermark == 2)
    assert "canary" not in str(events.all)
    assert "canary" not in (tmp_path / "log/audit.jsonl").read_text()
