"""One pipeline file, run with a local master and on a cluster that is killed: the same result.

Pumps and DataFrame routes run beside each other, on separate hosts.
"""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from acceptance_tools import Running, await_true, gone, running
from cluster_tools import SECRET, WRITER, below, check, executors, kill, python_workers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster_tools import Cluster

logger = logging.getLogger(__name__)
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

ROWS = 4000
REGIONS = ("EU", "US", "APAC")
_PATIENCE = 400
PIPELINE = """\
name: same
log: {dir: "${WHERE}"}
observe: {listen: "off"}
readers:
  - {name: in, adaptor: file, path: in.jsonl, key: customer}
routes:
  - name: orders
    slice_rows: 100
    slice_timeout: 20s
    steps: [{python: {function: "mine:slowly"}}]
    writer: {adaptor: file, path: "${OUT}/orders.jsonl"}
  - name: seen
    slice_rows: 100
    slice_timeout: 20s
    steps: [{python: {function: "mine:slowly"}}]
    writer: {adaptor: "lines:Lines", path: "${OUT}/seen.jsonl"}
  - name: daily
    slice_rows: 100
    slice_timeout: 20s
    steps:
      - python: {function: "mine:paced"}
      - sql: >-
          SELECT offset, doc:customer::STRING AS customer, doc:region::STRING AS region,
            doc:total::BIGINT AS total
          FROM (SELECT offset, parse_json(data) AS doc FROM entries)
          WHERE offset % 5 <> 0 DISTRIBUTE BY region
    writer: {adaptor: spark, path: "file://${OUT}/daily", partition_by: [region]}
  - name: big
    slice_rows: 100
    slice_timeout: 20s
    steps:
      - sql: SELECT * FROM entries WHERE offset % 3 <> 0
      - python: {function: "mine:paced"}
    writer: {adaptor: "lines:Lines", path: "${OUT}/big.jsonl"}
spark:
  master: "${MASTER}"
  config:
    spark.authenticate.secret: "${SECRET}"
    spark.executor.memory: 768m
    spark.sql.shuffle.partitions: 2
"""
MINE = '''\
import time
from pathlib import Path

HURRY = Path(%r)


def paced(message, seconds=0.02):
    if not HURRY.exists():
        time.sleep(seconds)
    return message


def slowly(message):
    """A pump is faster than Spark's jobs: all are to be killed in the middle."""
    return paced(message, 0.06)
'''
GREETING = "def host():\n    return 'any'\n"


@pytest.fixture
def file(far: Cluster, place: Path, tmp_path: Path) -> Path:
    """Write the files to run on the cluster, with ``tmp_path`` visible to all hosts."""
    return written(place, tmp_path)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the same file with a local master, without kills, and return the results' folder."""
    folder = tmp_path_factory.mktemp("local")
    (folder / "hurry").touch()
    file = written(folder, folder)
    with running(file, **variables(file, "local", folder / "out")) as engine:
        assert engine.wait(_PATIENCE) == 0, engine.noise[-20:]
    return folder / "out"


def written(folder: Path, shared: Path) -> Path:
    """Write the pipeline, its modules and its lines into *folder*, and return its file."""
    (folder / "mine.py").write_text(MINE % str(shared / "hurry"), encoding="utf-8")
    (folder / "lines.py").write_text(WRITER, encoding="utf-8")
    (folder / "greeting.py").write_text(GREETING, encoding="utf-8")
    with (folder / "in.jsonl").open("w", encoding="utf-8") as into:
        for number in range(ROWS):
            order = {"customer": f"c{number % 7}", "region": at(number), "total": number}
            into.write(f"{json.dumps(order)}\n")
    path = folder / "pipeline.yaml"
    path.write_text(PIPELINE, encoding="utf-8")
    return path


