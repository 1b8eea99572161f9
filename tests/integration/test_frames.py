"""Routes whose slices are DataFrames, on a real Spark: queries, sinks, and their failures."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from frame_tools import LOG_ID, Delivering, entries, route, session

from transporter.errors import RouteFault
from transporter.message import ENTRY_SCHEMA
from transporter.protocol.messages import FailureKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Run Spark for every test of this module."""
    with session(tmp_path_factory.mktemp("spark")) as found:
        yield found


@pytest.fixture
def opened(spark: SparkSession, folder: Path) -> Iterator[Callable[..., Delivering]]:
    """Return a function that opens routes: ``opened(steps, writer, settings)``."""
    made: list[Delivering] = []

    def make(
        steps: list[dict[str, Any]], writer: str, settings: dict[str, Any], **more: Any
    ) -> Delivering:
        made.append(Delivering(route(folder, steps, writer, settings, **more), spark, folder))
        return made[-1]

    yield make
    for each in made:
        each.close()


def _rows(folder: Path) -> list[dict[str, Any]]:
    table = ds.dataset(folder, format="parquet", partitioning="hive").to_table()
    return sorted(table.to_pylist(), key=lambda row: row["offset"])


def test_a_query_goes_into_parquet(opened: Callable[..., Delivering], folder: Path) -> None:
    """The rows of a query are written with their types, and dropped rows count as skipped."""
    query = (
        "SELECT offset, key, data, timestamp, variant_get(parse_json(data), '$.order', 'int') AS n "
        "FROM entries WHERE offset % 2 = 0"
    )
    daily = opened([{"sql": query}], "spark", {"path": "daily"})
    outcome = daily.deliver(entries(10))
    assert (outcome.through, outcome.failure, daily.vanished()) == (9, None, 5)
    rows = _rows(folder / "daily")
    assert [row["n"] for row in rows] == [0, 2, 4, 6, 8]
    assert rows[1]["data"] == '{"order":2,"customer":"c2"}'
    assert rows[1]["key"] == "c2"
    assert rows[1]["timestamp"] == datetime(2023, 11, 14, 22, 13, 20, 2, UTC)


def test_every_slice_is_a_slice_of_its_own(opened: Callable[..., Delivering], folder: Path) -> None:
    """A query that shuffles returns the entries of its slice, never those of an earlier one."""
    query = "SELECT offset, count(*) OVER (PARTITION BY key) AS orders FROM entries"
    daily = opened([{"sql": query}], "spark", {"path": "daily"})
    for first in (0, 6, 12):
        assert daily.deliver(entries(6, first)).through == first + 5
    assert [row["offset"] for row in _rows(folder / "daily")] == list(range(18))
    assert {row["orders"] for row in _rows(folder / "daily")} == {2}


@pytest.mark.exhaustive
def test_every_slice_of_rows_too(opened: Callable[..., Delivering], folder: Path) -> None:
    """A Python writer gets each slice once, in log order, even if Spark shuffles."""
    rows = opened([{"sql": "SELECT * FROM entries"}], "file", {"path": "rows.jsonl"})
    for first in (0, 5, 10):
        assert rows.deliver(entries(5, first)).failure is None
    lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["offset"] for line in lines] == list(range(15))


def test_a_schema_opens_the_document(opened: Callable[..., Delivering], folder: Path) -> None:
    """With a schema data is a struct, and columns may become folders."""
    steps = [
        {
            "sql": {
                "query": "SELECT offset, data.customer AS customer, data.order AS n FROM entries",
                "schema": "order BIGINT, customer STRING",
            }
        }
    ]
    daily = opened(steps, "spark", {"path": "daily", "partition_by": ["customer"]})
    assert daily.deliver(entries(9)).through == 8
    assert sorted(each.name for each in (folder / "daily").glob("customer=*")) == [
        "customer=c0",
        "customer=c1",
        "customer=c2",
    ]
    assert [row["n"] for row in _rows(folder / "daily")] == list(range(9))


def test_bytes_stay_bytes(opened: Callable[..., Delivering], folder: Path) -> None:
    """With ``bytes``, invalid UTF-8 arrives unchanged, and without it the entry is named."""
    hostile = entries(3, at_1=b"\xff\xfe")
    raw = opened(
        [{"sql": {"query": "SELECT offset, data FROM entries", "bytes": True}}],
        "spark",
        {"path": "raw"},
    )
    assert raw.deliver(hostile).failure is None
    assert _rows(folder / "raw")[1]["data"] == b"\xff\xfe"
    text = opened([{"sql": "SELECT offset, data FROM entries"}], "spark", {"path": "text"})
    outcome = text.deliver(hostile)
    assert (outcome.through, outcome.failure.offset, outcome.failure.kind) == (
        0,
        1,
        FailureKind.REJECTED,
    )


