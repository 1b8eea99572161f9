"""docs/cli.md as ``make docs`` writes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "cli.md"


@pytest.fixture(name="generator")
def _generator(script: Callable[[str], ModuleType]) -> ModuleType:
    """Return the imported script."""
    return script("cli_page")


def test_the_page_is_up_to_date(generator: ModuleType) -> None:
    """The page equals the output of the generator."""
    assert PAGE.read_text(encoding="utf-8") == generator.page(), "run 'make docs'"


def test_every_link_of_the_contents_has_its_section() -> None:
    """The table of contents and the sections agree, in the same order."""
    text = PAGE.read_text(encoding="utf-8")
    links = re.findall(r"^ *\* \[`([a-z -]+)`\]\(#([a-z-]+)\): ", text, re.MULTILINE)
    assert [path for path, _ in links] == re.findall(r"^##+ `([a-z -]+)`$", text, re.MULTILINE)
    assert all(anchor == path.replace(" ", "-") for path, anchor in links)


def test_every_example_is_code() -> None:
    """No example is left in a description, and no marker of click is in the page."""
    text = PAGE.read_text(encoding="utf-8")
    assert "\b" not in text
    assert not re.search(r"^Examples?:", text, re.MULTILINE)
    assert text.count("```console\n$ transporter") > text.count("**Usage**") > 0
