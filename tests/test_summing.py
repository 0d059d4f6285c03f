"""The sum of a residual block in a compiled graph: handed to the operator where that is right, and
to nobody where it is not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional as F

import quadric
from quadric import _norm, _summing
from quadric._squares import EigenSquares, SharedSquares
from quadric.joining import join_
from quadric.kernels import Norm
from tests.conftest import need_kernels
from tests.test_joining import NEURONS, block, has_norm, rows_of, with_gradients

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    need_kernels()
    # Graphs on disk are found by what they were made from, before sums were taken.
    with torch._inductor.config.patch(fx_graph_cache=False):
        yield
    quadric.use_kernels(False)


class Residual(nn.Module):
    """A joined layer and BatchNorm whose output is used by `end`, with the input beside it."""

    def __init__(
        self, neuron: str, end: Callable[[Tensor, Tensor], Any], relu: bool = False
    ) -> None:
        super().__init__()
        self.inner = block(neuron, 12, (5, 12, 9, 7), relu=relu, options={"padding": 1})
        self.end = end

    def forward(self, x: Tensor) -> Any:
        return self.end(self.inner(x), x)


class Sums:
    """How many sums of whole activations the compiler finds in the graphs it is about to lower."""

    def __init__(self) -> None:
        self.left, self.taken = 0, 0

    def __call__(self, graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.target is torch.ops.aten.add.Tensor and node.meta["val"].dim() == 4:
                self.left += 1
            operator = torch.ops.quadric.norm_squares.default
            names = [argument.name for argument in operator._schema.arguments]
            added = node.kwargs.get("added")
            if node.target is operator:
                added = node.args[names.index("added")]
            self.taken += isinstance(added, torch.fx.Node)


@pytest.fixture
def sums() -> Iterator[Sums]:
    found = Sums()
    with torch._inductor.config.patch(post_grad_custom_post_pass=found):
        yield found


def plain_sum(out: Tensor, x: Tensor) -> Tensor:
    return out + x


def relu_behind(out: Tensor, x: Tensor) -> Tensor:
    return (x + out).relu()


def in_place(out: Tensor, x: Tensor) -> Tensor:
    out += x
    return out.relu_()


def twice(out: Tensor, x: Tensor) -> Tensor:
    total = out + x
    return (total + 1) * total


def sum_and_relu(out: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    total = out + x
    return total, total.relu()


TAKEN = {
    "sum": plain_sum,
    "relu": relu_behind,
    "in place": in_place,
    "read twice": twice,
    "two sums": lambda out, x: ((out + x) + x).relu(),
    "input changed": lambda out, x: ((out + x).relu(), x.mul(2)),
}

LEFT = {
    "output, too": lambda out, x: (out + x, out * 2),
    "sum and relu": sum_and_relu,
    "weighted": lambda out, x: torch.add(out, x, alpha=2),
    "a number": lambda out, x: out + 1.5,
    "itself": lambda out, x: out + out,
    "computed afterwards": lambda out, x: out + x.sin().cumsum(2),
}

# Terms that are there before the operator, and lie in memory otherwise than its output.
OTHERS: dict[str, Callable[[], Tensor]] = {
    "float64": lambda: rows_of((5, 12, 9, 7)).double(),
    "half": lambda: rows_of((5, 12, 9, 7)).half(),
    "a number for each channel": lambda: torch.randn(1, 12, 1, 1),
    "one picture": lambda: rows_of((1, 12, 9, 7)),
    "one picture, expanded": lambda: rows_of((1, 12, 9, 7)).expand(5, 12, 9, 7),
    "nchw": lambda: torch.randn(5, 12, 9, 7),
    "fewer dimensions": lambda: torch.randn(9, 7),
}


def as_list(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def compare(model: Residual, x: Tensor, training: bool) -> None:
    """Holds a joined, compiled network against its separate copy in float64."""
    model.train(training)
    truth = copy.deepcopy(model).double()
    join_(model)
    compiled = torch.compile(model, fullgraph=True)
    with torch.set_grad_enabled(training):
        for one, other in zip(as_list(compiled(x)), as_list(truth(x.double())), strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", TAKEN)
def test_a_sum_is_taken(neuron: str, training: bool, name: str, sums: Sums) -> None:
    compare(Residual(neuron, TAKEN[name]), rows_of((5, 12, 9, 7)), training)
    if has_norm():
        assert sums.taken == 1


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LEFT)
def test_a_sum_is_left(training: bool, name: str, sums: Sums) -> None:
    compare(Residual("eigen", LEFT[name]), rows_of((5, 12, 9, 7)), training)
    assert sums.taken == 0


@pytest.mark.parametrize("training", [True, False])
def test_a_sum_behind_a_joined_relu_is_left(training: bool, sums: Sums) -> None:
    compare(Residual("eigen", plain_sum, relu=True), rows_of((5, 12, 9, 7)), training)
    assert sums.taken == 0


class WithBuffer(Residual):
    """Adds something that was there before."""

    def __init__(self, other: Tensor) -> None:
        super().__init__("eigen", plain_sum)
        self.other = other

    def forward(self, x: Tensor) -> Any:
        return self.end(self.inner(x), self.other)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", OTHERS)
def test_a_term_that_lies_otherwise_is_left(training: bool, name: str, sums: Sums) -> None:
    compare(WithBuffer(OTHERS[name]()), rows_of((5, 12, 9, 7)), training)
    assert sums.taken == 0


class Tied(nn.Module):
    """Computes the layer's linear map once more: the compiler makes one of the two."""

    def __init__(self, neuron: str) -> None:
        super().__init__()
        self.inner = block(neuron, 12, (5, 12, 9), relu=False, options={"padding": 1})
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Any:
        layer = self.inner[0]
        with torch.no_grad():
            side = F.conv1d(x, layer.weight, layer.bias, padding=1)
            out = self.inner(x) + side
        return out.relu() * self.factor


