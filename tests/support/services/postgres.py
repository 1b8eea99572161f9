"""Fixtures of a real PostgreSQL: one server a session, one fresh database a test.

The server is the wheel's. Servers of all supported versions are listed in ``postgres.lock``.
``python -m services.postgres --fetch`` (with ``tests`` on the path) fetches them ahead.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from platform import machine
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from zipfile import ZipFile

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from services.maven import Absent, cache_folder, fetch, fetch_ahead, locked

from transporter.errors import EnvironmentFault
from transporter.outbox import outbox_sql
from transporter.quickstart.postgres import embedded_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.maven import Jar

VERSIONS = {jar.major: jar for jar in locked(Path(__file__).with_name("postgres.lock"))}
"""The server of each supported version, by its major version."""
GUARDED_ROLE = "guarded"
ROTATING_ROLE = "rotating"
"""A role whose password a test may change. The server requires one over TCP, too."""
PASSWORD = "correct horse"  # noqa: S105 - of a role that exists for one test session
# Trust on the unix socket. Over TCP the role with a password has to supply it.
_HBA = f"local all all trust\nhost all {GUARDED_ROLE},{ROTATING_ROLE} 127.0.0.1/32 scram-sha-256\n"


_WRITABLE = "-c default_transaction_read_only=off"


@dataclass(frozen=True)
class PostgresService:
    """A running server. ``dsn`` names its maintenance database over the unix socket."""

    dsn: str
    port: int


@dataclass(frozen=True)
class Database:
    """A fresh database of one test."""

    name: str
    server: PostgresService

    @property
    def dsn(self) -> str:
        """Connection string over the unix socket, as superuser, without a password."""
        return make_conninfo(self.server.dsn, dbname=self.name)

    def dsn_as(self, role: str) -> str:
        """Return the connection string of another *role* over the unix socket."""
        return make_conninfo(self.dsn, user=role)

    def tcp_dsn(self, password: str = PASSWORD) -> str:
        """Return a connection string over 127.0.0.1, where a password is required."""
        return make_conninfo(
            host="127.0.0.1",
            port=self.server.port,
            user=GUARDED_ROLE,
            password=password,
            dbname=self.name,
        )

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Open a connection in autocommit mode. The caller closes it."""
        return psycopg.connect(self.dsn, **{"autocommit": True, **options})

    def execute(self, query: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """Run *query* on a connection of its own and return its rows, if it has any."""
        with self.connect() as connection:
            cursor = connection.execute(query, parameters)
            return cursor.fetchall() if cursor.description else []


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _running(
    directory: Path, programs: Path | None, given: dict[str, str]
) -> Iterator[PostgresService]:
    hba = directory / "pg_hba.conf"
    hba.write_text(_HBA)
    hba.chmod(0o644)
    # With tests as root, the server runs as its own user, which has to reach that file.
    directory.chmod(0o711)
    port = free_port()
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "hba_file": str(hba),
        "wal_level": "logical",
        # None of our tests cuts the power under the server.
        "fsync": "off",
        **given,
    }
    with embedded_postgres(directory, settings, programs) as dsn:
        with psycopg.connect(dsn, autocommit=True, options=_WRITABLE) as connection:
            statement = sql.SQL("CREATE ROLE {} LOGIN SUPERUSER PASSWORD {}")
            connection.execute(statement.format(sql.Identifier(GUARDED_ROLE), PASSWORD))
        yield PostgresService(dsn, port)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresService]:
    """Run a real server for the whole session. Skipped without the wheel, an error in CI."""
    with served() as server:
        yield server


@pytest.fixture(scope="module")
def small_queue_server() -> Iterator[PostgresService]:
    """Run a server with room for 512 KiB of notifications, the least that can be set."""
    with served(max_notify_queue_pages="64") as server:
        yield server


@pytest.fixture(scope="module")
def read_only_server() -> Iterator[PostgresService]:
    """Run a server that accepts sessions and no writes, as a standby does."""
    with served(default_transaction_read_only="on") as server:
        yield server


@contextmanager
def served(jar: Jar | None = None, **settings: str) -> Iterator[PostgresService]:
    """Run a server of the wheel, or of *jar*. Without it skip the test, or fail it in CI."""
    directory = Path(tempfile.mkdtemp(prefix="transporter-test-"))
    try:
        programs = jar and unpack_server(jar, directory / "server")
        with _running(directory, programs, settings) as server:
            yield server
    except (Absent, EnvironmentFault) as fault:
        if os.environ.get("CI"):
            pytest.fail(str(fault))
        pytest.skip(str(fault))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def unpack_server(jar: Jar, folder: Path) -> Path:
    """Unpack the server in *jar* where every user can run it. Return its programs."""
    if (sys.platform, machine()) != ("linux", "x86_64"):
        raise Absent("the servers of each version are for Linux on x86-64")
    (path,) = fetch([jar], cache_folder() / "postgres")
    with ZipFile(path) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("x86_64.txz"))
        with archive.open(name) as packed, tarfile.open(fileobj=packed, mode="r:xz") as server:
            server.extractall(folder, filter="data")
    folder.chmod(0o755)
    return folder / "bin"


@pytest.fixture
def postgres(postgres_server: PostgresService) -> Iterator[Database]:
    """Yield a fresh, empty database. It is dropped with everything that is connected to it."""
    with fresh_database(postgres_server) as database:
        yield database


@contextmanager
def fresh_database(server: PostgresService, name: str = "") -> Iterator[Database]:
    """Create an empty database on *server*. It is dropped with everything connected to it."""
    name = name or f"test_{uuid4().hex}"
    with psycopg.connect(server.dsn, autocommit=True, options=_WRITABLE) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield Database(name, server)
    # The test may have crashed the server.
    with psycopg.connect(server.dsn, autocommit=True, options=_WRITABLE) as connection:
        drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
        connection.execute(drop.format(sql.Identifier(name)))


@pytest.fixture
def outbox(postgres: Database) -> Database:
    """Create the outbox with its trigger."""
    postgres.execute(outbox_sql())
    return postgres


def fetch_versions() -> None:
    """Fetch the servers of all supported versions."""
    fetch([*VERSIONS.values()], cache_folder() / "postgres")


if __name__ == "__main__":
    sys.exit(fetch_ahead(sys.argv[1:], "PostgreSQL of each version", fetch_versions))
