from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from quadric.models.resnet import CifarResNet, ImageNetResNet, PadShortcut


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_option_a_subsamples_and_pads_with_zeros() -> None:
    x = torch.randn(2, 3, 6, 6)
    out = PadShortcut(3, 6, 2)(x)
    assert out.shape == (2, 6, 3, 3)
    for i in range(3):
        for j in range(3):
            torch.testing.assert_close(out[:, 1:4, i, j], x[:, :, 2 * i, 2 * j])
    assert out[:, 0].abs().sum() == 0
    assert out[:, 4:].abs().sum() == 0


def test_option_b_has_a_convolution_in_each_halving_shortcut() -> None:
    with torch.device("meta"):
        a, b = CifarResNet(20), CifarResNet(20, shortcut="B")
    # two 1x1 convolutions and their batch normalizations
    assert count(b) - count(a) == 16 * 32 + 32 * 64 + 2 * 32 + 2 * 64
    ones = [n for n, m in b.named_modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
    assert ones == ["layer2.0.downsample.0", "layer3.0.downsample.0"]


def test_a_block_computes_what_the_paper_draws() -> None:
    block = CifarResNet(8).eval().get_submodule("layer2.0")
    for bn in (block.bn1, block.bn2):
        bn.running_mean.normal_()
        bn.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 16, 8, 8)

    def norm(x: torch.Tensor, bn: nn.BatchNorm2d) -> torch.Tensor:
        shape = (1, -1, 1, 1)
        scale = (bn.running_var + bn.eps).rsqrt()
        return (x - bn.running_mean.view(shape)) * scale.view(shape)

    out = norm(F.conv2d(x, block.conv1.weight, stride=2, padding=1), block.bn1).relu()
    out = norm(F.conv2d(out, block.conv2.weight, padding=1), block.bn2)
    expected = (out + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 8, 8))).relu()
    torch.testing.assert_close(block(x), expected)


def test_width_and_channels() -> None:
    with torch.device("meta"):
        wide = CifarResNet(20, width=1.5)
        explicit = CifarResNet(20, channels=[24, 48, 96])
        narrow = CifarResNet(8, width=0.5)
    assert {k: v.shape for k, v in wide.state_dict().items()} == {
        k: v.shape for k, v in explicit.state_dict().items()
    }
    assert explicit.get_submodule("layer3.0.conv1").weight.shape == (96, 48, 3, 3)
    assert count(narrow) == 19_218


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"depth": 21}, ValueError, r"depth must be 6n \+ 2 .* got 21"),
        ({"depth": 2}, ValueError, "got 2"),
        ({"shortcut": "C"}, ValueError, "shortcut must be 'A' .* got 'C'"),
        ({"width": 0}, ValueError, "width must be a number > 0, got 0"),
        ({"width": float("nan")}, ValueError, "width must be a number > 0, got nan"),
        ({"width": "2"}, TypeError, "width must be a number, got '2'"),
        ({"channels": (16, 32)}, ValueError, r"channels must have 3 entries.*\(16, 32\)"),
        ({"channels": (16, 32, 0)}, ValueError, "channels must be >= 1, got 0"),
        ({"channels": (16, 32, 6.5)}, TypeError, "channels must be an integer >= 1, got 6.5"),
        ({"channels": 16}, TypeError, "channels must be a sequence"),
        ({"channels": (16, 32, 64), "width": 2}, ValueError, "exclude each other"),
        ({"channels": (32, 16, 64)}, ValueError, "use shortcut='B'"),
        (
            {"activation": "rleu"},
            ValueError,
            "must be None or one of .*relu.*, got 'rleu'",
        ),
        ({"activation": 3}, TypeError, "activation must be None or one of .*, got 3"),
        ({"num_classes": 0}, ValueError, "num_classes must be >= 1, got 0"),
        ({"in_channels": True}, TypeError, "in_channels must be an integer >= 1, got True"),
    ],
)
def test_bad_options(options: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        CifarResNet(**{"depth": 8, **options})


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


def test_shapes_inside_the_imagenet_network() -> None:
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


def test_bad_depth_for_imagenet() -> None:
    with pytest.raises(ValueError, match="depth must be one of 18, 34, got 50"):
        ImageNetResNet(50)
