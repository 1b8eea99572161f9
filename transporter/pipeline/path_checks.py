"""Checks that this machine can hold the paths of a pipeline, without opening any."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transporter.errors import ConfigError
    from transporter.pipeline.config import Pipeline
    from transporter.pipeline.yaml_document import Document, KeyPath


def path_problems(pipeline: Pipeline, document: Document) -> list[ConfigError]:
    """Return the problems of the paths of the log and of the adaptors in *pipeline*.

    *document* is its source. Whether an adaptor can read or write a file shows when it is
    opened.
    """
    log: KeyPath = ("log", "dir")
    found = [(log, "log.dir", log_problem(pipeline.log.dir))]
    usable = []
    for place, name, path in _path_settings(pipeline):
        if problem := _file_problem(path):
            found.append((place, name, problem))
        else:
            usable.append((place, name, path))
    found += _loops(usable)
    return [document.problem(place, f"{name}: {text}") for place, name, text in found if text]


def _loops(usable: list[tuple[KeyPath, str, Path]]) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield the writers' files that a reader reads: each delivery would be read again."""
    settings = [each for each in usable if each[2].is_file() or not each[2].exists()]
    read = {os.path.realpath(path): name for place, name, path in settings if place[0] == "readers"}
    for place, name, path in settings:
        if place[0] == "routes" and (reader := read.get(os.path.realpath(path))) is not None:
            yield place, name, f"{path} is read by {reader}, so it would feed itself"


def log_problem(path: Path) -> str:
    """Return the reason why *path* cannot be a log directory, or an empty text."""
    try:
        nearest = nearest_existing(path)
        if not nearest.is_dir():
            return _obstacle_text(nearest, path)
    except (OSError, ValueError) as error:
        return f"cannot be used: {_reason(error)}"
    if not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        return (
            f"{nearest}: this user (id {os.geteuid()}) may not write there; "
            "change its owner or its rights, or name another directory"
        )
    return ""


def _file_problem(path: Path) -> str:
    """Return the reason why *path* cannot be a file, or an empty text."""
    try:
        nearest = nearest_existing(path)
        is_fine = nearest == path or nearest.is_dir()
        return "" if is_fine else _obstacle_text(nearest, path)
    except (OSError, ValueError) as error:
        return f"cannot be used: {_reason(error)}"


def _path_settings(pipeline: Pipeline) -> Iterator[tuple[KeyPath, str, Path]]:
    """Yield the place, the name and the value of each adaptor's setting that is a path."""
    parts: list[tuple[KeyPath, str, object]] = [
        (("readers", number), f"readers[{number}]", each.config)
        for number, each in enumerate(pipeline.readers)
    ]
    parts += [
        (("routes", number, "writer"), f"routes[{number}].writer", each.writer.config)
        for number, each in enumerate(pipeline.routes)
    ]
    for place, name, config in parts:
        for key in getattr(type(config), "model_fields", ()):
            if isinstance(value := getattr(config, key), Path):
                yield (*place, key), f"{name}.{key}", value


def nearest_existing(path: Path) -> Path:
    """Return *path*, or the nearest of its parents that is there, if only as a dangling link."""
    for each in (path, *path.parents):
        try:
            os.lstat(each)
        except (FileNotFoundError, NotADirectoryError):
            continue
        return each
    return path


def _obstacle_text(nearest: Path, path: Path) -> str:
    what = f"{nearest} is not a directory"
    return f"{what}; name another one" if nearest == path else f"{what}, so {path} cannot be in it"


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
