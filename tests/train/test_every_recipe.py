"""Every recipe trains for two steps on synthetic data of the right shape, and in folders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from quadric import models
from quadric.data import laws
from quadric.data.tables import TableData
from quadric.train import catalog
from quadric.train.runner import plan_run, train
from tests.data.text.small import corpus
from tests.train.small import pictures

PIL = pytest.importorskip("PIL.Image")

SHAPES = {"digits": (1, 8, 8), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
SHAPES |= {"folders": (3, 64, 64)}  # smaller than the real ones: the network takes any size
CLASSES = {"digits": 10, "cifar10": 10, "cifar100": 100, "folders": 1000}
SLOW = {"cifar10-resnet110", "cifar10-wide-resnet56", "cifar10-wide-resnet110"}
SLOW |= {"imagenet-resnet18-knn11", "imagenet-resnet18-knn15"}
TEXTS = [name for name in catalog.names() if "-transformer" in name]
TABLES = ("law-", "uci-")
PICTURES = [n for n in catalog.names() if not n.startswith(TABLES) and n not in TEXTS]


def two_steps(folder: Path, name: str, data: Any, **overrides: Any) -> dict[str, Any]:
    overrides = {"epochs": 1, "batch_size": 2} | overrides
    if catalog.load(name).schedule == "step":
        overrides |= {"milestones": [1]}
    result = train(plan_run(name, overrides, run_dir=folder), data=data)
    assert result is not None
    assert (result["status"], len(result["epochs"])) == ("ok", 1)
    return result


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in PICTURES],
)
def test_pictures(tmp_path: Path, name: str) -> None:
    dataset = catalog.load(name).dataset
    # As many classes as the real data has, of which two pictures show two.
    data = pictures(SHAPES[dataset], CLASSES[dataset], train=2, test=1)
    neuron = catalog.load(name).neuron
    result = two_steps(tmp_path / "run", name, data, batch_size=1)
    assert result["neuron"] == neuron
    assert result["params"] > 10_000


@pytest.mark.parametrize("neuron", ["fan", "quadralib"])
def test_the_plain_network_takes_the_neurons_of_the_comparison(tmp_path: Path, neuron: str) -> None:
    data = pictures((3, 32, 32), 10, train=2, test=1)
    options = {"neuron": neuron, "batch_size": 1}
    assert two_steps(tmp_path / "run", "cifar10-resnet20", data, **options)["params"] == 805_114


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


@pytest.mark.parametrize("name", laws.names())
def test_laws(tmp_path: Path, name: str) -> None:
    two_steps(tmp_path / "run", f"law-{name}", None, samples=8, batch_size=4, neuron="eigen")


def test_tables(tmp_path: Path) -> None:
    def part(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(count, 8), torch.randn(count, 1)

    (inputs, targets), (test_inputs, test_targets) = part(20), part(5)
    names = tuple("abcdefgh")
    data = TableData("uci:kin8nm", inputs, targets, test_inputs, test_targets, names, "y")
    result = two_steps(tmp_path / "run", "uci-kin8nm", data, batch_size=9, neuron="shared")
    assert result["best_epoch"] == 1
    assert result["test_rmse"] > 0


@pytest.mark.parametrize("name", TEXTS)
def test_texts(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUADRIC_CACHE", str(tmp_path / "cache"))
    folder = corpus(tmp_path / "data", 40)
    options = {"data_dir": str(folder), "average": 1, "epoch_steps": 2, "batch_size": 100}
    options |= {"dataset_options": {"vocabulary": 310}, "pass_tokens": 60, "neuron": "eigen"}
    options["model_options"] = {"depth": 1}
    result = two_steps(tmp_path / "run", name, None, **options)
    layers = 2 * 2 if "feedforward" in name else 4 * 3
    assert len(result["quadratic_share"]) == layers


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


def test_pictures_in_folders(tmp_path: Path) -> None:
    write_pictures(tmp_path / "data", classes=3, train=4, test=2)
    overrides = {"neuron": "kervolution", "first": 3}
    result = folder_run(tmp_path, **overrides)
    assert result is not None
    assert (result["neuron"], result["status"]) == ("kervolution", "ok")
    assert result["settings"]["first"] == 3


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


@pytest.mark.slow
def test_broken_pictures_of_all_processes_are_counted(tmp_path: Path) -> None:
    write_pictures(tmp_path / "data", classes=3, train=9, test=2)
    for i in range(3):
        (tmp_path / "data" / "train" / f"class{i}" / "0.jpg").write_bytes(b"")
    (tmp_path / "data" / "val" / "class0" / "0.jpg").write_bytes(b"")
    result = folder_run(tmp_path, devices=2, batch_size=8)
    assert result is not None
    assert result["broken_pictures"] == 4
