"""A reader's section of a pipeline file, loaded without the rest of the file."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from transporter.errors import ConfigError
from transporter.pipeline.adaptor_registry import find_reader
from transporter.pipeline.problems import InvalidPipeline, suggestion
from transporter.pipeline.secrets import Secrets, secrets_of
from transporter.pipeline.validation_errors import Section, validate
from transporter.pipeline.yaml_document import read
from transporter.units import FOLDER

if TYPE_CHECKING:
    from pathlib import Path

    from transporter.pipeline.yaml_document import KeyPath

# As in `pipeline.config`, which takes a tenth of a second to import.
_KEYS: Final = ("adaptor", "release", "max_in_flight")


@dataclass(frozen=True, slots=True)
class LoadedReader:
    """A reader's name, its class, a valid instance of the class's ``Config``, and its secrets."""

    name: str
    cls: type[Any]
    config: Any = field(repr=False)
    secrets: Secrets = field(repr=False)


def load_reader(
    file: Path, adaptor: str, name: str | None, kind: str, *, needs_dsn: bool
) -> LoadedReader:
    """Load the reader *name* of *adaptor* in *file*, or the only one.

    *kind* says in an error which readers there are. Variables of other sections need not be set.
    Without *needs_dsn* neither need that of ``dsn``, which is then empty.

    Raises:
        ConfigError: there is no such reader, or several without a *name*.
        InvalidPipeline: its settings are not valid.

    """
    path = ("readers", _reader_index(file, adaptor, name, kind))
    document = read(file, os.environ, only=lambda key: _is_needed(key, path, needs_dsn=needs_dsn))
    settings = dict(document.root["readers"][path[1]])
    found_name = str(settings.pop("name", ""))
    for key in _KEYS:
        settings.pop(key, None)
    if not needs_dsn:
        settings["dsn"] = ""
    section = Section(document, path, ("name", *_KEYS))
    cls = find_reader(adaptor, file.absolute().parent)
    config, problems = validate(cls.Config, settings, section, {FOLDER: file.absolute().parent})
    if config is None:
        raise InvalidPipeline(*problems)
    return LoadedReader(found_name, cls, config, secrets_of(document, config))


def _is_needed(key: KeyPath, reader: KeyPath, *, needs_dsn: bool) -> bool:
    """Return whether a variable at *key* is needed. Other readers' and sinks' secrets are not."""
    return key[:2] == reader and (needs_dsn or key[2:] != ("dsn",))


def _reader_index(file: Path, adaptor: str, name: str | None, kind: str) -> int:
    """Return the index of the reader *name*, or of the only one of this *adaptor*."""
    document = read(file, os.environ, only=lambda _: False)
    readers = document.root.get("readers") if isinstance(document.root, dict) else None
    names = {
        str(each.get("name")): index
        for index, each in enumerate(readers if isinstance(readers, list) else ())
        if isinstance(each, dict) and each.get("adaptor") == adaptor
    }
    line = document.line(("readers",))
    if not names:
        raise ConfigError(f"there is no {adaptor} reader", str(file), line)
    if name is None and len(names) == 1:
        return next(iter(names.values()))
    if name is None:
        raise ConfigError(f"name one of the readers ({', '.join(names)})", str(file), line)
    if name not in names:
        hint = suggestion(name, names, kind)
        raise ConfigError(f"there is no reader {name!r}{hint}", str(file), line)
    return names[name]
