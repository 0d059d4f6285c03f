"""A joined network computes what it computed, in both modes, in fewer passes, or is left alone."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quadric
from quadric import kernels
from quadric._behind import JoinedReLU
from quadric.folding import fold_batchnorm_
from quadric.fusing import fuse_
from quadric.joining import join_, separate_
from tests.conftest import need_kernels
from tests.nn.test_memory import saved_storages
from tests.test_compiled import Graphs
from tests.test_folding import NORMS, neuron_layer
from tests.test_fusing import Operations

NEURONS = ["eigen", "shared"]
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    need_kernels()
    yield
    quadric.use_kernels(False)


def rows_of(shape: tuple[int, ...]) -> Tensor:
    """Numbers whose channels lie next to each other."""
    x = torch.randn(shape)
    return x.contiguous(memory_format=FORMATS[x.dim()]) if x.dim() in FORMATS else x


def block(
    neuron: str,
    outputs: int = 25,
    shape: tuple[int, ...] = (5, 3, 9, 7),
    relu: bool = True,
    options: dict[str, Any] | None = None,
    **norm: Any,
) -> nn.Sequential:
    """A layer, its BatchNorm and a ReLU, with numbers as training leaves them."""
    kind = {2: nn.Linear, 3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[len(shape)]
    size = () if kind is nn.Linear else (3,)
    layer = neuron_layer(neuron, kind, shape[1], outputs, *size, **(options or {}))
    model = nn.Sequential(layer, NORMS[len(shape)](outputs, **norm))
    if relu:
        model.append(nn.ReLU())
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if name in ("1.weight", "1.bias", "1.running_mean", "0.eigenvalues"):
            value.data.normal_()
        elif name == "1.running_var":
            value.data.uniform_(0.5, 2)
    if len(shape) in FORMATS:
        model.to(memory_format=FORMATS[len(shape)])  # type: ignore[call-overload]
    return model


def has_norm() -> bool:
    return kernels.has_norm(1)


def need_norm() -> None:
    if not has_norm():
        pytest.skip("this processor has no kernels with a BatchNorm")


def has_torch_s(operations: Operations) -> bool:
    """Whether a BatchNorm or a ReLU of torch's was among them."""
    return bool({"native_batch_norm", "_batch_norm_impl_index", "relu"} & set(operations.names))


def is_joined(model: nn.Module, x: Tensor) -> bool:
    """Whether a forward pass leaves nothing to torch's BatchNorm and ReLU, as it should where the
    processor has the kernels for it.
    """
    if not has_norm():
        return True
    with Operations() as operations:
        copy.deepcopy(model)(x)
    return not has_torch_s(operations)


def with_gradients(model: nn.Module, x: Tensor, grad: Tensor) -> list[Tensor]:
    """The output, and the gradients of the input and of all parameters."""
    x = x.detach().requires_grad_()
    out = model(x)
    wanted = [x, *(p for p in model.parameters() if p.requires_grad)]
    return [out, *torch.autograd.grad(out, wanted, grad.to(out.dtype))]


def compare(model: nn.Module, x: Tensor, *, tolerance: float = 2e-5) -> Any:
    """Holds a joined model against its separate copy in float64: output, gradients, statistics."""
    truth = copy.deepcopy(model).double()
    report = join_(model, x)
    grad = torch.randn_like(truth(x.double()), dtype=torch.float32)
    truth.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
    found, expected = with_gradients(model, x, grad), with_gradients(truth, x.double(), grad)
    for one, other in zip(found, expected, strict=True):
        # That of a bias in front of a BatchNorm is zero, a sum of numbers that are not.
        scale = max([1.0, *other.abs().flatten().tolist()])
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance * scale)
    for one, other in zip(model.buffers(), truth.buffers(), strict=True):
        torch.testing.assert_close(one.to(other.dtype), other, rtol=1e-5, atol=1e-5)
    return report


