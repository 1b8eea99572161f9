"""A standalone Spark cluster of real processes, on hosts that do not see each other's files."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import urlopen

import psutil
import pyspark
from root_tools import cannot_run

from transporter.embed import cache_directory
from transporter.pipeline.spark_protection import PROTECTED
from transporter.pipeline.spark_protection import SECRET as SECRET_KEY
from transporter.spark.java_runtime import find_java

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent
PATIENCE = 60.0
SECRET = secrets.token_hex()
"""The secret that every cluster of this process shares with its engines."""
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_PAGES = re.compile(r"MasterWebUI to \S+ and started at (http://\S+)")
_FORM = re.compile(r"csrfToken[\"'][^>]*value=[\"']([^\"']+)")
_REGISTERED = "Successfully registered with master"
WRITER = """
import json, os, socket, time
from pathlib import Path
from transporter.adaptor import AdaptorConfig, LocalPath
import greeting


class Lines:
    '''Appends what is delivered to a file that all hosts see, and who has delivered it.'''

    class Config(AdaptorConfig):
        path: LocalPath
        pace: float = 0.0

    def __init__(self, config):
        self.config = config

    def open(self, context):
        self.host = greeting.host()
        self.file = open(self.config.path, "ab", buffering=0)

    def write(self, batch, ack):
        for entry in batch:
            line = {"offset": entry.offset, "host": self.host, "pid": os.getpid()}
            line |= {"key": entry.message.key.decode(), "data": entry.message.data.decode()}
            self.file.write(json.dumps(line).encode() + b"\\n")
            ack([entry.offset])
            if not Path(f"{self.config.path}.hurry").exists():
                time.sleep(self.config.pace)

    def close(self):
        self.file.close()
"""
"""A sink of the user's own, which needs another module of theirs."""
GREETING = """
import os
from pathlib import Path


def host():
    '''Name the host, and tell whether transporter's checkout is there.'''
    return "hidden" if not Path(%r).exists() else "open"
"""


@dataclass
class Node:
    """One machine of a cluster, with the settings of its processes."""

    address: str
    before: tuple[str, ...] = ()
    """A command that runs another one, with the machine's own mounts and network."""


