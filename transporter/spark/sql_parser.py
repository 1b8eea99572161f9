"""Spark's own parser, run without Spark to check the text of queries and schemas.

``python -m transporter.spark.sql_parser``. Standard input holds the texts and the settings that
a pipeline gives to Spark. The problems go to standard output. Both are JSON. Only the JVM is
started, because the parser needs no Spark context.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError

from transporter.spark.jvm import start_jvm

_SQL: Final = "spark.sql."
_EXTENSIONS: Final = "spark.sql.extensions"
_SETTINGS: Final = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}
"""A JVM that lives for a second is not worth optimising."""
_BEHIND: Final = "\n\n"
"""The separator before the repeated text in a parser error."""


def main() -> int:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    gateway = start_jvm(_SETTINGS | request["config"])
    try:
        json.dump(_check_texts(gateway.jvm, request["texts"]), sys.stdout)
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
    return 0


def _check_texts(jvm: Any, texts: list[dict[str, str]]) -> dict[str, Any]:  # noqa: ANN401 - a view of py4j's
    # As in a starting Spark, this includes the defaults of the user's installation.
    settings = {each._1(): each._2() for each in jvm.org.apache.spark.SparkConf().getAll()}  # noqa: SLF001 - Scala's names
    if settings.get(_EXTENSIONS):
        return {"unknown": f"{_EXTENSIONS} may add to Spark's grammar"}
    conf = jvm.org.apache.spark.sql.internal.SQLConf.get()
    for name, value in settings.items():
        if name.startswith(_SQL):
            # An invalid value is not a mistake in the query.
            with suppress(Py4JError):
                conf.setConfString(name, value)
    parser = jvm.org.apache.spark.sql.execution.SparkSqlParser()
    schema = jvm.org.apache.spark.sql.types.StructType
    kinds = {"query": parser.parsePlan, "schema": schema.fromDDL}
    return {"problems": [_find_problem(kinds[each["kind"]], each["text"]) for each in texts]}


def _find_problem(parse: Any, text: str) -> dict[str, Any] | None:  # noqa: ANN401 - a method of Java's
    """Return the problem with *text* and its line, or ``None`` if *text* is valid."""
    try:
        parse(text)
    except Py4JJavaError as error:
        found = error.java_exception
        if found.getClass().getSimpleName() != "ParseException":
            return None
        line = found.line()
        reason = str(found.getMessage()).strip().partition(_BEHIND)[0]
        return {"text": reason, "line": line.get() if line.isDefined() else 1}
    return None


if __name__ == "__main__":
    sys.exit(main())