SHAPES = [(40, 6), (5, 3, 9, 7), (2, 2, 5, 4, 6)]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_all_kinds(neuron: str, relu: bool, training: bool, shape: tuple[int, ...]) -> None:
    model = block(neuron, shape=shape, relu=relu).train(training)
    x = rows_of(shape)
    report = compare(model, x)
    assert report.joined == {"0": ("1", "2") if relu else ("1",)}
    assert report.kept == {}
    assert is_joined(model, x)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5, 7, 8, 9, 15])
@pytest.mark.parametrize("outputs", [1, 2, 10, 16, 17, 33, 60])
def test_ranks_and_widths(neuron: str, rank: int, outputs: int) -> None:
    model = block(neuron, outputs, options={"rank": rank})
    compare(model, rows_of((5, 3, 9, 7)))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("rows", [4, 7, 8, 9, 130, 1000, 5000])
@pytest.mark.parametrize("threads", [1, 2])
def test_numbers_of_rows(neuron: str, rows: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        compare(block(neuron, 23, (rows, 6)), torch.randn(rows, 6), tolerance=5e-5)
    finally:
        torch.set_num_threads(before)


NORM_OPTIONS: list[dict[str, Any]] = [
    {"affine": False},
    {"track_running_stats": False},
    {"momentum": None},
    {"momentum": 0.3, "eps": 0.1},
    {"momentum": 0.0},
]


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", NORM_OPTIONS, ids=str)
def test_options_of_the_norm(neuron: str, training: bool, norm: dict[str, Any]) -> None:
    model = block(neuron, **norm).train(training)
    compare(model, rows_of((5, 3, 9, 7)))
    assert is_joined(model, rows_of((5, 3, 9, 7)))


LAYER_OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("eigen", {"normalize": True}),
    ("eigen", {"bias": False}),
    ("shared", {"bias": False}),
    ("eigen", {"groups": 3, "stride": 2, "padding": 1}),
    ("shared", {"groups": 3, "padding": 1, "padding_mode": "reflect"}),
]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("neuron", "options"), LAYER_OPTIONS)
def test_options_of_the_layer(neuron: str, options: dict[str, Any]) -> None:
    compare(block(neuron, 24, options=options), rows_of((5, 3, 9, 7)))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("neuron", NEURONS)
def test_a_large_mean_does_not_cancel(neuron: str) -> None:
    model = block(neuron, shape=(600, 6))
    model[0].weight.data.mul_(1e-3)
    model[0].bias.data.fill_(30.0)
    model[0].eigenvalues.data.mul_(0.01)
    x = torch.randn(600, 6)
    truth = copy.deepcopy(model).double()(x.double())
    separate = (copy.deepcopy(model)(x) - truth).abs().max()
    join_(model)
    # Float32 leaves little of a spread that is a thousandth of its mean, and torch no more than we.
    assert (model(x) - truth).abs().max() < 4 * separate + 1e-6
    assert separate < 0.1


