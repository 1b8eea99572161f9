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
from transporter.scaffold.conversion.connection import postgres_dsn, url
from transporter.scaffold.conversion.draft import Converted, Draft, Part, pipeline_name, variable
from transporter.scaffold.conversion.javascript import Call, Mapping, Name, Statement

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_EVERYTHING: Final = frozenset({"", ".*", ".+", ".", "^.*$", "^.*", ".*$"})
_DURATION: Final = re.compile(r"[0-9]+(\.[0-9]+)?(us|ms|s|m|h)")
_ROOT: Final = "t"
_LOCAL: Final = "postgres://127.0.0.1:5432/test"
"""The address that compose/transporter took without a setting."""
_SEARCH: Final = "http://localhost:9200"
_INDEX: Final = re.compile(r"[a-z]+://[^/]+/[^/]+", re.IGNORECASE)
_CODE: Final = frozenset({"goja", "js", "otto", "transformer", "transform"})
_SPECIAL: Final = re.compile(r"([.\[\]\\])")


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
        _fill_source(self.draft, part, hop.function, hop.settings, hop.line)
        return _Node(namespaces=() if hop.namespace in _EVERYTHING else (hop.namespace,))

    def _transform(self, node: _Node, hop: _Hop) -> _Node:
        step = _step_of(self.draft, hop.function, hop.settings, hop.line)
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
        _fill_sink(self.draft, part, hop.function, hop.settings, hop.line)
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


def _fill_source(draft: Draft, part: Part, adaptor: str, settings: Mapping, line: int) -> None:
    """Make *part* the reader that replaces the source *adaptor*."""
    used = {"uri"}
    if adaptor == "file":
        part.settings["path"] = _file(draft, settings)
        draft.warn(line, "a file must hold one JSON document a line", part)
    elif adaptor in ("postgres", "postgresql"):
        part.adaptor = "postgres-cdc"
        part.settings["dsn"] = _dsn(draft, part, settings, "SOURCE_DSN")
        part.settings["tables"] = ["public.*"]
        draft.warn(
            line,
            "tables names every table of the schema public: name those that you need. Their "
            "changes are followed after the copy, by a slot of its own (docs/cdc.md)",
            part,
        )
        used |= {"tail", "replication_slot"}
    else:
        name = variable("SOURCE_FILE", f"there is no reader {adaptor}; a file of JSON lines")
        part.settings["path"] = name
        draft.warn(
            line,
            f"there is no reader for {adaptor}: read an export in JSON lines by SOURCE_FILE, or "
            "write a reader ('transporter init adaptor NAME --reader')",
            part,
        )
    _note_unused(draft, part, settings, used)


def _fill_sink(draft: Draft, part: Part, adaptor: str, settings: Mapping, line: int) -> None:
    """Make *part* the writer that replaces the sink *adaptor*."""
    variable_name = re.sub(r"\W", "_", part.name).upper()
    if adaptor == "file":
        part.settings |= {"path": _file(draft, settings), "format": "data"}
    elif adaptor in ("postgres", "postgresql"):
        part.adaptor = "postgres"
        part.settings["dsn"] = _dsn(draft, part, settings, f"{variable_name}_DSN")
    elif adaptor == "elasticsearch":
        _search(draft, part, settings, line)
    else:
        message = f"there is no writer {adaptor}; a file for JSON lines"
        part.settings["path"] = variable(f"{variable_name}_FILE", message)
        draft.warn(
            line,
            f"there is no writer for {adaptor}: write one ('transporter init adaptor NAME'), or "
            f"JSON lines into {variable_name}_FILE",
            part,
        )
    _note_unused(draft, part, settings, {"uri"})


def _uri(draft: Draft, settings: Mapping, default: str) -> str:
    """Return the address, which must be a text."""
    held = settings.values.get("uri", default)
    if not isinstance(held, str):
        raise ConfigError("uri must be a text", draft.source, settings.lines["uri"])
    return held


def _file(draft: Draft, settings: Mapping) -> str:
    """Return the path of a file adaptor's address."""
    path = _uri(draft, settings, "stdout://")
    return "-" if path == "stdout://" else path.removeprefix("file://")


