"""Conversion of a ``pipeline.js`` of compose/transporter.

Its tree of one source, transforms and sinks becomes one reader, and a route for each sink. For an
adaptor that does not exist here, a file takes its place, whose path is a variable that is not set.
A transform in JavaScript becomes a step whose function is such a variable. So nothing runs
differently without a decision.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from transporter.errors import ConfigError
from transporter.pipeline.adaptor_registry import READER, WRITER
from transporter.scaffold.conversion import javascript
from transporter.scaffold.conversion.compose_adaptors import fill_sink, fill_source
from transporter.scaffold.conversion.compose_functions import step_of
from transporter.scaffold.conversion.draft import Converted, Draft, Part, pipeline_name
from transporter.scaffold.conversion.javascript import Call, Mapping, Name, Statement

if TYPE_CHECKING:
    from pathlib import Path

_EVERYTHING: Final = frozenset({"", ".*", ".+", ".", "^.*$", "^.*", ".*$"})
_DURATION: Final = re.compile(r"[0-9]+(\.[0-9]+)?(us|ms|s|m|h)")
_ROOT: Final = "t"


@dataclass(frozen=True, slots=True)
class _Node:
    """A place in the tree: the steps, filters and sinks between the source and here."""

    steps: tuple[Any, ...] = ()
    namespaces: tuple[str, ...] = ()
    after: str | None = None


@dataclass(frozen=True, slots=True)
class _Hop:
    """The arguments of ``Source``, ``Transform`` or ``Save``."""

    name: str
    function: str
    settings: Mapping
    namespace: str
    line: int


def convert(path: Path) -> Converted:
    """Return the pipeline file for the ``pipeline.js`` at *path*.

    Raises:
        ConfigError: If it is not JavaScript, does more than build one pipeline, or builds none.
        EnvironmentFault: If the extra ``migrate`` is not installed.
    """
    try:
        with path.open("rb") as stream:
            text = stream.read(javascript.MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", str(path)) from error
    tree = _Tree(str(path), Draft(path.name, pipeline_name(path.stem)))
    for statement in javascript.parse(text, str(path)):
        tree.run(statement)
    return tree.finish()


@dataclass(slots=True)
class _Tree:
    """The pipeline that the statements build."""

    file: str
    draft: Draft
    names: dict[str, Any] = field(default_factory=dict)
    config: Mapping = field(default_factory=lambda: Mapping({}, {}))

    def run(self, statement: Statement) -> None:
        """Follow one statement."""
        value = self._resolve(statement.value)
        if isinstance(value, Call) and (value.target is not None or value.function == _ROOT):
            value = self._build(value)
        elif statement.target is None:
            raise self._refused("this builds no part of the pipeline", statement.line)
        if statement.target is not None:
            self.names[statement.target] = value

    def finish(self) -> Converted:
        """Return the file, once every statement has been followed."""
        kinds = {each.kind for each in self.draft.parts}
        for kind, word in ((READER, "t.Source"), (WRITER, "Save")):
            if kind not in kinds:
                raise ConfigError(f"builds no pipeline: there is no {word}", self.file)
        self._settings()
        return self.draft.finish()

    def _resolve(self, value: Any) -> Any:  # noqa: ANN401 - any value of the file
        """Return *value* with the values of the names in it."""
        if isinstance(value, Mapping):
            held = {key: self._resolve(each) for key, each in value.values.items()}
            return Mapping(held, value.lines)
        if isinstance(value, list):
            return [self._resolve(each) for each in value]
        if not isinstance(value, Name) or value.name == _ROOT:
            return value
        if value.name not in self.names:
            raise self._refused(f"{value.name} is not assigned before", value.line)
        return self.names[value.name]

    def _build(self, call: Call) -> _Node | None:
        """Follow a chain of calls from its beginning, and return the place that it leads to."""
        target = self._resolve(call.target)
        if isinstance(target, Call):
            target = self._build(target)
        if isinstance(target, Name):
            if call.function == "Config":
                self._config(call)
                return None
            if call.function == "Source":
                return self._source(self._hop(call))
        elif isinstance(target, _Node) and call.function == "Transform":
            return self._transform(target, self._hop(call))
        elif isinstance(target, _Node) and call.function == "Save":
            return self._save(target, self._hop(call))
        raise self._refused(f"{call.function} is not expected here", call.line)

    def _hop(self, call: Call) -> _Hop:
        """Return the arguments, of which name and namespace may be left out."""
        arguments = [self._resolve(each) for each in call.arguments]
        name = arguments.pop(0) if arguments and isinstance(arguments[0], str) else ""
        made, *rest = arguments or [None]
        namespace = rest[0] if rest else ""
        if not isinstance(made, Call) or made.target is not None or len(made.arguments) > 1:
            raise self._refused(f"{call.function} needs an adaptor or function", call.line)
        settings = self._resolve(made.arguments[0]) if made.arguments else Mapping({}, {})
        if not isinstance(settings, Mapping) or not isinstance(namespace, str) or rest[1:]:
            raise self._refused(
                f"{call.function} takes a name, an adaptor or function, and a namespace", call.line
            )
        values = dict(settings.values)
        name = name or str(values.pop("name", ""))
        return _Hop(
            name, made.function, Mapping(values, settings.lines), namespace.strip("/"), call.line
        )

    def _config(self, call: Call) -> None:
        settings = self._resolve(call.arguments[0]) if len(call.arguments) == 1 else None
        if not isinstance(settings, Mapping):
            raise self._refused("Config needs an object", call.line)
        self.config = settings

    def _source(self, hop: _Hop) -> _Node:
        if any(each.kind == READER for each in self.draft.parts):
            raise self._refused(
                "a second source: every route here gets the entries of all readers, so make a "
                "file of it",
                hop.line,
            )
        part = Part(READER, pipeline_name(hop.name or hop.function), "file", {})
        self.draft.parts.append(part)
        fill_source(self.draft, part, hop.function, hop.settings, hop.line)
        return _Node(namespaces=() if hop.namespace in _EVERYTHING else (hop.namespace,))

    def _transform(self, node: _Node, hop: _Hop) -> _Node:
        step = step_of(self.draft, hop.function, hop.settings, hop.line)
        if step is None:
            return node
        if hop.namespace not in _EVERYTHING:
            ((name, keys),) = step.items()
            step = {name: {**keys, "namespace": hop.namespace}}
        return replace(node, steps=(*node.steps, step))

    def _save(self, node: _Node, hop: _Hop) -> _Node:
        name = self.draft.unused_name(WRITER, hop.name or hop.function)
        part = Part(WRITER, name, "file", {})
        self.draft.parts.append(part)
        own = () if hop.namespace in _EVERYTHING else (hop.namespace,)
        filters = tuple(dict.fromkeys((*node.namespaces, *own)))
        if filters:
            part.keys["namespace"] = filters[-1]
        if filters[1:]:
            self.draft.warn(
                hop.line,
                "a message had to match several namespaces on its way, and only the last one is "
                "kept: make one regular expression of them",
                part,
            )
        if node.after is not None:
            part.keys["after"] = node.after
        if node.steps:
            part.keys["steps"] = list(node.steps)
        fill_sink(self.draft, part, hop.function, hop.settings, hop.line)
        return replace(node, namespaces=filters, after=name)

    def _settings(self) -> None:
        """Take over the settings of ``t.Config``."""
        log: dict[str, Any] = {"dir": f"./data/{self.draft.name}"}
        for key, value in self.config.values.items():
            line = self.config.lines[key]
            if key == "log_dir" and isinstance(value, str):
                log["dir"] = value
                self.draft.warn(
                    line, "log_dir must be an empty folder: the logs of both programs differ"
                )
            elif key == "max_segment_bytes" and isinstance(value, int):
                log["segment_bytes"] = max(value, 64 * 1024)
            elif key == "write_timeout" and _DURATION.fullmatch(str(value)):
                for part in self.draft.parts:
                    if part.kind == WRITER:
                        part.keys["slice_timeout"] = value
            elif key == "compaction_interval":
                self.draft.warn(
                    line,
                    "compaction_interval has no counterpart: nothing is compacted unless "
                    "log.compaction says so, and delivered entries stay 7 days",
                )
            else:
                self.draft.warn(line, f"the setting {key} of t.Config is not converted")
        self.draft.top["log"] = log

    def _refused(self, text: str, line: int) -> ConfigError:
        return ConfigError(f"is not converted: {text}", self.file, line)
