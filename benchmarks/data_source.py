"""Spark SQL on the log itself against Spark SQL on its export, checked by DuckDB's answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from benchmarks.figures import Aim, Comparison, Section
from benchmarks.messages import documents
from transporter.log.commit_log import CommitLog
from transporter.log.export import export, parquet_bytes
from transporter.log.inspection import inspect
from transporter.log.reader import LogReader
from transporter.message import Message, messages_to_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.setting import Setting

_QUERIES: Final = {
    "count by namespace": (
        "SELECT namespace, count(*) FROM {table} GROUP BY namespace",
        "namespace",
        "SELECT namespace, count(*) FROM {table} GROUP BY namespace",
    ),
    "last offset of each key": (
        "SELECT namespace, key, max(offset) FROM {table} GROUP BY namespace, key",
        "namespace, key, offset",
        'SELECT namespace, key, max("offset") FROM {table} GROUP BY namespace, key',
    ),
    "sum of a JSON field": (
        "SELECT sum(cast(get_json_object(data, '$.amount') AS decimal(12, 2))) FROM {table}",
        "data",
        "SELECT sum(cast(decode(data)->>'$.amount' AS decimal(12, 2))) FROM {table}",
    ),
}
"""For Spark, the columns that it needs, and for DuckDB."""
_AIM: Final = Aim(0.6, at_least=True)
_NAMESPACES: Final = 10
_ROWS: Final = 2000
_MIB: Final = 1 << 20

METHOD: Final = """\
A log of {rows} messages of about 200 bytes of JSON in {namespaces} namespaces, in frames of {each}:
{entries} MiB in memory, {log} MiB of segments (lz4). "Ours" is Spark SQL over
`format("transporter")`, which verifies and decodes each frame at each query. The rival is Spark SQL
over `spark.read.parquet` of a `log export` of the same log ({export} MiB, zstd). Spark reads it by
itself, in Java, and only the columns that it needs.

Both use the same session, `local[*]`, with Spark's defaults. Each query runs once with every column
handed over, and once with the option `columns` naming those that it needs. Every answer, of both,
equals DuckDB's answer on the export."""

LIMITS: Final = """\
Spark reads Parquet in Java, by columns, and skips what a query does not need. Here each frame is
verified and decompressed as a whole in a Python process, and its columns go over a socket."""


