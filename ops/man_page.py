# ruff: noqa: INP001 - a script beside the page that it writes
"""Generator of the man page ``docs/transporter.1`` from ``docs/cli.md`` (``make docs``).

The wheel installs it into ``share/man/man1``. It is in the repository because a wheel is also
built where Sphinx is not installed.

Usage: ``python ops/man_page.py docs/transporter.1``
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from sphinx.cmd.build import build_main

_ROOT: Final = Path(__file__).parents[1]
_PAGE: Final = "docs/cli"


def write(target: Path) -> None:
    """Write the man page to *target*.

    Raises:
        SystemExit: If Sphinx warns of anything.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Without the other pages it takes a second.
        alone = ["-D", f"root_doc={_PAGE}", "-D", f"include_patterns={_PAGE}.md"]
        options = ["-q", "-W", "-b", "man", "-d", f"{folder}/doctrees", "-c", str(_ROOT / "docs")]
        if code := build_main([*options, *alone, str(_ROOT), folder]):
            raise SystemExit(code)
        shutil.copyfile(Path(folder, "transporter.1"), target)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
