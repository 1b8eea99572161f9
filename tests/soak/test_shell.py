"""``transporter shell`` in use: a statement, its answer, and its errors."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from acceptance_tools import TRANSPORTER, without_java

from transporter.cli import app
from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch

if TYPE_CHECKING:
    from pathlib import Path

EACH = (
    "SELECT key, max_by(data, offset) AS latest, count(*) AS n FROM log GROUP BY key ORDER BY key"
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of four orders, the last one with bytes for a key."""
    orders = [
        Message("orders", b'{"n": %d}' % n, key)
        for n, key in enumerate((b"a", b"b", b"a", b"\xff"))
    ]
    with CommitLog.open(tmp_path / "log") as opened:
        opened.append(messages_to_batch(orders), "r")
    return tmp_path / "log"


def shell(directory: Path, *arguments: str, said: str | None = None) -> tuple[int, str, str]:
    """Run the shell on *directory*, and return its exit code, output and errors."""
    done = subprocess.run(
        [*TRANSPORTER, "shell", str(directory), *arguments],
        input=said,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.spark
def test_one_statement_beside_an_engine(log: Path) -> None:
    """A statement's rows come as one JSON object, within the requested bounds."""
    with CommitLog.open(log):
        done = shell(
            log, "-e", EACH, "--json", "--from", "1", "--spark-conf", "spark.ui.enabled=false"
        )
    assert (done[0], done[2]) == (0, "starting Spark …\n")
    assert json.loads(done[1]) == {
        "ok": True,
        "result": [
            {"key": "a", "latest": '{"n": 2}', "n": 1},
            {"key": "b", "latest": '{"n": 1}', "n": 1},
            {"key": {"base64": "/w=="}, "latest": '{"n": 3}', "n": 1},
        ],
    }


@pytest.mark.spark
def test_sql_from_a_prompt(log: Path) -> None:
    """At the prompt statements end at a semicolon, and it continues after a brief error."""
    said = "SELECT nope FROM log;\nSELECT max(offset) AS newest,\n min(offset) FROM log;\n"
    code, output, errors = shell(log, "--sql", said=said)
    assert code == 0
    assert f"{log}: offsets 0..3" in output
    assert "SELECT namespace, count(*) FROM log GROUP BY namespace;" in output
    assert "|3     |0          |" in output
    assert "error: [UNRESOLVED_COLUMN" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["--from", "soon"], 2, "option from: 'soon' is neither an offset nor a time"),
        (["--namespace", "("], 2, "option namespace: '(' is not a regular expression"),
        (["--option", "colums=data"], 2, "did you mean columns?"),
        (["--option", "data"], 2, "--option 'data': use NAME=VALUE"),
        (["--json"], 2, "--json requires --execute"),
    ],
)
def test_what_is_told_before_spark_starts(
    log: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, problem: str
) -> None:
    """Invalid options are refused at once."""
    assert app.execute(["shell", str(log), *arguments]) == code
    assert problem in "".join(capsys.readouterr())


def test_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory without a log is an error of the environment."""
    assert app.execute(["shell", str(tmp_path), "-e", "SELECT 1"]) == 3
    assert "no transporter log here" in capsys.readouterr().err


def test_no_java(log: Path) -> None:
    """Without Java the command names the package to install."""
    done = without_java(log, "shell", str(log), "-e", "SELECT 1", timeout=60)
    assert done.returncode == 3
    assert "no Java 17 or newer found" in done.stderr
