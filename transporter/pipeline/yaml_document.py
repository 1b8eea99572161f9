"""A pipeline file as plain values with their lines: strict YAML 1.2, variables replaced.

Stricter than YAML: one document, text keys, no duplicate keys, no anchors, aliases, merge keys or
tags (a few lines of them can unfold into gigabytes), a bounded size, depth and number of values.
Only ruamel's pure parser is used, never a C one, which ends the process on deep nesting. Scalars
follow the YAML 1.2 core schema: ``yes`` is text, ``true`` a boolean, dates are text.

A scalar that holds a variable is always text, and its setting decides about its meaning. So
``${PORT}`` is a number where a number is required, and a password of ``0123`` never turns into 123.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from transporter.errors import ConfigError
from transporter.pipeline.problems import SECRETIVE, InvalidPipeline, one_line, spellings
from transporter.pipeline.variables import FILE, Unreplaced, substitute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transporter.pipeline.secret_files import Template

MAX_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 32
MAX_LINE: Final = 64 * 1024
MAX_VALUES: Final = 5_000
"""Keys, values and items: so many take a second to read."""
_PLAIN: Final = {
    "expected <block end>": "the line is indented as none of those before it",
    "mapping values are not allowed": (
        "a key is not allowed here: the line is indented deeper than those before it, or a text "
        "with a colon needs quotes"
    ),
    "unexpected end": "a quote or a bracket is not closed",
    "'\\t'": "a tab is not allowed here; indent by blanks",
}
"""Plain texts for a problem, by a part of the parser's text."""
_SHORTEST_SECRET: Final = 4
"""Shorter values are not redacted in any text, because they would match by chance."""

_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS: Final = {
    spelling: word == "true"
    for word in ("true", "false")
    for spelling in (word, word.title(), word.upper())
}
# At most 300 digits: Python refuses to read much longer numbers.
_NUMBERS: Final = (
    (re.compile(r"[-+]?[0-9]{1,300}"), int),
    (re.compile(r"0o[0-7]{1,300}"), lambda text: int(text, 8)),
    (re.compile(r"0x[0-9a-fA-F]{1,300}"), lambda text: int(text, 16)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)"), lambda text: float(text.replace(".", ""))),
    (re.compile(r"\.(nan|NaN|NAN)"), lambda _: float("nan")),
)

KeyPath = tuple[str | int, ...]


_UNKNOWN: Final = object()
"""The value of a gap: of no type, so that no validator accepts it."""


class UnknownValue(NamedTuple):
    """A place of the file whose value could not be read, with the ``problems`` that prevented it.

    ``absent`` are the reasons where it is only that variables or secret files are not here.
    """

    problems: tuple[ConfigError, ...]
    absent: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """The values of one file, the line of every key path, and the values that came from variables.

    ``known_secrets`` are those of ``secrets`` that came from files, or whose variables have names
    typical of secrets. ``templates`` are the texts with secret files. ``gaps`` are the values that
    could not be read, which are unknown. ``defaulted`` are unset variables whose defaults count.
    """

    file: str
    root: Any = field(repr=False)
    lines: Mapping[KeyPath, int]
    substituted: frozenset[KeyPath] = frozenset()
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    known_secrets: frozenset[str] = field(default=frozenset(), repr=False)
    templates: Mapping[KeyPath, Template] = field(default_factory=dict)
    gaps: Mapping[KeyPath, UnknownValue] = field(default_factory=dict)
    defaulted: frozenset[str] = frozenset()

    def has_gap(self, path: KeyPath) -> bool:
        """Return whether the value at *path*, or anything in it, could not be read."""
        return any(gap[: len(path)] == path for gap in self.gaps)

    def problems(self) -> list[ConfigError]:
        """Return the problems that made the gaps."""
        return list(chain.from_iterable(gap.problems for gap in self.gaps.values()))

    def line(self, path: KeyPath) -> int:
        """Return the line of *path*, or of its nearest parent that is in the file."""
        return next(
            (self.lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self.lines), 1
        )

    def problem(self, path: KeyPath, text: str) -> ConfigError:
        """Return an error at *path*, with every value that came from a variable redacted."""
        return ConfigError(self.redact(text), self.file, self.line(path))

    def as_mapping(self, path: KeyPath, value: object) -> dict[str, Any]:
        """Return *value*, which is at *path*, as a mapping, empty for none, or raise an error."""
        if isinstance(value, dict | None):
            return value or {}
        name = ".".join(map(str, path)) or "the pipeline"
        raise self.problem(path, f"{name} must be a mapping")

    def redact(self, text: str) -> str:
        """Redact every value of a variable in *text*, but for very short ones (Invariant 20)."""
        found = {each for secret in self.secrets for each in spellings(secret)}
        for each in sorted(found, key=len, reverse=True):
            if len(each) >= _SHORTEST_SECRET:
                text = text.replace(each, "***")
        return text

    def repeats(self, text: str, value: object) -> bool:
        """Return whether *text* repeats *value* or that of a variable, of two letters or more."""
        repeated = (*self.secrets, str(value))
        return any(
            len(each) > 1 and each in text for secret in repeated for each in spellings(secret)
        )


