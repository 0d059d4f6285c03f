"""Results as runs write them, made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quadric.runs.reading import RunResult, read_runs
from quadric.train import catalog

BASE = catalog.load("digits")


def result(accuracy: float | None, **overrides: Any) -> dict[str, Any]:
    """What result.json holds after a run on digits; without an accuracy it diverged."""
    recipe = BASE.with_overrides(overrides).resolved()
    return {
        "recipe": recipe.name,
        "dataset": recipe.dataset,
        "model": recipe.model,
        "neuron": recipe.neuron,
        "rank": recipe.rank,
        "seed": recipe.seed,
        "status": "ok" if accuracy is not None else "diverged",
        "params": 1000,
        "macs": 20000,
        "test_accuracy": accuracy,
        "test_loss": None if accuracy is None else 1 - accuracy,
        "quadratic_share": {"conv1": 0.1, "conv2": 0.3} if recipe.neuron == "eigen" else None,
        "epochs": [{"seconds": 2.0}, {"seconds": 4.0}],
        "settings": recipe.identity(),
    }


LINEAR = [result(a, seed=s) for s, a in enumerate((0.90, 0.92, 0.91))]
EIGEN = [result(a, seed=s, neuron="eigen") for s, a in enumerate((0.92, 0.93, 0.925))]


def read(*results: dict[str, Any]) -> list[RunResult]:
    """Results that have no fault, read."""
    runs, notes = read_runs(results)
    assert notes == []
    return runs


def write_run(path: Path, content: Any) -> Path:
    """A run directory with this result.json."""
    path.mkdir(parents=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (path / "result.json").write_text(text, encoding="utf-8")
    return path
