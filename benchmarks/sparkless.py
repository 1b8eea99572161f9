"""A host without Spark: it forks its workers, so that what is measured is the engine's own."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Client
from typing import Any

from benchmarks.setting import ROOT
from transporter.engine import worker
from transporter.engine.protocol import HostHello, HostReady, StartWorker, StopHost


def launch(address: Any, authkey: bytes) -> subprocess.Popen[bytes]:  # noqa: ANN401 - whatever the listener has
    """Start a host that calls *address*; implements ``carrier.Launch``."""
    said = json.dumps([address, authkey.hex()]).encode() + b"\n"
    host = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sparkless"],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert host.stdin is not None  # noqa: S101 - it was asked for
    host.stdin.write(said)
    host.stdin.flush()
    return host


def _serve() -> None:
    address, authkey = json.loads(sys.stdin.readline())
    fork = multiprocessing.get_context("fork")
    with (
        suppress(EOFError, ConnectionError),
        Client(address, authkey=bytes.fromhex(authkey)) as engine,
    ):
        engine.send(HostHello(os.getpid()))
        engine.send(HostReady("none", "local"))
        while True:
            match engine.recv():
                case StartWorker(spec):
                    fork.Process(target=worker.run, args=(spec,), daemon=True).start()
                case StopHost():
                    return


if __name__ == "__main__":
    _serve()