@pytest.mark.parametrize("neuron", NEURONS)
def test_what_the_operator_changes_is_not_added(neuron: str) -> None:
    model = Tied(neuron).eval()
    x = torch.randn(5, 12, 9)
    truth = copy.deepcopy(model).double()
    join_(model)
    out = torch.compile(model, fullgraph=True)(x)
    torch.testing.assert_close(out.double(), truth(x.double()), rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("neuron", NEURONS)
def test_an_input_that_is_overwritten_later(neuron: str) -> None:
    def end(out: Tensor, x: Tensor) -> Tensor:
        total = (out + x).relu()
        x.copy_(total * 2)
        return total

    model = Residual(neuron, end).eval()
    truth = copy.deepcopy(model).double()
    join_(model)
    x = rows_of((5, 12, 9, 7))
    other = x.double()
    with torch.no_grad():
        out, expected = torch.compile(model, fullgraph=True)(x), truth(other)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=2e-3)
    torch.testing.assert_close(x.double(), other, rtol=1e-4, atol=4e-3)


@pytest.mark.parametrize("training", [True, False])
def test_batches_of_any_size(training: bool, sums: Sums) -> None:
    model = Residual("eigen", relu_behind).train(training)
    truth = copy.deepcopy(model).double()
    join_(model)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with torch.set_grad_enabled(training):
        for batch in (4, 7, 3):
            x = rows_of((batch, 12, 9, 7))
            out = compiled(x)
            torch.testing.assert_close(out.double(), truth(x.double()), rtol=1e-4, atol=2e-3)
    if has_norm():
        assert sums.taken == 1


@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv1d])
def test_other_layers(kind: type[nn.Module]) -> None:
    shape = (40, 12) if kind is nn.Linear else (5, 12, 9)
    options = {} if kind is nn.Linear else {"padding": 1}
    model = Residual("eigen", relu_behind)
    model.inner = block("eigen", 12, shape, relu=False, options=options)
    compare(model, torch.randn(shape), training=False)


def test_a_size_that_is_known_only_later(sums: Sums) -> None:
    """An unbacked size: the compiler must not be asked what it cannot know."""
    one, other = (torch.fx.Graph().placeholder(name) for name in ("one", "other"))
    environment = ShapeEnv()
    with FakeTensorMode(shape_env=environment):
        size = environment.create_unbacked_symint()
        one.meta["val"] = torch.empty(size, 12)
        other.meta["val"] = torch.empty(1, 12)
        assert not _summing._is_same(one, other)
        other.meta["val"] = torch.empty(size, 12)
        assert _summing._is_same(one, other)


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("layout", ["channels_last", "nchw"])
def test_a_network_trains_as_before(neuron: str, layout: str, sums: Sums) -> None:
    model = nn.Sequential(Residual(neuron, relu_behind), Residual(neuron, in_place))
    x = rows_of((5, 12, 9, 7))
    x = x if layout == "channels_last" else x.contiguous()
    truth = copy.deepcopy(model).double()
    grad = torch.randn_like(x)
    join_(model)
    compiled = torch.compile(model, fullgraph=True)
    found = with_gradients(compiled, x, grad)
    for one, other in zip(found, with_gradients(truth, x.double(), grad), strict=True):
        scale = max(1.0, other.abs().max().item())
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4 * scale)
    for one, other in zip(model.buffers(), truth.buffers(), strict=True):
        torch.testing.assert_close(one.to(other.dtype), other, rtol=1e-5, atol=1e-5)
    # The other layout makes the block's input and its inner output lie in memory differently.
    if has_norm():
        assert sums.taken == (2 if layout == "channels_last" else 0)


