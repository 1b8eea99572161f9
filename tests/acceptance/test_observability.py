"""A real run as its observers see it: pages, alerts, and a program around it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import promql_tools
import psutil
import pytest
from acceptance_tools import PICKY, await_true, gone, kind_of, page, running, transporter
from otlp_tools import Collector
from service_tools import ServiceManager

ROOT = Path(__file__).parents[2]
PIPELINE = """
log: {{dir: log}}
observe: {{listen: "{listen}", unready_after: 1s}}
readers: [{{name: lines, adaptor: file, path: in.jsonl, follow: true}}]
routes:
  - {{name: copy, writer: {{adaptor: file, path: out.jsonl, format: data}}}}
  - name: picky
    on_error: park
    retry: {{attempts: 1}}
    writer: {{adaptor: "picky:Picky", path: picky.jsonl}}
"""
SERVICE = """
import logging, signal, sys, threading
import transporter
from transporter import Booted, Exited, Pipeline

done = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: done.set())
logging.basicConfig(level="WARNING", format="host: %(message)s")
mine = signal.getsignal(signal.SIGTERM)


def heard(event):
    print(type(event).__name__, flush=True)
    if isinstance(event, Booted):
        raise RuntimeError("the host's own bug")


pipeline = Pipeline.from_file(sys.argv[1], {})
pipeline.on_event(heard)
with pipeline:
    while not pipeline.status().routes[0].delivered == 3:
        done.wait(0.1)
    print("delivered", pipeline.url, flush=True)
    done.wait()
    assert signal.getsignal(signal.SIGTERM) is mine
assert not {"pyspark", "py4j"} & set(sys.modules)
print("left in order", flush=True)
"""

pytestmark = pytest.mark.spark


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """Create a pipeline of three entries, of which one route rejects one."""
    (tmp_path / "picky.py").write_text(PICKY)
    (tmp_path / "in.jsonl").write_text('{"n": 1}\n{"n": "bad"}\n{"n": 3}\n')
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE.format(listen="127.0.0.1:0"))
    return file


@pytest.mark.exhaustive
def test_from_the_start_to_an_alert_and_back(pipeline: Path) -> None:
    """The engine is not ready until Spark is up, and a parked entry alerts until it is skipped."""
    with running(pipeline) as engine:
        url = engine.await_event("endpoint-opened")["url"]
        code, found = page(f"{url}/readyz")
        assert (code, json.loads(found)["ready"]) == (503, False)
        assert page(f"{url}/healthz")[0] == 200
        engine.await_event("entry-parked", route="picky", timeout=120)
        await_true(lambda: page(f"{url}/readyz")[0] == 200, 60, "it is ready")
        alerts = promql_tools.firing(page(f"{url}/metrics")[1])
        assert {name: found[0]["route"] for name, found in alerts.items()} == {
            "TransporterEntriesParked": "picky"
        }
        transporter("parked", "skip", str(pipeline), "picky", "1", "--reason", "known to be bad")
        await_true(
            lambda: promql_tools.firing(page(f"{url}/metrics")[1]) == {}, 30, "no alert is left"
        )
        assert engine.stop() == 0
    assert engine.noise == []


def test_a_service_manager_is_notified_by_the_engine_alone(pipeline: Path) -> None:
    """A real run reports its start, a reload and its stop, and no child has the variables."""
    manager = ServiceManager(str(pipeline.parent / "notify"))
    variables = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "30000000"}
    with running(pipeline, **variables) as engine:
        manager.await_line("STATUS=starting: ", patience=120)
        engine.await_event("spark-ready", timeout=120)
        manager.await_line("READY=1", patience=120)
        assert manager.count("WATCHDOG=1") > 0
        found = engine.descendants()
        children = [each for each in found if each.status() != psutil.STATUS_ZOMBIE]
        assert {kind_of(each) for each in children} >= {"host", "jvm", "worker"}
        for each in children:
            assert not set(variables) & set(each.environ())
        engine.process.send_signal(signal.SIGHUP)
        manager.await_line("RELOADING=1", patience=60)
        manager.await_line("READY=1", 2, patience=60)
        assert engine.stop() == 0
    assert manager.count("STOPPING=1") == 1
    assert engine.noise == []
    manager.close()


@pytest.mark.exhaustive
def test_entries_are_traced_to_a_collector(pipeline: Path) -> None:
    """A real run sends both spans of each entry, and the collector's key to the collector only."""
    with Collector() as collector:
        text = pipeline.read_text().replace(
            "unready_after: 1s",
            f"unready_after: 1s, tracing: {{endpoint: '{collector.url}', sample: 1, "
            "headers: {x-team: '${TEAM}'}}",
        )
        pipeline.write_text(text)
        with running(pipeline, TEAM="t0p-s3cret") as engine:
            url = engine.await_event("endpoint-opened")["url"]
            engine.await_event("entry-parked", route="picky", timeout=120)
            await_true(lambda: len(collector.named("log -> ack")) == 5, 60, "all acks are there")
            assert "transporter_spans_dropped_total{" in page(f"{url}/metrics")[1]
            assert engine.stop() == 0
        assert {each["offset"] for each in collector.named("source -> log")} == {0, 1, 2}
        acked = {(each["route"], each["offset"]) for each in collector.named("log -> ack")}
        assert acked == {*(("copy", n) for n in range(3)), ("picky", 0), ("picky", 2)}
        assert {headers["x-team"] for headers, _ in collector.requests} == {"t0p-s3cret"}
    assert engine.noise == []
    assert "t0p-s3cret" not in json.dumps(engine.events)


@pytest.mark.exhaustive
def test_a_port_that_is_taken(pipeline: Path) -> None:
    """A configured port that is in use is exit code 3, with the setting to change."""
    with running(pipeline) as engine:
        url = engine.await_event("endpoint-opened")["url"]
        second = pipeline.parent / "second.yaml"
        text = PIPELINE.format(listen=url.removeprefix("http://"))
        second.write_text(text.replace("dir: log", "dir: log2"))
        with running(second) as other:
            assert other.wait() == 3
            assert "observe.listen" in "".join(other.noise)
    assert not (pipeline.parent / "log2").exists()


@pytest.mark.exhaustive
def test_inside_another_service(pipeline: Path) -> None:
    """A program with its own SIGTERM handler and logging runs the engine, and ends on its own."""
    service = pipeline.parent / "service.py"
    service.write_text(SERVICE)
    process = subprocess.Popen(
        [sys.executable, str(service), str(pipeline)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    left: list[psutil.Process] = []
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("delivered "):
                break
        url = said[-1].split()[1]
        assert page(f"{url}/healthz")[0] == 200
        left = psutil.Process(process.pid).children(recursive=True)
        assert left
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=90)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        strays = gone(left)
    assert process.returncode == 0, errors
    assert strays == []
    assert output.endswith("Exited\nleft in order\n")
    assert (pipeline.parent / "out.jsonl").read_text().count("\n") == 3
    assert errors.startswith("host: "), errors
    assert "entry-parked" in errors
    assert "callback-failed" in errors
