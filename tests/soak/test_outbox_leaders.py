"""Engines that join, leave, pause, die and are cut off for minutes: one leads, no row is lost."""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING

import pytest
from election_tools import Pooler
from fleet_tools import TERM, Fleet, Server, fleet_pipeline, prepare, tell
from leader_tools import Node, Rows, all_there, await_true, faults_of, seen
from psycopg.conninfo import make_conninfo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.postgres
HOW = ("stop", "kill", "pause", "hang", "refuse")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Run a server for this test alone, with an outbox whose changes are watched."""
    with Server(tmp_path / "server") as made:
        prepare(made.database)
        yield made


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("engines", "takeovers"), [(1, 20), (4, 130), (8, 60)])
def test_leaders_come_and_go_for_minutes(
    engines: int, takeovers: int, server: Server, tmp_path: Path, exhaustive: bool
) -> None:
    """With faults of leaders no row is missing, no first delivery goes back, all is purged.

    2 % of the writes fail, before or behind the delivery. Now and then the server restarts,
    and all connections are cut at once. The next engine leads within two terms.
    """
    path, chance = tmp_path / "out.txt", random.Random(random.randrange(1 << 32))
    writer = {"adaptor": "leader_tools:SharedWriter", "path": str(path), "faults": 0.02}
    count = takeovers if exhaustive else max(2, takeovers // 20)
    fleet = Fleet(tmp_path, server.database, engines, {"writer": writer})
    with fleet, Rows(server.database, keys=20, pause=0.2) as rows:
        began = fleet.term
        for number in range(count):
            if number % 25 == 10:
                server.restart()
            if number % 10 == 5:
                for proxy in fleet.proxies:
                    proxy.cut()
            fleet.befall(chance.choice(HOW))
            time.sleep(chance.uniform(0, TERM))
        assert fleet.term >= began + count
        rows.stop()
        await_true(lambda: all_there(path, rows), 120)
        fleet.settle()
        fleet.stop()
    assert faults_of(seen(path), rows.inserted) == []
    if fleet.took:
        assert tell(fleet.took) <= 2 * TERM


@pytest.mark.timeout(300)
def test_a_pooler_that_makes_two_leaders_loses_nothing(server: Server, tmp_path: Path) -> None:
    """Both hold the lock in their shared session, but the term's number lets only one lead.

    The engine that notices stops with the remedy, and the other continues.
    """
    path = tmp_path / "out.txt"
    writer = {"adaptor": "leader_tools:SharedWriter", "path": str(path), "faults": 0.02}
    pooler = Pooler(server.port)
    nodes = []
    for number in range(2):
        document = fleet_pipeline(server.database.dsn, {"writer": writer})
        dsn = make_conninfo(server.database.dsn, port=pooler.port)
        document["readers"][0]["elector"]["dsn"] = dsn
        nodes.append(Node(tmp_path / f"node-{number}", document))
    try:
        with Rows(server.database, keys=20, pause=0.1) as rows:
            for node in nodes:
                node.start()
            await_true(lambda: [told for node in nodes for told in node.events("reader-stopped")])
            time.sleep(3 * TERM)
        await_true(lambda: all_there(path, rows))
        empty = [(0,)]
        await_true(lambda: server.database.execute("SELECT count(*) FROM outbox") == empty)
    finally:
        for node in nodes:
            node.stop(signal.SIGKILL)
        pooler.close()
    (stopped,) = [told for node in nodes for told in node.events("reader-stopped")]
    assert "PgBouncer" in stopped["problem"]
    assert server.database.execute("SELECT * FROM wrong") == []
    assert faults_of(seen(path), rows.inserted) == []
