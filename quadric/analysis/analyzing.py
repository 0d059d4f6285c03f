"""`analyze`: a run or a model, measured; and what `quadric analyze` prints of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quadric.analysis.couplings import ranked_list
from quadric.analysis.formula import has_formula, to_sympy
from quadric.analysis.frequencies import CUTOFF
from quadric.analysis.measuring import Progress, measure
from quadric.analysis.samples import Samples, read_pictures, samples
from quadric.data.batches import SplitDataset
from quadric.errors import InputError, InputTypeError, MissingExtraError
from quadric.support.provenance import finite, stamp, write_json
from quadric.support.texttable import text_table

FILE = "analysis.json"
SAMPLES = 500
SHOWN = 3
LONGEST_FORMULA = 60
"""Terms of a formula that is kept: a longer one nobody reads."""
_OF_SQUARES = ("quadratic", "eigenvalues")


class Analysis(dict[str, Any]):
    """An analysis as plain data; prints as tables."""

    def save(self, path: str | Path) -> None:
        """Writes it with versions, machine and command; what is not finite becomes null."""
        write_json(Path(path), self | stamp())

    def __str__(self) -> str:
        return as_text(self)


def analyze(
    run_or_model: Any,
    data: Any = None,
    *,
    count: int = SAMPLES,
    show: Sequence[int] | None = None,
    pictures: Sequence[str | Path] = (),
    layers: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    cutoff: float = CUTOFF,
    progress: Progress | None = None,
    **environment: Any,
) -> Analysis:
    """Measures what the neurons of a trained network learned.

    Args:
        run_or_model: a run directory of `quadric train`, a `Result` of `quadric.train.run`, any
            model, or a fitted scikit-learn estimator, for which `data` is a table as `fit` took it.
        data: the inputs of the network: a data set of `quadric.data`, a tensor or a data frame,
            or an iterable of batches. A run brings its own.
        count: the most inputs to run it on, of the test part.
        show: the places, among these inputs, of pictures whose responses are kept; by default
            three, evenly spread.
        pictures: files of pictures, to keep the responses to them instead.
        layers: the layers to keep the responses of; by default four, evenly spread over the depth.
        names: the names of a table's columns, if the data does not know them.
        cutoff: the limit below which frequencies are low, in cycles per pixel.
        progress: a function that is told of the steps done, the next one, and all steps.
        **environment: `data_dir`, if a run's data is not where it was when it was trained; `code`
            for a run with code of your own, as in `quadric.train.load`.

    Returns:
        The analysis. `save` writes it; figures and the report page are made from it.

    Raises:
        InputError: if a run is not finished, there is no data, or an option does not fit.
        InputTypeError: if `run_or_model` is neither.

    Examples:
        >>> from quadric.layers import QuadraticConv2d
        >>> model = nn.Sequential(QuadraticConv2d(1, 4, 3, rank=3), nn.Flatten())
        >>> found = analyze(model, torch.randn(8, 1, 8, 8))
        >>> found["layers"][0]["share"], found["low_frequency"]["holds"]  # fresh: still linear
        (0.0, None)
    """
    about: dict[str, Any] = {}
    if hasattr(run_or_model, "prepare") and hasattr(run_or_model, "module_"):  # an estimator
        names = run_or_model.prepared_names_ if names is None else names
        data = None if data is None else torch.tensor(run_or_model.prepare(data))
        run_or_model = run_or_model.module_
    if not isinstance(run_or_model, nn.Module):
        run_or_model = getattr(run_or_model, "path", run_or_model)
    if isinstance(run_or_model, nn.Module):
        if data is None:
            raise InputError("a model must be analyzed on data, got none: give some inputs")
        model = run_or_model
        inputs = samples(data, count, names=names, dtype=_dtype(model))
    elif isinstance(run_or_model, (str, os.PathLike)):
        model, inputs, about = _open(Path(run_or_model), data, count, names, environment)
    else:
        raise InputTypeError(
            f"analyze takes a run directory or a model, got {type(run_or_model).__name__}: give "
            "one of these"
        )
    shown = _shown(inputs, show, pictures)
    measured = measure(model, inputs, shown=shown, layers=layers, cutoff=cutoff, progress=progress)
    result = Analysis(finite(about | measured))  # as it would be read from its file
    if inputs.columns is not None:
        result["formula"] = _formula(model, inputs)
    return result


def _dtype(model: nn.Module) -> torch.dtype:
    """The dtype of a model's numbers: rows are given in it."""
    found = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(found, torch.get_default_dtype())


