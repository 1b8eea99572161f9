"""The console as a process of its own, beside a real engine without Spark."""

from __future__ import annotations

import http.client
import io
import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
import pytest
from engine_tools import until
from operator_tools import ENVIRONMENT, command, feed, operated, route, write_file

from transporter.cli.app import execute

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UI = [sys.executable, "-m", "transporter.cli.app", "ui"]
MOST_MEMORY = 110 << 20


class Ui:
    """A console that runs, and a browser of sorts that has logged in by a link."""

    def __init__(self, process: subprocess.Popen[str], url: str, link: str) -> None:
        self.process, self.url, self.link = process, url, link
        self.cookie = ""

    def get(self, path: str, **headers: str) -> tuple[int, str, dict[str, str]]:
        """Return the status, the text and the headers of a page."""
        peer = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=10)
        try:
            peer.request("GET", path, headers={"Cookie": self.cookie, **headers})
            found = peer.getresponse()
            return found.status, found.read().decode(), dict(found.getheaders())
        finally:
            peer.close()

    def log_in(self, link: str) -> int:
        """Open a login link, and keep the cookie."""
        parts = urlsplit(link)
        status, _, headers = self.get(f"{parts.path}?{parts.query}")
        self.cookie = headers.get("Set-Cookie", "").partition(";")[0]
        return status

    def result(self, path: str) -> Any:
        """Return the result of a page as JSON."""
        status, text, _ = self.get(path, Accept="application/json")
        assert status == 200, text
        return json.loads(text)["result"]


@contextmanager
def console(*targets: Path) -> Iterator[Ui]:
    """Run ``transporter ui`` for the length of a block."""
    words = [*UI, *map(str, targets), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first, second = process.stdout.readline(), process.stdout.readline()
            yield Ui(process, first.split()[-1], second.split()[-1])
        finally:
            if process.poll() is None:
                process.kill()


def done(*arguments: str) -> Any:
    """Run ``transporter`` with ``--json`` in this process, and return its result."""
    with redirect_stdout(io.StringIO()) as output:
        assert execute([*arguments, "--json"]) == 0
    return json.loads(output.getvalue())["result"]


def refused(*arguments: str) -> tuple[int, str]:
    """Run ``transporter`` in this process, and return its exit code with its error."""
    with redirect_stderr(io.StringIO()) as output:
        code = execute(arguments)
    return code, output.getvalue()


def without_times(status: dict[str, Any]) -> dict[str, Any]:
    """Return a status without what changes from one look to the next."""
    readers = [{**each, "still": 0.0} for each in status["readers"]]
    routes = [{**each, "waiting": None} for each in status["routes"]]
    reasons = [{**each, "seconds": 0.0} for each in status["reasons"]]
    return {**status, "readers": readers, "routes": routes, "reasons": reasons}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a pipeline of one route that parks, and one that waits."""
    found = tmp_path_factory.mktemp("console")
    routes = [
        route("sales", on_error="park", writer={"reject": [3]}),
        route("events", namespace="^b", writer={"path": "missing/events.jsonl"}),
    ]
    write_file(found, routes)
    feed(found, *(f"{'ab'[number % 2]} {number}" for number in range(10)))
    return found


def test_a_console_beside_an_engine(folder: Path) -> None:
    """From the link to each page: parity with the commands, acts by commands seen at once."""
    pipeline = folder / "pipeline.yaml"
    with operated(pipeline) as engine, console(pipeline) as ui:
        until(lambda: done("status", str(pipeline))["routes"][0]["parked"] == 1)
        assert ui.get("/p/pipeline")[0] == 401
        assert ui.log_in(ui.link) == 303
        assert Ui(ui.process, ui.url, "").log_in(ui.link) == 401

        _, text, _ = ui.get("/p/pipeline")
        assert f"engine {engine.process.pid} runs" in text
        assert without_times(ui.result("/p/pipeline")) == without_times(
            done("status", str(pipeline))
        )
        assert ui.result("/p/pipeline/log") == done("log", "show", str(pipeline), "--last", "100")
        assert ui.result("/p/pipeline/parked?route=sales") == done(
            "parked", "list", str(pipeline), "sales"
        )
        assert ui.result("/p/pipeline/health") == done("log", "info", str(pipeline))

        done("route", "pause", str(pipeline), "sales", "--reason", "moving the sink")
        assert ui.result("/p/pipeline/audit") == done("audit", str(pipeline))
        until(lambda: "paused" in ui.get("/p/pipeline/r/sales?part=live")[1])
        assert "moving the sink" in ui.get("/p/pipeline/r/sales")[1]

        assert psutil.Process(ui.process.pid).memory_info().rss < MOST_MEMORY
        engine.kill()
        until(lambda: "no engine runs on this log" in ui.get("/p/pipeline?part=live")[1])
        assert ui.result("/p/pipeline/log") == done("log", "show", str(pipeline), "--last", "100")


def test_only_the_socket_gives_further_links(folder: Path) -> None:
    """``--login`` prints one that works, and SIGTERM removes the socket with the console."""
    pipeline = folder / "pipeline.yaml"
    (folder / "log").mkdir(exist_ok=True)
    with console(pipeline) as ui:
        link = command("ui", "--login", str(pipeline)).stdout.strip()
        assert re.fullmatch(re.escape(ui.url) + r"login\?link=[\w-]{43}", link)
        assert ui.log_in(link) == 303
        code, problem = refused("ui", str(pipeline), "--listen", "127.0.0.1:0")
        assert (code, "a console already serves" in problem) == (3, True)
        ui.process.send_signal(signal.SIGTERM)
        assert ui.process.wait(10) == 0
    assert not (folder / "log" / "console.sock").exists()
    assert "no console runs on" in refused("ui", "--login", str(pipeline))[1]


def test_a_console_starts_without_a_log(tmp_path: Path) -> None:
    """It says that there is none yet, and makes no directory."""
    pipeline = write_file(tmp_path, [route("out")])
    with console(pipeline) as ui:
        assert ui.log_in(ui.link) == 303
        status, text, _ = ui.get("/p/pipeline")
        assert status == 200
        assert "There is no log in this directory yet." in text
        for page in ("log", "parked", "audit", "config", "health"):
            status, text, _ = ui.get(f"/p/pipeline/{page}")
            assert status in {200, 404, 503}, page
            assert "bug" not in text
    assert not (tmp_path / "log").exists()


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    """A missing target, a bad address and a taken port each end with their exit code."""
    pipeline = write_file(tmp_path, [route("out")])
    code, problem = refused("ui", str(tmp_path / "none.yaml"))
    assert (code, "no such pipeline file" in problem) == (3, True)
    code, problem = refused("ui", str(pipeline), "--listen", "10.0.0.7:80")
    assert (code, "needs tokens or a proxy" in problem) == (2, True)
    code, problem = refused("ui", str(pipeline), "--listen", "nonsense")
    assert (code, "must be an address and a port" in problem) == (2, True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, problem = refused("ui", str(pipeline), "--listen", address)
    assert (code, "choose another address with --listen" in problem) == (3, True)
