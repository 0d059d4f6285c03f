"""What functions that take a whole network share: how inputs are given, and what comes out."""

from __future__ import annotations

import importlib
from collections import UserDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadric
from quadric.exporting import export_torch
from quadric.support.modules import call_arguments, restored_eval, tensors_in, unwrapped
from tests.networks import snapshot


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 10), nn.Linear(6, 10), nn.Linear(10, 2)

    def forward(self, left: Tensor, right: Tensor, scale: Tensor | None = None) -> Tensor:
        mixed = torch.relu(self.left(left)) + self.right(right)
        return self.head(mixed if scale is None else mixed * scale)


class Pair(Two):
    def forward(self, pair: Any) -> Tensor:  # type: ignore[override]
        left, right = pair.values() if isinstance(pair, dict) else pair
        return super().forward(left, right)


LEFT, RIGHT = torch.randn(3, 4), torch.randn(3, 6)
SEVERAL = {
    "a tuple": (LEFT, RIGHT),
    "a mapping": {"right": RIGHT, "left": LEFT},
    "a mapping of another kind": UserDict(left=LEFT, right=RIGHT),
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (LEFT, ((LEFT,), {})),
        ((LEFT, RIGHT), ((LEFT, RIGHT), {})),
        ({"left": LEFT, "right": RIGHT}, ((), {"left": LEFT, "right": RIGHT})),
        # Misspelled: the model itself says so best.
        ({"left": LEFT, "rigth": RIGHT}, ((), {"left": LEFT, "rigth": RIGHT})),
    ],
)
def test_arguments(given: Any, expected: Any) -> None:
    assert call_arguments(Two(), given) == expected


@pytest.mark.parametrize("given", [(LEFT, RIGHT), {"x": LEFT, "y": RIGHT}, [LEFT, RIGHT]])
def test_what_the_forward_does_not_take_apart_is_one_argument(given: Any) -> None:
    assert call_arguments(Pair(), given) == ((given,), {})
    assert quadric.cost(Pair(), given).macs == quadric.cost(Two(), LEFT, RIGHT).macs


@pytest.mark.parametrize("form", SEVERAL)
def test_several_inputs_everywhere(form: str, tmp_path: Path) -> None:
    given, model = SEVERAL[form], Two().eval()
    expected = model(LEFT, RIGHT)
    macs = quadric.cost(model, LEFT, RIGHT).macs  # the old forms
    assert quadric.cost(model, left=LEFT, right=RIGHT).macs == macs
    assert quadric.cost(model, given).macs == macs
    report = quadric.convert_(model, example_inputs=given)
    assert report.names == ["left", "right"]
    assert report.macs_before == macs
    torch.testing.assert_close(model(LEFT, RIGHT), expected)
    share = quadric.quadratic_share(model, [((LEFT, RIGHT), torch.zeros(3))])
    assert quadric.quadratic_share(model, [given]) == share

    def loss(model: nn.Module, batch: Any) -> Tensor:
        args, kwargs = call_arguments(model, batch)
        return model(*args, **kwargs).square().mean()

    plain = Two()
    scores = quadric.sensitivity(plain, loss, [given])
    assert scores == quadric.sensitivity(plain, loss, [(LEFT, RIGHT)])
    if form == "a tuple":  # a mapping is exported below
        assert export_torch(model, tmp_path / "a.pt2", given).difference < 1e-6


def test_the_inputs_of_a_file_stand_in_the_order_of_the_forward(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = Two().eval()
    given = {"scale": torch.full((3, 10), 2.0), "right": RIGHT, "left": LEFT}
    quadric.export_onnx(model, tmp_path / "model.onnx", given)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [value.name for value in session.get_inputs()] == ["left", "right", "scale"]
    names = ["one", "two", "three"]
    quadric.export_onnx(model, tmp_path / "model.onnx", given, input_names=names)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    inputs = zip(names, (LEFT, RIGHT, given["scale"]), strict=True)
    (got,) = session.run(None, {name: value.numpy() for name, value in inputs})
    torch.testing.assert_close(torch.from_numpy(got), model(**given).detach())


@dataclass
class Result:
    scores: Any
    more: Any = None


class Row(tuple[Any, ...]):
    pass


def test_tensors_of_nested_results() -> None:
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    nested = {"a": one, "b": (None, Result(two, more=["no tensor", Row((three,))]))}
    assert [t.numel() for t in tensors_in(nested)] == [1, 2, 3]
    assert tensors_in(UserDict(x=two)) == [two]
    assert tensors_in((Result, "text", None)) == []


def test_a_network_comes_out_of_all_its_wrappers() -> None:
    network = nn.Linear(2, 2)
    wrapped: Any = torch.compile(nn.DataParallel(network), backend="eager")
    assert unwrapped(wrapped) is network


def test_a_model_is_restored_even_after_an_error() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()).train()
    model[1].eval()
    before = snapshot(model)

    def disturb() -> None:
        with restored_eval(model):
            assert not model.training
            model.train()
            model(torch.randn(4, 3))
            assert model[0].num_batches_tracked == 1
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        disturb()
    assert model[0].num_batches_tracked == 0
    assert not model[0].running_mean.any()
    assert [m.training for m in model.modules()] == [flag for _, _, flag in before[0]]


PRIVATE = {
    "torch.utils._pytree": ("tree_map", "tree_map_only"),
    "torch.utils._python_dispatch": ("TorchDispatchMode",),
}


@pytest.mark.parametrize("module", PRIVATE)
def test_torchs_private_names_are_still_there(module: str) -> None:
    """The canary: where it fails, share, counting and exporting need another way."""
    missing = [n for n in PRIVATE[module] if not hasattr(importlib.import_module(module), n)]
    assert not missing
    assert hasattr(torch.empty(0).untyped_storage(), "_cdata")
