"""Which pairs of columns a network couples, and how much of that its quadratic forms do.

The mixed second derivative of the output by columns a and b says how far the effect of a depends on
b. It is a sum over everything in the network that is curved: each quadratic layer gives J' K J,
where K is its own second derivative, weighted by what its outputs do to the network's, and J leads
from the columns to its inputs; the rest comes from activations. So the part of the quadratic forms
is exact, not an estimate, in networks of any depth.

A strength is the root mean square of that derivative over the rows, times a standard deviation of
each of the two columns: the change of a's effect, in the target's unit, when both move by one
deviation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quadric.analysis.forms import second_derivative
from quadric.analysis.samples import Columns, Samples
from quadric.errors import InputError
from quadric.layers import QuadraticLayer
from quadric.support.modules import restored_eval, watched

MOST_COLUMNS = 200
PIECEWISE = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.Hardtanh)
"""Activations without a second derivative."""
ROWS = 64  # rows whose second derivatives are held at once


def couplings(model: nn.Module, rows: Samples) -> dict[str, Any]:
    """Measures how strongly pairs of columns are coupled."""
    columns = rows.columns
    assert columns is not None
    if len(columns.names) > MOST_COLUMNS:
        raise InputError(
            f"couplings are measured for at most {MOST_COLUMNS} columns, got "
            f"{len(columns.names)}: choose columns"
        )
    inputs = torch.cat([b[0] if isinstance(b, (tuple, list)) else b for b in rows.batches()])
    inputs = inputs.to(next(model.parameters()).device)
    spread = inputs.double().std(0, correction=0)
    parts = {"forms": [], "total": []}  # type: dict[str, list[Tensor]]
    with restored_eval(model), torch.compiler.set_stance("force_eager"):
        for batch in inputs.split(ROWS):
            forms, total = _second_derivatives(model, batch)
            parts["forms"].append(forms.double())
            parts["total"].append(total.double())
    scale = columns.scale
    target = 1.0 if scale is None else float(scale.target_std)
    own = torch.ones_like(spread) if scale is None else scale.input_std.to(spread)
    # (rows, outputs, a, b) in the target's unit, both columns moved by one deviation
    deviations = spread[:, None] * spread * target
    forms, total = (torch.cat(parts[name]) * deviations for name in ("forms", "total"))
    quadratic = any(isinstance(module, QuadraticLayer) for module in model.modules())
    strength, whole = (part.square().mean((0, 1)).sqrt() for part in (forms, total))
    per_unit = (own * spread)[:, None] * (own * spread)
    safe = torch.where(per_unit > 0, per_unit, 1)
    mean = total.mean((0, 1)) / safe  # of the network itself, so that a true factor comes out
    entries = _entries(columns, strength, whole, mean if forms.shape[1] == 1 else None)
    key = "strength" if quadratic else "total"
    entries.sort(key=lambda entry: -entry[key])
    bent = [type(m).__name__ for m in model.modules() if isinstance(m, PIECEWISE)]
    notes = [
        f"{name} is piecewise linear: its bends have no second derivative, and are not in these "
        "numbers"
        for name in dict.fromkeys(bent)
    ]
    if not float(whole.max()):
        notes.append("the network couples no columns: its second derivatives are zero everywhere")
    return {
        "notes": notes,
        "names": list(columns.names),
        "units": list(columns.units),
        "target": columns.target,
        "target_unit": columns.target_unit,
        "rows": len(inputs),
        "ranked_by": key,
        "strength": strength.tolist(),
        "total": whole.tolist(),
        "pairs": [entry for entry in entries if entry["columns"][0] != entry["columns"][1]],
        "squares": [entry for entry in entries if entry["columns"][0] == entry["columns"][1]],
    }


def _entries(
    columns: Columns, strength: Tensor, total: Tensor, mean: Tensor | None
) -> list[dict[str, Any]]:
    found = []
    count = len(columns.names)
    for a in range(count):
        for b in range(a, count):
            entry: dict[str, Any] = {
                "columns": [columns.names[a], columns.names[b]],
                "strength": float(strength[a, b]),
                "total": float(total[a, b]),
            }
            if mean is not None:
                # The factor of a b is the mixed derivative, that of a^2 half the second one.
                entry["coefficient"] = float(mean[a, b]) / (2 if a == b else 1)
                units = (columns.units[a], columns.units[b])
                entry["unit"] = product_unit(columns.target_unit, units)
            found.append(entry)
    return found


def product_unit(target: str, units: Sequence[str]) -> str:
    """The unit of a factor before a product of two columns; "" where one is not known.

    Examples:
        >>> product_unit("N", ("kg", "m s^-1")), product_unit("J", ("1", "K")), product_unit("", "")
        ('N / (kg · (m s^-1))', 'J / K', '')
    """
    if not target or not all(units):
        return ""
    real = [f"({unit})" if " " in unit else unit for unit in units if unit != "1"]
    top = f"({target})" if " " in target and real else target
    below = " · ".join(real)
    return f"{top} / ({below})" if len(real) > 1 else f"{top} / {below}" if real else top


def _second_derivatives(model: nn.Module, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Those of the quadratic forms and of the whole network, (rows, outputs, a, b) each."""
    x = batch.detach().requires_grad_()
    seen: dict[QuadraticLayer, list[tuple[Tensor, Tensor]]] = {}

    def see(name: str, layer: Any, args: Any, output: Tensor) -> Tensor:
        seen.setdefault(layer, []).append((args[0], output))
        return output.clone()  # an activation may overwrite it in place

    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, QuadraticLayer)]
    with watched(layers, see), torch.enable_grad():
        out = model(x)
        out = out.unsqueeze(-1) if out.dim() == 1 else out
        calls = [(layer, h, y) for layer, each in seen.items() for h, y in each]
        ways = [_jacobian(h, x) for _, h, _ in calls]
        forms, total = [], []
        for k in range(out.shape[1]):
            (slope,) = torch.autograd.grad(out[:, k].sum(), x, create_graph=True)
            total.append(_jacobian(slope, x))
            forms.append(_of_forms(out[:, k], calls, ways, total[-1]))
    return torch.stack(forms, 1).detach(), torch.stack(total, 1).detach()


