"""What other users of the host can do to a running engine: nothing."""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from acceptance_tools import await_true, running
from root_tools import NOBODY, need_root
from spark_ports import blocks, listening_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.spark
PIPELINE = """
log: {dir: log}
observe: {listen: "off"}
readers: [{name: lines, adaptor: file, path: in.jsonl, follow: true}]
routes:
  - {name: copy, writer: {adaptor: file, path: out.jsonl}}
  - {name: query, steps: [{sql: {query: SELECT * FROM entries}}],
     writer: {adaptor: spark, path: out, format: json}}
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Give a folder that all may enter, with a umask that lets a group write."""
    before = os.umask(0o002)
    # Those of pytest are closed to others, and so may be where TMPDIR leads.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)
    os.umask(before)


def as_nobody(paths: list[Path]) -> list[str]:
    """Return which of *paths* nobody, with this process's group, can open or connect to."""
    need_root("another user's id needs root")
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.close(reading)
            os.setgroups([])
            os.setgid(os.getegid())
            os.setuid(NOBODY)
            found = [str(path) for path in paths if _reached(path)]
            os.write(writing, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    found: list[str] = json.loads(said)
    return found


def _reached(path: Path) -> bool:
    with suppress(OSError):
        if stat.S_ISSOCK(path.stat().st_mode):
            with socket.socket(socket.AF_UNIX) as tried:
                tried.connect(str(path))
                return True
        os.close(os.open(path, os.O_RDONLY))
        return True
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY))
        return True
    return False


def sockets(processes: list[psutil.Process]) -> list[Path]:
    """Return the named sockets at which *processes* listen."""
    return [
        Path(each.laddr)
        for process in processes
        for each in process.net_connections("unix")
        if isinstance(each.laddr, str) and each.laddr.startswith("/")
    ]


def test_a_group_member_reaches_nothing(place: Path) -> None:
    """Neither by the sockets of Spark and its workers, nor in a log directory open to all."""
    (place / "log").mkdir(mode=0o755)
    (place / "in.jsonl").write_text('{"card": "4111 1111 1111 1111"}\n' * 10)
    (place / "p.yaml").write_text(PIPELINE)
    with running(place / "p.yaml") as engine:
        await_true(lambda: any((place / "out").glob("*.json")), 120, "both have delivered")
        await_true((place / "out.jsonl").exists, 60, "both have delivered")
        everybody = [psutil.Process(engine.process.pid), *engine.descendants()]
        listening = sockets(everybody)
        files = [each for each in (place / "log").rglob("*") if not each.is_dir()]
        assert len(listening) >= 2
        assert as_nobody([place / "p.yaml"]) == [str(place / "p.yaml")]
        # This one is for the group of the log directory, and tells nothing of what a log holds.
        status = place / "log" / "status.sock"
        assert set(as_nobody([*listening, *files])) == {str(status)}
        doors = [
            each.laddr
            for process in everybody
            for each in process.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN
        ]
        assert len(doors) >= 2
        assert {door.ip for door in doors} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
        told = b"".join(blocks(door.port, 30) for door in doors)
        assert told == b""
        assert engine.stop() == 0


OPEN = """
log: {dir: log}
observe: {listen: "off"}
# Whoever likes may have what Spark has: nothing of it must be worth having.
spark: {config: {spark.authenticate: false, spark.broadcast.compress: false}}
readers: [{name: lines, adaptor: file, path: in.jsonl, follow: true}]
routes:
  - {name: copy, steps: [{python: {function: "mine:canary"}}],
     writer: {adaptor: file, path: canary-1.jsonl}}
  - {name: query, steps: [{python: {function: "mine:canary"}}, {sql: "SELECT * FROM entries"}],
     writer: {adaptor: file, path: canary-2.jsonl}}
"""


@pytest.mark.exhaustive
def test_jobs_hold_no_secret(place: Path) -> None:
    """Who reads what Spark keeps of jobs, without its authentication, finds no setting there."""
    (place / "in.jsonl").write_text('{"id": 1}\n' * 10)
    (place / "mine.py").write_text("def canary(message):\n    return message\n")
    (place / "p.yaml").write_text(OPEN)
    with running(place / "p.yaml") as engine:
        for number in (1, 2):
            await_true((place / f"canary-{number}.jsonl").exists, 120, "both have delivered")
        everybody = [psutil.Process(engine.process.pid), *engine.descendants()]
        told = b"".join(blocks(port, 60) for port in listening_ports(everybody))
        assert engine.stop() == 0
    assert b"transporter" in told, "what Spark keeps of jobs"
    assert b"canary" not in told
