"""The texts of ``transporter status``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_tools import until
from live_tools import lines, operated

from transporter.cli.status import next_lines
from transporter.control import requests

if TYPE_CHECKING:
    from pathlib import Path


def test_a_stopped_route_comes_with_the_commands_for_it(tmp_path: Path) -> None:
    """They name the route, and the entry that it stands before."""
    stuck = {"on_error": "stop", "retry": {"attempts": 1}, "writer": {"reject": [1]}}
    with operated(tmp_path, lines(3), **{"out-1": stuck}) as op:
        until(lambda: op.route("out-1")["state"] == "stopped")
        said = list(next_lines(op(requests.Status()), "a.yaml", "a.yaml"))
        assert said[0] == "next for route out-1, which stands before entry 1:"
        assert [line.split("#")[0].split() for line in said[1:]] == [
            ["transporter", "log", "show", "a.yaml", "1"],
            ["transporter", "route", "resume", "a.yaml", "out-1"],
            ["transporter", "ack", "a.yaml", "out-1", "1", "--reason", "…"],
        ]
        op(requests.Ack("out-1", 1, 1, "bad"))
        until(lambda: op.route("out-1")["watermark"] == 2)
        assert list(next_lines(op(requests.Status()), "a.yaml", "a.yaml")) == []


def test_without_an_engine_the_next_run_tries_again() -> None:
    """A route that waited when its engine ended comes with the commands for then."""
    route = {"name": "out", "state": "stopped", "next": 7, "problem": "offset 7: it says FAIL"}
    found = {"running": False, "readers": [], "routes": [route]}
    assert list(next_lines(found, "log", "FILE")) == [
        "next for route out, which stands before entry 7:",
        "  transporter log show log 7            # look at the entry",
        "  transporter run FILE                  # try again, once the cause is removed",
        "  transporter ack log out 7 --reason …  # or go on without this entry",
    ]


def test_a_stopped_reader_comes_with_its_command() -> None:
    """A reader is restarted, which opens it again."""
    found = {"readers": [{"name": "in", "state": "stopped"}], "routes": []}
    assert list(next_lines(found, "'a b.yaml'", "'a b.yaml'")) == [
        "next for reader in, once the cause is removed:",
        "  transporter reader restart 'a b.yaml' in",
    ]
