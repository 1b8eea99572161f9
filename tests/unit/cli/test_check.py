"""Refusal of unusable paths by ``transporter check``, before anything runs."""

from __future__ import annotations

import errno
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from transporter.cli import app
from transporter.pipeline import path_checks

if TYPE_CHECKING:
    from pathlib import Path


def check(folder: Path, log: str, sink: str = "out.jsonl", source: str = "in.jsonl") -> int:
    """Check a pipeline in *folder* with these paths, and return the exit code."""
    document = {
        "log": {"dir": log},
        "readers": [{"name": "in", "adaptor": "file", "path": source}],
        "routes": [{"name": "out", "writer": {"adaptor": "file", "path": sink}}],
    }
    (folder / "file").touch()
    (folder / "p.yaml").write_text(json.dumps(document, indent=1))
    return app.execute(["check", str(folder / "p.yaml")])


def test_how_long_history_lasts_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The retention time is shown, before a replay needs entries that are gone."""
    assert check(tmp_path, "log") == 0
    rows = [line.split(None, 1) for line in capsys.readouterr().out.splitlines()]
    assert ["history", "delivered entries stay 7d; no compaction"] in rows


def test_variables_that_are_unset_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A default that counts is not silent. Its value may be a secret, and is not shown."""
    monkeypatch.setenv("TABLE", "in.jsonl")
    monkeypatch.delenv("PLACE", raising=False)
    assert check(tmp_path, "${PLACE:-log}", source="${TABLE:-other}") == 0
    rows = [line.split(None, 1) for line in capsys.readouterr().out.splitlines()]
    assert ["unset", "PLACE: the file's default counts"] in rows
    assert app.execute(["check", "--json", str(tmp_path / "p.yaml")]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["defaulted"] == ["PLACE"]
    monkeypatch.setenv("PLACE", "log")
    assert app.execute(["check", str(tmp_path / "p.yaml")]) == 0
    assert "default counts" not in capsys.readouterr().out


def test_a_file_that_is_read_and_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each delivery would be read again, for ever. A device is another thing at each end."""
    (tmp_path / "link").symlink_to(tmp_path / "in.jsonl")
    assert check(tmp_path, "log", sink="link") == 2
    assert "is read by readers[0].path, so it would feed itself" in capsys.readouterr().err
    assert check(tmp_path, "log", sink="/dev/null", source="/dev/null") == 0


def test_a_file_name_that_no_disk_takes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the setting and its line, as for a folder that cannot be."""
    for given, name in (("source", "readers[0].path"), ("sink", "routes[0].writer.path")):
        assert check(tmp_path, "log", **{given: "x" * 300}) == 2
        assert f"{name}: cannot be used: File name too long" in capsys.readouterr().err


def test_a_file_in_a_folder_that_may_not_be_entered_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system refuses even to look at it, which is reported with the setting."""
    lstat = os.lstat

    def refuse(path: str | Path) -> os.stat_result:
        if "/shut/" in os.fspath(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return lstat(path)

    monkeypatch.setattr(path_checks.os, "lstat", refuse)
    assert check(tmp_path, "log", sink="shut/out") == 2
    problem = "routes[0].writer.path: cannot be used: Permission denied"
    assert problem in capsys.readouterr().err


def test_what_user_code_prints_is_no_result(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The one object of ``--json`` is all of stdout, whatever an import prints."""
    (tmp_path / "loud_step.py").write_text(
        "import os\nprint('imported')\nos.system('echo by a process')\ndef same(m): return m\n"
    )
    assert check(tmp_path, "log") == 0
    file = tmp_path / "p.yaml"
    document = json.loads(file.read_text())
    document["routes"][0]["steps"] = [{"python": {"function": "loud_step:same"}}]
    file.write_text(json.dumps(document))
    capfd.readouterr()
    assert app.execute(["check", "--json", str(file)]) == 0
    found = capfd.readouterr()
    assert json.loads(found.out)["ok"]
    assert found.err.split("\n")[:2] == ["imported", "by a process"]


@pytest.mark.parametrize("log", ["log", "a/b/log", ".", "link"])
def test_directories_that_can_be_made_are_accepted(tmp_path: Path, log: str) -> None:
    """The directories need not exist, and none is created."""
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
    ],
)
def test_a_log_directory_that_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str, text: str
) -> None:
    """The error names the key, its line and the obstacle."""
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert check(tmp_path, log) == 2
    said = capsys.readouterr().err
    assert "log.dir: " in said
    assert f"{tmp_path}/p.yaml:3" in said
    assert text in said


