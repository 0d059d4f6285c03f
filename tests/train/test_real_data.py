"""Real data sets through the commands, where they are at hand; their formats always.

`QUADRIC_TEST_DATA` names a directory that holds `tiny-imagenet-10` (`train/<class>/*.JPEG`,
`val/<class>/*.JPEG`) and `cifar-10-batches-bin`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from quadric.cli.app import app

PIL = pytest.importorskip("PIL.Image")

RECORD = 1 + 3 * 32 * 32
BATCHES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


def real(name: str) -> Path:
    """A real data set, or the reason why the test is skipped."""
    parent = os.environ.get("QUADRIC_TEST_DATA")
    if not parent:
        pytest.skip(f"QUADRIC_TEST_DATA does not name a directory with {name}")
    if not (Path(parent) / name).is_dir():
        pytest.skip(f"{parent} (QUADRIC_TEST_DATA) holds no {name}")
    return Path(parent) / name


def written_pictures(folder: Path) -> Path:
    """Ten classes of JPEG files, named and sized like those of Tiny-ImageNet."""
    draw = torch.Generator().manual_seed(0)
    for part, count in (("train", 4), ("val", 2)):
        for label in range(10):
            wordnet = f"n{1443537 + label:08}"
            (folder / part / wordnet).mkdir(parents=True)
            for i in range(count):
                # Some are gray, as in ImageNet.
                shape = (64, 64) if i == 1 else (64, 64, 3)
                pixels = torch.randint(256, shape, generator=draw, dtype=torch.uint8)
                PIL.fromarray(pixels.numpy()).save(
                    folder / part / wordnet / f"{wordnet}_{i}.JPEG", format="JPEG"
                )
    return folder


def written_cifar(folder: Path) -> Path:
    """Six files of 10,000 records; a few at their beginnings are random, the others black."""
    draw = torch.Generator().manual_seed(0)
    folder.mkdir()
    for name in BATCHES:
        records = torch.randint(256, (500, RECORD), generator=draw, dtype=torch.uint8)
        records[:, 0] %= 10
        with (folder / name).open("wb") as file:
            file.write(records.numpy().tobytes())
            file.truncate(10_000 * RECORD)  # a hole: it takes no room on the disk
    return folder


def quadric(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def trained(tmp_path: Path, *words: str) -> dict[str, Any]:
    done = quadric("train", *words, "--run-dir", str(tmp_path / "run"), "--quiet")
    assert done.exit_code == 0, done.output
    result: dict[str, Any] = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "ok"
    assert result["command"].startswith("quadric train ")
    assert "--data-dir" in result["command"]
    again = json.loads(quadric("evaluate", str(tmp_path / "run"), "--json", "-").stdout)
    assert again["test_accuracy"] == pytest.approx(result["test_accuracy"])
    return result


@pytest.mark.parametrize("kind", ["written", "real"])
def test_pictures_in_folders(tmp_path: Path, kind: str) -> None:
    data = (
        real("tiny-imagenet-10") if kind == "real" else written_pictures(tmp_path / "my pictures")
    )
    words = "imagenet-resnet18-quick --epochs 1 --limit 32 --batch-size 16 --width 0.125"
    words += " --workers 1 --neuron eigen"
    result = trained(tmp_path, *words.split(), "--data-dir", str(data))
    assert result["dataset"] == "folders"
    assert len(result["quadratic_share"]) == 20
    assert result["broken_pictures"] == 0
    # Ten classes: the head of the smallest network has ten rows of 64 weights and a bias.
    assert result["params"] == pytest.approx(178_000, rel=0.02)


@pytest.mark.parametrize("kind", ["written", "real"])
def test_cifar10_in_the_binary_version(tmp_path: Path, kind: str) -> None:
    data = (
        real("cifar-10-batches-bin")
        if kind == "real"
        else written_cifar(tmp_path / "cifar-10-batches-bin")
    )
    words = "cifar10-resnet20-quick --epochs 1 --limit 64 --batch-size 32 --neuron eigen"
    # Its directory or the one around it.
    result = trained(tmp_path, *words.split(), "--data-dir", str(data.parent))
    assert result["dataset"] == "cifar10"
    assert result["settings"]["resize"] == 16
    assert result["params"] == pytest.approx(272_000, rel=0.02)