def variables(file: Path, master: str, out: Path) -> dict[str, str]:
    """Return the pipeline file's variables: its master, and its folders."""
    out.mkdir(exist_ok=True)
    where = {"MASTER": master, "OUT": str(out), "WHERE": str(file.parent / "log")}
    return where | {"SECRET": SECRET}


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file that may be growing."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def counted(path: Path) -> int:
    """Return the number of lines in a file."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def committed(out: Path) -> int:
    """Return the last committed offset of the Parquet."""
    found = list(out.glob("daily/_transporter/*/daily/committed.json"))
    return int(json.loads(found[0].read_text())["stored"]["offset"]) if found else -1


def parquet(out: Path) -> list[dict[str, Any]]:
    """Return the rows of the Parquet, region after region, each in the order of its files."""
    files = sorted(ds.dataset(out / "daily", format="parquet").files)
    tables = [ds.dataset(each, format="parquet").to_table() for each in files]
    return pa.concat_tables(tables).to_pylist()


def moved_on(out: Path) -> Callable[[], bool]:
    """Return a test for a delivery of every route since now."""
    files = [out / f"{name}.jsonl" for name in ("orders", "seen", "big")]
    before = [counted(each) for each in files], committed(out)

    def holds() -> bool:
        more = [counted(each) > told for each, told in zip(files, before[0], strict=True)]
        return all(more) and committed(out) > before[1]

    return holds


def until(engine: Running, holds: Callable[[], bool], what: str) -> None:
    """Wait until *holds*, and fail if *engine* ends."""
    await_true(lambda: engine.process.poll() is not None or holds(), _PATIENCE, what)
    assert engine.process.poll() is None, (engine.events[-5:], engine.noise[-20:])
    assert not [each for each in engine.events if each["event"] == "route-stopped"]


def python(engine: Running, far: Cluster, turn: int) -> None:
    """Kill every Python worker of one host: of pumps and of tasks."""
    for each in python_workers(far.workers[turn % 2]):
        kill(each)


def executor(engine: Running, far: Cluster, turn: int) -> None:
    """Kill the executors of one host."""
    for each in executors(far.workers[turn % 2]):
        kill(each)


def host(engine: Running, far: Cluster, turn: int) -> None:
    """Kill all processes of one host, and start its worker again."""
    far.kill_host(0)
    far.boot_host(0)


def jvm(engine: Running, far: Cluster, turn: int) -> None:
    """Kill Spark's driver."""
    (found,) = [each for each in below(engine.process.pid) if _is_java(each)]
    kill(found)


def _is_java(process: psutil.Process) -> bool:
    try:
        return process.name() == "java"
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    "victims",
    [[python] * 2, [executor] * 2, [host] * 2, [jvm] * 2, [host, python, jvm]],
    ids=["python", "executor", "host", "jvm", "each"],
)
def test_a_killed_cluster_gives_what_a_local_master_gives(
    victims: list[Callable[[Running, Cluster, int], None]],
    far: Cluster,
    file: Path,
    local: Path,
    tmp_path: Path,
) -> None:
    """The same entries and rows arrive, keys in order, and in files and Parquet each once."""
    out = tmp_path / "far"
    with running(file, **variables(file, far.master, out)) as engine:
        until(engine, lambda: committed(out) > 0 and counted(out / "big.jsonl") > 0, "a start")
        for turn, kills in enumerate(victims):
            until(engine, moved_on(out), "progress of every route")
            began = time.monotonic()
            kills(engine, far, turn)
            told = f"{kills.__name__}: every route delivers again after %.1f s"
            until(engine, moved_on(out), "progress after a kill")
            logger.warning(told, time.monotonic() - began)
        assert committed(out) < ROWS - 5, "the kills came too late"
        (tmp_path / "hurry").touch()
        assert engine.wait(_PATIENCE) == 0, engine.noise[-20:]
    compare(local, out)


def test_a_killed_engine_gives_what_a_local_master_gives(
    far: Cluster, file: Path, local: Path, tmp_path: Path
) -> None:
    """The next engine continues on the cluster, and the result is the same."""
    out = tmp_path / "far"
    where = variables(file, far.master, out)
    for _ in range(2):
        before = committed(out)
        with running(file, **where) as engine:
            until(engine, lambda: committed(out) > before, "progress")  # noqa: B023
            until(engine, moved_on(out), "progress of every route")
            gone(engine.kill())
    assert committed(out) < ROWS - 5, "the kills came too late"
    (tmp_path / "hurry").touch()
    with running(file, **where) as engine:
        assert engine.wait(_PATIENCE) == 0, engine.noise[-20:]
    compare(local, out)


def compare(local: Path, out: Path) -> None:
    """Check that nothing is missing, that exact sinks have no duplicate, and the order of keys."""
    written = [
        [{name: line[name] for name in ("offset", "key", "data")} for line in lines(each)]
        for each in (local / "orders.jsonl", out / "orders.jsonl")
    ]
    assert written[0] == written[1]
    assert [line["offset"] for line in written[1]] == list(range(ROWS))
    check(lines(out / "seen.jsonl"), ROWS)
    assert firsts(lines(out / "big.jsonl")) == firsts(lines(local / "big.jsonl"))
    rows = parquet(out)
    assert rows == parquet(local)
    wanted = [n for region in sorted(REGIONS) for n in range(ROWS) if n % 5 and at(n) == region]
    assert [row["offset"] for row in rows] == wanted
    assert not list(out.glob("daily/_transporter/*/daily/slice-*"))


def at(number: int) -> str:
    """Return the region of an order."""
    return REGIONS[number % len(REGIONS)]


def firsts(found: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return each key's entries, in the order of their first arrival."""
    seen = {}
    for each in found:
        seen.setdefault(each["offset"], each)
    return by_key(list(seen.values()), "key")


def by_key(found: list[dict[str, Any]], key: str) -> dict[str, list[Any]]:
    """Return each key's rows, in their order, without process and host."""
    made: dict[str, list[Any]] = defaultdict(list)
    for each in found:
        told = {name: value for name, value in each.items() if name not in {"pid", "host"}}
        made[each[key]].append(told)
    return dict(made)