@pytest.mark.parametrize("neuron", NEURONS)
def test_equal_rows_are_no_distance_apart(neuron: str) -> None:
    """The gradient of the norm's weight is a sum of zeros, divided by the root of eps."""
    need_norm()
    worst = 0.0
    for seed in range(20):
        torch.manual_seed(seed)
        model = block(neuron, shape=(1000, 6), outputs=10, relu=False)
        model[0].weight.data.zero_()
        model[0].bias.data.normal_()
        x = torch.randn(1000, 6)
        join_(model, x)
        model(x).backward(2 * torch.rand(1000, 10))
        worst = max(worst, model[1].weight.grad.abs().max().item())
    assert worst < 0.01


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("outputs", [2, 4, 20])
@pytest.mark.parametrize("place", [0, -1])
def test_an_outlier_does_not_hide_the_spread(neuron: str, outputs: int, place: int) -> None:
    model = block(neuron, outputs, (4096, 6), options={"rank": 3})
    nn.init.normal_(model[0].eigenvalues, std=0.01)
    x = torch.randn(4096, 6)
    x[place] *= 1000
    truth = copy.deepcopy(model).double()
    expected = truth(x.double())
    join_(model)
    torch.testing.assert_close(model(x).double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        model[1].running_var.double(), truth[1].running_var, rtol=1e-4, atol=0
    )


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("neuron", NEURONS)
def test_an_infinite_output_that_the_relu_cuts(neuron: str) -> None:
    model = block(neuron, 4, (3, 2), options={"rank": 2}).eval()
    model[0].bias.data[0] = -float("inf") if neuron == "eigen" else -1e18
    model[0].eigenvalues.data.fill_(-0.1)
    x = torch.randn(3, 2, requires_grad=True)
    other = copy.deepcopy(model)
    join_(model)
    for net in (model, other):
        net[1].weight.data.fill_(1.0)
    (expected,) = torch.autograd.grad(other(x).sum(), x)
    (found,) = torch.autograd.grad(model(x).sum(), x)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert neuron == "shared" or expected.isfinite().all()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("neuron", NEURONS)
def test_nothing_goes_back_through_a_relu_at_zero(neuron: str) -> None:
    model = block(neuron)
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    join_(model)
    model(rows_of((5, 3, 9, 7))).sum().backward()
    assert not any(p.grad is None or p.grad.any() for p in model.parameters())


def test_statistics_that_are_no_longer_tracked() -> None:
    model = block("eigen")
    join_(model)
    before = copy.deepcopy(model.state_dict())
    model[1].track_running_stats = False
    model(rows_of((5, 3, 9, 7)))
    for name, value in model[1].state_dict().items():
        assert torch.equal(value, before[f"1.{name}"])


def test_a_norm_for_another_kind_of_input_refuses_as_before() -> None:
    model = nn.Sequential(neuron_layer("eigen", nn.Linear, 5, 8), nn.BatchNorm2d(8))
    join_(model)
    with pytest.raises(ValueError, match="expected 4D input"):
        model(torch.randn(4, 5))


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("channels_last", [True, False])
def test_without_gradients(neuron: str, training: bool, channels_last: bool) -> None:
    model = block(neuron).train(training)
    x = rows_of((5, 3, 9, 7))
    x = x if channels_last else x.contiguous()
    other = copy.deepcopy(model)
    join_(model)
    with torch.no_grad():
        torch.testing.assert_close(model(x), other(x), rtol=2e-5, atol=2e-5)
    for one, two in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("frozen", ["0.weight", "0.eigenvalues", "1.weight", "1.bias"])
def test_frozen_parameters(neuron: str, frozen: str) -> None:
    model = block(neuron)
    model.get_parameter(frozen).requires_grad_(False)
    compare(model, rows_of((5, 3, 9, 7)))


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("training", [True, False])
def test_second_derivatives(neuron: str, training: bool) -> None:
    model = block(neuron, 12).train(training)
    x = rows_of((2, 3, 5, 4)).requires_grad_()
    truth = copy.deepcopy(model).double()
    join_(model)

    def second(net: nn.Module, at: Tensor) -> list[Tensor]:
        (first,) = torch.autograd.grad(net(at).square().sum(), at, create_graph=True)
        parameters = list(net.parameters())
        return list(torch.autograd.grad(first.square().sum(), [at, *parameters]))

    expected = second(truth, x.detach().double().requires_grad_())
    for one, other in zip(second(model, x), expected, strict=True):
        scale = other.abs().max().item() + 1e-6
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3 * scale)


