"""The console on a log of ten gibibytes: pages answer at once, and a search ends in time."""

from __future__ import annotations

import re
import statistics
import time
from typing import TYPE_CHECKING

import pytest
from integration.test_console import Ui, console, done
from operator_tools import operated, route, write_file
from soak.test_large_logs import GIB, SparseFileSystem, length

from transporter.log.commit_log import CommitLog
from transporter.message import Message, messages_to_batch
from transporter.offsets.offset_log import OffsetLog

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(1200)
PAGES = (
    *("", "/r/sales", "/log", "/log?dir=live", "/log/{middle}", "/log/{last}", "/parked"),
    *("/audit", "/config", "/health", "/events", "/history", "/cluster"),
)
WARM_SECONDS = 0.3
SEARCH_SECONDS = 2.0
MARGIN = 3.0
"""How much longer pages may take on a machine that runs other tests beside."""


def write_log(folder: Path) -> int:
    """Write a log of ten gibibytes, all of it acknowledged, and return its last offset."""
    big = messages_to_batch([Message(f"n{each}", bytes(1 << 20)) for each in range(7)])
    small = messages_to_batch([Message("n", b"a small one", key=b"k")] * 100)
    with CommitLog.open(folder / "log", compression=None, files=SparseFileSystem()) as log:
        while length(folder / "log") < 10 * GIB:
            log.append(big, "in")
            last = log.append(small, "in")[1]
    return last


def measure(ui: Ui, path: str) -> float:
    """Return the median seconds of a page that was opened before."""
    taken = []
    for _ in range(6):
        begun = time.monotonic()
        status, _, _ = ui.get(f"/p/pipeline{path}")
        taken.append(time.monotonic() - begun)
        assert status == 200, path
    return statistics.median(taken[1:])


@pytest.mark.parametrize("engine", ["running", "gone"])
def test_pages_of_a_large_log(tmp_path: Path, engine: str) -> None:
    """None reads the log to show a part of it, whether its engine runs or not."""
    pipeline = write_file(tmp_path, [route("sales")], log={"dir": "log", "compression": "none"})
    last = write_log(tmp_path)
    OffsetLog(tmp_path / "log", "sales").close()
    done("ack", str(pipeline), "sales", f"0..{last}", "--reason", "delivered elsewhere")
    with console(pipeline) as ui:
        assert ui.log_in(ui.link) == 303
        if engine == "running":
            with operated(pipeline):
                slow = show_times(ui, last)
        else:
            slow = show_times(ui, last)
        assert slow == {}
        begun = time.monotonic()
        status, page, _ = ui.get("/p/pipeline/log?has=nowhere")
        took = time.monotonic() - begun
    assert status == 200
    looked = re.search(r"looked[^<]*", page, re.IGNORECASE)
    print(f"\nsearch: {took:.2f} s, {looked and looked.group()}")  # noqa: T201 - the figure
    assert looked is not None
    assert took < SEARCH_SECONDS + 1.0


def show_times(ui: Ui, last: int) -> dict[str, float]:
    """Print the time of each page, and return those that take too long."""
    paths = [each.format(middle=last // 2, last=last) for each in PAGES]
    times = {path: measure(ui, path) for path in paths}
    print("\n", {path: round(each, 3) for path, each in times.items()})  # noqa: T201 - figures
    return {path: each for path, each in times.items() if each > WARM_SECONDS * MARGIN}
