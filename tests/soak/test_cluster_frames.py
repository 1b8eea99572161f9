"""DataFrame routes and teams on a standalone cluster whose workers see neither log nor modules."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from acceptance_tools import await_true, gone, running
from cluster_tools import Cluster, executors, kill, pipeline

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ROWS = 6000
STEP = "def step(message):\n    return message\n"


def _pipeline(folder: Path, master: str, out: Path) -> Path:
    """Write a pipeline with a query into Parquet, one into a sink in Python, and a team."""
    path = pipeline(folder, master, out / "rows.jsonl", ROWS)
    (folder / "mine.py").write_text(STEP, encoding="utf-8")
    document = json.loads(path.read_text(encoding="utf-8"))
    (known,) = document["routes"]
    rows = known | {"name": "rows", "slice_rows": 1000, "slice_timeout": "60s"}
    python = {"python": {"function": "mine:step"}}
    team = known["writer"] | {"path": f"{out}/team.jsonl"}
    document["routes"] = [
        rows | {"steps": [{"sql": "SELECT * FROM entries WHERE offset % 2 = 0"}, python]},
        rows
        | {
            "name": "team",
            "parallelism": 2,
            "writer": team,
        },
        {
            "name": "daily",
            "slice_rows": 1000,
            "steps": [python, {"sql": "SELECT offset, key, data FROM entries"}],
            "writer": {"adaptor": "spark", "path": (out / "daily").as_uri()},
        },
    ]
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def _parquet(out: Path) -> list[int]:
    table = ds.dataset(out / "daily", format="parquet").to_table()
    return sorted(table["offset"].to_pylist())


def test_killed_executors_and_engines_lose_nothing(near: Cluster, tmp_path: Path) -> None:
    """Executors and the engine are killed, and every route has all entries, keys in order."""
    out = near.folder / "shared"
    out.mkdir()
    file = _pipeline(near.folder / "engine", near.master, out)
    with running(file) as engine:
        await_true((out / "team.jsonl").exists, 120, "the first deliveries")
        kill(executors(near.workers[0])[0])
        await_true(lambda: len(_lines(out / "team.jsonl")) > ROWS / 3, 120, "a third")
        gone(engine.kill())
    with running(file) as engine:
        assert engine.wait(240) == 0, engine.noise[-20:]
    rows, team = _lines(out / "rows.jsonl"), _lines(out / "team.jsonl")
    assert {line["offset"] for line in rows} == set(range(0, ROWS, 2))
    assert {line["offset"] for line in team} == set(range(ROWS))
    assert {line["host"] for line in rows + team} == {"hidden"}
    for lines in (rows, team):
        first: dict[str, list[int]] = defaultdict(list)
        seen: set[int] = set()
        for line in lines:
            if line["offset"] not in seen:
                first[line["key"]].append(line["offset"])
                seen.add(line["offset"])
        assert all(each == sorted(each) for each in first.values())
    assert _parquet(out) == list(range(ROWS))


def test_a_folder_that_is_not_shared_is_refused(near: Cluster) -> None:
    """Files that the engine's host does not see stop the route before they are committed."""
    out = near.folder / "engine" / "hidden"
    file = _pipeline(near.folder / "engine", near.master, out)
    document = json.loads(file.read_text(encoding="utf-8"))
    document["log"]["dir"] = "log-2"
    document["routes"] = document["routes"][2:]
    file.write_text(json.dumps(document), encoding="utf-8")
    with running(file) as engine:
        stopped = engine.await_event("route-stopped", 120)
        assert "not the same folder on every host" in stopped["problem"]
    assert not list((out / "daily").glob("*.parquet"))
