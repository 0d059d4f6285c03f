"""A fused model computes what the model computed, with fewer passes, or is left alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

import quadric
from quadric.folding import ChannelShift
from quadric.fusing import FusedLayer, fuse_
from tests.conftest import need_kernels
from tests.nn.cases import CASES, IDS, Case
from tests.test_folding import NORMS, neuron_layer, trained_

F64 = torch.float64
NEURONS = ["eigen", "shared"]


def fuse_and_compare(model: nn.Module, *inputs: Tensor, examples: bool = True) -> Any:
    with torch.no_grad():
        before = model(*inputs)
    report = fuse_(model, inputs if examples else None)
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), before, rtol=1e-10, atol=1e-10)
    return report


def conv(neuron: str = "eigen", inputs: int = 3, outputs: int = 20, **options: Any) -> Any:
    return neuron_layer(neuron, nn.Conv2d, inputs, outputs, 3, **options)


X = torch.randn(2, 3, 6, 5, dtype=F64)


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("normalize", [False, True])
def test_eigen(case: Case, normalize: bool) -> None:
    layer, x = case.make(normalize=normalize), case.input()
    model = trained_(nn.Sequential(layer, nn.ReLU()))
    report = fuse_and_compare(model, x)
    if "Transpose" in type(layer).__name__:  # it may be called with the size of its output
        assert report.fused == {}
        return
    assert report.fused == {"0": ("1",)}
    assert isinstance(model[0], FusedLayer)
    assert type(model[1]) is nn.Identity


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("shape", [(6, 3), (2, 3, 6, 5), (2, 3, 4, 3, 3)])
@pytest.mark.parametrize("examples", [True, False])
def test_with_a_batchnorm_between(neuron: str, shape: tuple[int, ...], examples: bool) -> None:
    if len(shape) == 2 and not examples:
        pytest.skip("a BatchNorm1d is folded with example inputs alone")
    kind = {2: nn.Linear, 4: nn.Conv2d, 5: nn.Conv3d}[len(shape)]
    size = () if kind is nn.Linear else (2,)
    layer = neuron_layer(neuron, kind, 3, 20, *size)
    model = trained_(nn.Sequential(layer, NORMS[len(shape)](20), nn.ReLU(inplace=True)))
    report = fuse_and_compare(model, torch.randn(shape, dtype=F64), examples=examples)
    assert report.folding.folded == {"0": "1"}
    assert report.fused == {"0": ("2",) if neuron == "eigen" else ("1", "2")}
    assert [type(m) for m in model] == [FusedLayer, nn.Identity, nn.Identity]


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("examples", [True, False])
def test_a_whole_network(neuron: str, examples: bool) -> None:
    model = trained_(quadric.models.create("resnet8", neuron=neuron, shortcut="B"))
    report = fuse_and_compare(model, torch.randn(2, 3, 16, 16, dtype=F64), examples=examples)
    assert report.fused["layer1.0.conv1"][-1] == "layer1.0.act1"
    # What is behind the sum of a block is not read from one layer alone.
    relus = [name for name, m in model.named_modules() if isinstance(m, nn.ReLU)]
    assert relus == ["layer1.0.act2", "layer2.0.act2", "layer3.0.act2"]
    assert not [m for m in model.modules() if isinstance(m, ChannelShift)]
    assert f"fused: {4 if neuron == 'eigen' else 9}, with" in str(report)


class Operations(TorchDispatchMode):
    """Counts what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def _kernels() -> Iterator[None]:
    need_kernels()
    yield
    quadric.use_kernels(False)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_on_the_kernels_nothing_is_left_but_the_convolution(
    neuron: str, channels_last: bool
) -> None:
    model = trained_(nn.Sequential(conv(neuron), nn.BatchNorm2d(20), nn.ReLU()))
    wide, x = copy.deepcopy(model), X.float()
    model = model.float()
    if channels_last:
        model, x = (t.to(memory_format=torch.channels_last) for t in (model, x))
    fuse_(model, x)
    operations = Operations()
    with torch.no_grad(), operations:
        out = model(x)
    assert operations.names == ["convolution"]
    with torch.no_grad():
        torch.testing.assert_close(out.double(), wide(X.float().double()), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("neuron", NEURONS)
def test_compiled_it_computes_the_same(neuron: str) -> None:
    model = trained_(nn.Sequential(conv(neuron), nn.BatchNorm2d(20), nn.ReLU())).float()
    fuse_(model)
    compiled = torch.compile(model, fullgraph=True)
    x = X.float()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("neuron", NEURONS)
def test_gradients_flow(neuron: str) -> None:
    model = trained_(nn.Sequential(conv(neuron), nn.BatchNorm2d(20), nn.ReLU()))
    x = X.clone().requires_grad_()
    expected = torch.autograd.grad(model(x).square().sum(), x)[0]
    fuse_(model)
    found = torch.autograd.grad(model(x).square().sum(), x)[0]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_that(neuron: str, dtype: torch.dtype) -> None:
    model: Any = trained_(nn.Sequential(conv(neuron), nn.ReLU()))
    model = model.to(dtype)
    x = X.to(dtype)
    with torch.no_grad():
        expected = model(x)
    fuse_(model)
    with torch.no_grad():
        assert torch.equal(model(x), expected)
    with torch.no_grad(), torch.autocast("cpu", dtype):
        assert model.float()(X.float()).dtype == dtype


def test_copies_move_and_print() -> None:
    model = trained_(nn.Sequential(conv("shared"), nn.BatchNorm2d(20), nn.ReLU()))
    fuse_(model)
    again = copy.deepcopy(model)
    assert set(again.state_dict()) == {"0.weight", "0.bias", "0.fused_eigenvalues", "0.shift"}
    assert again.float()[0].shift.dtype == torch.float32
    text = "neuron=shared, rank=8, shift, relu"
    assert text in repr(model)


def test_a_relu_that_is_used_twice_stays() -> None:
    relu = nn.ReLU()
    model = trained_(nn.Sequential(conv(), relu, conv(inputs=20), relu))
    assert fuse_and_compare(model, X).fused == {}


class Residual(nn.Module):
    """Somebody else reads the layer's output."""

    def __init__(self, neuron: str, before: bool) -> None:
        super().__init__()
        self.conv, self.relu, self.before = conv(neuron), nn.ReLU(), before

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(x)
        return self.relu(out) + out if self.before else self.relu(out + 1)


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("examples", [False, True])
def test_an_output_with_another_reader_stays(neuron: str, before: bool, examples: bool) -> None:
    model = trained_(Residual(neuron, before))
    assert fuse_and_compare(model, X, examples=examples).fused == {}
    assert isinstance(model.conv, quadric.nn.QuadraticLayer)


class Untraceable(nn.Module):
    def __init__(self, neuron: str) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = conv(neuron), nn.BatchNorm2d(20), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 1e9):
            return x
        return self.relu(self.bn(self.conv(x)))


