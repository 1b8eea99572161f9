"""The files that ``transporter init`` writes, valid at once."""

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
from transporter.errors import ConfigError
from transporter.pipeline.adaptor_registry import (
    READER,
    WRITER,
    adaptor_entry_points,
    find_reader,
    find_writer,
)
from transporter.pipeline.config import load
from transporter.pipeline.json_schema import pipeline_schema
from transporter.scaffold import adaptors
from transporter.scaffold.pipelines import first_pipeline
from transporter.testing.contracts import joined, read_all

PAIRS = [
    *((reader, "file") for reader in sorted(adaptor_entry_points(READER).names)),
    *(("demo", writer) for writer in sorted(adaptor_entry_points(WRITER).names)),
]
CHOICES = {
    (READER, "kafka"): 'topics: ["${KAFKA_TOPIC:?the topics to read}"]',
    (WRITER, "spark"): "path: ${SPARK_PATH:?a folder, relative to the pipeline file",
}
"""Settings of which one of several is needed. The file asks for the first."""


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
    """The file is written, the output names the next command, and no file is overwritten."""
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
    """With its variables set, each first pipeline is valid, also with its commented defaults."""
    file = tmp_path / "p.yaml"
    text = first_pipeline(source, sink, tmp_path)
    for adaptor in ((READER, source), (WRITER, sink)):
        assert CHOICES.get(adaptor, "") in text
    assert "``" not in text
    assert "set it to the" not in text, "each message says more than the name of its setting"
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
        (["init", "pipeline", "http", "file"], "there is no reader 'http'"),
        (["init", "pipeline", "demo", "kafak"], "did you mean 'kafka'?"),
        (
            ["init", "adaptor", "My_Source"],
            "cannot name an adaptor: use lower-case letters, digits and ",
        ),
        (["init", "adaptor", "My_Source"], "such as my-source"),
        (["init", "adaptor", "class"], "such as my-sink"),
        (["init", "adaptor", "../x"], "cannot name an adaptor"),
        (["init", "adaptor", "lmdb"], "there is a module 'lmdb' already, and your own would hide"),
        (["init", "adaptor", "lmdb"], "name the adaptor lmdb-sink"),
        (["init", "adaptor", "json", "--reader"], "name the adaptor json-source"),
        (["init", "adaptor", "quux"], "a client library may be called 'quux', and your own module"),
        (["init", "adaptor", "quux"], "name the adaptor quux-sink"),
        (["init", "adaptor", "sink"], "name the adaptor my-sink"),
        (["init", "adaptor", "confluent-kafka"], "name the adaptor confluent-kafka-sink"),
        (["init", "adaptor", "pytest-xdist"], "there is a package 'pytest-xdist' already"),
    ],
)
def test_what_cannot_be_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    told: str,
) -> None:
    """Unknown adaptors and invalid names are errors, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert app.execute(words) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "passed", "file"),
    [
        ([], 6, "test_my_own.py"),
        (["--reader"], 5, "fill.py"),
        (["--reader", "--writer"], 11, "my_own_reader.py"),
    ],
)
def test_a_new_adaptor_keeps_its_contract(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    passed: int,
    file: str,
) -> None:
    """The contract tests of a new package pass unchanged, and its pipeline is valid."""
    monkeypatch.chdir(tmp_path)
    assert app.execute(["init", "adaptor", "my-own", *options, "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["result"]["files"]
    assert f"my-own/{file}" in files
    assert all((tmp_path / each).exists() for each in files)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"],
        cwd=tmp_path / "my-own",
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert f" {passed} passed" in f" {run.stdout.splitlines()[-1]}"
    check = [sys.executable, "-m", "transporter.cli.app", "check", "my-own/pipeline.yaml"]
    subprocess.run(check, check=True, capture_output=True, timeout=60)
    assert app.execute(["init", "adaptor", "my-own"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_new_reader_reads_what_its_own_script_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script of the package fills a database, and the reader finds all of it."""
    adaptors.write_all(tmp_path / "filled-in", adaptors.adaptor_package("filled-in", ("reader",)))
    subprocess.run([sys.executable, "fill.py"], cwd=tmp_path / "filled-in", check=True, timeout=60)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = find_reader("filled_in:FilledInReader", tmp_path / "filled-in")

    reader = found(found.Config(path=tmp_path / "filled-in" / "filled_in.db", batch_rows=30))
    rows = joined(read_all(reader))

    assert [row.data for row in rows] == [b'{"n": %d}' % n for n in range(100)]


def test_an_installed_adaptor_names_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error about a module hidden by an installed adaptor names its short name."""
    site = tmp_path / "site"
    adaptors.write_all(site, {"put_in.py": "class PutInWriter: ...\n"})
    entry = "[transporter.writers]\nput-in = put_in:PutInWriter\n"
    about = {"METADATA": "Metadata-Version: 2.1\nName: put-in\nVersion: 1\n"}
    adaptors.write_all(site / "put_in-1.dist-info", {**about, "entry_points.txt": entry})
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    adaptors.write_all(tmp_path / "here", {"put_in.py": ""})

    with pytest.raises(ConfigError, match=r"it is installed: write 'adaptor: put-in', or unins"):
        find_writer("put_in:PutInWriter", tmp_path / "here")


@pytest.mark.exhaustive
def test_types_of_a_generated_adaptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new reader and writer pass mypy's strict check in the folder of their author."""
    monkeypatch.chdir(tmp_path)
    assert app.execute(["init", "adaptor", "my-sink", "--reader", "--writer"]) == 0
    folder = tmp_path / "my-sink"
    modules = sorted(each.name for each in folder.glob("my_sink_*.py"))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), *modules]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


HARVEST = """\
harvest:
  dataSource: host=db user=shop password=very-hidden dbname=shop
  name: shop
"""


def test_another_programs_file_is_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is written, losses are on stderr, and ``check --without-env`` accepts it."""
    monkeypatch.chdir(tmp_path)
    Path("reaper.yaml").write_text(HARVEST)
    assert app.execute(["init", "pipeline", "--from", "reaper.yaml", "orders.yaml"]) == 0
    found = capsys.readouterr()
    assert "transporter check orders.yaml" in found.out
    assert "reaper.yaml:3: name has no counterpart" in found.err
    assert "very-hidden" not in found.out + found.err + Path("orders.yaml").read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["orders.yaml", "reaper.yaml"]
    assert app.execute(["check", "--without-env", "orders.yaml"]) == 0
    assert app.execute(["check", "orders.yaml"]) == 2
    assert app.execute(["init", "pipeline", "--from", "reaper.yaml", "orders.yaml"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert app.execute(["init", "pipeline", "--from", "reaper.yaml", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["files"] == ["pipeline.yaml"]
    assert len(result["warnings"]) == 3


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--from", "gone.yaml"], "gone.yaml: cannot be read"),
        (["--from", "gone.js"], "gone.js: cannot be read"),
        (["--from", "a.yaml", "b.yaml", "c.yaml"], "name only FILE"),
        (["demo", "file", "gone/x.yaml"], "gone/x.yaml"),
        ([], "name a SOURCE and a SINK"),
        (["demo"], "name a SOURCE and a SINK"),
    ],
)
def test_what_to_create_must_be_clear(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    problem: str,
) -> None:
    """A source and a sink are needed, or one file to convert that is there."""
    monkeypatch.chdir(tmp_path)
    assert app.execute(["init", "pipeline", *words]) in (2, 3)
    assert problem in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
