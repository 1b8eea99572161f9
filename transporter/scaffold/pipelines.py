"""Scaffold of a pipeline file for a source and a sink, with the settings of both explained."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING, Final

from transporter.errors import ConfigError
from transporter.pipeline.adaptor_description import describe_adaptor, installed_adaptors
from transporter.pipeline.adaptor_registry import READER, WRITER, find_adaptor
from transporter.pipeline.problems import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.pipeline.adaptor_description import AdaptorInfo, Setting
    from transporter.pipeline.adaptor_registry import AdaptorClass

_WIDTH: Final = 84
_PLAIN: Final = re.compile(r"[A-Za-z][\w./-]*")
"""Text that YAML reads as a string without quotes."""
_EMPTY: Final = ("unset", '""', "[]", "{}")
"""Defaults of settings that are not set."""
_SENTENCE_END: Final = re.compile(r"[.;](?: |$)")
_PLAIN_TEXT: Final = re.compile(r"(?!.*: )[^{}\"\\#]{1,100}")
"""Text that may be in a variable's message, also between double quotes."""


def first_pipeline(source: str, sink: str, folder: Path) -> str:
    """Return a pipeline file from the reader *source* to the writer *sink*.

    Required settings come from environment variables, with a message if one is unset.
    If one of several optional settings is needed, the first of them is required, too.
    The others are listed with their defaults, commented out. ``module:Class`` is looked
    up in *folder*.

    Raises:
        ConfigError: If an adaptor does not exist or cannot be imported.
    """
    reader, writer = _find_adaptor(READER, source, folder), _find_adaptor(WRITER, sink, folder)
    reader, writer = _with_needed_choice(reader, folder), _with_needed_choice(writer, folder)
    source, sink = reader.short_name, writer.short_name
    lines = [
        f"# From {source} to {sink}, with all settings of both. 'transporter check' reports",
        "# missing ones. docs/configuration.md has those of the log, of routes and of Spark.",
        "# 'transporter schema' lets an editor complete this file.",
        f"name: {source}-to-{sink}",
        "",
        "log:",
        f"  dir: ./data/{source}-to-{sink}",
        "  # Time to keep entries that every route has delivered, for replays; off: for ever.",
        "  # Effects of compaction and max_bytes: docs/configuration.md",
        "  retention: {age: 7d}",
        "",
        "readers:",
        *_headline(reader, "  "),
        f"  - name: {source}",
        f"    adaptor: {quote_name(reader.name)}",
        *(f"    {line}".rstrip() for line in _setting_lines(reader, twice=source == sink)),
        "",
        "routes:",
        f"  - name: {sink}",
        "    # Filter of entries: a regular expression (RE2) over their namespaces.",
        "    namespace: .*",
        "    # Transformations, one step after another: docs/steps.md",
        "    # steps:",
        "    #   - omit: {fields: [password]}",
        "    # Action for an entry that fails alone: stop (the route waits for you), park or skip.",
        "    on_error: stop",
        *_headline(writer, "    "),
        "    writer:",
        f"      adaptor: {quote_name(writer.name)}",
        *(f"      {line}".rstrip() for line in _setting_lines(writer, twice=source == sink)),
    ]
    return "\n".join(lines) + "\n"


def quote_name(name: str) -> str:
    """Return *name* quoted for a pipeline file, if necessary."""
    return json.dumps(name) if ":" in name else name


def _find_adaptor(kind: str, name: str, folder: Path) -> AdaptorInfo:
    if ":" in name:
        found = describe_adaptor(name, folder)
        if found.kind != kind:
            raise ConfigError(f"{name!r} is a {found.kind}, not a {kind}")
        return found
    known = {each.name: each for each in installed_adaptors() if each.kind == kind}
    if name not in known:
        raise ConfigError(f"there is no {kind} {name!r}{suggestion(name, known, f'{kind}s')}")
    if known[name].problem:
        raise ConfigError(f"the {kind} {name!r} cannot be used: {known[name].problem}")
    return known[name]


def _with_needed_choice(adaptor: AdaptorInfo, folder: Path) -> AdaptorInfo:
    """Return *adaptor* with the first optional setting required that makes the required enough.

    An adaptor may need one of several settings, such as ``topics`` or ``pattern``.
    """
    cls = find_adaptor(adaptor.kind, adaptor.name, folder)
    given = {each.name: _sample(each) for each in adaptor.settings if each.required}
    if _is_valid(cls, given):
        return adaptor
    for each in adaptor.settings:
        if each.default in _EMPTY and _is_valid(cls, given | {each.name: _sample(each)}):
            needed = {each.name: replace(each, required=True)}
            settings = tuple(needed.get(other.name, other) for other in adaptor.settings)
            return replace(adaptor, settings=settings)
    return adaptor


def _is_valid(cls: AdaptorClass, settings: dict[str, object]) -> bool:
    try:
        cls.Config.model_validate(settings)
    except Exception:  # noqa: BLE001 - a validator is the adaptor's author's code
        return False
    return True


def _sample(setting: Setting) -> object:
    return ["x"] if _is_list(setting) else "x"


def _is_list(setting: Setting) -> bool:
    return setting.type.startswith("list")


def _headline(adaptor: AdaptorInfo, indent: str) -> Iterator[str]:
    """Yield the first line of the class's docstring as a comment, if it has one."""
    if line := adaptor.doc.partition("\n")[0]:
        yield f"{indent}# {line}"


def _setting_lines(adaptor: AdaptorInfo, *, twice: bool) -> Iterator[str]:
    """Yield the settings of *adaptor*, which may be in the file *twice*: as source and sink."""
    name = f"{adaptor.short_name}-{adaptor.kind}" if twice else adaptor.short_name
    for setting in sorted(adaptor.settings, key=lambda each: not each.required):
        yield from (f"# {line}" for line in wrap(setting.doc, _WIDTH))
        yield variable_line(name, setting) if setting.required else _optional_line(setting)


def _optional_line(setting: Setting) -> str:
    default = setting.default or ""
    if default.startswith("("):
        return f"# {setting.name}:  # {setting.type}; default {default}"
    if default == "unset":
        return f"# {setting.name}:  # {setting.type}"
    # An empty text is already in quotes there.
    text = setting.type == "text" and default != '""' and not _PLAIN.fullmatch(default)
    return f"# {setting.name}: {json.dumps(default) if text else default}  # {setting.type}"


def variable_line(adaptor: str, setting: Setting) -> str:
    """Return the line that takes a required setting of *adaptor* from a variable."""
    # A variable is one item of a list, and its name must not invite to more.
    name = setting.name.removesuffix("s") if _is_list(setting) else setting.name
    # The adaptor's name is the prefix, so that a setting `path` does not become $PATH.
    variable = f"{adaptor}_{name}".upper().replace("-", "_")
    value = f"${{{variable}:?{_advice(setting)}}}"
    if _is_list(setting):
        value = f'["{value}"]'
    return f"{setting.name}: {value}"


def _advice(setting: Setting) -> str:
    """Return what to set the variable of *setting* to: the beginning of its description."""
    sentence = _SENTENCE_END.split(setting.doc.replace("`", ""), maxsplit=1)[0]
    clause, colon, rest = sentence.partition(": ")
    # The text is part of a plain scalar, in which a colon would begin a value.
    whole = f"{clause} ({rest})" if colon else clause
    text = next((each for each in (whole, clause) if _PLAIN_TEXT.fullmatch(each)), "")
    if not text:
        return f"set it to the {setting.name}"
    # An abbreviation keeps its capitals.
    return text if text[1:2].isupper() else text[0].lower() + text[1:]
