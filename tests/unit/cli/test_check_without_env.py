"""Report of ``transporter check`` without variables or secret files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from transporter.cli import app

if TYPE_CHECKING:
    from pathlib import Path

MISSING = """\
name: ${NAME}
log: {dir: "${STATE}/log", segment_bytes: "${SEGMENT}"}
readers:
  - name: in
    adaptor: kafka
    bootstrap_servers: ${ONE},${TWO:?ask the broker's team}
    topics: [orders]
    group: orders
    client:
      sasl.password: ${file:/nowhere/kafka}
  - name: ${OTHER}
    adaptor: ${ADAPTOR}
    anything: 5
routes:
  - name: out
    slice_rows: ${ROWS}
    parallelism: ${SHARDS}
    after: ${BEFORE}
    steps:
      - pretty: {indent: "${INDENT}"}
      - only: {field: a, operator: "${OPERATOR}", value: 1}
      - remap: {namespace: "${FROM}", to: 'x\\1'}
    writer: {adaptor: file, path: "${file:~nobody-here/path}"}
  - name: ${ROUTE}
    after: nothing-known
    writer: {adaptor: http, url: "${URL}", timeout: "${TIMEOUT}"}
observe: {listen: "${LISTEN}", token: "${TOKEN}"}
spark: {master: "${MASTER}", listen: "10.0.0.1:1"}
"""
WRONG = MISSING.replace("topics:", "topisc:").replace(
    "after: nothing-known", "retry: {attempts: 0}"
)
KEYS = [
    (1, "name"),
    (2, "log.dir"),
    (2, "log.segment_bytes"),
    (6, "readers[0].bootstrap_servers"),
    (6, "readers[0].bootstrap_servers"),
    (10, "readers[0].client.sasl.password"),
    (11, "readers[1].name"),
    (12, "readers[1].adaptor"),
    (16, "routes[0].slice_rows"),
    (17, "routes[0].parallelism"),
    (18, "routes[0].after"),
    (20, "routes[0].steps[0].pretty.indent"),
    (21, "routes[0].steps[1].only.operator"),
    (22, "routes[0].steps[2].remap.namespace"),
    (23, "routes[0].writer.path"),
    (24, "routes[1].name"),
    (26, "routes[1].writer.url"),
    (26, "routes[1].writer.timeout"),
    (27, "observe.listen"),
    (27, "observe.token"),
    (28, "spark.master"),
]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAME", "STATE", "ONE", "TWO", "ROWS", "URL", "TOKEN", "MASTER"):
        monkeypatch.delenv(name, raising=False)


def check(folder: Path, text: str, *options: str) -> int:
    """Check a file that holds *text*, and return the exit code."""
    (folder / "p.yaml").write_text(text)
    return app.execute(["check", str(folder / "p.yaml"), *options])


def test_unset_variables_are_told_beside_everything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All missing variables and all mistakes are reported at once, by line, and nothing else."""
    assert check(tmp_path, WRONG, "--json") == 2
    error = json.loads(capsys.readouterr().out)["error"]
    told = [(each["line"], each["message"]) for each in error["problems"]]
    wrong = [
        (7, "unknown key 'topisc' in readers[0]"),
        (25, "routes[1].retry.attempts must be greater than or equal to 1"),
    ]
    lines = sorted([line for line, _ in KEYS] + [line for line, _ in wrong])
    assert [line for line, _ in told] == lines
    for line, text in wrong:
        assert any(each == line and said.startswith(text) for each, said in told)
    advice = "set it, or give a default with ${ONE:-default}"
    assert (6, f"environment variable ONE is not set: {advice}") in told
    assert (6, "environment variable TWO is not set: ask the broker's team") in told
    assert (10, "secret file /nowhere/kafka cannot be read: No such file or directory") in told


def test_what_is_missing_fits_any_type_without_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that only lacks its environment passes, and each unchecked setting is named."""
    assert check(tmp_path, MISSING, "--without-env", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True
    assert answer["result"]["file"] == str(tmp_path / "p.yaml")
    unchecked = answer["result"]["unchecked"]
    assert [(each["line"], each["key"]) for each in unchecked] == KEYS
    assert unchecked[4]["reason"] == "environment variable TWO is not set"


def test_the_text_says_plainly_what_was_not_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each unchecked setting has a line with file, line, key and reason."""
    assert check(tmp_path, MISSING, "--without-env") == 0
    file, *lines = capsys.readouterr().out.splitlines()
    assert file.endswith("/p.yaml has no errors in the parts that were checked; not checked:")
    assert f"  {tmp_path}/p.yaml:1: name: environment variable NAME is not set" in lines
    assert lines[-2:] == [
        "  whether these settings are compatible with the others around them",
        "not checked: whether the paths can be used, which depends on the host",
    ]


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("anything: 5", "release: sometimes", 13, "readers[1].release must be"),
        ("slice_rows:", "slice_row:", 16, "unknown key 'slice_row'"),
        ("path: ", "pth: ", 23, "unknown key 'pth'"),
        (', path: "${file:~nobody-here/path}"', "", 23, "routes[0].writer.path is missing"),
        ("${ROWS}", "${ROWS", 16, "'${' does not begin a variable"),
        ("after: nothing-known", "after: out\n    parallelism: 0", 26, "parallelism must be"),
        ("spark: {", 'spark: {config: {sparkx: "${V}"}, ', 28, "does not begin with 'spark.'"),
        ('"${INDENT}"}', '"${INDENT}", indnt: 1}', 20, "unknown key 'indnt'"),
        ("/nowhere/kafka", "open", 10, "can be written by every user"),
    ],
)
def test_what_is_wrong_is_told_without_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, line: int, words: str
) -> None:
    """A mistake that no value of a variable could correct exits with 2 and its line."""
    (tmp_path / "open").write_text("x")
    (tmp_path / "open").chmod(0o666)
    assert check(tmp_path, MISSING.replace(old, new, 1), "--without-env") == 2
    said = capsys.readouterr().err.splitlines()
    assert any(words in line for line in said)
    assert said[0].startswith(f"{tmp_path}/p.yaml:{line}: ")
    assert len(said) == (2 if "pth" in new else 1)  # 'path' is then missing.


def test_a_file_that_lacks_nothing_is_checked_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all variables set the pipeline is shown, and paths of the host are not checked."""
    (tmp_path / "taken").touch()
    text = """\
log: {dir: taken/log}
readers: [{name: in, adaptor: demo}]
routes: [{name: out, writer: {adaptor: file, path: "${WHERE}"}}]
"""
    monkeypatch.setenv("WHERE", "-")
    assert check(tmp_path, text, "--without-env") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"p: the file is valid: {tmp_path}/p.yaml"
    assert shown[-1] == "not checked: whether the paths can be used, which depends on the host"
    assert check(tmp_path, text, "--without-env", "--json") == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert (result["name"], result["unchecked"]) == ("p", [])


def test_sources_cannot_be_asked_without_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--connect with --without-env is refused, with the remedy."""
    assert check(tmp_path, MISSING, "--without-env", "--connect") == 2
    assert "leave out --without-env" in capsys.readouterr().err
