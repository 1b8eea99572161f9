"""The readers and routes of a pipeline file as it is written, without any value of an adaptor.

Variables stay as they are written. The settings of adaptors and steps are shown by their names
only: without importing the adaptor, nothing proves that a text is not a password (Invariant 20).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from transporter.pipeline.config import READER_KEYS, RouteConfig
from transporter.pipeline.namespace_filter import EVERYTHING, NamespaceFilter
from transporter.pipeline.yaml_document import read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from transporter.pipeline.yaml_document import Document

_APART: Final = frozenset({"name", "adaptor", "steps", "writer"})
_READER_OPTIONS: Final = tuple(key for key in READER_KEYS if key not in _APART)
_ROUTE_OPTIONS: Final = tuple(key for key in RouteConfig.model_fields if key not in _APART)
"""Keys whose values are ours, and never secret."""


@dataclass(frozen=True, slots=True)
class PartOutline:
    """A reader or a route as the file has it.

    Attributes:
        adaptor: of the reader, or of the route's writer.
        options: the keys with values that may be shown.
        hidden: the names of the adaptor's settings.
        steps: the names of a route's steps, in order.

    """

    kind: str
    name: str
    line: int
    adaptor: str
    options: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...]
    steps: tuple[str, ...] = ()

    @property
    def pattern(self) -> str | None:
        """The namespace filter of a route, or ``None`` if a variable hides it."""
        found = dict(self.options).get("namespace", EVERYTHING)
        return None if "${" in found else found

    def takes(self, namespace: str) -> bool | None:
        """Return whether the filter takes *namespace*, ``None`` if that is not known."""
        import pyarrow as pa  # noqa: PLC0415 - only for a filter

        if self.pattern is None:
            return None
        try:
            return bool(NamespaceFilter(self.pattern).mask(pa.array([namespace]))[0].as_py())
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class PipelineOutline:
    """A pipeline file as it lies there now."""

    file: str
    readers: tuple[PartOutline, ...]
    routes: tuple[PartOutline, ...]

    def route(self, name: str) -> PartOutline | None:
        """Return the route *name*, if the file has it."""
        return next((each for each in self.routes if each.name == name), None)


def read_outline(file: Path) -> PipelineOutline:
    """Read the outline of the pipeline *file*.

    Raises:
        ConfigError: it cannot be read, or is not strict YAML.

    """
    document = read(file, {}, only=lambda _: False)
    return PipelineOutline(
        str(file), tuple(_outlines(document, "readers")), tuple(_outlines(document, "routes"))
    )


def _outlines(document: Document, section: str) -> Iterator[PartOutline]:
    root = document.root if isinstance(document.root, dict) else {}
    parts = root.get(section)
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        if isinstance(part, dict) and "name" in part:
            yield _outline(section, part, document.line((section, index, "name")))


def _outline(section: str, part: Mapping[str, Any], line: int) -> PartOutline:
    if section == "routes":
        ours, writer = _ROUTE_OPTIONS, part.get("writer")
        settings = writer if isinstance(writer, dict) else {}
    else:
        ours, settings = _READER_OPTIONS, dict(part)
    steps = part.get("steps")
    return PartOutline(
        kind=section[:-1],
        name=str(part["name"]),
        line=line,
        adaptor=str(settings.get("adaptor", "")),
        options=tuple((key, _text(part[key])) for key in ours if key in part),
        hidden=tuple(str(key) for key in settings if key not in {*_READER_OPTIONS, *_APART}),
        steps=tuple(map(_step_name, steps)) if isinstance(steps, list) else (),
    )


def _step_name(step: object) -> str:
    return str(next(iter(step), "")) if isinstance(step, dict) else ""


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(each)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
