"""A log with a budget, and a route whose sink fails and recovers many times."""

from __future__ import annotations

import json
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from engine_tools import Events, make_pipeline, running, until

from transporter.offsets.offset_log import read_state
from transporter.pipeline.config import LogConfig

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.pipeline.config import Pipeline

SEGMENT = 65536
BUDGET = 4 * SEGMENT
LINES = 1500
OUTAGES = 6


def budgeted(folder: Path, on_full: str, **routes: Any) -> Pipeline:
    """Return a pipeline that writes many times its log's budget, two lines at a time."""
    lines = [f"n{number % 5} {number} {'x' * 4000}" for number in range(LINES)]
    pipeline = make_pipeline(folder, lines, end=False, **routes)
    compaction = {"after": 0.0, "rate": 1 << 30}
    log = {
        "dir": pipeline.log.dir,
        "segment_bytes": SEGMENT,
        "compression": "none",
        "max_bytes": BUDGET,
        "on_full": on_full,
        "compaction": compaction,
    }
    (reader,) = pipeline.readers
    small = reader.config.model_copy(update={"rows": 2})
    return pipeline.model_copy(
        update={
            "log": LogConfig.model_validate(log),
            "readers": (reader.model_copy(update={"config": small}),),
        }
    )


def got(path: Path) -> list[int]:
    """Return the offsets delivered to *path*, without a last line that is incomplete."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line)["offset"] for line in lines]


def outages(folder: Path, over: threading.Event) -> None:
    """Take the sink of the route ``moody`` away and bring it back, again and again."""
    chance = random.Random(5)
    down = folder / "moody.down"
    for _ in range(OUTAGES):
        down.write_text("write")
        over.wait(chance.uniform(1, 4))
        down.unlink()
        over.wait(chance.uniform(0.1, 0.5))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("on_full", ["wait", "stop-route"])
def test_a_moody_sink_never_needs_a_human(
    tmp_path: Path, on_full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log stays within its budget, and each entry is delivered, or named as released."""
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.PRESSED", 0.05)
    monkeypatch.setattr("transporter.engine.maintenance.log_budget.STUCK", 0.5)
    pipeline, events, over = (
        budgeted(tmp_path, on_full, moody={}, well={}),
        Events(),
        threading.Event(),
    )
    moods = threading.Thread(target=outages, args=(tmp_path, over), name="moods")
    sizes = []
    with running(pipeline, events=events) as engine:
        moods.start()

        def done() -> bool:
            sizes.append(engine._log.used_bytes)
            return got(tmp_path / "moody.jsonl")[-1:] == [LINES - 1]

        for _ in range(20):
            try:
                until(done)
                break
            except AssertionError:
                assert engine.halted == []
        over.set()
        moods.join()
        until(lambda: len(set(got(tmp_path / "well.jsonl"))) == LINES)
    assert max(sizes) <= BUDGET + SEGMENT
    assert events.named("log-nearly-full")
    assert events.named("housekeeping-failed") == []
    assert {each["holder"] for each in events.named("log-nearly-full")} >= {"route moody"}
    delivered = set(got(tmp_path / "moody.jsonl"))
    released = {
        offset
        for part in read_state(pipeline.log.dir, "moody").released
        for offset in range(part.first, part.last + 1)
    }
    assert delivered | released == set(range(LINES))
    assert bool(released) == (on_full == "stop-route")
    assert set(got(tmp_path / "well.jsonl")) == set(range(LINES))
    assert read_state(pipeline.log.dir, "well").released == ()
