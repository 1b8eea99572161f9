"""The driver's thread of a DataFrame route: its end or hang is detected and reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from acceptance_tools import await_true, running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.exhaustive, pytest.mark.timeout(600)]
SINK = """
import threading
from pathlib import Path
from transporter.adaptor import AdaptorConfig, LocalPath


class Sink:
    '''Does once what is wrong, and writes the number of rows then.'''

    class Config(AdaptorConfig):
        path: LocalPath
        wrong: str

    def __init__(self, config):
        self.config = config

    def open(self, context):
        pass

    def save(self, frame, part):
        begun = Path(f"{self.config.path}.begun")
        if not begun.exists():
            begun.touch()
            if self.config.wrong == "exit":
                raise SystemExit("enough")
            threading.Event().wait()
        self.config.path.write_text(str(frame.count()))

    def close(self):
        pass
"""
PIPELINE = """
log: {{dir: log}}
observe: {{listen: "off"}}
readers: [{{name: lines, adaptor: file, path: in.jsonl}}]
routes:
  - name: frames
    slice_timeout: 1s
    writer: {{adaptor: "sink:Sink", path: out, wrong: {wrong}}}
"""


@pytest.mark.parametrize(
    ("wrong", "event", "problem"),
    [
        ("exit", "worker-lost", "SystemExit: enough"),
        ("hang", "spark-host-lost", "route frames: its sink has not returned"),
    ],
)
def test_a_thread_that_is_lost_is_replaced_and_reported(
    tmp_path: Path, wrong: str, event: str, problem: str
) -> None:
    """A sink that ends its thread, or never returns, costs a new thread or a new Spark."""
    (tmp_path / "sink.py").write_text(SINK)
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "p.yaml").write_text(PIPELINE.format(wrong=wrong))
    with running(tmp_path / "p.yaml") as engine:
        assert problem in engine.await_event(event, timeout=240)["problem"]
        await_true((tmp_path / "out").exists, 120, "the slice, again")
        assert engine.wait(120) == 0, engine.noise
    assert (tmp_path / "out").read_text() == "2"
