"""Pictures of a comparison: ratios as bars, and cost against rank."""

from __future__ import annotations

from pathlib import Path

from quadric.bench.run import BenchReport
from quadric.errors import InputError
from quadric.writing import whole_file


def check_format(path: Path) -> None:
    """Refuses a file whose suffix says no picture, before the work that it would show."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    kinds = pyplot.figure().canvas.get_supported_filetypes()
    pyplot.close()
    if path.suffix[1:].lower() not in kinds:
        raise InputError(
            f"--plot must end in one of {', '.join(f'.{kind}' for kind in sorted(kinds))}, got "
            f"{str(path)!r}: the suffix is the format"
        )


def plot(report: BenchReport, path: Path) -> None:
    """Draws the ratios of every case to a file; ranks, where they vary, as lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ranks = {(row["neuron"], row["rank"]) for row in report.rows if row["rank"] is not None}
    varied = {neuron for neuron, _ in ranks if sum(n == neuron for n, _ in ranks) > 1}
    if varied:
        # Medians within a turn: what counts here is small differences.
        titles = {"training_turns": "training step", "inference_turns": "inference"}
        titles["memory"] = "peak memory"
        titles = {k: t for k, t in titles.items() if any(r[k] is not None for r in report.rows)}
        size = (4 * len(titles), 3.6)
        figure, axes = pyplot.subplots(1, len(titles), figsize=size, layout="constrained")
        markers = iter("osD^v")
        for neuron in sorted(varied):
            rows = [r for r in report.rows if r["neuron"] == neuron and r["rank"] is not None]
            rows.sort(key=lambda row: row["rank"])
            marker = next(markers)
            for axis, kind in zip(axes, titles, strict=True):
                axis.plot(
                    [r["rank"] for r in rows], [r[kind] for r in rows], marker=marker, label=neuron
                )
        shown = [row for row in report.rows if row["rank"] is not None]
        top = 1.1 * max(row[kind] for row in shown for kind in titles)
        ticks = sorted({row["rank"] for row in shown})
        for axis, (_, title) in zip(axes, titles.items(), strict=True):
            axis.axhline(1, color="0.6", linewidth=1, linestyle="--")
            axis.set_xscale("log", base=2)
            axis.set_xticks(ticks, [str(tick) for tick in ticks])
            axis.minorticks_off()
            axis.set_xlabel("rank k")
            axis.set_title(title)
            axis.set_ylim(0, top)
        axes[0].set_ylabel("ratio to linear")
        axes[0].legend(frameon=False)
    else:
        rows = [row for row in report.rows if row["neuron"] != "linear"]
        height = 1.2 + 0.34 * len(rows)
        figure, axis = pyplot.subplots(figsize=(8.5, height), layout="constrained")
        for offset, kind, color in ((-0.2, "training", "#0072B2"), (0.2, "inference", "#E69F00")):
            places = [i + offset for i in range(len(rows))]
            axis.barh(places, [r[kind] for r in rows], height=0.38, color=color, label=kind)
        labels = [
            " ".join(filter(None, (r["group"], r["neuron"], r["path"], r["format"], r["dtype"])))
            for r in rows
        ]
        axis.set_yticks(range(len(rows)), labels, fontsize=8)
        axis.invert_yaxis()
        axis.axvline(1, color="0.4", linewidth=1, linestyle="--")
        axis.set_xlabel("time as a ratio to linear")
        axis.legend(frameon=False, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=150)
    pyplot.close(figure)
