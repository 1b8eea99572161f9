"""Choice between the two comparisons of a route's sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.errors import ActionRefused
from transporter_adaptors.postgres_writer.comparing.sink_tables import open_sink
from transporter_adaptors.postgres_writer.comparing.with_log import compare_with_log
from transporter_adaptors.postgres_writer.comparing.with_source import (
    cdc_readers,
    compare_with_source,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.adaptor import Finding
    from transporter.comparison import ComparedRoute, CompareOptions, Result
    from transporter_adaptors.postgres_writer.config import PostgresWriterConfig


def compare_sink(
    config: PostgresWriterConfig, route: ComparedRoute, options: CompareOptions
) -> Iterator[Result | Finding]:
    """Yield the rows of the sink that are not as expected, and each table.

    Raises:
        ActionRefused: The settings or the present state do not allow it.
        RouteFault: A table is missing, has no key, or may not be read.
        SinkUnavailable: The sink cannot be reached.
        SourceError: The source cannot be reached or read.
    """
    if not config.upserts:
        raise ActionRefused(
            f"route {route.name} has mode: append, whose rows are entries and have no key of their "
            "own to compare by"
        )
    problem = _source_problem(route)
    if options.against == "source" and problem:
        raise ActionRefused(problem)
    with_source = options.against == "source" or (options.against is None and not problem)
    with open_sink(config) as sink:
        compare = compare_with_source if with_source else compare_with_log
        yield from compare(route, sink, options)


def _source_problem(route: ComparedRoute) -> str:
    """Return why the rows of the source are not those of the sink, or an empty text."""
    if route.has_steps:
        return f"route {route.name} has steps, which may change rows: compare with the log"
    if not cdc_readers(route):
        return "no reader follows a database (postgres-cdc): compare with the log"
    return ""
