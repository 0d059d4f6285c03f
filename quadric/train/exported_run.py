"""Runs as networks to be exported: what `quadric export` makes of a run directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quadric.data import TEXTS
from quadric.data.folders import FolderData
from quadric.data.images import ImageData
from quadric.data.tables import Standardization
from quadric.errors import InputError
from quadric.exporting.checking import TOLERANCES
from quadric.exporting.deploying import Deployable
from quadric.exporting.step_files import export_steps
from quadric.support.writing import whole_file
from quadric.train.data import RunData, TableRunData
from quadric.train.directory import RunDirectory
from quadric.train.network import build_network, load_run
from quadric.train.tasks import Classification
from quadric.train.text_run_data import TextRunData

_SCALE = dataclasses.fields(Standardization)

ROWS = 16
"""Of a table's training rows, on which a file is compared with the network."""


def from_run(path: str | Path, code: Sequence[str] = (), **environment: Any) -> Deployable:
    """The network of a finished run, with its data."""
    run = load_run(path, code, **environment)
    recipe, data, network = run.recipe, run.data, run.network
    linear = None
    if recipe.neuron != "linear":
        linear = build_network(recipe.with_overrides({"neuron": "linear"}).resolved(), data)
    (example,), tolerance = data.example_inputs(), None
    if isinstance(data, TableRunData):
        network = InUnits(network, data.scale)
        linear = None if linear is None else InUnits(linear, data.scale)
        example = data.data.train_inputs[:ROWS]
        tolerance = _tolerance(data.scale)
    rank = "" if recipe.rank is None else f", rank {recipe.rank}"

    def calibration(count: int) -> list[Tensor]:
        batches: list[Tensor] = []
        for inputs, _ in data.train(0, 1):
            if isinstance(data, TableRunData):
                inputs = data.scale.restore_inputs(inputs)
            batches.append(inputs[: count - sum(map(len, batches))])
            if sum(map(len, batches)) >= count:
                break
        return batches

    classifies = isinstance(data.task, Classification)
    return Deployable(
        str(run.directory.path),
        recipe.neuron + rank,
        network,
        linear,
        (example,),
        calibration,
        (lambda: data.test(0, 1)) if classifies else None,
        _units(data),
        tolerance,
    )


def export_translation(
    path: str | Path, out: Path, opset: int, code: Sequence[str] = ()
) -> dict[str, Any]:
    """Writes a translation run as two ONNX files, with its tokenizer beside them."""
    if out.suffix != ".onnx":
        raise InputError(f"a translation run is written as .onnx, got {str(out)!r}")
    run = load_run(path, code)
    assert isinstance(run.data, TextRunData)
    files = export_steps(run.network, out, opset)
    tokenizer = out.with_name(f"{out.stem}-tokenizer.model")
    with whole_file(tokenizer) as file:
        file.write_bytes(run.data.tokenizer.content)
    written = [str(file) for file in (files.encoder, files.step, tokenizer)]
    return {"run": str(run.directory.path), "files": written, "bytes": files.size}


def is_translation(path: str | Path) -> bool:
    """Whether a directory holds a translation run."""
    return RunDirectory(Path(path)).recipe().dataset in TEXTS


def _tolerance(scale: Standardization) -> float:
    """The tolerance of a file that gives a target in its own units.

    There a difference counts against the target's spread, while files are compared by their largest
    output. It is no finer than float32.
    """
    spread, mean = float(scale.target_std.abs().max()), float(scale.target_mean.abs().max())
    return max(TOLERANCES[torch.float32] * spread / max(spread, mean), 1e-6)


class InUnits(nn.Module):
    """A network of standardized columns that takes and gives them in their own units."""

    def __init__(self, network: nn.Module, scale: Standardization) -> None:
        super().__init__()
        self.network = network
        for field in _SCALE:
            self.register_buffer(field.name, getattr(scale, field.name).clone())

    def forward(self, input: Tensor) -> Tensor:
        """Scales, computes and scales back."""
        scale = Standardization(*(self.get_buffer(f.name) for f in _SCALE))
        out: Tensor = scale.restore_targets(self.network(scale.inputs(input)))
        return out


def _units(data: RunData) -> dict[str, Any]:
    """What an exported network takes and gives."""
    if isinstance(data, TableRunData):
        columns, target = list(data.data.input_names), data.data.target_name
        text = f"in own units: takes {', '.join(columns)}; gives {target}"
        return {"text": text, "inputs": columns, "output": target}
    if isinstance(data.data, ImageData | FolderData):
        how = data.data.normalization
        mean, std = (", ".join(f"{v:.4g}" for v in values) for values in (how.mean, how.std))
        text = f"takes (pixel / {how.scale:g} - mean) / std, with mean {mean} and std {std}"
        numbers = {"scale": how.scale, "mean": list(how.mean), "std": list(how.std)}
        return {"text": text, **numbers}
    return {}
