"""References between documents, and from the code to documents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[3]
OURS: Final = ("transporter", "adaptors", "pyspark_transporter", "benchmarks", "ops", "tests")
DOCUMENTS: Final = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("adaptors/**/*.md"),
        *ROOT.glob(".github/**/*.md"),
    ]
)
LINK: Final = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)")
MENTION: Final = re.compile(r'((?:docs/[\w/-]+|DESIGN|SECURITY|CONTRIBUTING)\.md)(?:, "([^"]+)")?')


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _headings(document: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE)


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _broken(document: Path) -> Iterator[str]:
    for target, anchor in LINK.findall(document.read_text()):
        file = (document.parent / target).resolve() if target else document
        if not file.exists():
            yield f"{target}: no such file"
        elif anchor and anchor not in map(_anchor, _headings(file)):
            yield f"{target}#{anchor}: no such heading"


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_links_lead_to_files_and_headings(document: Path) -> None:
    """A relative link names a file that exists and, behind ``#``, one of its headings."""
    assert list(_broken(document)) == []


def test_modules_refer_to_headings_that_exist() -> None:
    """``DESIGN.md, "Invariants"`` in a docstring or comment names a heading, without its number."""
    mentions = [
        (_name(module), *mention)
        for folder in OURS
        for module in (ROOT / folder).rglob("*.py")
        if module != Path(__file__)
        for mention in MENTION.findall(re.sub(r"\s*\n\s*(?:# )?", " ", module.read_text()))
    ]
    assert len(mentions) > 10
    for module, document, heading in mentions:
        assert (ROOT / document).is_file(), (module, document)
        headings = [re.sub(r"^\d+\. ", "", each) for each in _headings(ROOT / document)]
        assert not heading or heading in headings, (module, document, heading)
