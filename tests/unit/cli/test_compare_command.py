"""``transporter compare`` without a server: its refusals, and its output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from transporter_adaptors.postgres_writer.writer import PostgresWriter

from transporter.adaptor import Finding
from transporter.cli import app
from transporter.comparison import ComparedTable, RowDifference, UndecidedRow
from transporter.errors import RouteFault
from transporter.log.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECRET = "hunter-two"  # noqa: S105 - of no server


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs the command, and returns its code and texts."""
    postgres = {"adaptor": "postgres", "dsn": f"postgresql://me:{SECRET}@localhost:1/none"}
    document = {
        "log": {"dir": "log"},
        "readers": [{"name": "in", "adaptor": "file", "path": "in.jsonl"}],
        "routes": [
            {"name": "target", "writer": postgres},
            {"name": "out", "writer": {"adaptor": "file", "path": "out.jsonl"}},
        ],
    }
    (tmp_path / "p.yaml").write_text(json.dumps(document))

    def compare(*words: str) -> tuple[int, str, str]:
        code = app.execute(["compare", str(tmp_path / "p.yaml"), *words])
        written = capsys.readouterr()
        return code, written.out, written.err

    return compare


def results(monkeypatch: pytest.MonkeyPatch, *found: Any) -> None:
    """Let a comparison have these results. The last one may be an error."""

    def compare(*_: object) -> Any:
        for each in found:
            if isinstance(each, Exception):
                raise each
            yield each

    monkeypatch.setattr(PostgresWriter, "compare", compare)


def test_what_cannot_be_compared(run: Callable[..., tuple[int, str, str]]) -> None:
    """A wrong route, sink or option is a usage error, and a missing log one of the host."""
    code, _, error = run("nowhere")
    assert (code, "there is no route 'nowhere'" in error) == (2, True)
    code, _, error = run("out")
    assert (code, "route out has the writer file, whose sink cannot be compared" in error) == (
        2, True
    )  # fmt: skip
    assert run("target", "--wait", "soon")[0] == 2
    code, _, error = run("target")
    assert (code, "no transporter log here" in error) == (3, True)


def test_an_unreachable_sink(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    """A sink that is not there is an error of the host, without its password."""
    CommitLog.open(tmp_path / "log").close()
    code, out, error = run("target")
    assert (code, out) == (3, "")
    assert error.startswith("error: cannot connect to the database:")
    assert SECRET not in error


def test_a_bug_is_no_difference(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1 is for rows that differ, so a comparison that breaks has another."""
    CommitLog.open(tmp_path / "log").close()
    results(monkeypatch, KeyError("x"))
    code, _, error = run("target")
    assert (code, "this is a bug in transporter: KeyError" in error) == (3, True)


def test_results(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come as they are found, and equal, different and unknown have exit codes."""
    CommitLog.open(tmp_path / "log").close()
    row = RowDifference("t", "different", {"id": "1\n"}, ("a", "b"), {"a": "x", "b": None}, None)
    table, late = ComparedTable("t", "public.t", 1200), UndecidedRow("t", {"id": "2"})
    results(monkeypatch, table)
    assert run("target") == (0, "t: 1,200 rows compared with public.t\nno row differs\n", "")
    results(monkeypatch, row, late, table)
    code, out, error = run("target")
    assert code == 1
    assert out == (
        "t  differs  id=1\\n  a, b  a: expected 'x', found none  b: expected NULL, found none\n"
        "t  undecided  id=2\nt: 1,200 rows compared with public.t\n1 row differs\n"
    )
    assert "no engine runs" in error
    results(monkeypatch, late)
    assert run("target")[0] == 3
    results(monkeypatch, Finding(f"t is not compared: {SECRET}", "problem"), table)
    code, out, error = run("target", "--json")
    assert (code, error) == (3, "")
    assert json.loads(out) == {
        "ok": False,
        "result": {
            "route": "target", "differences": [], "undecided": [], "limited": False,
            "tables": [{"table": "t", "source": "public.t", "rows": 1200}],
            "notes": ["problem: t is not compared: ***"],
        },
    }  # fmt: skip
    results(monkeypatch, row, row, RouteFault("never reached"))
    code, out, error = run("target", "--limit", "2")
    assert (code, out.count("differs")) == (1, 2)
    assert "ended after 2 rows; --limit 0 shows all" in error
    results(monkeypatch, row, RouteFault(f"table is gone {SECRET}"))
    assert (run("target")[0], run("target", "--json")[0]) == (3, 3)
