"""The sockets of an engine's console, whose process is started when somebody connects.

The engine listens and accepts nothing. A child inherits both sockets, serves them, and leaves when
nobody has asked for a while or the engine has ended. A connection that comes in between waits in
the queue of its socket for the next child.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Final

from transporter.console.listening import bind, page_url
from transporter.console.login_socket import NAME, listening
from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.pipeline.observe_config import ConsoleConfig, ListenAddress

IDLE: Final = 600.0
_TICK: Final = 0.25
"""Seconds between two looks at the child."""
_PATIENCE: Final = 3.0
"""Seconds within which a child ends that is asked to."""
_SHORTEST: Final = 1.0
_LONGEST: Final = 60.0
"""Seconds until the next try after one that failed, at first and at most."""
_MOST: Final = 2048
"""Bytes of a failed child's last words that are reported."""


class ConsoleLauncher:
    """Implements ``engine.Service``. Its failures are reported, and never end the engine."""

    def __init__(
        self, file: Path, directory: Path, config: ConsoleConfig, idle: float = IDLE
    ) -> None:
        """Prepare to listen on the address that *config* names.

        If that is taken on this host it will be another port. The child serves the pipeline *file*,
        whose log is in *directory*, and leaves after *idle* seconds without a request.
        """
        self._file, self._directory, self._idle = file, directory, idle
        self._config = config
        self._observe: Callable[..., None] = lambda *_, **__: None
        self._opened = ExitStack()
        """Those of the two sockets that are open."""
        self._listeners: tuple[socket.socket, ...] = ()
        self.url = ""
        """The address of the first page, empty while it does not listen."""
        self._wake, self._woken = socket.socketpair()
        self._stopping = threading.Event()
        self._pause = _SHORTEST
        self._thread = threading.Thread(target=self._run, name="console-launcher", daemon=True)

    def report_to(self, observe: Callable[..., None]) -> None:
        """Report events to *observe* from now on."""
        self._observe = observe

    def start(self, _: Callable[[BaseException], None]) -> None:
        """Begin. Where no console is possible yet, that is tried again and again."""
        self._problem = self._try_to_listen("")
        self._thread.start()

    def stop(self) -> None:
        """End the child, and listen no more. May be called again."""
        self._stopping.set()
        if self._thread.is_alive():
            self._wake.send(b"\0")
            self._thread.join()
        for each in (self._opened, self._wake, self._woken):
            each.close()

    def _try_to_listen(self, known: str) -> str:
        """Listen on both sockets, or return what prevents that. Report it unless it is *known*."""
        try:
            login = self._opened.enter_context(listening(self._directory))
            listener, self._address = _bind_or_other_port(self._config.console)
        except EnvironmentFault as error:
            problem = str(error)
        except OSError as error:
            problem = f"{self._directory / NAME}: {error.strerror}"
        else:
            self._listeners = (self._opened.enter_context(listener), login)
            self.url = page_url(self._address, self._config.console_access.base_path)
            self._observe("console-listening", url=self.url)
            return ""
        self._opened.close()
        if problem != known:
            self._observe("console-failed", problem=problem)
        return problem

    def _run(self) -> None:
        try:
            while self._problem and not self._stopping.wait(self._next_pause()):
                self._problem = self._try_to_listen(self._problem)
            self._pause = _SHORTEST
            while not self._stopping.is_set():
                self._ready()
                if not self._stopping.is_set():
                    self._serve()
        except Exception as error:  # noqa: BLE001 - a console is worth no engine
            self._opened.close()  # No connection would be answered.
            self.url, problem = "", f"{type(error).__name__}: {error}"
            self._observe("console-failed", problem=problem)

    def _ready(self, seconds: float | None = None) -> list[socket.socket]:
        """Return the listeners with connections, within *seconds* or once it is stopping."""
        look = select.poll()  # A descriptor may be too high for select().
        for each in (*self._listeners, self._woken):
            look.register(each, select.POLLIN)
        found = {number for number, _ in look.poll(None if seconds is None else 1000 * seconds)}
        return [each for each in self._listeners if each.fileno() in found]

    def _next_pause(self) -> float:
        found, self._pause = self._pause, min(2 * self._pause, _LONGEST)
        return found

    def _serve(self) -> None:
        """Run one child until it has left."""
        began = time.monotonic()
        try:
            with TemporaryFile() as errors:
                code = self._run_child(errors)
                if code == 0 or self._stopping.is_set():
                    return
                problem = _last_words(errors) or f"it has ended with exit code {code}"
        except OSError as error:
            problem = f"its process cannot be started: {error}"
        if time.monotonic() - began > _LONGEST:
            self._pause = _SHORTEST
        self._observe("console-failed", problem=problem)
        self._refuse_callers(self._next_pause())

    def _run_child(self, errors: IO[bytes]) -> int:
        inherited = [each.fileno() for each in self._listeners]
        numbers = (self._address.port, *inherited, self._idle)
        with subprocess.Popen(
            [sys.executable, "-m", "transporter.cli.engine_console", str(self._file),
             str(self._directory), self._address.host, *map(str, numbers)],
            # Its end tells the child that the engine is gone, however that has ended.
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=inherited,
            # A Ctrl-C is for the engine, which may drain for a while and be looked at meanwhile.
            start_new_session=True,
        ) as child:  # fmt: skip
            while child.poll() is None:
                if self._stopping.wait(_TICK):
                    child.terminate()
                    with suppress(subprocess.TimeoutExpired):
                        child.wait(_PATIENCE)
                    child.kill()
            return child.returncode

    def _refuse_callers(self, seconds: float) -> None:
        """Close the connections that wait, and those of the next *seconds*.

        The former would begin the next child at once, and the latter would hang.
        """
        until = time.monotonic() + seconds
        while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
            for listener in self._ready(left):
                with suppress(OSError):
                    listener.accept()[0].close()


def _bind_or_other_port(listen: ListenAddress) -> tuple[socket.socket, ListenAddress]:
    try:
        return bind(listen)
    except EnvironmentFault:
        if not listen.is_loopback:
            raise
        # Mostly another engine's console, or one that was started by hand.
        return bind(listen._replace(port=0))


def _last_words(errors: IO[bytes]) -> str:
    end = errors.seek(0, 2)
    errors.seek(max(0, end - _MOST))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
