"""The console's keys of a pipeline file, without validating the rest.

So the console starts on a file that the engine refuses, and needs no variables but its own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from transporter.pipeline.observe_config import ConsoleConfig
from transporter.pipeline.problems import InvalidPipeline
from transporter.pipeline.validation_errors import Section, validate
from transporter.pipeline.yaml_document import read
from transporter.units import FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transporter.pipeline.yaml_document import KeyPath

_SECTION = "observe"


def _is_ours(key: KeyPath) -> bool:
    return key[:1] == (_SECTION,) and len(key) > 1 and key[1] in ConsoleConfig.model_fields


def read_console_settings(path: Path, environ: Mapping[str, str]) -> ConsoleConfig:
    """Return the console's settings of the pipeline file at *path*.

    Raise :class:`ConfigError` as :func:`~transporter.pipeline.config.load` does.
    """
    document = read(path, environ, only=_is_ours)
    root = document.root if isinstance(document.root, dict) else {}
    observe = document.as_mapping((_SECTION,), root.get(_SECTION) or None)
    ours = {key: value for key, value in observe.items() if key in ConsoleConfig.model_fields}
    file = Path(os.path.abspath(path))  # noqa: PTH100 - as in load()
    section = Section(document, (_SECTION,))
    found, problems = validate(ConsoleConfig, ours, section, {FOLDER: file.parent})
    if found is None:
        raise InvalidPipeline(*problems)
    return found
