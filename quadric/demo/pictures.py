"""The demo's two pictures: the plane and the laws.

Colors of Okabe and Ito, and markers, which color-blind eyes tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from quadric.demo.scenes import NEURONS, Trained
from quadric.support.writing import whole_file

BLUE, ORANGE = "#0072B2", "#D98E00"
NEURON_COLORS = {"linear": "#56606B", "shared": "#D55E00"}
SOLVER_LOOKS = {"Adam": (BLUE, "o"), "second order": (ORANGE, "^")}
_FIELD = LinearSegmentedColormap.from_list("field", ["#B9DAEC", "#FFFFFF", "#FAE3B4"])

ByName = Mapping[tuple[str, str, str], Trained]  # by task name, neuron and solver


def draw_boundaries(trained: ByName) -> Figure:
    """What the first network of each neuron says at each point of the plane."""
    figure = Figure(figsize=(9.6, 6.9), layout="constrained")
    axes = figure.subplots(2, 3)
    for row, neuron in enumerate(NEURONS):
        for panel, name in zip(axes[row], ("rings", "XOR", "spirals"), strict=True):
            networks = trained[name, neuron, "Adam"]
            activation = networks.task.activation
            suffix = "no activation" if activation == "none" else activation
            heading = f"{name} ({suffix})\n" if row == 0 else ""
            panel.set_title(f"{heading}{100 * networks.values[0]:.1f} % right", fontsize=12)
            _draw_plane(panel, networks)
        color = NEURON_COLORS[neuron]
        axes[row][0].set_ylabel(f"{neuron} neurons", fontsize=13, fontweight="bold", color=color)
    figure.suptitle(
        "One layer of neurons and a linear readout: where does the network switch class?",
        fontsize=13,
    )
    return figure


def _draw_plane(panel: Any, trained: Trained) -> None:
    points, labels = trained.split.test_inputs, trained.split.test_targets
    reach = points.abs().max().item() * 1.08
    ticks = torch.linspace(-reach, reach, 160)
    with torch.no_grad():
        scores = trained.models[0](torch.cartesian_prod(ticks, ticks))
    first_class = scores.softmax(1)[:, 1].view(160, 160).T
    line, field = ticks.tolist(), first_class.tolist()
    panel.contourf(line, line, field, levels=8, cmap=_FIELD, vmin=0.0, vmax=1.0)
    # A network that says one class everywhere has no boundary to draw.
    if first_class.min() < 0.5 < first_class.max():
        panel.contour(line, line, field, levels=[0.5], colors="black", linewidths=1.6)
    for label, color, marker in ((0, BLUE, "o"), (1, ORANGE, "^")):
        x, y = points[labels == label][:150].T.tolist()
        panel.scatter(x, y, s=13, c=color, marker=marker, edgecolors="white", linewidths=0.4)
    panel.set(xticks=[], yticks=[], aspect="equal", xlim=(-reach, reach), ylim=(-reach, reach))


def draw_laws(trained: ByName) -> Figure:
    """How far the first network of each neuron is off, by Adam and by second order."""
    figure = Figure(figsize=(9.6, 6.4), layout="constrained")
    axes = figure.subplots(2, 2, sharey=True)
    for row, neuron in enumerate(NEURONS):
        for panel, law in zip(axes[row], ("Lorentz force", "oscillator energy"), strict=True):
            for solver, (color, marker) in SOLVER_LOOKS.items():
                networks = trained[law, neuron, solver]
                true = networks.split.test_targets.flatten()
                with torch.no_grad():
                    predicted = networks.models[0](networks.split.test_inputs).flatten()
                off = (predicted - true).abs()
                shown = f"{solver}: {networks.values[0]:.2g}"
                panel.scatter(
                    true.tolist(), off.tolist(), s=7, c=color, marker=marker, alpha=0.6,
                    linewidths=0, label=shown,
                )  # fmt: skip
            panel.set_yscale("log")
            panel.grid(visible=True, alpha=0.3)
            panel.legend(loc="lower right", markerscale=2)
            if row == 0:
                panel.set_title(law, fontsize=12)
            else:
                panel.set_xlabel("true")
        color = NEURON_COLORS[neuron]
        axes[row][0].set_ylabel(f"{neuron} neurons\n|predicted − true|", fontsize=12, color=color)
    figure.suptitle(
        "Two physical laws from 1,000 samples, two hidden layers of 20; "
        "in deviations of the target, on test data",
        fontsize=12,
    )
    return figure


def draw_all(trained: Sequence[Trained], folder: Path) -> list[Path]:
    """Draws the pictures into a folder."""
    by_name = {(each.task.name, each.neuron, each.task.solver): each for each in trained}
    drawn = {"boundaries.png": draw_boundaries, "laws.png": draw_laws}
    for name, draw in drawn.items():
        with whole_file(folder / name) as file:
            # No software name or date inside: the same run makes the same file.
            draw(by_name).savefig(file, format="png", dpi=100, metadata={"Software": None})
    return [folder / name for name in drawn]
