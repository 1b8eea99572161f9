"""The console that an engine starts when somebody connects."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
import pytest
from engine_tools import Events, until

from transporter.console.launcher import ConsoleLauncher
from transporter.console.login_socket import (
    NAME,
    LoginSocket,
    listening,
    refuse_second,
    request_link,
)
from transporter.errors import EnvironmentFault
from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch
from transporter.pipeline.observe_config import ConsoleConfig
from transporter.process_limits import raise_descriptor_limit

if TYPE_CHECKING:
    from collections.abc import Iterator


def write_pipeline(folder: Path, address: str = "127.0.0.1:0") -> Path:
    """Write a pipeline file whose log has one entry, and return it."""
    document = {
        "log": {"dir": "log"},
        "readers": [{"name": "in", "adaptor": "file", "path": "in.jsonl"}],
        "routes": [{"name": "out", "writer": {"adaptor": "file", "path": "out.jsonl"}}],
        "observe": {"console": address, "listen": "off"},
    }
    file = folder / "pipeline.yaml"
    file.write_text(json.dumps(document))
    (folder / "in.jsonl").touch()
    with CommitLog.open(folder / "log") as log:
        log.append(messages_to_batch([Message("n", b"x")]), "in")
    return file


@contextmanager
def launched(
    file: Path, events: Events, address: str = "127.0.0.1:0", idle: float = 600.0
) -> Iterator[ConsoleLauncher]:
    """Run a launcher without its engine, and check that it leaves nothing behind."""
    config = ConsoleConfig.model_validate({"console": address})
    launcher = ConsoleLauncher(file, file.parent / "log", config, idle)
    launcher.report_to(events)
    launcher.start(pytest.fail)
    try:
        yield launcher
    finally:
        launcher.stop()
    assert children() == []
    assert not (file.parent / "log" / NAME).exists()


def children() -> list[psutil.Process]:
    """Return the consoles that this process has started."""
    found = []
    for each in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # It may have just ended, and be a zombie.
            if "transporter.cli.engine_console" in each.cmdline():
                found.append(each)
    return found


def get(url: str, path: str) -> int:
    """Return the status of a page."""
    peer = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        peer.request("GET", path)
        return peer.getresponse().status
    finally:
        peer.close()


def test_a_console_begins_with_the_first_who_asks_and_leaves_when_nobody_does(
    tmp_path: Path,
) -> None:
    """Nothing runs before, each caller is answered, and the link of the command logs in."""
    file, events = write_pipeline(tmp_path), Events()
    with launched(file, events, idle=2.0) as launcher:
        assert events.await_count("console-listening") == {"url": launcher.url}
        time.sleep(0.3)
        assert children() == []
        assert get(launcher.url, "/healthz") == 200
        (first,) = children()
        if sys.platform == "linux":
            assert Path(f"/proc/{first.pid}/oom_score_adj").read_text() == "1000\n"
        link = request_link(tmp_path / "log")
        assert link.startswith(f"{launcher.url}login?link=")
        parts = urlsplit(link)
        assert get(launcher.url, f"{parts.path}?{parts.query}") == 303
        until(lambda: children() == [])
        assert request_link(tmp_path / "log").startswith(launcher.url)
        (second,) = children()
        assert second.pid != first.pid
        second.kill()
        until(lambda: _answers(launcher.url))
        with pytest.raises(EnvironmentFault, match="a console already serves"):
            refuse_second(tmp_path / "log")
    with pytest.raises(OSError, match="refused"):
        get(launcher.url, "/healthz")


def test_a_console_that_cannot_start_is_reported_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller is refused instead of waiting for ever, and the engine is left alone."""
    file, events = write_pipeline(tmp_path), Events()
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho one >&2\necho no Flask >&2\nexit 1\n")
    broken.chmod(0o700)
    with launched(file, events) as launcher:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(broken))
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                get(launcher.url, "/healthz")
            assert events.await_count("console-failed") == {"problem": "no Flask"}
        until(lambda: _answers(launcher.url))


