"""A Spark for a benchmark, and the workers that it starts."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transporter.engine.workers.spark_supervisor import SparkSupervisor
from transporter.protocol.messages import Opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from benchmarks.setting import Setting
    from transporter.errors import HostFailed
    from transporter.protocol.messages import WorkerSpec
    from transporter.protocol.network import Network
    from transporter.spark.launch import SparkLauncher


class BenchmarkSpark:
    """Starts workers in a real Spark. A Spark that does not come up fails the benchmark."""

    def __init__(self, launcher: SparkLauncher, network: Network | None) -> None:
        self._launcher = launcher
        self._failures: list[HostFailed] = []
        self.supervisor = SparkSupervisor(launcher, _ignore, self._fail, network)

    def _fail(self, failure: HostFailed) -> None:
        self._failures.append(failure)
        self.supervisor.wake()

    @contextmanager
    def run_worker(self, spec: WorkerSpec) -> Iterator[Connection[Any, Any]]:
        """Yield the line to a new worker for *spec*, whose writer is open."""
        line: Any = self.supervisor.connect(spec, lambda: bool(self._failures))
        if line is None:
            raise RuntimeError(f"no Spark; see {self._launcher.log}") from self._failures[0]
        with line:
            if not isinstance(answer := line.recv(), Opened):
                raise RuntimeError(f"no writer ({answer}); see {self._launcher.log}")  # noqa: TRY004 - it is what went wrong
            yield line


@contextmanager
def run_spark(
    setting: Setting, launcher: SparkLauncher, network: Network | None = None
) -> Iterator[BenchmarkSpark]:
    """Yield a Spark that *launcher* starts, and stop it at the end."""
    setting.report("starting Spark")
    spark = BenchmarkSpark(launcher, network)
    spark.supervisor.start()
    try:
        yield spark
    finally:
        spark.supervisor.stop()


def _ignore(event: str, **details: object) -> None:
    """Ignore an event."""
