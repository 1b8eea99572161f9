"""The conversions of docs/migrating, executed as their pages say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from page_tools import followed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("page", "sections"),
    [
        ("migrating/goharvest.md", ["Convert the file", "Check it"]),
        ("migrating/compose-transporter.md", ["Convert the file"]),
    ],
)
def test_a_file_is_converted(tmp_path: Path, page: str, sections: list[str]) -> None:
    """Each command has the output of the page, and no password is in any file but the old one."""
    with followed(page, tmp_path) as following:
        for each in sections:
            following.run(each)
    new = [each for each in tmp_path.iterdir() if each.name in ("orders.yaml", "shop.yaml")]
    assert len(new) == 1
    assert "secret" not in new[0].read_text()
