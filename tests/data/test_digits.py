from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from quadric import models
from quadric.data import CropFlip, digits


def test_split_and_pixels() -> None:
    data = digits.load()
    assert data.train_images.shape == (1438, 1, 8, 8)
    assert data.test_images.shape == (359, 1, 8, 8)
    assert data.num_classes == 10
    assert data.input_shape == models.input_shape("digits_cnn")
    assert min(data.test_labels.bincount().tolist()) >= 34
    bunch = load_digits()
    both = torch.cat([data.train_images, data.test_images])[:, 0].flatten(1)
    labels = torch.cat([data.train_labels, data.test_labels])
    ours = sorted(
        (*image, label) for image, label in zip(both.tolist(), labels.tolist(), strict=True)
    )
    theirs = sorted(
        (*image, label)
        for image, label in zip(bunch.data.astype(int).tolist(), bunch.target.tolist(), strict=True)
    )
    assert ours == theirs


def test_training_pixels_are_normalized() -> None:
    data = digits.load()
    images = data.normalization(data.train_images)
    torch.testing.assert_close(images.mean(), torch.tensor(0.0), atol=1e-4, rtol=0)
    torch.testing.assert_close(images.std(), torch.tensor(1.0), atol=1e-4, rtol=0)


def test_augmentation_is_a_choice() -> None:
    assert digits.load().augmentation is None
    assert digits.load(augment=True).augmentation == CropFlip(padding=1, flip=False)
