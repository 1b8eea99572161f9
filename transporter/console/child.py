"""Commands that run user code, or for long: in a process of their own, with a deadline."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from transporter.errors import EnvironmentFault

SECONDS: Final = 30.0
COMMAND: Final = (sys.executable, "-m", "transporter")


def run_command(*words: str, seconds: float = SECONDS) -> dict[str, Any]:
    """Return the result of ``transporter *words --json``, or the error that it reports.

    Raises:
        EnvironmentFault: it took too long, or printed no JSON.

    """
    name = f"transporter {words[0]}"
    try:
        found = subprocess.run(
            [*COMMAND, *words, "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(f"{name!r} took longer than {seconds:g} s and was ended") from error
    return parse_answer(name, found.stdout)


def parse_answer(name: str, output: bytes) -> dict[str, Any]:
    """Return the result in the *output* of a command, or its error.

    Raises:
        EnvironmentFault: it is not JSON.

    """
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
        self._running: tuple[str, subprocess.Popen[bytes]] | None = None
        self._found: dict[str, Verification] = {}

    def start(self, name: str, target: str) -> bool:
        """Begin with the log *name*, that commands call *target*, unless one is verified now."""
        with self._lock:
            if self._running is not None:
                return False
            words = [*COMMAND, "log", "verify", target, "--json"]
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            self._running = name, process
            self._found[name] = Verification(time.time())
        threading.Thread(target=self._await, args=(name, process), daemon=True).start()
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

    def close(self) -> None:
        """End the process that runs, if one does."""
        with self._lock:
            if self._running is not None:
                self._running[1].kill()

    def _await(self, name: str, process: subprocess.Popen[bytes]) -> None:
        output, _ = process.communicate()
        began = self._found[name].began
        try:
            found = Verification(began, parse_answer("transporter log verify", output))
        except EnvironmentFault as error:
            found = Verification(began, problem=str(error))
        with self._lock:
            self._found[name], self._running = found, None
