"""Attacks on a standalone cluster by a user without its secret."""

from __future__ import annotations

import json
import secrets
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psutil
import pytest
from acceptance_tools import await_true, running
from cluster_tools import SECRET, Cluster, below, check, delivered, pipeline
from root_tools import need_root
from spark_ports import blocks, listening_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
ROWS = 300
CANARY = f"canary-{secrets.token_hex(6)}"


@contextmanager
def listening_in() -> Iterator[Callable[[], tuple[int, int]]]:
    """Record the loopback interface, as root, and yield the counts of packets and of canaries."""
    need_root("listening in needs root")
    packets = found = 0
    over = threading.Event()

    def listen(line: socket.socket) -> None:
        nonlocal packets, found
        while not over.is_set():
            with suppress(TimeoutError):
                packets, found = packets + 1, found + (CANARY.encode() in line.recv(1 << 17))

    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as line:
        line.bind(("lo", 0))
        line.settimeout(0.2)
        listener = threading.Thread(target=listen, args=(line,))
        listener.start()
        try:
            yield lambda: (packets, found)
        finally:
            over.set()
            listener.join()


def test_ports_wires_and_command_lines_give_nothing(near: Cluster) -> None:
    """No host or wire reveals the cluster's secret, a setting, an entry or a job."""
    sink = near.folder / f"{CANARY}.jsonl"
    file = pipeline(near.folder / "engine", near.master, sink, ROWS, pace=0.2, slice_rows=10)
    rows = (json.dumps({"id": CANARY, "key": f"k{number % 10}"}) for number in range(ROWS))
    (near.folder / "engine" / "in.jsonl").write_text("".join(f"{row}\n" for row in rows))
    with listening_in() as heard, running(file) as engine:
        await_true(lambda: len(delivered(sink)) > 3, 180, "the first deliveries")
        hosts = [each for root in near.roots() for each in (root, *below(root.pid))]
        ours = [psutil.Process(engine.process.pid), *engine.descendants()]
        for process in (*hosts, *ours):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                line = " ".join(process.cmdline())
                assert SECRET not in line
                assert CANARY not in line
        ports = listening_ports((*hosts, *ours))
        assert len(ports) >= 5, "master, workers, an executor, the driver and the engine's door"
        assert b"".join(blocks(port, 20) for port in ports) == b""
        sink.with_name(f"{sink.name}.hurry").touch()
        assert engine.wait(120) == 0, engine.noise
        packets, with_canary = heard()
    check(delivered(sink), ROWS)
    assert all(CANARY in each["data"] for each in delivered(sink))
    assert packets > 1000
    assert with_canary == 0


def test_a_cluster_with_another_secret_is_named(near: Cluster) -> None:
    """The engine reports that Spark is refused, names the setting, and delivers nothing."""
    sink = near.folder / "never.jsonl"
    config = {"spark.authenticate.secret": "another"}
    file = pipeline(near.folder / "engine" / "wrong", near.master, sink, 10, config=config)
    with running(file) as engine:
        lost = engine.await_event("spark-host-lost", timeout=240)
        assert "the same spark.authenticate.secret" in lost["problem"]
        engine.stop(60)
    assert delivered(sink) == []
