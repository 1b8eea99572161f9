"""The image of ``deploy/Dockerfile``, really built and run, and the unit below a real systemd."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from image_tools import HOME, Image, Store, need_image_tools, prepare_volume
from root_tools import need_root
from systemd_tools import UNIT, booted, install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_tools import Container

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]
LOG = f"{HOME}/shop/demo/log"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Create a folder that any user may enter, because pytest's are closed to others."""
    need_image_tools()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[Store]:
    """Create the storage of images."""
    made = Store(folder)
    yield made
    made("rm", "--all")


@pytest.fixture(scope="module")
def image(store: Store) -> Image:
    """Build the image once."""
    return store.build(store.build_base())


def test_its_configuration(image: Image) -> None:
    """It runs as a user of its own, stops by SIGTERM, and probes itself."""
    config = image.config
    assert (config["User"], config["StopSignal"]) == ("10001", "SIGTERM")
    assert set(config["Volumes"]) == {HOME}
    assert config["Healthcheck"]["Test"][:3] == ["CMD", "transporter", "ready"]
    assert config["Entrypoint"] == ["tini", "--", "transporter"]


@pytest.mark.parametrize("user", ["10001:10001", "1234567:0"])
def test_the_quickstart_runs_inside(image: Image, folder: Path, user: str) -> None:
    """Rows are delivered below a read-only root, as its user and as one without a name."""
    uid = int(user.partition(":")[0])
    # An arbitrary user reaches the volume by the group 0 alone.
    volume = prepare_volume(folder, 10001)
    try:
        with image.running(user, volume, "quickstart", "--dir", f"{HOME}/shop") as container:
            lines = _collect_lines(container)
            _await_rows(lines, 5)
            ready = container.run("transporter", "ready", LOG)
            assert (ready.returncode, ready.stdout) == (0, "ready\n"), ready.stderr
            refused = container.run("touch", "/opt/transporter/x")
            assert "Read-only file system" in refused.stderr
            container.first.send_signal(signal.SIGTERM)
            assert container.process.wait(120) == 0, lines
        assert (volume / "shop" / "demo" / "orders.lmdb").exists()
        assert (volume / "shop" / "demo" / "log").stat().st_uid == uid
    finally:
        volume.rename(folder / f"ended-{uid}")


PIPELINE = f"""
log: {{dir: {HOME}/orders}}
readers: [{{name: demo, adaptor: demo, rate: 20}}]
routes:
  - {{name: copy, writer: {{adaptor: file, path: {HOME}/copy.jsonl}}}}
"""


def test_the_unit_runs_below_systemd(store: Store, image: Image) -> None:
    """The hardened unit starts, reloads, restarts a frozen engine, and stops in order."""
    need_root("a booted host needs root and Debian's systemd-container", "systemd-nspawn")
    install(store.base, PIPELINE)
    with booted(store.base, image.files / "opt/transporter") as host:
        started = host.run("systemctl", "start", UNIT)
        assert started.returncode == 0, host.journal()
        assert host.show("ActiveState") == "active"
        host.await_true(lambda: host.show("StatusText") == "ready")
        sink = host.files / HOME[1:] / "copy.jsonl"
        host.await_true(lambda: sink.exists() and sink.stat().st_size > 0)
        reloaded = host.run("systemctl", "reload", UNIT)
        assert reloaded.returncode == 0
        host.await_true(lambda: "pipeline-reloaded" in host.journal())
        host.await_true(lambda: host.show("ActiveState") == "active")
        engine = host.show("MainPID")
        host.run("kill", "-STOP", engine)
        host.await_true(lambda: host.show("NRestarts") == "1")
        host.await_true(lambda: host.show("StatusText") == "ready")
        assert host.show("MainPID") != engine
        assert host.run("systemctl", "stop", UNIT).returncode == 0
        assert (host.show("ActiveState"), host.show("Result")) == ("inactive", "success")
        assert '"event": "engine-stopped"' in host.journal()


def _collect_lines(container: Container) -> list[str]:
    lines: list[str] = []
    output = container.process.stdout
    assert output is not None
    threading.Thread(target=lambda: lines.extend(output), daemon=True).start()
    return lines


def _await_rows(lines: list[str], count: int) -> None:
    """Wait for *count* rows of the route that delivers to standard output."""
    deadline = time.monotonic() + 180
    while sum('"carrier":' in each for each in list(lines)) < count:
        assert time.monotonic() < deadline, lines[-20:]
        time.sleep(0.2)
