"""The 1,797 handwritten digits of 8x8 pixels that ship with scikit-learn: data without a download.

They come from the test part of the UCI set "Optical recognition of handwritten digits" (Alpaydin
and Kaynak 1998), pixels from 0 to 16. A fifth of every class, chosen once, is the test part.
"""

from __future__ import annotations

import torch

from quadric.data.batches import stratified_split
from quadric.data.images import CropFlip, ImageData
from quadric.support.extras import load_extra

TEST_FRACTION = 0.2
SPLIT_SEED = 0


def load(*, augment: bool = False) -> ImageData:
    """Loads the digits."""
    datasets = load_extra("sklearn.datasets", "the digits data set")
    bunch = datasets.load_digits()
    images = torch.from_numpy(bunch.images).to(torch.uint8)[:, None]
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    test, train = stratified_split(labels, TEST_FRACTION, SPLIT_SEED)
    pixels = images[train].double() / 16
    return ImageData(
        name="digits",
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
        mean=(float(pixels.mean()),),
        std=(float(pixels.std()),),
        class_names=tuple("0123456789"),
        augmentation=CropFlip(padding=1, flip=False) if augment else None,
        scale=16.0,
    )
