"""A running engine without Spark, and its operator."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from engine_tools import Events, make_pipeline, running

from transporter.audit import AUDIT, Operator, read_audit
from transporter.control import requests
from transporter.control.running_engine import RunningEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from transporter.engine.engine import Engine
    from transporter.pipeline.config import Pipeline

GOING_ON = "table_tools:GoingOn"
ME = Operator("somebody", 7, 42)


class Operated:
    """A running engine and its operator."""

    def __init__(self, folder: Path, engine: Engine, events: Events) -> None:
        self.folder, self.engine, self.events = folder, engine, events
        self.live = RunningEngine(engine, {})

    def __call__(self, request: requests.Request) -> dict[str, Any]:
        """Execute the request."""
        return self.live.perform(request, ME)

    def route(self, name: str = "out") -> dict[str, Any]:
        """Return the status of a route."""
        return next(each for each in self(requests.Status())["routes"] if each["name"] == name)

    def feed(self, *lines: str) -> None:
        """Add to the source."""
        with (self.folder / "source.txt").open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def change(self, edit: Callable[[dict[str, Any]], object]) -> None:
        """Change the pipeline file."""
        path = self.folder / "pipeline.yaml"
        document = json.loads(path.read_text())
        edit(document)
        path.write_text(json.dumps(document, indent=1))

    def audited(self) -> list[dict[str, Any]]:
        """Return the changes in the audit file."""
        with (self.folder / "log" / AUDIT).open("rb") as lines_:
            return list(read_audit(lines_))


@contextmanager
def operated(folder: Path, lines: list[str], **routes: Any) -> Iterator[Operated]:
    """Run a pipeline whose source does not end, and operate it."""
    events = Events()
    pipeline = make_pipeline(folder, lines, end=False, **routes)
    with running(pipeline, events=events) as engine:
        yield Operated(folder, engine, events)


def lines(count: int, first: int = 0) -> list[str]:
    """Return *count* lines of alternating namespaces."""
    return [f"{'ab'[number % 2]} {number}" for number in range(first, first + count)]


def sink(folder: Path, name: str = "out") -> Path:
    """Return the file that a route has delivered to."""
    return folder / f"{name}.jsonl"


def route(name: str, **keys: Any) -> dict[str, Any]:
    """Return a route into ``<name>.jsonl`` in pipeline file form."""
    writer = {"adaptor": "engine_tools:LinesWriter", "path": f"{name}.jsonl"}
    keys["writer"] = writer | keys.get("writer", {})
    return {"name": name, "retry": {"attempts": 2, "backoff": "1ms..5ms"}, **keys}


def reader(name: str, path: str, **keys: Any) -> dict[str, Any]:
    """Return a reader of the lines of *path* in pipeline file form."""
    return {"name": name, "adaptor": "engine_tools:LinesReader", "path": path, "end": False, **keys}


def reload(op: Operated, **lists: list[dict[str, Any]]) -> dict[str, Any]:
    """Reload the engine with other readers or routes."""
    op.change(lambda document: document.update(lists))
    return op(requests.Reload())


@contextmanager
def operated_table(pipeline: Pipeline) -> Iterator[Operated]:
    """Run *pipeline*, and operate it."""
    events = Events()
    with running(pipeline, events=events) as engine:
        yield Operated(pipeline.file.parent, engine, events)
