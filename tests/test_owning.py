"""Gradients are overwritten where nobody else refers to them, and only there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadric
from quadric import _owning, kernels
from tests.conftest import need_kernels


@pytest.fixture(autouse=True)
def overwritten(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether each backward pass of a layer's squares wrote into the gradient it was given."""
    need_kernels()
    found: list[bool] = []
    backward = kernels.backward

    def recorded(kind: str, grad: Tensor, *rest: Any, **more: Any) -> tuple[Any, ...]:
        result = backward(kind, grad, *rest, **more)
        found.append(result[0].data_ptr() == grad.data_ptr())
        return result

    monkeypatch.setattr(kernels, "backward", recorded)
    yield found
    quadric.use_kernels(False)
    _owning._tried.cache_clear()


def _layer(neuron: str = "eigen", seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layer = quadric.make_layer(nn.Conv2d(3, 16, 3), neuron)
    nn.init.normal_(layer.eigenvalues, std=0.1)
    return layer.to(memory_format=torch.channels_last)


def _input() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last).requires_grad_()


def _gradients(run: Callable[..., Any], *layers: nn.Module) -> list[Tensor]:
    """Of the input and all parameters, as computed by `run`."""
    input = _input()
    for layer in layers:
        layer.zero_grad()
    run(input, *layers)
    grads = [input.grad, *(p.grad for layer in layers for p in layer.parameters())]
    assert all(grad is not None for grad in grads)
    return [grad.clone() for grad in grads if grad is not None]


def _check(run: Callable[..., Any], overwritten: list[bool], *layers: nn.Module) -> list[bool]:
    """Compares gradients with those of the plain path; says which were overwritten."""
    quadric.use_kernels(False)
    expected = _gradients(run, *layers)
    assert quadric.use_kernels(True)
    overwritten.clear()
    found = _gradients(run, *layers)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    return list(overwritten)


def test_this_torch_tells_who_refers_to_a_gradient() -> None:
    assert _owning.alone() is not None


@pytest.mark.parametrize("neuron", ["eigen", "shared"])
def test_a_gradient_of_the_layer_behind_is_overwritten(
    neuron: str, overwritten: list[bool]
) -> None:
    if not (quadric.use_kernels(True) and kernels.has_norm(16)):
        pytest.skip("this processor has no vectors")
    norm = nn.BatchNorm2d(16)

    def run(input: Tensor, layer: nn.Module) -> None:
        norm(layer(input)).square().sum().backward()

    assert _check(run, overwritten, _layer(neuron)) == [True]


def test_both_terms_of_a_sum_get_the_whole_gradient(overwritten: list[bool]) -> None:
    def run(input: Tensor, one: nn.Module, other: nn.Module) -> None:
        ((one(input) + other(input)) * 2).square().sum().backward()

    # The first finds the other waiting for it; then nobody does.
    assert _check(run, overwritten, _layer(), _layer(seed=2))[0] is False


def test_the_caller_s_own_gradient_stays(overwritten: list[bool]) -> None:
    torch.manual_seed(3)
    grad = torch.randn(2, 16, 7, 7).to(memory_format=torch.channels_last)
    before = grad.clone()

    def run(input: Tensor, layer: nn.Module) -> None:
        layer(input).backward(grad)

    assert _check(run, overwritten, _layer()) == [False]
    torch.testing.assert_close(grad, before, rtol=0, atol=0)


KEPT: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda grad: grad,
    "detached": lambda grad: grad.detach(),
    "numpy": lambda grad: grad.numpy(),
    "storage": lambda grad: grad.untyped_storage(),
}


@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
def test_what_a_hook_keeps_stays(keep: Callable[[Tensor], Any], overwritten: list[bool]) -> None:
    kept: list[Any] = []

    def run(input: Tensor, layer: nn.Module) -> None:
        out = layer(input)
        out.register_hook(lambda grad: kept.append(keep(grad)))
        (out * 2).square().sum().backward()

    assert _check(run, overwritten, _layer()) == [False]
    if not isinstance(kept[0], torch.UntypedStorage):
        torch.testing.assert_close(torch.as_tensor(kept[1]), torch.as_tensor(kept[0]))


