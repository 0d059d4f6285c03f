"""A folded model computes what the model computed, in float64 to 1e-10, or is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadric
from quadric.exporting.folding import ChannelShift, fold_batchnorm_

F64 = torch.float64
NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def trained_(model: nn.Module) -> Any:
    """Random scales of both signs, shifts and statistics, as training leaves them; eval mode."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.weight is not None:
                signs = torch.randint(0, 2, module.weight.shape) * 2 - 1
                module.weight.data = (signs * (0.5 + torch.rand(module.weight.shape))).double()
                nn.init.normal_(module.bias)
            if module.running_mean is not None and module.running_var is not None:
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
        elif isinstance(module, quadric.layers.QuadraticLayer):
            for parameter in module.quadratic_parameters().values():
                nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def assert_same(model: nn.Module, before: Tensor, *inputs: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), before, rtol=1e-10, atol=1e-10)


def fold_and_compare(model: nn.Module, *inputs: Tensor) -> Any:
    with torch.no_grad():
        before = model(*inputs)
    report = fold_batchnorm_(model, inputs)
    assert_same(model, before, *inputs)
    return report


# ------------------------------------------------------------------------------------------------
# The formulas
# ------------------------------------------------------------------------------------------------


def neuron_layer(neuron: str, kind: Any, *args: Any, **options: Any) -> nn.Module:
    return quadric.make_layer(kind, *args, neuron=neuron, **options)


NEURONS: dict[str, dict[str, Any]] = {
    "eigen": {"rank": 2},
    "normalized": {"neuron": "eigen", "rank": 2, "normalize": True},
    "shared": {"rank": 2},
    "square": {},
    "linear": {},
}
LAYERS = [
    (nn.Linear, (5, 7), (6, 5), {}),
    (nn.Conv1d, (4, 6, 3), (3, 4, 9), {"groups": 2, "stride": 2}),
    (nn.Conv2d, (3, 10, 3), (2, 3, 6, 5), {"padding": 1, "padding_mode": "reflect"}),
    (nn.Conv3d, (2, 6, 3), (2, 2, 4, 3, 3), {"padding": "same", "groups": 2}),
    (nn.ConvTranspose2d, (4, 6, 3), (2, 4, 3, 4), {"stride": 2, "groups": 2, "output_padding": 1}),
]


@pytest.mark.parametrize(("kind", "args", "shape", "options"), LAYERS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", NEURONS)
def test_every_layer(name: str, bias: bool, kind: Any, args: Any, shape: Any, options: Any) -> None:
    more = {"neuron": name, "bias": bias, **NEURONS[name], **options}
    layer = quadric.make_layer(kind, *args, **more)
    model = trained_(nn.Sequential(layer, NORMS[len(shape)](args[1])))
    if name == "normalized":
        model[0].eigenvalues.data.mul_(0.1)  # |q| is short here
    report = fold_and_compare(model, torch.randn(shape, dtype=F64))
    assert report.folded == {"0": "1"}
    assert bool(report.shifts) == (name in ("shared", "square"))
    assert isinstance(model[1], ChannelShift if report.shifts else nn.Identity)


@pytest.mark.parametrize("affine", [True, False])
def test_without_affine_parameters(affine: bool) -> None:
    layer = quadric.QuadraticConv2d(3, 8, 3, rank=3)
    model = trained_(nn.Sequential(layer, nn.BatchNorm2d(8, affine=affine, eps=1e-2)))
    assert fold_and_compare(model, torch.randn(2, 3, 5, 5, dtype=F64)).folded


@pytest.mark.parametrize("neuron", ["eigen", "shared", "square", "linear"])
def test_a_whole_network(neuron: str) -> None:
    model = trained_(quadric.models.create("resnet8", neuron=neuron, shortcut="B"))
    x = torch.randn(2, 3, 16, 16, dtype=F64)
    report = fold_and_compare(model, x)
    assert len(report.folded) == 9
    assert not report.kept
    # In training mode a BatchNorm that is still there would use the batch.
    assert not [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]


def test_keeps_dtype_and_memory_format() -> None:
    layer = quadric.QuadraticConv2d(3, 8, 3, rank=3)
    model: Any = nn.Sequential(layer, nn.BatchNorm2d(8)).eval()
    model = model.to(memory_format=torch.channels_last)
    model[0].weight.requires_grad_(False)
    fold_batchnorm_(model, torch.randn(2, 3, 5, 5))
    assert model[0].weight.dtype == torch.float32
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not model[0].weight.requires_grad


# ------------------------------------------------------------------------------------------------
# Scales of about zero
# ------------------------------------------------------------------------------------------------


def eigen_block() -> Any:
    layer = quadric.QuadraticConv2d(3, 8, 3, rank=3)
    return trained_(nn.Sequential(layer, nn.BatchNorm2d(8)))


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-3])
def test_a_feature_without_scale_keeps_its_batchnorm(scale: float) -> None:
    model, x = eigen_block(), torch.randn(2, 3, 5, 5, dtype=F64)
    with torch.no_grad():
        model[1].weight[2] = scale
        model[1].bias[2] = 1.0
    report = fold_and_compare(model, x)
    assert not report.folded
    assert "about zero" in report.kept["1"]
    assert isinstance(model[1], nn.BatchNorm2d)


