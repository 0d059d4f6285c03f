"""Draw the pictures of docs/neuron.md and docs/evidence.md into docs/images/.

python tools/docs_pictures.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from evidence_laws import CURVE_ARMS, CURVE_LAWS
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from tables_of_evidence import law_curves, named_group, sizes

import quadric
from quadric.analysis.figures import distribution

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
    picture_parameters()
