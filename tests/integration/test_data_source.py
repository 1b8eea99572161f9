"""The log as a table of Spark: batch queries, streams, and the examples of docs/spark.md."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import pytest
from compaction_tools import LATE, SECOND
from frame_tools import launched
from log_tools import damage, unsynced
from pyspark.errors import AnalysisException, PySparkException

from transporter.log.commit_log import CommitLog
from transporter.log.compaction import CompactionSettings, compact
from transporter.log.reader import LogReader
from transporter.message import Message, messages_to_batch
from transporter.spark.shell import Request, run_python, run_statement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
FENCE = re.compile(r"^```(python|sql)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HIDE = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
COUNT, EACH = 2000, 100


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Run Spark in this environment as if activated, without further configuration."""
    settings = {
        "spark.master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.log.level": "OFF",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
    }
    with launched(settings) as session:
        yield session


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log of orders and audits in frames of a hundred, five segments of them."""
    directory = tmp_path_factory.mktemp("source") / "log"
    with CommitLog.open(directory, segment_bytes=20_000, clock=_Clock()) as opened:
        for start in range(0, COUNT, EACH):
            opened.append(messages_to_batch([message(n) for n in range(start, start + EACH)]), "r")
    return directory


class _Clock:
    """A clock that advances one second for each append, from 2020 on, and for the opening."""

    def __init__(self) -> None:
        self.now = 1_577_836_799 * SECOND

    def __call__(self) -> int:
        self.now += SECOND
        return self.now


def message(number: int) -> Message:
    """Return one of the log's messages."""
    data = None if number % 50 == 49 else json.dumps({"n": number, "pad": "x" * (number % 90)})
    return Message(
        "audit" if number % 5 == 0 else f"orders.{number % 2}",
        None if data is None else data.encode(),
        b"k%d" % (number % 7) if number % 3 else None,
        op="delete" if data is None else "insert",
        timestamp=number,
        headers=(("n", b"%d" % number),) * (number % 3),
    )


def table(spark: SparkSession, directory: Path, **options: Any) -> DataFrame:
    """Load the log of *directory*."""
    return spark.read.format("transporter").options(**options).load(str(directory))


def offsets(found: DataFrame) -> list[int]:
    """Return the offsets of the rows in *found*, ascending."""
    return sorted(row["offset"] for row in found.select("offset").collect())


def append(directory: Path, texts: Sequence[bytes], **settings: Any) -> None:
    """Append a segment of *texts*, each text as its own key."""
    with CommitLog.open(directory, segment_bytes=1, **settings) as opened:
        opened.append(messages_to_batch([Message("n", text, text) for text in texts]), "r")


def test_a_table_without_registration(spark: SparkSession, log: Path) -> None:
    """Counts, the last entry of each key and a JSON field match the log."""
    table(spark, log).createOrReplaceTempView("held")
    counts = spark.sql("SELECT namespace, count(*) FROM held GROUP BY 1").collect()
    last = spark.sql("SELECT key, max(offset) FROM held GROUP BY 1").collect()
    (total,) = spark.sql("SELECT sum(parse_json(data):n::bigint) FROM held").collect()
    messages = [message(n) for n in range(COUNT)]
    assert dict(map(tuple, counts)) == Counter(each.namespace for each in messages)
    assert {row[0] and bytes(row[0]): row[1] for row in last} == {
        each.key: n for n, each in enumerate(messages)
    }
    assert total[0] == sum(n for n, each in enumerate(messages) if each.data is not None)


def test_every_column(spark: SparkSession, log: Path) -> None:
    """A row has every column of the entry, with its own type."""
    (row,) = table(spark, log, **{"from": 1, "to": 1}).collect()
    assert row.asDict(recursive=True) | {"logged_at": None, "timestamp": None} == {
        "offset": 1,
        "logged_at": None,
        "namespace": "orders.1",
        "op": "insert",
        "phase": "sync",
        "key": b"k1",
        "timestamp": None,
        "source_id": None,
        "data": '{"n": 1, "pad": "x"}',
        "content_type": "application/json",
        "headers": [{"name": "n", "value": b"1"}],
    }
    assert (row["timestamp"].microsecond, row["logged_at"].timestamp()) == (1, 1_577_836_801)


