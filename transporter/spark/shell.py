"""Spark with a log as table ``log``: the process that ``transporter shell`` starts.

``python -m transporter.spark.shell``. The request comes as JSON in the environment variable
:data:`REQUEST`, because standard input belongs to the user. The result of a statement is
written as JSON, one object per line.
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
import tempfile
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
from transporter.table.cells import to_json_value
from transporter.table.options import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

REQUEST: Final = "TRANSPORTER_SHELL"
_EXAMPLE: Final = "SELECT namespace, count(*) FROM log GROUP BY namespace"
_OURS: Final = re.compile(r"transporter\.errors\.\w+: (.+)")
_PLAN: Final = re.compile(r"\n\n|;\n|\n\tat ")
"""The beginning of Spark's plan, or of the code that failed, in an error's text."""
_NO_FILES: Final = ("[UNABLE_TO_INFER_SCHEMA]", "[PATH_NOT_FOUND]")
_SHOWN: Final = 100
"""Rows of a result that the SQL prompt shows."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for one log: ``kind`` is python, sql, or execute with a ``statement``."""

    directory: str
    kind: str
    statement: str = ""
    options: dict[str, str] = field(default_factory=dict)
    conf: dict[str, str] = field(default_factory=dict)
    about: str = ""


def main() -> int:
    """Serve the request in the environment."""
    request = Request(**json.loads(os.environ.pop(REQUEST)))
    with tempfile.TemporaryDirectory(prefix="transporter-shell-") as warehouse:
        return _serve(request, warehouse)


def _serve(request: Request, warehouse: str) -> int:
    # We report a failed statement once. Spark's Python side would log it as well.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    session = _new_session(request, warehouse)
    try:
        if request.kind == "execute":
            return run_statement(session, request)
        _greet(request)
        (_run_sql if request.kind == "sql" else run_python)(session, request)
    finally:
        session.stop()
    return 0


def _new_session(request: Request, warehouse: str) -> SparkSession:
    count = str(os.cpu_count() or 1)
    settings = {
        "spark.app.name": "transporter shell",
        "spark.master": "local[*]",
        **LOOPBACK,
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        # Not in the user's folder. The tables end with the session, which has no other catalog.
        "spark.sql.warehouse.dir": warehouse,
        "spark.ui.showConsoleProgress": str(request.kind != "execute").lower(),
        "spark.sql.shuffle.partitions": count,
        # Users need the text of our error, but not the traceback through our code.
        "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
        **request.conf,
    }
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    # The JVM starts before Spark, because its user may need a name first.
    gateway = start_jvm(settings)
    name_login_user(gateway.jvm)
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - pyspark has no other way
    return SparkSession.builder.config(conf=conf).getOrCreate()


def _load_table(session: SparkSession, request: Request) -> DataFrame:
    """Return a new table, because a table that was read shows only the entries of that time."""
    log = session.read.format("transporter").options(**request.options).load(request.directory)
    log.createOrReplaceTempView(TABLE)
    return log


def run_statement(session: SparkSession, request: Request) -> int:
    """Run the statement of *request*, write its result, and return the exit code."""
    try:
        _load_table(session, request)
        found = session.sql(request.statement)
        _print_json({"columns": found.columns})
        for row in found.toLocalIterator():
            _print_json({"row": [to_json_value(cell) for cell in row]})
    except (PySparkException, Py4JError) as error:
        _print_json({"error": _advised(brief_text(error))})
        return 1
    _print_json({"end": True})
    return 0


def _print_json(answer: object) -> None:
    sys.stdout.write(json.dumps(answer, default=str) + "\n")
    sys.stdout.flush()


@to_json_value.register(Row)
def _(cell: Row) -> Any:  # noqa: ANN401 - any type of column
    return to_json_value(cell.asDict())


@to_json_value.register(VariantVal)
def _(cell: VariantVal) -> Any:  # noqa: ANN401 - as above
    return json.loads(cell.toJson())


def brief_text(error: Exception) -> str:
    """Return the text of *error*, without Spark's plan and without code."""
    text = _innermost(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    if ours := _OURS.findall(text):
        return str(ours[-1])
    return _PLAN.split(text, maxsplit=1)[0].strip()


def _advised(text: str) -> str:
    if text.startswith(_NO_FILES):
        return f"{text.rstrip('.')}. If a route delivers there, it has delivered nothing yet"
    return text


def _innermost(error: Any) -> str:  # noqa: ANN401 - an exception of Java's
    """Return the text of the deepest cause: that of a task that failed while rows were fetched."""
    while error.getCause() is not None:
        error = error.getCause()
    return str(error.getMessage())


def _greet(request: Request) -> None:
    example = f"{_EXAMPLE};" if request.kind == "sql" else f'spark.sql("{_EXAMPLE}").show()'
    names = "" if request.kind == "sql" else f"; in Python {TABLE}, spark and F"
    for line in (
        request.about,
        f"the table {TABLE}{names}, read again for each statement",
        example,
    ):
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _run_sql(session: SparkSession, request: Request) -> None:
    with suppress(ImportError):
        import readline  # noqa: F401, PLC0415 - gives input() its editing
    with suppress(EOFError):
        for statement in _statements():
            try:
                _load_table(session, request)
                session.sql(statement).show(_SHOWN, truncate=False)
            except PySparkException as error:
                sys.stderr.write(f"error: {brief_text(error)}\n")
    sys.stdout.write("\n")


def _statements() -> Iterator[str]:
    """Yield the user's statements, each up to a semicolon. Ctrl-C drops an unfinished one."""
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
    """A Python console that refreshes the table before each input that uses it."""

    def __init__(self, session: SparkSession, request: Request) -> None:
        super().__init__({"spark": session, "F": functions, TABLE: _load_table(session, request)})
        self._new_session, self._request = session, request

    def runsource(self, source: str, *arguments: Any, **named: Any) -> bool:  # noqa: ANN401 - as it is
        if TABLE in source:
            self.locals[TABLE] = _load_table(self._new_session, self._request)
        return super().runsource(source, *arguments, **named)


def run_python(session: SparkSession, request: Request) -> None:
    """Let the user type Python until the end of the input."""
    if importlib.util.find_spec("IPython") is not None:
        _run_ipython(session, request)
        return
    with suppress(ImportError):
        import readline  # noqa: F401, PLC0415 - gives the console its editing
    _Console(session, request).interact(banner="", exitmsg="")


def _run_ipython(session: SparkSession, request: Request) -> None:
    embedding = importlib.import_module("IPython.terminal.embed")
    names: dict[str, Any] = {"spark": session, "F": functions, TABLE: _load_table(session, request)}
    shell = embedding.InteractiveShellEmbed(banner1="")
    shell.events.register(
        "pre_run_cell", lambda *_: shell.user_ns.update({TABLE: _load_table(session, request)})
    )
    shell(local_ns=names)


if __name__ == "__main__":
    sys.exit(main())