def read(
    path: Path, environ: Mapping[str, str], only: Callable[[KeyPath], bool] | None = None
) -> Document:
    """Read the pipeline file at *path*, taking variables from *environ*.

    With *only*, variables at any key path that it does not hold for stay as they are written.

    Raise :class:`ConfigError` when it cannot be read or is not strict YAML, and
    :class:`InvalidPipeline` with one problem for each variable that is unset.
    """
    return parse(_read_text(path), str(path), environ, only)


def read_with_gaps(path: Path, environ: Mapping[str, str]) -> Document:
    """Do as :func:`read` does, but make gaps of variables that cannot be replaced."""
    return _parse(_read_text(path), str(path), environ, None)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", str(path)) from error
    except ValueError as error:
        raise ConfigError("is not a file name", one_line(path)) from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"is larger than {MAX_BYTES} bytes; no pipeline needs that", str(path))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError("is not UTF-8 text", str(path), line) from error


def parse(
    text: str, file: str, environ: Mapping[str, str], only: Callable[[KeyPath], bool] | None = None
) -> Document:
    """Turn *text* into a document (see :func:`read`). *file* is only named in errors."""
    document = _parse(text, file, environ, only)
    if document.gaps:
        raise InvalidPipeline(*document.problems())
    return document


def _parse(
    text: str, file: str, environ: Mapping[str, str], only: Callable[[KeyPath], bool] | None
) -> Document:
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > MAX_LINE:
            raise ConfigError(f"is longer than {MAX_LINE} characters in this line", file, number)
    builder = _Builder(file, environ, only)
    root = builder.document(text)
    substituted, secrets = frozenset(builder.substituted), frozenset(builder.secrets)
    known = frozenset(builder.known_secrets)
    return Document(
        file,
        root,
        builder.lines,
        substituted,
        secrets,
        known,
        builder.templates,
        builder.gaps,
        frozenset(builder.defaulted),
    )


def from_values(values: Mapping[str, Any]) -> Document:
    """Make a document without lines from a mapping made in Python. Its variables are not replaced.

    It may hold the same values as a file: mappings, lists, texts, numbers, booleans, ``None`` and
    paths. Raise :class:`ConfigError` for anything else, and for values nested too deep.
    """
    lines: dict[KeyPath, int] = {}
    return Document("", _plain_value(values, (), lines), lines)


def _plain_value(value: object, path: KeyPath, lines: dict[KeyPath, int]) -> object:
    lines[path] = 0
    if len(path) > MAX_DEPTH:
        raise ConfigError(f"the pipeline is nested more than {MAX_DEPTH} deep")
    match value:
        case Mapping():
            return {
                str(key): _plain_value(each, (*path, str(key)), lines)
                for key, each in value.items()
            }
        case list() | tuple():
            return [_plain_value(each, (*path, index), lines) for index, each in enumerate(value)]
        case PurePath():
            return str(value)
        case str() | int() | float() | None:
            return value
    place = ".".join(map(str, path)) or "the pipeline"
    raise ConfigError(f"{place} is a {type(value).__name__}, which a pipeline file cannot hold")


