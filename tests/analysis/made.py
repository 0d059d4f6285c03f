"""Results and analyses as plain data, made up for figures and the page."""

from __future__ import annotations

import json
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import quadric
from quadric import analysis


def result(
    neuron: str = "eigen", seed: int = 0, width: float = 1.0, **changes: Any
) -> dict[str, Any]:
    """The result of a run on digits that never was."""
    accuracy = 0.9 + 0.01 * seed
    epochs = [
        {"epoch": i, "train_loss": 2.0 / i, "test_loss": 2.5 / i, "train_accuracy": 0.1 * i,
         "test_accuracy": 0.09 * i, "quadratic_share": {"conv1": 0.1}, "seconds": 0.5}
        for i in range(1, 6)
    ]  # fmt: skip
    made = {
        "recipe": "digits",
        "dataset": "digits",
        "model": "digits_cnn",
        "neuron": neuron,
        "rank": 9 if neuron == "eigen" else None,
        "seed": seed,
        "status": "ok",
        "params": int(1000 * width),
        "macs": int(9000 * width),
        "test_accuracy": accuracy,
        "test_loss": 0.5,
        "quadratic_share": {"conv1": 0.1, "conv2": 0.3},
        "epochs": epochs,
        "seconds": 3.5,
        "versions": {"quadric": "0.1.0"},
        "command": f"quadric train digits --neuron {neuron} --seed {seed}",
        "settings": {"name": "digits", "neuron": neuron, "seed": seed, "width": width},
    }
    return made | changes


def law_result(neuron: str = "shared", seed: int = 0, **changes: Any) -> dict[str, Any]:
    """The result of a run on a law that never was."""
    made = result(neuron, seed, recipe="law-lorentz", dataset="law:lorentz", model="mlp")
    made |= {"test_rmse": 0.5 + 0.1 * seed, "epochs": []}
    del made["test_accuracy"]
    return made | changes


def diverged(**changes: Any) -> dict[str, Any]:
    """The result of a run that diverged: nulls wherever a number was not finite."""
    made = result("kervolution", status="diverged", test_accuracy=None, test_loss=None)
    made["diverged"] = {"message": "training diverged: the loss is nan at step 2"}
    made["epochs"] = [
        {"seconds": 1.0, "epoch": 1, "train_loss": 9.0, "test_loss": 99.0, "test_accuracy": 0.1},
        {"seconds": 1.0, "epoch": 2, "train_loss": None, "test_loss": None, "test_accuracy": None},
    ]
    return made | changes


@lru_cache(maxsize=1)
def picture_analysis() -> dict[str, Any]:
    """A real analysis of a small convolutional network that is quadratic."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    model = nn.Sequential(*plain, nn.Flatten(), nn.Linear(512, 3))
    quadric.convert_(model, rank=3)
    for layer in (model[0], model[2]):
        nn.init.normal_(layer.eigenvalues)  # type: ignore[arg-type]
    return dict(analysis.analyze(model, torch.randn(20, 1, 8, 8)))


@lru_cache(maxsize=1)
def table_analysis() -> dict[str, Any]:
    """A real analysis of a small network on a law."""
    from quadric.data import laws

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.SiLU(), nn.Linear(6, 1))
    quadric.convert_(model, rank=2)
    nn.init.normal_(model[0].eigenvalues)  # type: ignore[arg-type]
    return dict(analysis.analyze(model, laws.table("lorentz", 50, 50)))


@lru_cache(maxsize=1)
def trained_runs() -> Path:
    """A folder with two small runs, digits and law; nobody writes into it."""
    import quadric.train

    folder = Path(tempfile.mkdtemp())
    small = {"neuron": "eigen", "rank": 3, "epochs": 1, "progress": False}
    quadric.train.run("digits", limit=100, channels=[4, 8, 8], run_dir=folder / "digits", **small)
    quadric.train.run("law-lorentz", samples=64, hidden=[8, 8], run_dir=folder / "law", **small)
    return folder


def run_directory(path: Path, content: Any, analyzed: Any = None) -> Path:
    """A run directory as far as figures and the page read it."""
    path.mkdir(parents=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (path / "result.json").write_text(text, encoding="utf-8")
    if analyzed is not None:
        text = analyzed if isinstance(analyzed, str) else json.dumps(analyzed)
        (path / "analysis.json").write_text(text, encoding="utf-8")
    return path