@dataclass
class _Spark:
    """A process of Spark that answers SQL. It is one of its own, so that nothing of it stays."""

    log: Path
    exported: Path
    process: subprocess.Popen[str] = field(init=False)

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.data_source", str(self.log), str(self.exported)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=spark_environment(),
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None  # noqa: S101 - it is a pipe
        self.process.stdin.close()
        self.process.wait(60)

    def query(self, table: str, columns: str, query: str) -> tuple[float, list[Any]]:
        """Run a *query*. Return the seconds it took and the rows it found."""
        assert self.process.stdin is not None and self.process.stdout is not None  # noqa: PT018, S101
        self.process.stdin.write(json.dumps([table, columns, query]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("Spark ended without an answer")
        took, rows = json.loads(line)
        return float(took), rows


def measure(setting: Setting) -> Section:
    """Compare three queries, each with all columns and with those that it needs."""
    folder = setting.make_folder("data-source")
    log, exported = folder / "log", folder / "log.parquet"
    setting.report("writing the log")
    rows, size = _write_log(log, setting.scale(1 << 30, 16 << 20))
    setting.report("exporting it")
    _export(log, exported)
    answers = {name: _query_duckdb(exported, text) for name, (_, _, text) in _QUERIES.items()}
    sides = {}
    with _Spark(log, exported) as spark:
        for name, (query, columns, _) in _QUERIES.items():
            for kind, table, wanted in (
                ("all", "transporter", ""),
                ("few", "transporter", columns),
                ("parquet", "parquet", ""),
            ):
                ask = partial(spark.query, table, wanted, query)
                sides[f"{name}/{kind}"] = partial(_rate, ask, rows, answers[name])
        found = setting.interleave(sides, setting.scale(3, 1))
    comparisons = [
        Comparison(
            f"{name}, {'every column' if kind == 'all' else 'the columns it needs'}",
            "Parquet",
            "rows/s",
            found[f"{name}/{kind}"],
            found[f"{name}/parquet"],
            _AIM if kind == "few" else None,
        )
        for name in _QUERIES
        for kind in ("all", "few")
    ]
    method = METHOD.format(
        rows=rows,
        namespaces=_NAMESPACES,
        each=_ROWS,
        entries=size // _MIB,
        log=inspect(log).size // _MIB,
        export=exported.stat().st_size // _MIB,
    )
    return Section("data-source", method, tuple(comparisons), limits=LIMITS)


def _write_log(directory: Path, size: int) -> tuple[int, int]:
    """Write a log of about *size* bytes in memory. Return its rows and its bytes."""
    rows = total = 0
    with CommitLog.open(directory) as log:
        for batch in _batches():
            log.append(batch, "bench")
            rows, total = rows + batch.num_rows, total + batch.nbytes
            if total >= size:
                return rows, total
    return rows, total


def _batches() -> Iterator[pa.RecordBatch]:
    held: list[Message] = []
    for number, (key, data) in enumerate(documents(1 << 30)):
        namespace = f"orders.{number % _NAMESPACES}"
        held.append(Message(namespace, data, key.encode(), source_id=f"outbox/{number}"))
        if len(held) == _ROWS:
            yield messages_to_batch(held)
            held = []


def _export(directory: Path, path: Path) -> None:
    found = inspect(directory)
    with LogReader(directory) as reader:
        export(path, parquet_bytes(reader.read(found.first, found.confirmed)))


def _rate(ask: partial[tuple[float, list[Any]]], rows: int, expected: list[Any]) -> float:
    """Return the rows of the log that a query took a second, and check its answer."""
    took, answer = ask()
    if _to_text_rows(answer) != expected:
        raise RuntimeError(f"{ask.args}: differs from DuckDB's answer")
    return rows / took


def _query_duckdb(exported: Path, query: str) -> list[Any]:
    import duckdb  # noqa: PLC0415 - of this benchmark only

    with duckdb.connect() as database:
        return _to_text_rows(database.execute(query.format(table=f"'{exported}'")).fetchall())


def _to_text_rows(rows: list[Any]) -> list[Any]:
    """Return *rows* in an order of their own, every cell as text."""
    return sorted([_cell(cell) for cell in row] for row in rows)


def _cell(cell: Any) -> str:  # noqa: ANN401 - any type of column
    return bytes(cell).decode() if isinstance(cell, bytes | bytearray) else str(cell)


def spark_environment() -> dict[str, str]:
    """Return the variables with which a program of ours finds Java and this interpreter."""
    from transporter.embed import cache_directory  # noqa: PLC0415
    from transporter.spark.java_runtime import find_java  # noqa: PLC0415

    java = str(find_java(os.environ, cache_directory()))
    return {**os.environ, "JAVA_HOME": java, "PYSPARK_PYTHON": sys.executable}


def _serve(log: str, exported: str) -> None:
    """Answer queries from standard input, in a process of its own."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - in the child only

    builder = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    for line in sys.stdin:
        table, columns, query = json.loads(line)
        began = time.perf_counter()
        if table == "parquet":
            loaded = spark.read.parquet(exported)
            # As the log's table has it, whose data is text.
            loaded = loaded.withColumn("data", loaded["data"].cast("string"))
        else:
            reader = spark.read.format("transporter")
            loaded = (reader.option("columns", columns) if columns else reader).load(log)
        loaded.createOrReplaceTempView("t")
        rows = spark.sql(query.format(table="t")).collect()
        took = time.perf_counter() - began
        plain = [[_cell(cell) for cell in row] for row in rows]
        sys.stdout.write(json.dumps([took, plain]) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
