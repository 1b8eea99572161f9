"""The pictures of a run's sections."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from benchmarks.figures import OURS, Aim, Comparison, Curve, Section
from benchmarks.plots import draw

if TYPE_CHECKING:
    from pathlib import Path

FOUND = (
    Comparison("take", "a poller", "rows/s", (900.0, 1100.0), (2000.0, 2200.0)),
    Comparison("mark", "a poller", "rows/s", (2000.0,), (1000.0,), Aim(1.2, at_least=True)),
    Comparison("reopen", "a tail", "s", (0.9,), (0.3,), Aim(0.5, at_least=False, figure=OURS)),
)
CURVES = tuple(Curve(f"curve {n}", "entries; all", ((10, 0.1), (1000, 9.0))) for n in range(4))


def texts(path: Path) -> str:
    """Return the texts of a picture."""
    return " ".join(each.strip() for each in ET.parse(path).getroot().itertext() if each.strip())  # noqa: S314 - ours


def test_a_picture_names_both_sides_and_their_figures(tmp_path: Path) -> None:
    """Each comparison has its subject, its rival and both medians."""
    path = tmp_path / "one.svg"
    draw(Section("one", "How.", FOUND), path)
    shown = texts(path)
    for text in ("take", "against a poller", "1 000 : 2 100 rows/s", "0.900 : 0.300 s"):
        assert text in shown


def test_curves_are_drawn_with_their_slopes(tmp_path: Path) -> None:
    """Each curve has its name, its slope and the unit of its sizes."""
    path = tmp_path / "growth.svg"
    draw(Section("growth", "How.", FOUND, curves=CURVES), path)
    shown = texts(path)
    for each in CURVES:
        assert f"{each.what}: slope 0.977" in shown
    assert "entries" in shown
    assert "against a poller" not in shown


def test_the_same_results_give_the_same_file(tmp_path: Path) -> None:
    """A run that found the same changes nothing in the repository."""
    for name in ("a", "b"):
        draw(Section("one", "How.", FOUND), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
