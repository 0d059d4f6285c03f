"""A network, data sets and a loss of a user's own."""

import torch
from torch import nn
from torch.nn import functional as F


def small_network(in_features: int, out_features: int, width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(in_features, width), nn.SiLU(), nn.Linear(width, out_features))


def _circle(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    points = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return points, (points.norm(dim=1) > 1.2).long()


def circle(count: int = 64) -> tuple:
    """Tensors: which points lie outside of a circle."""
    return _circle(count, 0), _circle(count, 1)


def product(count: int = 64) -> tuple:
    """Tensors: a number to predict."""
    points = torch.randn(2, count, 2, generator=torch.Generator().manual_seed(0))
    return tuple((part, part[:, 0] * part[:, 1]) for part in points)


class Noisy(torch.utils.data.Dataset):
    """A Dataset that draws noise for each sample."""

    num_classes = 2

    def __init__(self, count: int, seed: int, noise: float) -> None:
        self.points, self.labels = _circle(count, seed)
        self.noise = noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.points[index] + self.noise * torch.randn(2), int(self.labels[index])


def noisy(count: int = 64, data_dir: str | None = None) -> tuple:
    return Noisy(count, 0, 0.1), Noisy(count, 1, 0.0)


def margin(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.multi_margin_loss(outputs, targets)


not_a_function = 3
