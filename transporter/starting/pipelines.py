"""A first pipeline file for a source and a sink, with all their settings explained."""

from __future__ import annotations

import json
import re
from textwrap import wrap
from typing import TYPE_CHECKING, Final

from transporter.errors import ConfigError
from transporter.pipeline.describe import beside, installed
from transporter.pipeline.problems import suggestion
from transporter.pipeline.registry import READER, WRITER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transporter.pipeline.describe import AdaptorInfo, Setting

_WIDTH: Final = 84
_PLAIN: Final = re.compile(r"[A-Za-z][\w./-]*")
"""What YAML takes for text without quotes."""


def first_pipeline(source: str, sink: str, folder: Path) -> str:
    """Return a pipeline file from the reader *source* to the writer *sink*.

    What must be set is taken from variables that say so; what may be set stands
    there with its default, commented out. ``module:Class`` is looked for in
    *folder*. Raise :class:`ConfigError` for an adaptor that is not there or
    cannot be imported.
    """
    reader, writer = _adaptor(READER, source, folder), _adaptor(WRITER, sink, folder)
    source, sink = reader.short, writer.short
    lines = [
        f"# From {source} to {sink}. 'transporter check' tells what is still missing;",
        "# 'transporter schema' lets an editor complete this file.",
        f"name: {source}-to-{sink}",
        "",
        "log:",
        f"  dir: ./data/{source}-to-{sink}",
        "  # How long what every route has delivered stays, for replays; off: for ever. What",
        "  # compaction and max_bytes may take of it: docs/configuration.md",
        "  retention: {age: 7d}",
        "",
        "readers:",
        f"  # {_headline(reader)}",
        f"  - name: {source}",
        f"    adaptor: {quoted(reader.name)}",
        *(f"    {line}".rstrip() for line in _settings(reader)),
        "",
        "routes:",
        f"  - name: {sink}",
        "    # Which entries it takes: a regular expression (RE2) over their namespaces.",
        "    namespace: .*",
        "    # What becomes of them on the way, one step after another: docs/steps.md",
        "    # steps:",
        "    #   - omit: {fields: [password]}",
        "    # What an entry that fails alone does: stop (the route waits for you), park or skip.",
        "    on_error: stop",
        f"    # {_headline(writer)}",
        "    writer:",
        f"      adaptor: {quoted(writer.name)}",
        *(f"      {line}".rstrip() for line in _settings(writer)),
    ]
    return "\n".join(lines) + "\n"


def quoted(name: str) -> str:
    """Return *name* as a pipeline file would write it."""
    return json.dumps(name) if ":" in name else name


def _adaptor(kind: str, name: str, folder: Path) -> AdaptorInfo:
    if ":" in name:
        found = beside(name, folder)
        if found.kind != kind:
            raise ConfigError(f"{name!r} is a {found.kind}, not a {kind}")
        return found
    known = {each.name: each for each in installed() if each.kind == kind}
    if name not in known:
        raise ConfigError(f"there is no {kind} {name!r}{suggestion(name, known, f'{kind}s')}")
    if known[name].problem:
        raise ConfigError(f"the {kind} {name!r} cannot be used: {known[name].problem}")
    return known[name]


def _headline(adaptor: AdaptorInfo) -> str:
    return adaptor.doc.partition("\n")[0]


def _settings(adaptor: AdaptorInfo) -> Iterator[str]:
    for setting in sorted(adaptor.settings, key=lambda each: not each.required):
        yield from (f"# {line}" for line in wrap(setting.doc, _WIDTH))
        yield variable_line(adaptor, setting) if setting.required else _optional(setting)


def _optional(setting: Setting) -> str:
    default = setting.default or ""
    if default.startswith("("):
        return f"# {setting.name}:  # {setting.type}; default {default}"
    if default == "unset":
        return f"# {setting.name}:  # {setting.type}"
    text = setting.type == "text" and not _PLAIN.fullmatch(default)
    return f"# {setting.name}: {json.dumps(default) if text else default}  # {setting.type}"


def variable_line(adaptor: AdaptorInfo, setting: Setting) -> str:
    """Return the line that takes a required setting from a variable."""
    # With the adaptor's name in front, a setting `path` does not become $PATH.
    variable = f"{adaptor.short}_{setting.name}".upper().replace("-", "_")
    return f"{setting.name}: ${{{variable}:?set it to the {setting.name}}}"
