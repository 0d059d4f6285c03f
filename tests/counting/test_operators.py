"""Formulas by operator, and the kinds of operators that have none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quadric.counting import operators

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "shapes", "expected"),
    [
        (aten.dot.default, [(5,), (5,)], 5),
        (aten.mv.default, [(4, 5), (5,)], 20),
        (aten.addmv.default, [(4,), (4, 5), (5,)], 20),
        (aten.mm.default, [(4, 5), (5, 3)], 60),
        (aten.addmm_.default, [(4, 3), (4, 5), (5, 3)], 60),
        (aten.baddbmm_.default, [(2, 4, 3), (2, 4, 5), (2, 5, 3)], 120),
        (aten.addbmm.default, [(4, 3), (2, 4, 5), (2, 5, 3)], 120),
        # Fused attention: used where the plain operators do not run after all.
        (
            aten._scaled_dot_product_flash_attention_for_cpu.default,
            [(2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)],
            2 * 3 * 5 * 7 * (4 + 6),
        ),
    ],
)
def test_formulas(operator: Any, shapes: list[tuple[int, ...]], expected: int) -> None:
    args = tuple(torch.zeros(shape) for shape in shapes)
    out = torch.zeros(4, 3)  # torch's own formula for mm takes the shapes of its arguments
    assert operators.macs(operator, args, {}, out) == expected


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        (aten.view.default, None),
        (aten.copy_.default, None),
        (aten._to_copy.default, None),
        (aten.native_batch_norm.default, "normalization"),
        (aten._softmax.default, "activation"),
        (aten.max_pool2d_with_indices.default, "pooling"),
        (aten.mul.Tensor, "elementwise"),
        (aten.native_dropout.default, "elementwise"),
        (aten.sum.dim_IntList, "reduction"),
        (aten._fft_r2c.default, "no formula"),
    ],
)
def test_operators_without_a_formula(operator: Any, reason: str | None) -> None:
    assert operators.macs(operator, (), {}, None) is None
    assert operators.reason_uncounted(operator) == reason
