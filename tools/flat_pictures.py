"""Networks on pictures as plain vectors: the data and the loop of the tools that train them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quadric
from quadric import data

SIDE = 28
HELD_OUT = 0.1
EIGENVALUES = 9.0
"""The factor of the rate for eigenvalues in networks from random weights, as in recipes."""
Part = tuple[Tensor, Tensor]


def flat_pictures(name: str, folder: Path) -> dict[str, Part]:
    """Training, validation and test pictures of 28x28, standardized by channel, and labels.

    MNIST and Fashion-MNIST are four idx files in a folder; CIFAR-10 is made smaller.
    """
    found: Any = data.load("cifar10" if name == "cifar10" else "mnist", folder, augment=False)
    found = found.hold_out(HELD_OUT)
    parts: dict[str, Part] = {}
    for part in ("train", "val", "test"):
        images, labels = found.part(part)
        x = images.float() / 255
        if x.shape[-1] != SIDE:
            x = F.interpolate(x, (SIDE, SIDE), mode="bilinear", antialias=True)
        if part == "train":
            mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
        parts[part] = (x.sub_(mean).div_(std).flatten(1), labels)
    return parts


@torch.no_grad()
def accuracy(network: nn.Module, part: Part) -> float:
    """The share of right answers."""
    x, y = part
    right = sum(
        int((network(xs).argmax(1) == ys).sum())
        for xs, ys in zip(x.split(2000), y.split(2000), strict=True)
    )
    return right / len(y)


def train_flat(
    network: nn.Module,
    parts: Mapping[str, Part],
    judged: Sequence[str],
    *,
    seed: int,
    epochs: int,
    batch: int = 128,
    rate: float = 1e-3,
    decay: float = 0.0,
    schedule: bool = False,
) -> dict[str, Any]:
    """Trains by AdamW; gives the accuracy on the judged parts after each epoch, and the seconds.

    With `schedule` the rate falls to zero along a cosine. The decay is that of all parameters but
    biases.
    """
    begin = time.process_time()
    x, y = parts["train"]
    scaled = any(getattr(layer, "awaits_scale", False) for layer in network.modules())
    factor = EIGENVALUES if scaled else 1.0
    groups = quadric.param_groups(
        network, rate, factor * rate, decay, decay / factor, decay_bias_and_norm=False
    )
    optimizer = torch.optim.AdamW(groups, fused=True)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(x) // batch))
    draw = torch.Generator().manual_seed(seed)
    curves: dict[str, list[float]] = {part: [] for part in judged}
    for _ in range(epochs):
        network.train()
        for rows in torch.randperm(len(x), generator=draw).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
            if schedule:
                cosine.step()
        network.eval()
        for part in judged:
            curves[part].append(accuracy(network, parts[part]))
    return {**curves, "seconds": round(time.process_time() - begin, 1)}
