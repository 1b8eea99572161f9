"""The Spark host: holds the SparkContext and submits one job for each worker.

A child of the engine, ``python -m transporter.spark.host``. It ends when the engine ends, when
its JVM ends or hangs, and when Spark has stopped in it. No part of it is left running, and the
engine starts another one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext

from transporter.errors import HostFailed
from transporter.protocol.messages import (
    HostEnding,
    HostHello,
    HostReady,
    Invitation,
    StartWorker,
    StopHost,
    Ticket,
    WorkerEnded,
)
from transporter.protocol.network import connect_engine
from transporter.spark import class_archive
from transporter.spark.jvm import start_jvm
from transporter.spark.launch import LOOPBACK
from transporter.spark.log_file import last_error, rotate
from transporter.spark.spark_user import name_login_user
from transporter.spark.worker_task import has_ended, pump

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from transporter.protocol.channel import WorkerChannel

TICK: Final = 1.0
"""Seconds between two checks of Spark, and of the length of its log."""
_HUNG: Final = 60
"""Consecutive unanswered checks after which the JVM counts as hung."""
_LONGEST_FOLDER: Final = 104 - len("/.00000000-0000-0000-0000-000000000000.sock")
"""Maximum length in bytes of the name of a folder for sockets. Spark refuses longer ones."""
_PARTING: Final = 4.0
"""Seconds for Spark to stop in order, and then for its JVM to end."""
SLOTS: Final = 128
"""Task slots of a local master. Each is a thread, and a worker holds one while it lives."""
_LOCAL: Final = {
    **LOOPBACK,
    "spark.driver.memory": "1g",  # used where data passes through the JVM, as after a reload
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # the JVM only schedules
}
_ALWAYS: Final = {
    "spark.app.name": "transporter",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.speculation": "false",  # a second copy of a worker would deliver twice
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "transporter.spark.python_daemon",
}
_SQL: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 is read as no instant
    "spark.sql.ui.retainedExecutions": "10",  # one per slice, never viewed
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
    "spark.task.maxFailures": "1",  # the engine decides about redelivery
}
_SQL_LOCAL: Final = {
    "spark.driver.extraJavaOptions": "",  # code that Spark compiles is worth optimising
}


def configuration(
    master: str, config: dict[str, str], scratch: str, sockets: str, *, frames: bool = False
) -> dict[str, str]:
    """Return Spark's settings for *master*. The user's *config* takes precedence.

    A process that reaches a socket in the folder *sockets* can run code in a worker.
    With *frames* data passes through the JVM, because some route's slices are DataFrames.
    Without it, a reload may add the first such route, which is slower but gives the same result.
    """
    local = master == "local"
    cores = str(os.cpu_count() or 1)
    parallelism = {"spark.default.parallelism": cores} if local else {}
    if local and frames:
        parallelism["spark.sql.shuffle.partitions"] = cores
    # Elsewhere executors are on other machines, in folders of their own.
    private = {"spark.python.unix.domain.socket.dir": sockets} if local else {}
    return {
        **_ALWAYS,
        **(_LOCAL if local else {}),
        **_SQL,
        **(_SQL_LOCAL if local and frames else {}),
        **parallelism,
        **private,
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.master": f"local[{SLOTS}]" if local else master,
        "spark.local.dir": scratch,
        **config,
    }


class Host:
    """One SparkContext and the jobs that run in it."""

    def __init__(
        self, connection: WorkerChannel, settings: dict[str, str], scratch: Path, log: Path
    ) -> None:
        """Start the JVM and Spark, with files in *scratch* and output to *log*."""
        self._connection, self._scratch, self._log = connection, scratch, log
        self._send_lock = threading.Lock()
        self._stopping = False
        self._problem, self._unanswered = "", 0
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        gateway = start_jvm(settings, scratch)
        self._jvm: subprocess.Popen[bytes] = gateway.proc
        threading.Thread(target=self._await_jvm, name="jvm", daemon=True).start()
        name_login_user(gateway.jvm)
        self._context = SparkContext(conf=conf, gateway=gateway)
        self._scala: Any = self._context._jsc.sc()  # noqa: SLF001 - Python's has no isStopped()
        self._session: SparkSession | None = None
        self._session_lock = threading.Lock()

    def serve(self) -> None:
        """Start workers on request, until the request to stop. EOFError: the engine is gone."""
        self._send(HostReady(self._context.version, self._context.master))
        threading.Thread(target=self._watch_spark, name="watch", daemon=True).start()
        due = time.monotonic() + TICK
        while True:
            if self._connection.poll(max(0.0, due - time.monotonic())):
                asked = self._connection.recv()
                if isinstance(asked, StopHost):
                    return
                if isinstance(asked, StartWorker):
                    self._start(asked.invitation)
            if time.monotonic() >= due:
                due = time.monotonic() + TICK
                self._check()

    def stop(self) -> None:
        """Stop Spark in order, or by force when it takes too long. Afterwards its JVM has ended."""
        self._stopping = True
        stopping = threading.Thread(target=self._context.stop, name="stop", daemon=True)
        stopping.start()
        stopping.join(_PARTING)
        if self._jvm.stdin is not None:
            self._jvm.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._jvm.wait(_PARTING if not stopping.is_alive() else 0)
        self._jvm.kill()

    def _start(self, invitation: Invitation) -> None:
        thread = threading.Thread(
            target=self._run, args=(invitation,), name=invitation.route, daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            self._send(
                WorkerEnded(invitation.route, invitation.shard, str(error), invitation.attempt)
            )

    def _run(self, invitation: Invitation) -> None:
        problem, gone = "", True
        try:
            if invitation.on_frames:
                from transporter.spark.dataframe_route import serve  # noqa: PLC0415 - takes a second

                serve(invitation, self._new_session(), self._scratch, self.end)
            else:
                # Counted in the JVM, so no executor's result is unpickled here.
                job = self._context.parallelize([0], 1).mapPartitions(partial(pump, invitation))
                job._jrdd.count()  # noqa: SLF001 - as above
        except Exception as error:  # noqa: BLE001 - every failure is reported to the engine
            problem, gone = _last_line(str(error)), has_ended(str(error))
        except BaseException as error:  # noqa: BLE001 - a writer's own may end a driver's thread
            problem = f"{type(error).__name__}: {error}"
        if problem:
            self._problem = problem
            self._end_if_stopped()
        self._send(
            WorkerEnded(invitation.route, invitation.shard, problem, invitation.attempt, gone)
        )

    def _new_session(self) -> SparkSession:
        """Return a session for one route. The first one takes a second."""
        from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

        with self._session_lock:
            if self._session is None:
                self._session = SparkSession(self._context)
            return self._session.newSession()

    def _send(self, message: object) -> None:
        # A connection that is gone ends serve(), and no receiver is left.
        with self._send_lock, suppress(OSError):
            self._connection.send(message)

    def _check(self) -> None:
        """Keep Spark's log short, and end when the JVM hangs."""
        rotate(self._log)
        # Counted and not timed, because the JVM cannot answer while the machine sleeps.
        self._unanswered += 1
        if self._unanswered > _HUNG:
            self.end(f"Spark's JVM has not answered for {_HUNG * TICK:.0f} s")

    def _watch_spark(self) -> None:
        # If the JVM is gone, no answer comes, and _await_jvm() ends this process.
        with suppress(Py4JError, OSError):
            while True:
                self._end_if_stopped()
                self._unanswered = 0
                time.sleep(TICK)

    def _end_if_stopped(self) -> None:
        """End if Spark has stopped by itself, as when its master has removed the application."""
        with suppress(Py4JError, OSError):
            if self._scala.isStopped():
                # Jobs fail because Spark has stopped. Only its log has the certain reason.
                cause = last_error(self._log) or self._problem or "see spark.log for the reason"
                self.end(f"Spark has stopped: {cause}")

    def _await_jvm(self) -> None:
        code = self._jvm.wait()
        self.end(f"Spark's JVM has ended with code {code}")

    def end(self, problem: str) -> None:
        """Report *problem*, and end this process and its JVM at once, unless it is stopping."""
        if self._stopping:
            return
        self._send(HostEnding(problem))
        self._jvm.kill()
        os._exit(1)


