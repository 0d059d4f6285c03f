"""The ONNX form computes what the layer computes, whichever way its matrix is multiplied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadric
from quadric.exporting import export_torch
from quadric.exporting.onnx_forms import OnnxLinear, has_onnx_form, onnx_form
from tests.conftest import assert_close
from tests.networks import assert_untouched, curve_, snapshot

F64 = torch.float64

# Layers that take each way: all at once, by groups, in two steps, padded to whole groups.
LAYERS = [
    (nn.Linear, (5, 20), (4, 5), {}),
    (nn.Linear, (5, 128), (2, 3, 5), {}),
    (nn.Linear, (5, 256), (5,), {}),
    (nn.Linear, (5, 333), (2, 3, 5), {"bias": False}),
    (nn.Conv2d, (4, 32, 3), (2, 4, 5, 5), {"padding": 1}),
    (nn.Conv2d, (4, 64, 3), (2, 4, 5, 5), {"padding": 1}),
    (nn.Conv2d, (4, 128, 1), (2, 4, 3, 3), {}),
    (nn.Conv2d, (4, 48, 3), (2, 4, 5, 5), {"groups": 2}),
    (nn.Conv1d, (4, 160, 3), (2, 4, 6), {"stride": 2}),
    (nn.Conv3d, (2, 24, 2), (2, 3, 3, 3), {"groups": 2}),
]
NEURONS = [
    ("eigen", {"rank": 9}),
    ("eigen", {"rank": 7, "normalize": True}),
    ("eigen", {"rank": 1}),
    ("shared", {"rank": 8}),
    ("shared", {"rank": 5}),
    ("square", {}),
]


@pytest.mark.parametrize(("kind", "args", "shape", "options"), LAYERS)
@pytest.mark.parametrize(("neuron", "own"), NEURONS)
@pytest.mark.parametrize("shifted", [True, False])
def test_same_function(
    neuron: str, own: Any, shifted: bool, kind: Any, args: Any, shape: Any, options: Any
) -> None:
    layer: Any = quadric.make_layer(kind, *args, neuron=neuron, dtype=F64, **options, **own)
    nn.init.normal_(layer.eigenvalues)
    shift = torch.randn(args[1], dtype=F64) if shifted else None
    form, x = onnx_form(layer, shift), torch.randn(shape, dtype=F64)
    expected = layer(x)
    if shift is not None:
        spatial = 0 if kind is nn.Linear else int(kind.__name__[-2])
        expected = expected + shift.reshape(-1, *(1,) * spatial)
    assert_close(form(x), expected)


def test_a_transposed_convolution() -> None:
    layer = quadric.QuadraticConvTranspose2d(4, 22, 3, stride=2, rank=3, dtype=F64)
    nn.init.normal_(layer.eigenvalues)
    x = torch.randn(2, 4, 3, 5, dtype=F64)
    assert_close(onnx_form(layer)(x, (8, 12)), layer(x, (8, 12)))


def weights(neuron: str, rank: int, kind: Any, outputs: int) -> list[tuple[int, ...]]:
    args = (4, outputs) if kind is nn.Linear else (4, outputs, 3)
    layer: Any = onnx_form(quadric.make_layer(kind, *args, neuron=neuron, rank=rank))  # type: ignore[arg-type]
    mixing = [layer.products] if kind is nn.Linear else layer.mix.parameters()
    return [tuple(p.shape) for p in mixing]


def test_few_zeros_are_multiplied() -> None:
    # Neurons of 10 channels cross every block: all at once, or down to their y and up again.
    assert weights("eigen", 9, nn.Conv2d, 48) == [(48, 48, 1, 1)]
    assert weights("eigen", 9, nn.Conv2d, 64) == [(16, 64, 1, 1), (64, 16, 1, 1)]
    # Neurons of 8 channels do not cross blocks of 16.
    assert weights("eigen", 7, nn.Conv2d, 64) == [(64, 16, 1, 1)]
    assert weights("shared", 8, nn.Conv2d, 64) == [(64, 16, 1, 1)]
    # A narrow dense layer is one product, a wide one a product per group of whole neurons.
    assert weights("shared", 8, nn.Linear, 64) == [(1, 64, 64)]
    assert weights("shared", 8, nn.Linear, 256) == [(16, 16, 16)]
    assert weights("eigen", 9, nn.Linear, 512) == [(26, 20, 20)]
    assert weights("eigen", 31, nn.Linear, 130) == [(5, 32, 32)]


def test_a_layer_without_features_is_its_linear_layer() -> None:
    layer = quadric.QuadraticConv2d(3, 1, 3)
    assert isinstance(onnx_form(layer), nn.Conv2d)


def test_only_three_neurons_have_a_lean_form() -> None:
    for neuron in quadric.neurons():
        layer = quadric.make_layer(nn.Linear, 4, 8, neuron=neuron)
        assert has_onnx_form(layer) == (neuron in ("eigen", "shared", "square")), neuron


def test_the_layer_itself_stays_as_it_is() -> None:
    layer = quadric.QuadraticLinear(4, 20)
    before = snapshot(layer)
    assert isinstance(onnx_form(layer), OnnxLinear)
    assert_untouched(layer, before)
    assert not onnx_form(layer.eval()).training


class ReadsAttributes(nn.Module):
    """Reads of its layers what models of transformers read, and what others might."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 12, 3, stride=2)
        self.proj = nn.Linear(12, 70)  # wider than one group of the form
        self.up = nn.ConvTranspose2d(12, 11, 2, stride=2)
        self.head = nn.Linear(70, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x.to(self.conv.weight.dtype))
        assert self.conv.kernel_size == (3, 3)
        assert self.conv.out_channels == 12
        up = self.up(x, output_size=[8, 8])
        assert self.up.weight.shape == (12, 11, 2, 2)
        assert self.up.stride == (2, 2)
        x = x.mean((2, 3)).to(self.proj.weight.dtype).reshape(-1, self.proj.in_features)
        y = self.proj(x).reshape(-1, self.proj.out_features)
        assert self.proj.weight.shape == (70, 12)
        assert self.proj.note == "kept"
        return self.head(y + self.proj.bias) + up.mean((1, 2, 3)).unsqueeze(1)


@pytest.mark.parametrize("neuron", ["eigen", "shared", "fan"])
def test_a_model_may_read_attributes_of_its_layers(neuron: str, tmp_path: Path) -> None:
    model = ReadsAttributes().eval()
    model.proj.note = "kept"  # type: ignore[assignment]
    quadric.convert_(model, neuron=neuron)
    x = torch.randn(2, 1, 9, 9)
    expected = curve_(model)(x)
    assert quadric.export_onnx(model, tmp_path / "model.onnx", x).difference < 1e-4
    assert export_torch(model, tmp_path / "model.pt2", x).difference < 1e-4
    torch.testing.assert_close(model(x), expected)


def test_half_precision_sums_in_float32() -> None:
    layer: Any = quadric.QuadraticLinear(1, 2, rank=1, bias=False, dtype=torch.float16)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0], [300.0]]))
        layer.eigenvalues.fill_(0.01)
    out = onnx_form(layer)(torch.ones(1, 1, dtype=torch.float16))
    assert out.dtype == torch.float16
    torch.testing.assert_close(out[0, 0].float(), torch.tensor(900.0), rtol=2e-3, atol=0)
