"""The demo's three pictures.

Colors of Okabe and Ito, and markers, which color-blind eyes tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from quadric.demo.scenes import NEURONS, Outcome
from quadric.support.writing import whole_file

BLUE, ORANGE = "#0072B2", "#D98E00"
NEURON_COLORS = {"linear": "#56606B", "eigen": "#D55E00"}
_FIELD = LinearSegmentedColormap.from_list("field", ["#B9DAEC", "#FFFFFF", "#FAE3B4"])

Outcomes = Mapping[tuple[str, str, str], Outcome]  # by task name, activation, neuron


def _save(figure: Figure, path: Path) -> None:
    # No software name or date inside: the same run makes the same file.
    with whole_file(path) as file:
        figure.savefig(file, format="png", dpi=100, metadata={"Software": None})


def draw_boundaries(outcomes: Outcomes, path: Path) -> None:
    """What the first network of each neuron says at each point of the plane."""
    tasks = [("rings", "none"), ("XOR", "none"), ("spirals", "tanh")]
    figure = Figure(figsize=(9.6, 6.9), layout="constrained")
    axes = figure.subplots(2, 3)
    for row, neuron in enumerate(NEURONS):
        for column, (name, activation) in enumerate(tasks):
            outcome = outcomes[name, activation, neuron]
            panel = axes[row][column]
            _draw_plane(panel, outcome)
            suffix = "no activation" if activation == "none" else activation
            heading = f"{name} ({suffix})\n" if row == 0 else ""
            panel.set_title(f"{heading}{100 * outcome.values[0]:.1f} % right", fontsize=12)
        axes[row][0].set_ylabel(
            f"{neuron} neurons", fontsize=13, fontweight="bold", color=NEURON_COLORS[neuron]
        )
    figure.suptitle(
        "One layer of neurons and a linear readout: where does the network switch class?",
        fontsize=13,
    )
    _save(figure, path)


def _draw_plane(panel: Any, outcome: Outcome) -> None:
    points, labels = outcome.split.test_inputs, outcome.split.test_targets
    reach = points.abs().max().item() * 1.08
    ticks = torch.linspace(-reach, reach, 160)
    grid = torch.cartesian_prod(ticks, ticks)
    with torch.no_grad():
        first_class = outcome.models[0](grid).softmax(1)[:, 1].view(160, 160).T
    line, field = ticks.tolist(), first_class.tolist()
    panel.contourf(line, line, field, levels=8, cmap=_FIELD, vmin=0.0, vmax=1.0)
    # A network that says one class everywhere has no boundary to draw.
    if bool((first_class.min() < 0.5) & (first_class.max() > 0.5)):
        panel.contour(line, line, field, levels=[0.5], colors="black", linewidths=1.6)
    for label, color, marker in ((0, BLUE, "o"), (1, ORANGE, "^")):
        shown = points[labels == label][:150]
        x, y = shown[:, 0].tolist(), shown[:, 1].tolist()
        panel.scatter(x, y, s=13, c=color, marker=marker, edgecolors="white", linewidths=0.4)
    panel.set(xticks=[], yticks=[], aspect="equal", xlim=(-reach, reach), ylim=(-reach, reach))


def draw_laws(outcomes: Outcomes, path: Path) -> None:
    """Predicted against true, and what is left, for the first network of each neuron."""
    laws = ["Lorentz force", "oscillator energy"]
    figure = Figure(figsize=(12, 6.2), layout="constrained")
    axes = figure.subplots(2, 4, gridspec_kw={"height_ratios": [1.5, 1]})
    for place, name in enumerate(laws):
        residuals = {}
        for offset, neuron in enumerate(NEURONS):
            outcome = outcomes[name, "SiLU", neuron]
            with torch.no_grad():
                predicted = outcome.models[0](outcome.split.test_inputs).flatten()
            true = outcome.split.test_targets.flatten()
            residuals[neuron] = predicted - true
            column, color = 2 * place + offset, NEURON_COLORS[neuron]
            top, bottom = axes[0][column], axes[1][column]
            ends = [true.min().item(), true.max().item()]
            top.plot(ends, ends, color="black", linewidth=1)
            for panel, values in ((top, predicted), (bottom, residuals[neuron])):
                panel.scatter(true.tolist(), values.tolist(), s=5, c=color, alpha=0.5, linewidths=0)
            top.set_title(
                f"{name}\n{neuron}: error {outcome.values[0]:.4f}", fontsize=11, color=color
            )
            bottom.axhline(0, color="black", linewidth=1)
            bottom.set_xlabel("true")
        # The two neurons of a law on one scale, or the eye would compare the axes.
        reach = 1.05 * max(residual.abs().max().item() for residual in residuals.values())
        for column in (2 * place, 2 * place + 1):
            axes[1][column].set_ylim(-reach, reach)
    axes[0][0].set_ylabel("predicted")
    axes[1][0].set_ylabel("predicted − true")
    figure.suptitle(
        "Two physical laws from 10,000 samples, two hidden layers of 32; "
        "all in standard deviations of the target, on test data",
        fontsize=12,
    )
    _save(figure, path)


def draw_digits(outcomes: Outcomes, path: Path) -> None:
    """Each seed's accuracy as a point, the mean as a line."""
    activations = ["ReLU", "none"]
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axis = figure.subplots()
    for group, activation in enumerate(activations):
        for offset, neuron in enumerate(NEURONS):
            outcome = outcomes["digits", activation, neuron]
            center, color = group + 0.36 * (offset - 0.5), NEURON_COLORS[neuron]
            values = [100 * value for value in outcome.values]
            places = [center + 0.03 * (i - (len(values) - 1) / 2) for i in range(len(values))]
            label = f"{neuron} neurons" if group == 0 else None
            axis.scatter(places, values, s=42, c=color, marker="os"[offset], alpha=0.8, label=label)
            mean = 100 * outcome.mean
            axis.hlines(mean, center - 0.1, center + 0.1, color=color, linewidth=2.5)
            place, side = center + (0.115 if offset else -0.115), "left" if offset else "right"
            axis.text(place, mean, f"{mean:.1f}", color=color, va="center", ha=side, fontsize=11)
    axis.set_xticks([0, 1], ["ReLU", "no activation function"], fontsize=11)
    axis.set_xlim(-0.5, 1.5)
    axis.set_ylabel("test accuracy, %")
    axis.set_title("Handwritten digits, two convolutions of 8 and 16 channels", fontsize=12)
    axis.margins(y=0.15)
    axis.grid(axis="y", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower left")
    _save(figure, path)


def draw_all(outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """Draws the three pictures into a folder."""
    by_name = {(o.task.name, o.task.activation, o.neuron): o for o in outcomes}
    drawn = {"boundaries.png": draw_boundaries, "laws.png": draw_laws, "digits.png": draw_digits}
    for name, draw in drawn.items():
        draw(by_name, folder / name)
    return [folder / name for name in drawn]
