"""What every data set in parts promises: its batches, its order, its validation part.

`DATA` makes one of each kind with 30 training samples of three classes and 7 test samples, all
different from each other. Without augmentation a batch then tells which samples it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import TensorDataset

from quadric.data import ImageData, folders, laws
from quadric.data.images import CropFlip
from quadric.data.user_dataset import make_data
from tests.refusals import Check, refusals

TRAIN, TEST = 30, 7


def images(folder: Path | None = None) -> ImageData:
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(1, 256, (TRAIN + TEST, 2, 6, 6), generator=draw, dtype=torch.uint8)
    labels = torch.arange(TRAIN + TEST) % 3
    return ImageData(
        "toy",
        pixels[:TRAIN],
        labels[:TRAIN],
        pixels[TRAIN:],
        labels[TRAIN:],
        mean=(0.5, 0.4),
        std=(0.25, 0.2),
        class_names=("a", "b", "c"),
        augmentation=CropFlip(1),
    )


def in_folders(folder: Path) -> Any:
    for i in range(TRAIN + TEST):
        path = folder / ("train" if i < TRAIN else "val") / "abc"[i % 3] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 10), (6 * i, 0, 0)).save(path)
    return folders.load(folder, size=8, workers=0)


def table(folder: Path) -> Any:
    return laws.table("lorentz", TRAIN, TEST)


def tensors(folder: Path) -> Any:
    data = images()
    train, test = ((x.float(), y) for x, y in (data.part("train"), data.part("test")))
    return make_data((train, test), "toy")


class Labeled(TensorDataset):
    num_classes = 3


def dataset(folder: Path) -> Any:
    data = images()
    train, test = (Labeled(x.float(), y) for x, y in (data.part("train"), data.part("test")))
    return make_data((train, test), "toy")


DATA = [images, in_folders, table, tensors, dataset]


@pytest.fixture(params=DATA, ids=lambda make: make.__name__)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    make: Callable[[Path], Any] = request.param
    return make(tmp_path)


def samples(batches: Any) -> list[tuple[float, ...]]:
    """Each sample of an iteration, its input and target in one."""
    return [
        (*x.flatten().tolist(), *y.flatten().tolist())
        for inputs, targets in batches
        for x, y in zip(inputs, targets, strict=True)
    ]


def plain(data: Any, size: int = 8, epoch: int = 0, **options: Any) -> Any:
    """Training batches without augmentation."""
    batches = data.train_batches(size, augment=False, **options)
    batches.set_epoch(epoch)
    return batches


def test_each_sample_is_seen_once_an_epoch(data: Any) -> None:
    in_order = samples(plain(data, shuffle=False))
    assert len(set(in_order)) == data.train_size == TRAIN
    shuffled = samples(plain(data))
    assert shuffled != in_order
    assert sorted(shuffled) == sorted(in_order)
    test = samples(data.test_batches(4))
    assert len(set(test)) == TEST
    assert not set(test) & set(in_order)
    inputs, targets = next(iter(plain(data)))
    assert inputs.dtype == torch.float32
    assert len(inputs) == len(targets) == 8


def test_the_order_follows_seed_and_epoch_and_nothing_else(data: Any) -> None:
    state = torch.get_rng_state()
    first = samples(plain(data, seed=5))
    assert samples(plain(data, seed=5, epoch=1)) != first
    assert samples(plain(data, seed=6)) != first
    batches = plain(data, seed=5, epoch=1)
    batches.set_epoch(0)
    torch.manual_seed(7)
    assert samples(batches) == samples(batches) == first
    torch.set_rng_state(state)
    samples(plain(data))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [8, 8, 8, 6]), (True, [8, 8, 8])])
def test_length_and_the_last_batch(data: Any, drop_last: bool, sizes: list[int]) -> None:
    batches = plain(data, drop_last=drop_last)
    assert [len(targets) for _, targets in batches] == sizes
    assert len(batches) == len(sizes)


def test_two_processes_share_each_batch_of_one(data: Any) -> None:
    one = plain(data, 6, seed=2)
    ranks = [list(plain(data, 3, seed=2, rank=rank, world_size=2)) for rank in (0, 1)]
    assert len(one) == len(ranks[0]) == len(ranks[1]) == 5
    for whole, *halves in zip(one, *ranks, strict=True):
        assert sorted(samples([whole])) == sorted(samples(halves))


def test_training_pads_and_testing_does_not(data: Any) -> None:
    kept, _ = torch.arange(TRAIN).split([7, TRAIN - 7])
    few = data.take("train", kept)
    padded = [plain(few, 2, rank=rank, world_size=2) for rank in (0, 1)]
    assert [len(samples(batches)) for batches in padded] == [4, 4]
    assert [len(batches) for batches in padded] == [2, 2]
    tests = [data.test_batches(2, rank=rank, world_size=2) for rank in (0, 1)]
    assert [len(samples(batches)) for batches in tests] == [4, 3]
    both = sorted(samples(tests[0]) + samples(tests[1]))
    assert both == sorted(samples(data.test_batches(9)))


def test_hold_out_takes_from_training_only(data: Any) -> None:
    held = data.hold_out(0.2, seed=1)
    whole = samples(plain(data, shuffle=False))
    validation = samples(held.val_batches(4))
    assert len(validation) == 6
    assert sorted(samples(plain(held)) + validation) == sorted(whole)
    assert samples(held.test_batches(9)) == samples(data.test_batches(9))
    assert samples(data.hold_out(0.2, seed=2).val_batches(4)) != validation


@pytest.mark.parametrize("make", [images, in_folders, tensors], ids=lambda make: make.__name__)
def test_hold_out_takes_the_same_share_of_every_class(make: Any, tmp_path: Path) -> None:
    held = make(tmp_path).hold_out(0.2)
    labels = torch.cat([labels for _, labels in held.val_batches(4)])
    assert labels.bincount().tolist() == [2, 2, 2]


@refusals(
    *((lambda f=f: images().hold_out(f), ValueError, f"must be between 0 and 1, got {f}")
      for f in (0, 1, -0.1, 1.5)),
    (lambda: images().hold_out(0.01), ValueError, "leaves one part empty"),
    (lambda: images().val_batches(4), ValueError, "toy has no validation part"),
    (lambda: images().train_batches(0), ValueError, "batch_size must be >= 1, got 0"),
    (lambda: images().train_batches(2, rank=2, world_size=2), ValueError, "rank must be in 0"),
)  # fmt: skip
def test_refusals(check: Check) -> None:
    check()


def test_augmentation_differs_between_processes_epochs_and_seeds() -> None:
    same = images().take("train", torch.zeros(8, dtype=torch.int64))

    def augmented(epoch: int = 0, **options: Any) -> Tensor:
        batches = same.train_batches(4, **options)
        batches.set_epoch(epoch)
        return torch.cat([inputs for inputs, _ in batches])

    first = augmented(world_size=2)
    torch.testing.assert_close(augmented(world_size=2), first, rtol=0, atol=0)
    for other in (
        augmented(rank=1, world_size=2),
        augmented(1, world_size=2),
        augmented(seed=1, world_size=2),
    ):
        assert not torch.equal(other, first)
