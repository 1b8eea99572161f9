"""Tests of SQL over the log by DuckDB: its answers, its reads, and its isolation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from acceptance_tools import TRANSPORTER
from log_tools import crash, small

from transporter.cli import app
from transporter.log.commit_log import CommitLog
from transporter.log.segment import segment_name
from transporter.message import Message, messages_to_batch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

ORDERS = [
    Message("orders", b'{"n": %d}' % n, key, headers=(("h", b"\xff"),))
    for n, key in enumerate((b"a", b"b", b"a", b"\xff"))
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of four orders, the last one with a key that is not text."""
    with CommitLog.open(tmp_path / "log") as opened:
        opened.append(messages_to_batch(ORDERS), "r")
    return tmp_path / "log"


@pytest.fixture
def query(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return a function that runs a query, and returns its rows or its error."""

    def run(log: Path, statement: str, *options: str) -> Any:
        app.execute(["query", str(log), statement, "--json", *options])
        answer = json.loads(capsys.readouterr().out)
        return answer["result"] if answer["ok"] else answer["error"]

    return run


def test_the_command_beside_an_engine(log: Path) -> None:
    """Rows come as one JSON object, like those of shell, within the requested bounds."""
    statement = (
        "SELECT key, max_by(data, log.offset) AS latest, count(*) AS n FROM log "
        "GROUP BY key ORDER BY key"
    )
    with CommitLog.open(log):
        done = subprocess.run(
            [*TRANSPORTER, "query", str(log), statement, "--json", "--from", "1"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "ok": True,
        "result": [
            {"key": "a", "latest": '{"n": 2}', "n": 1},
            {"key": "b", "latest": '{"n": 1}', "n": 1},
            {"key": {"base64": "/w=="}, "latest": '{"n": 3}', "n": 1},
        ],
    }


def test_a_table(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json rows are a table with the cells of JSON."""
    statement = "SELECT namespace, source_id, headers, 1.5 AS d FROM log LIMIT 1"
    assert app.execute(["query", str(log), statement]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAMESPACE  SOURCE_ID  HEADERS                                       D",
        'orders     null       [{"name": "h", "value": {"base64": "/w=="}}]  1.5',
    ]


def test_what_is_not_confirmed_is_not_seen(
    tmp_path: Path, batch: Callable[..., pa.RecordBatch], query: Callable[..., Any]
) -> None:
    """After an unclean stop a query ends at the last offset proved durable (Invariant 12)."""
    with small():
        log = CommitLog.open(tmp_path / "log")
        log.append(batch(3), "r")
        log.append(batch(3), "r")
        crash(log)
        assert query(tmp_path / "log", "SELECT count(*) AS n FROM log") == [{"n": 3}]


def test_a_log_may_be_scanned_twice(log: Path, query: Callable[..., Any]) -> None:
    """Each use of the table in a statement reads it again."""
    statement = "SELECT count(*) AS n FROM log a JOIN log b USING (key) WHERE a.data != b.data"
    assert query(log, statement) == [{"n": 2}]


def test_json_and_times(log: Path, query: Callable[..., Any]) -> None:
    """Functions on JSON and on times work without downloads."""
    statement = (
        "SELECT sum((data->>'n')::int) AS n, max(logged_at AT TIME ZONE 'Asia/Tokyo') > "
        "TIMESTAMP '2020-01-01' AS late FROM log"
    )
    assert query(log, statement) == [{"n": 6, "late": True}]


def test_json_has_no_number_for_all_floats(log: Path, query: Callable[..., Any]) -> None:
    """What is not finite is text, as Spark and PostgreSQL write it."""
    statement = "SELECT 'nan'::DOUBLE a, ['-inf'::DOUBLE, 1.5::DOUBLE] b, 'inf'::FLOAT c"
    assert query(log, statement) == [{"a": "NaN", "b": ["-Infinity", 1.5], "c": "Infinity"}]


def test_json_has_each_column(log: Path, query: Callable[..., Any]) -> None:
    """Columns of the same name would hide one another."""
    assert "several columns a" in query(log, "SELECT 1 AS a, 2 AS a")["message"]


def test_text_and_bytes(tmp_path: Path, query: Callable[..., Any]) -> None:
    """Data is decoded only if a query needs it, and other bytes are an error or null."""
    with CommitLog.open(tmp_path / "log") as opened:
        opened.append(messages_to_batch([Message("a", b"text"), Message("a", b"\xff")]), "r")
    log = tmp_path / "log"
    assert query(log, "SELECT count(namespace) AS n FROM log") == [{"n": 2}]
    failure = query(log, "SELECT namespace FROM log WHERE data = 'text'")
    assert failure["message"].startswith("data at offset 1 is not UTF-8 text; set the option data")
    null = ("--option", "invalidUtf8=null")
    assert query(log, "SELECT data FROM log", *null) == [{"data": "text"}, {"data": None}]
    both = query(log, "SELECT data FROM log WHERE data > 'a'", "--option", "data=binary")
    assert both == [{"data": "text"}, {"data": {"base64": "/w=="}}]


def test_filters_are_judged_as_duckdb_would(log: Path, query: Callable[..., Any]) -> None:
    """A condition applies to columns of the result and to other columns."""
    assert query(log, "SELECT log.offset FROM log WHERE key = 'a' AND data LIKE '%2}'") == [
        {"offset": 2}
    ]
    assert query(log, "SELECT data FROM log WHERE key = 'b'") == [{"data": '{"n": 1}'}]
    assert query(log, "SELECT data FROM log WHERE logged_at < TIMESTAMPTZ '2000-01-01'") == []
    assert query(log, "SELECT count(*) AS n FROM log WHERE source_id IS NULL") == [{"n": 4}]
    only = ("--option", "columns=data, key")
    assert query(log, "SELECT * FROM log WHERE key = 'b'", *only) == [
        {"data": '{"n": 1}', "key": "b"}
    ]


@pytest.mark.parametrize("partition", ["1GiB", "1MiB"])
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("log.offset = 5", [5]),
        ("log.offset BETWEEN 3 AND 5 AND key IS NOT NULL", [3, 4, 5]),
        ("log.offset IN (1, 199)", [1, 199]),
        ("log.offset > 198 OR log.offset < 1", [0, 199]),
        ("log.offset > 500", []),
    ],
)
def test_what_a_condition_on_offsets_excludes_is_not_read(
    tmp_path: Path,
    batch: Callable[..., pa.RecordBatch],
    query: Callable[..., Any],
    condition: str,
    expected: list[int],
    partition: str,
) -> None:
    """Damage elsewhere in the log affects only a query that has to read there."""
    with small():
        with CommitLog.open(tmp_path / "log", segment_bytes=20_000, compression=None) as opened:
            for _ in range(40):
                opened.append(batch(5), "r")
        segment = tmp_path / "log" / segment_name(0)
        content = bytearray(segment.read_bytes())
        at = len(content) // 2
        content[at : at + 1000] = bytes(1000)
        segment.write_bytes(content)
        statement = f"SELECT log.offset FROM log WHERE {condition}"
        found = query(tmp_path / "log", statement, "--option", f"partitionBytes={partition}")
        assert [row["offset"] for row in found] == expected
        failure = query(tmp_path / "log", "SELECT count(*) FROM log")
        assert (failure["type"], segment.name in failure["message"]) == ("Corrupt", True)


