"""The readers of PostgreSQL on each of its supported versions.

The tests are those of ``tests/integration``, which there run on the wheel's server alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, SparklessHost, delivered, running, until
from integration import (
    conftest,
    test_cdc_commands,
    test_cdc_gaps,
    test_cdc_history,
    test_cdc_hostile,
    test_cdc_logical,
    test_cdc_messages,
    test_cdc_reader,
    test_cdc_schedules,
    test_cdc_surroundings,
    test_cdc_tables,
    test_cdc_types,
    test_check_connect,
    test_outbox_restarts,
    test_outbox_tools,
    test_postgres_outbox,
    test_postgres_partitions,
    test_postgres_router,
    test_postgres_take,
)
from integration.test_outbox_notifications import ELECTOR, pipeline
from outbox_tools import insert, remaining
from services.postgres import VERSIONS, served

from transporter.engine.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    from services.postgres import Database, PostgresService

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]


@pytest.fixture(scope="session", params=VERSIONS)
def postgres_server(request: pytest.FixtureRequest) -> Iterator[PostgresService]:
    """Run a server of each version, one after the other, instead of the wheel's."""
    with served(VERSIONS[request.param]) as server:
        yield server


shop = conftest.shop
"""The fixture of most tests of ``postgres-cdc``, which is not in their modules."""


@pytest.fixture
def version(request: pytest.FixtureRequest, postgres_server: PostgresService) -> str:
    """Return the major version that the test runs on."""
    return str(request.node.callspec.params["postgres_server"])


def test_the_server_is_of_the_version(postgres: Database, version: str) -> None:
    """No test below runs on the wheel's server by mistake."""
    ((number,),) = postgres.execute("SHOW server_version_num")
    assert int(number) // 10_000 == int(version)


@pytest.mark.parametrize(
    "reader",
    [{"claim": "mark"}, {"claim": "take"}, {"elector": ELECTOR}],
    ids=["mark", "take", "elected"],
)
def test_a_second_engine_takes_over(
    reader: dict[str, Any], outbox: Database, tmp_path: Path
) -> None:
    """In either mode rows go into the leading engine's log, and leave the table."""
    given = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        given.append(pipeline(tmp_path / name, outbox, **reader))
    with running(given[0]) as one:
        until(lambda: one.status().readers[0].term == 1)
        insert(outbox, value="1")
        until(lambda: remaining(outbox) == [])
        two = Engine(given[1], SparklessHost(), Events())
        two.start()
    try:
        insert(outbox, value="2")
        until(lambda: remaining(outbox) == [])
        assert (two.log.durable, two.status().readers[0].term) == (0, 2)
    finally:
        two.stop()
    found = [delivered(tmp_path / name / "out.jsonl") for name in ("one", "two")]
    assert [[line["data"] for line in lines] for lines in found] == [["1"], ["2"]]


def cases(module: ModuleType, *only: str) -> type:
    """Return a class of the fixtures of *module*, and of its tests that need only PostgreSQL."""
    found = {}
    for name, each in vars(module).items():
        marker = getattr(each, "_fixture_function_marker", None)
        if marker is not None:
            found[name] = marker(staticmethod(each.__wrapped__))
        elif (
            name.startswith("test_")
            and name in (only or (name,))
            and not _marks(each) & {"kafka", "spark"}
        ):
            found[name] = staticmethod(each)
    assert found.keys() >= {*only}, {*only} - found.keys()
    return type(module.__name__, (), found)


def _marks(test: object) -> set[str]:
    return {mark.name for mark in getattr(test, "pytestmark", ())}


TestCheckConnect = cases(test_check_connect)
TestOutboxRestarts = cases(test_outbox_restarts, "test_only_a_takeover_supersedes")
TestOutboxTools = cases(
    test_outbox_tools,
    "test_a_table_that_goharvest_made",
    "test_init_creates_the_table_once",
    "test_init_adds_the_trigger_to_a_table_of_goharvest",
)
TestPostgresOutbox = cases(test_postgres_outbox)
TestPostgresPartitions = cases(test_postgres_partitions)
TestPostgresRouter = cases(test_postgres_router)
TestPostgresTake = cases(test_postgres_take)
TestCdcCommands = cases(test_cdc_commands)
TestCdcGaps = cases(test_cdc_gaps)
TestCdcHistory = cases(test_cdc_history)
TestCdcHostile = cases(test_cdc_hostile)
TestCdcLogical = cases(test_cdc_logical)
TestCdcMessages = cases(test_cdc_messages)
TestCdcReader = cases(test_cdc_reader)
TestCdcSchedules = cases(test_cdc_schedules)
TestCdcSurroundings = cases(test_cdc_surroundings)
TestCdcTables = cases(test_cdc_tables)
TestCdcTypes = cases(test_cdc_types)
