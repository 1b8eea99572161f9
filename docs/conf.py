# ruff: noqa: INP001 - Sphinx reads it by its path
"""Settings of Sphinx: the site and the man page, from the Markdown files where they are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pygments.lexers.data import JsonLexer
from pygments.lexers.special import TextLexer
from pygments.lexers.sql import PostgresLexer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "adaptors")]

project = "transporter"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# The source folder is the repository's root, so that links between all pages stay as they are.
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "adaptors/transporter_adaptors/*/README.md"]
exclude_patterns = ["docs/conf.py", "docs/_templates"]

# Anchors are those of GitHub, also below the third level.
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "transporter"
templates_path = ["_templates"]
html_additional_pages = {"index": "redirect.html"}
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False

man_pages = [("docs/cli", "transporter", "durable commit-log pipeline engine", "", 1)]
# The man page is in the repository. It changes with the commands only, not with the day.
today = " "


def setup(app: Sphinx) -> None:
    """Add the languages that GitHub highlights under these names and Pygments does not."""
    app.add_lexer("jsonl", JsonLexer)
    app.add_lexer("mermaid", TextLexer)
    app.add_lexer("sql", PostgresLexer)