@pytest.mark.parametrize("neuron", NEURONS)
def test_several_gradients_at_once(neuron: str) -> None:
    model = block(neuron, 12)
    x = rows_of((2, 3, 5, 4)).requires_grad_()
    join_(model)
    out = model(x)
    grads = torch.randn(3, *out.shape)
    (many,) = torch.autograd.grad(out, x, grads, is_grads_batched=True, retain_graph=True)
    for one, grad in zip(many, grads, strict=True):
        (alone,) = torch.autograd.grad(out, x, grad, retain_graph=True)
        torch.testing.assert_close(one, alone, rtol=1e-4, atol=1e-4)


def elsewhere(kind: str, neuron: str) -> tuple[nn.Module, Tensor]:
    """A network that the kernels with a BatchNorm do not serve, and its input."""
    x = rows_of((5, 3, 9, 7))
    if kind == "off":
        quadric.use_kernels(False)
    if kind == "planes":
        return block(neuron).to(memory_format=torch.contiguous_format), x.contiguous()  # type: ignore[call-overload]
    if kind == "wide":
        return block(neuron, 40, options={"rank": 20}), x
    if kind == "double":
        return block(neuron).double(), x.double()
    if kind == "sequences":
        return block(neuron, shape=(4, 3, 30)), torch.randn(4, 3, 30)
    return block(neuron), x


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("kind", ["off", "planes", "wide", "double", "sequences"])
@pytest.mark.parametrize("training", [True, False])
def test_elsewhere_torch_does_the_rest(neuron: str, kind: str, training: bool) -> None:
    model, x = elsewhere(kind, neuron)
    model.train(training)
    other = copy.deepcopy(model)
    assert join_(model).joined == {"0": ("1", "2")}
    grad = torch.randn_like(copy.deepcopy(other)(x))
    found, expected = with_gradients(model, x, grad), with_gradients(other, x, grad)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    for one, two in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(one, two)


def test_autocast_casts_as_before() -> None:
    model = block("eigen")
    x = rows_of((5, 3, 9, 7))
    other = copy.deepcopy(model)
    join_(model)
    with torch.autocast("cpu", torch.bfloat16):
        one, two = model(x), other(x)
    assert one.dtype == two.dtype == torch.bfloat16
    torch.testing.assert_close(one, two)


def test_torch_s_refusals_stay() -> None:
    model = block("eigen", shape=(4, 6))
    join_(model)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(torch.randn(1, 6))
    with pytest.raises(ValueError, match="the last dimension of the input must be in_features"):
        model(torch.randn(4, 7))
    assert model.eval()(torch.randn(1, 6)).shape == (1, 25)


@pytest.mark.parametrize("training", [True, False])
def test_an_empty_batch(training: bool) -> None:
    model = block("eigen", shape=(4, 6)).train(training)
    other = copy.deepcopy(model)
    join_(model)
    assert model(torch.randn(0, 6)).shape == other(torch.randn(0, 6)).shape == (0, 25)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("training", [True, False])
def test_numbers_that_are_none(neuron: str, value: float, training: bool) -> None:
    model = block(neuron, 24, (40, 6)).train(training)
    x = torch.randn(40, 6)
    x[3, 2] = value
    other = copy.deepcopy(model)
    join_(model)
    finite = model(x).isfinite()
    assert torch.equal(finite, other(x).isfinite())
    assert finite.any() == (not training)


@pytest.mark.parametrize("neuron", NEURONS)
def test_it_keeps_what_a_linear_layer_keeps(neuron: str) -> None:
    """The bytes that wait for the backward pass: a joined layer's are those of a linear one, its
    eigenvalues and the statistics in float64, without the output, which its ReLU need not keep.
    """
    need_norm()
    x = rows_of((8, 3, 16, 16)).requires_grad_()
    model, linear = block(neuron, 32), nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32))
    linear.append(nn.ReLU()).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    join_(model)
    ours = sum(saved_storages(lambda: model(x)).values())
    theirs = sum(saved_storages(lambda: linear(x)).values())
    assert ours + model(x).nbytes - theirs <= model[0].eigenvalues.nbytes + 4 * 32 * 8