def test_a_scale_too_small_to_divide_by_even_without_a_shift() -> None:
    model = eigen_block()
    with torch.no_grad():
        model[1].weight[2], model[1].bias[2], model[1].running_mean[2] = 1e-20, 0.0, 0.0
    assert "about zero" in fold_batchnorm_(model, torch.randn(2, 3, 5, 5, dtype=F64)).kept["1"]


def test_a_y_without_scale_is_no_obstacle() -> None:
    model, x = eigen_block(), torch.randn(2, 3, 5, 5, dtype=F64)
    with torch.no_grad():
        model[1].weight[0] = 0.0
    assert fold_and_compare(model, x).folded


def test_a_feature_without_eigenvalue_is_no_obstacle() -> None:
    model, x = eigen_block(), torch.randn(2, 3, 5, 5, dtype=F64)
    with torch.no_grad():
        model[0].eigenvalues[1] = 0.0
        model[1].weight[2] = 0.0
    assert fold_and_compare(model, x).folded


@pytest.mark.parametrize("neuron", ["shared", "square"])
def test_shared_and_square_likewise(neuron: str) -> None:
    model = trained_(nn.Sequential(neuron_layer(neuron, nn.Conv2d, 3, 8, 3), nn.BatchNorm2d(8)))
    with torch.no_grad():
        model[1].weight[5] = 1e-9
    report = fold_and_compare(model, torch.randn(2, 3, 5, 5, dtype=F64))
    assert "about zero" in report.kept["1"]


def test_eigenvalues_that_would_leave_the_dtype() -> None:
    layer = quadric.QuadraticLinear(3, 4, rank=1)
    model: Any = nn.Sequential(layer, nn.BatchNorm1d(4)).eval()
    with torch.no_grad():
        model[0].eigenvalues.fill_(1.0)
        model[1].weight.copy_(torch.tensor([1.0, 1e-3, 1.0, 1e-3]))
    report = fold_batchnorm_(model.half(), torch.randn(2, 3).half())
    assert "not finite" in report.kept["1"]


