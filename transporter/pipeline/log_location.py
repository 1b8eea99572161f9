"""The log directory and the routes of a pipeline file, without validating the rest.

Apart from the rest, because that takes a tenth of a second to import.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transporter.pipeline.problems import InvalidPipeline
from transporter.pipeline.route_options import Model
from transporter.pipeline.validation_errors import Section, validate
from transporter.pipeline.yaml_document import read
from transporter.units import FOLDER, LocalPath

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class LogLocation(Model):
    """The place of the log."""

    dir: LocalPath


def log_directory(path: Path, environ: Mapping[str, str]) -> Path:
    """Return the log directory of the pipeline file at *path*, and look at nothing else in it.

    So an operator needs neither the variables that hold the pipeline's secrets
    nor its adaptors. Raise :class:`ConfigError` as :func:`load` does.
    """
    document = read(path, environ, only=lambda key: key in (("name",), ("log", "dir")))
    file = Path(os.path.abspath(path))  # noqa: PTH100 - as in load()
    root = document.as_mapping((), document.root)
    log = document.as_mapping(("log",), root.get("log"))
    directory = log.get("dir", default_directory(root, file))
    section = Section(document, ("log",))
    found, problems = validate(LogLocation, {"dir": directory}, section, {FOLDER: file.parent})
    if found is None:
        raise InvalidPipeline(*problems)
    return found.dir


def default_directory(root: Mapping[str, Any], file: Path) -> str:
    """Return the directory of the log where the pipeline *file*, with this *root*, names none."""
    return f"data/{root.get('name', file.stem)}"


def route_lines(path: Path, environ: Mapping[str, str]) -> dict[str, int]:
    """Return the names of the routes in the pipeline file at *path*, each with its line.

    Looks at nothing else, as :func:`log_directory` does.
    """
    document = read(path, environ, only=lambda _: False)
    return {
        name: document.line(("routes", index, "name")) for index, name, _ in _routes(document.root)
    }


def route_writer(path: Path, environ: Mapping[str, str], route: str) -> dict[str, Any]:
    """Return the writer's section of *route* in the pipeline file at *path*, as it is written.

    Variables stay in it. It is empty if there is none.
    """
    document = read(path, environ, only=lambda _: False)
    writers = {name: found.get("writer") for _, name, found in _routes(document.root)}
    found = writers.get(route)
    return dict(found) if isinstance(found, dict) else {}


def _routes(root: Any) -> Iterator[tuple[int, str, dict[str, Any]]]:  # noqa: ANN401 - whatever the file has
    """Yield the index, the name and the section of each route that has a name."""
    routes = root.get("routes") if isinstance(root, dict) else None
    for index, route in enumerate(routes if isinstance(routes, list) else ()):
        if isinstance(route, dict) and "name" in route:
            yield index, str(route["name"]), route
