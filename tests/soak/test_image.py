"""The image of ``deploy/Dockerfile``, really built, with the quickstart run inside."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from image_tools import HOME, Image, Store, need_image_tools, prepare_volume

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
def image(folder: Path) -> Iterator[Image]:
    """Build the image once."""
    store = Store(folder)
    yield store.build(store.build_base())
    store("rm", "--all")


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
