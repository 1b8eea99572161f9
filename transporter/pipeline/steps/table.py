"""Which steps there are, and how an item of ``steps:`` becomes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from transporter.errors import ConfigError
from transporter.pipeline.explain import Section, validate
from transporter.pipeline.problems import suggestion
from transporter.pipeline.steps.step import Step, StepConfig, StepSettings
from transporter.units import FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transporter.pipeline.document import Document, KeyPath


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of step: the model of its settings, and what makes it from them."""

    settings: type[StepSettings]
    make: Callable[[Any, Path], Step]


KINDS: Final[dict[str, Kind]] = {}


def step_config(
    item: object, document: Document, path: KeyPath, folder: Path
) -> tuple[StepConfig | None, list[ConfigError]]:
    """Return the step that *item*, at *path* of the file, stands for, or what is wrong with it.

    The step is made once, so that what it needs from *folder*, the pipeline
    file's, is known to be there.
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
    try:
        kind.make(settings, folder)
    except ConfigError as error:
        return None, [document.problem(place, error.problem)]
    return StepConfig(name=name, settings=item[name]), []
