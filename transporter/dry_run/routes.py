"""Routes of a pipeline file for a trial: without sinks, sinks' secrets and log."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from pydantic import BaseModel, ConfigDict

from transporter.adaptor import AdaptorConfig
from transporter.dry_run.on_spark import QueryRoute, QuerySettings
from transporter.dry_run.outcome import trial_results
from transporter.errors import ConfigError
from transporter.pipeline.adaptor_registry import find_writer, takes_frames
from transporter.pipeline.config import Name, SparkConfig
from transporter.pipeline.namespace_filter import EVERYTHING, NamespaceFilter, Pattern
from transporter.pipeline.problems import InvalidPipeline, suggestion
from transporter.pipeline.route_options import PositiveDuration, WorkerMemory
from transporter.pipeline.secrets import secrets_of
from transporter.pipeline.steps.chain import compile_steps
from transporter.pipeline.steps.registry import parse_step
from transporter.pipeline.steps.sql import ON_SPARK_ONLY, SQL
from transporter.pipeline.validation_errors import Section, validate
from transporter.pipeline.yaml_document import read
from transporter.units import FOLDER
from transporter.worker.delivery import Delivery, deliver

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from transporter.adaptor import Ack, WriterContext
    from transporter.dry_run.on_spark import DryRunSpark
    from transporter.dry_run.outcome import DryRunResult
    from transporter.message import Entries, Message
    from transporter.pipeline.yaml_document import Document, KeyPath

SLOWEST_START: Final = 60.0
"""Minimum seconds of a query's timeout, whatever ``slice_timeout`` is."""


class DryRunRoute(Protocol):
    """A route without its writer. One that cannot be tried here has a ``refusal``."""

    @property
    def name(self) -> str:
        """The route's name."""

    @property
    def refusal(self) -> ConfigError | None:
        """The reason why it cannot be run."""

    def run(self, entries: pa.RecordBatch) -> list[DryRunResult]:
        """Return the outcome of each of *entries* (ENTRY_SCHEMA), in their order.

        Entries behind one that fails are tried too.
        """


@dataclass(frozen=True, slots=True)
class PlainRoute:
    """A route whose steps all run in this process."""

    name: str
    delivery: Delivery = field(repr=False)
    refusal: ConfigError | None = None

    def run(self, entries: pa.RecordBatch) -> list[DryRunResult]:
        """Return the outcome of each of *entries*; see :class:`DryRunRoute`."""
        writer, errors, rest = _MessageCollector(), {}, entries
        while rest.num_rows:
            last = rest.column("offset")[-1].as_py()
            failure = deliver(rest, last, 0, self.delivery, writer).failure
            if failure is None:
                break
            offset = last if failure.offset is None else failure.offset
            errors[offset] = failure.text
            offsets = rest.column("offset").to_pylist()
            rest = rest.slice(sum(each <= offset for each in offsets))
        return trial_results(entries, writer.messages, errors)


class _MessageCollector:
    """A writer that stores messages with their offsets in memory."""

    Config: ClassVar[type[AdaptorConfig]] = AdaptorConfig

    def __init__(self) -> None:
        self.messages: list[tuple[int, Message]] = []

    def open(self, context: WriterContext) -> None: ...

    def write(self, batch: Entries, ack: Ack) -> None:
        self.messages += [(entry.offset, entry.message) for entry in batch]
        ack.all()

    def close(self) -> None: ...


