"""The Spark host: holds the SparkContext and submits one job for each worker.

A child of the engine, ``python -m transporter.spark.host``. It ends when the
engine does, and when its JVM does: neither leaves anything of it running.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Client
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from transporter.engine.protocol import (
    HostHello,
    HostReady,
    StartWorker,
    StopHost,
    WorkerEnded,
    WorkerSpec,
)
from transporter.pipeline.secrets import tells
from transporter.spark.pump import has_ended, pump

if TYPE_CHECKING:
    import subprocess
    from multiprocessing.connection import Connection

    from pyspark.sql import SparkSession

SLOTS: Final = 128
"""Task slots of a local master. Each worker holds one for as long as it lives; one is a thread."""
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",  # the least that Spark accepts; no data passes through the JVM
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # the JVM only schedules
}
_ALWAYS: Final = {
    "spark.app.name": "transporter",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.speculation": "false",  # a second copy of a worker would deliver twice
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "transporter.spark.daemon",
}
_SQL: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 is read as no instant
    "spark.sql.ui.retainedExecutions": "10",  # one a slice, and nobody looks at them
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
    "spark.task.maxFailures": "1",  # the engine decides what is delivered again
}
_SQL_LOCAL: Final = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "",  # what Spark itself compiles is worth optimising
}


def configuration(
    master: str, config: dict[str, str], scratch: str, *, frames: bool = False
) -> dict[str, str]:
    """Return Spark's settings for *master*; *config* is the user's and wins.

    With *frames* data passes through the JVM: some route's slices are DataFrames.
    """
    local = master == "local"
    cores = str(os.cpu_count() or 1)
    parallelism = {"spark.default.parallelism": cores} if local else {}
    if local and frames:
        parallelism["spark.sql.shuffle.partitions"] = cores
    return {
        **_ALWAYS,
        **(_LOCAL if local else {}),
        **(_SQL if frames else {}),
        **(_SQL_LOCAL if local and frames else {}),
        **parallelism,
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.master": f"local[{SLOTS}]" if local else master,
        "spark.local.dir": scratch,
        **config,
    }


def _on_the_command_line(settings: dict[str, str]) -> SparkConf:
    """Return what the JVM is started with: everybody here can read that (Invariant 20).

    Secrets are set when the context is made, which is early enough for all of them.
    """
    shown = [(name, value) for name, value in settings.items() if not tells(name, value)]
    return SparkConf(loadDefaults=False).setAll(shown)


class Host:
    """One SparkContext and the jobs that run in it."""

    def __init__(self, connection: Connection, settings: dict[str, str], scratch: Path) -> None:
        """Start the JVM and Spark, whose files go into *scratch*."""
        self._connection, self._scratch = connection, scratch
        self._sending = threading.Lock()
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        # The JVM in a session of its own: a signal to our group must not kill it mid-slice.
        gateway = launch_gateway(_on_the_command_line(settings), {"start_new_session": True})
        threading.Thread(target=_die_with, args=(gateway.proc,), name="jvm", daemon=True).start()
        self._context = SparkContext(conf=conf, gateway=gateway)
        self._session: SparkSession | None = None
        self._opening = threading.Lock()

    def serve(self) -> None:
        """Start workers as asked, until told to stop. EOFError: the engine is gone."""
        self._say(HostReady(self._context.version, self._context.master))
        while not isinstance(asked := self._connection.recv(), StopHost):
            if isinstance(asked, StartWorker):
                threading.Thread(
                    target=self._run, args=(asked.spec,), name=asked.spec.route, daemon=True
                ).start()

    def stop(self) -> None:
        """Stop Spark in order."""
        self._context.stop()

    def _run(self, spec: WorkerSpec) -> None:
        problem, gone = "", True
        try:
            if spec.on_frames:
                from transporter.spark.frames import serve  # noqa: PLC0415 - takes a second

                serve(spec, self._new_session(), self._scratch)
            else:
                # The spec travels in the closure, never in Spark's configuration (Invariant 20).
                self._context.parallelize([0], 1).mapPartitions(partial(pump, spec)).count()
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine must hear of it
            problem, gone = _last_line(str(error)), has_ended(str(error))
        self._say(WorkerEnded(spec.route, spec.shard, problem, spec.attempt, gone))

    def _new_session(self) -> SparkSession:
        """Return a session of one route's own; the first one takes a second."""
        from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

        with self._opening:
            if self._session is None:
                self._session = SparkSession(self._context)
            return self._session.newSession()

    def _say(self, message: object) -> None:
        # A connection that is gone ends serve(); nobody is left to be told.
        with self._sending, suppress(OSError):
            self._connection.send(message)


def _die_with(jvm: subprocess.Popen[bytes]) -> None:
    """End this process when the JVM has ended: the engine then starts a new host."""
    jvm.wait()
    os._exit(1)


def _last_line(text: str) -> str:
    """Return the line of a Spark error that names the Python error, or its first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if "Error: " in line and not line.startswith("at ")]
    return (python or lines or ["the worker has died"])[-1 if python else 0]


def main() -> None:
    """Read the options from standard input, and serve."""
    options: dict[str, Any] = json.loads(sys.stdin.readline())
    connection = Client(options["address"], authkey=bytes.fromhex(options["authkey"]))
    connection.send(HostHello(os.getpid()))
    frames = options["frames"]
    settings = configuration(
        options["master"], options["config"], options["scratch"], frames=frames
    )
    host = Host(connection, settings, Path(options["scratch"]))
    try:
        host.serve()
    except (EOFError, OSError):
        # The engine is gone. Without us the JVM ends too, and with it every worker.
        os._exit(1)
    host.stop()
    os._exit(0)


if __name__ == "__main__":
    main()
