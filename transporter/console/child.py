"""Commands that run user code, or for long: each in a process that ends with this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final

from transporter.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Sequence

SECONDS: Final = 30.0


def run_command(*words: str, seconds: float | None = SECONDS) -> dict[str, Any]:
    """Return the result of ``transporter *words --json``, or the error that it reports.

    The command is ended after *seconds*, if they are given. Processes that its code has left
    running end with it.

    Raises:
        EnvironmentFault: it could not be started, took too long, or printed no JSON.

    """
    name = f"transporter {words[0]}"
    try:
        # A file, because a process that user code has left would keep a pipe open.
        with TemporaryFile() as output:
            _run_tethered(words, output, seconds)
            output.seek(0)
            # User code may print behind the answer, at its exit.
            answer: dict[str, Any] = json.loads(output.readline())
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(f"{name!r} took longer than {seconds:g} s and was ended") from error
    except OSError as error:
        raise EnvironmentFault(f"{name!r} cannot be started: {error.strerror}") from error
    except ValueError as error:
        raise EnvironmentFault(f"{name!r} printed no answer") from error
    found: dict[str, Any] = answer["result"] if "result" in answer else answer["error"]
    return found


def _run_tethered(words: Sequence[str], output: IO[bytes], seconds: float | None) -> None:
    # No other process has the writing end, so it is closed when this one is killed.
    tether, ours = os.pipe()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "transporter.console.tethered", *words, "--json"],
            stdin=tether,
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                process.wait(seconds)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    finally:
        os.close(tether)
        os.close(ours)


@dataclass(frozen=True, slots=True)
class Verification:
    """A verification of a log: begun at the wall time ``began``, and its result if it has one."""

    began: float
    result: dict[str, Any] | None = None
    problem: str = ""


class Verifier:
    """Verifies logs one at a time, each in a process of its own. Thread-safe."""

    def __init__(self) -> None:
        """Start with nothing verified."""
        self._lock = threading.Lock()
        self._running: str | None = None
        self._found: dict[str, Verification] = {}

    def start(self, name: str, target: str) -> bool:
        """Begin with the log *name*, that commands call *target*.

        Return ``False`` if another one is being verified. One that is verified already goes on.
        """
        with self._lock:
            if self._running is not None:
                return self._running == name
            self._running = name
            self._found[name] = Verification(time.time())
        try:
            threading.Thread(target=self._verify, args=(name, target), daemon=True).start()
        except RuntimeError:  # no room for one more
            self._end(name, Verification(time.time(), problem="it could not be started"))
        return True

    def state(self, name: str) -> Verification | None:
        """Return the newest verification of the log *name*, ``None`` if there was none."""
        with self._lock:
            return self._found.get(name)

    @property
    def is_running(self) -> bool:
        """Whether a log is being verified."""
        with self._lock:
            return self._running is not None

    def _verify(self, name: str, target: str) -> None:
        began = self._found[name].began
        found = Verification(began, problem="it has failed")
        try:
            found = Verification(began, run_command("log", "verify", target, seconds=None))
        except EnvironmentFault as error:
            found = Verification(began, problem=str(error))
        finally:
            self._end(name, found)

    def _end(self, name: str, found: Verification) -> None:
        with self._lock:
            self._found[name], self._running = found, None
