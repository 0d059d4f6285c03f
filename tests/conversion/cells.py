"""What is tried with every family: the columns of the table in docs/families.md."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import quadric
from quadric.exporting import export_torch
from quadric.support.modules import tensors_in
from tests.conversion.families import build, call
from tests.networks import curve_, quadratic_layers


def outputs(model: nn.Module, inputs: Any) -> list[torch.Tensor]:
    with torch.no_grad():
        return tensors_in(call(model.eval(), inputs))


def converted(name: str, squares: float = 0.0) -> tuple[nn.Module, Any]:
    model, inputs = build(name)
    quadric.convert_(model, rank=4)
    assert quadratic_layers(model)
    return (curve_(model, squares) if squares else model), inputs


def same(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(got) == len(expected) > 0
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def converts(name: str) -> str:
    model, inputs = build(name)
    before = outputs(model, inputs)
    quadric.convert_(model, rank=4)
    after = outputs(model, inputs)
    same(after, before)
    pairs = zip(after, before, strict=True)
    return "yes" if all(torch.equal(a, b) for a, b in pairs) else "to rounding"


def trains_in_bf16(name: str) -> str:
    model, inputs = converted(name)
    model.to(torch.bfloat16).train()
    # A tensor of numbers, a tuple or a mapping; indices stay what they are.
    lower = lambda value: value.bfloat16() if value.is_floating_point() else value  # noqa: E731
    inputs = torch.utils._pytree.tree_map(lower, inputs)
    optimizer = torch.optim.AdamW(quadric.param_groups(model, lr=1e-3, quadratic_lr=1e-3))
    for _ in range(2):
        result = [t for t in tensors_in(call(model, inputs)) if t.requires_grad]
        optimizer.zero_grad()
        sum(t.float().square().mean() for t in result).backward()  # type: ignore[union-attr]
        optimizer.step()
    layers = quadratic_layers(model).values()
    assert all(bool(p.isfinite().all()) for layer in layers for p in layer.parameters())
    assert any(bool(p.any()) for layer in layers for p in layer.quadratic_parameters().values())
    return "yes"


def exports(write: Callable[..., Any], suffix: str) -> Callable[[str], str]:
    def exported(name: str) -> str:
        model, inputs = converted(name, 0.01)
        with tempfile.TemporaryDirectory() as folder:
            write(model.eval(), Path(folder, f"model{suffix}"), inputs)  # compares them itself
        return "yes"

    return exported


def saves_and_loads(name: str) -> str:
    model, inputs = converted(name, 0.01)
    with tempfile.TemporaryDirectory() as folder:
        quadric.save(model, Path(folder, "model.safetensors"))
        plain, _ = build(name)
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter.add_(0.1)
        quadric.load_(plain, Path(folder, "model.safetensors"))
    same(outputs(plain, inputs), outputs(model, inputs))
    return "yes"


def reverts(name: str) -> str:
    model, inputs = build(name)
    before, layers = outputs(model, inputs), [(k, type(m)) for k, m in model.named_modules()]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    quadric.convert_(model, rank=4)
    quadric.revert_(model)
    assert [(k, type(m)) for k, m in model.named_modules()] == layers
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    same(outputs(model, inputs), before)
    return "yes"


CELLS: dict[str, Callable[[str], str]] = {
    "converts exactly": converts,
    "trains in bf16": trains_in_bf16,
    "exports to ONNX": exports(quadric.export_onnx, ".onnx"),
    "exports with torch.export": exports(export_torch, ".pt2"),
    "saves and loads": saves_and_loads,
    "reverts": reverts,
}


def run(name: str, column: str) -> str:
    """What a cell of the table says."""
    try:
        return CELLS[column](name)
    except Exception as error:
        return "no: " + " ".join(f"{type(error).__name__}: {error}".split())[:80]
