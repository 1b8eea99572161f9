"""``release: delivered`` on a real outbox, with everything that delays a delivery."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, delivered, running, until
from outbox_tools import insert, remaining

from transporter.pipeline.config import load

if TYPE_CHECKING:
    from pathlib import Path

    from services.postgres import Database

    from transporter.engine.engine import Engine
    from transporter.pipeline.config import Pipeline

pytestmark = pytest.mark.postgres
ELECTOR = {"kind": "postgres", "term": "1s"}


def pipeline(folder: Path, outbox: Database, *routes: dict[str, Any], **log: Any) -> Pipeline:
    """Return a pipeline from the outbox into ``<route>.jsonl`` for each of *routes*."""
    reader = {
        "name": "outbox",
        "adaptor": "postgres-outbox",
        "dsn": outbox.dsn,
        "elector": ELECTOR,
        "poll_interval": "50ms",
    }
    document = {
        "name": "parked",
        "readers": [reader],
        "routes": [_route(**route) for route in routes],
        "log": {"dir": "log", **log},
        "shutdown_timeout": "2s",
    }
    (folder / "pipeline.yaml").write_text(json.dumps(document))
    return load(folder / "pipeline.yaml", {})


def _route(name: str, writer: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    default = {"adaptor": "engine_tools:LinesWriter", "path": f"{name}.jsonl"}
    retry = {"attempts": 2, "backoff": "1ms..20ms"}
    return {"name": name, "retry": retry, "on_error": "park", **keys} | {
        "writer": default | (writer or {})
    }


def values(folder: Path, route: str = "out") -> list[str]:
    """Return the values that *route* delivered, in order."""
    return [line["data"] for line in delivered(folder / f"{route}.jsonl")]


def retry(engine: Engine, route: str = "out") -> None:
    """Request a retry of every parked entry of *route*, as an operator does."""
    found = engine.route(route)
    assert found is not None
    running_route, offsets = found
    offsets.request_retries(sorted(running_route.parking.parked_offsets))
    running_route.submit(lambda: None)


def test_a_parked_row_stays_until_its_retry_also_over_a_restart(
    outbox: Database, tmp_path: Path
) -> None:
    """A parked row stays parked in the next run, and leaves the table once it is delivered.

    Later rows of its key wait with it. Other keys are delivered and purged.
    """
    for key, value in (("a", "1"), ("b", "2"), ("a", "3")):
        insert(outbox, key, value)
    given = pipeline(tmp_path, outbox, {"name": "out", "writer": {"reject": [0]}})
    with running(given):
        until(lambda: remaining(outbox) == [1, 3])
    assert values(tmp_path) == ["2"]
    with running(pipeline(tmp_path, outbox, {"name": "out"})) as engine:
        until(lambda: engine.status().readers[0].term is not None)
        assert (remaining(outbox), engine.status().routes[0].parked) == ([1, 3], 2)
        retry(engine)
        until(lambda: remaining(outbox) == [])
        assert engine.log.durable == 2
    assert values(tmp_path) == ["2", "1", "3"]


def test_a_row_waits_for_the_route_that_has_parked_it(outbox: Database, tmp_path: Path) -> None:
    """The other route does not deliver the row again, and the row stays."""
    insert(outbox, "a", "1")
    routes = {"name": "out", "writer": {"reject": [0]}}, {"name": "other"}
    with running(pipeline(tmp_path, outbox, *routes)) as engine:
        until(lambda: engine.status().routes[0].parked == 1)
        until(lambda: values(tmp_path, "other") == ["1"])
        assert remaining(outbox) == [1]
        found = engine.route("out")
        assert found is not None
        found[0].submit(lambda: found[0].parking.skip([0])).result(20)
        until(lambda: remaining(outbox) == [])
    assert values(tmp_path) == []


def test_a_paused_route_holds_its_rows_back(outbox: Database, tmp_path: Path) -> None:
    """Nothing is purged while a route is paused, and the same term continues after the resume."""
    events = Events()
    with running(pipeline(tmp_path, outbox, {"name": "out"}), events=events) as engine:
        until(lambda: engine.status().readers[0].term is not None)
        found = engine.route("out")
        assert found is not None
        found[1].pause()
        insert(outbox, "a", "1")
        until(lambda: engine.log.durable == 0)
        term = engine.status().readers[0].term
        insert(outbox, "b", "2")
        until(lambda: engine.log.durable == 1)
        assert remaining(outbox) == [1, 2]
        found[1].resume()
        found[0].submit(lambda: None)
        until(lambda: remaining(outbox) == [])
        assert engine.status().readers[0].term == term
    assert values(tmp_path) == ["1", "2"]


@pytest.mark.exhaustive
def test_a_paused_route_is_paused_after_a_restart(outbox: Database, tmp_path: Path) -> None:
    """Undelivered entries of the paused route wait in the log, and their rows in the table."""
    insert(outbox, "a", "1")
    (tmp_path / "out.down").write_text("write")
    given = pipeline(tmp_path, outbox, {"name": "out"})
    with running(given) as engine:
        until(lambda: engine.log.durable == 0)
        found = engine.route("out")
        assert found is not None
        found[1].pause()
    (tmp_path / "out.down").unlink()
    with running(given) as engine:
        until(lambda: engine.status().readers[0].term is not None)
        insert(outbox, "b", "2")
        until(lambda: engine.log.durable == 1)
        assert (remaining(outbox), values(tmp_path)) == ([1, 2], [])
        found = engine.route("out")
        assert found is not None
        found[1].resume()
        found[0].submit(lambda: None)
        until(lambda: remaining(outbox) == [])
    assert values(tmp_path) == ["1", "2"]
