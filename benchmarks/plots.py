"""``python -m benchmarks.plots RESULTS FOLDER``: a picture of each section, as SVG.

Runs in an environment of its own (`make plots`), because Matplotlib brings numpy. Arrow loads
that wherever it is, and the measured processes would take more memory than with users.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from benchmarks.figures import RATIO, Aim, Comparison, Curve, Section, Spread
from benchmarks.report import number, plot_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

_STYLE: Final = {
    "svg.fonttype": "none",  # Text stays text, which is small and can be searched.
    "svg.hashsalt": "transporter",  # The same results give the same file.
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_OURS: Final = {True: "#1a7f4b", False: "#c2571a", None: "#2f6db5"}
"""Colours of our side: the aim is reached, it is missed, there is none."""
_THEIRS: Final = "#8c8c8c"
_ROW_INCHES: Final = 0.55
_WIDE: Final = 3
"""Curves beside one another."""


def main(arguments: Sequence[str]) -> int:
    """Draw the sections of the results in the first of *arguments* into the folder of the second.

    Pictures of sections that are not there any more are removed.
    """
    results, folder = map(Path, arguments)
    sections = [*map(read_section, json.loads(results.read_text(encoding="utf-8"))["sections"])]
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    for section in sections:
        draw(section, folder / plot_name(section))
    return 0


def read_section(found: dict[str, Any]) -> Section:
    """Return the section that was written as the JSON object *found*."""
    compared = tuple(
        Comparison(**{**each, "aim": Aim(**each["aim"]) if each["aim"] else None})
        for each in found["comparisons"]
    )
    curves = tuple(Curve(**each) for each in found["curves"])
    return Section(**{**found, "comparisons": compared, "curves": curves})


def draw(section: Section, path: Path) -> None:
    """Write the picture of *section* to *path*."""
    with mpl.rc_context(_STYLE):
        figure = _curves(section.curves) if section.curves else _comparisons(section.comparisons)
        figure.savefig(path, format="svg", metadata={"Date": None}, bbox_inches="tight")


def _comparisons(found: tuple[Comparison, ...]) -> Figure:
    """Draw both sides of each comparison with their spread, as multiples of the rival's median."""
    figure = Figure(figsize=(8, 0.9 + _ROW_INCHES * len(found)))
    axes = figure.subplots()
    for row, comparison in enumerate(found):
        _draw_comparison(axes, row, comparison)
    axes.set_xscale("log")
    axes.axvline(1, color=_THEIRS, linewidth=0.8, zorder=0)
    axes.set_yticks(
        range(len(found)), [f"{each.subject}\nagainst {each.rival}" for each in found], fontsize=8
    )
    axes.set_ylim(len(found) - 0.4, -0.6)
    # Decades alone would often leave one label, or none.
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel(
        "ours over the rival's median (grey). A tick with an arrow is an aim: > at least"
    )
    axes.grid(axis="x", color="#e4e4e4", zorder=-1)
    return figure


def _draw_comparison(axes: Axes, row: int, comparison: Comparison) -> None:
    theirs, ours = Spread.of(comparison.theirs), comparison.ratio
    colour = _OURS[comparison.is_reached]
    for y, spread, unit, shade in (
        (row + 0.13, theirs, theirs.median, _THEIRS),
        (row - 0.13, ours, 1.0, colour),
    ):
        axes.plot([spread.low / unit, spread.high / unit], [y, y], color=shade, linewidth=2.5)
        axes.plot(spread.median / unit, y, "o", color=shade, markersize=5)
    if (aim := comparison.aim) is not None:
        at = aim.limit if aim.figure == RATIO else aim.limit / theirs.median
        axes.plot([at, at], [row - 0.32, row + 0.06], color=colour, linewidth=1.2)
        axes.plot(at, row - 0.32, ">" if aim.at_least else "<", color=colour, markersize=5)
    figures = f"{number(Spread.of(comparison.ours).median)} : {number(theirs.median)}"
    axes.annotate(
        f"{figures} {comparison.unit}".strip(),
        (1.01, row),
        xycoords=("axes fraction", "data"),
        verticalalignment="center",
        fontsize=8,
    )


def _curves(found: tuple[Curve, ...]) -> Figure:
    """Draw the time of each curve against its size, and the line that a linear one would follow."""
    rows = -(-len(found) // _WIDE)
    figure = Figure(figsize=(9, 2.3 * rows), layout="constrained")
    every = figure.subplots(rows, _WIDE, squeeze=False).flat
    for curve, axes in zip(found, every, strict=False):
        sizes, seconds = zip(*curve.points, strict=True)
        times = [1000 * each for each in seconds]
        axes.plot(sizes, times, "o-", color=_OURS[None], markersize=4)
        linear = [times[0] * size / sizes[0] for size in sizes]
        axes.plot(sizes, linear, "--", color=_THEIRS, linewidth=0.8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(f"{curve.what}: slope {number(curve.slope)}", fontsize=9)
        axes.set_xlabel(curve.unit.partition(";")[0], fontsize=8)
        axes.set_ylabel("ms", fontsize=8)
    for axes in list(every):
        axes.set_axis_off()
    return figure


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
