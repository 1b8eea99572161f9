"""The references of SECURITY.md and docs/hardening.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/hardening.md"])
def test_what_a_page_names_is_there(page: str) -> None:
    """Each named test, each linked page and each linked part of a page exists."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = [ROOT / each for each in re.findall(r"`((?:tests|transporter)/[\w/.]+)`", text)]
    links = [each.partition("#") for each in re.findall(r"\]\(([^)]+)\)", text)]
    assert named or page != "SECURITY.md"
    assert links
    for place in named:
        assert place.exists(), place
    for path, _, part in links:
        place = (ROOT / page).parent / path if path else ROOT / page
        assert place.exists(), path
        heads = re.findall(r"^#+ (.+)$", place.read_text(encoding="utf-8"), re.MULTILINE)
        known = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
        assert not part or part in known, part
