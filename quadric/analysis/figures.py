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
from quadric.analysis.analysis_figures import frequencies as frequencies
from quadric.analysis.analysis_figures import responses as responses
from quadric.analysis.arms import Arm, arms
from quadric.analysis.reading import RunResult, by_dataset, curve, read
from quadric.analysis.style import (
    COLUMN,
    PAGE,
    RC,
    legend_above,
    line_styles,
    neuron_styles,
    new_figure,
    number_axis,
)
from quadric.errors import InputError
from quadric.support.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COSTS = (("params", "parameters"), ("macs", "MACs per input"))


def _prepared(results: Iterable[Any], who: str) -> list[RunResult]:
    require("plots", who)
    runs, notes = read(results)
    for note in notes:
        warnings.warn(note, stacklevel=3)
    return runs


def efficiency(results: Iterable[Any], width: float = COLUMN) -> Figure:
    """Score against cost: one line per neuron, error bars over seeds (the paper's Fig. 4).

    Args:
        results: runs; each data set has a row of its own.
        width: the width of the figure in inches.

    Returns:
        The figure.
    """
    from matplotlib import rc_context

    found = arms(_prepared(results, "efficiency"))
    datasets = list(dict.fromkeys(arm.dataset for arm in found))
    styles = line_styles([(arm.first.neuron, arm.line) for arm in found])
    with rc_context(RC):
        figure = new_figure(width, 0.5 + 1.65 * len(datasets))
        axes = figure.subplots(len(datasets), 2, squeeze=False, sharey="row")
        for row, dataset in zip(axes, datasets, strict=True):
            alike = [arm for arm in found if arm.dataset == dataset]
            for axis, (key, label) in zip(row, COSTS, strict=True):
                _against_cost(axis, alike, key, label, styles)
            row[0].set_ylabel(alike[0].first.score_label)
            row[0].set_title(dataset, loc="left")
        legend_above(figure, axes.flat)
    return figure


def _against_cost(
    axis: Axes, found: Sequence[Arm], key: str, label: str, styles: dict[str, dict[str, Any]]
) -> None:
    """One panel: a line for each neuron through its arms, from small to large."""
    known = [arm for arm in found if getattr(arm.first, key) is not None]
    for line in dict.fromkeys(arm.line for arm in known if arm.mean is not None):
        of_line = [arm for arm in known if arm.line == line and arm.mean is not None]
        of_line.sort(key=lambda arm: getattr(arm.first, key))
        axis.errorbar(
            [getattr(arm.first, key) for arm in of_line],
            [float(arm.mean or 0) for arm in of_line],
            yerr=[arm.std or 0 for arm in of_line],
            capsize=1.5,
            elinewidth=0.7,
            **styles[line],
        )
    for arm in known:
        if arm.mean is None and arm.diverged:  # nothing to show but that it diverged
            axis.plot(
                [getattr(arm.first, key)],
                [0.03],
                "x",
                color=styles[arm.line]["color"],
                transform=axis.get_xaxis_transform(),
                markersize=5,
                label=f"{arm.line}: diverged",
            )
    if not known:
        axis.text(0.5, 0.5, f"no {label}\nin these results", transform=axis.transAxes, ha="center")
    number_axis(axis.xaxis, [getattr(arm.first, key) for arm in known], cost=True)
    if found and not found[0].first.metric.higher_is_better:
        number_axis(axis.yaxis, [arm.mean for arm in known if arm.mean is not None])
    axis.set_xlabel(label)
    axis.grid(True)


def neurons(results: Iterable[Any], width: float = PAGE) -> Figure:
    """Neurons compared in score, parameters and MACs (the paper's Fig. 5).

    Args:
        results: runs; one row per network and neuron, data set by data set.
        width: the width of the figure in inches.

    Returns:
        The figure.
    """
    from matplotlib import rc_context

    found = arms(_prepared(results, "neurons"))
    datasets = list(dict.fromkeys(arm.dataset for arm in found))
    counts = [sum(arm.dataset == dataset for arm in found) for dataset in datasets]
    colors = neuron_styles(arm.first.neuron for arm in found)
    with rc_context(RC):
        figure = new_figure(width, sum(0.75 + 0.17 * count for count in counts))
        ratios = [0.75 + 0.17 * count for count in counts]
        axes = figure.subplots(
            len(datasets), 3, squeeze=False, sharey="row", height_ratios=ratios,
            width_ratios=(3, 2, 2),
        )  # fmt: skip
        for row, dataset in zip(axes, datasets, strict=True):
            alike = [arm for arm in found if arm.dataset == dataset]
            alike.sort(key=lambda arm: (arm.network, arm.first.params or 0))
            _compared(row, alike, colors)
            row[0].set_title(dataset, loc="left")
    return figure


