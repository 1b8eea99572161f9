"""Conversion of a file of any known program, checked before it is returned."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from transporter.errors import ConfigError
from transporter.pipeline.config import load_without_environment
from transporter.scaffold.conversion import compose, goharvest

if TYPE_CHECKING:
    from transporter.scaffold.conversion.draft import Converted


def convert_file(old: Path) -> Converted:
    """Return the pipeline file that *old* is converted into.

    A name that ends in ``.js`` is a pipeline of compose/transporter, any other is goharvest's.

    Raises:
        ConfigError: If *old* cannot be converted, or not into a valid file.
        EnvironmentFault: If a parser is not installed.
    """
    found = compose.convert(old) if old.suffix == ".js" else goharvest.convert(old)
    _refuse_invalid(found, old)
    return found


def _refuse_invalid(found: Converted, old: Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as draft:
        draft.write(found.text)
        draft.flush()
        try:
            load_without_environment(Path(draft.name), {})
        except ConfigError as error:
            problems = getattr(error, "problems", [error])
            text = "; ".join(each.problem for each in problems)
            raise ConfigError(
                f"has values that no pipeline file may have: {text}", str(old)
            ) from error
