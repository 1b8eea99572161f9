"""``transporter test`` and ``dry-run`` of routes with ``sql`` steps: the real command and Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from acceptance_tools import TRANSPORTER, await_true, gone, without_java

from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog
from transporter.offsets.state import Range

if TYPE_CHECKING:
    from collections.abc import Iterator

PIPELINE = """
log: {dir: log}
spark: {config: {spark.sql.ansi.enabled: "${ANSI}"}}
readers: [{name: in, adaptor: file, path: in.jsonl}]
routes:
  - name: plain
    steps: [{omit: {fields: [card]}}]
    writer: {adaptor: kafka, bootstrap_servers: "${KAFKA:?set KAFKA}"}
  - name: shaped
    namespace: ^orders
    steps:
      - omit: {fields: [card]}
      - sql: >-
          SELECT * EXCEPT (data, copy), if(key = 'bad', raise_error('is bad'), data) AS data
          FROM entries
          LATERAL VIEW explode(sequence(1, int(get_json_object(data, '$.times')))) AS copy
      - sql: SELECT * FROM entries WHERE key <> 'drop'
      - rename: {fields: {n: number}}
    writer: {adaptor: kafka, bootstrap_servers: "${KAFKA:?set KAFKA}"}
  - name: daily
    namespace: ^orders
    steps:
      - sql: >-
          SELECT offset, key, timestamp AS at, CAST(doc:total AS DECIMAL(12, 2)) AS total, doc,
            headers[0] AS header, CAST('x' AS INT) AS nothing, double('NaN') AS nan
          FROM (SELECT *, parse_json(data) AS doc FROM entries)
    writer: {adaptor: spark, path: "${LAKE}"}
  - name: unknown
    steps: [{sql: SELECT nosuch FROM entries}]
    writer: {adaptor: file, path: out.jsonl}
  - name: stuck
    steps: [{python: {function: "stuck:stuck"}}, {sql: SELECT * FROM entries}]
    writer: {adaptor: file, path: out.jsonl}
"""
STUCK = """
import time
from pathlib import Path


def stuck(message):
    print("what a step prints is no result")
    Path(message.data.decode()).touch()
    time.sleep(600)
"""
CASES = """
pipeline: p.yaml
cases:
  - name: a route without a query
    route: plain
    input: {data: {card: 1}}
    output: {data: {}}
  - name: entries that are multiplied, dropped and left out, between steps in Python
    route: shaped
    input:
      - namespace: orders
        key: a
        data: {n: 5, card: 2, times: 2}
        headers: {h: "1"}
        timestamp: 7
      - {namespace: orders, key: drop, data: {n: 5, times: 2}}
      - {namespace: users, key: c, data: {n: 5, times: 2}}
      - {namespace: orders, key: d, op: delete, data: {n: 6, times: 1}}
    output:
      - {key: a, namespace: orders, data: {number: 5, times: 2}, headers: {h: "1"}, timestamp: 7}
      - {key: a, data: {number: 5, times: 2}}
      - {key: d, op: delete, data: {number: 6, times: 1}, headers: {}}
  - name: an entry that fails, and one behind it
    route: shaped
    input:
      - {namespace: orders, key: bad, data: {times: 1}}
      - {namespace: orders, key: c, data: {times: 1}}
    output: {key: c}
    error: is bad
"""
MORE_CASES = """
pipeline: p.yaml
cases:
  - name: rows for a sink of Spark's
    route: daily
    input:
      - namespace: orders
        key: k
        data: {total: 1.5}
        headers: {h: "1"}
        timestamp: 1700000000000001
      - {}
    output:
      row:
        offset: 0
        key: k
        at: "2023-11-14T22:13:20.000001+00:00"
        total: "1.50"
        doc: {total: 1.5}
        header: {name: h, value: "1"}
        nothing: null
        nan: nan
  - name: a query that cannot work
    route: unknown
    input: {}
    error: UNRESOLVED_COLUMN
  - name: a query that takes its time
    route: stuck
    input: {data: MARK}
    skipped: true
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Create a folder for temporary files, with a short name because of sockets in it."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        yield Path(folder)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Create a folder with the pipeline and its cases."""
    (tmp_path / "p.yaml").write_text(PIPELINE)
    (tmp_path / "stuck.py").write_text(STUCK)
    (tmp_path / "cases.yaml").write_text(CASES)
    (tmp_path / "more.yaml").write_text(MORE_CASES.replace("MARK", str(tmp_path / "mark")))
    return tmp_path


def environment(temporary: Path) -> dict[str, str]:
    """Return variables for the command, without those of any sink."""
    known = {"TMPDIR": str(temporary), "ANSI": "false", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **known, "TZ": "Asia/Tokyo"}


