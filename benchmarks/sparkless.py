"""A host without Spark: it forks its workers, so that only the engine's own cost is measured."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

from benchmarks.setting import ROOT
from transporter.protocol.messages import (
    HostHello,
    HostReady,
    StartWorker,
    StopHost,
    Ticket,
    WorkerEnded,
)
from transporter.protocol.network import connect_engine
from transporter.worker import worker

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from transporter.protocol.messages import Invitation


def launch(ticket: Ticket) -> subprocess.Popen[bytes]:
    """Start a host that calls by *ticket*. Implements ``spark_supervisor.Launch``."""
    line = json.dumps([ticket.address, ticket.key.hex()]).encode() + b"\n"
    host = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sparkless"],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert host.stdin is not None  # noqa: S101 - it was asked for
    host.stdin.write(line)
    host.stdin.flush()
    return host


def _serve() -> None:
    address, key = json.loads(sys.stdin.readline())
    fork = multiprocessing.get_context("fork")
    with (
        suppress(EOFError, ConnectionError),
        connect_engine(Ticket(address, HostHello.claim, bytes.fromhex(key))) as engine,
    ):
        engine.send(HostHello(os.getpid()))
        engine.send(HostReady("none", "local"))
        running: dict[int, tuple[BaseProcess, Invitation]] = {}
        while True:
            for ready in wait([engine.fileno(), *running]):
                if ready != engine.fileno():
                    process, ended = running.pop(int(ready))  # type: ignore[call-overload]
                    process.join()
                    engine.send(WorkerEnded(ended.route, ended.shard, "", ended.attempt))
                    continue
                match engine.recv():
                    case StartWorker(spec):
                        process = fork.Process(target=worker.run, args=(spec,), daemon=True)
                        process.start()
                        running[process.sentinel] = process, spec
                    case StopHost():
                        return


if __name__ == "__main__":
    _serve()
