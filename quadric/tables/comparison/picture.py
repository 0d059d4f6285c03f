"""The comparison as a picture: errors of all models fold by fold, and differences to linear."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from quadric.support.writing import whole_file
from quadric.tables.comparison.plan import LINEAR
from quadric.tables.comparison.report import TableComparison, fold_gaps, format_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUADRATIC, PLAIN, OTHER = "#c2410c", "#1f2937", "#6b7280"


def draw(comparison: TableComparison, path: Path) -> None:
    """Writes the picture; the format is that of the name."""
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):  # a name with a dollar sign is a name
        figure = drawn(comparison)
        with whole_file(path) as file:
            figure.savefig(file, format="png", dpi=150)


def drawn(comparison: TableComparison) -> Figure:
    """The picture, for the text settings of `draw`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    errors = comparison.errors.dropna()
    params = comparison.summary["params"]
    figure = Figure(figsize=(10, 1.6 + 0.42 * len(errors)), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [3, 2]})
    measure = comparison.measure
    names = []
    for place, (label, row) in enumerate(errors.iterrows()):
        color = PLAIN if label == LINEAR else QUADRATIC
        color = color if label in comparison.networks else OTHER
        values = [measure.shown(error) for error in row]
        mean = sum(values) / len(values)
        left.plot(values, [place] * len(values), "o", color=color, alpha=0.35, markersize=5)
        left.plot([mean], [place], "|", color=color, markersize=18, markeredgewidth=2.5)
        text = format_error(mean) if measure.relative else f"{mean:.3f}"
        left.annotate(
            text, (1.01, place), xycoords=("axes fraction", "data"), va="center", color=color
        )
        names.append(f"{label}" + (f"  ({params[label]:,.0f})" if params.notna()[label] else ""))
    left.set_yticks(range(len(names)), names)
    left.set_ylim(len(names) - 0.5, -0.5)
    left.set_xlabel(f"{measure.name} on test rows\n(each fold, and the mean)")
    left.set_title("model  (parameters)", loc="left", fontsize=10)
    shown = errors.to_numpy().ravel().tolist()
    # A model that is many times worse than the best would hide all other differences.
    if measure.relative and min(shown) > 0 and max(shown) > 4 * min(shown):
        left.set_xscale("log")
        # Within a decade or two the powers of ten alone would be one tick.
        within = max(shown) < 50 * min(shown)
        left.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if within else (1,)))
        left.xaxis.set_major_formatter("{x:g}")
        left.xaxis.set_minor_formatter(NullFormatter())
    left.grid(axis="x", alpha=0.3)
    known = {label: d for label, d in comparison.differences.items() if d is not None}
    sure = all(d.half_width is not None for d in known.values())
    for place, (label, difference) in enumerate(known.items()):
        if difference.half_width is None:  # too few folds for an interval
            gaps = fold_gaps(comparison, label)
            right.plot(gaps, [place] * len(gaps), "o", color=QUADRATIC, alpha=0.35, markersize=5)
            right.plot(
                [difference.mean], [place], "|", color=QUADRATIC, markersize=18, markeredgewidth=2.5
            )
            continue
        low, high = difference.ends
        right.errorbar(
            [difference.mean], [place], xerr=[[difference.mean - low], [high - difference.mean]],
            fmt="o", color=QUADRATIC, capsize=4, linewidth=2,
        )  # fmt: skip
    right.axvline(0, color=PLAIN, linewidth=1)
    right.set_yticks(range(len(known)), list(known))
    right.set_ylim(len(known) - 0.5, -0.5)
    unit = f"% of linear's {measure.word}" if measure.relative else "points of accuracy"
    better = "left is better" if measure.relative else "right is better"
    doubt = "paired, 95 % interval" if sure else "each fold, and the mean"
    right.set_xlabel(f"difference to linear, {unit}\n({doubt}; {better})")
    right.set_title("at equal parameters", loc="left", fontsize=10)
    right.grid(axis="x", alpha=0.3)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    title = textwrap.shorten(f"{comparison.table.name}: {comparison.table.target.name}", 110)
    title = title.encode(errors="backslashreplace").decode()
    lines = [title, *textwrap.wrap(comparison.verdict(), 110)]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=11)
    return figure
