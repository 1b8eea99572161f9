"""Audited user of an action over the control socket: the login user, or else the caller's."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, SparklessHost, make_pipeline
from root_tools import cannot_run, need_root

from transporter.audit import AUDIT, read_audit
from transporter.control.client import EngineClient as Connection
from transporter.control.server import attach_control
from transporter.engine.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOGIN = 12_345
NOT_SET = (1 << 32) - 1
CALLER = """
import os, pathlib, sys
from transporter.control import requests
from transporter.control.client import EngineClient
log, login = sys.argv[1:]
pathlib.Path("/proc/self/loginuid").write_text(login)
with EngineClient(pathlib.Path(log)) as engine:
    engine.call(requests.Pause("out", "why"))
print(os.getpid())
"""
"""Program that calls a running engine with a login uid, or with none."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """Run an engine with a control socket, and yield its log directory."""
    events = Events()
    engine = Engine(make_pipeline(tmp_path, ["a 0"], end=False, out={}), SparklessHost(), events)
    attach_control(engine, {})
    engine.start()
    yield tmp_path / "log"
    engine.stop(0)


def called(log: Path, login: int) -> tuple[int, dict[str, Any]]:
    """Pause a route from a process with this login uid, and return its id and its audit line."""
    need_root("to set a login uid needs root")
    arguments = [sys.executable, "-c", CALLER, str(log), str(login)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
    if "loginuid" in done.stderr:
        cannot_run("this kernel lets nobody set a login uid")
    assert done.returncode == 0, done.stderr
    with (log / AUDIT).open("rb") as file:
        (line,) = read_audit(file)
    return int(done.stdout), line


def test_the_login_user_of_a_caller_is_recorded(log: Path) -> None:
    """The audit line of a live action names the login user, beside the caller's uid."""
    pid, line = called(log, LOGIN)
    assert (line["who"], line["known_by"], line["loginuid"]) == (str(LOGIN), "loginuid", LOGIN)
    assert (line["uid"], line["pid"], line["action"]) == (0, pid, "route pause")
    assert line["outcome"] == "done"


def test_without_a_login_the_uid_of_a_caller_is_recorded(log: Path) -> None:
    """The audit line of a live action names the peer's user if it has no login user."""
    pid, line = called(log, NOT_SET)
    assert (line["who"], line["known_by"], line["uid"]) == ("root", "uid", 0)
    assert "loginuid" not in line
    assert line["pid"] == pid


def test_what_a_caller_claims_to_be_is_refused(log: Path) -> None:
    """A request that names an operator of its own is refused, and is not audited."""
    with Connection(log) as engine:
        engine._lines.send({"op": "pause", "args": {"route": "out", "who": "mallory"}})
        answer = engine._lines.receive()
    assert answer is not None
    assert answer["ok"] is False
    assert not (log / AUDIT).exists()