class Calls:
    """Counts the calls of the library's functions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        call = kernels._call

        def counted(function: Any, *arguments: Any) -> object:
            self.names.append(function.__name__)
            return call(function, *arguments)

        monkeypatch.setattr(kernels, "_call", counted)


@pytest.mark.parametrize("neuron", NEURONS)
def test_one_call_forward_and_one_backward(neuron: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What CI notices where seconds would not be: a fusion that was lost."""
    need_norm()
    model = block(neuron)
    join_(model)
    calls = Calls(monkeypatch)
    with Operations() as operations:
        model(rows_of((5, 3, 9, 7))).sum().backward()
    assert calls.names == [f"quadric_{neuron}_norm_forward", f"quadric_{neuron}_norm_backward"]
    assert not has_torch_s(operations)
    large = [name for name in operations.names if "batch_norm" in name or "threshold" in name]
    assert large == []


@pytest.mark.parametrize("neuron", NEURONS)
def test_an_activation_in_place_behind_the_norm(neuron: str) -> None:
    model = nn.Sequential(*block(neuron, relu=False), nn.LeakyReLU(inplace=True))
    assert compare(model, rows_of((5, 3, 9, 7))).joined == {"0": ("1",)}


# ------------------------------------------------------------------------------------------------
# Networks, files and copies
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("examples", [True, False])
def test_a_whole_network_trains_as_before(neuron: str, examples: bool) -> None:
    torch.manual_seed(0)
    model = quadric.models.create("resnet8", neuron=neuron, shortcut="B")
    model.to(memory_format=torch.channels_last)
    x, y = rows_of((16, 3, 16, 16)), torch.randint(10, (16,))
    other = copy.deepcopy(model)
    modes = [module.training for module in model.modules()]
    report = join_(model, x if examples else None)
    assert len(report.joined) == 9
    assert report.joined["layer1.0.conv1"] == ("layer1.0.bn1", "layer1.0.act1")
    assert report.joined["layer1.0.conv2"] == ("layer1.0.bn2",)
    assert [module.training for module in model.modules()] == modes
    for one, two in zip(model.buffers(), other.buffers(), strict=True):
        assert torch.equal(one, two)
    losses: list[list[float]] = []
    for net in (model, other):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        own = []
        for _ in range(5):
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            own.append(loss.item())
        losses.append(own)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0][-1] < losses[0][0]
    assert list(model.state_dict()) == list(other.state_dict())
    other.load_state_dict(model.state_dict())
    model.eval()
    other.eval()
    torch.testing.assert_close(model(x), other(x), rtol=1e-4, atol=1e-4)


def test_copies_are_joined_to_their_own_norm() -> None:
    model = block("eigen")
    join_(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other[0].behind.norm is other[1]
        assert other[0].behind.relu is other[2]
        x = rows_of((5, 3, 9, 7))
        torch.testing.assert_close(other(x), copy.deepcopy(model)(x))


def test_separate_undoes_it() -> None:
    model = block("shared")
    before = [type(module) for module in model]
    assert separate_(model) == []
    join_(model)
    assert [type(module) for module in model] != before
    assert separate_(model) == ["0"]
    assert [type(module) for module in model] == before
    assert model[0].behind is None
    with Operations() as operations:
        model(rows_of((5, 3, 9, 7)))
    assert has_torch_s(operations)


@pytest.mark.parametrize("part", ["body", "tail"])
def test_separating_a_part_separates_its_layers(part: str) -> None:
    conv, norm, relu = block("eigen")
    model = nn.ModuleDict({"body": nn.Sequential(conv), "tail": nn.Sequential(norm, relu)})
    net, x = nn.Sequential(*model.values()), rows_of((5, 3, 9, 7))
    net.eval()
    with torch.no_grad():
        expected = net(x)
        assert join_(net).joined == {"0.0": ("1.0", "1.1")}
        assert separate_(model[part]) == (["0"] if part == "body" else [])
        torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-4)
    assert (type(norm) is nn.BatchNorm2d) == (part == "body")


