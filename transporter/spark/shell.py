"""Spark with a log as table ``log``: what ``transporter shell`` starts, in a process of its own.

``python -m transporter.spark.shell``. What it is to do comes as JSON in the
environment variable :data:`REQUEST`, for standard input is the user's; with a
statement to run, it answers in JSON, an object a line.
"""

from __future__ import annotations

import code
import importlib
import importlib.util
import json
import logging
import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions
from pyspark.sql.types import Row, VariantVal

from transporter.spark.jvm import start_jvm
from transporter.spark.launch import LOOPBACK
from transporter.spark.spark_user import name_login_user
from transporter.table.cells import plain
from transporter.table.options import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

REQUEST: Final = "TRANSPORTER_SHELL"
_EXAMPLE: Final = "SELECT namespace, count(*) FROM log GROUP BY namespace"
_OURS: Final = re.compile(r"transporter\.errors\.\w+: (.+)")
_PLAN: Final = re.compile(r"\n\n|;\n|\n\tat ")
"""Where in the text of an error Spark's plan begins, or the code that failed."""
_SHOWN: Final = 100
"""Rows of a result that the SQL prompt shows."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to do with which log: ``kind`` is python, sql, or execute with a ``statement``."""

    directory: str
    kind: str
    statement: str = ""
    options: dict[str, str] = field(default_factory=dict)
    conf: dict[str, str] = field(default_factory=dict)
    about: str = ""


def main() -> int:
    """Do what the environment asks for."""
    request = Request(**json.loads(os.environ.pop(REQUEST)))
    # A failed statement is told once, by us; Spark's Python side would log it as well.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    session = _session(request)
    try:
        if request.kind == "execute":
            return answer(session, request)
        _greet(request)
        (_sql if request.kind == "sql" else python)(session, request)
    finally:
        session.stop()
    return 0


def _session(request: Request) -> SparkSession:
    count = str(os.cpu_count() or 1)
    settings = {
        "spark.app.name": "transporter shell",
        "spark.master": "local[*]",
        **LOOPBACK,
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(request.kind != "execute").lower(),
        "spark.sql.shuffle.partitions": count,
        # The text of an error is ours; where in our code it was raised is no user's concern.
        "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
        **request.conf,
    }
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    # The JVM before Spark: a user may need a name in it first.
    gateway = start_jvm(settings)
    name_login_user(gateway.jvm)
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - pyspark has no other way
    return SparkSession.builder.config(conf=conf).getOrCreate()


def _table(session: SparkSession, request: Request) -> DataFrame:
    """Make the table anew: one that was read keeps to the entries that it saw then."""
    log = session.read.format("transporter").options(**request.options).load(request.directory)
    log.createOrReplaceTempView(TABLE)
    return log


def answer(session: SparkSession, request: Request) -> int:
    """Run the statement of *request*, and write what it finds; return the exit code."""
    try:
        _table(session, request)
        found = session.sql(request.statement)
        _say({"columns": found.columns})
        for row in found.toLocalIterator():
            _say({"row": [plain(cell) for cell in row]})
    except (PySparkException, Py4JError) as error:
        _say({"error": brief(error)})
        return 1
    _say({"end": True})
    return 0


def _say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer, default=str) + "\n")
    sys.stdout.flush()


@plain.register(Row)
def _(cell: Row) -> Any:  # noqa: ANN401 - any type of column
    return plain(cell.asDict())


@plain.register(VariantVal)
def _(cell: VariantVal) -> Any:  # noqa: ANN401 - as above
    return json.loads(cell.toJson())


def brief(error: Exception) -> str:
    """Return what *error* says, without Spark's plan and the code that leads nowhere."""
    text = _innermost(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    if ours := _OURS.findall(text):
        return str(ours[-1])
    return _PLAN.split(text, maxsplit=1)[0].strip()


def _innermost(error: Any) -> str:  # noqa: ANN401 - an exception of Java's
    """Return what a task said that failed while its rows were fetched."""
    while error.getCause() is not None:
        error = error.getCause()
    return str(error.getMessage())


def _greet(request: Request) -> None:
    example = f"{_EXAMPLE};" if request.kind == "sql" else f'spark.sql("{_EXAMPLE}").show()'
    names = "" if request.kind == "sql" else f"; in Python {TABLE}, spark and F"
    for line in (request.about, f"the table {TABLE}{names}, read anew each time", example):
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _sql(session: SparkSession, request: Request) -> None:
    with suppress(ImportError):
        import readline  # noqa: F401, PLC0415 - what gives input() its editing
    with suppress(EOFError):
        for statement in _statements():
            try:
                _table(session, request)
                session.sql(statement).show(_SHOWN, truncate=False)
            except PySparkException as error:
                sys.stderr.write(f"error: {brief(error)}\n")
    sys.stdout.write("\n")


def _statements() -> Iterator[str]:
    """Yield what the user types, up to each semicolon; Ctrl-C drops what was begun."""
    held: list[str] = []
    while True:
        try:
            held.append(input("   ...> " if held else "   log> "))
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            held = []
            continue
        text = "\n".join(held).strip()
        if text.endswith(";") or not text:
            held = []
            if text := text.removesuffix(";").strip():
                yield text


class _Console(code.InteractiveConsole):
    """Python that finds the table as it is now whenever something is typed."""

    def __init__(self, session: SparkSession, request: Request) -> None:
        super().__init__({"spark": session, "F": functions, TABLE: _table(session, request)})
        self._session, self._request = session, request

    def runsource(self, source: str, *arguments: Any, **named: Any) -> bool:  # noqa: ANN401 - as it is
        if TABLE in source:
            self.locals[TABLE] = _table(self._session, self._request)
        return super().runsource(source, *arguments, **named)


def python(session: SparkSession, request: Request) -> None:
    """Let the user type Python until the end of the input."""
    if importlib.util.find_spec("IPython") is not None:
        _ipython(session, request)
        return
    with suppress(ImportError):
        import readline  # noqa: F401, PLC0415 - what gives the console its editing
    _Console(session, request).interact(banner="", exitmsg="")


def _ipython(session: SparkSession, request: Request) -> None:
    embedding = importlib.import_module("IPython.terminal.embed")
    names: dict[str, Any] = {"spark": session, "F": functions, TABLE: _table(session, request)}
    shell = embedding.InteractiveShellEmbed(banner1="")
    shell.events.register(
        "pre_run_cell", lambda *_: shell.user_ns.update({TABLE: _table(session, request)})
    )
    shell(local_ns=names)


if __name__ == "__main__":
    sys.exit(main())
