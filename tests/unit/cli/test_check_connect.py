"""Report of ``transporter check --connect`` on sources and sinks, before anything is read."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from transporter.cli import app
from transporter.dry_run import connection_checks

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ADAPTORS = """
import time
from transporter.adaptor import AdaptorConfig, Finding

class Config(AdaptorConfig):
    password: str = "hunter22"

class Writer:
    Config = Config
    def __init__(self, config): self.config = config
    def open(self, context): raise AssertionError("nothing is opened")
    def write(self, batch, ack): raise AssertionError("nothing is written")
    def close(self): pass

class Silent(Writer):
    pass

class Raises(Writer):
    def probe(self):
        yield Finding("it is there")
        raise RuntimeError(f"no, {self.config.password}, not with me")

class Hangs(Writer):
    def probe(self):
        time.sleep(60)
        yield Finding("late")
"""


def check(folder: Path, capsys: pytest.CaptureFixture[str], **writers: Any) -> tuple[int, Any]:
    """Check a pipeline with these *writers*, and return the exit code and the findings."""
    (folder / "odd.py").write_text(ADAPTORS)
    (folder / "in.jsonl").write_text("{}\n")
    document = {
        "log": {"dir": "log"},
        "readers": [{"name": "in", "adaptor": "file", "path": "in.jsonl"}],
        "routes": [{"name": name, "writer": writer} for name, writer in writers.items()],
    }
    (folder / "p.yaml").write_text(json.dumps(document))
    code = app.execute(["check", "--connect", "--json", str(folder / "p.yaml")])
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], "error" in said) == (code == 0, False), said
    return code, {
        each["name"]: [(found["level"], found["text"]) for found in each["findings"]]
        for each in said["result"]["connections"]
    }


def test_files_and_folders_are_looked_at_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Existing and possible files and folders are fine, and nothing is created."""
    code, found = check(
        tmp_path,
        capsys,
        lines={"adaptor": "file", "path": "deep/er/out.jsonl"},
        keys={"adaptor": "lmdb", "path": "db"},
        tables={"adaptor": "spark", "path": "tables"},
        screen={"adaptor": "file", "path": "-"},
    )
    assert code == 0
    assert found["in"] == [("fine", f"{tmp_path}/in.jsonl: 1 file")]
    for name in ("lines", "keys", "tables"):
        ((level, text),) = found[name]
        assert level == "fine"
        assert "does not exist yet, may be written" in text
    assert found["screen"] == [("fine", "standard output")]
    assert {each.name for each in tmp_path.iterdir()} == {"in.jsonl", "odd.py", "p.yaml"}


def test_what_cannot_be_used_is_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unusable sink gives an exit code of 3, and the problem names its file."""
    refused = tmp_path / "shut"
    refused.mkdir()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != refused and real(path, mode))
    code, found = check(
        tmp_path,
        capsys,
        shut={"adaptor": "file", "path": "shut/out.jsonl"},
        fine={"adaptor": "file", "path": "out.jsonl"},
    )
    assert code == 3
    ((level, text),) = found["shut"]
    assert level == "problem"
    assert f"may not write {refused}" in text
    assert found["fine"][0][0] == "fine"


def test_a_missing_source_file_is_a_problem_unless_it_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing source file is a problem, and with follow only a warning."""
    for follow, code, level in ((False, 3, "problem"), (True, 0, "warning")):
        document = {
            "log": {"dir": "log"},
            "readers": [{"name": "in", "adaptor": "file", "path": "none", "follow": follow}],
            "routes": [{"name": "out", "writer": {"adaptor": "file", "path": "-"}}],
        }
        (tmp_path / "p.yaml").write_text(json.dumps(document))
        assert app.execute(["check", "--connect", str(tmp_path / "p.yaml")]) == code
        assert f"{level}: {tmp_path}/none: " in capsys.readouterr().out


def test_adaptors_of_others_may_have_a_probe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adaptor without a probe is skipped, a failing one is a problem, and no secret is shown."""
    monkeypatch.setattr(connection_checks, "_PATIENCE", 1.0)
    code, found = check(
        tmp_path,
        capsys,
        silent={"adaptor": "odd:Silent"},
        raises={"adaptor": "odd:Raises", "password": "s3cret-word"},
        hangs={"adaptor": "odd:Hangs"},
    )
    assert code == 3
    assert found["silent"] == [("warning", "not checked: this adaptor has no probe")]
    assert found["raises"] == [
        ("fine", "it is there"),
        ("problem", "RuntimeError: no, ***, not with me"),
    ]
    assert found["hangs"] == [("problem", "there was no answer within 1 s")]


def test_a_cluster_that_does_not_answer_is_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each master that does not answer is named."""
    document = {
        "log": {"dir": "log"},
        "readers": [{"name": "in", "adaptor": "file", "path": "none", "follow": True}],
        "routes": [{"name": "out", "writer": {"adaptor": "file", "path": "-"}}],
        "spark": {"master": "spark://127.0.0.1:1,[::1]:1", "insecure": True},
    }
    (tmp_path / "p.yaml").write_text(json.dumps(document))
    assert app.execute(["check", "--connect", str(tmp_path / "p.yaml")]) == 3
    said = capsys.readouterr().out
    assert "problem: the master at 127.0.0.1:1 does not answer" in said
    assert "problem: the master at [::1]:1 does not answer" in said
    assert "known" not in said