def test_a_parametrized_norm_is_still_computed() -> None:
    class Halved(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight / 2

    model, x = block("eigen").eval(), rows_of((5, 3, 9, 7))
    other = copy.deepcopy(model)
    join_(model)
    for net in (model, other):
        torch.nn.utils.parametrize.register_parametrization(net[1], "weight", Halved())
    for memory_format in (torch.channels_last, torch.contiguous_format):
        x = x.contiguous(memory_format=memory_format)
        torch.testing.assert_close(model(x), other(x), rtol=1e-4, atol=1e-4)
    separate_(model)
    torch.testing.assert_close(model(x), other(x), rtol=1e-4, atol=1e-4)


def test_cost_is_that_of_the_separate_network() -> None:
    model, x = block("eigen"), rows_of((2, 3, 9, 7))
    expected = str(quadric.cost(model, x))
    join_(model)
    assert str(quadric.cost(model, x)) == expected
    assert model[0].behind is not None
    assert is_joined(model, x)


def test_joining_twice_is_joining_once() -> None:
    model = block("eigen")
    assert join_(model).joined
    report = join_(model)
    assert report.joined == report.kept == {}


@pytest.mark.parametrize("what", [fold_batchnorm_, fuse_])
@pytest.mark.parametrize("neuron", NEURONS)
def test_folding_separates_first(what: Any, neuron: str) -> None:
    model = block(neuron).eval()
    x = rows_of((5, 3, 9, 7))
    expected = model(x).detach()
    join_(model)
    what(model, x)
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    assert type(model[1]) is not type(expected)
    assert not any(type(module).__name__.startswith("Joined") for module in model)


def test_revert_separates_first() -> None:
    model = nn.Sequential(nn.Conv2d(3, 20, 3), nn.BatchNorm2d(20), nn.ReLU()).eval()
    x = rows_of((5, 3, 9, 7))
    expected = model(x)
    quadric.convert_(model)
    join_(model)
    quadric.revert_(model)
    assert [type(module) for module in model] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("fold", [True, False])
def test_an_export_is_of_the_separate_network(tmp_path: Any, fold: bool) -> None:
    pytest.importorskip("onnx")
    model = block("eigen").eval()
    join_(model)
    quadric.export_onnx(model, tmp_path / "model.onnx", rows_of((1, 3, 9, 7)), fold=fold)
    assert model[0].behind is not None  # the model itself stays as it was


# ------------------------------------------------------------------------------------------------
# torch.compile
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neuron", NEURONS)
def test_torch_s_own_checks_of_the_operator(neuron: str) -> None:
    z = rows_of((3, 25, 4, 5)).requires_grad_()
    layer = block(neuron)[0]
    lam = layer.eigenvalues.detach().requires_grad_()
    weight, bias = torch.randn(25, requires_grad=True), torch.randn(25, requires_grad=True)
    settings = (neuron, layer.rank, -3, 1, "1.0")
    add = torch.ops.quadric.norm_squares.default
    for mean, var in ((None, None), (torch.randn(25), torch.rand(25))):
        for own in ((weight, bias), (None, None)):
            arguments = (z, lam, mean, var, *own, 1e-5, True, mean is None, None, *settings)
            torch.library.opcheck(add, arguments)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("channels_last", [True, False])
def test_a_compiled_network(neuron: str, channels_last: bool) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(*block(neuron, 24), *block(neuron, 12, (5, 24, 7, 5), relu=False))
    x = rows_of((5, 3, 9, 7))
    x = x if channels_last else x.contiguous()
    other = copy.deepcopy(model)
    join_(model)
    compiled = torch.compile(model, fullgraph=True)
    grad = torch.randn_like(copy.deepcopy(other)(x))
    for one, two in zip(
        with_gradients(compiled, x, grad), with_gradients(other, x, grad), strict=True
    ):
        scale = two.abs().max().item()
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4 * scale)
    for one, two in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
    model.eval()
    other.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), other(x), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_compiled_cumulative_average() -> None:
    """torch.compile keeps a number that changes in its graph where it is the `alpha` of a sum."""
    need_norm()
    torch._dynamo.reset()
    model = block("eigen", 12, momentum=None)
    other = copy.deepcopy(model)
    join_(model)
    compiled = torch.compile(model)
    for step in range(4):
        x = rows_of((5, 3, 9, 7)) + step
        compiled(x)
        other(x)
        for one, two in zip(model.buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wide", [False, True])
def test_the_compiler_is_left_what_there_is_no_kernel_for(wide: bool) -> None:
    torch._dynamo.reset()
    model = block("eigen", 40, options={"rank": 20 if wide else 9})
    join_(model)
    graphs = Graphs()
    torch.compile(model, backend=graphs, fullgraph=True)(rows_of((5, 3, 9, 7)))
    assert any("norm_squares" in name for name in graphs.targets) == (has_norm() and not wide)
    assert any("batch_norm" in name for name in graphs.targets) == (wide or not has_norm())


def test_another_batch_compiles_no_more_than_the_linear_network() -> None:
    counts = []
    linear = nn.Sequential(nn.Conv2d(3, 20, 3), nn.BatchNorm2d(20), nn.ReLU())
    model = block("eigen", 20)
    join_(model)
    for net in (linear, model):
        torch._dynamo.reset()
        compiled = torch.compile(net, backend=(graphs := Graphs()), fullgraph=True)
        for batch in (4, 5, 6, 9):
            compiled(rows_of((batch, 3, 9, 7)))
        counts.append(graphs.count)
    assert counts[1] <= counts[0]


# ------------------------------------------------------------------------------------------------
# What is joined
# ------------------------------------------------------------------------------------------------


class Branching(nn.Module):
    """Its output is read twice in one mode."""

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.conv, self.norm = block("eigen", relu=False)
        self.both = both

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x)
        out: Tensor = self.norm(z)
        return out + z if self.training == self.both else out


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("examples", [True, False])
def test_what_is_read_twice_in_any_mode_stays(both: bool, training: bool, examples: bool) -> None:
    model = Branching(both).train(training)
    report = join_(model, rows_of((5, 3, 9, 7)) if examples else None)
    assert report.joined == {}
    assert "does not alone read" in report.kept["norm"]
    assert model.training == training


