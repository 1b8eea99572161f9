"""Canaries: secrets of every kind in a configuration, and a search for them in all output."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from acceptance_tools import TRANSPORTER, Running, page, running

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CANARIES = {
    "LEAKY_PIN": "canary-declared-secret-1",
    "LEAKY_HEADER": "canary-from-a-variable-2",
    "SASL_PASSWORD": "canary-sasl-password-3",
    "OUTBOX_DSN": "postgresql://shop:canary-dsn%2Dpassword-4@127.0.0.1:1/shop?connect_timeout=2",
    "S3_KEY": "canary-spark-secret-5",
    "STORE_PASSWORD": "canary-store-password-7",
}
IN_FILE = "canary-written-into-the-file-6"
OF_A_FILE = "canary-of-a-secret-file-7"
WORDS = ["canary-"]
"""The text in every canary, which no output may contain."""
LEAKY = """
from pydantic import SecretStr
from transporter.adaptor import AdaptorConfig
from transporter.errors import Rejected, RouteFault


class Leaky:
    '''Repeats its settings wherever it can, as a driver might.'''

    class Config(AdaptorConfig):
        pin: SecretStr
        headers: dict[str, str] = {}
        password: str = ""
        note: str = ""
        how: str = "reject"

    def __init__(self, config):
        self.config = config
        self.all = f"{config.pin.get_secret_value()} {config.headers} {config.password}"
        self.all += f" {config.note}"

    def open(self, context):
        if self.config.how == "open":
            raise RuntimeError("cannot open with " + self.all)

    def write(self, batch, ack):
        if self.config.how == "die":
            import os
            os._exit(3)
        if self.config.how == "plain":
            raise ValueError("no luck with " + self.all)
        for entry in batch:
            raise Rejected("refused with " + self.all, entry.offset)

    def close(self):
        raise RuntimeError("cannot close " + self.all)
"""
ROUTE = """
  - name: {how}
    on_error: {on_error}
    retry: {{attempts: 1, backoff: 10ms..20ms}}
    writer:
      adaptor: "leaky:Leaky"
      how: {how}
      pin: ${{LEAKY_PIN}}
      headers: {{Authorization: "Bearer ${{LEAKY_HEADER}}"}}
      password: {in_file}
      note: ${{file:secret}}
"""
PIPELINE = """
log: {dir: log}
shutdown_timeout: 2s
observe: {listen: "127.0.0.1:0", unready_after: 1s}
spark:
  config:
    spark.hadoop.fs.s3a.secret.key: "${S3_KEY}"
    spark.hadoop.fs.azure.location: "https://container.example/?sp=rl&sig=canary-signature-8"
    spark.driver.extraJavaOptions: "-Dstore=${STORE_PASSWORD} '-Dmore=canary-in quotes \\ 9'"
readers: [{name: lines, adaptor: file, path: in.jsonl, follow: true}]
routes:
  - name: sasl
    slice_timeout: 8s
    writer:
      adaptor: kafka
      bootstrap_servers: "127.0.0.1:1"
      client: {security.protocol: SASL_PLAINTEXT, sasl.mechanism: PLAIN,
               sasl.username: shop, sasl.password: "${SASL_PASSWORD}"}
"""
OUTBOX = """
log: {dir: outbox-log}
observe: {listen: "off"}
readers: [{name: outbox, adaptor: postgres-outbox, dsn: "${OUTBOX_DSN}"}]
routes: [{name: out, writer: {adaptor: file, path: out}}]
"""
WRONG = """
readers: [{name: outbox, adaptor: postgres-outbox, dsn: "${OUTBOX_DSN}", dsm: "${S3_KEY}"}]
routes:
  - {name: out, start: "${LEAKY_HEADER}", writer: {adaptor: "${SASL_PASSWORD}", x: "${LEAKY_PIN}"}}