def test_a_residual_network_leaves_two_sums(sums: Sums) -> None:
    """The guard against a lost fusion. The two blocks that change their width pad their input,
    which the compiler does on the way.
    """
    model = quadric.models.create("resnet20", neuron="eigen")
    model.to(memory_format=torch.channels_last).eval()
    join_(model)
    with torch.no_grad():
        torch.compile(model)(rows_of((2, 3, 32, 32)))
    if has_norm():
        assert (sums.taken, sums.left) == (7, 2)


@pytest.mark.parametrize("squares", [EigenSquares(9, -3), SharedSquares(8, -3)])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("of_batch", [True, False])
@pytest.mark.parametrize("way", ["kernels", "kernels, nchw", "plain", "added in nchw"])
def test_the_operator_adds(squares: Any, relu: bool, of_batch: bool, way: str) -> None:
    z, added = rows_of((3, 25, 4, 5)), rows_of((3, 25, 4, 5))
    z = z.contiguous() if way == "kernels, nchw" else z
    added = added.contiguous() if way == "added in nchw" else added
    lam, weight, bias = (torch.randn(n) for n in (squares.num_eigenvalues(25), 25, 25))
    norm = Norm(weight, bias, 1e-5, relu, of_batch)
    mean, var = torch.randn(25), torch.rand(25) + 0.5
    wide = Norm(weight.double(), bias.double(), 1e-5, False, of_batch)
    tensors = (t.double() for t in (z, lam))
    expected = _norm.plain(*tensors, squares, wide, mean.double(), var.double()) + added
    expected = expected.relu() if relu else expected
    if way == "plain":
        quadric.use_kernels(False)
    given = (None, None) if of_batch else (mean, var)
    out, *_ = _norm.forward(z, lam, squares, norm, *given, added=added)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)
    if not of_batch:
        kept = added.clone()
        _norm.forward_(z, lam, squares, norm, mean, var, added)
        torch.testing.assert_close(z.double(), expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(added, kept)


@pytest.mark.parametrize("neuron", NEURONS)
@pytest.mark.parametrize("adds", [True, False])
def test_torch_s_own_checks(neuron: str, adds: bool) -> None:
    z, added = rows_of((3, 25, 4, 5)), rows_of((3, 25, 4, 5)) if adds else None
    layer = block(neuron)[0]
    numbers = (torch.randn(25), torch.rand(25), torch.randn(25), torch.randn(25), 1e-5, True)
    settings = (neuron, layer.rank, -3, 1, "1.0")
    arguments = (z, layer.eigenvalues.detach(), *numbers)
    torch.library.opcheck(torch.ops.quadric.norm_squares_.default, (*arguments, added, *settings))
    given = (*arguments, False, added, *settings)
    torch.library.opcheck(torch.ops.quadric.norm_squares.default, given)


def test_arguments_that_the_kernels_cannot_take() -> None:
    layer = block("eigen")[0]
    settings = ("eigen", layer.rank, -3, 1, "1.0")
    z, lam = rows_of((3, 25, 4, 5)), layer.eigenvalues.detach()
    call = torch.ops.quadric.norm_squares.default
    start = (z, lam, None, None, None, None, 1e-5, True)
    with pytest.raises(RuntimeError, match="no gradients of what"):
        call(z.clone().requires_grad_(), *start[1:], True, z, *settings)
    if not has_norm():
        return
    with pytest.raises(ValueError, match="must have the output's shape"):
        call(*start, True, z[:1], *settings)
    with pytest.raises(ValueError, match="must be given"):
        call(*start, False, None, *settings)


def test_a_compiler_built_otherwise_leaves_sums_where_they_are(
    sums: Sums, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise AttributeError("no such list of patterns")

    monkeypatch.setattr(_summing, "_registered", False)
    monkeypatch.setattr(_summing, "_register", fails)
    monkeypatch.setattr(_summing, "_take_up", lambda node: None)  # if it was registered before
    compare(Residual("eigen", relu_behind), rows_of((5, 12, 9, 7)), training=False)
    assert (sums.taken, sums.left) == (0, 1 if has_norm() else 2)  # else BatchNorm's is another