def _last_line(text: str) -> str:
    """Return the line of a Spark error that names the Python error, or its first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if "Error: " in line and not line.startswith("at ")]
    return (python or lines or ["the worker has died"])[-1 if python else 0]


def main() -> None:
    """Read the options from standard input, and serve."""
    options: dict[str, Any] = json.loads(sys.stdin.readline())
    key = bytes.fromhex(options["key"])
    connection = connect_engine(Ticket(options["address"], HostHello.claim, key))
    connection.send(HostHello(os.getpid()))
    frames = options["frames"]
    with socket_folder(options["scratch"]) as sockets:
        settings = configuration(
            options["master"], options["config"], options["scratch"], sockets, frames=frames
        )
        try:
            host = Host(connection, settings, Path(options["scratch"]), Path(options["log"]))
        except Exception as error:
            if isinstance(error, HostFailed):
                class_archive.discard(Path(options["archive"]))
            connection.send(HostEnding(_last_line(str(error))))
            raise
        class_archive.write_later(Path(options["archive"]))
        try:
            host.serve()
        except (EOFError, OSError):
            # Every worker ends with the JVM.
            host.end("the engine is gone")
        host.stop()
    os._exit(0)


@contextmanager
def socket_folder(scratch: str) -> Iterator[str]:
    """Yield a folder private to this user: *scratch*, or one with a shorter name for sockets."""
    if len(os.fsencode(scratch)) <= _LONGEST_FOLDER:
        yield scratch
        return
    with TemporaryDirectory(prefix="transporter-", ignore_cleanup_errors=True) as folder:
        yield folder


if __name__ == "__main__":
    main()
