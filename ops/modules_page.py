# ruff: noqa: INP001 - a script beside the page that it writes
"""Generator of ``docs/modules.md``, the table of modules, from their docstrings (``make docs``).

Usage: ``python ops/modules_page.py docs/modules.md``
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[1]
_SOURCES: Final = ("transporter", "adaptors/transporter_adaptors", "pyspark_transporter")
_INTRODUCTION: Final = """\
# Where is what

<!-- Written by `make docs` from the docstrings of the modules. Do not edit. -->

Every module, by package. [DESIGN.md](../DESIGN.md) explains how they work together.
"""


def page() -> str:
    """Return the text of the page."""
    return _INTRODUCTION + "".join(
        _section(folder, sorted(folder.glob("*.py")))
        for source in _SOURCES
        for folder in sorted({path.parent for path in (_ROOT / source).rglob("*.py")})
    )


def _section(folder: Path, modules: list[Path]) -> str:
    about = "".join(_summary(each) for each in modules if each.name == "__init__.py")
    rows = "".join(
        f"| [`{each.name}`](../{each.relative_to(_ROOT)}) | {_summary(each)} |\n"
        for each in modules
        if each.name != "__init__.py"
    )
    table = f"\n| module | holds |\n|---|---|\n{rows}" if rows else ""
    return f"\n## `{folder.relative_to(_ROOT)}`\n\n{about}\n{table}"


def _summary(path: Path) -> str:
    """Return the first paragraph of a module's docstring as one line of Markdown."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    line = " ".join(text.partition("\n\n")[0].split())
    plain = re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", line.replace("``", "`"))
    return plain.replace("|", "\\|")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
