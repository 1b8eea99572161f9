"""The life of a writer as in docs/adaptors.md: the calls of one object, and their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from engine_tools import Events, make_pipeline, run_to_end, running, until

from transporter.audit import Operator
from transporter.control import requests
from transporter.control.running_engine import RunningEngine

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.pipeline.config import Pipeline

THREE = ["k a", "k b", "k c"]


def pipeline(folder: Path, fails: dict[int, str], *, end: bool = True) -> Pipeline:
    """Return a pipeline of three entries into a sink that fails at these calls."""
    writer = {"adaptor": "life_sink:LifeWriter", "path": "calls", "fails": fails}
    return make_pipeline(folder, THREE, end=end, out={"writer": writer})


def calls(folder: Path) -> list[str]:
    """Return the calls so far, each with the number of its object."""
    found = (folder / "calls").read_text().splitlines()
    return [call for call in found if not call.endswith(" init")]


def over(folder: Path) -> list[str]:
    """Return the calls of a finished run, except for the last close, which is optional."""
    found = calls(folder)
    return found[:-1] if found[-1].endswith(" close") else found


@pytest.mark.parametrize("how", ["unavailable", "timeout"])
def test_an_outage_leaves_the_same_object_open(tmp_path: Path, how: str) -> None:
    """After SinkUnavailable or SinkTimeout in write the same object gets the next write."""
    run_to_end(pipeline(tmp_path, {2: how, 3: how}))
    assert over(tmp_path) == ["1 open", *["1 write 0..2"] * 3]


@pytest.mark.parametrize("how", ["rejected", "odd"])
def test_what_names_no_entry_is_divided_with_the_same_object(tmp_path: Path, how: str) -> None:
    """After an unnamed failure the same object gets the entries one at a time."""
    run_to_end(pipeline(tmp_path, {2: how}))
    singly = [f"1 write {n}..{n}" for n in range(3)]
    assert over(tmp_path) == ["1 open", "1 write 0..2", *singly]


@pytest.mark.parametrize("how", ["unavailable", "timeout"])
def test_a_failed_open_is_closed_and_a_new_object_opened(tmp_path: Path, how: str) -> None:
    """After an open that reports an unavailable sink the object is closed and replaced."""
    run_to_end(pipeline(tmp_path, {1: how}))
    assert over(tmp_path) == ["1 open", "1 close", "2 open", "2 write 0..2"]


@pytest.mark.parametrize(("call", "how"), [(1, "fault"), (1, "odd"), (2, "fault")])
def test_a_fault_closes_the_object_until_a_resume(tmp_path: Path, call: int, how: str) -> None:
    """A halted route has no writer, and a resume creates and opens another."""
    events = Events()
    with running(pipeline(tmp_path, {call: how}, end=False), events=events) as engine:
        events.await_count("route-stopped")
        until(lambda: calls(tmp_path)[-1] == "1 close")
        live = RunningEngine(engine, {})
        live.perform(requests.Resume("out"), Operator("me", 7, 42))
        until(lambda: "2 write 0..2" in (tmp_path / "calls").read_text())
    begun = ["1 open"] if call == 1 else ["1 open", "1 write 0..2"]
    assert over(tmp_path) == [*begun, "1 close", "2 open", "2 write 0..2"]