@pytest.mark.exhaustive
def test_options_bound_what_is_read(spark: SparkSession, log: Path) -> None:
    """Offsets, times and a namespace select exactly their entries, in several partitions."""
    first, last = "2020-01-01T00:00:03+00:00", "2020-01-01T00:00:04+00:00"
    assert offsets(table(spark, log, **{"from": 150, "to": 152})) == [150, 151, 152]
    assert offsets(table(spark, log, **{"from": first, "to": last})) == list(range(200, 400))
    audits = [*range(0, COUNT, 5)]
    parted = table(spark, log, namespace="^audit$", partition_bytes=1, columns="offset")
    assert parted.columns == ["offset"]
    assert parted.rdd.getNumPartitions() > 2
    assert offsets(parted) == audits
    assert table(spark, log, **{"from": COUNT}).collect() == []


def test_a_schema_of_the_users(spark: SparkSession, log: Path) -> None:
    """A user's schema prunes columns and turns bytes into text."""
    reader = spark.read.format("transporter").option("to", 1)
    found = reader.schema("key string, offset long, data binary").load(str(log)).collect()
    assert [tuple(row) for row in found][1] == ("k1", 1, b'{"n": 1, "pad": "x"}')
    with pytest.raises(AnalysisException, match="the log has no column 'nope'"):
        reader.schema("nope long").load(str(log)).collect()


@pytest.mark.exhaustive
def test_unconfirmed_entries_are_not_seen(spark: SparkSession, tmp_path: Path) -> None:
    """Beside an engine a query ends at the durable offset, not at the last written one."""
    with CommitLog.open(tmp_path / "log") as opened:
        batch = messages_to_batch([message(n) for n in range(3)])
        opened.append(batch, "r")
        unsynced(opened, batch)
        assert offsets(table(spark, tmp_path / "log")) == [0, 1, 2]


def test_bytes_that_are_no_text(spark: SparkSession, tmp_path: Path) -> None:
    """Invalid UTF-8 fails a text query with its offset, or is read as null or as bytes."""
    append(tmp_path / "log", [b"{}", b"\xff\x00", b"a"])
    with pytest.raises(PySparkException, match="data at offset 1 is not UTF-8 text"):
        table(spark, tmp_path / "log").collect()
    lenient = table(spark, tmp_path / "log", invalidUtf8="null", columns="data").collect()
    assert [row[0] for row in lenient] == ["{}", None, "a"]
    binary = table(spark, tmp_path / "log", data="binary", columns="data").collect()
    assert [row[0] for row in binary] == [b"{}", b"\xff\x00", b"a"]


CONDITIONS = (
    "offset = 150",
    "offset IN (3, 1999, 77777) AND namespace <> 'audit'",
    "offset > 100 AND offset <= 105 AND offset <> 103",
    "logged_at >= timestamp'2020-01-01T00:00:03Z' AND logged_at < timestamp'2020-01-01T00:00:05Z'",
    "namespace = 'audit' AND key = X'6b31'",
    "namespace LIKE 'ord%' AND namespace LIKE '%1' AND op LIKE '%let%'",
    "NOT (key = X'6b31')",
    "key NOT IN (X'6b31', X'6b32')",
    "key <=> X'6b31'",
    "key IS NULL AND data IS NULL",
    "data LIKE '%77%' AND offset < 800",
    "timestamp > timestamp'1970-01-01T00:00:00.001990Z'",
    "offset < 0",
)


@pytest.mark.exhaustive
def test_push_down_changes_no_result(spark: SparkSession, log: Path) -> None:
    """Filters give the same rows here as in Spark, and times and offsets prune partitions."""
    whole = table(spark, log, columns="offset, logged_at, namespace, op, key, data, timestamp")
    judged = whole.selectExpr("offset", *CONDITIONS).collect()
    expected = [[row[0] for row in judged if row[at]] for at in range(1, len(CONDITIONS) + 1)]
    spark.conf.set(PUSH_DOWN, "true")
    try:
        found, plans = [], []
        for condition in CONDITIONS:
            pushed = table(spark, log, pushDown=True, partitionBytes=1)
            wanted = pushed.where(condition).select("offset")
            plans.append(wanted._jdf.queryExecution().optimizedPlan().toString())
            found.append([row[0] for row in wanted.collect()])
        assert found == expected
        # Proof that Spark did not filter: its plans keep no filter but the ones on text.
        assert [
            condition for condition, plan in zip(CONDITIONS, plans, strict=True) if "Filter" in plan
        ] == [CONDITIONS[9], CONDITIONS[10]]
        one = table(spark, log, pushDown=True, partitionBytes=1).where("offset = 150")
        assert one.rdd.getNumPartitions() == 1
    finally:
        spark.conf.unset(PUSH_DOWN)


