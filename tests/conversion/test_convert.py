"""convert_: the same function before and after, and nothing half-done."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import quadric
from quadric.conversion.planning import plan_layers
from quadric.layers import QuadraticLayer, QuadraticLinear
from tests.networks import (
    NETWORKS,
    Mixed,
    ReadsWeights,
    Shared,
    assert_untouched,
    curve_,
    quadratic_layers,
    snapshot,
    transformer,
)

CAN_BE_LINEAR = sorted(n for n, row in quadric.neurons().items() if row.can_be_linear)
CAN_BE_LINEAR.remove("linear")
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def small(**options: Any) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 20), nn.ReLU(inplace=True), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 2)
    )


def outputs(model: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    """In train mode, in eval mode, and in eval mode without gradients (torch's fused paths)."""
    results = [model.train()(*inputs).detach(), model.eval()(*inputs).detach()]
    with torch.no_grad():
        results.append(model(*inputs))
    model.train()
    return results


def assert_same(got: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


# --- the same function ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_kind_of_network(name: str) -> None:
    """The same function before and after, squares that learn and count, the way back."""
    build, make_inputs = NETWORKS[name]
    model, inputs = build(), make_inputs()
    before, plain = outputs(copy.deepcopy(model), inputs), copy.deepcopy(model)
    report = quadric.convert_(model, rank=4)
    assert report.lossless
    assert len(set(report.names)) == len(report.names) >= 2
    assert_same(outputs(model, inputs), before)
    layers = quadratic_layers(model)
    model(*inputs).square().sum().backward()
    for layer_name, layer in layers.items():
        gradient = layer.eigenvalues.grad
        assert gradient is not None, layer_name
        assert gradient.isfinite().all(), layer_name
        assert (gradient != 0).any(), layer_name
    # Without gradients, in eval mode, each layer's squares reach the output as well.
    model.eval()
    with torch.no_grad():
        for layer_name, layer in layers.items():
            layer.eigenvalues.fill_(1.0)
            assert (model(*inputs) - before[2]).abs().max() > 1e-4, layer_name
            layer.eigenvalues.zero_()
    # Its state goes to a twin, and that of the plain network comes back to it.
    curve_(model)
    twin = build()
    quadric.convert_(twin, rank=4)
    twin.load_state_dict(model.state_dict())
    torch.testing.assert_close(twin.eval()(*inputs), model(*inputs))
    torch.testing.assert_close(copy.deepcopy(model)(*inputs), model(*inputs))
    model.load_state_dict(plain.state_dict())
    assert_same(outputs(model, inputs), before)


@pytest.mark.parametrize("neuron", sorted(set(quadric.neurons()) - {"linear"}))
def test_every_neuron(neuron: str) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 4, 1),
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.Tanh(),
        nn.Linear(8, 2),
    )
    x = torch.randn(3, 2, 4, 4)
    before = outputs(copy.deepcopy(model), (x,))
    report = quadric.convert_(model, neuron=neuron)
    assert report.names == ["0", "2", "4"]
    assert {layer.neuron for layer in quadratic_layers(model).values()} == {neuron}
    after = outputs(model, (x,))
    if neuron in CAN_BE_LINEAR:
        assert report.lossless
        assert_same(after, before)
        assert "re-initialized" not in str(report)
    else:
        assert not report.lossless
        assert f"weights were re-initialized: a neuron of the kind {neuron}" in str(report)
        assert (after[0] - before[0]).abs().max() > 1e-3
    model(x).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("include", [None, ["linear1"], r"encoder\.layers\.1\.linear2"])
def test_the_fused_paths_do_not_pass_the_squares_by(
    norm_first: bool, masked: bool, include: Any
) -> None:
    model = ReadsWeights(norm_first=norm_first)
    x = torch.randn(3, 5, 6)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[0, 3:] = True
    arguments = (x, padding if masked else None)
    # torch's fused path would indeed ignore a layer with the same weight: this test can fail.
    layer = copy.deepcopy(model.encoder.layers[0]).eval()
    with torch.no_grad():
        plain = layer(torch.ones(1, 2, 20))
        layer.linear1 = curve_(nn.Sequential(QuadraticLinear.from_linear(layer.linear1)), 1.0)[0]
        assert torch.equal(layer(torch.ones(1, 2, 20)), plain)
    quadric.convert_(model, include=include, rank=4)
    curve_(model)
    expected = model.train()(*arguments).detach()  # the plain path: dropout is 0
    with torch.no_grad():
        got = model.eval()(*arguments)
    keep = ~padding if masked else slice(None)
    torch.testing.assert_close(got[keep], expected[keep], **CLOSE)
    with torch.no_grad():
        quadric.revert_(model, project=True)
        assert (model.eval()(*arguments) - got)[keep].abs().max() > 1e-3