def _dsn(draft: Draft, part: Part, settings: Mapping, name: str) -> str:
    text = _uri(draft, settings, _LOCAL)
    return postgres_dsn(text, name, draft, part, settings.lines.get("uri", 1))


def _search(draft: Draft, part: Part, settings: Mapping, line: int) -> None:
    """Make *part* a writer that puts each document of Elasticsearch, and deletes it."""
    part.adaptor = "http"
    name = f"{re.sub(r'[^A-Za-z0-9]', '_', part.name).upper()}_URL"
    held = _uri(draft, settings, _SEARCH)
    address = url(held, name, draft, part, settings.lines.get("uri", line)).rstrip("/")
    index = "" if _INDEX.match(held) else "/{namespace}"
    part.settings |= {
        "url": f"{address}{index}/_doc/{{key}}",
        "method": "PUT",
        "methods": {"delete": "DELETE"},
        "format": "data",
    }
    draft.warn(
        line,
        "elasticsearch becomes a request for each document over HTTP, not bulk requests; entries "
        "need keys, and their namespace is the index unless the address names one",
        part,
    )


def _note_unused(draft: Draft, part: Part, settings: Mapping, used: set[str]) -> None:
    for key, line in settings.lines.items():
        if key in settings.values and key not in used:
            draft.warn(line, f"the setting {key} is not converted", part)


def _step_of(draft: Draft, function: str, settings: Mapping, line: int) -> dict[str, Any] | None:
    """Return the step with the effect of *function*, or ``None`` if it had none."""
    if function == "pretty":
        draft.warn(line, "pretty wrote messages to the program's log, and is left out")
        return None
    return _known_step(function, _plain(settings)) or _undecided(draft, function, line)


def _known_step(function: str, values: dict[str, Any]) -> dict[str, Any] | None:
    match function, values:
        case (("omit" | "pick"), {"fields": list(fields)}) if _are_texts(fields):
            return {function: {"fields": [_path(each) for each in fields]}}
        case "rename", {"field_map": dict(fields)} if _are_texts(fields.values()):
            return {"rename": {"fields": {_path(old): new for old, new in fields.items()}}}
        case "remap", {"ns_map": dict(namespaces)} if _are_texts(namespaces.values()):
            return {"remap": {"namespaces": namespaces}}
        case "skip", {
            "field": str(field),
            "operator": str(operator),
            "match": str() | int() | float() | bool() | None as match,
        }:
            # In compose/transporter "skip" kept the messages for which it was true.
            return {"only": {"field": _path(field), "operator": operator, "value": match}}
        case "opfilter", _ if kept := _ops(values):
            return {"opfilter": kept}
    return None


def _undecided(draft: Draft, function: str, line: int) -> dict[str, Any]:
    """Return a step that prevents a start until it is written."""
    code = "is in JavaScript" if function in _CODE else "is not known with these settings"
    number = 1 + sum("TRANSFORM_" in each for each in draft.warnings)
    name = f"TRANSFORM_{number}"
    draft.warn(
        line,
        f"the function {function} {code}: write it as a step in Python or Starlark in the place "
        f"of ${name} (docs/steps.md)",
    )
    return {"python": {"function": variable(name, "module:function that does the transform")}}


def _ops(values: dict[str, Any]) -> dict[str, Any]:
    named = (("whitelist", "allow"), ("blacklist", "deny"))
    found = {ours: values.get(theirs) for theirs, ours in named}
    return {
        ours: each for ours, each in found.items() if isinstance(each, list) and _are_texts(each)
    }


def _are_texts(values: Iterable[object]) -> bool:
    """Return whether there are values, and only texts."""
    held = list(values)
    return bool(held) and all(isinstance(each, str) for each in held)


def _path(field: object) -> str:
    """Return the path of a field at the top of the document, whatever its name is."""
    return _SPECIAL.sub(r"\\\1", str(field))


def _plain(settings: Mapping) -> dict[str, Any]:
    return {key: getattr(each, "values", each) for key, each in settings.values.items()}