def _of_forms(
    output: Tensor,
    calls: Sequence[tuple[Any, Tensor, Tensor]],
    ways: Sequence[Tensor],
    like: Tensor,
) -> Tensor:
    """The sum over the quadratic layers of J' K J."""
    result = torch.zeros_like(like)
    if not calls:
        return result
    effects = torch.autograd.grad(
        output.sum(), [y for _, _, y in calls], retain_graph=True, allow_unused=True
    )
    for (layer, h, _), way, effect in zip(calls, ways, effects, strict=True):
        if effect is not None:
            bent = _curvature(layer, h.detach(), effect.detach())
            result += way.transpose(1, 2) @ bent @ way
    return result


def _curvature(layer: nn.Module, h: Tensor, effect: Tensor) -> Tensor:
    """The second derivative of a layer's outputs, weighted by their effect: (rows, n, n)."""

    def weighted(row: Tensor, weights: Tensor) -> Tensor:
        out: Tensor = layer(row)
        return (out * weights).sum()

    found: Tensor = torch.func.vmap(second_derivative(weighted))(h, effect)
    return found.detach()


def _jacobian(values: Tensor, x: Tensor) -> Tensor:
    """The derivatives of each row's values by its own inputs, (rows, values, inputs)."""
    if values is x:
        eye = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        return eye.expand(len(x), -1, -1)
    if not values.requires_grad:  # a constant slope
        return x.new_zeros(len(x), values.shape[1], x.shape[1])
    rows = []
    for column in values.unbind(1):
        (row,) = torch.autograd.grad(column.sum(), x, retain_graph=True, allow_unused=True)
        rows.append(torch.zeros_like(x) if row is None else row)
    return torch.stack(rows, 1).detach()


def ranked(found: Mapping[str, Any], most: int = 10) -> list[dict[str, Any]]:
    """The strongest pairs and squares together."""
    entries = [*found["pairs"], *found["squares"]]
    return sorted(entries, key=lambda entry: -entry[found["ranked_by"]])[:most]


def ranked_list(found: Mapping[str, Any], most: int = 10) -> list[list[str]]:
    """The strongest pairs and squares as rows of text: pair, strengths, factor of the product."""
    unit = f" {found['target_unit']}" if found["target_unit"] not in ("", "1") else ""
    keys = ("strength", "total") if found["ranked_by"] == "strength" else ("total",)
    rows = []
    for entry in ranked(found, most):
        a, b = entry["columns"]
        row = [f"{a}²" if a == b else f"{a} × {b}", *(f"{entry[key]:.4g}{unit}" for key in keys)]
        if "coefficient" in entry:
            row.append(f"{entry['coefficient']:+.4g} {entry['unit']}".rstrip())
        rows.append(row)
    return rows
