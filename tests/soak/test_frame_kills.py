"""Routes on DataFrames by the real command: repeated kills repeat no entry."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import psutil
import pyarrow.dataset as ds
import pytest
from acceptance_tools import Running, await_true, gone, running, transporter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINES = 30_000
POISON = 16_321
_PATIENCE = 240
PIPELINE = """\
name: frames
log: {{dir: log}}
readers:
  - {{name: in, adaptor: file, path: in.jsonl, follow: true, key: customer}}
routes:
  - name: daily
    steps:
      - sql: >-
          SELECT offset, {cast}(data:total::STRING AS INT) AS total,
            data:customer::STRING AS customer
          FROM (SELECT offset, parse_json(data) AS data FROM entries)
          WHERE offset % 5 <> 0
    slice_rows: 1000
    on_error: park
    park_order: free
    retry: {{attempts: 2, backoff: 10ms..10ms}}
    writer: {{adaptor: spark, path: daily, partition_by: [customer]}}
  - name: rows
    steps:
      - sql: SELECT * FROM entries WHERE offset % 3 <> 0
    slice_rows: 1000
    writer: {{adaptor: file, path: rows.jsonl}}
"""


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_kills_repeat_and_lose_nothing(tmp_path: Path) -> None:
    """Killed twice with its engine and once with its JVM, each sink has each entry once.

    The entry that its query cannot take is parked with its error, and arrives once, too,
    when the query was fixed.
    """
    pipeline = tmp_path / "pipeline.yaml"
    pipeline.write_text(PIPELINE.format(cast="CAST"))
    _write_lines(tmp_path / "in.jsonl")
    _killed_at(pipeline, 3_000, _kill_engine)
    _killed_at(pipeline, 9_000, _kill_jvm, then=20_000)
    with running(pipeline) as engine:
        log = str(tmp_path / "log")
        await_true(lambda: _settled(log) == LINES - 1, _PATIENCE, "all of the log")
        (parked,) = transporter("parked", "list", log, "daily")
        assert parked["offset"] == POISON
        assert "CAST_INVALID_INPUT" in parked["error"]
        assert _offsets_in(tmp_path / "daily") == _expected(without=POISON)
        _mend(pipeline)
        await_true(
            lambda: _offsets_in(tmp_path / "daily") == _expected(), _PATIENCE, "the parked entry"
        )
        await_true(
            lambda: not transporter("parked", "list", log, "daily"), _PATIENCE, "that it is gone"
        )
        assert engine.stop() == 0
    assert _offsets_in(tmp_path / "daily") == _expected()
    lines = (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [n for n in range(LINES) if n % 3]


def _write_lines(path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in range(LINES):
            total = number if number != POISON else "plenty"
            document = {"order": number, "customer": f"c{number % 4}", "total": total}
            file.write(f"{json.dumps(document)}\n")


def _killed_at(
    pipeline: Path, offset: int, kill: Callable[[Running], None], then: int | None = None
) -> None:
    """Run until *offset* is in the data, kill, and kill the engine after *then*, if given."""
    with running(pipeline) as engine:
        await_true(lambda: _committed(pipeline) >= offset, _PATIENCE, f"offset {offset}")
        kill(engine)
        if then is not None:
            await_true(lambda: _committed(pipeline) >= then, _PATIENCE, f"offset {then}")
            _kill_engine(engine)
    assert _committed(pipeline) < LINES - 1


def _kill_engine(engine: Running) -> None:
    gone(engine.kill())


def _kill_jvm(engine: Running) -> None:
    (jvm,) = [each for each in engine.descendants() if _is_java(each)]
    jvm.kill()


def _is_java(process: psutil.Process) -> bool:
    try:
        return "java" in process.name()
    except psutil.NoSuchProcess:
        return False


def _committed(pipeline: Path) -> int:
    """Return the last committed offset in the data's own record."""
    found = [*pipeline.parent.glob("daily/_transporter/*/daily/committed.json")]
    return int(json.loads(found[0].read_text())["stored"]["offset"]) if found else -1


def _settled(log: str) -> int:
    return min(int(route["watermark"]) for route in transporter("offsets", "list", log))


def _offsets_in(daily: Path) -> Counter[int]:
    table = ds.dataset(daily, format="parquet", partitioning="hive").to_table(columns=["offset"])
    return Counter(table["offset"].to_pylist())


def _expected(without: int | None = None) -> Counter[int]:
    return Counter(n for n in range(LINES) if n % 5 and n != without)


def _mend(pipeline: Path) -> None:
    """Fix the query, and retry the parked entry."""
    pipeline.write_text(PIPELINE.format(cast="try_cast"))
    transporter("reload", str(pipeline))
    transporter("parked", "retry", str(pipeline), "daily")