def test_rows_come_as_they_are_read(
    tmp_path: Path, batch: Callable[..., pa.RecordBatch], query: Callable[..., Any]
) -> None:
    """Nothing behind the wanted rows is read, so the log is never held whole (Invariant 17)."""
    with CommitLog.open(tmp_path / "log", segment_bytes=1) as opened:
        for _ in range(3):
            opened.append(batch(20_000), "r")
    damaged = sorted((tmp_path / "log").glob("*.log"))[1]
    damaged.write_bytes(damaged.read_bytes()[:200])
    assert len(query(tmp_path / "log", "SELECT op FROM log LIMIT 5")) == 5


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM '{file}'",
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM glob('{folder}/*')",
        "COPY log TO '{folder}/out.csv'",
        "COPY (SELECT 1) TO '{folder}/out.parquet'",
        "EXPORT DATABASE '{folder}/out'",
        "ATTACH '{folder}/out.db'",
        "SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')",
        "INSTALL httpfs",
        "LOAD httpfs",
        "CREATE SECRET (TYPE s3)",
        "SELECT * FROM duckdb_secrets()",
        "SET enable_external_access = true",
        "SET temp_directory = '{folder}'",
        "SET lock_configuration = false",
        "RESET enable_external_access",
        "SELECT * FROM statement",
        "SELECT getenv('HOME')",
    ],
)
def test_a_query_reaches_nothing_else(
    tmp_path: Path, log: Path, query: Callable[..., Any], statement: str
) -> None:
    """A query cannot read or write files, fetch or load anything, or change a setting."""
    secret = tmp_path / "secret.csv"
    secret.write_text("secret")
    before = sorted(tmp_path.iterdir())
    refused = query(log, statement.format(file=secret, folder=tmp_path))
    assert refused["exit_code"] == 1
    assert refused["type"] == "ActionRefused"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["SELECT nope FROM log"], 1, '"nope" not found'),
        (["SELECT max(offset) FROM log"], 1, 'write "offset" in double quotes, or log.offset'),
        (["SELECT 1; SELECT 2"], 2, "give one SQL statement"),
        ([" -- nothing"], 2, "give one SQL statement"),
        (["SELECT 1", "--from", "soon"], 2, "option from: 'soon' is neither an offset nor a time"),
        (["SELECT 1", "--option", "colums=data"], 2, "did you mean columns?"),
        (["SELECT 1", "--option", "pushDown=true"], 2, "pushDown is an option of Spark"),
        (["SELECT 1", "--option", "maxOffsetsPerTrigger=1"], 2, "not an option of a batch query"),
    ],
)
def test_what_is_wrong(
    log: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, problem: str
) -> None:
    """An invalid statement fails with DuckDB's reason, and an invalid option fails before it."""
    assert app.execute(["query", str(log), *arguments]) == code
    said = capsys.readouterr().err
    assert problem in said
    assert "Traceback" not in said