@pytest.mark.exhaustive
def test_a_table_without_push_down_may_be_read_again(spark: SparkSession, log: Path) -> None:
    """With Spark's push-down on, a table that did not enable it never loses rows.

    A table that enabled it is bound to its last filters. If that part fails, Spark has
    fixed the bug, and push-down may become the default.
    """
    spark.conf.set(PUSH_DOWN, "true")
    try:
        plain, pushed = table(spark, log), table(spark, log, pushDown=True)
        assert [each.where("offset < 5").count() for each in (plain, pushed)] == [5, 5]
        assert (plain.count(), pushed.count()) == (COUNT, 5)
    finally:
        spark.conf.unset(PUSH_DOWN)


@pytest.mark.exhaustive
def test_damage_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """A damaged frame fails the query with file, byte and offset, and the rest is readable."""
    directory = tmp_path / "log"
    for text in (b"a", b"b", b"c"):
        append(directory, [text], compression=None)
    with LogReader(directory) as reader:
        frame = list(reader.frames(0, 2))[1]
        place = f"{frame.segment.path}: .*at byte {frame.frame.byte}, offset 1"
        damage(directory, frame.frame.payload_byte + 20, base=frame.segment.header.base)
    with pytest.raises(PySparkException, match=place):
        table(spark, directory).collect()
    assert offsets(table(spark, directory, **{"from": 2})) == [2]


def test_what_is_no_log(spark: SparkSession, tmp_path: Path) -> None:
    """A directory without a log, and an unknown option, are refused at once."""
    with pytest.raises(AnalysisException, match=f"{tmp_path}: no transporter log here"):
        table(spark, tmp_path)
    with pytest.raises(AnalysisException, match="there is no option 'form'; did you mean from"):
        table(spark, tmp_path, form=3)


def test_retention_in_the_middle_of_a_query(spark: SparkSession, tmp_path: Path) -> None:
    """A planned query whose entries are removed fails with the log's first remaining offset."""
    directory = tmp_path / "log"
    for text in (b"a", b"b", b"c"):
        append(directory, [text])
    planned = table(spark, directory)
    lenient = table(spark, directory, failOnDataLoss=False)
    assert (planned.rdd.getNumPartitions(), lenient.rdd.getNumPartitions()) == (1, 1)
    first, *_ = sorted(directory.glob("*.log"))
    first.unlink()
    with pytest.raises(PySparkException, match=r"offset 0 is no longer in the log; .* from 1"):
        planned.collect()
    assert offsets(lenient) == [1, 2]


def test_compaction_in_the_middle_of_a_query(spark: SparkSession, tmp_path: Path) -> None:
    """A planned query reads replaced segments, and always finds the last entry of each key."""
    directory = tmp_path / "log"
    texts = [b"%d" % (n % 3) for n in range(30)]
    with CommitLog.open(directory, segment_bytes=1) as opened:
        for text in texts:
            opened.append(messages_to_batch([Message("n", text, text)] * 2), "r")
    planned = table(spark, directory, partitionBytes=1)
    assert planned.rdd.getNumPartitions() == 30
    settings = CompactionSettings(after=0, keep="key")
    report = compact(directory, watermark=lambda: 59, settings=settings, now=LATE * SECOND)
    assert report.dropped_entries
    found = dict(map(tuple, planned.groupBy("data").agg({"offset": "max"}).collect()))
    assert found == {text.decode(): 2 * n + 1 for n, text in enumerate(texts)}
    assert planned.count() < 60


