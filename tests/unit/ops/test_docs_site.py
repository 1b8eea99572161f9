"""The documentation site, the pages that are generated for it, and the man page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

ROOT = Path(__file__).parents[3]
WHOLE = """\
# A page

```{toctree}
other
```

[Another](other.md#its-heading), [a file](conf.py) and [this page](#a-page).
"""
OTHER = "# Its heading\n\nText.\n"


def build(folder: Path, page: str) -> subprocess.CompletedProcess[str]:
    """Build a site of two pages with the settings of ours, and warnings as errors."""
    docs = folder / "docs"
    shutil.copytree(ROOT / "docs" / "_templates", docs / "_templates")
    shutil.copy(ROOT / "docs" / "conf.py", docs)
    (docs / "index.md").write_text(page)
    (docs / "other.md").write_text(OTHER)
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "dummy", "-c", docs, folder, "out"],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_whole_links_build(tmp_path: Path) -> None:
    """Links to a page, a heading, a file and the same page are accepted."""
    done = build(tmp_path, WHOLE)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("link", "dead"),
    [
        ("other.md#its-heading", "gone.md"),
        ("other.md#its-heading", "other.md#gone"),
        ("#a-page", "#gone"),
        ("conf.py", "gone.py"),
    ],
)
def test_a_dead_link_fails_the_build(tmp_path: Path, link: str, dead: str) -> None:
    """A page, heading or file that is not there is named, and the build fails."""
    done = build(tmp_path, WHOLE.replace(f"({link})", f"({dead})"))
    assert done.returncode == 1
    assert "index.md:7" in done.stderr
    assert "gone" in done.stderr


def test_a_page_outside_the_navigation_fails_the_build(tmp_path: Path) -> None:
    """Every page is reachable from the navigation."""
    done = build(tmp_path, WHOLE.replace("other\n```", "```"))
    assert done.returncode == 1
    assert "other.md" in done.stderr


def test_the_settings_of_adaptors_are_up_to_date(script: Callable[[str], ModuleType]) -> None:
    """The page equals the output of the generator."""
    page = ROOT / "docs" / "reference" / "adaptor-settings.md"
    generator = script("adaptor_settings_page")
    assert page.read_text(encoding="utf-8") == generator.page(), "run 'make docs'"


def test_the_man_page_is_up_to_date(tmp_path: Path) -> None:
    """The man page has what ``make docs`` writes, and every command."""
    written = tmp_path / "transporter.1"
    subprocess.run([sys.executable, ROOT / "ops" / "man_page.py", written], check=True)
    text = written.read_text()
    assert (ROOT / "docs" / "transporter.1").read_text() == text, "run 'make docs'"
    assert text.count("\n.SH ") + text.count("\n.SS ") > 60
    assert "transporter log repair" in text


def test_the_figures_of_the_comparison_are_those_of_the_benchmarks() -> None:
    """Each figure, its benchmark and the day of the run are in docs/benchmarks.md."""
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    figures = page.partition("## Figures")[2].partition("\n## ")[0]
    (day,) = re.findall(r"run on (\S+) on a machine", figures)
    assert f"- {day} " in benchmarks
    rows = [row.split("|")[2:-1] for row in figures.splitlines() if row.startswith("| ")][1:]
    assert len(rows) > 5
    for *cells, name in rows:
        section = benchmarks.partition(f"\n## {name.strip(' `')}\n")[2].partition("\n## ")[0]
        numbers = re.findall(r"\d[\d .]*\d", " ".join(cells))
        assert numbers
        assert [each for each in numbers if each not in section] == []