@pytest.mark.parametrize("neuron", NEURONS)
def test_a_network_that_cannot_be_traced(neuron: str) -> None:
    model = trained_(Untraceable(neuron))
    untouched = copy.deepcopy(model).state_dict()
    with pytest.raises(ValueError, match="example_inputs are needed"):
        fuse_(model)
    assert model.state_dict().keys() == untouched.keys()
    assert fuse_and_compare(model, X).fused["conv"][-1] == "relu"


def test_a_shift_that_somebody_watches_stays_and_so_does_the_relu_behind_it() -> None:
    model = trained_(nn.Sequential(conv("shared"), nn.BatchNorm2d(20), nn.ReLU()))
    quadric.folding.fold_batchnorm_(model)
    model[1].register_forward_hook(lambda *a: None)
    for examples in (False, True):
        assert fuse_and_compare(model, X, examples=examples).fused == {}


@pytest.mark.parametrize("examples", [False, True])
def test_a_network_that_was_folded_before(examples: bool) -> None:
    model = trained_(nn.Sequential(conv("shared"), nn.BatchNorm2d(20), nn.ReLU()))
    quadric.folding.fold_batchnorm_(model)
    assert fuse_and_compare(model, X, examples=examples).fused == {"0": ("1", "2")}


class ShiftedConv(quadric.QuadraticConv2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) - 0.5


