"""Draw the pictures of docs/neuron.md, docs/evidence.md and docs/when.md into docs/images/.

python tools/docs_pictures.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from effects import (
    law_effects,
    perceptron_effects,
    picture_effects,
    pooled_effects,
    solver_factors,
    table_effects,
    table_factors,
    text_effects,
)
from evidence_laws import CURVE_ARMS, CURVE_LAWS
from evidence_perceptrons import ARMS as PERCEPTRONS
from evidence_perceptrons import PUBLISHED, TITLES
from evidence_runs import read_piece
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from tables_of_evidence import law_curves, named_group, sizes

import quadric
from quadric.analysis.figures import distribution
from quadric.analysis.style import legend_above, neuron_styles

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
# Okabe and Ito's colors, which color-blind readers can tell apart.
BLUE, ORANGE, GREEN, GRAY = "#0072B2", "#D55E00", "#009E73", "#666666"


def _surface(axes: Axes, eigenvalues: tuple[float, float], title: str) -> None:
    """The line y = 0 of one neuron over the plane, computed by a layer."""
    layer = quadric.QuadraticLinear(2, 3, rank=2)
    turn = 0.5
    with torch.no_grad():
        cos, sin = torch.cos(torch.tensor(turn)), torch.sin(torch.tensor(turn))
        layer.weight[:] = torch.tensor([[0.35, -0.25], [cos, sin], [-sin, cos]])
        layer.bias = torch.nn.Parameter(torch.tensor([-0.6, 0.0, 0.0]))
        layer.eigenvalues[:] = torch.tensor(eigenvalues)
        line = torch.linspace(-2.5, 2.5, 201)
        x, y = torch.meshgrid(line, line, indexing="xy")
        value = layer(torch.stack((x.flatten(), y.flatten()), 1))[:, 0].reshape(x.shape)
    axes.contourf(
        x, y, value, levels=[-1e9, 0, 1e9], colors=[BLUE, ORANGE], alpha=0.25, antialiased=True
    )
    axes.contour(x, y, value, levels=[0], colors="black", linewidths=1.5)
    if any(eigenvalues):
        for direction in layer.weight[1:].detach():
            axes.annotate(
                "",
                direction.tolist(),
                (0, 0),
                arrowprops={"arrowstyle": "-|>", "color": GREEN, "lw": 1.5},
            )
    axes.set_title(f"{title}\nλ = ({eigenvalues[0]:g}, {eigenvalues[1]:g})", fontsize=10)
    axes.set_aspect("equal")
    axes.set_xticks([-2, 0, 2])
    axes.set_yticks([-2, 0, 2])
    axes.set_xlabel("$x_1$", labelpad=-2)


def surfaces() -> None:
    """What one neuron can cut out of the plane."""
    figure, row = plt.subplots(1, 4, figsize=(10, 2.9), layout="constrained")
    shapes = [
        ((0.0, 0.0), "line"),
        ((0.5, 0.9), "ellipse"),
        ((0.7, -0.7), "hyperbola"),
        ((0.8, 0.0), "parabola"),
    ]
    for axes, (eigenvalues, title) in zip(row, shapes, strict=True):
        _surface(axes, eigenvalues, title)
    row[0].set_ylabel("$x_2$", labelpad=-4)
    figure.savefig(IMAGES / "surfaces.png", dpi=160)
    plt.close(figure)


def _box(axes: Axes, x: float, y: float, text: str, color: str, width: float = 1.5) -> None:
    box = FancyBboxPatch(
        (x - width / 2, y - 0.28), width, 0.56, "round,pad=0.04", fc=color + "30", ec=color, lw=1.4
    )
    axes.add_patch(box)
    axes.text(x, y, text, ha="center", va="center", fontsize=11)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, color=GRAY, lw=1.2)
    )


def diagram() -> None:
    """One eigen neuron as boxes, after Fig. 3 of the paper."""
    figure, axes = plt.subplots(figsize=(8.4, 2.5), layout="constrained")
    _box(axes, 0.0, 1.0, "inputs  $x$", GRAY)
    _box(axes, 2.6, 2.0, "$w^T x + b$", BLUE)
    _box(axes, 2.6, 0.0, "$f = Q^T x$", GREEN)
    _box(axes, 5.3, 1.0, r"$\sum_j \lambda_j f_j^2$", ORANGE, 1.7)
    _box(axes, 8.1, 2.0, "$y$:  1 output", BLUE, 1.9)
    _box(axes, 8.1, 0.0, "$f$:  k outputs", GREEN, 1.9)
    axes.text(6.85, 2.0, "+", fontsize=15, ha="center", va="center")
    _arrow(axes, (0.8, 1.15), (1.8, 1.9))
    _arrow(axes, (0.8, 0.85), (1.8, 0.1))
    _arrow(axes, (3.4, 0.15), (4.4, 0.8))
    _arrow(axes, (3.4, 2.0), (6.65, 2.0))
    _arrow(axes, (6.0, 1.35), (6.75, 1.85))
    _arrow(axes, (7.0, 2.0), (7.1, 2.0))
    _arrow(axes, (3.4, 0.0), (7.1, 0.0))
    # Between the two that it makes.
    axes.text(2.6, 1.0, "one matrix product\nor convolution", ha="center", va="center", fontsize=9)
    axes.text(5.3, 0.5, "k eigenvalues", ha="center", va="top", fontsize=9)
    axes.text(8.1, 1.0, "k + 1 channels", ha="center", va="center", fontsize=9)
    axes.set_xlim(-1.0, 9.3)
    axes.set_ylim(-0.4, 2.4)
    axes.axis("off")
    figure.savefig(IMAGES / "neuron.png", dpi=160)
    plt.close(figure)


def matrices() -> None:
    """Which squares reach which outputs: S of eigen, square and shared for eight channels."""
    figure, row = plt.subplots(1, 3, figsize=(8.4, 3.3), layout="constrained")
    eigen, square, shared = (torch.zeros(8, 8) for _ in range(3))
    for first in (0, 4):
        eigen[first, first + 1 : first + 4] = 1
        shared[first : first + 4, first : first + 4] = 1
    square.fill_diagonal_(1)
    titles = ("eigen, rank 3", "square", "shared, rank 4")
    for axes, matrix, title in zip(row, (eigen, square, shared), titles, strict=True):
        axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1.6)
        axes.set_title(title, fontsize=11)
        axes.set_xticks(range(8))
        axes.set_yticks(range(8))
        axes.set_xlabel("squared channel j")
    row[0].set_ylabel("output i")
    figure.savefig(IMAGES / "matrices.png", dpi=160)
    plt.close(figure)


def curves() -> None:
    """The laws: error against parameters, from results/laws/curve."""
    found = law_curves(ROOT / "results")
    figure, grid = plt.subplots(2, 3, figsize=(9.6, 5.4), layout="constrained", sharex=True)
    looks = zip(CURVE_ARMS, (GRAY, "#CC79A7", BLUE, ORANGE), ("o", "s", "^", "D"), strict=True)
    for arm, color, marker in looks:
        for axes, law in zip(grid.flat, CURVE_LAWS, strict=True):
            params, errors = zip(*found[law, arm.name], strict=True)
            axes.loglog(params, errors, marker + "-", color=color, label=arm.name, ms=4, lw=1.5)
            axes.set_title(law, fontsize=10)
            axes.grid(visible=True, which="major", alpha=0.3)
    figure.supxlabel("parameters")
    figure.supylabel("error, as a share of the target's deviation (median of 5 seeds)", fontsize=10)
    grid.flat[0].legend(fontsize=9)
    figure.savefig(IMAGES / "law_curves.png", dpi=110)
    plt.close(figure)


def picture_sizes() -> None:
    """CIFAR-10 at 16x16: accuracy against parameters, from results/images."""
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    found = [row for _, row in sizes(ROOT / "results")]
    for arm, color, marker in (
        ("linear", GRAY, "o"),
        ("eigen", BLUE, "^"),
        ("shared", ORANGE, "D"),
    ):
        rows = sorted((r for r in found if r["arm"].startswith(arm)), key=lambda r: r["params"])
        means, spreads = ([100 * (row[key] or 0) for row in rows] for key in ("mean", "std"))
        axes.errorbar(
            [row["params"] for row in rows], means, spreads, fmt=marker + "-", color=color,
            label=arm, ms=4, lw=1.5, capsize=2,
        )  # fmt: skip
    ticks = (20_000, 40_000, 80_000, 160_000, 320_000)
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("parameters")
    axes.set_ylabel("test accuracy, %")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize=9)
    figure.savefig(IMAGES / "picture_sizes.png", dpi=110)
    plt.close(figure)


def all_effects() -> None:
    """Every comparison with linear: the change of the error on the left, points on the right."""
    results = ROOT / "results"
    errors = [*law_effects(results), *table_effects(results)]
    scores = [
        *picture_effects(results), *pooled_effects(results), *perceptron_effects(results),
        *text_effects(results),
    ]  # fmt: skip
    figure, row = plt.subplots(1, 2, figsize=(9.6, 5.2), layout="constrained")
    looks = {
        "linear_wide": (GRAY, "o", "next larger linear"), "eigen": (BLUE, "^", "eigen"),
        "shared": (ORANGE, "D", "shared"), "square": (GREEN, "v", "square"),
        "glu": ("#CC79A7", "s", "SwiGLU"),
    }  # fmt: skip
    for axes, found in zip(row, (errors, scores), strict=True):
        tasks = list(dict.fromkeys(effect.task for effect in found))
        for effect in found:
            own = [other.arm for other in found if other.task == effect.task]
            color, marker, name = looks[effect.arm]
            place = tasks.index(effect.task) + 0.17 * (own.index(effect.arm) - (len(own) - 1) / 2)
            axes.plot(effect.ends, [place, place], color=color, lw=1.3)
            face = color if effect.gap.is_clear else "white"
            axes.plot(effect.gap.mean, place, marker, color=color, mfc=face, ms=5, label=name)
        axes.axvline(0, color="black", lw=0.8)
        axes.set_yticks(range(len(tasks)), tasks)
        axes.invert_yaxis()
        axes.grid(visible=True, axis="x", alpha=0.3)
    row[0].set_xlim(-65, 65)
    row[0].set_xlabel("error against linear, %   (left is better)")
    row[0].set_title("laws and tables", fontsize=10)
    row[1].set_xlim(-3.5, 3.5)
    row[1].set_xlabel("points against linear   (right is better)")
    row[1].set_title("pictures and text", fontsize=10)
    legend_above(figure, row, columns=5)
    figure.savefig(IMAGES / "effects.png", dpi=110)
    plt.close(figure)


def what_gains() -> None:
    """Neurons beside what else could be changed: the solver on laws, trees on tables."""
    results = ROOT / "results"
    names = {"glu": "SwiGLU"}
    solvers = {"adam": "Adam", "lm": "second order"}
    found = sorted(solver_factors(results), key=lambda one: (one[1], -one[2]))
    laws = [(f"{names.get(a, a)}, {solvers[solver]}", factor) for a, solver, factor in found]
    tables = [("linear", 1.0), *((names.get(a, a), f) for a, f in table_factors(results))]
    figure, row = plt.subplots(1, 2, figsize=(9.6, 2.9), layout="constrained")
    titles = ("25 laws without noise", "eight UCI tables, Adam")
    for axes, bars, title in zip(row, (laws, tables), titles, strict=True):
        for place, (name, factor) in enumerate(bars):
            color = GRAY if name.startswith(("linear", "LightGBM")) else BLUE
            axes.barh(place, factor, color=color, height=0.7)
            axes.text(factor, place, f" {factor:.2g}", va="center", fontsize=8)
        axes.set_yticks(range(len(bars)), [name for name, _ in bars], fontsize=9)
        axes.invert_yaxis()
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("error, linear under Adam = 1")
    row[0].set_xscale("log")
    row[0].set_xlim(right=3)
    row[1].set_xlim(0, 1.4)
    figure.savefig(IMAGES / "what_gains.png", dpi=110)
    plt.close(figure)


def perceptrons() -> None:
    """KANbeFair's points and ours: accuracy of perceptrons on pictures against parameters."""
    runs = read_piece(ROOT / "results" / "perceptrons.json")["fits"]
    figure, row = plt.subplots(1, 3, figsize=(9.6, 3.3), layout="constrained")
    styles = neuron_styles(PERCEPTRONS)
    for axes, (name, title) in zip(row, TITLES.items(), strict=True):
        for kind, line in (("MLP", "-"), ("KAN", ":")):
            params, best = zip(*PUBLISHED[name][kind], strict=True)
            axes.plot(params, best, line, color="0.6", lw=1.3, label=f"published {kind}")
        for arm in PERCEPTRONS:
            color, marker = styles[arm]
            for width in sorted({run["width"] for run in runs if run["data"] == name}):
                own = [r for r in runs if (r["data"], r["arm"], r["width"]) == (name, arm, width)]
                for key, face in (("best_on_test", "white"), ("test_accuracy", color)):
                    mean = 100 * sum(run[key] for run in own) / len(own)
                    axes.plot(
                        own[0]["params"], mean, marker, color=color, mfc=face, ms=5,
                        label="SwiGLU" if arm == "glu" else arm,
                    )  # fmt: skip
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter("")
        axes.set_title(title, fontsize=10)
        axes.grid(visible=True, alpha=0.3)
    row[1].set_xlabel("parameters   (filled: epoch chosen on validation, hollow: best on test)")
    row[0].set_ylabel("test accuracy, %")
    row[0].set_ylim(bottom=90)
    row[1].set_ylim(bottom=80)
    legend_above(figure, row, columns=7)
    figure.savefig(IMAGES / "perceptrons.png", dpi=110)
    plt.close(figure)


def picture_parameters() -> None:
    """The paper's Fig. 7 for the published ResNet-20 of eigen neurons."""
    figure = distribution(named_group(ROOT / "results", "images/full20-eigen").first, width=6.4)
    figure.savefig(IMAGES / "picture_parameters.png", dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    surfaces()
    diagram()
    matrices()
    curves()
    picture_sizes()
    all_effects()
    what_gains()
    perceptrons()
    picture_parameters()