def test_text_is_asked_for_where_it_is_looked_at(
    opened: Callable[..., Delivering], folder: Path
) -> None:
    """Invalid UTF-8 fails no query that skips its entry or never reads data."""
    hostile = entries(4, at_1=b"\xff\xfe")
    some = opened(
        [{"sql": "SELECT offset, data FROM entries WHERE offset <> 1"}], "spark", {"path": "some"}
    )
    assert some.deliver(hostile).failure is None
    assert [row["data"][:10] for row in _rows(folder / "some")] == [
        f'{{"order":{n}' for n in (0, 2, 3)
    ]
    other = opened([{"sql": "SELECT offset FROM entries"}], "spark", {"path": "other"})
    assert other.deliver(hostile).failure is None
    assert [row["offset"] for row in _rows(folder / "other")] == [0, 1, 2, 3]


def test_a_query_sees_the_columns_of_a_message(
    opened: Callable[..., Delivering], folder: Path
) -> None:
    """``SELECT *`` returns a message's columns, and no internal ones, behind Python or without."""
    for number, steps in enumerate(([], [{"pick": {"fields": ["order"]}}])):
        for more in ([], [{"sql": "SELECT * FROM entries"}]):
            path = f"daily-{number}-{len(more)}"
            daily = opened([*steps, *more], "spark", {"path": path})
            assert daily.deliver(entries(2)).failure is None
            assert ds.dataset(folder / path, format="parquet").schema.names == ENTRY_SCHEMA.names


@pytest.mark.exhaustive
def test_the_guilty_entry_is_found(opened: Callable[..., Delivering], folder: Path) -> None:
    """A failing query delivers the entries before the bad one, which the route finds and names."""
    steps = [
        {
            "sql": {
                "query": "SELECT offset, data.order AS n FROM entries",
                "schema": "order BIGINT",
            }
        }
    ]
    daily = opened(steps, "spark", {"path": "daily"})
    outcome = daily.deliver(entries(40, at_29=b"{nope"))
    assert (outcome.through, outcome.failure.offset) == (28, 29)
    assert "Malformed" in outcome.failure.text
    assert [row["offset"] for row in _rows(folder / "daily")] == list(range(29))
    # Alone, as the engine tries it then, and the rest behind it.
    assert daily.deliver(entries(1, 29, at_29=b"{nope")).failure.offset == 29
    assert daily.deliver(entries(10, 30)).failure is None


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "column", ["parse_json(data):order::BIGINT", "CAST(data AS BIGINT)"], ids=["parse", "cast"]
)
def test_an_error_of_spark_holds_no_data(opened: Callable[..., Delivering], column: str) -> None:
    """Spark quotes the record that it cannot read. The entry's failure does not."""
    steps = [{"sql": f"SELECT offset, {column} AS n FROM entries"}]
    outcome = opened(steps, "spark", {"path": "daily"}).deliver(entries(1, at_0=b'{"pin": 1234'))
    assert outcome.failure.offset == 0
    assert re.match(r"\[(MALFORMED_RECORD|CAST_INVALID)", outcome.failure.text)
    assert "pin" not in outcome.failure.text


def test_steps_in_python_stand_before_and_behind(
    opened: Callable[..., Delivering], folder: Path
) -> None:
    """Python steps before a query feed it, and Python steps behind it get its rows."""
    steps = [
        {"omit": {"fields": ["customer"]}},
        {"sql": "SELECT * FROM entries WHERE data LIKE '{\"order\":%' AND offset <> 3"},
        {"rename": {"fields": {"order": "number"}}},
    ]
    rows = opened(steps, "file", {"path": "-", "format": "data"})
    outcome = rows.deliver(entries(6))
    assert (outcome.through, rows.vanished()) == (5, 1)
    assert "".join(rows.shown).splitlines() == [f'{{"number":{n}}}' for n in (0, 1, 2, 4, 5)]