class _Builder:
    """Builder of plain values from parse events. Nothing is unfolded before it is checked."""

    def __init__(
        self, file: str, environ: Mapping[str, str], only: Callable[[KeyPath], bool] | None
    ) -> None:
        self.file, self.environ, self.only = file, environ, only
        self.lines: dict[KeyPath, int] = {}
        self.substituted: set[KeyPath] = set()
        self.defaulted: set[str] = set()
        self.secrets: set[str] = set()
        self.known_secrets: set[str] = set()
        self.templates: dict[KeyPath, Template] = {}
        self.folder = Path(os.path.abspath(file)).parent  # noqa: PTH100 - links stay as they are
        self.gaps: dict[KeyPath, UnknownValue] = {}
        self.events: Iterator[Any] = iter(())

    def document(self, text: str) -> object:
        from ruamel.yaml import YAML  # noqa: PLC0415 - `--help` does without it
        from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415

        try:
            self.events = YAML(typ="safe", pure=True).parse(text)
            return self._only_document()
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 0
            problem = str(error.problem or error.context)
            problem = next((plain for text, plain in _PLAIN.items() if text in problem), problem)
            began = error.context_mark.line + 1 if error.context_mark else line
            place = f" (in the part that begins in line {began})" if began < line else ""
            raise self._error(f"is not YAML: {problem}{place}", line) from error
        except YAMLError as error:
            # A character that no text may hold. The error has its position, not its line.
            line = text.count("\n", 0, getattr(error, "position", 0)) + 1
            reason = getattr(error, "reason", "it cannot be read")
            raise self._error(f"is not YAML: {reason}", line) from error

    def _error(self, text: str, line: int) -> ConfigError:
        return ConfigError(one_line(text), self.file, line)

    def _only_document(self) -> object:
        next(self.events)  # the start of the stream
        start = next(self.events)
        if _kind(start) == "StreamEnd":
            raise self._error("is empty; a pipeline needs readers and routes", 1)
        if start.version not in (None, (1, 2)):
            raise self._error("requests another version than YAML 1.2", start.start_mark.line + 1)
        root = self._value(next(self.events), ())
        next(self.events)  # the end of the document
        rest = next(self.events)
        if _kind(rest) != "StreamEnd":
            raise self._error("holds a second document; one file is one pipeline", _line(rest))
        return root

    def _value(self, event: Any, path: KeyPath) -> object:  # noqa: ANN401 - ruamel's own events
        self._refuse_indirection(event)
        self.lines.setdefault(path, _line(event))
        if len(self.lines) > MAX_VALUES:
            text = f"holds more than {MAX_VALUES} values; no pipeline needs that"
            raise self._error(text, _line(event))
        if len(path) > MAX_DEPTH:
            raise self._error(f"is nested more than {MAX_DEPTH} deep", _line(event))
        match _kind(event):
            case "MappingStart":
                return dict(self._pairs(path))
            case "SequenceStart":
                return list(self._items(path))
            case _:
                return self._scalar(event, path)

    def _refuse_indirection(self, event: Any) -> None:  # noqa: ANN401 - ruamel's own events
        if _kind(event) == "Alias" or event.anchor is not None:
            text = "anchors (&) and aliases (*) are not allowed; use ${VARIABLES} to share a value"
            raise self._error(text, _line(event))
        if event.tag is not None:
            raise self._error("tags (!) are not allowed; quote the text instead", _line(event))

    def _pairs(self, path: KeyPath) -> Iterator[tuple[str, object]]:
        seen: dict[str, int] = {}
        while _kind(event := next(self.events)) != "MappingEnd":
            key, line = self._key(event), _line(event)
            if key in seen:
                text = f"duplicate key {key!r} (first on line {seen[key]}); keep one of the two"
                raise self._error(text, line)
            seen[key] = self.lines[*path, key] = line
            yield key, self._value(next(self.events), (*path, key))

    def _key(self, event: Any) -> str:  # noqa: ANN401 - ruamel's own events
        self._refuse_indirection(event)
        if _kind(event) != "Scalar":
            raise self._error("a key must be text", _line(event))
        if event.value == "<<" and event.style is None:
            raise self._error("merge keys (<<) are not allowed; write the keys out", _line(event))
        return str(event.value)

    def _items(self, path: KeyPath) -> Iterator[object]:
        index = 0
        while _kind(event := next(self.events)) != "SequenceEnd":
            yield self._value(event, (*path, index))
            index += 1

    def _scalar(self, event: Any, path: KeyPath) -> object:  # noqa: ANN401 - ruamel's own events
        if self.only is not None and not self.only(path):
            return scalar_value(event.value) if event.style is None else event.value
        try:
            found = substitute(event.value, self.environ, self.folder)
        except Unreplaced as error:
            problems = (self._error(each, self.lines[path]) for each in error.problems)
            self.gaps[path] = UnknownValue(tuple(problems), error.absent)
            return _UNKNOWN
        self.secrets |= found.values
        self.defaulted |= found.defaulted
        # A file's place is unrelated to the variables beside it.
        names = FILE.sub("", event.value)
        self.known_secrets |= found.values if SECRETIVE.search(names) else found.secrets
        if found.template is not None:
            self.templates[path] = found.template
        if found.replaced:
            self.substituted.add(path)
            return found.text
        return scalar_value(found.text) if event.style is None else found.text


def scalar_value(text: str) -> object:
    """Return the value of a plain scalar by the YAML 1.2 core schema."""
    if text in _NULL:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    for pattern, read_number in _NUMBERS:
        if pattern.fullmatch(text):
            return read_number(text)
    return text


def _kind(event: object) -> str:
    return type(event).__name__.removesuffix("Event")


def _line(event: Any) -> int:  # noqa: ANN401 - ruamel's own events
    return int(event.start_mark.line) + 1
