"""``python -m transporter.cli.engine_console``: the console that an engine's launcher starts.

Its arguments are the pipeline file, the directory of the log, the host and the port of the
console, the descriptors of the two sockets, and the seconds without a request until it leaves.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

from transporter.errors import TransporterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transporter.console.sources import LogSource
    from transporter.console.state import Console
    from transporter.pipeline.observe_config import ConsoleAccess

_TICK: Final = 1.0
"""Seconds between two looks at a reason to end."""


def main() -> None:
    """Serve the inherited sockets until the engine ends, or no request has come for a while."""
    # Before the slow imports: the engine may be killed meanwhile, and the next one needs the port.
    _run_beside(_end_with_engine)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    file, directory, host, port, listener, login_listener, idle = sys.argv[1:]
    sockets = (socket.socket(fileno=int(each)) for each in (listener, login_listener))
    try:
        _serve(Path(file), Path(directory), (host, int(port)), (*sockets,), float(idle))
    except KeyboardInterrupt:
        return
    except TransporterError as error:
        sys.exit(str(error))


def _serve(
    file: Path,
    directory: Path,
    address: tuple[str, int],
    sockets: tuple[socket.socket, ...],
    idle: float,
) -> None:
    """Serve the log in *directory*, of which an engine runs *file*, on *address*.

    While the file has errors, its access settings are unknown. Then only the user of this
    process may look.
    """
    from transporter.cli.ui import create_console, locked_settings  # noqa: PLC0415 - heavy
    from transporter.console.app import serving  # noqa: PLC0415
    from transporter.console.login_socket import LoginSocket  # noqa: PLC0415
    from transporter.console.sources import find_sources  # noqa: PLC0415
    from transporter.pipeline.observe_config import ListenAddress  # noqa: PLC0415
    from transporter.process_limits import end_first_without_memory  # noqa: PLC0415

    # Its memory counts in the engine's container, and a page is worth no delivery.
    end_first_without_memory()
    try:
        target, sources, access = _find_log(file, directory)
    except (TransporterError, OSError):
        target, sources = directory, find_sources([directory], os.environ)
        access = locked_settings().console_access
        _run_beside(_end_when_readable, file, directory)
    console = create_console([target], sources, ListenAddress(*address), access)
    listener, login_listener = sockets
    with (
        LoginSocket(login_listener, console.login_link, is_shared=True),
        serving(console, listener) as serve,
    ):
        _run_beside(_end_when_idle, console, idle)
        serve()


def _find_log(file: Path, directory: Path) -> tuple[Path, Mapping[str, LogSource], ConsoleAccess]:
    """Return the target of commands, the log, and the access settings of *file*.

    Raises:
        TransporterError: the file has errors.

    """
    from transporter.cli.ui import read_settings  # noqa: PLC0415 - heavy
    from transporter.console.sources import find_sources  # noqa: PLC0415

    sources = find_sources([file], os.environ)
    (source,) = sources.values()
    access = read_settings(source, None).console_access
    if source.directory.resolve() == directory.resolve():
        return file, sources, access
    # The file names another log by now, but the engine runs on this one.
    return directory, find_sources([directory], os.environ), access


def _run_beside(function: Callable[..., None], *arguments: object) -> None:
    Thread(target=function, args=arguments, daemon=True).start()


def _end_with_engine() -> None:
    sys.stdin.read()
    # At once, whoever is being answered.
    os._exit(0)


def _end_when_idle(console: Console, seconds: float) -> None:
    while (left := seconds - console.activity.idle_seconds) > 0 or console.verifier.is_running:
        time.sleep(max(left, _TICK))
    _end()


def _end_when_readable(file: Path, directory: Path) -> None:
    """Make room for a console with the access settings."""
    while True:
        time.sleep(_TICK)
        with suppress(TransporterError, OSError):
            _find_log(file, directory)
            _end()
            return


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
