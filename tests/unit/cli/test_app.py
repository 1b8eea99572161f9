"""Exit codes and errors of the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from transporter import __version__
from transporter.cli import app, check
from transporter.errors import EnvironmentFault, LogError, TransporterError

if TYPE_CHECKING:
    from pathlib import Path

INTERRUPTED = """
import os, signal, sys, time
from transporter.cli import app

class Closing:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass

def execute(_):
    try:
        Closing()
        time.sleep(5)
    except KeyboardInterrupt:
        return 130
    return 0

app.execute = execute
sys.argv = ["transporter", "log"]
app.main()
"""


def test_an_interrupt_within_a_finaliser_is_not_lost() -> None:
    """Python drops what is raised while an object is closed, so Ctrl-C is raised again."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], timeout=60, check=False, capture_output=True
    )
    assert (done.returncode, done.stderr) == (130, b"")


def test_a_command_whose_module_is_missing_is_a_broken_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another distribution may have overwritten it: the error names the commands to run."""
    monkeypatch.setitem(sys.modules, "transporter.cli.status", None)
    assert app.execute(["status", "log"]) == 3
    assert "error: the installation is not complete: " in capsys.readouterr().err


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make ``check`` raise *error*."""

    def explode(*_: object) -> None:
        raise error

    monkeypatch.setattr("transporter.pipeline.config.load_with_lines", explode)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LogError("broken"), 1),
        (EnvironmentFault("no Java"), 3),
        (TransporterError("odd"), 1),
        (KeyboardInterrupt(), 130),
        (RuntimeError("x"), 1),
    ],
)
def test_errors_become_exit_codes(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    """Each kind of error has its own exit code."""
    failing(monkeypatch, error)
    assert app.execute(["check", "x.yaml"]) == code


def test_an_interrupt_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C prints no error."""
    failing(monkeypatch, KeyboardInterrupt())
    app.execute(["check", "x.yaml"])
    assert capsys.readouterr() == ("", "")


def test_an_unexpected_error_is_one_line_without_its_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug is reported by type and place, without its text, which may hold a secret."""
    monkeypatch.delenv(app.DEBUG, raising=False)
    failing(monkeypatch, RuntimeError("password=hunter22"))
    app.execute(["check", "x.yaml"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "this is a bug in transporter: RuntimeError at test_app.py:" in line
    assert "hunter22" not in line


def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """TRANSPORTER_DEBUG=1 adds the traceback, on stderr only."""
    monkeypatch.setenv(app.DEBUG, "1")
    failing(monkeypatch, RuntimeError("x"))
    app.execute(["check", "x.yaml", "--json"])
    captured = capsys.readouterr()
    assert "Traceback (most recent call last)" in captured.err
    assert json.loads(captured.out)["error"]["type"] == "InternalError"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["chek"], "No such command 'chek'. Did you mean 'check'"),
        (["check"], "Missing argument 'PIPELINE'. Try 'transporter check --help'."),
        (["check", "x", "--jsno"], "No such option"),
        (["log", "shwo"], "No such command 'shwo'"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], text: str) -> None:
    """A command line that cannot be parsed exits with 2 and points to the help."""
    assert app.execute(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert text in captured.err


@pytest.mark.parametrize("group", ["adaptors", "log", "offsets", "outbox", "parked", "route"])
def test_a_group_alone_shows_its_commands(capsys: pytest.CaptureFixture[str], group: str) -> None:
    """Like ``transporter`` itself, a group without a command shows its help."""
    assert app.execute([group]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"Usage: transporter {group} ")
    assert "--help  Show this message and exit." in captured.out
    assert captured.err == ""


def test_wrong_usage_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json a usage error is an object, too."""
    assert app.execute(["chek", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["type"], error["exit_code"]) == ("UsageError", 2)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints the version and nothing else."""
    assert app.execute(["--version"]) == 0
    assert capsys.readouterr().out == f"transporter {__version__}\n"


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The bare command lists the commands."""
    assert app.execute([]) == 0
    assert check.check.__doc__ is not None
    assert "Validate a pipeline file" in capsys.readouterr().out


def test_the_package_runs_as_the_command(tmp_path: Path) -> None:
    """``python -m transporter`` is the command."""
    words = [sys.executable, "-m", "transporter", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"transporter {__version__}\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_as_if_nobody_listened(closed: str, tmp_path: Path) -> None:
    """A caller that closes standard streams gets the exit code, and no file takes their place."""
    found = tmp_path / "found"
    found.mkdir()
    command = f'"$0" -m transporter status "$1" --json {closed}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, str(found)], check=False, capture_output=True
    )
    assert done.returncode == 3
    assert b"Traceback" not in done.stdout + done.stderr
