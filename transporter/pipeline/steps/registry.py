"""The registry of steps, and the parsing of an item of ``steps:``."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from transporter.pipeline.problems import suggestion
from transporter.pipeline.steps.debezium_envelope import DebeziumEnvelopeSettings, debezium_envelope
from transporter.pipeline.steps.only_skip import ChoiceSettings, only, skip
from transporter.pipeline.steps.opfilter import OpfilterSettings, opfilter
from transporter.pipeline.steps.pick_omit_rename import (
    OmitSettings,
    PickSettings,
    RenameSettings,
    omit,
    pick,
    rename,
)
from transporter.pipeline.steps.pretty import PrettySettings, pretty
from transporter.pipeline.steps.python import PythonSettings, python
from transporter.pipeline.steps.remap import RemapSettings, remap
from transporter.pipeline.steps.sql import SQL, SqlSettings, sql
from transporter.pipeline.steps.starlark import StarlarkSettings, starlark
from transporter.pipeline.steps.step import StepConfig
from transporter.pipeline.validation_errors import Section, validate
from transporter.units import FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from transporter.errors import ConfigError
    from transporter.pipeline.route_options import Model
    from transporter.pipeline.steps.step import Step
    from transporter.pipeline.yaml_document import Document, KeyPath


@dataclass(frozen=True, slots=True)
class StepKind:
    """A kind of step: the model of its settings, and the function that makes it from them."""

    settings: type[Model]
    make: Callable[[Any, Path], Step]


KINDS: Final[Mapping[str, StepKind]] = MappingProxyType(
    {
        "debezium-envelope": StepKind(DebeziumEnvelopeSettings, debezium_envelope),
        "omit": StepKind(OmitSettings, omit),
        "only": StepKind(ChoiceSettings, only),
        "opfilter": StepKind(OpfilterSettings, opfilter),
        "pick": StepKind(PickSettings, pick),
        "pretty": StepKind(PrettySettings, pretty),
        "python": StepKind(PythonSettings, python),
        "remap": StepKind(RemapSettings, remap),
        "rename": StepKind(RenameSettings, rename),
        "skip": StepKind(ChoiceSettings, skip),
        SQL: StepKind(SqlSettings, sql),
        "starlark": StepKind(StarlarkSettings, starlark),
    }
)


def parse_step(
    item: object, document: Document, path: KeyPath, folder: Path
) -> tuple[StepConfig | None, list[ConfigError]]:
    """Return the step of *item*, at *path* of the file, or the problems of it.

    Files and modules in its settings are looked for in *folder*, the pipeline file's folder.
    """
    name = next(iter(item)) if isinstance(item, dict) and len(item) == 1 else None
    if not isinstance(item, dict) or name is None:
        text = "a step is a mapping of one key, its name; write for example - omit: {fields: [a]}"
        return None, [document.problem(path, text)]
    if name not in KINDS:
        text = f"there is no step {name!r}{suggestion(name, KINDS, 'steps')}"
        return None, [document.problem((*path, name), text)]
    kind, place = KINDS[name], (*path, name)
    settings, problems = validate(
        kind.settings, item[name], Section(document, place), {FOLDER: folder}
    )
    if settings is None:
        return None, problems
    return StepConfig(name=name, settings=item[name]), []
