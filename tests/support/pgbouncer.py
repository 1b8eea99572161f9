"""PgBouncer in front of a test's server, where it is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from root_tools import cannot_run
from services.postgres import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.postgres import Database

USER: Final = "pgserver"
"""The user of the pooler where the tests run as root, which it refuses."""
PATIENCE: Final = 20.0


@contextmanager
def pgbouncer(database: Database, mode: str, ignored: str = "") -> Iterator[str]:
    """Run a pooler in this *mode*, which ignores startup parameters; yield its connection string.

    Without the program the test is skipped. In CI it fails.
    """
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        cannot_run("pgbouncer is not installed (apt install pgbouncer)")
    port, server = free_port(), conninfo_to_dict(database.dsn)
    folder = Path(tempfile.mkdtemp(prefix="transporter-pooler-"))
    # Another user has to reach the files.
    folder.chmod(0o755)
    (folder / "users.txt").write_text('"postgres" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={server['host']} port={database.server.port}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = trust\n"
        f"auth_file = {folder / 'users.txt'}\nunix_socket_dir =\npool_mode = {mode}\n"
        f"ignore_startup_parameters = {ignored}\n"
    )
    identity: dict[str, Any] = {"user": USER, "extra_groups": ()} if os.geteuid() == 0 else {}
    with (folder / "pgbouncer.log").open("wb") as log:
        process = subprocess.Popen(
            [program, folder / "pgbouncer.ini"], stdout=log, stderr=log, cwd="/", **identity
        )
    try:
        _await(port, folder / "pgbouncer.log")
        yield make_conninfo(database.dsn, host="127.0.0.1", port=port)
    finally:
        process.terminate()
        process.wait(PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)


def _await(port: int, log: Path) -> None:
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise AssertionError(log.read_text())
