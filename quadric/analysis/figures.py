"""The paper's figures from any set of runs: one function per figure, each returns a Figure.

    efficiency(results)   Fig. 4: score against parameters and against MACs, one line per neuron
    neurons(results)      Fig. 5: neurons compared, in score, parameters and MACs
    stability(results)    Fig. 6: curves of training and test, a cross where a run diverged
    laws(results)         error against parameters, one panel per law or table

`results` are run directories, result files or results that were read already. The figures of one
analysis (Figs. 7 and 8) are in `quadric.analysis.analysis_figures` and can be called here, too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from quadric.analysis.analysis_figures import couplings as couplings
from quadric.analysis.analysis_figures import distribution as distribution
from quadric.analysis.analysis_figures import eigenvectors as eigenvectors
from quadric.analysis.analysis_figures import frequencies as frequencies
from quadric.analysis.analysis_figures import responses as responses
from quadric.analysis.style import (
    COLUMN,
    PAGE,
    curve_label,
    drawn,
    legend_above,
    line_styles,
    neuron_styles,
    new_figure,
    number_axis,
    score_label,
)
from quadric.errors import InputError
from quadric.runs.groups import RunGroup, in_lines
from quadric.runs.reading import RunResult, read_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COSTS = (("params", "parameters"), ("macs", "MACs per input"))


def _read(results: Iterable[Any]) -> list[RunResult]:
    runs, notes = read_runs(results)
    for note in notes:
        warnings.warn(note, stacklevel=4)
    return runs


def _by_panel(groups: Sequence[RunGroup]) -> dict[str, list[RunGroup]]:
    """The groups of each data set."""
    panels: dict[str, list[RunGroup]] = {}
    for each in groups:
        panels.setdefault(each.dataset, []).append(each)
    return panels


def _line_styles(groups: Sequence[RunGroup]) -> dict[str, dict[str, Any]]:
    return line_styles([(each.first.neuron, each.line) for each in groups])


@drawn
def efficiency(results: Iterable[Any], width: float = COLUMN) -> Figure:
    """Score against cost: one line per neuron, error bars over seeds (the paper's Fig. 4).

    Args:
        results: runs; each data set has a row of its own.
        width: the width of the figure in inches.

    Returns:
        The figure.
    """
    groups = in_lines(_read(results))
    panels, styles = _by_panel(groups), _line_styles(groups)
    figure = new_figure(width, 0.5 + 1.65 * len(panels))
    axes = figure.subplots(len(panels), 2, squeeze=False, sharey="row")
    for row, (dataset, alike) in zip(axes, panels.items(), strict=True):
        for axis, (key, label) in zip(row, COSTS, strict=True):
            _against_cost(axis, alike, key, label, styles)
        row[0].set_ylabel(score_label(alike[0].first))
        row[0].set_title(dataset, loc="left")
    legend_above(figure, axes.flat)
    return figure


def _against_cost(
    axis: Axes, groups: Sequence[RunGroup], key: str, label: str, styles: dict[str, dict[str, Any]]
) -> None:
    """One panel: a line for each neuron through its groups, from small to large."""
    known = [each for each in groups if getattr(each.first, key) is not None]
    for line in dict.fromkeys(each.line for each in known if each.mean is not None):
        of_line = [each for each in known if each.line == line and each.mean is not None]
        of_line.sort(key=lambda each: getattr(each.first, key))
        axis.errorbar(
            [getattr(each.first, key) for each in of_line],
            [float(each.mean or 0) for each in of_line],
            yerr=[each.std or 0 for each in of_line],
            capsize=1.5, elinewidth=0.7, **styles[line],
        )  # fmt: skip
    for each in known:
        if each.mean is None and each.diverged:  # nothing to show but that it diverged
            axis.plot([getattr(each.first, key)], [0.03], "x", color=styles[each.line]["color"],
                      transform=axis.get_xaxis_transform(), markersize=5,
                      label=f"{each.line}: diverged")  # fmt: skip
    if not known:
        axis.text(0.5, 0.5, f"no {label}\nin these results", transform=axis.transAxes, ha="center")
    number_axis(axis.xaxis, [getattr(each.first, key) for each in known], cost=True)
    if not groups[0].metric.higher_is_better:
        number_axis(axis.yaxis, [each.mean for each in known if each.mean is not None])
    axis.set_xlabel(label)
    axis.grid(True)


@drawn
def neurons(results: Iterable[Any], width: float = PAGE) -> Figure:
    """Neurons compared in score, parameters and MACs (the paper's Fig. 5).

    Args:
        results: runs; one row per network and neuron, data set by data set.
        width: the width of the figure in inches.

    Returns:
        The figure.
    """
    groups = in_lines(_read(results))
    panels = _by_panel(groups)
    colors = neuron_styles(each.first.neuron for each in groups)
    heights = [0.75 + 0.17 * len(alike) for alike in panels.values()]
    figure = new_figure(width, sum(heights))
    axes = figure.subplots(
        len(panels), 3, squeeze=False, sharey="row", height_ratios=heights, width_ratios=(3, 2, 2)
    )
    for row, (dataset, alike) in zip(axes, panels.items(), strict=True):
        _compared(row, sorted(alike, key=lambda g: (g.network, g.first.params or 0)), colors)
        row[0].set_title(dataset, loc="left")
    return figure


def _compared(
    row: Sequence[Axes], groups: Sequence[RunGroup], colors: dict[str, tuple[str, str]]
) -> None:
    """One data set: the scores of each group's seeds and their mean, and bars of what it costs."""
    score, *costs = row
    for place, each in enumerate(groups):
        color, marker = colors[each.first.neuron]
        score.plot(each.scores, [place] * len(each.scores), marker, color=color, alpha=0.4)
        if each.mean is not None:
            score.plot([each.mean], [place], "|", color=color, markersize=9, markeredgewidth=1.6)
        if each.diverged:
            text = f"× {each.diverged} of {len(each.runs)} diverged"
            score.text(0.99, place, text, ha="right", va="center", color=color, fontsize=6,
                       transform=score.get_yaxis_transform())  # fmt: skip
        for axis, (key, _) in zip(costs, COSTS, strict=True):
            value = getattr(each.first, key)
            if value is not None:
                axis.barh([place], [value], color=color, height=0.65)
    score.set_yticks(range(len(groups)), [f"{each.network}  {each.line}" for each in groups])
    score.set_ylim(max(len(groups), 2) - 0.5, -0.5)
    score.set_xlabel(f"{score_label(groups[0].first)}\n(each seed, and the mean)")
    for axis, (_, label) in zip(costs, COSTS, strict=True):
        axis.set_xlabel(label)
        axis.tick_params(axis="y", length=0)
        number_axis(axis.xaxis, [], cost=True)
    if not groups[0].metric.higher_is_better:
        number_axis(score.xaxis, [value for each in groups for value in each.scores])
    for axis in row:
        axis.grid(axis="x")
        axis.set_axisbelow(True)


@drawn
def stability(results: Iterable[Any], width: float = PAGE) -> Figure:
    """Curves of training and test, with a cross where a run diverged (the paper's Fig. 6).

    Args:
        results: runs; each data set has a row of its own.
        width: the width of the figure in inches.

    Returns:
        The figure.

    Raises:
        InputError: if no run has recorded its epochs.
    """
    groups = in_lines([run for run in _read(results) if run.epochs])
    if not groups:
        raise InputError("no run has recorded its epochs: there is no curve to draw")
    panels, styles = _by_panel(groups), _line_styles(groups)
    figure = new_figure(width, 0.5 + 1.9 * len(panels))
    axes = figure.subplots(len(panels), 2, squeeze=False)
    for row, (dataset, alike) in zip(axes, panels.items(), strict=True):
        runs = [run for each in alike for run in each.runs]
        for axis, what in zip(row, ("score", "loss"), strict=True):
            for each in alike:
                for run in each.runs:
                    _curves(axis, run, what, styles[each.line])
            axis.set_xlabel("epoch")
            axis.grid(True)
            axis.locator_params(axis="x", integer=True)
            _scale(axis, runs, what)
        row[0].set_ylabel(curve_label(runs[0]))
        row[1].set_ylabel("loss")
        row[0].set_title(f"{dataset}: test solid, training dotted", loc="left")
    legend_above(figure, axes.flat, columns=5)
    return figure


def _scale(axis: Axes, runs: Sequence[RunResult], what: str) -> None:
    """Losses and errors on a logarithmic axis; whole epochs even where there is only one."""
    if what == "loss" or not runs[0].curve_metric.higher_is_better:
        curves = [run.curve(part, what) for run in runs for part in ("train", "test")]
        number_axis(axis.yaxis, [y for points in curves for _, y in points if y])
    if max(len(run.epochs) for run in runs) == 1:
        axis.set_xticks([1])


def _curves(axis: Axes, run: RunResult, what: str, style: dict[str, Any]) -> None:
    """The two curves of one run; where it diverged, a cross at its last finite point."""
    color, last = style["color"], None
    for part, dashes, alpha in (("train", ":", 0.6), ("test", "-", 0.9)):
        points = run.curve(part, what)
        finite = [(x, y) for x, y in points if y is not None]
        if not finite:
            continue
        label = style["label"] if part == "test" else None
        # A gap where a value was not finite.
        values = [math.nan if y is None else y for _, y in points]
        axis.plot([x for x, _ in points], values, dashes, color=color, alpha=alpha, linewidth=0.8,
                  label=label)  # fmt: skip
        last = finite[-1]
    if run.diverged:
        x, y = last or (1, None)
        place: dict[str, Any] = {"transform": axis.get_xaxis_transform()} if y is None else {}
        axis.plot([x], [0.5 if y is None else y], "x", color=color, markersize=6,
                  markeredgewidth=1.5, label=f"{style['label']}: diverged", **place)  # fmt: skip
    elif last is not None:
        axis.plot([last[0]], [last[1]], "o", color=color, markersize=2.5)


@drawn
def laws(results: Iterable[Any], width: float = PAGE) -> Figure:
    """Error against parameters, one panel for each law or table.

    Args:
        results: runs; those that are not judged by an error are left out.
        width: the width of the figure in inches.

    Returns:
        The figure.

    Raises:
        InputError: if no run has learned a law or a table.
    """
    groups = in_lines([run for run in _read(results) if not run.metric.higher_is_better])
    if not groups:
        raise InputError("no run has learned a law or a table: train one, such as law-lorentz")
    panels, styles = _by_panel(groups), _line_styles(groups)
    most = max(1, int(width / 1.75))
    columns = min(len(panels), most)
    rows = -(-len(panels) // columns)
    figure = new_figure(max(width * columns / most, 2.4), 0.5 + 1.65 * rows)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis, (dataset, alike) in zip(axes.flat, panels.items(), strict=False):
        _against_cost(axis, alike, "params", "parameters", styles)
        axis.set_title(dataset, loc="left")
        axis.set_ylabel(score_label(alike[0].first))
    for axis in list(axes.flat)[len(panels) :]:
        axis.remove()
    legend_above(figure, axes.flat, columns=5)
    return figure


OF_RUNS: dict[str, Callable[..., Figure]] = {
    "efficiency": efficiency,
    "neurons": neurons,
    "stability": stability,
    "laws": laws,
}
"""The figures of a set of runs, by name."""
OF_ANALYSES: dict[str, Callable[..., Figure]] = {
    "distribution": distribution,
    "responses": responses,
    "frequencies": frequencies,
    "couplings": couplings,
}
"""The figures of one analysis, by name."""