@pytest.mark.parametrize(
    "broken",
    [
        "log: ./log",
        *(
            pytest.param(each, marks=pytest.mark.exhaustive)
            for each in ("observe: [1]", "${file:none}")
        ),
    ],
)
def test_a_broken_pipeline_file_takes_nobody_the_console(tmp_path: Path, broken: str) -> None:
    """Its log is shown to the user of the engine, and as the file says once it can be read."""
    file, events = write_pipeline(tmp_path), Events()
    whole = file.read_text()
    if "file:" in broken:
        token = [{"name": "ci", "token": "${file:token}", "role": "viewer"}]
        document = json.loads(whole)
        document["observe"]["console_access"] = {"tokens": token}
        file.write_text(json.dumps(document))
    else:
        file.write_text(broken)
    with launched(file, events, "127.0.0.2:0") as launcher:
        assert get(launcher.url, "/healthz") == 200
        link = urlsplit(request_link(tmp_path / "log"))
        assert f"http://{link.netloc}/" == launcher.url
        peer = http.client.HTTPConnection(link.netloc, timeout=20)
        peer.request("GET", f"{link.path}?{link.query}")
        answer = peer.getresponse()
        answer.read()
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
        peer.request("GET", "/p/log/log/0", headers={"Cookie": cookie})
        assert "hidden" in peer.getresponse().read().decode()
        peer.close()
        (first,) = children()
        if "file:" in broken:
            (tmp_path / "token").write_text("x" * 16)
        else:
            file.write_text(whole)
        until(lambda: first not in children())
        until(lambda: _answers(launcher.url))
        assert children() not in ([], [first])
    assert events.named("console-failed") == []


def test_a_file_that_names_another_log_moves_no_console(tmp_path: Path) -> None:
    """The engine's own log is shown, whatever the file says by now."""
    file = write_pipeline(tmp_path)
    document = json.loads(file.read_text())
    with launched(file, Events()) as launcher:
        file.write_text(json.dumps(document | {"log": {"dir": "another"}}))
        assert get(launcher.url, "/healthz") == 200
        assert request_link(tmp_path / "log").startswith(launcher.url)


def test_high_descriptors_are_no_obstacle(tmp_path: Path) -> None:
    """An engine has thousands of files open, and select() knows the first 1024."""
    file = write_pipeline(tmp_path)
    raise_descriptor_limit()
    with ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(Path("/dev/null").open())
        with launched(file, Events()) as launcher:
            assert get(launcher.url, "/healthz") == 200


def test_callers_of_a_console_that_failed_do_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who come before the next try are refused at once, and a stop does not wait."""
    monkeypatch.setattr("transporter.console.launcher._SHORTEST", 30.0)
    file, events = write_pipeline(tmp_path), Events()

    def fail() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("transporter.console.launcher.TemporaryFile", fail)
    with launched(file, events) as launcher:
        began = time.monotonic()
        assert [_answers(launcher.url) for _ in range(3)] == [False] * 3
        with pytest.raises(EnvironmentFault, match="has ended without an answer"):
            request_link(tmp_path / "log")
    assert time.monotonic() - began < 10


def test_a_console_comes_once_the_other_one_has_gone(tmp_path: Path) -> None:
    """One that was started by hand serves the log before; nobody listens beside it in vain."""
    file, events = write_pipeline(tmp_path), Events()
    (tmp_path / "log").mkdir(exist_ok=True)
    with ExitStack() as other:
        other.enter_context(listening(tmp_path / "log"))
        with launched(file, events) as launcher:
            assert launcher.url == ""
            assert "already serves" in events.await_count("console-failed")["problem"]
            other.close()
            assert events.await_count("console-listening") == {"url": launcher.url}
            assert get(launcher.url, "/healthz") == 200
            assert len(events.named("console-failed")) == 1


def test_a_link_is_given_though_the_first_console_leaves(tmp_path: Path) -> None:
    """One may leave because nobody has asked just when somebody does."""
    (tmp_path / "log").mkdir()
    with listening(tmp_path / "log") as listener:

        def serve() -> None:
            listener.accept()[0].close()
            with LoginSocket(listener, lambda name: f"link of {name}"):
                done.wait(20)

        done = threading.Event()
        server = threading.Thread(target=serve)
        server.start()
        try:
            assert request_link(tmp_path / "log").startswith("link of ")
        finally:
            done.set()
            server.join()


def test_a_console_without_a_place_for_its_errors_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no temporary file can be made that is reported, and the next caller is served."""
    file, events = write_pipeline(tmp_path), Events()

    def fail() -> None:
        raise OSError(28, "No space left on device")

    with launched(file, events) as launcher:
        with monkeypatch.context() as patch:
            patch.setattr("transporter.console.launcher.TemporaryFile", fail)
            assert not _answers(launcher.url)
            assert "No space left" in events.await_count("console-failed")["problem"]
        until(lambda: _answers(launcher.url))


