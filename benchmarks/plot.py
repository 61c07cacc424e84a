"""Figures as a picture, a bar for each rate and each time: the only door to matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import Figure as Found
from benchmarks.figures import written
from taskqueue.errors import ConfigError

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as missing:
    raise ConfigError(
        f"--plot needs matplotlib ({missing}): install it with `pip install 'taskqueue-jobs[test]'`"
    ) from missing

COLOURS: Mapping[str, str] = {
    "W1": "#4477aa",
    "W2": "#228833",
    "W3": "#ee6677",
    "W4": "#aa3377",
    "W5": "#ccbb44",
    "W6": "#66ccee",
    "W7": "#999999",
}
"""A colour for each workload that people with any colour vision can tell apart (Paul Tol, bright)."""

UNITS = ("jobs/s", "ms")
"""Units that are drawn; each workload has figures of one of them."""

WIDTH, BAR, HEAD = 9.0, 0.28, 0.9
"""Inches: the picture's width, the height of a bar, and that of a panel without its bars."""


def draw(figures: Sequence[Found], title: str, file: Path) -> None:
    """Write the medians as an SVG file, rates above times. Raises ``ConfigError`` if it cannot be written."""
    panels = {unit: [figure for figure in figures if figure.unit == unit] for unit in UNITS}
    panels = {unit: found for unit, found in panels.items() if found}
    heights = [HEAD + BAR * len(panel) for panel in panels.values()]
    with rc_context(
        {"svg.hashsalt": "taskqueue", "svg.fonttype": "none", "font.size": 9}
    ):  # the same figures make the same file
        picture = Figure(figsize=(WIDTH, sum(heights) + 0.4), layout="constrained")
        picture.suptitle(title)
        axes = picture.subplots(len(panels), squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        for panel, (unit, found) in zip(axes, panels.items(), strict=True):
            _fill(panel, unit, found)
        try:
            picture.savefig(file, format="svg", metadata={"Date": None})
        except OSError as error:
            raise ConfigError(f"{file} cannot be written ({error.strerror}): pass another file to --plot") from None


def _fill(panel: Axes, unit: str, figures: Sequence[Found]) -> None:
    """Draw one bar for each figure, the first on top, with its value and the range of its rounds."""
    medians = [figure.median for figure in figures]
    spread = [
        [median - min(figure.values) for median, figure in zip(medians, figures, strict=True)],
        [max(figure.values) - median for median, figure in zip(medians, figures, strict=True)],
    ]
    names = [f"{figure.workload}  {figure.name}" for figure in figures]
    bars = panel.barh(
        names, medians, color=[COLOURS[figure.workload] for figure in figures], xerr=spread, ecolor="#555"
    )
    panel.bar_label(bars, [f" {written(median)}" for median in medians], padding=3)
    if min(medians) > 0 and max(medians) > 20 * min(medians):
        panel.set_xscale("log")
    panel.invert_yaxis()
    panel.margins(x=0.15, y=0.6 / len(figures))
    panel.set_xlabel(unit)
    panel.spines[["top", "right"]].set_visible(False)