@pytest.mark.exhaustive
@pytest.mark.spark
def test_cases_run_on_one_spark_until_ctrl_c(place: Path, temporary: Path) -> None:
    """Verdicts come one by one, and an interrupt, or two, leaves no process and no file behind."""
    process = subprocess.Popen(
        [*TRANSPORTER, "test", str(place / "cases.yaml"), str(place / "more.yaml")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(temporary),
        text=True,
    )
    children: list[psutil.Process] = []
    try:
        mark = place / "mark"
        await_true(lambda: mark.exists() or process.poll() is not None, 240, "the last case runs")
        assert process.poll() is None, process.communicate()
        children = psutil.Process(process.pid).children(recursive=True)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=180)
    finally:
        process.kill()
        left = gone(children)
    assert (process.returncode, bool(children), left) == (130, True, [])
    assert list(temporary.iterdir()) == []
    assert err == "starting Spark for sql steps …\n"
    assert out.splitlines() == [
        "passed  a route without a query",
        "passed  entries that are multiplied, dropped and left out, between steps in Python",
        "passed  an entry that fails, and one behind it",
        "passed  rows for a sink of Spark's",
        "passed  a query that cannot work",
    ]


@pytest.mark.spark
@pytest.mark.exhaustive
def test_a_dry_run_of_queries(place: Path, temporary: Path) -> None:
    """Selected entries keep their offsets, and the log and its folder stay unchanged."""
    keys = [b"a", b"b", b"c", b"drop"]
    messages = [Message("orders", b'{"n":1,"times":2,"total":3}', key) for key in keys]
    with CommitLog.open(place / "log") as log:
        log.append(messages_to_batch([*messages, Message("users", b"{}"), messages[0]]), "in")
        _settle(place / "log", log.durable)
    before = contents(place)
    routes = ["plain", "shaped", "daily", "unknown"]
    options = ["--last", "3", "--namespace", "^orders", "--json"]
    done = subprocess.run(
        [*TRANSPORTER, "dry-run", str(place / "p.yaml"), *routes, *options],
        capture_output=True,
        env=environment(temporary),
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("starting Spark for sql steps …\n", 1)
    assert contents(place) == before
    found = json.loads(done.stdout)
    assert not found["ok"]
    for tried in found["result"].values():
        assert [each["offset"] for each in tried] == [2, 3, 5]
    shaped = [[out["key"] for out in each["output"]] for each in found["result"]["shaped"]]
    assert shaped == [["c", "c"], [], ["a", "a"]]
    assert found["result"]["shaped"][0]["output"][0]["data"] == '{"number":1,"times":2,"total":3}'
    rows = [out["row"] for each in found["result"]["daily"] for out in each["output"]]
    assert [(row["offset"], row["total"]) for row in rows] == [
        (2, "3.00"),
        (3, "3.00"),
        (5, "3.00"),
    ]
    unknown: list[dict[str, Any]] = found["result"]["unknown"]
    assert ["UNRESOLVED_COLUMN" in each["error"] for each in unknown] == [True] * 3

    replay = [*TRANSPORTER, "replay", str(place / "p.yaml"), "shaped", "--from", "0", "--dry-run"]
    done = subprocess.run(
        replay,
        capture_output=True,
        env=environment(temporary),
        text=True,
        timeout=240,
        check=False,
    )
    # Without a warning: the file's sink keeps every value.
    assert done.stderr == "starting Spark for sql steps …\n"
    assert done.returncode == 0
    assert "6 entries would be read" in done.stdout
    assert "4 of them would be delivered, as 8 messages; 2 are left out" in done.stdout


def _settle(directory: Path, last: int) -> None:
    with OffsetLog(directory, "shaped") as offsets:
        offsets.settle(Range(0, last), last)


def contents(place: Path) -> dict[str, bytes]:
    """Return the contents of *place*, except for Python's own files."""
    files = (path for path in place.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path): path.read_bytes() for path in files}


def test_cases_without_java(place: Path) -> None:
    """The other cases run, and those with a query are reported as not run, with one reason."""
    done = without_java(place, "test", str(place / "cases.yaml"), ANSI="true")
    assert done.returncode == 3
    *verdicts, end = done.stdout.splitlines()
    assert [line[:7] for line in verdicts] == ["passed ", "NOT RUN", "NOT RUN"]
    assert end == "1 passed, 0 failed, 2 not run"
    assert done.stderr.count("\n") == 1
    assert "error: no Java 17 or newer found" in done.stderr


def test_a_dry_run_without_java(place: Path) -> None:
    """The other routes are shown, and those with a query are reported."""
    with CommitLog.open(place / "log") as log:
        log.append(messages_to_batch([Message("orders", b'{"card":1}')]), "in")
    done = without_java(place, "dry-run", str(place / "p.yaml"), "--json", ANSI="true")
    assert (done.returncode, done.stderr) == (3, "")
    answer = json.loads(done.stdout)
    assert not answer["ok"]
    assert answer["result"]["plain"][0]["output"][0]["data"] == "{}"
    assert "no Java 17" in answer["result"]["daily"]["unknown"]


def test_a_dry_run_of_a_replay_without_java(place: Path) -> None:
    """The entries to read are shown, with the reason why the deliveries are unknown."""
    with CommitLog.open(place / "log") as log:
        log.append(messages_to_batch([Message("orders", b'{"card":1}')]), "in")
        _settle(place / "log", log.durable)
    done = without_java(
        place, "replay", str(place / "p.yaml"), "shaped", "--from", "0", "--dry-run", ANSI="true"
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert "1 entry would be read" in done.stdout
    assert "is unknown: no Java 17" in done.stdout
