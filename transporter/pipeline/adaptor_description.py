"""Descriptions of the installed adaptors and their settings, for operators."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, WithJsonSchema
from pydantic_core import to_jsonable_python

from transporter.defaults import field_annotation
from transporter.errors import ConfigError
from transporter.pipeline.adaptor_registry import (
    READER,
    WRITER,
    AdaptorClass,
    adaptor_entry_points,
    find_adaptor,
)
from transporter.pipeline.validation_errors import is_secret
from transporter.units import DURATION, SIZE, format_duration, format_size

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_NAMES: Final = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
    "Path": "path",
    "SecretStr": "text (secret)",
    "dict": "mapping",
    "Any": "anything",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of an adaptor. ``default`` is as a file would have it, and never a secret."""

    name: str
    type: str
    required: bool
    default: str | None
    doc: str


@dataclass(frozen=True, slots=True)
class AdaptorInfo:
    """An adaptor. ``problem`` is the reason if it cannot be used.

    ``name`` is its name in a pipeline file. ``short`` is usable as the name of a route or file.
    """

    name: str
    kind: str
    reference: str
    doc: str = ""
    settings: tuple[Setting, ...] = ()
    problem: str | None = None

    @property
    def short_name(self) -> str:
        """The name itself, or the module's of ``module:Class``."""
        return self.name.partition(":")[0].rpartition(".")[2].replace("_", "-")


def describe_adaptor(reference: str, folder: Path) -> AdaptorInfo:
    """Return the adaptor that ``module:Class`` names in *folder*, importing it.

    Raise :class:`ConfigError` when there is none.
    """
    try:
        return _describe(reference, WRITER, reference, find_adaptor(WRITER, reference, folder))
    except ConfigError as error:
        try:
            return _describe(reference, READER, reference, find_adaptor(READER, reference, folder))
        except ConfigError:
            raise error from None


def installed_adaptors() -> list[AdaptorInfo]:
    """Return every installed adaptor, by name, importing each of them.

    One that cannot be imported is listed with its problem and hides no other.
    """
    found = [
        (entry.name, kind, entry.value)
        for kind in (READER, WRITER)
        for entry in adaptor_entry_points(kind)
    ]
    return [_describe_installed(*each) for each in sorted(found)]


def _describe_installed(name: str, kind: str, reference: str) -> AdaptorInfo:
    try:
        cls = find_adaptor(kind, name, Path())
    except ConfigError as error:
        return AdaptorInfo(name, kind, reference, problem=str(error))
    return _describe(name, kind, reference, cls)


def _describe(name: str, kind: str, reference: str, cls: AdaptorClass) -> AdaptorInfo:
    doc = _plain_text(inspect.cleandoc(cls.__doc__ or ""))
    return AdaptorInfo(name, kind, reference, doc, settings_of(cls.Config))


def settings_of(config: type[BaseModel]) -> tuple[Setting, ...]:
    """Return the settings of an adaptor's ``Config``, in the order of their declaration."""
    return tuple(_setting(info.alias or name, info) for name, info in config.model_fields.items())


def _setting(name: str, info: FieldInfo) -> Setting:
    annotation = field_annotation(info)
    return Setting(
        name,
        _type_text(annotation),
        info.is_required(),
        None if info.is_required() else _default_text(info, annotation),
        _plain_text(" ".join((info.description or "").split())),
    )


def _plain_text(doc: str) -> str:
    """Return *doc* with one backtick around names instead of the two of a docstring."""
    return doc.replace("``", "`")


def _type_text(annotation: Any) -> str:  # noqa: ANN401 - whatever a model declares
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _unit(annotation) or _type_text(parts[0])
    if origin in (Union, UnionType):
        kinds = [_type_text(part) for part in parts if part is not type(None)]
        return " or ".join(dict.fromkeys(kinds))
    if origin is Literal:
        return " or ".join(map(str, parts))
    if origin in (list, tuple, set, frozenset):
        return f"list of {_type_text(parts[0])}"
    if origin is not None:
        return "mapping" if origin is dict else str(annotation)
    return _class_text(annotation)


def _class_text(annotation: Any) -> str:  # noqa: ANN401 - whatever a model declares
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(str(member.value) for member in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    name = getattr(annotation, "__name__", str(annotation))
    return _NAMES.get(name, name)


def _unit(annotation: Any) -> str | None:  # noqa: ANN401 - whatever a model declares
    """Return the title that :mod:`transporter.units` gave to a type, its own or a member's."""
    marks = getattr(annotation, "__metadata__", ())
    schemas = [mark.json_schema or {} for mark in marks if isinstance(mark, WithJsonSchema)]
    return next((str(schema["title"]) for schema in schemas if "title" in schema), None)


def _default_text(info: FieldInfo, annotation: Any) -> str:  # noqa: ANN401 - as above
    if info.default_factory_takes_validated_data:
        return "(computed)"
    default = info.get_default(call_default_factory=True)
    if default is None:
        return "unset"
    if is_secret(info) and default:
        return "(secret)"
    unit = _type_text(annotation)
    if unit in (DURATION, SIZE):
        return format_duration(default) if unit == DURATION else format_size(default)
    plain = to_jsonable_python(default)
    return (plain or '""') if isinstance(plain, str) else json.dumps(plain)
