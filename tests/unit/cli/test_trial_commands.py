"""Output of ``transporter test`` and ``dry-run``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from transporter.cli import app
from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch

if TYPE_CHECKING:
    from pathlib import Path

PIPELINE = """
log: {dir: log}
readers: [{name: in, adaptor: file, path: in.jsonl}]
routes:
  - name: events
    namespace: ^orders
    steps: [{omit: {fields: [card]}}, {python: {function: "split:split"}}]
    writer: {adaptor: kafka, bootstrap_servers: "${KAFKA:?set KAFKA}"}
  - {name: all, writer: {adaptor: file, path: all.jsonl}}
"""
SPLIT = """
from dataclasses import replace


def split(message):
    if b"two" in message.data:
        return [message, replace(message, key=b"second")]
    return message
"""
CASES = """
pipeline: p.yaml
cases:
  - name: right
    route: events
    input: {namespace: orders, data: {card: 1}}
    output: {data: {}}
  - name: wrong
    route: events
    input: {namespace: orders, data: {a: 1}}
    output: {data: {a: "\\e[2J"}}
"""


@pytest.fixture(name="folder")
def _folder(folder: Path) -> Path:
    """Return the folder of a pipeline with five entries in its log and an unset secret."""
    (folder / "p.yaml").write_text(PIPELINE)
    (folder / "split.py").write_text(SPLIT)
    (folder / "cases.yaml").write_text(CASES)
    texts = [b'{"card":1,"a":1}', b'{"card":\x1b[2J', b'{"a":2}', b'{"two":3}']
    messages = [Message("orders", text, b"k%d" % n) for n, text in enumerate(texts)]
    with CommitLog.open(folder / "log") as log:
        log.append(messages_to_batch([*messages, Message("users", b"\xff")]), "in")
    return folder


def test_cases_are_told_one_by_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each case is a line, and a failed one has its place and its escaped difference."""
    assert app.execute(["test", str(folder / "cases.yaml")]) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert lines[0] == "passed  right"
    assert lines[1] == f"FAILED  wrong  ({folder / 'cases.yaml'}:8)"
    assert '        -     "a": "\\u001b[2J"' in lines
    assert '        +     "a": 1' in lines
    assert lines[-1] == "1 passed, 1 failed"


def test_cases_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json all verdicts are one list, and the exit code is the same."""
    assert app.execute(["test", str(folder / "cases.yaml"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    right, wrong = found["result"]
    assert (right["case"], right["passed"], right["problems"]) == ("right", True, [])
    assert (wrong["line"], wrong["passed"]) == (8, False)


def test_cases_that_all_pass_are_exit_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several files are run one after another."""
    file = folder / "cases.yaml"
    file.write_text(CASES.partition("  - name: wrong")[0])
    assert app.execute(["test", str(file), str(file)]) == 0
    assert capsys.readouterr().out.endswith("2 passed, 0 failed\n")


def test_a_dry_run_shows_what_goes_in_beside_what_comes_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Changed, failed, unchanged, split and skipped entries are shown in the order of offsets."""
    assert app.execute(["dry-run", str(folder / "p.yaml"), "events"]) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "\x1b" not in captured.out
    head, columns, *rows, _ = captured.out.splitlines()
    assert head == "route events: 5 entries would give 4 messages; 1 would be skipped, 1 would fail"
    assert columns.split() == ["OFFSET", "NAMESPACE", "KEY", "IN", "OUT"]
    cells = [row.split(None, 4) for row in rows]
    assert cells[0] == ["0", "orders", "k0", '{"card":1,"a":1}', '{"a":1}']
    assert cells[1][:4] == ["1", "orders", "k1", '{"card":\\x1b[2J']
    assert cells[1][4].startswith("fails: omit: ")
    assert cells[2] == ["2", "orders", "k2", '{"a":2}', "the same"]
    assert cells[3] == ["3", "orders", "k3", '{"two":3}', "the same"]
    assert rows[4].split() == ["key=second", '{"two":3}']
    assert rows[5].split() == ["4", "users", "null", '{"base64":', '"/w=="}', "skipped"]


def test_a_dry_run_of_all_routes_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without names every route is tried, on the selected entries only."""
    words = ["dry-run", str(folder / "p.yaml"), "--last", "1", "--namespace", "^orders", "--json"]
    assert app.execute(words) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert sorted(result) == ["all", "events"]
    (tried,) = result["all"]
    assert tried["offset"] == 3
    assert [each["key"] for each in tried["output"]] == ["k3"]
    assert [each["key"] for each in result["events"][0]["output"]] == ["k3", "second"]


def test_a_dry_run_changes_nothing(folder: Path) -> None:
    """Neither the log nor an offset log is touched, and no sink is made."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    app.execute(["dry-run", str(folder / "p.yaml")])
    after = {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert after == before


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["dry-run", "{}/p.yaml", "evens"], 2, "there is no route 'evens'; did you mean 'events'?"),
        (["dry-run", "{}/none.yaml"], 2, "cannot be read"),
        (["test", "{}/none.yaml"], 2, "cannot be read"),
        (["test"], 2, "Missing argument"),
    ],
)
def test_what_is_not_there_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, told: str
) -> None:
    """Wrong names are errors with a suggestion, and stdout stays empty."""
    assert app.execute([word.format(folder) for word in words]) == code
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.out == ""


def test_a_dry_run_of_very_large_entries_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All entries are in memory, so their size is limited, too (Invariant 17)."""
    monkeypatch.setattr("transporter.cli.dry_run._MOST_BYTES", 10)
    assert app.execute(["dry-run", str(folder / "p.yaml")]) == 2
    assert "select fewer with --last, --from and --to" in capsys.readouterr().err