log: {dir: log, segment_bytes: "${S3_KEY}"}
commit_interval: ["${OUTBOX_DSN}"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a folder with pipelines whose settings are canaries."""
    (tmp_path / "leaky.py").write_text(LEAKY)
    (tmp_path / "secret").write_text(f"{OF_A_FILE}\n")
    (tmp_path / "in.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    routes = "".join(
        ROUTE.format(how=how, on_error=on_error, in_file=IN_FILE)
        for how, on_error in (
            ("reject", "park"),
            ("plain", "stop"),
            ("open", "stop"),
            ("die", "park"),
        )
    )
    (tmp_path / "p.yaml").write_text(PIPELINE + routes)
    (tmp_path / "outbox.yaml").write_text(OUTBOX)
    (tmp_path / "wrong.yaml").write_text(WRONG)
    return tmp_path


def clean(what: str, text: str | bytes) -> None:
    """Fail if *text* contains a canary, with the text before it but not after it."""
    data = text.encode() if isinstance(text, str) else text
    for word in WORDS:
        at = data.find(word.encode())
        assert at < 0, f"a secret in {what}: …{data[max(0, at - 200) : at + 40]!r}"


def written(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file in *folder* but the pipelines' own, with its contents."""
    for path in folder.rglob("*"):
        if path.is_file() and path.parent != folder and not path.is_symlink():
            yield str(path), path.read_bytes()


def command(
    folder: Path, *arguments: str, code: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command with the canaries and full tracebacks, and check that it shows none."""
    done = subprocess.run(
        [*TRANSPORTER, *arguments],
        cwd=folder,
        env={**os.environ, **CANARIES, "TRANSPORTER_DEBUG": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    clean(f"stdout of {arguments}", done.stdout)
    clean(f"stderr of {arguments}", done.stderr)
    if code is not None:
        assert done.returncode == code, (arguments, done.stderr)
    return done


def test_checks_show_no_secret(folder: Path) -> None:
    """Checks repeat no secret, for valid files and for wrong ones."""
    for how in ([], ["--json"]):
        command(folder, "check", "p.yaml", *how, code=0)
        command(folder, "check", "outbox.yaml", *how, code=0)
        command(folder, "check", "wrong.yaml", *how, code=2)
        command(folder, "adaptors", "show", "postgres-outbox", *how, code=0)


@pytest.mark.spark
def test_a_start_that_fails_shows_no_secret(folder: Path) -> None:
    """A database that cannot be reached is named without its password, even in a traceback."""
    done = command(folder, "run", "outbox.yaml", "--fail-fast", code=3)
    assert "Traceback" in done.stderr
    assert "127.0.0.1" in done.stderr
    for name, data in written(folder):
        clean(name, data)


@pytest.mark.exhaustive
@pytest.mark.spark
def test_a_run_that_goes_wrong_everywhere_shows_no_secret(folder: Path) -> None:
    """With any errors of adaptors, no secret is in events, pages, files or command lines."""
    # Only values that the file names count as secrets.
    used = {name: each for name, each in CANARIES.items() if f"{{{name}}}" in PIPELINE + ROUTE}
    variables = {**used, "TRANSPORTER_DEBUG": "1", "PYTHONPATH": str(ROOT)}
    with running(folder / "p.yaml", **variables) as engine:
        url = engine.await_event("endpoint-opened")["url"]
        engine.await_event("entry-parked", route="reject", timeout=120)
        engine.await_event("route-stopped", route="plain", timeout=120)
        engine.await_event("route-stopped", route="open", timeout=120)
        engine.await_event("worker-lost", route="die", timeout=120)
        engine.await_event("route-retrying", route="sasl", timeout=120)
        for name in ("metrics", "readyz", "healthz"):
            clean(name, page(f"{url}/{name}")[1])
        assert json.loads(page(f"{url}/readyz")[1])["reasons"]
        look(folder)
        started = list(command_lines(engine))
        assert any("java" in name for name, _ in started)
        for name, line in started:
            clean(f"the command line of {name}", line)
        for process in engine.descendants():
            with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
                clean(f"the environment of {process.name()}", str(process.environ()))
        for name, data in written(folder):
            clean(name, data)
        engine.stop(120)
        said(engine)
    look(folder)
    for name, data in written(folder):
        clean(name, data)


def command_lines(engine: Running) -> Iterator[tuple[str, str]]:
    """Yield the public data of each process: its name and its command line."""
    for process in (psutil.Process(engine.process.pid), *engine.descendants()):
        with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
            yield process.name(), " ".join(process.cmdline())


def look(folder: Path) -> None:
    """Run every query that an operator can."""
    parked = json.loads(
        command(folder, "parked", "list", "p.yaml", "reject", "--json", code=0).stdout
    )
    assert parked["result"]
    shown = command(folder, "parked", "show", "p.yaml", "reject", "0", code=0).stdout
    assert "refused with ***" in shown
    for line in (
        ["log", "show", "log"],
        ["log", "info", "log"],
        ["offsets", "list", "log"],
        ["offsets", "show", "log", "reject"],
        ["parked", "show", "p.yaml", "reject", "0", "--json"],
        ["status", "p.yaml"],
        ["status", "p.yaml", "--json"],
        ["route", "resume", "p.yaml", "sasl"],
        ["audit", "p.yaml"],
        ["audit", "p.yaml", "--json"],
        ["log", "show", "log", "--metadata"],
    ):
        command(folder, *line)


def said(engine: Running) -> None:
    """Check all output of the engine."""
    for event in engine.events:
        clean("an event", json.dumps(event))
    clean("stderr", "".join(engine.noise))
    clean("stdout", "".join(engine.output))


@pytest.mark.spark
@pytest.mark.exhaustive
@pytest.mark.parametrize("live", ["--live", "--no-live"])
def test_escape_sequences_never_reach_the_terminal(tmp_path: Path, live: str) -> None:
    """Payloads, keys, namespaces and errors are shown with escapes quoted, live and in lines."""
    evil = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\x08"
    line = json.dumps({"n": evil, "id": evil})
    (tmp_path / "in.jsonl").write_text(f"{line}\n{line[:-1]}\n")
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "p.yaml").write_text(
        "log: {dir: log}\nobserve: {listen: off}\n"
        "readers: [{name: lines, adaptor: file, path: in.jsonl, key: id, follow: true}]\n"
        "routes:\n"
        '  - {name: shown, writer: {adaptor: file, path: "-", format: data}}\n'
        '  - {name: raw, writer: {adaptor: "evil:Evil"}, on_error: park, retry: {attempts: 1}}\n'
    )
    (tmp_path / "in.jsonl").write_bytes(
        b'{"n": "' + evil.encode() + b'"}\n' + line.encode() + b"\n"
    )
    seen = on_a_terminal(tmp_path, ["run", "p.yaml", live], b"entry-parked")
    assert b"\\x1b[2J" in seen
    for sequence in (b"\x1b[2J", b"\x1b]0;", b"\x07", b"\xc2\x9b", b"\x08"):
        assert sequence not in seen, sequence
    for arguments in (
        ["parked", "list", "p.yaml", "raw"],
        ["parked", "show", "p.yaml", "raw", "0"],
    ):
        shown = on_a_terminal(tmp_path, arguments, None)
        assert b"owned" in shown
        assert b"\x1b]0;" not in shown
        assert b"\x1b[2J" not in shown


EVIL = r"""
import json

from transporter.adaptor import AdaptorConfig
from transporter.errors import Rejected


class Evil:
    '''Repeats the payload in its error, and prints it.'''

    class Config(AdaptorConfig):
        pass

    def __init__(self, config): ...
    def open(self, context): ...
    def close(self): ...

    def write(self, batch, ack):
        for entry in batch:
            text = json.loads(entry.message.data)["n"]
            print("printed", text)
            raise Rejected("refused \x1b[2J\x1b]0;owned\x07 " + text, entry.offset)
"""


def on_a_terminal(folder: Path, arguments: list[str], until: bytes | None) -> bytes:
    """Run a command on its own terminal, stop it once *until* is seen, and return all output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "transporter.cli.app", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = bytearray()
    deadline = time.monotonic() + 120
    asked = False
    try:
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 1)[0]:
                try:
                    seen += os.read(ours, 65536)
                except OSError:
                    break
            # After the error was reported, and each of the two writers has printed.
            if until is not None and until in seen and seen.count(b"owned") > 2 and not asked:
                asked = True
                process.terminate()
    finally:
        if process.poll() is None and time.monotonic() >= deadline:
            process.kill()
        process.wait(60)
        os.close(ours)
    assert process.returncode == 0, bytes(seen[-2000:])
    return bytes(seen)
