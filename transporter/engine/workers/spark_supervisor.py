"""The supervisor of the Spark host: keeps one running, and requests workers for routes."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from transporter.engine.backoff import Backoff
from transporter.engine.workers.listener import Listener
from transporter.engine.workers.shard_admission import Admission
from transporter.engine.workers.worker_connection import WorkerConnection
from transporter.engine.workers.worker_spec import create_invitation
from transporter.errors import HostFailed
from transporter.protocol.messages import (
    Begin,
    Hello,
    HostEnding,
    HostHello,
    HostReady,
    StartWorker,
    StopHost,
    TaskHello,
    Ticket,
    WorkerEnded,
    WorkerSpec,
)
from transporter.protocol.network import place_of
from transporter.worker.user_modules import make_portable, pack_modules

if TYPE_CHECKING:
    from collections.abc import Callable

    from transporter.engine.events import Observer
    from transporter.protocol.channel import EngineChannel
    from transporter.protocol.network import Network

HOST_START: Final = 90.0
"""Seconds a Spark host may take until Spark is up."""
WORKER_START: Final = 60.0
"""Seconds a worker may take to call back once Spark is up."""
_GRACE: Final = 10.0
_END_REPORT: Final = 1.0
"""Seconds to find out whether a worker died alone."""
_CLUSTER_END_REPORT: Final = 8.0
"""The same on a cluster: a standalone one waits 5 s before it reports an executor as lost."""
_LAST_REPORTS: Final = 5.0
"""Seconds in which a cluster reports the end of the last tasks."""
_CLOSING: Final = 2.0
"""Seconds that local workers have to close their writers before Spark is stopped."""
_STEADY: Final = 10.0
"""Seconds for which Spark must have been up before the next start is tried without delay."""
_Key = tuple[str, int]


class Launch(Protocol):
    """Starts a Spark host that calls by its ticket."""

    def __call__(self, ticket: Ticket) -> subprocess.Popen[bytes]:
        """Return the process, which must be in a session of its own."""


class SparkSupervisor:
    """Owns the listener and the Spark host process. Thread-safe.

    If the host dies it is restarted, and every shard without a worker gets one. A host that
    never comes up is reported through *on_failure*. With a *network* workers may be on other
    hosts, and begin when they are admitted.
    """

    def __init__(
        self,
        launch: Launch,
        observe: Observer,
        on_failure: Callable[[HostFailed], None],
        network: Network | None = None,
    ) -> None:
        self._launch, self._observe, self._on_failure = launch, observe, on_failure
        self._listener = Listener(
            self._accept_host, self._accept_worker, network, self._answer_task
        )
        self._changed = threading.Condition()
        self._network = network
        self._admission = Admission(self._changed, observe)
        self._host: EngineChannel | None = None
        self._ready = self._stopping = self._was_ready = False
        self._up_since: float | None = None
        self._cause = ""
        self._wanted: dict[_Key, WorkerSpec] = {}
        self._on_frames: dict[str, WorkerSpec] = {}
        """The spec for the tasks of each DataFrame route: that of its last worker."""
        self._callers: dict[_Key, tuple[Hello, EngineChannel]] = {}
        self._problems: dict[_Key, str] = {}
        self._tasks: Counter[_Key] = Counter()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="spark-host")

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads that must run as long as the engine."""
        return (self._thread, self._listener.thread)

    @property
    def ready(self) -> bool:
        """Whether Spark is up."""
        return self._ready

    def start(self) -> None:
        """Begin to listen and start the host. Returns at once."""
        self._listener.start()
        self._thread.start()

    def connect(self, spec: WorkerSpec, stopping: Callable[[], bool]) -> WorkerConnection | None:
        """Return the line to a new worker for *spec*; ``None`` once *stopping* returns true.

        Waits for Spark without limit, and on a cluster for the end of the shard's last worker.

        Raises:
            HostFailed: this worker could not be started.
            LogFull: see :meth:`Admission.admit`.
            EnvironmentFault: the same.
            ConnectionError: the worker is gone again.

        """
        key = (spec.route, spec.shard)
        if self._network is not None:
            folder = Path(spec.folder)
            modules = pack_modules(folder) if spec.on_frames else None
            spec = replace(spec, steps=make_portable(spec.steps, folder), modules=modules)
        elif not self._admission.wait_for_vacancy(spec, stopping):
            return None
        with self._changed:
            self._wanted[key] = spec
            if spec.on_frames:
                self._on_frames[spec.route] = spec
            self._problems.pop(key, None)
            if (stale := self._callers.pop(key, None)) is not None:
                stale[1].close()
            if self._ready:
                self._request_worker(spec)
        try:
            called = self._await_worker(key, stopping)
        finally:
            with self._changed:
                self._wanted.pop(key, None)
        if called is None:
            return None
        hello, caller = called
        begin = Begin(spec, tasks=self._listener.ticket(_task_of(spec).claim))
        if self._network is None:
            with ExitStack() as stack:
                connection = stack.enter_context(WorkerConnection(caller))
                connection.send(begin)
                stack.pop_all()
            return connection
        return self._admission.admit(begin, hello, caller, stopping)

    def forget(self, route: str) -> None:
        """Keep nothing of *route*, whose workers have all been closed."""
        with self._changed:
            self._on_frames.pop(route, None)
            for key in [key for key in self._problems if key[0] == route]:
                del self._problems[key]
        self._admission.forget(route)

    def stop(self) -> None:
        """Stop Spark, its host and the listener. Every worker must have been closed before.

        A host that is still starting Spark, or does not end within a grace, is killed.
        """
        if self._network is not None:
            self._admission.wait_for_reports(_LAST_REPORTS if self._ready else 0)
        with self._changed:
            # Workers end with Spark, however far they have come with closing their writers.
            self._changed.wait_for(lambda: not (self._ready and self._tasks.total()), _CLOSING)
            self._stopping = True
            self._send(StopHost())
            if not self._ready:
                self._kill_host()
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_GRACE)
            self._kill_host()
            self._thread.join()
        self._listener.close()
        with self._changed:
            self._hang_up()
            callers = [caller for _, caller in self._callers.values()]
            self._callers.clear()
        for each in callers:
            each.close()
        self._admission.close()

    def wake(self) -> None:
        """Let every waiting :meth:`connect` check again whether it should stop."""
        with self._changed:
            self._changed.notify_all()

    def _await_worker(
        self, key: _Key, stopping: Callable[[], bool]
    ) -> tuple[Hello, EngineChannel] | None:
        problem = ""
        with self._changed:
            while not stopping():
                # No worker is expected before Spark is up, so that wait is the host's, not ours.
                self._changed.wait_for(lambda: self._ready or stopping())
                answered = self._changed.wait_for(
                    lambda: (
                        key in self._callers
                        or key in self._problems
                        or not self._ready
                        or stopping()
                    ),
                    WORKER_START,
                )
                if key in self._callers:
                    return self._callers.pop(key)
                if not answered or key in self._problems:
                    problem = self._problems.pop(key, "")
                    break
                # The next host gets the request for this worker, too.
            if stopping():
                return None
        raise HostFailed(
            problem
            or f"no worker for route {key[0]}, shard {key[1]}, connected within "
            f"{WORKER_START:.0f} s: Spark has no free slot, cannot start Python, or the host "
            "is busy; trying again"
        )

    def take_problem(self, route: str) -> str:
        """Return, once, why a worker of *route* or its host is gone; empty if unknown.

        Waits briefly for Spark to report the end of the worker.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: not (self._ready and self._count_tasks(route)) or self._stopping,
                _END_REPORT,
            )
            keys = [key for key in self._problems if key[0] == route]
            found = [self._problems.pop(key) for key in keys]
            return next(iter(found), "" if self._ready else self._cause)

    def _count_tasks(self, route: str) -> int:
        return sum(count for (name, _), count in self._tasks.items() if name == route)

    def was_host_lost(self, route: str, shard: int) -> bool:
        """Return whether a lost worker ended together with its host, or with its executor.

        Returns as soon as that is certain: the host reports a task's end within a fraction of
        a second, or is gone itself. On a cluster it may take seconds. An executor that Spark
        has lost, or does not report on, took its worker with it.
        """
        key = (route, shard)
        with self._changed:
            self._changed.wait_for(
                lambda: not self._ready or self._stopping or not self._tasks[key],
                _CLUSTER_END_REPORT if self._network else _END_REPORT,
            )
            lost = self._network is not None and self._admission.was_lost(route, shard)
            return self._stopping or not self._ready or lost

    def _kill_host(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _request_worker(self, spec: WorkerSpec) -> None:
        self._tasks[spec.route, spec.shard] += 1
        place = place_of(Path(spec.log_directory)) if self._network is not None else ""
        self._send(StartWorker(create_invitation(spec, self._listener.ticket, place)))

    def _send(self, message: object) -> None:
        if self._host is None:
            return
        try:
            self._host.send(message)
        except BlockingIOError:
            # It is frozen, and the message is cut off. The next host gets the request again.
            self._kill_host()
        except OSError:
            pass  # It has ended, as its thread will find.

    def _hang_up(self) -> None:
        if self._host is not None:
            self._host.close()
            self._host = None

    def _accept_host(self, hello: HostHello, caller: EngineChannel) -> None:
        with self._changed:
            # A host that is gone may have left its greeting behind.
            current = self._process is not None and hello.pid == self._process.pid
            if self._stopping or not current:
                caller.close()
                return
            caller.set_send_timeout(_GRACE)
            self._observe("spark-host-connected", pid=hello.pid)
            self._host = caller
            self._changed.notify_all()

    def _accept_worker(self, hello: Hello, caller: EngineChannel) -> None:
        key = (hello.route, hello.shard)
        with self._changed:
            wanted = self._wanted.get(key)
            called = (hello.epoch, hello.attempt)
            # A ticket is good for one call, of a worker that is waited for.
            unknown = wanted is None or (wanted.epoch, wanted.attempt) != called
            if unknown or self._stopping or key in self._callers:
                caller.close()
                return
            self._observe("worker-connected", route=hello.route, shard=hello.shard, pid=hello.pid)
            self._callers[key] = (hello, caller)
            self._changed.notify_all()

    def _answer_task(self, hello: TaskHello, caller: EngineChannel) -> None:
        """Answer a task with the spec of its route's worker, while there is no later worker."""
        with self._changed:
            spec = self._on_frames.get(hello.route)
        with caller, suppress(OSError):
            if spec is not None and _task_of(spec) == hello:
                caller.set_timeout(_GRACE)
                caller.send(Begin(spec))

    def _run(self) -> None:
        try:
            self._keep_host()
        except HostFailed as error:
            self._on_failure(error)
        except BaseException as error:  # noqa: BLE001 - a thread must not die silently
            failure = HostFailed(f"the Spark host cannot be kept running: {error}")
            failure.__cause__ = error
            self._on_failure(failure)

    def _keep_host(self) -> None:
        backoff = Backoff()
        while not self._stopping:
            self._cause = ""
            # On this thread, which outlives the host: Linux kills a host whose thread has ended.
            with self._changed:
                # The last one may have greeted while it was ended.
                self._hang_up()
                process = self._process = self._launch(self._listener.host_ticket())
            try:
                problem = self._serve_host(process)
            finally:
                was_steady = self._reap(process)
            if self._stopping:
                return
            if not self._was_ready:
                raise HostFailed(f"{problem}: {self._cause}" if self._cause else problem)
            if was_steady:
                # Only hosts that are lost one soon after the other are worth a longer wait.
                backoff.reset()
            delay = backoff.next()
            self._observe(
                "spark-host-lost",
                code=process.returncode,
                problem=self._cause or "the host reported no reason",
                retry_in=round(delay, 2),
            )
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, delay)

    def _serve_host(self, process: subprocess.Popen[bytes]) -> str:
        """Serve the host until it is gone, or too late; return the reason."""
        deadline = time.monotonic() + HOST_START
        host = self._await_host(process, deadline)
        if host is not None:
            with host, suppress(EOFError, OSError):
                # Once Spark is up the host is silent for as long as nothing happens.
                while self._up_since or host.poll(max(0.0, deadline - time.monotonic())):
                    self._process_message(host.recv())
        if time.monotonic() < deadline:
            return "the Spark host ended before Spark was up"
        return (
            f"Spark was not up within {HOST_START:.0f} s; look for the reason in spark.log in the "
            "log directory, or run again when the machine is less busy"
        )

    def _await_host(
        self, process: subprocess.Popen[bytes], deadline: float
    ) -> EngineChannel | None:
        with self._changed:
            while not (self._host or self._stopping) and time.monotonic() < deadline:
                # The process may end without ever having called.
                if process.poll() is not None:
                    break
                self._changed.wait(0.2)
            return self._host

    def _process_message(self, message: object) -> None:
        with self._changed:
            match message:
                case HostReady():
                    self._ready = self._was_ready = True
                    self._up_since = time.monotonic()
                    self._observe("spark-ready", version=message.version, master=message.master)
                    for spec in self._wanted.values():
                        self._request_worker(spec)
                case HostEnding(problem):
                    self._ready, self._cause = False, problem
                case WorkerEnded(route=route, shard=shard, problem=problem):
                    self._tasks[route, shard] -= 1
                    self._admission.record_end(message)
                    # The end of an older worker may be reported after the next one was requested.
                    if problem and not self._tasks[route, shard]:
                        self._problems[route, shard] = problem
            self._changed.notify_all()

    def _reap(self, process: subprocess.Popen[bytes]) -> bool:
        """Clean up after the host; return whether Spark had been up in it for long."""
        with self._changed:
            since, self._up_since = self._up_since, None
            self._ready, self._host = False, None
            self._tasks.clear()
            self._changed.notify_all()
        if process.stdin is not None:
            process.stdin.close()
        if since is None:
            # It is still starting Spark and would not react. Its JVM ends with it.
            process.kill()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return since is not None and time.monotonic() - since >= _STEADY


def _task_of(spec: WorkerSpec) -> TaskHello:
    return TaskHello(spec.route, spec.epoch, spec.attempt)
