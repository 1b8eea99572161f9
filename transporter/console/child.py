"""Commands that run user code, or for long: in a process of their own, with a deadline."""

from __future__ import annotations

import json
import subprocess
import sys
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
