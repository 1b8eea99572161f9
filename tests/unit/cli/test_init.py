"""``transporter init``: what it writes is right at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from transporter.cli import app
from transporter.pipeline.config import load
from transporter.pipeline.registry import READER, WRITER, known
from transporter.pipeline.schema import pipeline_schema
from transporter.starting.pipelines import first_pipeline

PAIRS = [
    *((reader, "file") for reader in sorted(known(READER).names)),
    *(("demo", writer) for writer in sorted(known(WRITER).names)),
]


class Anything(dict[str, str]):
    """An environment in which every variable is set."""

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> str:
        return {"DSN": "dbname=x", "URL": "http://x"}.get(name[-3:], "x")

    def get(self, name: str, default: Any = None) -> Any:
        return self[name]


def test_a_pipeline_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is there, says what to do next, and is not overwritten."""
    monkeypatch.chdir(tmp_path)
    assert app.execute(["init", "pipeline", "demo", "kafka"]) == 0
    assert "transporter check pipeline.yaml" in capsys.readouterr().out
    before = Path("pipeline.yaml").read_text()
    assert app.execute(["init", "pipeline", "demo", "file"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert Path("pipeline.yaml").read_text() == before
    assert app.execute(["check", "pipeline.yaml"]) == 2
    assert "KAFKA_BOOTSTRAP_SERVERS" in capsys.readouterr().err


@pytest.mark.parametrize(("source", "sink"), PAIRS)
def test_what_is_written_is_a_right_pipeline(tmp_path: Path, source: str, sink: str) -> None:
    """Once its variables are set every first pipeline is valid, also with all that it proposes."""
    file = tmp_path / "p.yaml"
    text = first_pipeline(source, sink)
    file.write_text(text)
    load(file, Anything())
    document = YAML(typ="safe", pure=True).load(text)
    assert Draft202012Validator(pipeline_schema()).is_valid(document)
    proposed = [line for line in text.splitlines() if line.endswith(("# duration", "# size"))]
    uncommented = text
    for line in proposed:
        uncommented = uncommented.replace(line, line.replace("# ", "", 1))
    file.write_text(uncommented)
    load(file, Anything())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["init", "pipeline", "kafka", "file"], "there is no reader 'kafka'"),
        (["init", "pipeline", "demo", "kafak"], "did you mean 'kafka'?"),
        (["init", "adaptor", "My_Sink"], "cannot name an adaptor"),
        (["init", "adaptor", "class"], "cannot name an adaptor"),
        (["init", "adaptor", "../x"], "cannot name an adaptor"),
    ],
)
def test_what_cannot_be_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    told: str,
) -> None:
    """Unknown adaptors and names that cannot be are errors, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert app.execute(words) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_new_adaptor_keeps_its_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The contract tests of the package that is made pass as it is, and its pipeline is valid."""
    monkeypatch.chdir(tmp_path)
    assert app.execute(["init", "adaptor", "my-sink", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["result"]["files"]
    assert "my-sink/test_my_sink.py" in files
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"],
        cwd=tmp_path / "my-sink",
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert " 6 passed" in f" {run.stdout.splitlines()[-1]}"
    check = [sys.executable, "-m", "transporter.cli.app", "check", "my-sink/pipeline.yaml"]
    subprocess.run(check, check=True, capture_output=True, timeout=60)
    assert app.execute(["init", "adaptor", "my-sink"]) == 2
    assert "exists already" in capsys.readouterr().err
