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
from typing import Any, Final

from transporter.errors import EnvironmentFault

SECONDS: Final = 30.0


def run_command(*words: str, seconds: float | None = SECONDS) -> dict[str, Any]:
    """Return the result of ``transporter *words --json``, or the error that it reports.

    The command is ended after *seconds*, if they are given. What its code has started and left
    running ends with it.

    Raises:
        EnvironmentFault: it could not be started, took too long, or printed no JSON.

    """
    name = f"transporter {words[0]}"
    # Nobody else has the end that is written to, so it is closed when this process is killed.
    tether, ours = os.pipe()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "transporter.console.tethered", *words, "--json"],
            stdin=tether,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(f"{name!r} took longer than {seconds:g} s and was ended") from error
    except OSError as error:
        raise EnvironmentFault(f"{name!r} cannot be started: {error.strerror}") from error
    finally:
        os.close(tether)
        os.close(ours)
    return _parse_answer(name, output)


def _parse_answer(name: str, output: bytes) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError as error:
        raise EnvironmentFault(f"{name!r} printed no answer") from error
    found: dict[str, Any] = answer["result"] if "result" in answer else answer["error"]
    return found


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
        threading.Thread(target=self._verify, args=(name, target), daemon=True).start()
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
        try:
            found = Verification(began, run_command("log", "verify", target, seconds=None))
        except EnvironmentFault as error:
            found = Verification(began, problem=str(error))
        with self._lock:
            self._found[name], self._running = found, None
