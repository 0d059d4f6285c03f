"""How figures look: one color and marker for each neuron, in every figure and on the page.

The colors are those of Okabe and Ito and of Paul Tol's muted scheme, which readers with any kind of
color blindness can tell apart; markers and dashes say the same once more.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

from quadric.runs.reading import RunResult
from quadric.support.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Options = ParamSpec("Options")

COLUMN = 3.5
"""Inches of a column of a paper in two columns."""
PAGE = 7.16
"""Inches of both columns."""

RC: Any = {
    "font.size": 7,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    # A name with a dollar sign is a name.
    "text.parse_math": False,
    # Fonts as outlines that every printer and editor takes.
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "savefig.dpi": 300,
}
LINEAR, QUADRATIC = "#555555", "#0072B2"

_STYLES = (
    ("linear", "#555555", "o"),
    ("eigen", "#0072B2", "s"),
    ("shared", "#D55E00", "D"),
    ("fan", "#009E73", "^"),
    ("quadralib", "#CC79A7", "v"),
    ("kervolution", "#B37A00", "P"),
    ("square", "#56B4E9", "X"),
    ("symmetric", "#332288", "<"),
    ("general", "#117733", ">"),
    ("pure", "#882255", "p"),
    ("qres", "#44AA99", "h"),
    ("lowrank", "#999933", "*"),
    ("quadenhancer", "#CC6677", "d"),
    ("bilinear", "#AA4499", "8"),
    ("glu", "#6699CC", "H"),
    ("cross", "#661100", "o"),
)
_DASHES = ("-", "--", ":", "-.")


def neuron_styles(neurons: Iterable[str]) -> dict[str, tuple[str, str]]:
    """A color and a marker for each neuron; a neuron that is not known takes one that is free."""
    fixed = {name: (color, marker) for name, color, marker in _STYLES}
    names = list(dict.fromkeys(neurons))
    free = [style for name, *style in _STYLES if name not in names]
    strange = sorted(name for name in names if name not in fixed)
    others = {name: tuple(free[i % len(free)]) for i, name in enumerate(strange) if free}
    return {name: fixed.get(name) or others.get(name, _STYLES[0][1:]) for name in names}  # type: ignore[misc]


def line_styles(lines: Sequence[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """What matplotlib draws each line with."""
    base = neuron_styles(neuron for neuron, _ in lines)
    styles: dict[str, dict[str, Any]] = {}
    used: dict[str, int] = {}
    for neuron, name in lines:
        if name not in styles:
            place = used[neuron] = used.get(neuron, -1) + 1
            color, marker = base[neuron]
            dashes = _DASHES[place % len(_DASHES)]
            styles[name] = {"color": color, "marker": marker, "linestyle": dashes, "label": name}
    return styles


def drawn(function: Callable[Options, Figure]) -> Callable[Options, Figure]:
    """Draws a figure in our style; says which extra is missing."""

    @functools.wraps(function)
    def draw(*args: Options.args, **options: Options.kwargs) -> Figure:
        require("plots", f"quadric.analysis.figures.{function.__name__}")
        from matplotlib import rc_context

        with rc_context(RC):
            return function(*args, **options)

    return draw


def new_figure(width: float, height: float) -> Figure:
    """An empty figure that a notebook shows once, and that no list of open figures holds."""
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(width, height), layout="constrained")
    pyplot.close(figure)
    return figure


def number_axis(axis: Any, values: Sequence[float], *, cost: bool = False) -> None:
    """Makes an axis logarithmic where its numbers span more than a factor of four."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    shown = [value for value in values if value is not None]
    if shown and min(shown) > 0 and max(shown) > 4 * min(shown):
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        ratio = max(shown) / min(shown)
        subs = (1, 2, 5) if ratio < 15 else (1, 3) if ratio < 100 else (1,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=8))
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axis.axes.locator_params(axis=axis.axis_name, nbins=4)
    if cost:
        axis.set_major_formatter(EngFormatter(sep=""))


_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def unit_text(unit: str) -> str:
    """A unit as it is printed.

    Examples:
        >>> unit_text("N m^2 kg^-2"), unit_text("1")
        ('N m² kg⁻²', '')
    """
    if unit == "1":
        return ""
    return re.sub(r"\^(-?\d+)", lambda power: power[1].translate(_RAISED), unit)


def score_label(run: RunResult) -> str:
    """The score of runs with its unit, for an axis."""
    unit = unit_text(run.unit)
    return f"test {run.metric.label}" + (f" ({unit})" if unit else "")


def curve_label(run: RunResult) -> str:
    """What the curves of runs show beside the loss, for an axis."""
    own = run.curve_metric is run.metric
    return score_label(run).removeprefix("test ") if own else run.curve_metric.label


def legend_above(figure: Figure, axes: Iterable[Axes], columns: int = 3) -> None:
    """One legend for all panels, above them, so that it covers no data."""
    entries: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        longest = max(map(len, entries))
        columns = max(1, min(columns, len(entries), int(figure.get_figwidth() * 14 / longest)))
        figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=columns)
