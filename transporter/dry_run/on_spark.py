"""Trial of routes with ``sql`` steps on a separate Spark, from a copy of the entries.

A trial runs as in an engine: with the same host, plan, tasks and search for an entry
that fails. Only its log and its writer differ: the log holds the trial's entries alone,
and the writer stores its input. Workers read that log like any log, so the original
stays untouched.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Protocol

from crc32c import crc32c

from transporter.dry_run.collecting_writer import MESSAGES, ROWS, read_outputs
from transporter.dry_run.outcome import trial_results
from transporter.engine.workers.spark_supervisor import SparkSupervisor
from transporter.engine.workers.worker_connection import WorkerSession
from transporter.errors import EnvironmentFault, HostFailed
from transporter.log import format as layout
from transporter.log.filesystem import RealFileSystem
from transporter.log.segment import write_segment
from transporter.message import batch_bytes, microseconds
from transporter.offsets.offset_log import route_folder
from transporter.protocol.messages import FailureKind, OpenFailed, Outcome, Slice, WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from transporter.dry_run.outcome import DryRunResult
    from transporter.engine.workers.spark_supervisor import Launch
    from transporter.engine.workers.worker_connection import WorkerConnection
    from transporter.pipeline.config import SparkConfig
    from transporter.pipeline.secrets import Secrets
    from transporter.pipeline.steps.step import StepConfig

_FRAME_BYTES: Final = 1 << 20
"""Bytes of entries above which a frame is divided."""
_SEGMENT_ID: Final = 1
_LOG_ID: Final = bytes(16)
_EPOCH: Final = 1
_OF_ONE_ENTRY: Final = (FailureKind.REJECTED, FailureKind.POISON)


class PrepareLaunch(Protocol):
    """Function that returns the launch of a Spark host whose files go into *folder*.

    Raises:
        EnvironmentFault: Spark cannot be started here.

    """

    def __call__(self, folder: Path, spark: SparkConfig, secrets: Secrets) -> Launch:
        """Return the launch."""


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Settings of Spark, and of a route without its filter and its steps."""

    spark: SparkConfig = field(repr=False)
    secrets: Secrets = field(repr=False)
    takes_rows: bool
    """Whether the route's sink takes rows of Spark's instead of messages."""
    slice_timeout: float
    memory: int | None


