"""One route with several workers, on real Spark: kills, and the order of each key's entries."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from acceptance_tools import await_true, gone, running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

COUNT, KEYS = 20_000, 40
PIPELINE = """
log: {dir: log}
readers:
  - {name: lines, adaptor: file, path: in.jsonl, namespace: orders, key: customer}
routes:
  - name: out
    parallelism: 3
    slice_rows: 500
    writer: {adaptor: file, path: out.jsonl}
"""


def _delivered(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the complete lines of each worker's file."""
    return {
        path.name: [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        for path in sorted(folder.glob("out.shard-*.jsonl"))
    }


def _has(folder: Path, count: int) -> bool:
    return sum(map(len, _delivered(folder).values())) > count


def test_kills_repeat_nothing_and_keys_keep_their_order(tmp_path: Path) -> None:
    """A sink that stores its offset has each entry once, and each key in one shard, in order."""
    lines = [{"customer": f"c{n * 7 % KEYS}", "n": n} for n in range(COUNT)]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "p.yaml").write_text(PIPELINE)
    for goal in (2000, 9000):
        with running(tmp_path / "p.yaml") as engine:
            await_true(partial(_has, tmp_path, goal), 120, f"{goal} entries delivered")
            gone(engine.kill())
    with running(tmp_path / "p.yaml") as engine:
        assert engine.wait(timeout=120) == 0
    found = _delivered(tmp_path)
    assert len(found) == 3
    assert sorted(line["offset"] for part in found.values() for line in part) == list(range(COUNT))
    by_key = defaultdict(list)
    for part in found.values():
        for line in part:
            by_key[line["key"]].append(line["data"]["n"])
    assert len(by_key) == KEYS
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    homes = defaultdict(set)
    for name, part in found.items():
        for line in part:
            homes[line["key"]].add(name)
    assert {len(each) for each in homes.values()} == {1}
