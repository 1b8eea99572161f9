"""Adaptors of compose/transporter as readers and writers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from transporter.errors import ConfigError
from transporter.scaffold.conversion.connection import postgres_dsn, url
from transporter.scaffold.conversion.draft import variable

if TYPE_CHECKING:
    from transporter.scaffold.conversion.draft import Draft, Part
    from transporter.scaffold.conversion.javascript import Mapping

_LOCAL: Final = "postgres://127.0.0.1:5432/test"
"""The address that compose/transporter took without a setting."""
_SEARCH: Final = "http://localhost:9200"
_INDEX: Final = re.compile(r"[a-z]+://[^/]+/[^/]+", re.IGNORECASE)


def fill_source(draft: Draft, part: Part, adaptor: str, settings: Mapping, line: int) -> None:
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


def fill_sink(draft: Draft, part: Part, adaptor: str, settings: Mapping, line: int) -> None:
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