def test_what_a_query_makes_of_json_is_not_said_to_be_json(
    opened: Callable[..., Delivering], folder: Path
) -> None:
    """Only data that is still a document keeps its content type on the way to a Python writer."""
    (folder / "kinds.py").write_text(KINDS, encoding="utf-8")
    made = "if(offset = 1, string(data), base64(data))"
    query = f"SELECT * EXCEPT (data), {made} AS data FROM entries"
    rows = opened([{"sql": {"query": query, "bytes": True}}], "kinds:Kinds", {"path": "kinds"})
    assert rows.deliver(entries(3)).failure is None
    assert (folder / "kinds").read_text().split() == ["None", "application/json", "None"]


KINDS = """
from transporter.adaptor import AdaptorConfig, LocalPath

class Kinds:
    class Config(AdaptorConfig):
        path: LocalPath

    def __init__(self, config):
        self.path = config.path

    def open(self, context):
        return None

    def write(self, entries, ack):
        self.path.write_text(" ".join(str(each.message.content_type) for each in entries))
        ack.all()

    def close(self):
        pass
"""


def test_untouched_columns_are_exact(opened: Callable[..., Delivering], folder: Path) -> None:
    """Headers, keys and times pass through a query unchanged, bytes and nulls included."""
    rows = opened([{"sql": "SELECT * FROM entries"}], "file", {"path": "rows.jsonl"})
    plain = opened(
        [{"pick": {"fields": ["order", "customer"]}}, {"sql": "SELECT * FROM entries"}],
        "file",
        {"path": "plain.jsonl"},
    )
    for each in (rows, plain):
        assert each.deliver(entries(2)).failure is None
    line = json.loads((folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()[1])
    assert line["headers"] == [["h", {"base64": "/w=="}], ["n", None], ["h", ""]]
    assert (line["key"], line["timestamp"]) == ("c1", "2023-11-14T22:13:20.000001Z")
    assert (folder / "plain.jsonl").read_text() == (folder / "rows.jsonl").read_text()


def test_a_failing_step_names_its_entry(opened: Callable[..., Delivering]) -> None:
    """A Python step that fails in a task names its entry, and the slice is not halved."""
    daily = opened(
        [{"omit": {"fields": ["customer"]}}, {"sql": "SELECT offset FROM entries"}],
        "spark",
        {"path": "daily"},
    )
    outcome = daily.deliver(entries(5, at_3=b'{"customer":'))
    assert (outcome.failure.kind, outcome.failure.offset) == (FailureKind.REJECTED, 3)
    assert "omit" in outcome.failure.text


def test_what_is_stored_is_adopted(opened: Callable[..., Delivering], folder: Path) -> None:
    """A sink that stores its offset returns it when the route is opened again."""
    for writer, settings in (("spark", {"path": "daily"}), ("lmdb", {"path": "rows.lmdb"})):
        steps = [{"sql": "SELECT * FROM entries"}]
        first = opened(steps, writer, settings)
        assert first.stored is None
        assert first.deliver(entries(4)).through == 3
        first.close()
        again = opened(steps, writer, settings, epoch=2)
        assert (again.stored.offset, again.stored.route, again.stored.epoch) == (3, "daily", 1)


@pytest.mark.exhaustive
def test_a_dead_task_is_halved_down(opened: Callable[..., Delivering], folder: Path) -> None:
    """A step that ends its process, or hangs, costs only its own entry."""
    (folder / "deadly_step.py").write_text(
        "import os, time\n"
        "def step(message):\n"
        "    if b'die' in message.data:\n"
        "        os._exit(7)\n"
        "    if b'hang' in message.data:\n"
        "        time.sleep(600)\n"
        "    return message\n",
        encoding="utf-8",
    )
    steps = [{"python": {"function": "deadly_step:step"}}, {"sql": "SELECT offset FROM entries"}]
    daily = opened(steps, "spark", {"path": "daily"})
    outcome = daily.deliver(entries(4, at_2=b'"die"'))
    assert (outcome.through, outcome.failure.offset) == (1, 2), outcome
    impatient = opened(steps, "spark", {"path": "daily"}, slice_timeout=10.0)
    outcome = impatient.deliver(entries(1, 4, at_4=b'"hang"'))
    assert (outcome.failure.offset, outcome.failure.kind) == (4, FailureKind.REJECTED), outcome


@pytest.mark.parametrize(
    ("query", "writer", "told"),
    [
        ("SELECT key FROM entries", "spark", "must keep the column offset"),
        ("SELECT offset, nope FROM entries", "spark", "nope"),
        ("SELEC offset FROM entries", "spark", "SELEC"),
        ("SELECT offset, key FROM entries", "file", "leaves out logged_at"),
        ("SELECT *, 1 AS one FROM entries", "file", "columns that no message has: one"),
        ("SELECT * REPLACE (parse_json(data) AS data) FROM entries", "file", "to_json(data)"),
    ],
)
def test_a_wrong_query_stops_its_route(
    opened: Callable[..., Delivering], query: str, writer: str, told: str
) -> None:
    """A query that cannot work is refused when the route is opened, before any entry."""
    if "REPLACE" in query:
        query = "SELECT * EXCEPT (data), parse_json(data) AS data FROM entries"
    with pytest.raises(RouteFault, match=r".") as caught:
        opened([{"sql": query}], writer, {"path": "out"})
    assert told in str(caught.value)


@pytest.mark.exhaustive
def test_a_file_system_that_is_away_is_waited_for(opened: Callable[..., Delivering]) -> None:
    """An unreachable sink is not an entry's fault, and the route retries."""
    away = "hdfs://127.0.0.1:1/daily?timeout=1"
    daily = opened([{"sql": "SELECT offset FROM entries"}], "spark", {"path": away})
    outcome = daily.deliver(entries(3))
    assert (outcome.through, outcome.failure.kind) == (-1, FailureKind.UNAVAILABLE)


def test_files_are_named_by_their_slices(opened: Callable[..., Delivering], folder: Path) -> None:
    """The same slice of a replay adds its own files, and no temporary file remains."""
    daily = opened([], "spark", {"path": "daily", "drop": ["headers"]})
    daily.deliver(entries(3))
    daily.deliver(entries(3), generation=1)
    names = sorted(each.name[:60] for each in (folder / "daily").glob("*.parquet"))
    assert names[0].startswith("slice-daily-01234567-0-00000000000000000002-part-00000")
    assert names[1].startswith("slice-daily-01234567-1-00000000000000000002-part-00000")
    assert [
        each.name for each in (folder / "daily" / "_transporter" / LOG_ID[:8] / "daily").iterdir()
    ] == ["committed.json"]
    assert "headers" not in pq.read_schema(next((folder / "daily").glob("*.parquet"))).names


def test_a_path_is_taken_as_it_is_written(opened: Callable[..., Delivering], folder: Path) -> None:
    """Spaces, percent signs and non-ASCII letters in a path are kept."""
    steps = [{"sql": "SELECT offset FROM entries"}]
    daily = opened(steps, "spark", {"path": "my dätä 100%25"})
    assert daily.deliver(entries(3)).failure is None
    assert [row["offset"] for row in _rows(folder / "my dätä 100%25")] == [0, 1, 2]


def test_what_differs_from_run_to_run_does(opened: Callable[..., Delivering], folder: Path) -> None:
    """Each slice gets its own uuid(), and current_timestamp() advances."""
    query = "SELECT offset, uuid() AS id, current_timestamp() AS at FROM entries"
    daily = opened([{"sql": query}], "spark", {"path": "daily"})
    for first in range(3):
        daily.deliver(entries(1, first))
    rows = _rows(folder / "daily")
    assert len({row["id"] for row in rows}) == 3
    assert len({row["at"] for row in rows}) == 3


def test_a_table_beside_the_slice_is_read_anew(
    opened: Callable[..., Delivering], folder: Path
) -> None:
    """A joined table is read again for each slice, so its files may change."""
    table = folder / "names"
    table.mkdir()
    query = (
        f"SELECT offset, name FROM entries JOIN parquet.`{table}` AS names "
        "ON names.key = entries.key"
    )
    pq.write_table(pa.table({"key": ["c0"], "name": ["Ada"]}), table / "first.parquet")
    daily = opened([{"sql": query}], "spark", {"path": "daily"})
    daily.deliver(entries(1))
    (table / "first.parquet").unlink()
    pq.write_table(pa.table({"key": ["c1"], "name": ["Bo"]}), table / "second.parquet")
    assert daily.deliver(entries(1, 1)).failure is None
    assert [row["name"] for row in _rows(folder / "daily")] == ["Ada", "Bo"]


def test_a_sink_of_ones_own_is_not_waited_for(
    opened: Callable[..., Delivering], folder: Path
) -> None:
    """A frame writer gets the DataFrame, and one that never runs it blocks no slice."""
    (folder / "own.py").write_text(
        "from pathlib import Path\n"
        "from transporter.adaptor import AdaptorConfig\n"
        "class Own:\n"
        "    Config = AdaptorConfig\n"
        "    def __init__(self, config): pass\n"
        "    def open(self, context): pass\n"
        "    def save(self, frame, part):\n"
        "        told = f'{part.first} {part.last} {frame.columns}'\n"
        "        Path(__file__).with_name('seen').write_text(told)\n"
        "    def close(self): pass\n",
        encoding="utf-8",
    )
    own = opened([{"sql": "SELECT offset FROM entries"}], "own:Own", {})
    assert own.deliver(entries(3)).through == 2
    assert (folder / "seen").read_text() == "0 2 ['offset']"


@pytest.mark.exhaustive
def test_a_task_that_dies_behind_its_commit_repeats_nothing(
    opened: Callable[..., Delivering], folder: Path
) -> None:
    """A slice that the sink stored is not written again when the task dies before its report."""
    (folder / "deadly.py").write_text(
        "import os\n"
        "from pathlib import Path\n"
        "from transporter_adaptors.file.writer import FileWriter\n"
        "DEAD = Path(__file__).with_name('dead')\n"
        "class Deadly(FileWriter):\n"
        "    def write(self, batch, ack):\n"
        "        super().write(batch, ack)\n"
        "        if not DEAD.exists():\n"
        "            DEAD.touch()\n"
        "            os._exit(7)\n",
        encoding="utf-8",
    )
    rows = opened([{"sql": "SELECT * FROM entries"}], "deadly:Deadly", {"path": "rows.jsonl"})
    outcome = rows.deliver(entries(8))
    assert (outcome.through, outcome.failure, (folder / "dead").exists()) == (7, None, True)
    lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["offset"] for line in lines] == list(range(8))


