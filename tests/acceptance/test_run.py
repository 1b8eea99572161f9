"""The real command on real Spark: a pipeline from its first start to an operator's acts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import lmdb
import psutil
import pyarrow.dataset as ds
import pytest
from acceptance_tools import PICKY, TRANSPORTER, await_true, gone, running, transporter

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("transporter")
FILES = """
log: {dir: log}
observe: {listen: "off"}
readers:
  - {name: lines, adaptor: file, path: in.jsonl, namespace: orders.placed, key: id}
routes:
  - {name: copy, writer: {adaptor: file, path: out.jsonl, format: data}}
  - {name: none, namespace: ^nothing, writer: {adaptor: file, path: none.jsonl}}
"""

pytestmark = pytest.mark.spark


def lines(count: int) -> bytes:
    """Return *count* JSON lines that differ."""
    return b"".join(b'{"id": %d, "big": 12345678901234567890.10}\n' % n for n in range(count))


def test_finite_sources_end_the_run_with_exit_0_and_exact_bytes(tmp_path: Path) -> None:
    """A file is copied byte for byte through log and Spark, and the command ends by itself.

    It imports no code from the folder where it is started. With the log level warning a run
    without problems writes nothing.
    """
    (tmp_path / "in.jsonl").write_bytes(lines(1000))
    (tmp_path / "p.yaml").write_text(FILES)
    with running(tmp_path / "p.yaml") as engine:
        left = engine.descendants()
        assert engine.wait() == 0
        assert gone(left) == []
    assert (tmp_path / "out.jsonl").read_bytes() == lines(1000)
    routes = {route["route"]: route for route in transporter("offsets", "list", f"{tmp_path}/log")}
    assert (routes["copy"]["lag"], routes["none"]["lag"]) == (0, 0)
    with (tmp_path / "in.jsonl").open("ab") as file:
        file.write(lines(10))
    elsewhere = trapped(tmp_path)
    done = subprocess.run(
        [COMMAND, "run", "../p.yaml", "--log-level", "warning"],
        cwd=elsewhere,
        timeout=180,
        check=False,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out.jsonl").read_bytes() == lines(1000) + lines(10)
    assert not (tmp_path / "caught").exists()


def trapped(folder: Path) -> Path:
    """Return a folder with foreign modules that record their import."""
    place = folder / "downloads"
    place.mkdir()
    for name in ("py4j", "pyspark", "pyarrow", "numpy", "json", "transporter"):
        trap = (
            f"open({str(folder / 'caught')!r}, 'a').write(__name__)\nraise ImportError(__file__)\n"
        )
        (place / f"{name}.py").write_text(trap)
    return place


@pytest.mark.exhaustive
def test_a_refused_entry_stops_its_route_until_an_operator_acks_it(tmp_path: Path) -> None:
    """The route stops before the bad entry with exit code 1, and an ack and a replay work."""
    (tmp_path / "in.jsonl").write_bytes(b'{"n": 1}\n{"n": 2}\n{"n": "bad"}\n{"n": 4}\n')
    (tmp_path / "picky.py").write_text(PICKY)
    out = tmp_path / "out"
    (tmp_path / "p.yaml").write_text(
        "log: {dir: log}\n"
        "readers: [{name: lines, adaptor: file, path: in.jsonl}]\n"
        f'routes: [{{name: picky, writer: {{adaptor: "picky:Picky", path: {out}}}}}]\n'
    )
    pipeline = str(tmp_path / "p.yaml")
    with running(tmp_path / "p.yaml") as engine:
        assert engine.wait() == 1
        stopped = engine.await_event("route-stopped")
        assert (stopped["offset"], stopped["watermark"]) == (2, 1)
    assert out.read_bytes() == b'{"n": 1}\n{"n": 2}\n'

    transporter("ack", pipeline, "picky", "2", "--reason", "broken order")
    with running(tmp_path / "p.yaml") as engine:
        assert engine.wait() == 0
    assert out.read_bytes() == b'{"n": 1}\n{"n": 2}\n{"n": 4}\n'

    transporter("replay", pipeline, "picky", "--from", "0", "--to", "1")
    with running(tmp_path / "p.yaml") as engine:
        assert engine.wait() == 0
    assert out.read_bytes() == b'{"n": 1}\n{"n": 2}\n{"n": 4}\n{"n": 1}\n{"n": 2}\n'
    audit = transporter("audit", pipeline)
    assert [each["action"] for each in audit] == ["ack", "replay"]
    assert audit[0]["reason"] == "broken order"


def test_the_demo_pipeline_runs_and_stops_in_order(tmp_path: Path) -> None:
    """pipelines/demo.yaml delivers to LMDB and the terminal, beside a log that can be read."""
    folder = tmp_path / "quickstart"
    pipeline = ROOT / "pipelines" / "demo.yaml"
    importers = tmp_path / "importers"
    variables = {"QUICKSTART_DIR": str(folder), "PYTHONPATH": noted(tmp_path, importers)}
    with running(pipeline, **variables) as engine:
        engine.await_output("carrier")
        shown = transporter("log", "show", str(folder / "log"), "--last", "3")
        assert [entry["unconfirmed"] for entry in shown] == [False] * len(shown)
        assert shown
        assert engine.stop() == 0
    # Only the host below the engine loads Spark.
    found = {each.name for each in importers.iterdir()}
    assert found
    assert str(engine.process.pid) not in found
    routes = transporter("offsets", "list", str(folder / "log"))
    assert [route["lag"] for route in routes] == [0, 0]
    with lmdb.open(str(folder / "orders.lmdb"), max_dbs=8, readonly=True) as environment:
        assert environment.stat()["entries"] >= 1


def noted(folder: Path, importers: Path) -> str:
    """Return a module path on which a process that imports pyspark leaves its id in *importers*."""
    importers.mkdir()
    place = folder / "noted"
    place.mkdir()
    (place / "sitecustomize.py").write_text(
        "import os, sys\n"
        "def note(event, arguments):\n"
        "    if event == 'import' and arguments[0] in ('pyspark', 'py4j'):\n"
        f"        open(f'{importers}/{{os.getpid()}}', 'w').close()\n"
        "sys.addaudithook(note)\n"
    )
    return os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))


@pytest.mark.postgres
def test_the_quickstart_pipeline_runs_beside_the_shop(tmp_path: Path) -> None:
    """pipelines/quickstart.yaml takes the shop's orders, and a stop leaves nothing running.

    The sales, which a query turns into columns, are Parquet by then, and shown as a table.
    """
    pipeline = ROOT / "pipelines" / "quickstart.yaml"
    shop = [sys.executable, "-m", "transporter.quickstart.shop", "--dir", str(tmp_path / "pg")]
    with (tmp_path / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [*shop, "--rate", "50", "--", *TRANSPORTER, "run", str(pipeline)],
            env={**os.environ, "QUICKSTART_DIR": str(tmp_path / "q")},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        first = process.stdout.readline()
        assert "carrier" in first, f"the shop ended with {process.wait(10)}"
        below = psutil.Process(process.pid).children(recursive=True)
        await_true(
            lambda: len(transporter("offsets", "list", f"{tmp_path}/q/log")) == 3, 20, "routes"
        )
        # A cold Spark may need longer than the stop's 30 s for its first query.
        await_true(lambda: any((tmp_path / "q" / "sales").glob("*.parquet")), 120, "sales")
    finally:
        process.terminate()
        process.communicate(timeout=180)
    assert process.returncode == 0
    assert gone(below) == []
    assert all(route["lag"] == 0 for route in transporter("offsets", "list", f"{tmp_path}/q/log"))
    sales = ds.dataset(tmp_path / "q" / "sales", format="parquet").to_table()
    assert sales.num_rows > 0
    assert sales["total_cents"].null_count == sales["city"].null_count == 0
    told = (tmp_path / "stderr").read_text(encoding="utf-8").partition("Sales of the shop")[2]
    euros = f"{sum(sales['total_cents'].to_pylist()) / 100:,.2f}"
    assert ["all", f"{sales.num_rows:,}", euros] in [line.split() for line in told.splitlines()]
