"""Routes with ``sql`` steps before Spark is started, and their part of the pipeline file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from transporter.cli import app
from transporter.dry_run.on_spark import DryRunSpark, QueryRoute, QuerySettings
from transporter.dry_run.routes import select_route, trial_routes
from transporter.errors import ConfigError, HostFailed
from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch

if TYPE_CHECKING:
    from pathlib import Path

PIPELINE = """\
log: {dir: log}
readers: [{name: in, adaptor: file, path: in.jsonl}]
spark:
  config: {spark.sql.ansi.enabled: "${ANSI}", spark.hadoop.password: "${LAKE_PASSWORD}"}
routes:
  - name: plain
    steps: [{omit: {fields: [card]}}]
    writer: {adaptor: file, path: plain.jsonl}
  - name: daily
    slice_timeout: 5m
    steps: [{sql: SELECT * FROM entries}]
    writer: {adaptor: kafka, bootstrap_servers: "${KAFKA:?set KAFKA}"}
  - name: lake
    slice_timeout: 1s
    worker_memory: 256MiB
    steps: [{sql: SELECT * FROM entries}]
    writer: {adaptor: spark, path: "${LAKE:?set LAKE}"}
  - name: wrong
    steps: [{sql: SELECT * FROM entries}]
    writer: {adaptor: "spork"}
"""
ENVIRON = {"ANSI": "false", "LAKE_PASSWORD": "s3cret-word"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a pipeline file beside a log of one entry."""
    (tmp_path / "p.yaml").write_text(PIPELINE)
    with CommitLog.open(tmp_path / "log") as log:
        log.append(messages_to_batch([Message("orders", b"{}")]), "in")
    return tmp_path / "p.yaml"


def never(*_: object) -> None:
    """Fail, because Spark must not start."""
    raise AssertionError("Spark was started")


def settings(file: Path, route: str, environ: dict[str, str]) -> QuerySettings:
    """Return the file's settings for the queries of *route*."""
    found = trial_routes(file, environ, DryRunSpark(never, never))[route]
    assert isinstance(found, QueryRoute)
    return found.settings()


def test_only_what_queries_need_is_read(file: Path) -> None:
    """Settings of Spark and the route's limit are read, and no secret of a sink."""
    daily = settings(file, "daily", ENVIRON)
    assert daily.spark.config["spark.sql.ansi.enabled"] == "false"
    assert (daily.takes_rows, daily.slice_timeout) == (False, 300.0)
    lake = settings(file, "lake", ENVIRON)
    assert (lake.takes_rows, lake.memory) == (True, 256 << 20)
    # The first query of a Spark session takes longer than those of an engine.
    assert lake.slice_timeout >= 60
    assert lake.secrets.hide("s3cret-word") == "***"
    assert "s3cret-word" not in repr(lake)


@pytest.mark.parametrize(
    ("route", "line", "problem"),
    [("daily", 4, "ANSI"), ("wrong", 20, "did you mean 'spark'")],
)
def test_what_is_missing_has_its_line(file: Path, route: str, line: int, problem: str) -> None:
    """A missing variable has its line, and only when the route's queries are run."""
    environ = {} if route == "daily" else ENVIRON
    with pytest.raises(ConfigError, match=problem) as caught:
        settings(file, route, environ)
    assert (caught.value.file, caught.value.line) == (str(file), line)


def test_without_a_spark_such_a_route_is_refused(file: Path) -> None:
    """A route of queries is refused without Spark, as in a replay's count, with its line."""
    with pytest.raises(ConfigError, match="route 'daily': a sql step runs on Spark") as caught:
        select_route(trial_routes(file, {}), "daily", "p.yaml")
    assert (caught.value.file, caught.value.line) == (str(file), 11)


@pytest.mark.parametrize("words", [["dry-run", "p.yaml", "plain"], ["test", "cases.yaml"]])
def test_other_routes_start_no_spark(
    file: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """A route without queries needs neither Spark nor a variable of its settings."""
    (file.parent / "cases.yaml").write_text(
        "pipeline: p.yaml\ncases:\n  - name: one\n    route: plain\n"
        "    input: {data: {card: 1}}\n    output: {data: {}}\n"
    )
    command, name, *routes = words
    assert app.execute([command, str(file.parent / name), *routes]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("words", [["dry-run", "p.yaml", "daily"], ["dry-run", "p.yaml"]])
def test_a_wrong_file_is_exit_2(
    file: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """An unset variable is an error before Spark is started."""
    command, name, *routes = words
    assert app.execute([command, str(file.parent / name), *routes]) == 2
    captured = capsys.readouterr()
    assert f"{file}:4: " in captured.err
    assert "Traceback" not in captured.err


def test_a_dry_run_of_no_entries_starts_no_spark(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run without entries runs no query."""
    assert app.execute(["dry-run", str(file), "daily", "--namespace", "^none$"]) == 0
    assert "route daily: 0 entries would give 0 messages" in capsys.readouterr().out


@pytest.mark.parametrize(("card", "code"), [("1", 3), ("nope", 1)])
def test_routes_that_cannot_be_run_come_last(
    file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    card: str,
    code: int,
) -> None:
    """Other routes are shown, and a failing entry there decides the exit code."""

    def find_java(*_: object) -> Path:
        raise HostFailed("no Java here")

    monkeypatch.setattr("transporter.spark.launch.find_java", find_java)
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    with CommitLog.open(file.parent / "log") as log:
        log.append(messages_to_batch([Message("orders", b'{"card":%b}' % card.encode())]), "in")
    assert app.execute(["dry-run", str(file), "daily", "plain", "lake"]) == code
    captured = capsys.readouterr()
    given = "1 message" if code == 1 else "2 messages"
    assert captured.out.startswith(f"route plain: 2 entries would give {given};")
    assert "route daily" not in captured.out
    assert captured.err == (
        "error: route daily was not run: no Java here\n"
        "error: route lake was not run: no Java here\n"
    )