def test_the_fused_paths_come_back() -> None:
    model = ReadsWeights()
    flags = [(m.activation_relu_or_gelu) for m in model.encoder.layers]
    assert flags == [1, 1]
    assert model.encoder.use_nested_tensor
    quadric.convert_(model, include=["0.linear1"])
    assert [m.activation_relu_or_gelu for m in model.encoder.layers] == [0, 1]
    assert not model.encoder.use_nested_tensor
    quadric.convert_(model, include=["1.self_attn"])
    assert [m.activation_relu_or_gelu for m in model.encoder.layers] == [0, 0]
    quadric.revert_(model)
    assert [m.activation_relu_or_gelu for m in model.encoder.layers] == [1, 1]
    assert model.encoder.use_nested_tensor
    assert not [name for m in model.modules() for name in vars(m) if "quadric" in name]


# --- what is kept ---------------------------------------------------------------------------------


def test_parameters_are_the_same_objects() -> None:
    model = small()
    parameters = {name: p for name, p in model.named_parameters()}
    quadric.convert_(model)
    after = dict(model.named_parameters())
    assert all(after[name] is p for name, p in parameters.items())
    assert set(after) - set(parameters) == {"0.eigenvalues", "2.eigenvalues"}


def test_dtype_device_training_and_frozen_weights() -> None:
    model = small().double()
    model[0].requires_grad_(False)
    model[2].eval()
    quadric.convert_(model)
    assert model[0].eigenvalues.dtype == torch.float64
    assert not model[0].weight.requires_grad
    assert model[0].eigenvalues.requires_grad
    assert model[0].training
    assert not model[2].training
    with torch.device("meta"):
        meta = small()
    quadric.convert_(meta)
    assert meta[0].eigenvalues.is_meta
    # Layers that are drawn anew stay frozen, too.
    drawn = small()
    drawn[0].requires_grad_(False)
    quadric.convert_(drawn, neuron="kervolution")
    assert [p.requires_grad for p in (*drawn[0].parameters(), drawn[2].weight)] == [False] * 2 + [
        True
    ]


def test_hooks_stay_and_their_handles_remove_them() -> None:
    model = small()
    calls: list[str] = []
    layer = model[2]  # torch allows no backward hook before an in-place activation
    handles = [
        layer.register_forward_hook(lambda m, a, o: calls.append(type(m).__name__)),
        layer.register_forward_pre_hook(lambda m, a, k: calls.append("pre"), with_kwargs=True),
        layer.register_full_backward_hook(lambda m, gi, go: calls.append("backward")),
        layer.weight.register_hook(lambda g: calls.append("weight")),
    ]
    del layer
    quadric.convert_(model)
    model(torch.randn(2, 6)).sum().backward()
    assert sorted(calls) == ["QuadraticLinear", "backward", "pre", "weight"]
    calls.clear()
    for handle in handles:
        handle.remove()
    model(torch.randn(2, 6)).sum().backward()
    assert calls == []


def test_attributes_of_users_move_along_and_back() -> None:
    model = small()
    model[0].nickname, model[0]._scale = "stem", 3.0
    for change in (quadric.convert_, quadric.revert_):
        change(model)
        assert (model[0].nickname, model[0]._scale) == ("stem", 3.0)
    assert type(model[0]) is nn.Linear
    assert set(vars(model[0])) == set(vars(nn.Linear(1, 1))) | {"nickname", "_scale"}


def test_shared_layers_stay_shared_and_tied_weights_tied() -> None:
    model = Shared()
    report = quadric.convert_(model, rank=3)
    assert model.a is model.b is model.tables["x"]
    assert model.block is model.again
    assert isinstance(model.a, QuadraticLinear)
    assert model.decode.weight is model.embed.weight
    assert isinstance(model.decode, QuadraticLinear)
    entry = next(c for c in report.converted if c.name == "a")
    assert entry.aliases == ("b", "tables.x")
    assert report.params_after - report.params_before == sum(
        layer.eigenvalues.numel() for layer in quadratic_layers(model).values()
    )


class OwnConv(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, weight * 2, bias)


