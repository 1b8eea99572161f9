"""Problems of a pipeline file from the errors of pydantic: place, key and remedy.

A value is shown only when it is a plain scalar, stands in the file itself (not
in a variable), and its setting does not look like a secret (Invariant 20).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError

from transporter.pipeline.problems import (
    MOST_PROBLEMS,
    SECRETIVE,
    dotted_path,
    one_line,
    suggestion,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

    from transporter.errors import ConfigError
    from transporter.pipeline.yaml_document import Document, KeyPath

_PLAIN: Final = {
    "missing": "is missing",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "string_type": "must be text; quote it if it looks like a number",
}
_KINDS: Final = ((bool, "a boolean"), (int | float, "a number"), (str, "text"))
_LONGEST_SHOWN: Final = 60
_KEY: Final = ("[key]",)
"""Pydantic's mark of an error at a mapping's key, not at its value."""

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Section:
    """The part of *document* under *path* that one model validates.

    *also* are keys that may stand there too, to be suggested for a misspelt one.
    """

    document: Document
    path: KeyPath = ()
    also: tuple[str, ...] = ()


def validate(
    model: type[Model], values: object, section: Section, context: Mapping[str, Any]
) -> tuple[Model | None, list[ConfigError]]:
    """Return an instance of *model*, or ``None`` and the problems of *values*.

    Pydantic's own error is dropped, because it holds the values themselves. A problem that may be
    due to a gap of the document is dropped too. Then there may be neither an instance nor a
    problem.
    """
    try:
        return model.model_validate(values, context=dict(context)), []
    except ValidationError as error:
        found = error.errors(include_url=False)
    # One more than are reported, so that the report mentions that there are more.
    problems = [_problem(model, details, section) for details in found[: MOST_PROBLEMS + 2]]
    unique = {(each.line, each.problem): each for each in problems if each is not None}
    return None, list(unique.values())


def _problem(model: type[BaseModel], details: ErrorDetails, section: Section) -> ConfigError | None:
    """Return the problem in *details*, or ``None`` where a gap of the document may be the cause."""
    document = section.document
    path = _drop_tags(document, (*section.path, *details["loc"]))
    known = _path_in_file(document, path)
    if document.has_gap(known) and not _is_certain(details, path, known):
        return None
    if details["type"] == "extra_forbidden":
        return document.problem(known, _unknown_key(model, details, section))
    if details["type"] == "missing":
        return document.problem(known, f"{dotted_path(path)} is missing")
    hidden = path[-1:] != _KEY and (
        known in document.substituted or _may_be_secret(model, details["loc"])
    )
    reason = _reason_text(details)
    if hidden and details["type"] not in _PLAIN and document.repeats(reason, details["input"]):
        reason = "is not valid"
    return document.problem(
        known, f"{dotted_path(known)} {reason}{_value_hint(details, hidden=hidden)}"
    )


def _is_certain(details: ErrorDetails, path: KeyPath, known: KeyPath) -> bool:
    """Return whether the error is about a key, and not about the value that stands there."""
    if details["type"] == "missing":
        # Of a union's members only the one that is meant may miss a key.
        return len(path) == len(known) + 1
    return details["type"] == "extra_forbidden" or path[-1:] == _KEY


def _path_in_file(document: Document, path: KeyPath) -> KeyPath:
    """Cut the names that pydantic gives to union members from *path*: they are not in the file."""
    steps = takewhile(lambda n: path[:n] in document.lines, range(1, len(path) + 1))
    return path[: max(steps, default=0)]


def _drop_tags(document: Document, path: KeyPath) -> KeyPath:
    """Drop from *path* the ``kind`` of a tagged mapping, which pydantic adds to the path."""
    found: KeyPath = ()
    node: Any = document.root
    for step in path:
        if isinstance(node, dict) and step not in node and step == node.get("kind"):
            continue
        found = (*found, step)
        known = (*found,) in document.lines
        node = node[step] if known else None
    return found


def _reason_text(details: ErrorDetails) -> str:
    plain = _PLAIN.get(details["type"])
    if plain:
        return plain
    own = details.get("ctx", {}).get("error")
    text = one_line(own) if own is not None else details["msg"]
    return text.replace("Input should be", "must be", 1)


def _value_hint(details: ErrorDetails, *, hidden: bool) -> str:
    value = details["input"]
    if value is None:
        return " (it is empty)"
    kind = next((name for kind, name in _KINDS if isinstance(value, kind)), None)
    if kind is None:
        return ""
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    return f" (it is {kind})" if hidden or len(shown) > _LONGEST_SHOWN else f" (it is {shown})"


def _unknown_key(model: type[BaseModel], details: ErrorDetails, section: Section) -> str:
    *parent, key = details["loc"]
    fields = [*fields_under(model, tuple(parent)), *(() if parent else section.also)]
    where = _drop_tags(section.document, (*section.path, *parent))
    place = f" in {dotted_path(where)}" if where else ""
    return f"unknown key {str(key)!r}{place}{suggestion(str(key), fields, 'known')}"


def fields_under(model: type[BaseModel], path: KeyPath) -> dict[str, FieldInfo]:
    """Return the settings of the models nested in *model* at *path*, by the name a file uses."""
    fields = _named_fields(model)
    for step in path:
        if step in fields:
            nested = _models(fields[str(step)].annotation)
            fields = {name: info for each in nested for name, info in _named_fields(each).items()}
    return fields


def _named_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _models(part)]


def _may_be_secret(model: type[BaseModel], path: KeyPath) -> bool:
    """Return whether the setting at *path* is, or by its name may be, a secret."""
    fields = [fields_under(model, path[:n]).get(str(step)) for n, step in enumerate(path)]
    return any(field is not None and is_secret(field) for field in fields) or any(
        isinstance(step, str) and SECRETIVE.search(step) for step in path
    )


def is_secret(field: FieldInfo) -> bool:
    """Return whether a setting is declared as a secret: of a secret type, or kept out of reprs."""
    return field.repr is False or _holds_secret(field.annotation)


def _holds_secret(annotation: object) -> bool:
    return annotation in (SecretStr, SecretBytes) or any(
        _holds_secret(part) for part in get_args(annotation)
    )