def test_memory_that_is_not_torch_s_stays(overwritten: list[bool]) -> None:
    numpy = pytest.importorskip("numpy")
    buffer = numpy.random.default_rng(0).normal(size=(4, 16)).astype("float32")
    before = buffer.copy()

    class FromNumpy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, input: Tensor) -> Tensor:
            return input.sum()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return torch.from_numpy(buffer)

    def run(input: Tensor, layer: nn.Module) -> None:
        FromNumpy.apply(layer(input.flatten()[:20].view(4, 5))).backward()  # type: ignore[no-untyped-call]

    layer = quadric.make_layer(nn.Linear(5, 16), "eigen")
    nn.init.normal_(layer.eigenvalues, std=0.1)
    assert _check(run, overwritten, layer) == [False]
    assert (buffer == before).all()


def test_a_gradient_that_is_asked_for_stays(overwritten: list[bool]) -> None:
    asked: list[Tensor] = []

    def run(input: Tensor, layer: nn.Module) -> None:
        out = layer(input)
        names = [input, *layer.parameters()]
        *grads, own = torch.autograd.grad((out * 2).square().sum(), [*names, out])
        for tensor, grad in zip(names, grads, strict=True):
            tensor.grad = grad
        asked.append(own)

    assert _check(run, overwritten, _layer()) == [False]
    torch.testing.assert_close(asked[1], asked[0])


def test_a_view_of_a_gradient_stays(overwritten: list[bool]) -> None:
    """What flattens hands on the memory of the gradient that it was given itself."""
    kept: list[Tensor] = []

    def run(input: Tensor, layer: nn.Module) -> None:
        flat = layer(input).permute(0, 2, 3, 1).flatten(1)
        flat.register_hook(kept.append)
        (flat * 2).square().sum().backward()

    assert _check(run, overwritten, _layer()) == [False]
    torch.testing.assert_close(kept[1], kept[0])


def test_a_graph_may_be_gone_through_twice(overwritten: list[bool]) -> None:
    def run(input: Tensor, layer: nn.Module) -> None:
        loss = (layer(input) * 2).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()

    _check(run, overwritten, _layer())
    assert len(overwritten) == 2


def test_another_torch_overwrites_nothing(
    overwritten: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(tensor: Tensor) -> _owning.References:
        raise AttributeError("'Tensor' object has no attribute '_use_count'")

    def run(input: Tensor, layer: nn.Module) -> None:
        (layer(input) * 2).square().sum().backward()

    _owning._tried.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(_owning, "references", unknown)
        assert _owning.alone() is None
    assert _check(run, overwritten, _layer()) == [False]


WATCHING = """
import sys, torch
from torch.utils._python_dispatch import TorchDispatchMode
from quadric import _owning

class Keeping(TorchDispatchMode):
    kept = []
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.kept.append(result)
        return result

def look(frame, *_):
    frame.f_locals
"""
WATCHED = """
sys.settrace(None); sys.setprofile(None)
first = _owning.alone()
_owning._tried.cache_clear()
assert first is not None
assert first == _owning.alone() and watched in (None, first), (first, watched)
"""


@pytest.mark.parametrize(
    "watched",
    [
        "with Keeping(): watched = _owning.alone()",
        "sys.settrace(look); watched = _owning.alone()",
        "sys.setprofile(look); watched = _owning.alone()",
        "with torch.inference_mode(): watched = _owning.alone()",
    ],
    ids=["mode", "trace", "profile", "inference"],
)
def test_who_watches_the_first_time_does_not_count(watched: str) -> None:
    """In a process of its own, where nothing was tried out before."""
    subprocess.run([sys.executable, "-c", WATCHING + watched + WATCHED], check=True)