def test_a_log_directory_of_somebody_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the user and the directory without write permission."""
    monkeypatch.setattr(path_checks.os, "access", lambda _, mode, **__: not mode & os.W_OK)
    assert check(tmp_path, "log") == 2
    assert f"{tmp_path}: this user (id {os.geteuid()}) may not write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "paths"),
    [("readers[0].path", {"source": "file/in"}), ("routes[0].writer.path", {"sink": "file/out"})],
)
def test_paths_of_adaptors_below_a_file_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, paths: dict[str, str]
) -> None:
    """The error names a reader's or a writer's path like the log's."""
    assert check(tmp_path, "log", **paths) == 2
    assert f"{key}: {tmp_path}/file is not a directory" in capsys.readouterr().err


_FILE = {"adaptor": "file", "path": "f"}
_HTTP = {"adaptor": "http", "url": "https://host/"}
_KAFKA = {"adaptor": "kafka", "bootstrap_servers": "host:1", "topic": "t"}
_TLS = {"security_protocol": "ssl"}


@pytest.mark.parametrize("path", ["a\0b", "a/\0", "a\ud800b"])
@pytest.mark.parametrize(
    ("place", "key", "settings"),
    [
        ("log", "dir", {}),
        ("readers", "path", _FILE),
        ("writer", "path", _FILE),
        ("writer", "path", {"adaptor": "lmdb"}),
        ("writer", "path", {"adaptor": "spark"}),
        ("writer", "ca_file", _HTTP),
        ("writer", "ssl_ca", _KAFKA | _TLS),
        ("writer", "ssl_certificate", _KAFKA | _TLS | {"ssl_key": "k"}),
        ("writer", "ssl_key", _KAFKA | _TLS | {"ssl_certificate": "c"}),
        ("readers", "dsn", {"adaptor": "postgres-outbox"}),
        ("steps", "file", {}),
    ],
)
def test_no_setting_takes_a_path_that_cannot_be(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    place: str,
    key: str,
    settings: dict[str, str],
    path: str,
) -> None:
    """A path with a NUL or half a character is refused before a start."""
    value = f"host=/{path} sslmode=verify-full" if key == "dsn" else path
    given: dict[str, Any] = {**settings, key: value}
    route: dict[str, Any] = {"name": "out", "writer": given if place == "writer" else _FILE}
    if place == "steps":
        route["steps"] = [{"starlark": given}]
    document = {
        "log": given if place == "log" else {"dir": "log"},
        "readers": [{"name": "in", **(given if place == "readers" else _FILE)}],
        "routes": [route],
    }
    (tmp_path / "p.yaml").write_text(json.dumps(document))
    assert app.execute(["check", str(tmp_path / "p.yaml")]) == 2
    said = capsys.readouterr().err
    assert f".{key} " in said
    assert "\0" not in path or "NUL character" in said


@pytest.mark.parametrize(
    ("path", "text"), [("file:///a%00b", "NUL"), ("file:///a\0b", "NUL"), ("~nosuchuser/a", "`~`")]
)
def test_folders_of_spark_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, text: str
) -> None:
    """A path is refused as a URL too, where the character is written as %00."""
    document = {
        "readers": [{"name": "in", **_FILE}],
        "routes": [{"name": "out", "writer": {"adaptor": "spark", "path": path}}],
    }
    (tmp_path / "p.yaml").write_text(json.dumps(document))
    assert app.execute(["check", str(tmp_path / "p.yaml")]) == 2
    said = capsys.readouterr().err
    assert "routes[0].writer.path is not a path" in said
    assert text in said


def test_tracing_without_its_extra_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing extra is an environment fault, and the error names the package."""
    monkeypatch.delitem(sys.modules, "transporter.observe.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    document = {
        "observe": {"tracing": {"endpoint": "http://127.0.0.1:4318/v1/traces"}},
        "readers": [{"name": "in", "adaptor": "file", "path": "in.jsonl"}],
        "routes": [{"name": "out", "writer": {"adaptor": "file", "path": "out.jsonl"}}],
    }
    (tmp_path / "p.yaml").write_text(json.dumps(document))
    assert app.execute(["check", str(tmp_path / "p.yaml")]) == 3
    assert "pip install 'transporter-engine[otel]'" in capsys.readouterr().err


def test_a_renamed_route_is_refused_before_a_start_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A route that is new beside the log's own is named with its line and the command."""
    assert check(tmp_path, "log") == 0
    (tmp_path / "log" / "offsets" / "before").mkdir(parents=True)
    assert check(tmp_path, "log") == 2
    said = capsys.readouterr().err
    assert "p.yaml:1" in said
    assert f"transporter offsets rename {tmp_path / 'p.yaml'} before " in said