@pytest.mark.exhaustive
def test_a_commit_that_seemed_to_fail_is_not_written_twice(
    opened: Callable[..., Delivering], folder: Path
) -> None:
    """A slice whose files cannot be moved yet is finished later, with any slice that follows."""
    steps = [{"sql": "SELECT offset, key FROM entries"}]
    daily = opened(steps, "spark", {"path": "daily", "partition_by": ["key"]})
    (folder / "daily" / "key=c1").write_text("in the way")
    outcome = daily.deliver(entries(6))
    assert (outcome.through, outcome.failure.kind) == (-1, FailureKind.UNAVAILABLE)
    assert daily.deliver(entries(4)).failure.kind is FailureKind.UNAVAILABLE
    (folder / "daily" / "key=c1").unlink()
    assert daily.deliver(entries(4)).failure is None
    assert daily.deliver(entries(9)).failure is None
    assert daily.deliver(entries(3, 9)).failure is None
    assert [row["offset"] for row in _rows(folder / "daily")] == list(range(12))


def test_each_shard_has_a_sink_of_its_own(opened: Callable[..., Delivering], folder: Path) -> None:
    """With several workers each shard gets all entries of its keys, in order."""
    steps = [{"sql": "SELECT * FROM entries"}]
    rows = opened(steps, "file", {"path": "rows.jsonl"}, shards=2)
    for first in (0, 30):
        assert rows.deliver(entries(30, first)).failure is None
    files = [
        [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for file in folder.glob("*.jsonl")
    ]
    offsets = [[row["offset"] for row in lines] for lines in files]
    assert sorted(offset for each in offsets for offset in each) == list(range(60))
    assert all(each == sorted(each) for each in offsets)
    keys = [{row["key"] for row in lines} for lines in files]
    assert sum(len(each) for each in keys) == len(set().union(*keys)) == 3
    assert rows.stored is None


def test_the_writer_on_the_page(
    opened: Callable[..., Delivering], spark: SparkSession, folder: Path
) -> None:
    """The DataFrame writer in docs/adaptors.md appends each slice to its table."""
    page = (Path(__file__).parents[2] / "docs" / "adaptors.md").read_text(encoding="utf-8")
    (code,) = (each for each in FENCE.findall(page) if "class Lake:" in each)
    (folder / "lake.py").write_text(code, encoding="utf-8")
    daily = opened([{"sql": "SELECT offset FROM entries"}], "lake:Lake", {"table": "daily"})
    for first in (0, 3):
        assert daily.deliver(entries(3, first)).failure is None
    assert sorted(row.offset for row in spark.table("daily").collect()) == list(range(6))
