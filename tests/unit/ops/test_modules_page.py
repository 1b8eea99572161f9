"""docs/modules.md as ``make docs`` writes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "modules.md"


@pytest.fixture(name="generator")
def _generator(script: Callable[[str], ModuleType]) -> ModuleType:
    """Return the imported script."""
    return script("modules_page")


def test_the_page_is_up_to_date(generator: ModuleType) -> None:
    """The page equals the output of the generator."""
    assert PAGE.read_text(encoding="utf-8") == generator.page(), "run 'make docs'"


def test_every_module_is_linked_once_with_a_sentence() -> None:
    """Links lead to files that exist, and every row has an explanation."""
    rows = re.findall(
        r"^\| \[`\w+\.py`\]\(\.\./(\S+)\) \| (.*) \|$", PAGE.read_text(), re.MULTILINE
    )
    links = [link for link, _ in rows]
    assert len(links) == len(set(links)) > 300
    assert all((ROOT / link).is_file() for link in links)
    assert all(text.strip() for _, text in rows)