def _compared(
    row: Sequence[Axes], found: Sequence[Arm], colors: dict[str, tuple[str, str]]
) -> None:
    """One data set: the scores of each arm's seeds and their mean, and bars of what it costs."""
    score, *costs = row
    for place, arm in enumerate(found):
        color, marker = colors[arm.first.neuron]
        score.plot(arm.scores, [place] * len(arm.scores), marker, color=color, alpha=0.4)
        if arm.mean is not None:
            score.plot([arm.mean], [place], "|", color=color, markersize=9, markeredgewidth=1.6)
        if arm.diverged:
            text = f"× {arm.diverged} of {len(arm.runs)} diverged"
            side: dict[str, Any] = {
                "transform": score.get_yaxis_transform(),
                "color": color,
                "fontsize": 6,
            }
            score.text(0.99, place, text, ha="right", va="center", **side)
        for axis, (key, _) in zip(costs, COSTS, strict=True):
            value = getattr(arm.first, key)
            if value is not None:
                axis.barh([place], [value], color=color, height=0.65)
    names = [f"{arm.network}  {arm.line}" for arm in found]
    score.set_yticks(range(len(found)), names)
    score.set_ylim(max(len(found), 2) - 0.5, -0.5)
    score.set_xlabel(f"{found[0].first.score_label}\n(each seed, and the mean)")
    for axis, (_, label) in zip(costs, COSTS, strict=True):
        axis.set_xlabel(label)
        axis.tick_params(axis="y", length=0)
        number_axis(axis.xaxis, [], cost=True)
    if not found[0].first.metric.higher_is_better:
        number_axis(score.xaxis, [value for arm in found for value in arm.scores])
    for axis in row:
        axis.grid(axis="x")
        axis.set_axisbelow(True)


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
    from matplotlib import rc_context

    runs = [run for run in _prepared(results, "stability") if run.epochs]
    if not runs:
        raise InputError("no run has recorded its epochs: there is no curve to draw")
    found = {id(run): arm.line for arm in arms(runs) for run in arm.runs}
    styles = line_styles([(run.neuron, found[id(run)]) for run in runs if id(run) in found])
    groups = by_dataset(runs)
    with rc_context(RC):
        figure = new_figure(width, 0.5 + 1.9 * len(groups))
        axes = figure.subplots(len(groups), 2, squeeze=False)
        for row, (dataset, alike) in zip(axes, groups.items(), strict=True):
            for axis, what in zip(row, ("score", "loss"), strict=True):
                for run in alike:
                    if id(run) in found:
                        _curves(axis, run, what, styles[found[id(run)]])
                axis.set_xlabel("epoch")
                axis.grid(True)
                axis.locator_params(axis="x", integer=True)
                _scaled(axis, alike, what)
            row[0].set_ylabel(alike[0].curve_label)
            row[1].set_ylabel("loss")
            row[0].set_title(f"{dataset}: test solid, training dotted", loc="left")
        legend_above(figure, axes.flat, columns=5)
    return figure


def _scaled(axis: Axes, runs: Sequence[RunResult], what: str) -> None:
    """Losses and errors on a logarithmic axis; whole epochs even where there is only one."""
    if what == "loss" or runs[0].curve_falls:
        parts = [curve(run, part, what) for run in runs for part in ("train", "test")]
        number_axis(axis.yaxis, [y for points in parts for _, y in points if y])
    if max(len(run.epochs) for run in runs) == 1:
        axis.set_xticks([1])


def _curves(axis: Axes, run: RunResult, what: str, style: dict[str, Any]) -> None:
    """The two curves of one run; where it diverged, a cross at its last finite point."""
    color, last = style["color"], None
    for part, dashes, alpha in (("train", ":", 0.6), ("test", "-", 0.9)):
        points = curve(run, part, what)
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
    from matplotlib import rc_context

    runs = _prepared(results, "laws")
    found = arms([run for run in runs if not run.metric.higher_is_better])
    if not found:
        raise InputError("no run has learned a law or a table: train one, such as law-lorentz")
    datasets = list(dict.fromkeys(arm.dataset for arm in found))
    styles = line_styles([(arm.first.neuron, arm.line) for arm in found])
    most = max(1, int(width / 1.75))
    columns = min(len(datasets), most)
    rows = -(-len(datasets) // columns)
    with rc_context(RC):
        figure = new_figure(max(width * columns / most, 2.4), 0.5 + 1.65 * rows)
        axes = figure.subplots(rows, columns, squeeze=False)
        for axis, dataset in zip(axes.flat, datasets, strict=False):
            alike = [arm for arm in found if arm.dataset == dataset]
            _against_cost(axis, alike, "params", "parameters", styles)
            axis.set_title(dataset, loc="left")
            axis.set_ylabel(alike[0].first.score_label)
        for axis in list(axes.flat)[len(datasets) :]:
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
