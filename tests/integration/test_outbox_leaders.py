"""Several engines on one outbox: one leads, the others take over, and nothing is lost."""

from __future__ import annotations

import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from fleet_tools import TERM, fleet_pipeline
from leader_tools import Node, Rows, all_there, await_true, faults_of, seen

from transporter.control.client import perform
from transporter.control.requests import PauseReader, ResumeReader, Status
from transporter.outbox.table import outbox_sql

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from services.postgres import Database

    from transporter.control.requests import Request

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]


@pytest.fixture
def fleet(tmp_path: Path, postgres: Database) -> Iterator[list[Node]]:
    """Return three engines that are not started, and kill all at the end."""
    postgres.execute(outbox_sql())
    writer = {"adaptor": "leader_tools:SharedWriter", "path": str(tmp_path / "out.txt")}
    document = fleet_pipeline(postgres.dsn, {"writer": writer})
    nodes = [Node(tmp_path / f"node-{number}", document) for number in range(3)]
    yield nodes
    for node in nodes:
        node.send(signal.SIGCONT)
        node.stop(signal.SIGKILL)


def leader(nodes: list[Node]) -> Node | None:
    """Return the running engine that reports to lead under the highest term."""
    leading = [node for node in nodes if node.running and node.term is not None]
    return max(leading, key=lambda node: node.term or 0, default=None)


def led_behind(nodes: list[Node], number: int) -> bool:
    """Return whether one of *nodes* leads under a later term than *number*."""
    found = leader(nodes)
    return found is not None and (found.term or 0) > number


@pytest.mark.exhaustive
def test_leaders_come_and_go(fleet: list[Node], postgres: Database, tmp_path: Path) -> None:
    """A leader stops, is killed, is paused beyond its term and resumes: six takeovers.

    No row is missing, first deliveries keep the order of their keys, and the next engine
    leads within two terms.
    """
    path, took = tmp_path / "out.txt", []
    with Rows(postgres, keys=20, pause=0.1) as rows:
        for node in fleet:
            node.start()
        await_true(lambda: leader(fleet))
        for how in ("stop", "kill", "pause") * 2:
            await_true(lambda: all(node.ready for node in fleet))
            count = sum(1 for _ in seen(path))
            await_true(lambda count=count: sum(1 for _ in seen(path)) > count + 50)
            former = leader(fleet)
            assert former is not None
            number = former.term or 0
            if how == "stop":
                former.stop()
            elif how == "kill":
                former.stop(signal.SIGKILL)
            else:
                former.send(signal.SIGSTOP)
            others = [node for node in fleet if node is not former]
            took.append(await_true(partial(led_behind, others, number)))
            time.sleep(0.5)
            if how == "pause":
                former.send(signal.SIGCONT)
                await_true(lambda former=former: former.term is None)
            else:
                former.start()
    await_true(lambda: all_there(path, rows))
    assert faults_of(seen(path), rows.inserted) == []
    assert max(took) <= 2 * TERM + 1, took
    await_true(lambda: postgres.execute("SELECT count(*) FROM outbox") == [(0,)])
    for node in fleet:
        node.stop()
        assert node.events("route-stopped", "reader-stopped") == []


def operate(node: Node, request: Request) -> dict[str, Any]:
    """Send *request* to an engine, as the commands do."""
    return perform(node.folder / "log", request)


def is_candidate(node: Node) -> bool:
    """Return whether an engine takes part in the election and does not lead."""
    return operate(node, Status())["readers"][0]["state"] == "candidate"


@pytest.mark.exhaustive
def test_a_paused_reader_gives_its_seat_to_another_engine(
    fleet: list[Node], postgres: Database, tmp_path: Path
) -> None:
    """Another engine leads within two terms, and the paused one is not a candidate."""
    path, nodes = tmp_path / "out.txt", fleet[:2]
    with Rows(postgres, keys=20, pause=0.1) as rows:
        for node in nodes:
            node.start()
        await_true(lambda: all(node.ready for node in nodes))
        for _ in range(2):
            await_true(lambda: leader(nodes))
            former = leader(nodes)
            assert former is not None
            count = sum(1 for _ in seen(path))
            await_true(lambda count=count: sum(1 for _ in seen(path)) > count + 50)
            number = former.term or 0
            assert operate(former, PauseReader("outbox", "upgrade"))["in_effect"]
            (other,) = (node for node in nodes if node is not former)
            took = await_true(partial(led_behind, [other], number))
            assert took <= 2 * TERM + 1, took
            (shown,) = operate(former, Status())["readers"]
            assert (shown["state"], shown["term"]) == ("paused", None)
            count = sum(1 for _ in seen(path))
            await_true(lambda count=count: sum(1 for _ in seen(path)) > count + 50)
            operate(former, ResumeReader("outbox"))
            await_true(lambda at=former: is_candidate(at))
    await_true(lambda: all_there(path, rows))
    assert faults_of(seen(path), rows.inserted) == []
    await_true(lambda: postgres.execute("SELECT count(*) FROM outbox") == [(0,)])
    for node in nodes:
        node.stop()
        assert node.events("route-stopped", "reader-stopped") == []
