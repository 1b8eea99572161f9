"""A route of a pipeline as ``transporter compare`` passes it to the writer."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from transporter.comparison import ComparableWriter, RouteProgress
from transporter.errors import ConfigError
from transporter.log.lock import owner_of
from transporter.log.logged_reader import find_logged_reader, read_last_offset
from transporter.log.reader import LogReader
from transporter.log.search import frames_with_retry
from transporter.message import Entries
from transporter.offsets.offset_log import inspect_log, read_state, route_folder
from transporter.offsets.parked import parked_offsets
from transporter.pipeline.namespace_filter import NamespaceFilter, without_noops
from transporter.pipeline.problems import suggestion
from transporter.pipeline.steps.chain import compile_steps
from transporter.pipeline.steps.sql import SQL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from transporter.change_source import LoggedReader
    from transporter.pipeline.config import Pipeline, RouteConfig
    from transporter.pipeline.steps.chain import Steps


class LoggedRoute:
    """A route with its log and readers. Implements :class:`transporter.comparison.ComparedRoute`.

    It takes no lock, and an engine may run.
    """

    def __init__(self, pipeline: Pipeline, route: RouteConfig) -> None:
        """Keep both. The log must exist.

        Raises:
            EnvironmentFault: There is no log.
            LogError: The log is damaged.
        """
        self._pipeline, self._route = pipeline, route
        self._directory = pipeline.log.dir
        self._filter = NamespaceFilter(route.namespace)
        self._found = inspect_log(self._directory)
        self.readers: Mapping[str, object] = {
            each.name: each.cls(each.config) for each in pipeline.readers
        }

    @property
    def name(self) -> str:
        """The route's name."""
        return self._route.name

    @property
    def log_id(self) -> str:
        """The permanent id of the log."""
        return self._found.log_id

    @property
    def has_steps(self) -> bool:
        """Whether steps may change the entries."""
        return bool(self._route.steps)

    @cached_property
    def is_whole(self) -> bool:
        """Whether the log has every key."""
        with LogReader(self._directory) as reader:
            first, last = reader.first_offset(), self._found.last
            if first > 0 or reader.lost_gap(first, last) is not None:
                return False
            keeps_keys = self._pipeline.log.compaction.keep == "key"
            return keeps_keys or not reader.count_dropped(first, last)

    def takes(self, namespace: str) -> bool:
        """Return whether the route delivers entries of *namespace*."""
        import pyarrow as pa  # noqa: PLC0415 - for a single text

        return bool(self._filter.mask(pa.array([namespace]))[0].as_py())

    def is_running(self) -> bool:
        """Return whether an engine runs."""
        return owner_of(self._directory) is not None

    def progress(self) -> RouteProgress:
        """Return the present progress."""
        state = read_state(self._directory, self.name)
        return RouteProgress(state.watermark, state.generation, state.replay is not None)

    def count_parked(self) -> int:
        """Return the number of parked entries."""
        from transporter.log.filesystem import RealFileSystem  # noqa: PLC0415 - for one call

        folder = route_folder(self._directory, self.name)
        return len(parked_offsets(folder, RealFileSystem()))

    def last_offset(self) -> int:
        """Return the last offset, or -1."""
        return read_last_offset(self._directory)

    def logged_reader(self, name: str) -> LoggedReader:
        """Return a reader as the log has it now."""
        return find_logged_reader(self._directory, name)

    def read(self, first: int, last: int) -> Iterator[tuple[int, Entries]]:
        """Yield the route's output for the entries from *first* to *last*, frame by frame."""
        with LogReader(self._directory) as reader:
            # A sink may be ahead of a log that was restored.
            begin, last = max(first, reader.first_offset()), min(last, self.last_offset())
            if begin > last:
                return
            for found in frames_with_retry(reader, begin, last):
                entries = self._filter.select(found.entries_within(begin, last))
                through = min(last, found.frame.last)
                for made in self._apply_steps(entries):
                    yield through, Entries(made, self.log_id)

    @cached_property
    def _steps(self) -> Steps | None:
        if any(step.name == SQL for step in self._route.steps):
            raise ConfigError(
                f"route {self.name} has a sql step, whose rows only Spark can make, so they cannot "
                "be compared"
            )
        if not self._route.steps:
            return None
        return compile_steps(self._route.steps, self._pipeline.file.parent)

    def _apply_steps(self, entries: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the output of the steps, without that of entries that fail."""
        if self._steps is None:
            yield entries
            return
        while True:
            made, failed = self._steps.apply_before_failure(entries)
            yield without_noops(made)
            if failed is None:
                return
            offsets = entries.column("offset").to_pylist()
            entries = entries.slice(sum(each <= failed.offset for each in offsets))


def find_compared(pipeline: Pipeline, name: str) -> tuple[RouteConfig, ComparableWriter]:
    """Return the route *name* of *pipeline*, and its writer.

    Raises:
        ConfigError: There is no such route, or its sink cannot be compared.
    """
    routes = {route.name: route for route in pipeline.routes}
    route = routes.get(name)
    if route is None:
        hint = suggestion(name, routes, "routes")
        raise ConfigError(f"there is no route {name!r}{hint}", str(pipeline.file))
    made: Any = route.writer.cls(route.writer.config)
    if not isinstance(made, ComparableWriter):
        raise ConfigError(
            f"route {name} has the writer {route.writer.adaptor}, whose sink cannot be compared; "
            "a postgres writer's can",
            str(pipeline.file),
        )
    return route, made