def _open(
    path: Path, data: Any, count: int, names: Any, environment: dict[str, Any]
) -> tuple[nn.Module, Samples, dict[str, Any]]:
    """A run's network, the inputs to analyze it on, and what is known of the run."""
    # The only place here that opens a run.
    from quadric.train.network import load_run

    run = load_run(path, **environment)
    recipe = run.recipe
    flat = False
    if data is None:
        flat = bool(getattr(run.data, "flat", False))
        known = isinstance(run.data.data, SplitDataset)  # as it was limited and split
        data = run.data.data if known else run.data.test(0, 1)
    inputs = samples(data, count, flat=flat, names=names)
    keys = ("dataset", "model", "neuron", "rank", "seed")
    return run.network, inputs, {"recipe": recipe.name, **{k: getattr(recipe, k) for k in keys}}


def _shown(
    inputs: Samples, show: Sequence[int] | None, pictures: Sequence[str | Path]
) -> Tensor | None:
    """The pictures whose responses are kept; None for other inputs than pictures."""
    if pictures:
        return read_pictures(pictures, inputs)
    if show is not None:
        return inputs.take(show)
    if inputs.columns is not None:
        return None
    first = next(iter(inputs.batches()))
    first = first[0] if isinstance(first, (tuple, list)) else first
    if not isinstance(first, Tensor) or first.dim() != 4:
        return None
    return inputs.take([(2 * i + 1) * inputs.count // (2 * SHOWN) for i in range(SHOWN)])


def _formula(model: nn.Module, inputs: Samples) -> dict[str, Any]:
    """The learned function in the columns' own units, or why there is none."""
    columns = inputs.columns
    assert columns is not None
    if not has_formula(model):
        return {
            "reason": "the network has activations, so there is no polynomial of the columns; "
            "quadric.analysis.to_sympy(model).layers has each layer's"
        }
    try:
        formula = to_sympy(model, names=columns.names, scale=columns.scale, digits=4)
    except (InputError, MissingExtraError) as error:
        return {"reason": str(error)}
    assert formula.outputs is not None
    terms = max(len(expression.args) for expression in formula.outputs)
    if terms > LONGEST_FORMULA:
        return {"reason": f"it has {terms} terms; quadric.analysis.to_sympy(model) gives them"}
    return {"text": [str(expression) for expression in formula.outputs]}


def as_text(analysis: dict[str, Any]) -> str:
    """An analysis as tables."""
    header = ["layer", "neuron", "weights", "quadratic parameters", "eigenvalues", "eff. rank"]
    header += ["share", "correlation", "low freq. linear", "quadratic"]
    parts = [text_table(header, map(_layer_cells, analysis["layers"]), "llrrrrrrrr")]
    parts.append("Weights, parameters and eigenvalues: 5 % … 95 %. Shares: mean ± deviation.")
    if "low_frequency" in analysis:
        parts.append(analysis["low_frequency"]["sentence"])
    coupled = analysis.get("couplings")
    if coupled is not None:
        head = ["pair", "by quadratic forms", "by the whole network", "factor of the product"]
        if coupled["ranked_by"] == "total":
            head.pop(1)
        ranked = ranked_list(coupled)
        head = head[: len(ranked[0])] if ranked else head
        parts.append(
            f"What the network couples, in {coupled['target']}"
            f"{_in_unit(coupled['target_unit'])} per deviation of both columns:\n\n"
            + text_table(head, ranked, "lrrr"[: len(head)])
        )
        parts += coupled.get("notes", ())
    formula = analysis.get("formula", {})
    if "text" in formula:
        parts.append("The learned function:\n" + "\n".join(formula["text"]))
    elif formula:
        parts.append(f"No formula: {formula['reason']}.")
    notes = [f"{each['name']}: {note}" for each in analysis["layers"] for note in each["notes"]]
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])])


def _in_unit(unit: str) -> str:
    return f" ({unit})" if unit and unit != "1" else ""


def _layer_cells(layer: dict[str, Any]) -> list[str]:
    boxes = [layer[key] and layer[key]["quantiles"] for key in ("weights", *_OF_SQUARES)]
    rank, low = layer["effective_rank"], layer.get("low_frequency", {})
    return [
        layer["name"],
        layer["neuron"],
        *("-" if box is None else f"{box[1]:.3g} … {box[5]:.3g}" for box in boxes),
        "-" if rank is None else f"{rank['mean']:.2f}",
        "-" if layer["share"] is None else f"{layer['share']:.4f}",
        "-" if layer["correlation"] is None else f"{layer['correlation']:+.3f}",
        *(_spread(low.get(part)) for part in ("linear", "quadratic")),
    ]


def _spread(share: dict[str, Any] | None) -> str:
    if share is None:
        return "-"
    deviation = "" if share["std"] is None else f" ± {share['std']:.3f}"
    return f"{share['mean']:.3f}{deviation}"