def stream(
    spark: SparkSession, directory: Path, checkpoint: Path, **options: Any
) -> list[list[int]]:
    """Run a stream over the available entries, and return the offsets of each micro-batch."""
    batches: list[list[int]] = []

    def keep(found: DataFrame, _: int) -> None:
        batches.append(offsets(found))

    loaded = spark.readStream.format("transporter").options(**options).load(str(directory))
    query = (
        loaded.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return batches


@pytest.mark.exhaustive
def test_a_stream_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """Restarts resume exactly, across rolls, and limits bound micro-batches."""
    directory, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    for start in range(0, 9, 3):
        append(directory, [b"%d" % n for n in range(start, start + 3)])
    assert stream(spark, directory, checkpoint, startingOffsets=2) == [[*range(2, 9)]]
    append(directory, [b"9", b"10"])
    append(directory, [b"11"])
    assert stream(spark, directory, checkpoint, maxOffsetsPerTrigger=2) == [[9, 10], [11]]
    assert stream(spark, directory, checkpoint) == []


@pytest.mark.exhaustive
def test_a_stream_reports_what_was_lost(spark: SparkSession, tmp_path: Path) -> None:
    """Entries that retention has removed before a restart are an error, unless that is allowed."""
    directory, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    append(directory, [b"%d" % n for n in range(12)])
    assert stream(spark, directory, checkpoint) == [[*range(12)]]
    append(directory, [b"12"])
    append(directory, [b"13"])
    for gone in sorted(directory.glob("*.log"))[:-1]:
        gone.unlink()
    with pytest.raises(PySparkException, match=r"offsets 12\.\.12 were removed .* from 13"):
        stream(spark, directory, checkpoint)
    assert stream(spark, directory, checkpoint, failOnDataLoss=False) == [[13]]


@pytest.mark.exhaustive
def test_where_a_stream_begins(spark: SparkSession, tmp_path: Path) -> None:
    """The latest offset skips existing entries, and a checkpoint of another log is refused."""
    one, other = tmp_path / "one", tmp_path / "other"
    append(one, [b"a", b"b"])
    append(other, [b"c"])
    assert stream(spark, one, tmp_path / "1", startingOffsets="latest") == [[]]
    append(one, [b"d"])
    assert stream(spark, one, tmp_path / "1", startingOffsets="earliest") == [[2]]
    with pytest.raises(PySparkException, match="this stream's checkpoint is of the log"):
        stream(spark, other, tmp_path / "1")
    with pytest.raises(PySparkException, match="from is not an option of a stream"):
        stream(spark, one, tmp_path / "2", **{"from": 1})


@pytest.mark.exhaustive
def test_a_statement_of_the_shell(
    spark: SparkSession, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A statement returns its rows and an end, or an error with the reason."""
    spark.conf.set(HIDE, "true")
    try:
        request = Request(str(log), "execute", "SELECT count(*) AS n FROM log", {"to": "9"})
        assert run_statement(spark, request) == 0
        failing = replace(request, statement="SELECT key FROM log", options={"data": "x"})
        assert run_statement(spark, failing) == 1
        text = replace(request, directory=str(log), statement="SELECT CAST(op AS INT) FROM log")
        assert run_statement(spark, text) == 1
    finally:
        spark.conf.unset(HIDE)
    answers = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert answers[:3] == [{"columns": ["n"]}, {"row": [10]}, {"end": True}]
    assert answers[3] == {"error": "option data: 'x' is neither string nor binary"}
    assert answers[4] == {"columns": ["op"]}
    assert answers[5]["error"].startswith("[CAST_INVALID_INPUT] The value 'insert'")


def test_python_in_the_shell(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In Python the names log, spark and F exist, and the table is read again each time."""
    append(tmp_path / "log", [b"a", b"b"])

    def lines() -> Iterator[str]:
        yield "print('rows', log.count())"
        append(tmp_path / "log", [b"c"])
        yield "print('rows', log.count(), spark.table('log').agg(F.max('offset')).first()[0])"

    typed = lines()
    monkeypatch.setattr("builtins.input", lambda _: next(typed, None) or _end())
    run_python(spark, Request(str(tmp_path / "log"), "python"))
    assert capsys.readouterr().out.splitlines() == ["rows 2", "rows 3 2"]


def _end() -> str:
    raise EOFError


@pytest.mark.exhaustive
def test_the_examples_of_the_page(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    """Every example of docs/spark.md runs, in order, and the stream writes all entries."""
    names: dict[str, Any] = {
        "spark": spark,
        "directory": str(log),
        "checkpoint": str(tmp_path / "checkpoint"),
        "output": str(tmp_path / "output"),
    }
    answers: list[list[Row]] = []
    try:
        for kind, text in FENCE.findall(PAGE.read_text()):
            if kind == "python":
                exec(compile(text, str(PAGE), "exec"), names)  # noqa: S102 - what the page shows
            else:
                answers.append(spark.sql(Template(text).substitute(names)).collect())
    finally:
        spark.conf.unset(PUSH_DOWN)
    names["query"].awaitTermination()
    assert spark.read.parquet(names["output"]).count() == COUNT
    assert list(map(len, answers)) == [0, 0, 3]
    assert names["few"].columns == ["offset", "namespace"]
    assert names["typed"].columns == ["key", "data"]
    assert names["recent"].count() == 0