class Buffered(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("scale", torch.ones(4))


class Twice(nn.Linear):
    def twice(self, input: Tensor) -> Tensor:
        return 2 * self(input)


class Special(Tensor):
    pass


def changed(change: Callable[[Any], object], layer: Any = None) -> nn.Module:
    layer = nn.Linear(4, 4) if layer is None else layer
    change(layer)
    return layer


def quantized() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to drop these layers
        return torch.ao.nn.quantized.dynamic.Linear(4, 4)


def with_weight(values: Tensor) -> nn.Module:
    return changed(lambda m: setattr(m, "weight", nn.Parameter(values)))


def tied(name: str, *layers: Any) -> nn.Module:
    setattr(layers[1], name, getattr(layers[0], name))
    return nn.ModuleList(layers)


def attention() -> nn.Module:
    return nn.MultiheadAttention(8, 2)


KERVOLUTION = {"neuron": "kervolution"}
# What stays as it is, the options, and the reason.
LEFT: list[tuple[Callable[[], nn.Module], dict[str, Any], str]] = [
    (lambda: OwnConv(3, 8, 3), {}, "OwnConv is a subclass with its own _conv_forward"),
    (lambda: Twice(4, 20), {}, "Twice is a subclass with its own twice"),
    (Buffered, {}, "it has its own parameters, buffers or modules (scale)"),
    (lambda: changed(lambda m: setattr(m, "forward", id)), {}, "replaced on the instance"),
    (lambda: changed(lambda m: setattr(m, "out_features", 9)), {}, "where (9, 4) was expected"),
    (lambda: nn.Linear(4, 1), {}, "no room for a feature"),
    (lambda: with_weight(torch.ones(4, 4, dtype=torch.cfloat)), {}, "the dtype torch.complex64"),
    (lambda: with_weight(torch.ones(4, 4).as_subclass(Special)), {}, "special tensor (Special)"),
    (lambda: parametrizations.spectral_norm(nn.Linear(4, 4)), {}, "its weight is computed"),
    (quantized, {}, "it is quantized"),
    (lambda: nn.ConvTranspose1d(4, 8, 2), {"neuron": "general"}, "general has no transposed"),
    (lambda: nn.Conv1d(12, 12, 3, groups=12), {}, "depthwise convolution"),
    (lambda: nn.Conv1d(24, 24, 1, groups=6), {}, "small groups: 4 outputs each do not hold one ne"),
    (lambda: QuadraticLinear(4, 4), {}, "already quadratic (eigen)"),
    (
        lambda: changed(lambda m: m.register_load_state_dict_pre_hook(lambda *_: None)),
        {},
        "it has a load_state_dict pre-hook",
    ),
    (lambda: tied("in_proj_weight", attention(), attention()), {}, "in_proj_weight is shared with"),
    (
        lambda: tied("weight", nn.Embedding(7, 4), nn.Linear(4, 7)),
        KERVOLUTION,
        "its weight is shared with another layer, and this start would replace it",
    ),
    (
        lambda: tied("bias", nn.Linear(4, 4), nn.Linear(4, 4)),
        {"neuron": "fan", "init": "published"},
        "its bias is shared with another layer",
    ),
    (attention, KERVOLUTION, "attention is converted where the neuron can represent it"),
]


@pytest.mark.parametrize(("build", "options", "reason"), LEFT)
def test_what_is_left_and_why(
    build: Callable[[], nn.Module], options: dict[str, Any], reason: str
) -> None:
    model = nn.ModuleDict({"odd": build(), "fine": nn.Linear(12, 12)})
    before = snapshot(model["odd"])
    report = quadric.convert_(model, **options)
    assert report.names == ["fine"]
    assert report.skipped
    for skipped in report.skipped:
        assert reason in skipped.reason
        assert f"left: {skipped.reason}" in str(report)
    assert_untouched(model["odd"], before)
    with pytest.raises(ValueError, match="every layer that matched was skipped"):
        quadric.convert_(model, include="odd.*", **options)


def test_what_is_held_outside_of_the_submodules_is_left() -> None:
    report = quadric.convert_(Mixed())
    reasons = {s.name: s.reason for s in report.skipped}
    assert report.names == ["grouped", "plain", "last"]
    assert "held outside of the submodules (by steps)" in reasons["frozen"]
    assert "by steps" in reasons["hidden"]


# --- the report -----------------------------------------------------------------------------------


def test_the_report_counts_parameters_and_macs() -> None:
    model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 3))
    report = quadric.convert_(model, rank=9, example_inputs=torch.randn(5, 4))
    assert (report.params_before, report.params_after) == (163, 181)
    # Two products for each of 18 eigenvalues, five times.
    assert (report.macs_before, report.macs_after) == (5 * 140, 5 * (140 + 36))
    assert "parameters: 163 -> 181 (+11.04%)" in str(report)
    assert "MACs: 700 -> 880 (+25.71%)" in str(report)
    values = report.to_dict()
    assert values["converted"][0]["name"] == "0"
    assert values["lossless"] is True
    assert report.converted[0].params_after - report.converted[0].params_before == 18


