"""The pictures of the benchmarks' page, drawn in their own environment as `make plots` does."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.figures import OURS, Aim, Comparison, Curve, Section

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).parents[2]
FOUND = (
    Comparison("take", "a poller", "rows/s", (900.0, 1100.0), (2000.0, 2200.0)),
    Comparison("mark", "a poller", "rows/s", (2000.0,), (1000.0,), Aim(1.2, at_least=True)),
    Comparison("reopen", "a tail", "s", (0.9,), (0.3,), Aim(0.5, at_least=False, figure=OURS)),
)
CURVES = tuple(Curve(f"curve {n}", "entries; all", ((10, 0.1), (1000, 9.0))) for n in range(4))


def draw(folder: Path, *sections: Section) -> None:
    """Draw *sections* into *folder*."""
    results = folder.with_suffix(".json")
    results.write_text(json.dumps({"sections": [asdict(each) for each in sections]}))
    make = shutil.which("make") or "make"
    command = [make, "plots", f"RESULTS={results}", f"PLOTS={folder}"]
    subprocess.run(command, cwd=ROOT, check=True)


def texts(path: Path) -> str:
    """Return the texts of a picture."""
    return " ".join(each.strip() for each in ET.parse(path).getroot().itertext() if each.strip())  # noqa: S314 - ours


def test_pictures_show_both_sides_and_curves_and_are_the_same_again(tmp_path: Path) -> None:
    """Each comparison has both medians, each curve its slope; a second run changes nothing."""
    one, two = tmp_path / "one", tmp_path / "two"
    growth = Section("growth", "How.", FOUND, curves=CURVES)
    draw(one, Section("latency", "How.", FOUND), growth)
    (two / "gone.svg").parent.mkdir()
    (two / "gone.svg").touch()
    draw(two, Section("latency", "How.", FOUND), growth)
    shown = texts(one / "latency.svg")
    for text in ("take", "against a poller", "1 000 : 2 100 rows/s", "0.900 : 0.300 s"):
        assert text in shown
    curves = texts(one / "growth.svg")
    for each in CURVES:
        assert f"{each.what}: slope 0.977" in curves
    assert "entries" in curves
    assert "against a poller" not in curves
    pictures = {path.name: path.read_bytes() for path in one.iterdir()}
    assert pictures == {path.name: path.read_bytes() for path in two.iterdir()}
    assert sorted(pictures) == ["growth.svg", "latency.svg"]
