"""The routes of a pipeline file as far as a trial needs them: no writer, no secret, no log."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

from transporter.adaptor import AdaptorConfig
from transporter.engine.delivery import Delivery, deliver
from transporter.errors import ConfigError
from transporter.message import Entries
from transporter.pipeline.config import Name
from transporter.pipeline.document import read
from transporter.pipeline.explain import Section, validate
from transporter.pipeline.namespace import EVERYTHING, Namespace, Pattern
from transporter.pipeline.problems import InvalidPipeline, suggestion
from transporter.pipeline.steps import compile_steps
from transporter.pipeline.steps.sql import ON_SPARK_ONLY, SQL
from transporter.pipeline.steps.table import step_config
from transporter.units import FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from transporter.adaptor import Ack, WriterContext
    from transporter.message import Entry, Message
    from transporter.pipeline.document import Document, KeyPath


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one entry: ``outputs`` is what its writer would be given.

    Nothing when the entry is skipped, or when it fails for the reason ``error``.
    """

    entry: Entry
    outputs: tuple[Message, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TrialRoute:
    """A route without its writer; one that needs Spark has ``refused``, and cannot be run."""

    name: str
    delivery: Delivery = field(repr=False)
    refused: ConfigError | None = None

    def run(self, entries: pa.RecordBatch) -> list[Tried]:
        """Return what becomes of each of *entries* (ENTRY_SCHEMA), in their order.

        Behind an entry that fails the others are tried all the same.
        """
        writer, errors, rest = _Collecting(), {}, entries
        while rest.num_rows:
            last = rest.column("offset")[-1].as_py()
            failure = deliver(rest, last, 0, self.delivery, writer).failure
            if failure is None:
                break
            offset = last if failure.offset is None else failure.offset
            errors[offset] = failure.text
            offsets = rest.column("offset").to_pylist()
            rest = rest.slice(sum(each <= offset for each in offsets))
        return [
            Tried(entry, tuple(writer.made.get(entry.offset, ())), errors.get(entry.offset))
            for entry in Entries(entries)
        ]


class _Collecting:
    """A writer that keeps what it is given, by offset."""

    Config: ClassVar[type[AdaptorConfig]] = AdaptorConfig

    def __init__(self) -> None:
        self.made: dict[int, list[Message]] = {}

    def open(self, context: WriterContext) -> None: ...

    def write(self, batch: Entries, ack: Ack) -> None:
        for entry in batch:
            self.made.setdefault(entry.offset, []).append(entry.message)
        ack.all()

    def close(self) -> None: ...


class _Keys(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    name: Name
    namespace: Pattern = EVERYTHING
    steps: list[Any] = []


def trial_routes(path: Path, environ: Mapping[str, str]) -> dict[str, TrialRoute]:
    """Return the routes of the pipeline file at *path* by their names.

    Looks at their filters and steps only, so neither the variables that hold a
    sink's secrets nor its driver are needed. Raise :class:`ConfigError`, with
    file and line, when these are wrong.
    """
    file = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow symbolic links
    document = read(path, environ, only=_of_a_trial)
    found = document.root.get("routes") if isinstance(document.root, dict) else None
    if not isinstance(found, list) or not found:
        raise document.problem(("routes",), "the pipeline has no routes")
    routes = [_route(document, index, file.parent) for index in range(len(found))]
    return {route.name: route for route in routes}


def _of_a_trial(path: KeyPath) -> bool:
    """Tell whether a variable at *path* is needed."""
    return path[:1] == ("routes",) and path[2:3] in (("name",), ("namespace",), ("steps",))


def _route(document: Document, index: int, folder: Path) -> TrialRoute:
    path: KeyPath = ("routes", index)
    item = document.root["routes"][index]
    keys, problems = validate(_Keys, item, Section(document, path), {FOLDER: folder})
    steps = []
    for number, each in enumerate(keys.steps if keys else ()):
        step, found = step_config(each, document, (*path, "steps", number), folder)
        steps += [step] if step else []
        problems += found
    if keys is None or problems:
        raise InvalidPipeline(*problems)
    names = [step.name for step in steps]
    refused = None
    if SQL in names:
        place = (*path, "steps", names.index(SQL), SQL)
        refused = document.problem(place, f"route {keys.name!r}: {ON_SPARK_ONLY}")
        steps = []
    made = compile_steps(steps, folder) if steps else None
    return TrialRoute(keys.name, Delivery(Namespace(keys.namespace), "trial", made), refused)


def chosen(
    routes: Mapping[str, TrialRoute], name: str | None, file: str, line: int = 0
) -> TrialRoute:
    """Return the route *name*, or the only one; whoever asks stands at *line* of *file*."""
    found = _chosen(routes, name, file, line)
    if found.refused is not None:
        raise found.refused
    return found


def _chosen(routes: Mapping[str, TrialRoute], name: str | None, file: str, line: int) -> TrialRoute:
    if name is None and len(routes) == 1:
        return next(iter(routes.values()))
    if name is None:
        raise ConfigError(f"name one of the routes ({', '.join(routes)})", file, line)
    if name not in routes:
        raise ConfigError(
            f"there is no route {name!r}{suggestion(name, routes, 'routes')}", file, line
        )
    return routes[name]
