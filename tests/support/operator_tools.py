"""A real engine with its control socket, in a process of its own, but without Spark.

Run as a program this file runs a pipeline file until SIGTERM, as ``transporter run`` does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acceptance_tools import TRANSPORTER, Running
from child_paths import python_path
from engine_tools import SparklessHost

from transporter.control.server import attach_control
from transporter.engine.engine import Engine
from transporter.pipeline.config import load

if TYPE_CHECKING:
    from collections.abc import Iterator

ENVIRONMENT = {**os.environ, "PYTHONPATH": python_path()}


class Operated(Running):
    """One engine without Spark, and its events. Its sink and source are those of engine_tools."""

    command = (sys.executable, __file__)

    def has_told(self, name: str) -> bool:
        """Return true if an event of this name has come."""
        return any(event["event"] == name for event in list(self.events))


@contextmanager
def operated(pipeline: Path) -> Iterator[Operated]:
    """Run the pipeline file for the length of a block, and leave no process behind in any case."""
    engine = Operated(pipeline, PYTHONPATH=ENVIRONMENT["PYTHONPATH"])
    try:
        engine.await_event("listening")
        yield engine
    finally:
        if engine.process.poll() is None:
            engine.kill()


def command(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run ``transporter`` with *arguments*, as an operator does."""
    return subprocess.run(
        [*TRANSPORTER, *arguments],
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def done(*arguments: str) -> Any:
    """Run ``transporter`` with *arguments* and ``--json``. Return its result."""
    said = command(*arguments, "--json")
    assert said.returncode == 0, said.stdout + said.stderr
    return json.loads(said.stdout)["result"]


def refused(*arguments: str) -> dict[str, Any]:
    """Run ``transporter`` with *arguments* and ``--json``. Return its error."""
    said = command(*arguments, "--json")
    assert said.returncode != 0, said.stdout
    return json.loads(said.stdout)["error"]


def write_file(folder: Path, routes: list[dict[str, Any]], **keys: Any) -> Path:
    """Write a pipeline file of *routes* over ``source.txt``, which never ends."""
    reader = {
        "name": "in",
        "adaptor": "engine_tools:LinesReader",
        "path": "source.txt",
        "end": False,
    }
    document = {"readers": [reader], "routes": routes, "log": {"dir": "log"}, **keys}
    (folder / "source.txt").touch()
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps({"commit_interval": "50ms", **document}, indent=1))
    return path


def route(name: str = "out", **keys: Any) -> dict[str, Any]:
    """Return a route of a pipeline file, into ``<name>.jsonl``."""
    writer = {"adaptor": "engine_tools:LinesWriter", "path": f"{name}.jsonl"}
    retry = {"attempts": 2, "backoff": "10ms..50ms"}
    return {"name": name, "retry": retry, **keys, "writer": writer | keys.get("writer", {})}


def feed(folder: Path, *lines: str) -> None:
    """Add *lines* to the source."""
    with (folder / "source.txt").open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def be_engine(path: Path) -> None:
    """Run the pipeline file at *path* until SIGTERM, writing events to stderr."""
    telling = threading.Lock()

    def tell(event: str, **details: Any) -> None:
        with telling:
            sys.stderr.write(json.dumps({"event": event, **details}) + "\n")
            sys.stderr.flush()

    engine = Engine(load(path, os.environ), SparklessHost(), tell)
    attach_control(engine, os.environ)
    signal.signal(signal.SIGTERM, lambda *_: engine.request_stop())
    engine.start()
    tell("listening")
    while not engine.wait(0.5):
        pass
    engine.stop()


if __name__ == "__main__":
    be_engine(Path(sys.argv[1]))
