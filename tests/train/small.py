"""Runs that take a fraction of a second."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import torch

from quadric.data.images import CropFlip, ImageData
from quadric.train.directory import RunDirectory
from quadric.train.runner import PlannedRun, plan_run, train

LAW = {"samples": 256, "batch_size": 64, "epochs": 3}
# Starts a program that listens to Ctrl-C, as a terminal does. One that a script starts with & does
# not, nor does what that starts in turn: the tests themselves may be such.
LISTENING = [
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL);"
    "os.execv(sys.argv[1], sys.argv[1:])",
]


def law_run(folder: Path, **overrides: Any) -> PlannedRun:
    """A perceptron that learns a law from 256 samples, four steps an epoch."""
    return plan_run("law-lorentz", LAW | overrides, run_dir=folder)


def law_result(folder: Path, **overrides: Any) -> dict[str, Any]:
    result = train(law_run(folder, **overrides))
    assert result is not None
    return result


def curve(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The epochs of a result without the seconds they took."""
    return [{k: v for k, v in record.items() if k != "seconds"} for record in result["epochs"]]


def metrics(directory: RunDirectory) -> list[dict[str, str]]:
    """The rows of a run's metrics.csv."""
    with directory.metrics_file.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def pictures(shape: tuple[int, int, int], classes: int, train: int, test: int) -> ImageData:
    """Random pictures and labels."""
    draw = torch.Generator().manual_seed(0)

    def part(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randint(256, (count, *shape), generator=draw, dtype=torch.uint8)
        return images, torch.arange(count) % classes

    train_images, train_labels = part(train)
    test_images, test_labels = part(test)
    return ImageData(
        name="random",
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        mean=(0.5,) * shape[0],
        std=(0.25,) * shape[0],
        class_names=tuple(str(i) for i in range(classes)),
        augmentation=CropFlip(padding=1),
    )