class Less(nn.Identity):
    def forward(self, input: Tensor) -> Tensor:
        return input - 0.5


@pytest.mark.parametrize("examples", [False, True])
def test_other_layers_stay(examples: bool) -> None:
    hooked = conv()
    hooked.register_forward_hook(lambda *a: None)
    backwards = conv()
    backwards.register_full_backward_hook(lambda *a: None)
    listened = nn.ReLU()
    listened.register_forward_pre_hook(lambda *a: None)
    replaced = nn.ReLU()
    replaced.forward = torch.sigmoid  # type: ignore[method-assign]
    identity = nn.Identity()
    identity.register_forward_hook(lambda module, inputs, out: out - 0.5)
    replaced_identity: Any = nn.Identity()
    replaced_identity.forward = torch.neg
    computed = conv()

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    parametrize.register_parametrization(computed, "weight", Twice())
    for parts in (
        [nn.Conv2d(3, 8, 3), nn.ReLU()],
        [hooked, nn.ReLU()],
        [backwards, nn.ReLU()],
        [ShiftedConv(3, 20, 3), nn.ReLU()],
        [conv(), replaced],
        [conv(), identity, nn.ReLU()],
        [conv(), replaced_identity, nn.ReLU()],
        [conv(), Less(), nn.ReLU()],
        [conv(), listened],
        [computed, nn.ReLU()],
        [conv("fan"), nn.ReLU()],
        [conv(), nn.ReLU6()],
        [conv(), nn.Dropout(), nn.ReLU()],
    ):
        model = trained_(nn.Sequential(*parts))
        assert fuse_and_compare(model, X, examples=examples).fused == {}
        assert list(model) == parts


@pytest.mark.parametrize("examples", [False, True])
def test_what_a_hook_on_a_container_sees_stays(examples: bool) -> None:
    seen: list[Tensor] = []
    model = trained_(nn.Sequential(nn.Sequential(conv(), nn.Identity()), nn.Sequential(nn.ReLU())))
    handle = model[0].register_forward_hook(lambda module, inputs, out: seen.append(out))
    assert fuse_and_compare(model, X, examples=examples).fused == {}
    assert float(seen[-1].min()) < 0
    handle.remove()
    handle = model[1].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    assert fuse_and_compare(model, X, examples=examples).fused == {}
    handle.remove()
    model.register_forward_hook(lambda *a: None)  # sees what it saw
    assert fuse_and_compare(model, X, examples=examples).fused == {"0.0": ("1.0",)}