def test_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory without a log is an error of the environment."""
    assert app.execute(["query", str(tmp_path), "SELECT 1"]) == 3
    assert "no transporter log here" in capsys.readouterr().err


def test_an_empty_log(tmp_path: Path, query: Callable[..., Any]) -> None:
    """A log without entries is a table without rows."""
    with CommitLog.open(tmp_path / "log"):
        statement = "SELECT count(*) AS n FROM log WHERE log.offset = 1"
        assert query(tmp_path / "log", statement) == [{"n": 0}]


def test_without_duckdb(log: Path) -> None:
    """Without DuckDB the command names the extra that installs it."""
    code = (
        "import sys, transporter.cli.app as app\n"
        "sys.modules['duckdb'] = None\n"
        f"sys.exit(app.execute(['query', {str(log)!r}, 'SELECT 1']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert "pip install 'transporter-engine[query]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE hash(a.range) < b.range",
        "SELECT count(*) FROM log a, log b, log c WHERE hash(a.data, b.data) < hash(c.data)",
    ],
)
def test_ctrl_c_ends_a_query(
    tmp_path: Path, batch: Callable[..., pa.RecordBatch], statement: str
) -> None:
    """An interrupted query ends at once with exit code 130, and leaves no file behind."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with CommitLog.open(tmp_path / "log") as opened:
        opened.append(batch(20_000), "r")
    running = subprocess.Popen(
        [*TRANSPORTER, "query", str(tmp_path / "log"), statement],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(scratch.iterdir()):
        assert running.poll() is None
        time.sleep(0.05)
    time.sleep(1)
    running.send_signal(signal.SIGINT)
    assert running.communicate(timeout=60) == ("", "")
    assert running.returncode == 130
    assert list(scratch.iterdir()) == []