@dataclass(frozen=True, slots=True)
class QueryRoute:
    """A route with ``sql`` steps and without its writer, which runs on *spark*."""

    name: str
    namespace: str
    steps: tuple[StepConfig, ...] = field(repr=False)
    folder: Path
    settings: Callable[[], QuerySettings] = field(repr=False)
    """Reads the settings, which needs more variables than the steps do."""
    spark: DryRunSpark = field(repr=False)
    refusal: None = None

    def run(self, entries: pa.RecordBatch) -> list[DryRunResult]:
        """Return the outcome of each of *entries* (ENTRY_SCHEMA, one slice), in their order.

        Raises:
            ConfigError: the settings of Spark or of the route are wrong.
            EnvironmentFault: Spark cannot be started, or has ended.

        """
        if not entries.num_rows:
            return []
        settings = self.settings()
        running = self.spark.host_for(settings)
        prefix = str(running.folder / "trial-")
        with TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
            folder = Path(name)
            spec = self._worker_spec(settings, folder, self.spark.next_attempt())
            write_log_copy(folder, entries)
            route_folder(folder, self.name).mkdir(parents=True)
            output = Path(spec.settings["folder"])
            output.mkdir()
            errors = running.deliver(spec, entries.column("offset").to_pylist())
            return trial_results(entries, read_outputs(output), errors)

    def _worker_spec(self, settings: QuerySettings, folder: Path, attempt: int) -> WorkerSpec:
        return WorkerSpec(
            route=self.name,
            shard=0,
            shards=1,
            epoch=_EPOCH,
            generation=0,
            log_directory=str(folder),
            log_id=_LOG_ID.hex(),
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


def write_log_copy(directory: Path, entries: pa.RecordBatch) -> None:
    """Write *entries* as the log in *directory*, with their offsets and log times.

    They are of ENTRY_SCHEMA, at least one, with ascending offsets.
    """
    base = entries.column("offset")[0].as_py()
    created = microseconds(entries.column("logged_at").slice(0, 1))[0]
    header = layout.SegmentHeader(_LOG_ID, _SEGMENT_ID, base, -1, base, _EPOCH, created)
    frames = _encode_frames(entries, base, len(header.encode()))
    write_segment(RealFileSystem(), directory, header, frames)


def _encode_frames(entries: pa.RecordBatch, first: int, byte: int) -> Iterator[bytes]:
    """Yield frames that cover all offsets from *first* on. The first one begins at *byte*."""
    extension = layout.Source("").encode()
    for part in _split_entries(entries):
        payload = layout.encode_payload(part, None)
        last = part.column("offset")[-1].as_py()
        header = layout.FrameHeader(
            extension_length=len(extension),
            payload_length=len(payload),
            entries_bytes=part.nbytes,
            segment_id=_SEGMENT_ID,
            byte=byte,
            first=first,
            last=last,
            count=part.num_rows,
            extension_crc=crc32c(extension),
            logged_at=microseconds(part.column("logged_at").slice(part.num_rows - 1))[0],
            epoch=_EPOCH,
            durable=-1,
            payload_crc=crc32c(payload),
        )
        yield layout.encode_frame(header, extension, payload)
        first, byte = last + 1, header.end


def _split_entries(entries: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if entries.num_rows == 1 or batch_bytes(entries) <= _FRAME_BYTES:
        yield entries
        return
    half = entries.num_rows // 2
    yield from _split_entries(entries.slice(0, half))
    yield from _split_entries(entries.slice(half))


class DryRunSpark:
    """Spark of one command, which starts on first use and runs until the end.

    A pipeline with other settings of Spark replaces it. Belongs to one thread.
    """

    def __init__(self, prepare: PrepareLaunch, on_start: Callable[[], None]) -> None:
        """Start hosts by the launch from *prepare*. *on_start* is called before each start."""
        self._prepare, self._on_start = prepare, on_start
        self._running: RunningSpark | None = None
        self._attempts = 0

    def host_for(self, settings: QuerySettings) -> RunningSpark:
        """Return a Spark with these *settings*, which may still be starting."""
        if self._running is None or self._running.config != settings.spark:
            self.close()
            self._running = RunningSpark(self._prepare, self._on_start, settings)
        return self._running

    def next_attempt(self) -> int:
        """Return an attempt number that no worker has used."""
        self._attempts += 1
        return self._attempts

    def close(self) -> None:
        """End Spark and remove its files."""
        if self._running is not None:
            self._running.close()
            self._running = None


class RunningSpark:
    """A Spark host with its files in ``folder``, or the reason why it cannot start."""

    def __init__(
        self, prepare: PrepareLaunch, on_start: Callable[[], None], settings: QuerySettings
    ) -> None:
        """Begin the start and return at once."""
        self.config = settings.spark
        self._secrets = settings.secrets
        self._failure: EnvironmentFault | None = None
        self._supervisor: SparkSupervisor | None = None
        with ExitStack() as stack:
            name = TemporaryDirectory(prefix="transporter-", ignore_cleanup_errors=True)
            self.folder = Path(stack.enter_context(name))
            try:
                launch = prepare(self.folder, settings.spark, settings.secrets)
            except EnvironmentFault as error:
                self._failure = error
            else:
                on_start()
                self._supervisor = SparkSupervisor(launch, _observe, self._on_failure)
                stack.callback(self._supervisor.stop)
                self._supervisor.start()
            self._open = stack.pop_all()

    def close(self) -> None:
        """End the host and remove its files."""
        self._open.close()

    def deliver(self, spec: WorkerSpec, offsets: list[int]) -> dict[int, str]:
        """Deliver the entries at *offsets* by a worker for *spec*. Return errors by offset.

        Raises:
            EnvironmentFault: Spark cannot be started, or has ended.

        """
        try:
            with self._connect(spec) as line:
                errors = deliver_entries(line, offsets)
        except (EOFError, ConnectionError) as error:
            raise HostFailed(f"route {spec.route}: {self._end_reason(spec)}") from error
        return errors

    def _connect(self, spec: WorkerSpec) -> WorkerConnection:
        found: WorkerConnection | None = None
        if self._supervisor is not None and self._failure is None:
            found = self._supervisor.connect(spec, lambda: self._failure is not None)
        if found is None:
            raise self._failure or HostFailed("Spark was stopped")
        return found

    def _on_failure(self, failure: HostFailed) -> None:
        self._failure = HostFailed(self._secrets.hide(str(failure)))
        if self._supervisor is not None:
            self._supervisor.wake()

    def _end_reason(self, spec: WorkerSpec) -> str:
        assert self._supervisor is not None  # noqa: S101 - there was a worker
        cause = self._supervisor.take_problem(spec.route) or "it reported no cause"
        return f"Spark ended while it ran the queries: {self._secrets.hide(cause)}"


def deliver_entries(line: WorkerConnection, offsets: list[int]) -> dict[int, str]:
    """Deliver slice after slice as a route does, and continue behind an entry that fails.

    A failure of the whole route, such as an invalid query, fails all remaining entries.

    Returns:
        The errors by offset.

    """
    talk = WorkerSession(threading.Event())
    opened = talk.receive_answer(line)
    if isinstance(opened, OpenFailed):
        return dict.fromkeys(offsets, opened.failure.text)
    errors: dict[int, str] = {}
    left = [offsets]
    while left:
        part = left.pop(0)
        outcome = talk.request(line, Slice(part[0], part[-1], 0, single=len(part) == 1))
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
