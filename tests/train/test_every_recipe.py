"""Every recipe makes a step on synthetic data of the right shape; runs on pictures in folders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from quadric import models
from quadric.data.tables import TableData
from quadric.layers import QuadraticLayer
from quadric.train import catalog
from quadric.train.data import load_data
from quadric.train.network import build_network
from quadric.train.runner import plan_run, train
from quadric.train.step import TrainingModule
from tests.data.text.small import corpus
from tests.train.small import pictures

PIL = pytest.importorskip("PIL.Image")

SHAPES = {"digits": (1, 8, 8), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
SHAPES |= {"mnist": (1, 22, 22)}
SHAPES |= {"folders": (3, 64, 64)}  # smaller than the real ones: the network takes any size
CLASSES = {"digits": 10, "mnist": 10, "cifar10": 10, "cifar100": 100, "folders": 1000}
SLOW = {"cifar10-resnet110", "cifar10-wide-resnet56", "cifar10-wide-resnet110"}
SLOW |= {"imagenet-resnet18-knn11", "imagenet-resnet18-knn15"}


def synthetic(folder: Path, name: str) -> tuple[Any, dict[str, Any]]:
    """Data for a recipe, and the fields that make its step small."""
    dataset = catalog.load(name).dataset
    if dataset in SHAPES:
        return pictures(SHAPES[dataset], CLASSES[dataset], train=2, test=1), {"batch_size": 2}
    if dataset.startswith("law:"):
        return None, {"samples": 8, "batch_size": 4, "neuron": "eigen"}
    if dataset.startswith("uci:"):
        inputs, targets = torch.randn(20, 8), torch.randn(20, 1)
        names = tuple("abcdefgh")
        table = TableData(dataset, inputs, targets, inputs[:5], targets[:5], names, "y")
        return table, {"neuron": "shared"}
    options: dict[str, Any] = {"data_dir": str(corpus(folder / "data", 40)), "batch_size": 100}
    options |= {"dataset_options": {"vocabulary": 310}, "neuron": "eigen"}
    return None, options | {"model_options": {"depth": 1}}


def step(folder: Path, name: str, **more: Any) -> nn.Module:
    """The network after the first step of a recipe's training."""
    data, options = synthetic(folder, name)
    recipe = plan_run(name, options | more).recipe
    loaded = load_data(recipe, data)
    module = TrainingModule(build_network(recipe, loaded), loaded, recipe)
    inputs, targets = next(iter(loaded.train(0, 1)))
    loss = loaded.task.loss(loaded.task.outputs(module.network, inputs), targets)
    loss.backward()
    assert bool(loss.isfinite())
    without = [n for n, p in module.network.named_parameters() if p.grad is None]
    assert without == []
    return module.network


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in catalog.names()],
)
def test_a_step_of_each_recipe(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUADRIC_CACHE", str(tmp_path / "cache"))
    network = step(tmp_path, name)
    layers = [m for m in network.modules() if isinstance(m, QuadraticLayer)]
    if "-transformer" in name:
        assert len(layers) == (2 * 2 if "feedforward" in name else 4 * 3)
    else:
        neuron = catalog.load(name).neuron
        assert bool(layers) == (neuron != "linear" or name.startswith(("law-", "uci-")))


@pytest.mark.parametrize("depth", [20, 32, 56, 110])
def test_the_pairs_of_figure_5(depth: int) -> None:
    """The paper widens its own network alone: a pair is what recipes and docs say it is."""
    wide = catalog.load(f"cifar10-wide-resnet{depth}")
    plain = re.search(r"against (\S+) --neuron (\S+)", wide.reproduces)
    assert plain is not None
    other = catalog.load(plain[1]).with_overrides({"neuron": plain[2]})
    assert f"--neuron {plain[2]}" in other.reproduces.partition("Fig. 5")[2]
    counts = []
    for recipe in (wide, other):
        options = {} if recipe.channels is None else {"channels": recipe.channels}
        with torch.device("meta"):
            network = models.create(recipe.model, recipe.neuron, rank=recipe.rank, **options)
        counts.append(sum(p.numel() for p in network.parameters()))
    assert f"{counts[0] / counts[1] - 1:.1%}" == ("-24.7%" if depth == 20 else "-24.8%")
    docs = Path(__file__).parents[2] / "docs" / "training.md"
    row = next(line for line in docs.read_text().splitlines() if line.startswith(f"| {depth} |"))
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells == [
        str(depth),
        f"`{wide.name}`",
        f"{counts[0]:,}",
        f"`{plain[1]}`",
        f"{counts[1]:,}",
        f"{100 * (counts[0] / counts[1] - 1):.1f} %",
    ]


def write_pictures(folder: Path, classes: int, train: int, test: int) -> None:
    draw = torch.Generator().manual_seed(0)
    for part, count in (("train", train), ("val", test)):
        for label in range(classes):
            (folder / part / f"class{label}").mkdir(parents=True)
            for i in range(count):
                pixels = torch.randint(256, (24, 20, 3), generator=draw, dtype=torch.uint8)
                image = PIL.fromarray(pixels.numpy())
                image.save(folder / part / f"class{label}" / f"{i}.jpg")


def folder_run(tmp_path: Path, **overrides: Any) -> dict[str, Any] | None:
    options = {"data_dir": str(tmp_path / "data"), "resize": 32, "batch_size": 4, "epochs": 1}
    options |= {"milestones": [1], "width": 0.125, "workers": 0}
    return train(plan_run("imagenet-resnet18", options | overrides, run_dir=tmp_path / "run"))


# Four pictures at a rate for 256: the weights grow wild, which is said, and not asked here.
WILD = pytest.mark.filterwarnings("ignore::quadric.watchdog.CurvatureWarning")


@WILD
def test_pictures_in_folders(tmp_path: Path) -> None:
    write_pictures(tmp_path / "data", classes=3, train=4, test=2)
    overrides = {"neuron": "kervolution", "first": 3}
    result = folder_run(tmp_path, **overrides)
    assert result is not None
    assert (result["neuron"], result["status"]) == ("kervolution", "ok")
    assert result["settings"]["first"] == 3


@WILD
def test_a_broken_picture_is_skipped_with_a_warning_or_refused(tmp_path: Path) -> None:
    write_pictures(tmp_path / "data", classes=3, train=4, test=2)
    broken = tmp_path / "data" / "train" / "class1" / "2.jpg"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"broken picture .*class1/2.jpg"):
        folder_run(tmp_path, on_broken="refuse")
    (tmp_path / "run").rename(tmp_path / "refused")
    with pytest.warns(UserWarning, match=r"skipped broken picture .*class1/2.jpg"):
        result = folder_run(tmp_path)
    assert result is not None
    assert result["broken_pictures"] == 1
    # A run that goes on remembers: its picture was mended meanwhile, or is another process's.
    (tmp_path / "run" / "result.json").unlink()
    broken.unlink()
    again = train(plan_run(str(tmp_path / "run")), resume=True)
    assert again is not None
    assert again["broken_pictures"] == 1
