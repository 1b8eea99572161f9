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
import threading
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

import psutil
import pytest
from engine_tools import until
from operator_tools import ENVIRONMENT, command, feed, operated, route, write_file

from transporter.cli.app import execute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

UI = [sys.executable, "-m", "transporter.cli.app", "ui"]
MOST_MEMORY = 110 << 20
MOST_ENGINE_MEMORY = 2 << 20


class Ui:
    """A console that runs, and a browser of sorts that has logged in by a link."""

    def __init__(self, process: subprocess.Popen[str], url: str, link: str) -> None:
        self.process, self.url, self.link = process, url, link
        self.cookie = self.sent = ""

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

    def post(self, path: str, fields: dict[str, str]) -> tuple[int, str, dict[str, str]]:
        """Send a form as a browser does, and return status, text and headers of the answer."""
        peer = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        headers = {
            "Cookie": self.cookie,
            "Sec-Fetch-Site": "same-origin",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        try:
            peer.request("POST", path, urlencode(fields), headers)
            self.sent = path
            found = peer.getresponse()
            return found.status, found.read().decode(), dict(found.getheaders())
        finally:
            peer.close()

    def act(self, act: str, values: dict[str, str]) -> tuple[int, str, dict[str, str]]:
        """Open the form of an act, and send it with what it asks for."""
        path = f"/p/pipeline/{act}"
        status, text, _ = self.get(f"{path}?{urlencode(values)}")
        assert status == 200, text
        hidden = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', text)
        typed = re.search(r"<label>Type (.*?) to confirm", text)
        asked = {"typed": typed[1]} if typed else {}
        return self.post(path, {**values, **dict(hidden), **asked, "reason": "by hand"})

    def act_unanswered(self, act: str, offsets: str) -> None:
        """Do an act during which the console dies."""
        with suppress(OSError, http.client.HTTPException):
            self.act(act, {"offsets": offsets})

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


ACTS: Final = (
    ("r/events/pause", {}, "route pause"),
    ("r/events/step", {}, "route step"),
    ("r/events/ack", {"first": "1", "last": "1"}, "ack"),
    ("r/events/resume", {}, "route resume"),
    ("r/sales/parked/note", {"offsets": "3", "text": "waits for ACME"}, "parked note"),
    ("r/sales/parked/retry", {"offsets": "3"}, "parked retry"),
    ("r/sales/replay", {"from": "0", "to": "2"}, "replay"),
    ("r/sales/parked/skip", {"offsets": "3"}, "parked skip"),
    ("reader/in/pause", {}, "reader pause"),
    ("reader/in/resume", {}, "reader resume"),
    ("reader/in/restart", {}, "reader restart"),
    ("reload", {}, "reload"),
)


def test_each_act_reaches_the_engine(tmp_path: Path) -> None:
    """Each is done by the engine, whose audit file names the person; pages show its effect."""
    routes = [route("sales", on_error="park", writer={"reject": [3]}), route("events")]
    pipeline = write_file(tmp_path, routes)
    feed(tmp_path, *(f"{'ab'[number % 2]} {number}" for number in range(6)))
    with operated(pipeline), console(pipeline) as ui:
        assert ui.log_in(ui.link) == 303
        until(lambda: ui.result("/p/pipeline/parked?route=sales") != [])
        done("route", "pause", str(pipeline), "events")
        feed(tmp_path, "a 6", "b 7", "a 8")
        until(lambda: ui.result("/p/pipeline")["last"] == 8)
        for act, values, action in ACTS:
            if act == "reload":
                routes[1]["slice_rows"] = 77
                write_file(tmp_path, routes)
            if act == "r/sales/parked/skip":
                until(lambda: ui.result("/p/pipeline/parked?route=sales") != [])
            status, text, headers = ui.act(act, values)
            assert status == 303, (act, text)
            assert action in [each["action"] for each in ui.result("/p/pipeline/audit")][-2:]
            line = ui.result("/p/pipeline/audit")[-1]
            assert (line["outcome"], line["via"], line["known_by"]) == ("done", "console", "for")
            assert line["reason"] == "by hand"
        assert "reloaded" in ui.get(headers["Location"])[1]
        assert ui.result("/p/pipeline/parked?route=sales") == []
        events = ui.result("/p/pipeline/events")
        acted = [each["action"] for each in events if each["event"] == "operator-acted"]
        assert acted[-1] == "reload"
        assert events == done("events", str(pipeline), "--last", "0")["events"][: len(events)]
        until(lambda: ui.result("/p/pipeline/history")["series"])
        assert "route sales" in ui.get("/p/pipeline/history?part=live")[1]
        assert "no engines take turns" in ui.get("/p/pipeline/cluster?part=live")[1]


@pytest.mark.exhaustive
def test_a_killed_console_leaves_the_audit_true(tmp_path: Path) -> None:
    """The engine ends an act whose console died, and the line has the person and the outcome."""
    (tmp_path / "sales.paused").touch()
    routes = [route("sales", on_error="park", writer={"reject": [1], "pause_at": 4})]
    pipeline = write_file(tmp_path, routes)
    feed(tmp_path, "a 0", "a 1", "a 2")
    with operated(pipeline), console(pipeline) as ui:
        assert ui.log_in(ui.link) == 303
        until(lambda: ui.result("/p/pipeline/parked?route=sales") != [])
        feed(tmp_path, "b 3", "b 4")
        until((tmp_path / "sales.waiting").exists)
        # It waits for the slice, which the sink holds up.
        thread = threading.Thread(target=ui.act_unanswered, args=("r/sales/parked/skip", "1"))
        thread.start()
        until(lambda: ui.sent.endswith("parked/skip"))
        time.sleep(1)
        ui.process.kill()
        thread.join()
        assert done("audit", str(pipeline)) == []
        (tmp_path / "sales.paused").unlink()
        until(lambda: bool(done("audit", str(pipeline))))
        until(lambda: done("audit", str(pipeline))[0]["outcome"] is not None)
        (line,) = done("audit", str(pipeline))
        assert (line["action"], line["outcome"]) == ("parked skip", "done")
        assert (line["via"], line["reason"], line["offsets"]) == ("console", "by hand", [1])
        assert 1 not in [each["offset"] for each in done("parked", "list", str(pipeline), "sales")]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "seconds",
    [10.0, pytest.param(600.0, marks=pytest.mark.timeout(1800))],
)
def test_ten_tabs_cost_the_engine_little(tmp_path: Path, seconds: float) -> None:
    """Viewers share looks, events and history: at most 2 % of a core more, and 2 MiB."""
    pipeline = write_file(tmp_path, [route("sales"), route("events")])
    feed(tmp_path, *(f"a {number}" for number in range(100)))
    pages = ["", "/r/sales", "/events", "/history", "/cluster"] * 2
    with operated(pipeline) as engine, console(pipeline) as ui:
        assert ui.log_in(ui.link) == 303
        process = psutil.Process(engine.process.pid)
        for page in pages:
            assert ui.get(f"/p/pipeline{page}?part=live")[0] == 200
        idle = _cpu_seconds(process, lambda: time.sleep(seconds))
        memory = process.memory_info().rss

        def look() -> None:
            end = time.monotonic() + seconds
            while (begun := time.monotonic()) < end:
                for page in pages:
                    assert ui.get(f"/p/pipeline{page}?part=live")[0] == 200
                time.sleep(max(0.0, 1 - (time.monotonic() - begun)))

        busy = _cpu_seconds(process, look)
        assert busy - idle <= 0.02 * seconds
        assert process.memory_info().rss - memory <= MOST_ENGINE_MEMORY