class Switching(nn.Module):
    """Another layer in front of its BatchNorm, or another BatchNorm in front of its ReLU, in each
    mode.
    """

    def __init__(self, layers: bool) -> None:
        super().__init__()
        self.layers = layers
        self.one, self.norm, self.relu = block("eigen")
        self.two, self.other, _ = block("eigen")

    def forward(self, x: Tensor) -> Tensor:
        if self.layers:
            out: Tensor = self.norm(self.one(x) if self.training else self.two(x))
            return out
        one, two = self.norm(self.one(x)), self.other(self.two(x))
        sum: Tensor = self.relu(one) + two if self.training else one + self.relu(two)
        return sum


@pytest.mark.parametrize("layers", [True, False])
@pytest.mark.parametrize("examples", [True, False])
def test_what_is_another_in_each_mode_stays(layers: bool, examples: bool) -> None:
    model, x = Switching(layers), rows_of((5, 3, 9, 7))
    others = {mode: copy.deepcopy(model).train(mode)(x) for mode in (True, False)}
    joined = join_(model, x if examples else None).joined
    assert joined == ({} if layers else {"one": ("norm",), "two": ("other",)})
    for mode, expected in others.items():
        found = copy.deepcopy(model).train(mode)(x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


class Untraceable(nn.Module):
    """torch.fx cannot trace it, and what it reads twice it reads in training."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = block("eigen")

    def forward(self, x: Tensor) -> Any:
        z = self.conv(x)
        if float(x.sum()) > 1e9:
            return z
        out = self.relu(self.norm(z))
        return (out, z) if self.training else out


def test_a_network_that_cannot_be_traced_runs_in_both_modes() -> None:
    model, x = Untraceable(), rows_of((5, 3, 9, 7))
    with pytest.raises(ValueError, match="example_inputs are needed"):
        join_(model)
    before = copy.deepcopy(model.state_dict())
    assert join_(model, x).joined == {}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])  # the run in train mode left no trace


def untouched(change: str) -> nn.Sequential:
    model = block("eigen", relu=change != "relu6")
    if change == "hook on the norm":
        model[1].register_forward_hook(lambda *args: None)
    elif change == "hook on the layer":
        model[0].register_forward_pre_hook(lambda *args: None)
    elif change == "subclass":
        model[1].__class__ = type("Own", (nn.BatchNorm2d,), {})
    elif change == "sync":
        model[1] = nn.SyncBatchNorm.convert_sync_batchnorm(model[1])
    elif change == "recompute":
        model[0].recompute = True
    elif change == "linear":
        model[0] = nn.Conv2d(3, 25, 3)
    elif change == "another neuron":
        model[0] = neuron_layer("fan", nn.Conv2d, 3, 25, 3)
    elif change == "twice":
        model = nn.Sequential(*block("eigen", 3, relu=False), model[2])
        model.append(model[0])
    elif change == "dropout":
        model.insert(1, nn.Dropout())
    return model


CHANGES = ["hook on the norm", "hook on the layer", "subclass", "sync", "recompute", "linear"]
CHANGES += ["another neuron", "twice", "dropout"]


@pytest.mark.parametrize("change", CHANGES)
def test_what_stays(change: str) -> None:
    model = untouched(change)
    before = [type(module) for module in model]
    assert join_(model).joined == {}
    assert [type(module) for module in model] == before


@pytest.mark.parametrize("change", ["hook", "twice", "not alone", "functional"])
def test_a_relu_that_stays(change: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.relu = block("eigen")
            if change == "hook":
                self.relu.register_forward_hook(lambda *args: None)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.norm(self.conv(x))
            if change == "functional":
                return F.relu(out)
            activated: Tensor = self.relu(out)
            if change == "not alone":
                return activated + out
            return self.relu(activated - 1) if change == "twice" else activated  # type: ignore[no-any-return]

    model, x = Net(), rows_of((5, 3, 9, 7))
    other = copy.deepcopy(model)
    assert join_(model).joined == {"conv": ("norm",)}
    torch.testing.assert_close(model(x), other(x), rtol=1e-4, atol=1e-4)


def test_identity_between_is_no_obstacle() -> None:
    model = block("eigen")
    model.insert(1, nn.Identity())
    assert join_(model).joined == {"0": ("2", "3")}


def test_the_report_names_what_stays() -> None:
    model = untouched("recompute")
    assert str(join_(model)).splitlines() == [
        "joined: 0, with 0 modules behind them",
        "left alone: 1",
        "  1: '0' recomputes its output",
    ]


def test_a_model_is_asked_for() -> None:
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got str: give"):
        join_("resnet20")  # type: ignore[arg-type]


def test_example_inputs_that_do_not_run_leave_a_joined_model_as_it_is():
    model = nn.Sequential(nn.Conv2d(3, 20, 3), nn.BatchNorm2d(20), nn.ReLU())
    quadric.convert_(model)
    model.eval()
    join_(model, torch.randn(2, 3, 6, 6))
    for change in (fuse_, fold_batchnorm_):
        with pytest.raises(Exception, match="channels"):
            change(model, torch.randn(2, 4, 6, 6))
        assert model[0].behind is not None
        assert isinstance(model[2], JoinedReLU)
