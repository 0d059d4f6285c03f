from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quadric.data.batches import make_generator
from quadric.data.images import CropFlip, ImageData, Normalization


def pictures(count: int = 20, size: int = 6, channels: int = 2) -> Tensor:
    return torch.randint(1, 256, (count, channels, size, size), dtype=torch.uint8)


def data(train: int = 21, test: int = 7, **options) -> ImageData:
    return ImageData(
        "toy",
        pictures(train),
        torch.arange(train) % 3,
        pictures(test),
        torch.arange(test) % 3,
        mean=(0.5, 0.4),
        std=(0.25, 0.2),
        class_names=("a", "b", "c"),
        **options,
    )


def crops_of(image: Tensor, padding: int, flip: bool) -> list[Tensor]:
    """Every picture that shifting and mirroring can make of one, by slow slicing."""
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
    padded[:, padding : padding + height, padding : padding + width] = image
    crops = [
        padded[:, i : i + height, j : j + width]
        for i in range(2 * padding + 1)
        for j in range(2 * padding + 1)
    ]
    return crops + [torch.stack(tuple(reversed(c.unbind(2))), 2) for c in crops if flip]


@pytest.mark.parametrize(
    ("padding", "flip", "kinds"), [(1, True, 18), (1, False, 9), (0, True, 2), (2, True, 50)]
)
def test_every_shift_and_mirror_image_occurs_and_nothing_else(
    padding: int, flip: bool, kinds: int
) -> None:
    image = torch.randint(1, 256, (2, 5, 4), dtype=torch.uint8)
    allowed = {tuple(c.flatten().tolist()) for c in crops_of(image, padding, flip)}
    assert len(allowed) == kinds
    batch = CropFlip(padding, flip)(image.expand(1500, -1, -1, -1), make_generator(0))
    assert batch.shape == (1500, 2, 5, 4)
    assert batch.dtype == torch.uint8
    assert {tuple(b.flatten().tolist()) for b in batch} == allowed


def test_each_picture_keeps_its_place_in_the_batch() -> None:
    images = pictures(50)
    batch = CropFlip(1, True)(images, make_generator(3))
    for image, augmented in zip(images, batch, strict=True):
        assert any(torch.equal(augmented, crop) for crop in crops_of(image, 1, True))


def test_normalization_matches_the_formula() -> None:
    images = pictures()
    out = Normalization((0.5, 0.4), (0.25, 0.2), scale=255)(images)
    assert out.dtype == torch.float32
    for c, (mean, std) in enumerate([(0.5, 0.25), (0.4, 0.2)]):
        expected = (images[:, c].double() / 255 - mean) / std
        torch.testing.assert_close(out[:, c].double(), expected, rtol=1e-5, atol=1e-5)


def test_normalization_never_changes_floats_in_place() -> None:
    images = torch.rand(2, 1, 3, 3)
    before = images.clone()
    Normalization((0.5,), (0.25,), scale=1)(images)
    torch.testing.assert_close(images, before, rtol=0, atol=0)


def test_a_batch_is_pictures_and_their_labels() -> None:
    toy = data()
    # Each picture carries its own index in a corner.
    toy.train_images[:, 0, 0, 0] = torch.arange(21, dtype=torch.uint8)
    seen = []
    for images, labels in toy.train_batches(4, augment=False):
        index = ((images[:, 0, 0, 0] * 0.25 + 0.5) * 255).round().long()
        torch.testing.assert_close(labels, toy.train_labels[index])
        torch.testing.assert_close(images, toy.normalization(toy.train_images[index]))
        seen += index.tolist()
    assert sorted(seen) == list(range(21))
    assert seen != list(range(21))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"train_images": torch.rand(21, 2, 6, 6)}, "train_images must be a uint8 tensor"),
        ({"test_labels": torch.zeros(3, dtype=torch.int64)}, "test_labels must be an int64"),
        ({"test_labels": torch.full((7,), 3)}, r"test_labels must be in 0 \.\.\. 2, got 3"),
        ({"test_images": pictures(7, size=5)}, "must have the shape"),
        ({"mean": (0.5,)}, "mean and std must have 2 entries"),
    ],
)
def test_bad_data(changes: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        replace(data(), **changes)