def _cpu_seconds(process: psutil.Process, work: Callable[[], None]) -> float:
    """Return the seconds of CPU that *process* takes during *work*."""
    before = process.cpu_times()
    work()
    after = process.cpu_times()
    return after.user + after.system - before.user - before.system


def test_a_proxy_that_speaks_tls_gets_a_secure_cookie(tmp_path: Path) -> None:
    """Its headers reach the console, which believes them from the proxy's address alone."""
    for network, secure in (("127.0.0.1/32", True), ("10.0.0.1/32", False)):
        access = {"proxy": {"from": [network], "operators": ["sre"]}}
        pipeline = write_file(tmp_path, [route("out")], observe={"console_access": access})
        with console(pipeline) as ui:
            parts = urlsplit(ui.link)
            _, _, headers = ui.get(f"{parts.path}?{parts.query}", **{"X-Forwarded-Proto": "https"})
            assert ("; Secure" in headers["Set-Cookie"]) is secure
            named = {"X-Forwarded-User": "ann", "X-Forwarded-Groups": "sre"}
            assert ui.get("/help", **named)[0] == (200 if secure else 401)


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


def test_a_log_whose_file_is_missing_is_shown_and_not_changed(tmp_path: Path) -> None:
    """Who may do what stood in the file: without it nobody acts, and no payload is shown."""
    access = {"console_access": {"read_only": True, "payloads": "nobody"}}
    pipeline = write_file(tmp_path, [route()], observe=access)
    feed(tmp_path, "n a-secret-word")
    with operated(pipeline) as engine:
        until((tmp_path / "out.jsonl").exists)
        engine.stop()
    pipeline.rename(tmp_path / "moved.yaml")
    with console(tmp_path / "log") as ui:
        assert ui.log_in(ui.link) == 303
        status, page, _ = ui.get("/p/pipeline/log/0")
        assert status == 200
        assert "a-secret-word" not in page
        status, page, _ = ui.get("/p/pipeline/r/out")
        assert "this console is read-only" in page