def _answers(url: str) -> bool:
    try:
        return get(url, "/healthz") == 200
    except (OSError, http.client.HTTPException):
        return False


def test_an_address_that_is_taken_costs_a_port_and_not_the_engine(tmp_path: Path) -> None:
    """On this host another port does; what other hosts know is not moved, and is reported."""
    file, events = write_pipeline(tmp_path), Events()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with launched(file, events, f"127.0.0.1:{port}") as launcher:
            assert urlsplit(launcher.url).port not in {None, port}
            assert get(launcher.url, "/healthz") == 200
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))  # noqa: S104 - the address of the test
        taken.listen()
        port = taken.getsockname()[1]
        token = {"name": "ci", "token": "x" * 16, "role": "viewer"}
        config = ConsoleConfig.model_validate(
            {"console": f"0.0.0.0:{port}", "console_access": {"tokens": [token]}}
        )
        launcher = ConsoleLauncher(file, tmp_path / "log", config)
        launcher.report_to(events)
        launcher.start(pytest.fail)
        assert launcher.url == ""
        assert "choose another address" in events.await_count("console-failed")["problem"]
        launcher.stop()
        launcher.stop()


@pytest.mark.exhaustive
def test_two_engines_that_start_together_have_a_console_each(tmp_path: Path) -> None:
    """Neither fails because of the other, whichever listens first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = ConsoleConfig.model_validate({"console": address})
    launchers = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        file = write_pipeline(tmp_path / name)
        launchers.append(ConsoleLauncher(file, file.parent / "log", config))
    for launcher in launchers:
        launcher.start(pytest.fail)
    try:
        assert urlsplit(launchers[0].url).netloc == address
        assert [get(each.url, "/healthz") for each in launchers] == [200, 200]
    finally:
        for launcher in launchers:
            launcher.stop()


@pytest.mark.exhaustive
def test_a_console_of_several_logs_leaves_one_that_has_its_own(tmp_path: Path) -> None:
    """Its links come by the socket of another log; that log alone gets no second console."""
    files = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        files.append(str(write_pipeline(tmp_path / name)))
    words = [sys.executable, "-m", "transporter.cli.app", "ui", "--listen", "127.0.0.1:0"]
    with launched(Path(files[0]), Events()):
        alone = subprocess.run([*words, files[0]], capture_output=True, text=True, check=False)
        assert alone.returncode == 3
        assert "a console already serves" in alone.stderr
        with subprocess.Popen([*words, *files], stdout=subprocess.PIPE, text=True) as both:
            try:
                assert both.stdout is not None
                lines = [both.stdout.readline() for _ in range(3)]
                assert lines[2].strip() == f"another link: transporter ui --login {files[1]}"
                url = lines[0].split()[-1]
                assert request_link(tmp_path / "two" / "log").startswith(url)
            finally:
                both.kill()


ENGINE = """
import sys, time
from pathlib import Path
from transporter.console.launcher import ConsoleLauncher
from transporter.pipeline.observe_config import ConsoleConfig
from transporter.process_limits import raise_descriptor_limit
file = Path(sys.argv[1])
launcher = ConsoleLauncher(file, file.parent / "log", ConsoleConfig.model_validate(
    {"console": "127.0.0.1:0"}))
launcher.start(print)
print(launcher.url, flush=True)
time.sleep(600)
"""


@pytest.mark.exhaustive
def test_a_console_ends_with_a_killed_engine(tmp_path: Path) -> None:
    """It does not keep the address from the next engine, which takes the socket's name over."""
    file = write_pipeline(tmp_path)
    engine: Any = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(file)], stdout=subprocess.PIPE, text=True
    )
    try:
        url = engine.stdout.readline().strip()
        assert get(url, "/healthz") == 200
        (console,) = psutil.Process(engine.pid).children()
        # Somebody is being answered, which the next engine does not wait for.
        busy = socket.create_connection((urlsplit(url).hostname, urlsplit(url).port))
        busy.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    finally:
        engine.kill()
        engine.communicate()
    console.wait(2)
    busy.close()
    with launched(file, Events(), urlsplit(url).netloc) as launcher:
        assert launcher.url == url
        assert get(url, "/healthz") == 200