@dataclass
class Cluster:
    """A master and its workers, each a process of this test."""

    folder: Path
    master: str = ""
    pages: str = ""
    """URL at which the master shows its applications and takes orders."""
    settings: dict[str, str] = field(default_factory=lambda: {**PROTECTED, SECRET_KEY: SECRET})
    """Settings in the hosts' own configuration."""
    workers: list[psutil.Process] = field(default_factory=list)
    """One a node, in start order."""
    nodes: list[Node] = field(default_factory=list)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_master(self, node: Node) -> None:
        """Start the master on *node*."""
        log = self._start("master", node, "master.Master", "--port", "0")
        self.master = self._await(log, lambda text: (found := _MASTER.search(text)) and found[1])
        self.pages = self._await(log, lambda text: (found := _PAGES.search(text)) and found[1])

    def start_worker(self, node: Node, cores: int = 4) -> None:
        """Start a worker on *node*."""
        name = f"worker-{len(self._processes)}"
        options = ("--cores", str(cores), "--memory", "1g", "--work-dir", f"{self.folder}/{name}")
        log = self._start(name, node, "worker.Worker", *options, self.master)
        self._await(log, lambda text: _REGISTERED in text)
        self.workers.append(psutil.Process(self._processes[-1].pid))
        self.nodes.append(node)

    def roots(self) -> list[psutil.Process]:
        """Return the processes of the master and of the workers."""
        return [psutil.Process(each.pid) for each in self._processes if each.poll() is None]

    def remove_applications(self) -> None:
        """Have the master remove every application, as an operator does on its page."""
        with urlopen(f"{self.pages}/json/", timeout=PATIENCE) as answer:  # noqa: S310 - our own
            found = [each["id"] for each in json.load(answer)["activeapps"]]
        with urlopen(self.pages, timeout=PATIENCE) as page:  # noqa: S310 - as above
            token = _FORM.search(page.read().decode())
        assert token is not None
        for each in found:
            form = {"id": each, "terminate": "true", "csrfToken": token[1]}
            order = urlencode(form).encode()
            with urlopen(f"{self.pages}/app/kill/", order, timeout=PATIENCE):  # noqa: S310 - as above
                pass

    def kill_host(self, number: int) -> None:
        """Kill every process of a node, as a power cut does."""
        worker = self.workers[number]
        for each in [*below(worker.pid), worker]:
            kill(each)
        next(each for each in self._processes if each.pid == worker.pid).wait(PATIENCE)

    def boot_host(self, number: int) -> None:
        """Start the worker of a node again if it has ended. It then comes last."""
        # A killed process remains a zombie until it is waited for.
        process = next(each for each in self._processes if each.pid == self.workers[number].pid)
        if process.poll() is not None:
            self.workers.pop(number)
            self.start_worker(self.nodes.pop(number))

    def stop(self) -> None:
        """End every process, executors and their Python workers among them."""
        tree = [each for root in self._processes for each in below(root.pid)]
        for each in [*tree, *(psutil.Process(p.pid) for p in self._processes if p.poll() is None)]:
            kill(each)
        for process in self._processes:
            process.wait(PATIENCE)

    def _start(self, name: str, node: Node, kind: str, *options: str) -> Path:
        log = self.folder / f"{name}.log"
        conf = self.folder / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        lines = (f"{key} {value}\n" for key, value in self.settings.items())
        (conf / "spark-defaults.conf").write_text("".join(lines))
        command = [f"{SPARK}/bin/spark-class", f"org.apache.spark.deploy.{kind}"]
        where = ["--host", node.address, "--webui-port", "0"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*node.before, *command, *where, *options],
                cwd=self.folder,
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "SPARK_HOME": str(SPARK),
                    "SPARK_CONF_DIR": str(conf),
                    "JAVA_HOME": str(find_java(os.environ, cache_directory())),
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_LOCAL_HOSTNAME": node.address,
                    "SPARK_LOCAL_IP": node.address,
                    # As on a host where no user has logged in.
                    "HOME": str(self.folder),
                },
                start_new_session=True,
            )
        self._processes.append(process)
        return log

    def _await(self, log: Path, found: Callable[[str], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE
        while not (value := found(log.read_text(errors="replace"))):
            if time.monotonic() > deadline or self._processes[-1].poll() is not None:
                raise AssertionError(f"{log.name}: {log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.05)
        return value


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Run a cluster for the length of a block, and leave nothing behind."""
    made = Cluster(folder)
    try:
        yield made
    finally:
        made.stop()


def below(pid: int) -> list[psutil.Process]:
    """Return every process below *pid*, the nearest first."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill(process: psutil.Process) -> None:
    """End it as ``kill -9`` does. It may have ended by itself."""
    with suppress(psutil.NoSuchProcess):
        process.kill()


def python_workers(worker: psutil.Process) -> list[psutil.Process]:
    """Return the Python workers on the host of *worker*: children of Spark's daemon."""
    found = below(worker.pid)
    daemons = {each.pid for each in found if "daemon" in " ".join(_command(each))}
    return [each for each in found if _parent(each) in daemons]


def busy(found: Cluster, sink: Path) -> tuple[int, psutil.Process]:
    """Return the Python worker that has delivered last into *sink*, and the number of its node.

    Others may be idle: Spark keeps them for its next job.
    """
    pid = delivered(sink)[-1]["pid"]
    nodes = ((number, python_workers(each)) for number, each in enumerate(found.workers))
    return next((number, each) for number, some in nodes for each in some if each.pid == pid)


def executors(worker: psutil.Process) -> list[psutil.Process]:
    """Return the executors on the host of *worker*."""
    return [each for each in below(worker.pid) if "CoarseGrainedExecutorBackend" in _joined(each)]


def _joined(process: psutil.Process) -> str:
    return " ".join(_command(process))


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def _parent(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return 0


_FREE = "grep -E '^/dev/loop' /proc/mounts | cut -d ' ' -f 2 | xargs -r umount -l"
"""Releases devices that other tests unmount and mount again."""


def hiding(folders: list[Path], *outer: str) -> tuple[str, ...]:
    """Return a command that runs another one where *folders* and our checkout are empty.

    The environment with the dependencies stays in its place, because an executor needs it. Its link
    to the checkout leads nowhere.
    """
    venv = Path(sys.prefix)
    script = ["set -e", "mount --make-rprivate /", _FREE]
    script += [f"mount -t tmpfs none {shlex.quote(str(each))}" for each in folders]
    kept, place = "/mnt", shlex.quote(str(venv))
    script += [
        f"mount --bind {place} {kept}",
        f"mount -t tmpfs none {shlex.quote(str(ROOT))}",
        f"mkdir -p {place}",
        f"mount --bind {kept} {place}",
    ]
    script.append('exec "$@"')
    return (*outer, "sh", "-c", "; ".join(script), "sh")


def unsharing() -> tuple[str, ...]:
    """Return a command that gives another one its own mounts, or skip the test if none may."""
    tried = [("unshare", "-m"), ("unshare", "-rm")]
    for command in tried:
        probe = [*command, "sh", "-c", "mount -t tmpfs none /mnt"]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            return command
    return cannot_run(
        "hiding files from a worker needs mount namespaces, which are not allowed here"
    )


@dataclass(frozen=True)
class Wire:
    """The network to hosts of their own: a switch, and a cable to each host."""

    name: str
    ours: str
    hosts: tuple[tuple[str, tuple[str, ...]], ...]
    """Each host's address, and the command that runs another one there."""

    def cut(self, number: int) -> None:
        """Pull the cable of a host out of the switch: packets vanish without notice."""
        _do("ip", "link", "set", f"{self.name}{number}", "nomaster")

    def mend(self, number: int) -> None:
        """Plug the cable in again."""
        _do("ip", "link", "set", f"{self.name}{number}", "master", self.name)


@contextmanager
def wired(count: int, net: int) -> Iterator[Wire]:
    """Run *count* hosts with network stacks of their own. Needs root and iproute2."""
    name = f"t{os.getpid() % 1000000}-"
    with ExitStack() as stack:
        _do("ip", "link", "add", name, "type", "bridge")
        stack.callback(_do, "ip", "link", "del", name)
        _do("ip", "addr", "add", f"10.213.{net}.1/24", "dev", name)
        _do("ip", "link", "set", name, "up")
        hosts = [stack.enter_context(_host(name, net, number)) for number in range(count)]
        yield Wire(name, f"10.213.{net}.1", tuple(hosts))


@contextmanager
def _host(switch: str, net: int, number: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    name, address = f"{switch}{number}", f"10.213.{net}.{number + 2}"
    inside = ("ip", "netns", "exec", name)
    _do("ip", "netns", "add", name)
    try:
        _do("ip", "link", "add", name, "type", "veth", "peer", "eth0", "netns", name)
        _do("ip", "link", "set", name, "master", switch, "up")
        _do(*inside, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        _do(*inside, "ip", "link", "set", "eth0", "up")
        _do(*inside, "ip", "link", "set", "lo", "up")
        yield address, inside
    finally:
        _do("ip", "netns", "del", name)


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def pipeline(
    folder: Path, master: str, sink: Path, rows: int, *, pace: float = 0.0, **options: Any
) -> Path:
    """Write a pipeline of *rows* rows with ten keys into the file *sink*. Return its path.

    *pace* is the seconds that an entry takes while there is no file ``<sink>.hurry``. *options* are
    those of the route, except ``config``, which is Spark's.
    """
    config = {"spark.executor.memory": "512m", SECRET_KEY: SECRET, **options.pop("config", {})}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lines.py").write_text(WRITER)
    (folder / "greeting.py").write_text(GREETING % str(ROOT / "transporter"))
    lines = (json.dumps({"id": number, "key": f"k{number % 10}"}) for number in range(rows))
    (folder / "in.jsonl").write_text("".join(f"{line}\n" for line in lines))
    writer = {"adaptor": "lines:Lines", "path": str(sink), "pace": pace}
    route = {"name": "out", "slice_rows": 50, "slice_timeout": "5s", "writer": writer}
    document = {
        "log": {"dir": "log"},
        "observe": {"listen": "off"},
        "readers": [{"name": "in", "adaptor": "file", "path": "in.jsonl", "key": "key"}],
        "routes": [route | options],
        "spark": {"master": master} | ({} if master == "local" else {"config": config}),
    }
    path = folder / "p.yaml"
    path.write_text(json.dumps(document))
    return path


def delivered(sink: Path) -> list[dict[str, Any]]:
    """Return the entries that have arrived in *sink*, in order, without a half-written line."""
    lines = sink.read_text().split("\n")[:-1] if sink.exists() else []
    return [json.loads(line) for line in lines]


def check(found: list[dict[str, Any]], rows: int) -> None:
    """Check that no entry is missing, keys are first delivered in order, and no workers overlap."""
    firsts: dict[str, list[int]] = defaultdict(list)
    seen: set[int] = set()
    for each in found:
        if each["offset"] not in seen:
            seen.add(each["offset"])
            firsts[each["key"]].append(each["offset"])
    assert seen == set(range(rows))
    assert all(offsets == sorted(offsets) for offsets in firsts.values())
    turns = [pid for pid, _ in groupby(each["pid"] for each in found)]
    assert len(turns) == len(set(turns)), "two workers have delivered at the same time"
