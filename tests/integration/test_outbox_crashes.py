"""An engine that crashes between any two steps of a row's way out of the outbox."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from crash_points import CODE, POINTS, ask
from fleet_tools import fleet_pipeline, prepare
from leader_tools import Node, await_true, faults_of, seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from services.postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]
ROWS = 30
RELEASES = {
    "logged": {"release": "logged", "elector": "none"},
    "delivered": {"release": "delivered", "elector": "none"},
    "elected": {},
}


def insert(database: Database, first: int, count: int = ROWS) -> None:
    """Insert rows numbered from *first* on, all of one key."""
    with database.connect(autocommit=False) as connection:
        for number in range(first, first + count):
            connection.execute(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys,"
                " kafka_header_values) VALUES ('rows', 'k', %s, '{}', '{}')",
                [json.dumps({"key": "k", "n": number})],
            )


@pytest.fixture
def engine(tmp_path: Path, postgres: Database) -> Iterator[Callable[[str], Node]]:
    """Make an engine with the settings of a release, and kill it at the end."""
    prepare(postgres)
    made = list[Node]()

    def make(release: str, **route: Any) -> Node:
        writer = {"adaptor": "leader_tools:SharedWriter", "path": str(tmp_path / "out.txt")}
        common = {"max_in_flight_per_key": None, "writer": writer}
        document = fleet_pipeline(postgres.dsn, common | route)
        document["readers"][0] |= RELEASES[release]
        made.append(Node(tmp_path / "node", document))
        return made[-1]

    yield make
    for node in made:
        node.stop(signal.SIGKILL)


def drained(database: Database) -> None:
    """Wait until the outbox is empty."""
    await_true(lambda: database.execute("SELECT count(*) FROM outbox") == [(0,)])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Take each point with one release in turn, and leave the others to ``make soak``."""
    if "point" in metafunc.fixturenames:
        # Points that only a restart reaches are in test_outbox_restarts.
        points = [point for point in POINTS if "adopted" not in point and "super" not in point]
        cases = [(point, release) for point in points for release in RELEASES]
        # Neighbouring points get different releases.
        step = 4 * len(RELEASES) + 1
        metafunc.parametrize(
            ("point", "release"),
            [
                pytest.param(*case, marks=pytest.mark.exhaustive if at % step else ())
                for at, case in enumerate(cases)
            ],
        )


def test_a_crash_between_two_steps_loses_nothing(
    point: str,
    release: str,
    engine: Callable[[str], Node],
    postgres: Database,
    tmp_path: Path,
) -> None:
    """The next run delivers all rows in order, and does not repeat settled slices."""
    insert(postgres, 1)
    node = engine(release)
    if "known" in point:
        die(node, "before the purge")
        insert(postgres, ROWS + 1)
    die(node, point)
    rows = 2 * ROWS if "known" in point else ROWS
    node.start()
    drained(postgres)
    await_true(lambda: faults_of(seen(tmp_path / "out.txt"), {"k": rows}) == [])
    node.stop()
    assert postgres.execute("SELECT * FROM wrong") == []
    repeated = len(list(seen(tmp_path / "out.txt"))) - rows
    # If rows are purged as soon as they are logged, a slice is in flight meanwhile.
    slices = 2 if "known" in point else 1
    flying = slices if release == "logged" or point == "before the settling" else 0
    assert repeated <= flying * ROWS


def die(node: Node, point: str) -> None:
    """Run the engine until it ends at *point*."""
    ask(node.folder, point)
    node.start()
    assert node.await_end() == CODE


# --- ids that come a second time


@pytest.mark.exhaustive
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_ids_that_begin_anew_are_other_rows(
    running: bool,
    release: str,
    engine: Callable[[str], Node],
    postgres: Database,
    tmp_path: Path,
) -> None:
    """After ``TRUNCATE ... RESTART IDENTITY`` rows with known ids are delivered like any other."""
    insert(postgres, 1)
    node = engine(release)
    node.start()
    drained(postgres)
    if not running:
        node.stop(signal.SIGKILL)
    postgres.execute("TRUNCATE outbox RESTART IDENTITY")
    insert(postgres, ROWS + 1)
    if not running:
        node.start()
    drained(postgres)
    await_true(lambda: faults_of(seen(tmp_path / "out.txt"), {"k": 2 * ROWS}) == [])
    node.stop()


@pytest.mark.exhaustive
@pytest.mark.parametrize("release", RELEASES)
def test_a_restored_database_loses_nothing(
    release: str, engine: Callable[[str], Node], postgres: Database, tmp_path: Path
) -> None:
    """Delivered rows that come back are at most delivered again, and other rows once.

    Marked rows that were not purged are gone, their ids are those of other rows, and the terms'
    numbers have gone back.
    """
    insert(postgres, 1)
    backup = postgres.execute("SELECT * FROM outbox ORDER BY id")
    terms = "SELECT term FROM transporter_term"
    node = engine(release)
    die(node, "before the purge")
    assert postgres.execute(terms) == [(1,)]
    postgres.execute("TRUNCATE outbox RESTART IDENTITY")
    postgres.execute("ALTER TABLE transporter_term DISABLE TRIGGER USER")
    postgres.execute("UPDATE transporter_term SET term = 0")
    postgres.execute("TRUNCATE led")
    postgres.execute("ALTER TABLE transporter_term ENABLE TRIGGER USER")
    assert len(backup) == ROWS
    insert(postgres, 1, 10)
    postgres.execute("ALTER TABLE outbox DISABLE TRIGGER USER")
    postgres.execute("UPDATE outbox SET create_time = %s WHERE id <= 5", [backup[0][1]])
    postgres.execute("ALTER TABLE outbox ENABLE TRIGGER USER")
    insert(postgres, ROWS + 1)
    node.start()
    drained(postgres)
    await_true(lambda: {each.number for each in seen(tmp_path / "out.txt")} >= expected(release))
    node.stop()


def expected(release: str) -> set[int]:
    """Return the rows that must have arrived: all rows of the restored database."""
    assert release in RELEASES
    return {*range(1, 11), *range(ROWS + 1, 2 * ROWS + 1)}
