"""docs/adaptors.md shows the adaptor that ``transporter init adaptor`` makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from transporter.starting.adaptors import adaptor_package
from transporter.testing import contracts

PAGE = (Path(__file__).parents[3] / "docs" / "adaptors.md").read_text()


@pytest.mark.parametrize("name", ["my_sink.py", "test_my_sink.py"])
def test_the_page_shows_what_is_made(name: str) -> None:
    """The code on the page is the code of the package, to the letter."""
    assert f"```python\n{adaptor_package('my-sink')[name]}```" in PAGE


def test_the_page_names_every_contract() -> None:
    """Each contract that is shipped stands in the table."""
    named = {name for name in vars(contracts) if name.endswith("Contract")}
    assert named
    assert all(f"| `{name}` |" in PAGE for name in named)