class Inside(nn.Module):
    """A layer that a module of torch calls, too, which nobody looks into."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(4, 2, 20, activation="gelu", batch_first=True)
        quadric.convert_(self.encoder)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.encoder.linear1(x)).sum() + self.encoder(x)


@pytest.mark.parametrize("examples", [False, True])
def test_a_layer_that_is_called_out_of_sight_stays(examples: bool) -> None:
    model = trained_(Inside())
    x = torch.randn(2, 3, 4, dtype=F64)
    assert fuse_and_compare(model, x, examples=examples).fused == {}


@dataclass
class Answer:
    features: Tensor
    out: Tensor


class Returning(Untraceable):
    """What a layer makes is handed out, in a container that only a dataclass is."""

    def forward(self, x: Tensor) -> Any:
        out = self.conv(x) if bool(x.sum() < 1e9) else x
        return Answer(out, self.relu(out))


def test_an_output_in_a_dataclass_is_read() -> None:
    model = trained_(Returning("eigen"))
    assert fuse_(model, X).fused == {}


class Careful(nn.Linear):
    """torch.fx cannot look into it."""

    def forward(self, input: Tensor) -> Tensor:
        if bool(input.shape[-1] != self.in_features):
            raise ValueError
        return super().forward(input)


def test_nothing_is_left_half_done() -> None:
    """What can be traced to fold a BatchNorm can be traced again to fuse."""
    tail = [nn.Flatten(), Careful(20 * 4 * 3, 2)]
    model = trained_(nn.Sequential(conv(), nn.BatchNorm2d(20), nn.ReLU(), *tail))
    assert fuse_and_compare(model, X, examples=False).fused == {"0": ("2",)}


@pytest.mark.parametrize("examples", [False, True])
def test_twice_is_as_good_as_once(examples: bool) -> None:
    parts = [conv("shared"), nn.BatchNorm2d(20), nn.ReLU(), conv(inputs=20), nn.Sigmoid()]
    model = trained_(nn.Sequential(*parts))
    assert fuse_and_compare(model, X, examples=examples).fused == {"0": ("1", "2")}
    assert fuse_and_compare(model, X, examples=examples).fused == {}


def test_a_tracer_s_error_without_a_message() -> None:
    class Silent(Untraceable):
        def forward(self, x: Tensor) -> Tensor:
            raise NotImplementedError

    with pytest.raises(ValueError, match="NotImplementedError: no message"):
        fuse_(trained_(Silent("eigen")))


def test_it_has_the_layer_s_geometry_and_no_checkpoint_of_it() -> None:
    layer = quadric.QuadraticConv2d(3, 20, 3, stride=2, rank=3, normalize=True)
    model = nn.Sequential(layer, nn.ReLU()).eval()
    state = model.state_dict()
    fuse_(model)
    fused: Any = model[0]
    assert (fused.in_channels, fused.out_channels, fused.stride) == (3, 20, (2, 2))
    with pytest.raises(RuntimeError, match="fused_eigenvalues"):
        model.load_state_dict(state)


@pytest.mark.usefixtures("_kernels")
def test_the_kernels_read_no_further_than_there_is() -> None:
    layer = quadric.QuadraticConv2d(3, 20, 3)
    with pytest.raises(ValueError, match="one number for each of 20 outputs"):
        FusedLayer(layer, torch.randn(3), True)
    fused = FusedLayer(layer, None, True)
    fused.fused_eigenvalues = nn.Parameter(torch.randn(2))
    with torch.no_grad(), pytest.raises(ValueError, match="need 18 numbers"):
        fused(X.float())


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = conv("shared"), nn.BatchNorm2d(20), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x)))


@pytest.mark.parametrize("examples", [False, True])
@pytest.mark.parametrize("twice", ["conv", "bn", "relu"])
def test_a_module_with_a_second_place_stays(twice: str, examples: bool) -> None:
    """Whoever holds it there may call it one day. The shift stays, and so the ReLU behind it."""
    model = trained_(Block())
    quadric.folding.fold_batchnorm_(model)
    model.again = getattr(model, twice)
    report = fuse_and_compare(model, X, examples=examples)
    assert report.fused == ({"conv": ("bn",)} if twice == "relu" else {})


class Lower(nn.ReLU):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) - 0.5


def test_a_subclass_of_a_relu_stays() -> None:
    assert fuse_and_compare(trained_(nn.Sequential(conv(), Lower())), X).fused == {}


def test_a_functional_relu_stays() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv()

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.conv(x))

    assert fuse_and_compare(trained_(Functional()), X).fused == {}


def test_bad_arguments() -> None:
    model = nn.Sequential(conv(), nn.ReLU())
    with pytest.raises(ValueError, match="eval mode to fuse its layers, got the model in training"):
        fuse_(model)
    model.eval()
    model[1].train()
    with pytest.raises(ValueError, match="got '1' in training mode"):
        fuse_(model)
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module"):
        fuse_("model")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="example_inputs must run through the model"):
        fuse_(model.eval(), torch.randn(2, 5))
    assert isinstance(model[0], quadric.nn.QuadraticLayer)
