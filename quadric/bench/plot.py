"""The picture of `quadric bench --ranks`: cost against rank."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from quadric.bench.run import BenchReport
from quadric.errors import InputError
from quadric.support.writing import whole_file


def check_format(path: Path) -> None:
    """Refuses a file whose suffix says no picture, before the work that it would show."""
    kinds = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise InputError(
            f"--plot must end in one of {', '.join(f'.{kind}' for kind in sorted(kinds))}, got "
            f"{str(path)!r}: the suffix is the format"
        )


def plot(report: BenchReport, path: Path) -> None:
    """Draws the ratios to linear of every neuron against its rank."""
    # Medians within a turn: what counts here is small differences.
    titles = {"training_turns": "training step", "inference_turns": "inference"}
    titles |= {"memory": "peak memory"}
    shown = [row for row in report.rows if row["rank"] is not None]
    kinds = [kind for kind in titles if shown[0][kind] is not None]
    figure = Figure(figsize=(4 * len(kinds), 3.6), layout="constrained")
    for axis, kind in zip(figure.subplots(1, len(kinds), sharey=True), kinds, strict=True):
        for i, neuron in enumerate(dict.fromkeys(r["neuron"] for r in shown)):
            rows = sorted((r for r in shown if r["neuron"] == neuron), key=lambda r: r["rank"])
            ratios = [row[kind] for row in rows]
            axis.plot([r["rank"] for r in rows], ratios, marker="osD^v"[i % 5], label=neuron)
        axis.axhline(1, color="0.6", linewidth=1, linestyle="--")
        axis.set_xscale("log", base=2)
        ticks = sorted({row["rank"] for row in shown})
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
        axis.set(xlabel="rank k", title=titles[kind])
    figure.axes[0].set(ylabel="ratio to linear", ylim=(0, None))
    figure.axes[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=150)