def test_float32_keeps_its_precision() -> None:
    """The limit on cancelling constants holds what it promises, at its worst."""
    layer = quadric.QuadraticConv2d(3, 8, 3, rank=3)
    model = trained_(nn.Sequential(layer, nn.BatchNorm2d(8)))
    with torch.no_grad():
        lam, shift = model[0].eigenvalues, model[1].bias - model[1].running_mean
        worst = (lam.abs() * (shift[[1, 2, 3, 5, 6, 7]]) ** 2).max()
        model[1].weight.mul_((worst / 90).sqrt())
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        exact = model(x.double())
    model.float()
    fold_batchnorm_(model, x)
    with torch.no_grad():
        torch.testing.assert_close(model(x).double(), exact, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------------
# Which BatchNorm follows which layer
# ------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A layer and a BatchNorm, and what is made of them."""

    def __init__(self, run: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.layer = quadric.QuadraticConv2d(3, 8, 3, rank=3)
        self.norm = nn.BatchNorm2d(8)
        self.run = run

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def in_order(m: Any, x: Tensor) -> Tensor:
    return m.norm(m.layer(x))


def two_readers(m: Any, x: Tensor) -> Tensor:
    return m.norm(out := m.layer(x)) + out.mean()


KEPT: dict[str, Callable[[Any, Tensor], Any]] = {
    "two readers": two_readers,
    "read through a view": lambda m, x: m.norm(out := m.layer(x)) * out[:, :1],
    "also returned": lambda m, x: torch.cat([m.norm(out := m.layer(x)), out]),
    "called twice": lambda m, x: in_order(m, x) + m.layer(x),
    "norm twice": lambda m, x: m.norm(in_order(m, x)),
    "not directly": lambda m, x: m.norm(torch.relu(m.layer(x))),
    "changed in place": lambda m, x: m.norm(m.layer(x).mul_(2)),
    "norm first": lambda m, x: m.layer(m.norm(x.repeat(1, 3, 1, 1)[:, :8])[:, :3]),
}


@pytest.mark.parametrize("name", [*KEPT, "held elsewhere"])
def test_never_folds_what_is_used_elsewhere(name: str) -> None:
    model = trained_(Block(KEPT.get(name, in_order)))
    if name == "held elsewhere":
        model.again = [model.layer]
    report = fold_and_compare(model, torch.randn(2, 3, 5, 5, dtype=F64))
    assert not report.folded
    assert list(report.kept) == ["norm"]
    assert isinstance(model.norm, nn.BatchNorm2d)
    assert str(report).splitlines()[0] == "0 BatchNorm folded, 1 kept"


def test_an_output_that_is_handed_out_in_a_dict() -> None:
    model = trained_(Block(lambda m, x: {"normalized": m.norm(out := m.layer(x)), "raw": out}))
    assert not fold_batchnorm_(model, torch.randn(2, 3, 5, 5, dtype=F64)).folded


def test_rows_and_sequences_behind_a_linear_layer() -> None:
    """(N, T, F) with T = F: the BatchNorm sees T, the layer makes F."""
    rows = trained_(nn.Sequential(quadric.QuadraticLinear(3, 6, rank=2), nn.BatchNorm1d(6)))
    x = torch.randn(5, 6, 3, dtype=F64)
    assert "another dimension" in fold_and_compare(rows, x).kept["1"]
    assert fold_and_compare(rows, x[:, 0]).folded


def test_a_batchnorm_of_another_size() -> None:
    model = trained_(nn.Sequential(quadric.QuadraticLinear(3, 6, rank=2), nn.BatchNorm1d(4)))
    assert "another dimension" in fold_and_compare(model, torch.randn(5, 4, 3, dtype=F64)).kept["1"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m[0].register_forward_hook(lambda *_: None), "hooks"),
        (lambda m: m[1].register_forward_pre_hook(lambda *_: None), "hooks"),
        (lambda m: nn.utils.parametrizations.weight_norm(m[0]), "computed"),
        (lambda m: m.__setitem__(0, Doubled(3, 8, 3)), "not a layer whose formula"),
        (lambda m: m.__setitem__(0, Shifted(3, 8, 3)), "a subclass that may compute"),
        (lambda m: m.__setitem__(1, ShiftedNorm(8)), "a subclass with a forward of its own"),
        (lambda m: m.__setitem__(0, neuron_layer("fan", nn.Conv2d, 3, 8, 3)), "cannot take up"),
        (
            lambda m: m.__setitem__(1, nn.BatchNorm2d(8, track_running_stats=False)),
            "no running statistics",
        ),
    ],
)
def test_what_is_not_a_plain_layer_is_kept(change: Any, reason: str) -> None:
    model: Any = nn.Sequential(quadric.QuadraticConv2d(3, 8, 3, rank=3), nn.BatchNorm2d(8))
    change(model)
    report = fold_and_compare(trained_(model), torch.randn(2, 3, 5, 5, dtype=F64))
    assert reason in report.kept["1"]


class Shifted(quadric.QuadraticConv2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) - 0.5


class ShiftedNorm(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) - 0.5


class Doubled(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_a_shared_weight_stays_as_it_is_elsewhere() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = quadric.QuadraticConv2d(3, 8, 3, rank=3)
            self.norm = nn.BatchNorm2d(8)
            self.two = nn.Conv2d(3, 8, 3)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.one(x)) + self.two(x)

    model = trained_(Tied())
    assert fold_and_compare(model, torch.randn(2, 3, 5, 5, dtype=F64)).folded == {"one": "norm"}


def test_a_model_without_batchnorm() -> None:
    model = nn.Sequential(quadric.QuadraticLinear(3, 4))  # in training mode: nothing to refuse
    report = fold_batchnorm_(model, torch.randn(2, 3))
    assert not report.folded
    assert not report.kept


def test_mistakes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    with pytest.raises(ValueError, match=r"must be in eval mode .* call model\.eval\(\)"):
        fold_batchnorm_(model, torch.randn(2, 3, 5, 5))
    model.eval()[1].train()
    with pytest.raises(ValueError, match="got '1' in training mode"):
        fold_batchnorm_(model, torch.randn(2, 3, 5, 5))
    with pytest.raises(ValueError, match="example_inputs must run through the model"):
        fold_batchnorm_(model.eval(), torch.randn(2, 5))
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got str"):
        fold_batchnorm_("model", torch.randn(2, 5))  # type: ignore[arg-type]
