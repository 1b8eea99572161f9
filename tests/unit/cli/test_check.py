"""``transporter check``: paths that cannot be used are refused before anything runs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from transporter.cli import app
from transporter.pipeline import local_paths

if TYPE_CHECKING:
    from pathlib import Path


def check(folder: Path, log: str, sink: str = "out.jsonl", source: str = "in.jsonl") -> int:
    """Check a pipeline in *folder* with these paths; return the exit code."""
    document = {
        "log": {"dir": log},
        "readers": [{"name": "in", "adaptor": "file", "path": source}],
        "routes": [{"name": "out", "writer": {"adaptor": "file", "path": sink}}],
    }
    (folder / "file").touch()
    (folder / "p.yaml").write_text(json.dumps(document, indent=1))
    return app.execute(["check", str(folder / "p.yaml")])


@pytest.mark.parametrize("log", ["log", "a/b/log", ".", "link"])
def test_directories_that_can_be_made_are_accepted(tmp_path: Path, log: str) -> None:
    """Nothing of them needs to be there, and nothing is made."""
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert check(tmp_path, log) == 0
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("log", "text"),
    [
        ("file", "/file is not a directory; name another one"),
        ("file/log", "/file is not a directory, so "),
        ("dangling", "/dangling is not a directory"),
        ("x" * 300, "File name too long"),
        ("a\0b", "null"),
    ],
)
def test_a_log_directory_that_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str, text: str
) -> None:
    """The error names the key, its line and what stands in the way."""
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert check(tmp_path, log) == 2
    said = capsys.readouterr().err
    assert "log.dir: " in said
    assert f"{tmp_path}/p.yaml:3" in said
    assert text in said


def test_a_log_directory_of_somebody_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says who may not write where."""
    monkeypatch.setattr(local_paths.os, "access", lambda _, mode, **__: not mode & os.W_OK)
    assert check(tmp_path, "log") == 2
    assert f"{tmp_path}: this user (id {os.geteuid()}) may not write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "paths"),
    [("readers[0].path", {"source": "file/in"}), ("routes[0].writer.path", {"sink": "file/out"})],
)
def test_paths_of_adaptors_below_a_file_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, paths: dict[str, str]
) -> None:
    """A reader's or a writer's path is named as the log's is."""
    assert check(tmp_path, "log", **paths) == 2
    assert f"{key}: {tmp_path}/file is not a directory" in capsys.readouterr().err
