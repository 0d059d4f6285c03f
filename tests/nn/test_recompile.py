"""torch.compile treats a quadratic network as it treats the linear one: no graph break, and no more
compilations when the batch size changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

import quadric

BATCHES = (4, 5, 9)


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()
    counters.clear()


def pictures(neuron: str) -> nn.Module:
    return quadric.models.create("digits_cnn", neuron=neuron, channels=(4, 8, 12))


def table_network(neuron: str) -> nn.Module:
    return quadric.models.create("mlp", neuron=neuron, hidden=(12, 20))


def encoder(neuron: str) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    if neuron != "linear":
        quadric.convert_(model, neuron=neuron)
    return model


NETWORKS: dict[str, tuple[Callable[[str], nn.Module], tuple[int, ...]]] = {
    "pictures": (pictures, (1, 6, 6)),
    "mlp": (table_network, (8,)),
    "encoder": (encoder, (5, 16)),
}


def compilations(model: nn.Module, shape: tuple[int, ...], train: bool, dynamic: Any) -> list[int]:
    """How many graphs had been compiled after each batch."""
    torch._dynamo.reset()
    backend = CompileCounter()
    model.train(train)
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)
    counts = []
    for batch in BATCHES:
        x = torch.randn(batch, *shape)
        with torch.set_grad_enabled(train):
            out: Tensor = compiled(x)
        if train:
            out.sum().backward()
        counts.append(int(backend.frame_count))
    return counts


@pytest.mark.parametrize(
    ("name", "train", "dynamic"),
    [
        ("pictures", True, None),
        ("pictures", False, None),
        ("mlp", True, None),
        ("mlp", False, True),
        ("encoder", False, None),
    ],
)
def test_as_often_as_linear(name: str, train: bool, dynamic: bool | None) -> None:
    make, shape = NETWORKS[name]
    linear = compilations(make("linear"), shape, train, dynamic)
    for neuron in ("eigen", "shared"):
        assert compilations(make(neuron), shape, train, dynamic) == linear, neuron
    assert not counters["graph_break"]


def test_the_count_sees_a_recompilation() -> None:
    """The test above can fail: a layer that looks at the batch size is compiled for each."""

    class Peeks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if len(x) == BATCHES[-1] else x

    counts = compilations(Peeks(), (3,), False, None)
    assert counts[-1] > compilations(nn.Linear(3, 3), (3,), False, None)[-1]
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compilations(Breaks(), (3,), False, None)


class Breaks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("neuron", ["eigen", "shared"])
def test_inductor_once_for_any_batch(neuron: str) -> None:
    """The same through torch's default compiler, and the numbers with it."""
    model: Any = pictures(neuron).eval()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for batch in (4, 5, 9):
            x = torch.randn(batch, 1, 6, 6)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
