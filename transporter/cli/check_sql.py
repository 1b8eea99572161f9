"""Check of a pipeline file's ``sql`` steps by Spark's own parser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from transporter.cli.entry_output import note
from transporter.cli.spark_process import spark_environment
from transporter.errors import HostFailed
from transporter.pipeline.steps.sql import SQL, SqlSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.errors import ConfigError
    from transporter.pipeline.config import Pipeline
    from transporter.pipeline.yaml_document import Document, KeyPath

_SECONDS: Final = 180.0
_LITERAL: Final = re.compile(r"\|[-+1-9]*\s*(#.*)?$")
"""End of a line that begins a literal block in YAML, which keeps its lines."""


def sql_problems(pipeline: Pipeline, document: Document) -> list[ConfigError]:
    """Return the problems that Spark's parser finds in the ``sql`` steps of *pipeline*.

    If the parser cannot run, there are none, and a note reports that.
    """
    texts = list(_sql_texts(pipeline))
    if not texts:
        return []
    wanted = [{"kind": kind, "text": text} for _, kind, text in texts]
    config = {
        name: value
        for name, value in pipeline.spark.config.items()
        if name.startswith("spark.sql.")
    }
    answer = _run_parser({"config": config, "texts": wanted})
    if "problems" not in answer:
        note(f"sql steps were not parsed: {answer['unknown']}")
        return []
    lines = Path(document.file).read_text(encoding="utf-8-sig").split("\n")
    return [
        _sql_problem(document, lines, path, kind, found)
        for (path, kind, _), found in zip(texts, answer["problems"], strict=True)
        if found is not None
    ]


def _sql_texts(pipeline: Pipeline) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield the path of each ``sql`` step, with its query and its schema."""
    for index, route in enumerate(pipeline.routes):
        for number, step in enumerate(route.steps):
            if step.name == SQL:
                path = ("routes", index, "steps", number, SQL)
                settings = SqlSettings.model_validate(step.settings)
                # Otherwise an unexpected end would be reported on a later line.
                yield path, "query", settings.query.rstrip()
                if settings.schema_ is not None:
                    yield path, "schema", settings.schema_


def _sql_problem(
    document: Document, lines: list[str], path: KeyPath, kind: str, found: dict[str, Any]
) -> ConfigError:
    place = (*path, kind)
    line = document.line(place)
    if _LITERAL.search(lines[line - 1]):
        line += found["line"]
    _, index, _, number, _ = path
    error = document.problem(
        place, f"routes[{index}].steps[{number}].sql.{kind} does not parse: {found['text']}"
    )
    return type(error)(error.problem, error.file, line)


def _run_parser(request: dict[str, Any]) -> dict[str, Any]:
    """Run Spark's parser. Without an answer, ``unknown`` holds the reason."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "transporter.spark.sql_parser"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env=spark_environment(),
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except HostFailed as error:
        return {"unknown": str(error)}
    except (subprocess.SubprocessError, ValueError):
        return {"unknown": "Java did not start, or did not answer"}
    return answer
