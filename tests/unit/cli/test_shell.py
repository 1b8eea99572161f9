"""Command ``transporter shell`` without its Spark."""

from __future__ import annotations

import io
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

from transporter.cli import app
from transporter.log.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest


def test_a_statement_says_that_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The start can take a minute, so it is not silent. Standard output has the result alone."""
    CommitLog.open(tmp_path / "log").close()
    answers = [{"columns": ["n"]}, {"row": [0]}, {"end": True}]

    @contextmanager
    def answering(_: dict[str, str]) -> Iterator[tuple[io.StringIO, io.StringIO]]:
        assert capsys.readouterr().err == "starting Spark …\n"
        yield io.StringIO("".join(f"{json.dumps(each)}\n" for each in answers)), io.StringIO()

    monkeypatch.setattr("transporter.cli.shell._run_statement", answering)
    monkeypatch.setattr("transporter.cli.shell.spark_environment", dict)
    words = ["shell", str(tmp_path / "log"), "-e", "SELECT count(*) AS n FROM log"]
    assert app.execute(words) == 0
    assert capsys.readouterr().out == "N\n0\n"
