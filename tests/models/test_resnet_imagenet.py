from __future__ import annotations

import pytest
import torch

from quadric.models.resnet import ImageNetResNet


def torchvision_shapes(blocks: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Keys and shapes of torchvision's state dict, by the rule of its source."""

    def bn(name: str, n: int) -> dict[str, tuple[int, ...]]:
        keys = ("weight", "bias", "running_mean", "running_var")
        return {f"{name}.{key}": (n,) for key in keys} | {f"{name}.num_batches_tracked": ()}

    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7)} | bn("bn1", 64)
    before = 64
    for stage, count in enumerate(blocks, start=1):
        planes = 64 * 2 ** (stage - 1)
        for block in range(count):
            prefix = f"layer{stage}.{block}"
            shapes[f"{prefix}.conv1.weight"] = (planes, before, 3, 3)
            shapes |= bn(f"{prefix}.bn1", planes)
            shapes[f"{prefix}.conv2.weight"] = (planes, planes, 3, 3)
            shapes |= bn(f"{prefix}.bn2", planes)
            if block == 0 and stage > 1:
                shapes[f"{prefix}.downsample.0.weight"] = (planes, before, 1, 1)
                shapes |= bn(f"{prefix}.downsample.1", planes)
            before = planes
    return shapes | {"fc.weight": (1000, 512), "fc.bias": (1000,)}


@pytest.mark.parametrize(
    ("depth", "blocks", "params"),
    [(18, (2, 2, 2, 2), 11_689_512), (34, (3, 4, 6, 3), 21_797_672)],
)
def test_names_and_shapes_are_torchvisions(
    depth: int, blocks: tuple[int, ...], params: int
) -> None:
    with torch.device("meta"):
        model = ImageNetResNet(depth)
    expected = torchvision_shapes(blocks)
    assert {k: tuple(v.shape) for k, v in model.state_dict().items()} == expected
    assert list(model.state_dict()) == list(expected)
    assert sum(p.numel() for p in model.parameters()) == params


def test_shapes_inside() -> None:
    model = ImageNetResNet(18, num_classes=5, width=0.125).eval()
    seen = []
    for name in ("conv1", "maxpool", "layer1", "layer2", "layer3", "layer4"):
        model.get_submodule(name).register_forward_hook(
            lambda m, i, out: seen.append(tuple(out.shape[1:]))
        )
    assert model(torch.randn(1, 3, 224, 224)).shape == (1, 5)
    assert seen == [
        (8, 112, 112),
        (8, 56, 56),
        (8, 56, 56),
        (16, 28, 28),
        (32, 14, 14),
        (64, 7, 7),
    ]


def test_bad_depth() -> None:
    with pytest.raises(ValueError, match="depth must be one of 18, 34, got 50"):
        ImageNetResNet(50)
