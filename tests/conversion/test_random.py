"""Random small networks: converted exactly, or refused untouched."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import hypothesis.strategies as st
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import quadric
from tests.networks import assert_untouched, quadratic_layers, snapshot

WIDTH = 12


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Along(nn.Module):
    """A convolution along the sequence, so that it fits between linear layers."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.mha(x, x, x)[0]


class Residual(nn.Module):
    def __init__(self, inner: nn.Module, also: nn.Module | None) -> None:
        super().__init__()
        self.inner = inner
        self.also = also  # an alias, a second user, or nothing
        self.listed = [inner] if also is None else None

    def forward(self, x: Tensor) -> Tensor:
        if self.listed is not None:
            return torch.tanh(x + self.listed[0](x))
        y = self.inner(x)
        return torch.tanh(x + y) if self.also is None else torch.tanh(x + self.also(y))


def linear(bias: bool) -> nn.Module:
    return nn.Linear(WIDTH, WIDTH, bias)


LAYERS: dict[str, Callable[[bool], nn.Module]] = {
    "linear": linear,
    "twice": lambda b: nn.Sequential(nn.Linear(WIDTH, 7, b), nn.Linear(7, WIDTH, b)),
    "conv": lambda b: Along(nn.Conv1d(WIDTH, WIDTH, 1, bias=b)),
    "grouped": lambda b: Along(nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=2, bias=b)),
    "small groups": lambda b: Along(nn.Conv1d(WIDTH, WIDTH, 1, groups=6, bias=b)),
    "depthwise": lambda b: Along(nn.Conv1d(WIDTH, WIDTH, 1, groups=WIDTH, bias=b)),
    "transposed": lambda b: Along(nn.ConvTranspose1d(WIDTH, WIDTH, 1, bias=b)),
    "attention": lambda b: Attend(),
    "weight norm": lambda b: parametrizations.weight_norm(linear(b)),
    "orthogonal": lambda b: parametrizations.orthogonal(linear(b)),
    "subclass": lambda b: Doubled(WIDTH, WIDTH, b),
    "frozen": lambda b: linear(b).requires_grad_(False),
    "in place": lambda b: nn.Sequential(linear(b), nn.LeakyReLU(inplace=True)),
    "normed": lambda b: nn.Sequential(linear(b), nn.LayerNorm(WIDTH)),
    "one": lambda b: nn.Sequential(nn.Linear(WIDTH, 1, b), nn.Linear(1, WIDTH, b)),
}


@st.composite
def networks(draw: st.DrawFn) -> nn.Module:
    """A nest of layers, some of which appear in several places, share weights, or hide in lists."""
    torch.manual_seed(draw(st.integers(0, 100)))
    made: list[nn.Module] = []

    def block(depth: int) -> nn.Module:
        kinds = ["layer", "layer", "again"] + (["nest", "residual"] if depth < 3 else [])
        kind = draw(st.sampled_from(kinds))
        if kind == "again" and made:
            return draw(st.sampled_from(made))
        if kind == "nest":
            return nn.Sequential(*[block(depth + 1) for _ in range(draw(st.integers(1, 3)))])
        if kind == "residual":
            inner = block(depth + 1)
            other = draw(st.sampled_from(["alias", "other", "listed"]))
            also = inner if other == "alias" else block(depth + 1) if other == "other" else None
            return Residual(inner, also)
        layer = LAYERS[draw(st.sampled_from(sorted(LAYERS)))](draw(st.booleans()))
        made.append(layer)
        return layer

    model = nn.Sequential(*[block(0) for _ in range(draw(st.integers(1, 3)))])
    if draw(st.booleans()):
        tied = [
            m
            for m in model.modules()
            if type(m) is nn.Linear
            and m.weight.shape == (WIDTH, WIDTH)
            and not parametrize.is_parametrized(m)
        ]
        if len(tied) > 1:
            tied[1].weight = tied[0].weight
    return model.train(draw(st.booleans()))


@given(
    model=networks(),
    neuron=st.sampled_from(["eigen", "eigen", "eigen", "shared", "fan", "qres", "kervolution"]),
    head=st.booleans(),
    traced=st.booleans(),
)
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
def test_random_networks_convert_exactly_or_are_refused(
    model: nn.Module, neuron: str, head: bool, traced: bool
) -> None:
    x = torch.randn(2, 3, WIDTH)
    options = {"rank": 3} if neuron in ("eigen", "shared") else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch, of attention in eval mode
        before = copy.deepcopy(model)(x)
        untouched = snapshot(model)
        names = {id(p): n for n, p in model.named_parameters()}
        shared = {n: id(m) for n, m in model.named_modules(remove_duplicate=False)}
        example = x if traced else None
        try:
            report = quadric.convert_(
                model, neuron=neuron, head=head, example_inputs=example, **options
            )
        except ValueError:
            assert_untouched(model, untouched)
            return
        after = model(x)
    layers = quadratic_layers(model)
    assert len(layers) >= len(report.converted) >= 1
    if report.lossless:
        torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
    assert [m.training for m in model.modules()].count(model.training) > 0
    # What was one module is one module, and what were two are two.
    now = {n: id(m) for n, m in model.named_modules(remove_duplicate=False)}
    for one in shared:
        for other in shared:
            if one in now and other in now:
                assert (shared[one] == shared[other]) == (now[one] == now[other]), (one, other)
    if neuron != "kervolution":
        # No weight went missing: each is there still, or was part of an attention.
        kept = {id(p) for p in model.parameters()}
        assert all("mha" in n for i, n in names.items() if i not in kept)
    # Every converted layer is called: nothing reads its weight behind its back.
    called: set[str] = set()
    for name, layer in layers.items():
        layer.register_forward_hook(lambda m, a, o, name=name: called.add(name))
    model(x)
    assert called == set(layers)
    if neuron == "eigen":
        assert quadric.revert_(model) == report.names
        torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-5)
