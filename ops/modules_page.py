# ruff: noqa: INP001 - a script beside the page that it writes
"""Generator of ``docs/modules.md``, "where is what", from module docstrings (``make docs``).

Usage: ``python ops/modules_page.py docs/modules.md``
"""

from __future__ import annotations

import ast
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT: Final = Path(__file__).parents[1]
_SOURCES: Final = ("transporter", "adaptors/transporter_adaptors", "pyspark_transporter")
_INTRODUCTION: Final = """\
# Where is what

<!-- Written by `make docs` from the docstrings of the modules. Do not edit. -->

Every module, by package. [DESIGN.md](../DESIGN.md) explains how they work together.
"""


def page() -> str:
    """Return the text of the page."""
    modules = [path for source in _SOURCES for path in sorted((_ROOT / source).rglob("*.py"))]
    modules.sort(key=lambda path: (_SOURCES.index(_source(path)), path.parent, path.name))
    sections = (_section(folder, list(found)) for folder, found in groupby(modules, _folder))
    return _INTRODUCTION + "".join(sections)


def _source(path: Path) -> str:
    return next(each for each in _SOURCES if path.is_relative_to(_ROOT / each))


def _folder(path: Path) -> Path:
    return path.parent


def _section(folder: Path, modules: list[Path]) -> str:
    about = next((_summary(each) for each in modules if each.name == "__init__.py"), "")
    rows = "".join(_rows(modules))
    table = f"\n| module | holds |\n|---|---|\n{rows}" if rows else ""
    return f"\n## `{folder.relative_to(_ROOT)}`\n\n{about}\n{table}"


def _rows(modules: list[Path]) -> Iterator[str]:
    for each in modules:
        if each.name != "__init__.py":
            link = f"[`{each.name}`](../{each.relative_to(_ROOT)})"
            yield f"| {link} | {_summary(each)} |\n"


def _summary(path: Path) -> str:
    """Return the first paragraph's first sentence of a module's docstring, as Markdown."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    line = " ".join(text.partition("\n\n")[0].split())
    plain = re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", line.replace("``", "`"))
    return plain.replace("|", "\\|")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
