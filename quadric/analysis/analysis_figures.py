"""The figures of one analysis: parameters by depth, responses, frequencies, couplings.

Each takes an `Analysis`, the content of an analysis.json, or a run that was read with it; that of
eigenvectors takes `quadratic_forms`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quadric.analysis.eigenvectors import QuadraticForms
from quadric.analysis.style import (
    COLUMN,
    LINEAR,
    PAGE,
    QUADRATIC,
    drawn,
    legend_above,
    new_figure,
    unit_text,
)
from quadric.errors import InputError, InputTypeError
from quadric.runs.reading import RunResult
from quadric.support.checks import check_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DISTRIBUTIONS = (
    ("weights", "linear weights", LINEAR),
    ("quadratic", "quadratic parameters", QUADRATIC),
    ("eigenvalues", "true eigenvalues", "#D55E00"),
)


def _content(analysis: Any) -> Mapping[str, Any]:
    """The plain data of an analysis, or of a run that has one."""
    if isinstance(analysis, RunResult):
        analysis = analysis.analysis
    if not isinstance(analysis, Mapping) or "layers" not in analysis:
        raise InputTypeError(
            f"a figure of an analysis takes an analysis, got {type(analysis).__name__}: make one "
            "with quadric.analysis.analyze"
        )
    return analysis


@drawn
def distribution(analysis: Any, width: float = COLUMN) -> Figure:
    """Linear weights, quadratic parameters and true eigenvalues by depth (the paper's Fig. 7).

    Args:
        analysis: the analysis of one network.
        width: the width of the figure in inches.

    Returns:
        The figure. Boxes hold the middle half, lines 90 %, dots the smallest and the largest.
    """
    layers = _content(analysis)["layers"]
    kinds = [kind for kind in DISTRIBUTIONS if any(layer.get(kind[0]) for layer in layers)]
    if not kinds:
        raise InputError("the network has no weights to draw: analyze one with layers")
    figure = new_figure(width, 0.55 + 1.2 * len(kinds))
    axes = figure.subplots(len(kinds), 1, squeeze=False, sharex=True)[:, 0]
    for axis, (key, label, color) in zip(axes, kinds, strict=True):
        for place, layer in enumerate(layers, start=1):
            if layer.get(key):
                _box(axis, place, layer[key]["quantiles"], color)
        axis.axhline(0, color="0.7", linewidth=0.5, zorder=0)
        axis.set_ylabel(label)
        axis.locator_params(axis="y", nbins=5)
        axis.grid(axis="y")
    names = [str(layer["name"]) for layer in layers]
    if len(names) <= 6 and max(map(len, names)) <= 10:
        axes[-1].set_xticks(range(1, len(names) + 1), names)
        axes[-1].set_xlabel("layer, by depth")
    else:
        step = -(-len(names) // 20)
        axes[-1].set_xticks(range(1, len(names) + 1, step))
        axes[-1].set_xlabel("layer, counted by depth")
    axes[-1].set_xlim(0.4, len(names) + 0.6)
    axes[0].set_title("box 25–75 %, line 5–95 %, dots extremes", loc="left", fontsize=6.5)
    figure.align_ylabels()
    return figure


def _box(axis: Axes, place: int, quantiles: list[float], color: str) -> None:
    least, low, first, middle, third, high, most = quantiles
    axis.plot([place, place], [low, high], color=color, linewidth=0.9, solid_capstyle="butt")
    axis.bar([place], [third - first], 0.55, bottom=first, color=color, alpha=0.45)
    axis.plot([place - 0.27, place + 0.27], [middle] * 2, color=color, linewidth=1.2)
    axis.plot([place, place], [least, most], ".", color=color, markersize=1.8)


@drawn
def responses(analysis: Any, width: float = PAGE) -> Figure:
    """Responses of the linear and the quadratic part side by side (the paper's Fig. 8).

    Args:
        analysis: the analysis of a network on pictures.
        width: the width of the figure in inches.

    Returns:
        The figure: a row for each picture, two columns for each layer. Each map has its own scale
        around zero.
    """
    shown = _content(analysis).get("responses")
    if not shown or not shown["layers"]:
        raise InputError("the analysis holds no responses: analyze a convolutional network")
    pictures, layers = shown["pictures"], shown["layers"]
    columns = 1 + 2 * len(layers)
    side = width / columns
    figure = new_figure(width, side * len(pictures) + 0.75)
    axes = figure.subplots(len(pictures), columns, squeeze=False)
    for row, picture in enumerate(pictures):
        _show(axes[row, 0], picture)
        for place, layer in enumerate(layers):
            for offset, part in enumerate(("linear", "quadratic")):
                axis = axes[row, 1 + 2 * place + offset]
                image = _show(axis, layer[part][row], around_zero=True)
    axes[0, 0].set_title("input")
    for place, layer in enumerate(layers):
        for offset, part in enumerate(("linear", "quadratic")):
            head = f"{layer['name']}\n" if offset == 0 else "\n"
            axes[0, 1 + 2 * place + offset].set_title(head + part, fontsize=6.5, loc="left")
    bar = figure.colorbar(
        image, ax=list(axes[-1]), location="bottom", shrink=0.35, aspect=35, ticks=[1, 128, 255]
    )
    bar.ax.set_xticklabels(["− largest", "0", "+ largest"])
    bar.set_label("response, each map on its own scale")
    return figure


def _show(axis: Axes, picture: dict[str, Any], around_zero: bool = False) -> Any:
    import numpy as np

    shape = (picture["height"], picture["width"], picture["channels"])
    pixels = np.frombuffer(base64.b64decode(picture["bytes"]), np.uint8).reshape(shape)
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set_visible(False)
    if around_zero:
        return axis.imshow(pixels[..., 0], cmap="PuOr_r", vmin=1, vmax=255)
    if shape[2] == 1:
        return axis.imshow(pixels[..., 0], cmap="gray", vmin=0, vmax=255)
    return axis.imshow(pixels)


@drawn
def frequencies(analysis: Any, width: float = COLUMN) -> Figure:
    """The share of energy at low spatial frequencies in both parts, layer by layer.

    Args:
        analysis: the analysis of a network on pictures.
        width: the width of the figure in inches.

    Returns:
        The figure: means and standard deviations over the pictures, and the verdict above.
    """
    import textwrap

    content = _content(analysis)
    measured = [
        (place, layer["low_frequency"])
        for place, layer in enumerate(content["layers"], start=1)
        if "linear" in layer.get("low_frequency", {})
    ]
    if not measured:
        raise InputError("the analysis holds no frequencies: analyze a convolutional network")
    figure = new_figure(width, 2.7)
    axis = figure.subplots()
    parts = (("linear", LINEAR, "o", -0.12), ("quadratic", QUADRATIC, "s", 0.12))
    for part, color, marker, offset in parts:
        axis.errorbar(
            [place + offset for place, _ in measured],
            [low[part]["mean"] for _, low in measured],
            yerr=[low[part]["std"] or 0 for _, low in measured],
            fmt=marker, color=color, elinewidth=0.6, markersize=3, label=f"{part} part",
        )  # fmt: skip
    axis.set_xlabel("layer, counted by depth")
    cutoff = content["low_frequency"]["cutoff"]
    axis.set_ylabel(f"energy share ≤ {cutoff:g} cycles/pixel")
    axis.locator_params(axis="x", integer=True)
    axis.grid(axis="y")
    legend_above(figure, [axis])
    words = textwrap.wrap(content["low_frequency"]["sentence"], int(width * 22))
    axis.set_title("\n".join(words), loc="left", fontsize=5.5)
    return figure


def _with_unit(name: str, unit: str) -> str:
    printed = unit_text(unit)
    return f"{name} ({printed})" if printed else str(name)


@drawn
def couplings(analysis: Any, width: float = PAGE) -> Figure:
    """Which columns of a table a network couples, as heat maps.

    Args:
        analysis: the analysis of a network on a table.
        width: the width of the figure in inches.

    Returns:
        The figure: the couplings by the quadratic forms, and by the whole network.
    """
    coupled = _content(analysis).get("couplings")
    if not coupled:
        raise InputError("the analysis holds no couplings: analyze a network on a table")
    names = [
        _with_unit(name, unit)
        for name, unit in zip(coupled["names"], coupled["units"], strict=True)
    ]
    kinds = [("strength", "by the quadratic forms"), ("total", "by the whole network")]
    if coupled["ranked_by"] == "total":
        kinds = kinds[1:]
    # The colors are for pairs; a column with itself may lie beyond them.
    size = range(len(names))
    pairs = [coupled[key][i][j] for key, _ in kinds for i in size for j in size if i != j]
    top = max(pairs, default=0.0) or 1.0
    beyond = any(coupled[key][i][i] > top for key, _ in kinds for i in size)
    figure = new_figure(width * len(kinds) / 2, min(0.9 + width / 2, 1.5 + 0.3 * len(names)))
    axes = figure.subplots(1, len(kinds), squeeze=False, sharey=True)[0]
    for axis, (key, title) in zip(axes, kinds, strict=True):
        image = axis.imshow(coupled[key], cmap="cividis", vmin=0, vmax=top)
        axis.set_xticks(range(len(names)), names, rotation=90)
        axis.set_yticks(range(len(names)), names)
        axis.set_title(title, loc="left")
        if len(names) <= 8:
            for i, row in enumerate(coupled[key]):
                for j, value in enumerate(row):
                    color = "white" if value < 0.6 * top else "black"
                    axis.text(j, i, f"{value:.2g}", ha="center", va="center", color=color,
                              fontsize=5.5)  # fmt: skip
    words = _with_unit(coupled["target"], coupled["target_unit"])
    bar = figure.colorbar(image, ax=list(axes), shrink=0.9, extend="max" if beyond else "neither")
    bar.set_label(f"{words} per deviation of both columns")
    return figure


@drawn
def eigenvectors(
    forms: QuadraticForms,
    names: Sequence[str] | None = None,
    count: int = 1,
    shape: Sequence[int] | None = None,
    width: float = PAGE,
) -> Figure:
    """What speaks for each output and what against it, as pictures.

    Args:
        forms: what `quadric.analysis.quadratic_forms` gave.
        names: one for each output; their numbers by default.
        count: eigenvectors of each sign.
        shape: (height, width) of the pictures, where the inputs are plain vectors.
        width: the width of the figure in inches.

    Returns:
        The figure: a column for each output, above the eigenvectors with the largest positive
        eigenvalues, below those with the most negative ones, each with its eigenvalue.
    """
    check_size("count", count)
    sides = tuple(shape or forms.shape)
    pixels = tuple(side for side in sides if side != 1)
    if len(pixels) != 2 or math.prod(sides) != math.prod(forms.shape):
        raise InputError(
            f"eigenvectors are drawn as pictures of one channel, got inputs of shape "
            f"{forms.shape} and shape={shape}: give the height and width that fit"
        )
    outputs = len(forms.biases)
    if names is not None and len(names) != outputs:
        raise InputError(f"names must name {outputs} outputs, got {len(names)}: name each")
    side = width / (outputs + 0.4)
    figure = new_figure(width, 2 * count * (side + 0.17) + 0.35)
    axes = figure.subplots(2 * count, outputs, squeeze=False)
    for output in range(outputs):
        axes[0, output].set_title(names[output] if names else str(output))
        for row, positive in enumerate((True,) * count + (False,) * count):
            place, axis = row % count, axes[row, output]
            axis.set(xticks=[], yticks=[])
            values = forms.eigenvalues[output]
            values = values[values > 0 if positive else values < 0]
            if place >= len(values):
                axis.set_axis_off()
                continue
            picture = forms.strongest(output, count, positive)[place].reshape(pixels)
            top = float(picture.abs().max())
            axis.imshow(picture.numpy(), cmap="PuOr_r", vmin=-top, vmax=top)
            axis.set_xlabel(f"{float(values[place]):+.2g}".replace("-", "−"), fontsize=6)
    axes[0, 0].set_ylabel("for")
    axes[count, 0].set_ylabel("against")
    return figure