class Counting(nn.Module):
    """Replaces a buffer, draws numbers, and returns what has a field called values."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 10), nn.BatchNorm1d(10), nn.Dropout(0.5))
        self.fc = nn.Linear(10, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        self.calls = self.calls + torch.rand(())
        return self.fc(self.body(x)).topk(2)


def test_the_example_run_leaves_no_trace() -> None:
    model = Counting().train()
    model.body[1].eval()
    before, random = snapshot(model.body[1]), torch.get_rng_state()
    x, calls = torch.ones(3, 4), model.calls
    report = quadric.convert_(model, example_inputs=(x,))
    assert report.names == ["body.0"]
    assert torch.equal(torch.get_rng_state(), random)
    assert model.calls is calls
    assert not calls
    assert model.training
    assert_untouched(model.body[1], before)
    assert not model.body[0]._forward_hooks


# --- what converted models go through -------------------------------------------------------------


# --- plans ----------------------------------------------------------------------------------------


EIGEN = {"neuron": "eigen", "rank": 3, "init": "linear"}


def test_a_plan_converts_exactly_the_named_layers() -> None:
    model = transformer()
    name = "encoder.layers.0.self_attn"
    plan_layers(
        model,
        {
            name: {"neuron": "shared", "rank": 5, "init": "linear"},
            "decoder.layers.0.linear1": {**EIGEN, "normalize": True},
        },
    ).do()
    layers = quadratic_layers(model)
    assert len(layers) == 5
    assert model.encoder.layers[0].self_attn.rank == 5
    assert model.decoder.layers[0].linear1.normalize
    # Two names of one layer are one layer.
    assert len(plan_layers(Shared(), {"a": EIGEN, "b": EIGEN}).built) == 1
    with pytest.raises(ValueError, match=r"got nowhere, not found; the model's layers are: enc"):
        plan_layers(transformer(), {"nowhere": EIGEN})
    with pytest.raises(ValueError, match=r"'normed' cannot be converted: its weight is computed"):
        plan_layers(Mixed(), {"normed": EIGEN})


# --- bad input ------------------------------------------------------------------------------------


SMALL: list[tuple[dict[str, Any], str]] = [
    (
        {"include": ["nope"]},
        r"must match, got none by include=\['nope'\]; .*3 Linear, 1 ReLU, 1 Tanh",
    ),
    ({"include": ["nope"]}, r"those that can be converted: 0, 2, 4: choose other names"),
    ({"exclude": ".*"}, r"must match, got none.*0 \(excluded\)"),
    ({"include": "layer["}, r"include must be a valid regular expression, got 'layer\["),
    ({"exclude": "("}, r"exclude must be a valid regular expression"),
    (
        {"include": 3},
        r"include must be a regular expression, a list of names or a callable, got int",
    ),
    ({"include": ["0", 2]}, r"include must be a list of names, got the entry 2"),
    ({"rank": {"nope": 3}}, r"rank must name layers .*got 'nope'; they are: 0, 2, 4"),
    ({"rank": 0}, r"rank must be"),
    ({"rank": {"0": 0}}, r"got 0.*\(layer '0'\): leave the layer linear with exclude=\['0'\]"),
    ({"rank": lambda name: "9"}, r"rank must be.*\(layer '0'\)"),
    ({"rank": 2.5}, r"rank must be an integer, a mapping from layer names, or a callable"),
    ({"neuron": "fan", "rank": 3}, r"the neuron 'fan' has no rank, got rank=3: leave rank out"),
    ({"neuron": "fan", "rank": {"0": 3}}, r"the neuron 'fan' has no rank"),
    ({"neuron": "cubic"}, r"neuron must be one of .*eigen.*, got 'cubic'"),
    ({"neuron": "linear"}, r"got 'linear': use quadric.revert_"),
    ({"power": 3}, r"the neuron 'eigen' has no option 'power'"),
    ({"eigenvalue_init": "ones", "init": "published"}, r"eigenvalue_init must be one of"),
    ({"eigenvalue_init": "random_sign"}, r"must be 'zeros' with init='linear', got 'random_sign'"),
    ({"init": "random"}, r"init of the neuron 'eigen' must be one of published, linear, got"),
    ({"first": 0}, r"first must be >= 1, got 0"),
    ({"first": 7}, r"first must be at most .* 2, got 7"),
    ({"example_inputs": torch.zeros(2, 5)}, r"example_inputs must run through the model, got Run"),
    ({"neuron": "general", "max_bytes": 100}, r"must fit max_bytes.*\(layer '0'\)"),
]
AWKWARD: list[tuple[Any, str]] = [
    (
        lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3)),
        r"got none; the model's layers are: 1 ReLU, 1 BatchNorm1d; those .*: none",
    ),
    (
        lambda: nn.Sequential(nn.Conv1d(4, 4, 1, groups=4), nn.Linear(4, 1), nn.ReLU()),
        r"every layer that matched was skipped; the model's layers are: 1 Conv1d, 1 Linear, "
        r"1 ReLU; the reasons: 0 \(Conv1d\): depthwise.*; 1 \(Linear\): one output",
    ),
    (lambda: nn.Linear(3, 4), "got a single Linear, which cannot .*: use quadric.make_layer"),
    (lambda: nn.MultiheadAttention(4, 2), "got a single MultiheadAttention.*from_mha"),
    (lambda: QuadraticLinear(3, 4), "got a single QuadraticLinear"),
]
MISTAKES = [(small, *row) for row in SMALL] + [(build, {}, words) for build, words in AWKWARD]


@pytest.mark.parametrize(("build", "options", "words"), MISTAKES)
def test_mistakes_leave_the_model_alone(build: Any, options: dict[str, Any], words: str) -> None:
    model = build()
    before = snapshot(model)
    with pytest.raises((ValueError, TypeError), match=words):
        quadric.convert_(model, **options)
    assert_untouched(model, before)


def test_lazy_layers_are_refused_or_excluded() -> None:
    match = (
        r"every parameter must be initialized, got '0.weight' without a shape: run one forward pass"
    )
    model = nn.Sequential(nn.LazyLinear(10), nn.Linear(10, 10), nn.ReLU())
    for inputs in (None, torch.randn(3, 4)):  # nothing has run before
        with pytest.raises(ValueError, match=match):
            quadric.convert_(model, example_inputs=inputs)
    assert [type(m) for m in model] == [nn.LazyLinear, nn.Linear, nn.ReLU]
    assert quadric.convert_(model, exclude=["0"]).names == ["1"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exclude": ["0", "nope"]}, "exclude names 'nope', which matched no layer"),
        ({"exclude": "nope.*"}, r"exclude names 'nope\.\*', which matched no layer"),
        ({"include": ["0", "nope"]}, "include names 'nope', which matched no layer"),
    ],
)
def test_a_name_that_matches_nothing_is_a_warning(options: dict[str, Any], words: str) -> None:
    model = small()
    with pytest.warns(UserWarning, match=words) as caught:
        quadric.convert_(model, **options)
    assert os.path.basename(caught[0].filename) == os.path.basename(__file__)
    assert any(isinstance(m, QuadraticLayer) for m in model.modules())


def test_published_start() -> None:
    model = small()
    x = torch.randn(3, 6)
    before = model(x)
    weight = model[0].weight
    report = quadric.convert_(model, init="published")
    assert report.lossless  # the authors say nothing of weights: these stay
    assert model[0].weight is weight
    torch.testing.assert_close(model(x), before)
    report = quadric.convert_(small(), init="published", eigenvalue_init="random_sign")
    assert not report.lossless
    drawn = small()
    weight = drawn[0].weight
    report = quadric.convert_(drawn, neuron="qres", init="published")
    assert not report.lossless
    assert "re-initialized, as asked by init" in str(report)
    assert drawn[0].weight is not weight


def test_macs_that_cannot_be_counted_are_a_note() -> None:
    class Fussy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = nn.Linear(4, 10)
            self.runs = 0

        def forward(self, x: Tensor) -> Tensor:
            self.runs += 1
            if self.runs > 1:
                raise RuntimeError("only once")
            return torch.relu(self.fc1(x))

    model = Fussy()
    report = quadric.convert_(model, example_inputs=torch.randn(2, 4))
    assert report.names == ["fc1"]
    assert report.macs_before is None
    assert "the MACs could not be counted: " in str(report)
    assert "only once" in str(report)
