"""Routes with ``sql`` steps, tried on a Spark of one's own.

Such a route is served as an engine has it served: by the same host, with the same plan, tasks and
search for an entry that fails. Only its log holds nothing but the entries that are tried, and its
writer keeps what it is given.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Protocol

from transporter.engine.carrier import Carrier
from transporter.engine.protocol import FailureKind, OpenFailed, Outcome, Slice, WorkerSpec
from transporter.engine.talk import Talk
from transporter.errors import EnvironmentFault, HostFailed
from transporter.offsets.offset_log import route_folder
from transporter.trial.collecting import MESSAGES, ROWS, collected
from transporter.trial.log_copy import write_log
from transporter.trial.tried import tried

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from transporter.engine.carrier import Launch
    from transporter.engine.line import Line
    from transporter.pipeline.config import SparkConfig
    from transporter.pipeline.secrets import Secrets
    from transporter.pipeline.steps.step import StepConfig
    from transporter.trial.tried import Tried

_LOG_ID: Final = "0" * 32
_OF_ONE_ENTRY: Final = (FailureKind.REJECTED, FailureKind.POISON)


class PrepareLaunch(Protocol):
    """Returns what starts a Spark host whose files go into *folder*.

    Raises:
        EnvironmentFault: Spark cannot be started here.

    """

    def __call__(self, folder: Path, spark: SparkConfig, secrets: Secrets) -> Launch:
        """See above."""


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """What a pipeline file says of Spark, and of a route besides its filter and its steps."""

    spark: SparkConfig = field(repr=False)
    secrets: Secrets = field(repr=False)
    takes_rows: bool
    """Whether the route's sink takes rows of Spark's, and not messages."""
    slice_timeout: float
    memory: int | None


@dataclass(frozen=True, slots=True)
class QueryRoute:
    """A route with ``sql`` steps, without its writer. Runs on *spark*."""

    name: str
    namespace: str
    steps: tuple[StepConfig, ...] = field(repr=False)
    folder: Path
    settings: Callable[[], QuerySettings] = field(repr=False)
    """Reads them, which needs more variables than the steps do."""
    spark: TrialSpark = field(repr=False)
    refused: None = None

    def run(self, entries: pa.RecordBatch) -> list[Tried]:
        """Return the outcome of each of *entries* (ENTRY_SCHEMA), in their order; one slice.

        Raises:
            ConfigError: the settings of Spark or of the route are wrong.
            EnvironmentFault: Spark cannot be started, or has ended.

        """
        if not entries.num_rows:
            return []
        settings = self.settings()
        running = self.spark.running(settings)
        prefix = str(running.folder / "trial-")
        with TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
            folder = Path(name)
            spec = self._spec(settings, folder, self.spark.next_attempt())
            write_log(folder, entries)
            route_folder(folder, self.name).mkdir(parents=True)
            output = Path(spec.settings["folder"])
            output.mkdir()
            errors = running.deliver(spec, entries.column("offset").to_pylist())
            return tried(entries, collected(output), errors)

    def _spec(self, settings: QuerySettings, folder: Path, attempt: int) -> WorkerSpec:
        return WorkerSpec(
            route=self.name,
            shard=0,
            shards=1,
            epoch=1,
            generation=0,
            log_directory=str(folder),
            log_id=_LOG_ID,
            namespace=self.namespace,
            steps=self.steps,
            writer=ROWS if settings.takes_rows else MESSAGES,
            settings={"folder": str(folder / "output")},
            secrets=settings.secrets,
            folder=str(self.folder),
            slice_timeout=settings.slice_timeout,
            memory=settings.memory,
            attempt=attempt,
            on_frames=True,
        )


class TrialSpark:
    """The Spark of one command: started when a route first needs it, and kept until the end.

    Another one takes its place for a pipeline with other settings of Spark. Belongs to one thread.
    """

    def __init__(self, prepare: PrepareLaunch, starting: Callable[[], None]) -> None:
        """Start hosts by what *prepare* returns; *starting* is called before each start."""
        self._prepare, self._starting = prepare, starting
        self._running: RunningSpark | None = None
        self._attempts = 0

    def running(self, settings: QuerySettings) -> RunningSpark:
        """Return a Spark with these *settings*, which may not be up yet."""
        if self._running is None or self._running.config != settings.spark:
            self.close()
            self._running = RunningSpark(self._prepare, self._starting, settings)
        return self._running

    def next_attempt(self) -> int:
        """Return a number that no worker has had."""
        self._attempts += 1
        return self._attempts

    def close(self) -> None:
        """End Spark; nothing of it is running or on the disk afterwards."""
        if self._running is not None:
            self._running.close()
            self._running = None


class RunningSpark:
    """A Spark host with its files in ``folder``, or the reason why there is none."""

    def __init__(
        self, prepare: PrepareLaunch, starting: Callable[[], None], settings: QuerySettings
    ) -> None:
        """Begin to start it; returns at once."""
        self.config = settings.spark
        self._secrets = settings.secrets
        self._failure: EnvironmentFault | None = None
        self._carrier: Carrier | None = None
        with ExitStack() as stack:
            name = TemporaryDirectory(prefix="transporter-", ignore_cleanup_errors=True)
            self.folder = Path(stack.enter_context(name))
            try:
                launch = prepare(self.folder, settings.spark, settings.secrets)
            except EnvironmentFault as error:
                self._failure = error
            else:
                starting()
                self._carrier = Carrier(launch, _observe, self._on_failure)
                stack.callback(self._carrier.stop)
                self._carrier.start()
            self._open = stack.pop_all()

    def close(self) -> None:
        """End it, and remove its files."""
        self._open.close()

    def deliver(self, spec: WorkerSpec, offsets: list[int]) -> dict[int, str]:
        """Have the entries at *offsets* delivered by a worker for *spec*; return what failed, why.

        Raises:
            EnvironmentFault: Spark cannot be started, or has ended.

        """
        try:
            with self._connected(spec) as line:
                errors = delivered_by(line, offsets)
        except (EOFError, ConnectionError) as error:
            raise HostFailed(f"route {spec.route}: {self._why_ended(spec)}") from error
        return errors

    def _connected(self, spec: WorkerSpec) -> Line:
        found: Line | None = None
        if self._carrier is not None and self._failure is None:
            found = self._carrier.connect(spec, lambda: self._failure is not None)
        if found is None:
            raise self._failure or HostFailed("Spark was stopped")
        return found

    def _on_failure(self, failure: HostFailed) -> None:
        self._failure = HostFailed(self._secrets.hide(str(failure)))
        if self._carrier is not None:
            self._carrier.wake()

    def _why_ended(self, spec: WorkerSpec) -> str:
        assert self._carrier is not None  # noqa: S101 - there was a worker
        cause = self._carrier.take_problem(spec.route) or "it has not reported why"
        return f"Spark ended while it ran the queries: {self._secrets.hide(cause)}"


def delivered_by(line: Line, offsets: list[int]) -> dict[int, str]:
    """Deliver slice after slice as a route does; behind an entry that fails it goes on.

    What fails the route as a whole, such as a query that cannot work, fails all that is left.
    """
    talk = Talk(threading.Event())
    opened = talk.answer(line)
    if isinstance(opened, OpenFailed):
        return dict.fromkeys(offsets, opened.failure.text)
    errors: dict[int, str] = {}
    left = [offsets]
    while left:
        part = left.pop(0)
        outcome = talk.ask(line, Slice(part[0], part[-1], 0, single=len(part) == 1))
        assert isinstance(outcome, Outcome)  # noqa: S101 - a worker answers slices with one
        failure = outcome.failure
        if failure is None:
            continue
        rest = [offset for offset in part if offset > outcome.through]
        if failure.kind not in _OF_ONE_ENTRY or failure.offset not in rest:
            for each in (rest, *left):
                errors |= dict.fromkeys(each, failure.text)
            break
        if len(part) == 1:
            errors[failure.offset] = failure.text
            continue
        at = rest.index(failure.offset)
        left[:0] = [each for each in (rest[:at], rest[at : at + 1], rest[at + 1 :]) if each]
    return errors


def _observe(*_: object, **__: object) -> None:
    """Report no events: there is no operator."""
