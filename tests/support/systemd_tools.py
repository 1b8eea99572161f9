"""A host of its own that systemd has booted, with the unit of ``deploy`` installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from image_tools import HOME, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNIT = "transporter@orders"
DROP_IN = """
[Service]
WatchdogSec=15
RestartSec=1
TimeoutStopSec=20
"""
"""Times that a test can wait for, as an operator would change them.

In a host inside another one systemd is not notified that a killed service has no process left
(control groups of version 1), and waits until the limit of a stop.
"""


class Host:
    """A booted host. Its first process is systemd, as number 1 of its own namespace."""

    def __init__(self, files: Path, leader: int) -> None:
        self.files, self._leader = files, leader

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run *command* on the host, as root."""
        inside = ("nsenter", "--target", str(self._leader), *("-m", "-u", "-i", "-n", "-p"))
        return subprocess.run(
            [*inside, *command], capture_output=True, text=True, timeout=300, check=False
        )

    def show(self, name: str) -> str:
        """Return a property of the unit."""
        return self.run("systemctl", "show", UNIT, "--value", "-p", name).stdout.strip()

    def journal(self) -> str:
        """Return the last log lines of the unit."""
        return self.run("journalctl", "-u", UNIT, "--no-pager", "-n", "40").stdout

    def await_true(self, condition: Callable[[], bool], seconds: float = 180) -> None:
        """Wait until *condition* holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.run("systemctl", "status", UNIT).stdout
            time.sleep(0.5)


def install(files: Path, pipeline: str) -> None:
    """Install the unit, its user and its *pipeline* on the host in *files*."""
    home = ("--system", "--home-dir", HOME, "--create-home", "--shell", "/usr/sbin/nologin")
    subprocess.run(["chroot", files, "useradd", *home, "transporter"], check=True)
    units = files / "etc/systemd/system"
    shutil.copy(ROOT / "deploy" / "transporter@.service", units)
    (units / "transporter@.service.d").mkdir()
    (units / "transporter@.service.d" / "times.conf").write_text(DROP_IN)
    (files / "etc/transporter").mkdir()
    (files / "etc/transporter/orders.yaml").write_text(pipeline)
    (files / "opt/transporter").mkdir()


@contextmanager
def booted(files: Path, program: Path) -> Iterator[Host]:
    """Boot the host in *files*, with *program* as its ``/opt/transporter``."""
    nspawn = subprocess.Popen(
        [
            *("systemd-nspawn", f"--directory={files}", "--boot", "--console=pipe"),
            *("--register=no", "--keep-unit", "--link-journal=no"),
            f"--bind-ro={program}:/opt/transporter",
        ],
        env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": _hierarchy()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield _await_boot(files, nspawn.pid)
    finally:
        # To nspawn this is a request to power off. Whatever is left ends with its namespace.
        nspawn.terminate()
        try:
            nspawn.wait(60)
        except subprocess.TimeoutExpired:
            nspawn.kill()
            nspawn.wait()


def _hierarchy() -> str:
    """Return whether this host has the unified hierarchy of control groups."""
    return "1" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "0"


def _await_boot(files: Path, nspawn: int) -> Host:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if children := psutil.Process(nspawn).children():
            host = Host(files, children[0].pid)
            state = host.run("systemctl", "is-system-running").stdout.strip()
            if state in ("running", "degraded"):
                return host
        time.sleep(0.5)
    raise AssertionError("systemd has not booted")
