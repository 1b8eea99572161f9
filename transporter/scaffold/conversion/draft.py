"""Drafts of pipeline files, in which every loss of a conversion is a comment and a warning.

A setting gets into a draft only if its adaptor accepts it. A secret never does: a variable with a
message stands in its place.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from transporter.pipeline.adaptor_registry import READER, WRITER, find_adaptor
from transporter.pipeline.problems import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PLAIN: Final = re.compile(
    r"(?!(?:true|false|null|yes|no|on|off)$)(?:\./)?[a-z][\w./-]*|[0-9]+(?:us|ms|s|m|h|d)",
    re.IGNORECASE,
)
"""Text that YAML reads as a string without quotes."""
_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME: Final = 63
_UNREAL: Final = re.compile(r"\$\{[^}]*\}")


@dataclass(frozen=True, slots=True)
class Converted:
    """The text of a pipeline file, and a warning for each thing that it does not have."""

    text: str
    warnings: tuple[str, ...]


@dataclass(slots=True)
class Part:
    """A reader, or a route with its writer: its own keys, and the settings of its adaptor."""

    kind: str
    name: str
    adaptor: str
    settings: dict[str, Any]
    keys: dict[str, Any] = field(default_factory=dict)
    comments: list[str] = field(default_factory=list)

    def accepts(self, name: str, value: object) -> bool:
        """Return whether the adaptor accepts a setting beside the others."""
        cls = find_adaptor(self.kind, self.adaptor, Path())
        try:
            cls.Config.model_validate(_sample({**self.settings, name: value}))
        except Exception:  # noqa: BLE001 - a validator is the adaptor's author's code
            return False
        return True


@dataclass(slots=True)
class Draft:
    """A pipeline file that is being made from *source*, the name of a file."""

    source: str
    name: str
    top: dict[str, Any] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def warn(self, line: int, text: str, part: Part | None = None) -> None:
        """Note a loss: as a warning, and as a comment of *part* or of the whole file.

        *text* must not contain values of the source, which may be secrets.
        """
        plain = one_line(text)
        self.warnings.append(f"{self.source}:{line}: {plain}")
        (self.comments if part is None else part.comments).append(plain)

    def offer(self, part: Part, name: str, value: object, line: int, origin: str) -> None:
        """Add a setting to *part*, or note that the adaptor does not accept it."""
        if part.accepts(name, value):
            part.settings[name] = value
        else:
            who = f"the {part.adaptor} {part.kind}"
            self.warn(line, f"{origin}: {who} does not accept it, or sets it by itself", part)

    def unused_name(self, kind: str, wanted: str) -> str:
        """Return a name like *wanted* that no other part of this kind has."""
        base = pipeline_name(wanted)
        taken = {each.name.lower() for each in self.parts if each.kind == kind}
        names = (base if number == 1 else f"{base}-{number}" for number in range(1, 10_000))
        return next(each for each in names if each.lower() not in taken)

    def finish(self) -> Converted:
        """Return the file."""
        return Converted("\n".join(self._lines()) + "\n", tuple(self.warnings))

    def _lines(self) -> Iterator[str]:
        yield f"# Converted from {one_line(self.source)} by 'transporter init pipeline --from'."
        yield "# 'transporter check' reports missing variables. Lines with TODO need a decision."
        yield from _comment(self.comments, "")
        yield f"name: {scalar(self.name)}"
        yield from _mapping(self.top, "")
        yield "readers:"
        for part in self._of(READER):
            yield from _comment(part.comments, "  ")
            yield f"  - name: {scalar(part.name)}"
            yield f"    adaptor: {scalar(part.adaptor)}"
            yield from _mapping({**part.settings, **part.keys}, "    ")
        yield "routes:"
        for part in self._of(WRITER):
            yield from _comment(part.comments, "  ")
            yield f"  - name: {scalar(part.name)}"
            yield from _mapping(part.keys, "    ")
            yield "    writer:"
            yield f"      adaptor: {scalar(part.adaptor)}"
            yield from _mapping(part.settings, "      ")

    def _of(self, kind: str) -> Iterator[Part]:
        return (each for each in self.parts if each.kind == kind)


def pipeline_name(text: str) -> str:
    """Return *text* as a name of a pipeline, reader or route."""
    return _NAME.sub("-", text).strip("-_")[:_LONGEST_NAME].strip("-_") or "converted"


def variable(name: str, message: str) -> str:
    """Return the variable *name* in a pipeline file, with *message* if it is not set."""
    return f"${{{name}:?{message.replace('}', ')')}}}"


def literal(value: object) -> object:
    """Return *value* so that no variable is replaced in it."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, dict):
        return {key: literal(each) for key, each in value.items()}
    if isinstance(value, list):
        return [literal(each) for each in value]
    return value


def scalar(value: object) -> str:
    """Return a text, number, boolean or null as YAML."""
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _sample(value: object) -> Any:  # noqa: ANN401 - any value of a file
    """Return *value* as it may be once its variables are replaced."""
    if isinstance(value, str):
        return "dbname=x" if value.startswith("${") else _UNREAL.sub("x", value)
    if isinstance(value, dict):
        return {key: _sample(each) for key, each in value.items()}
    return [_sample(each) for each in value] if isinstance(value, list) else value


def _comment(lines: list[str], indent: str) -> Iterator[str]:
    return (f"{indent}# TODO {line}" for line in lines)


def _mapping(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in values.items():
        yield from _item(f"{scalar(key)}:", value, indent)


def _item(head: str, value: object, indent: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        yield f"{indent}{head}"
        yield from _mapping(value, f"{indent}  ")
    elif isinstance(value, list) and value:
        yield f"{indent}{head}"
        for each in value:
            first, *rest = _mapping(each, "") if isinstance(each, dict) else (scalar(each),)
            yield f"{indent}  - {first}"
            yield from (f"{indent}    {line}" for line in rest)
    else:
        yield f"{indent}{head} {scalar(value)}"
