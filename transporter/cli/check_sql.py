"""Check of a pipeline file's ``sql`` steps by Spark's own parser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from transporter.cli.entry_output import note
from transporter.cli.spark_process import spark_environment
from transporter.errors import ConfigError, HostFailed
from transporter.pipeline.config import SparkConfig
from transporter.pipeline.problems import InvalidPipeline
from transporter.pipeline.steps.sql import SQL, SqlSettings
from transporter.pipeline.yaml_document import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from transporter.pipeline.yaml_document import Document, KeyPath

_UNCHECKED: Final = "sql steps were not parsed: {}"
_SECONDS: Final = 180.0
_LITERAL: Final = re.compile(r"\|[-+1-9]*\s*(#.*)?$")
"""End of a line that begins a literal block in YAML, which keeps its lines."""


def sql_problems(
    spark: SparkConfig,
    document: Document,
    on_unchecked: Callable[[str], object] = note,
    on_start: Callable[[], object] = lambda: None,
) -> list[ConfigError]:
    """Return the problems that Spark's parser finds in the ``sql`` steps of *document*.

    If the parser cannot run, there are none, and *on_unchecked* is called with the reason.
    *on_start* is called before it runs, which takes seconds.
    """
    texts = list(_sql_texts(document.root))
    if not texts:
        return []
    wanted = [{"kind": kind, "text": text} for _, kind, text in texts]
    config = {name: value for name, value in spark.config.items() if name.startswith("spark.sql.")}
    on_start()
    answer = _run_parser({"config": config, "texts": wanted})
    if "problems" not in answer:
        on_unchecked(_UNCHECKED.format(answer["unknown"]))
        return []
    lines = Path(document.file).read_text(encoding="utf-8-sig").split("\n")
    return [
        _sql_problem(document, lines, path, kind, found)
        for (path, kind, _), found in zip(texts, answer["problems"], strict=True)
        if found is not None
    ]


def refuse_invalid_sql(
    file: Path, environ: Mapping[str, str], on_unchecked: Callable[[str], object] = note
) -> None:
    """Refuse the pipeline *file* if Spark's parser finds problems in its ``sql`` steps.

    Nothing else in the file is validated: an engine that reloads it does that with its own
    environment. So only variables in the steps need to be set here.

    Raises:
        InvalidPipeline: with all of these problems.

    """
    try:
        document = read(file, environ, only=_is_parsed)
    except InvalidPipeline as error:
        on_unchecked(_UNCHECKED.format(error.problem))
        return
    except ConfigError:
        return  # The engine refuses the file for the same reason.
    if problems := sql_problems(_spark_config(document.root), document, on_unchecked):
        raise InvalidPipeline(*problems)


def _is_parsed(key: KeyPath) -> bool:
    return key[:2] == ("spark", "config") or (key[::2][:2], key[4:5]) == (
        ("routes", "steps"),
        (SQL,),
    )


def _spark_config(root: Any) -> SparkConfig:  # noqa: ANN401 - whatever the file has
    try:
        return SparkConfig.model_validate(root.get("spark", {}))
    except (AttributeError, ValidationError):
        return SparkConfig()


def _sql_texts(root: Any) -> Iterator[tuple[KeyPath, str, str]]:  # noqa: ANN401 - as above
    """Yield the path of each valid ``sql`` step, with its query and its schema."""
    for index, route in enumerate(_list_at(root, "routes")):
        for number, step in enumerate(_list_at(route, "steps")):
            if not isinstance(step, dict) or SQL not in step:
                continue
            with suppress(ValidationError):
                settings = SqlSettings.model_validate(step[SQL])
                path = ("routes", index, "steps", number, SQL)
                # Otherwise an unexpected end would be reported on a later line.
                yield path, "query", settings.query.rstrip()
                if settings.schema_ is not None:
                    yield path, "schema", settings.schema_


def _list_at(values: Any, key: str) -> list[Any]:  # noqa: ANN401 - as above
    found = values.get(key) if isinstance(values, dict) else None
    return found if isinstance(found, list) else []


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
