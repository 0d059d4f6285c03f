"""Training by a recipe is as fast as a loop written by hand, and data costs next to nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from quadric import models
from quadric.train.data import load_data
from quadric.train.recipe import Recipe
from quadric.train.run import Run, find_run, train
from tests.train.small import pictures

STEPS = 12


@pytest.fixture
def threads() -> int:
    """Both cores, as a user's run has them."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2  # type: ignore[misc]
    torch.set_num_threads(before)


def resnet20(folder: Path, **overrides: object) -> Run:
    # One test picture: the epoch is its training steps.
    return find_run(
        "cifar10-resnet20", {"epochs": 1, "milestones": [1]} | overrides, run_dir=folder
    )


def plain_loop(recipe: Recipe, batches: object) -> float:
    """What somebody would write who has no library."""
    torch.manual_seed(recipe.seed)
    model = models.create("resnet20")
    optimizer = torch.optim.SGD(model.parameters(), recipe.lr, recipe.momentum, weight_decay=1e-4)
    start = time.perf_counter()
    for inputs, targets in batches:  # type: ignore[attr-defined]
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - start


def interleaved(first: Callable[[], float], second: Callable[[], float], rounds: int) -> float:
    """The ratio of the two best times: what else runs on the machine only makes times longer."""
    times = [(first(), second()) for _ in range(rounds)]
    return min(t[0] for t in times) / min(t[1] for t in times)


@pytest.mark.slow
def test_a_recipe_is_as_fast_as_a_plain_loop(tmp_path: Path, threads: int) -> None:
    data = pictures((3, 32, 32), 10, train=STEPS * 128, test=1)

    def ours() -> float:
        run = resnet20(tmp_path / "run")
        result = train(run, overwrite=True, data=data)
        assert result is not None
        return float(result["epochs"][0]["seconds"])

    def theirs() -> float:
        run = resnet20(tmp_path / "run")
        return plain_loop(run.recipe, load_data(run.recipe, data).train(0, 1))

    ratio = interleaved(ours, theirs, rounds=6)
    print(f"recipe / plain loop: {ratio:.3f}")
    assert ratio < 1.05


@pytest.mark.slow
def test_data_costs_less_than_a_twentieth_of_a_step(tmp_path: Path, threads: int) -> None:
    data = pictures((3, 32, 32), 10, train=STEPS * 128, test=1)
    run = resnet20(tmp_path / "run")
    batches = load_data(run.recipe, data).train(0, 1)

    def only_data() -> float:
        start = time.perf_counter()
        for _ in batches:
            pass
        return time.perf_counter() - start

    ratio = interleaved(only_data, lambda: plain_loop(run.recipe, batches), rounds=4)
    print(f"data / step: {ratio:.4f}")
    assert ratio < 0.05