class _Keys(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    name: Name
    namespace: Pattern = EVERYTHING
    steps: list[Any] = []


class _QueryKeys(BaseModel):
    """The keys of a route that control its queries."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    slice_timeout: PositiveDuration = SLOWEST_START
    worker_memory: WorkerMemory = 1024**3


def trial_routes(
    path: Path, environ: Mapping[str, str], spark: DryRunSpark | None = None
) -> dict[str, DryRunRoute]:
    """Return the routes of the pipeline file at *path* by their names.

    It reads only filters and steps, so neither the variables with a sink's secrets nor
    its driver are needed. Routes with ``sql`` steps run on *spark*, and are refused
    without it.

    Raises:
        ConfigError: filters or steps are wrong, with file and line.

    """
    file = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow symbolic links
    document = read(path, environ, only=_is_needed_for_trial)
    found = document.root.get("routes") if isinstance(document.root, dict) else None
    if not isinstance(found, list) or not found:
        raise document.problem(("routes",), "the pipeline has no routes")
    routes = [_read_route(document, index, file, environ, spark) for index in range(len(found))]
    return {route.name: route for route in routes}


def _is_needed_for_trial(path: KeyPath) -> bool:
    """Return whether a variable at *path* is needed for a trial."""
    return path[:1] == ("routes",) and path[2:3] in (("name",), ("namespace",), ("steps",))


def _read_route(
    document: Document,
    index: int,
    file: Path,
    environ: Mapping[str, str],
    spark: DryRunSpark | None,
) -> DryRunRoute:
    path: KeyPath = ("routes", index)
    item = document.root["routes"][index]
    folder = file.parent
    keys, problems = validate(_Keys, item, Section(document, path), {FOLDER: folder})
    steps = []
    for number, each in enumerate(keys.steps if keys else ()):
        step, found = parse_step(each, document, (*path, "steps", number), folder)
        steps += [step] if step else []
        problems += found
    if keys is None or problems:
        raise InvalidPipeline(*problems)
    names = [step.name for step in steps]
    if SQL in names and spark is not None:
        settings = partial(_query_settings, file, environ, index)
        return QueryRoute(keys.name, keys.namespace, tuple(steps), folder, settings, spark)
    refused = None
    if SQL in names:
        place = (*path, "steps", names.index(SQL), SQL)
        refused = document.problem(place, f"route {keys.name!r}: {ON_SPARK_ONLY}")
        steps = []
    made = compile_steps(steps, folder) if steps else None
    return PlainRoute(keys.name, Delivery(NamespaceFilter(keys.namespace), "trial", made), refused)


def _query_settings(file: Path, environ: Mapping[str, str], index: int) -> QuerySettings:
    """Read the settings of Spark and of the route at *index*, without those of its sink."""
    path: KeyPath = ("routes", index)
    document = read(file, environ, only=partial(_is_needed_for_query, index))
    item = document.root["routes"][index]
    context = {FOLDER: file.parent}
    keys, problems = validate(_QueryKeys, item, Section(document, path), context)
    section = Section(document, ("spark",))
    spark, found = validate(SparkConfig, document.root.get("spark", {}), section, context)
    if keys is None or spark is None:
        raise InvalidPipeline(*problems, *found)
    return QuerySettings(
        spark,
        secrets_of(document, None),
        _takes_rows(document, (*path, "writer", "adaptor"), file.parent),
        # A Spark that has just started is slow.
        max(keys.slice_timeout, SLOWEST_START),
        keys.worker_memory,
    )


def _is_needed_for_query(index: int, path: KeyPath) -> bool:
    """Return whether a variable at *path* is needed for the queries of the route at *index*."""
    of_the_route = (("slice_timeout",), ("worker_memory",), ("writer", "adaptor"))
    return path[:1] == ("spark",) or (path[:2] == ("routes", index) and path[2:] in of_the_route)


def _takes_rows(document: Document, path: KeyPath, folder: Path) -> bool:
    """Return whether the writer at *path* takes rows of Spark's."""
    writer = document.root["routes"][path[1]].get("writer")
    adaptor = writer.get("adaptor") if isinstance(writer, dict) else None
    if not isinstance(adaptor, str):
        raise document.problem(path, "the route has no writer; name its adaptor")
    try:
        return takes_frames(find_writer(adaptor, folder))
    except ConfigError as error:
        raise document.problem(path, error.problem) from error


def select_route(
    routes: Mapping[str, DryRunRoute], name: str | None, file: str, line: int = 0
) -> DryRunRoute:
    """Return the route *name*, or the only one.

    Raises:
        ConfigError: there is no such route, or it cannot be tried; with *file* and *line*.

    """
    found = _find_route(routes, name, file, line)
    if found.refusal is not None:
        raise found.refusal
    return found


def _find_route(
    routes: Mapping[str, DryRunRoute], name: str | None, file: str, line: int
) -> DryRunRoute:
    if name is None and len(routes) == 1:
        return next(iter(routes.values()))
    if name is None:
        raise ConfigError(f"name one of the routes ({', '.join(routes)})", file, line)
    if name not in routes:
        raise ConfigError(
            f"there is no route {name!r}{suggestion(name, routes, 'routes')}", file, line
        )
    return routes[name]
