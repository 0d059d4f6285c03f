"""What one operator costs: multiply-accumulates by the shapes of its arguments.

Matrix products, convolutions and attention have a formula: torch's own
(`torch.utils.flop_counter`, which counts two operations for a multiply-accumulate), and a few that
torch has not. Operators that only move, select or compare cost nothing. All others are not
counted, and `reason_uncounted` says which kind of operator they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

_Formula = Callable[..., int]

aten = torch.ops.aten


def _dot(a: Tensor, b: Tensor, **_: Any) -> int:
    return a.numel()


def _mv(matrix: Tensor, vector: Tensor, **_: Any) -> int:
    return matrix.numel()


def _addmv(added: Tensor, matrix: Tensor, vector: Tensor, **_: Any) -> int:
    return matrix.numel()


def _addbmm(added: Tensor, a: Tensor, b: Tensor, **_: Any) -> int:
    return a.numel() * b.shape[-1]


def _mm(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    return a.numel() * b.shape[-1]


def _addmm(added: Tensor, a: Tensor, b: Tensor, **_: Any) -> int:
    return a.numel() * b.shape[-1]


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """q'k and the weighted sum of the values; a causal mask saves nothing here."""
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    return pairs * (query.shape[-1] + value.shape[-1])


def _bilinear(first: Tensor, weight: Tensor, second: Tensor, *_: Any, **__: Any) -> int:
    """x'My for every output: like the general neuron's n^2 + n."""
    outputs, rows, columns = weight.shape
    return math.prod(first.shape[:-1]) * outputs * (rows * columns + rows)


def _rnn_layer(input: Tensor, weight: Tensor, recurrent: Tensor, *_: Any, **__: Any) -> int:
    """One layer of a recurrent network, all time steps: (T, N, features)."""
    return math.prod(input.shape[:2]) * (weight.numel() + recurrent.numel())


# By name, because not every version of torch has every operator.
_OWN: dict[str, _Formula] = {
    "dot": _dot,
    "vdot": _dot,
    "mv": _mv,
    "addmv": _addmv,
    "addmv_": _addmv,
    "addbmm": _addbmm,
    "addmm_": _addmm,
    "baddbmm_": _addbmm,
    "_addmm_activation": _addmm,
    "_int_mm": _mm,
    "_trilinear": _bilinear,
    "mkldnn_rnn_layer": _rnn_layer,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
}


def macs(operator: Any, args: Any, kwargs: Any, out: Any) -> int | None:
    """The multiply-accumulates of one call, or None for an operator that has no formula."""
    packet = operator._overloadpacket
    if packet in flop_registry:
        operations: int = flop_registry[packet](*args, **kwargs, out_val=out)
        return operations // 2
    formula = _OWN.get(packet.__name__) if operator.namespace == "aten" else None
    return None if formula is None else formula(*args, **kwargs)


# Copies, selections, comparisons, constructors, random numbers: no arithmetic on values.
_FREE = set(
    """
    _local_scalar_dense _to_copy _unsafe_view _reshape_copy _unsafe_index alias_copy all any arange
    argmax
    argmin argsort bernoulli bernoulli_ bitwise_and bitwise_not bitwise_or bitwise_xor bucketize cat
    ceil clone col2im complex constant_pad_nd copy copy_ detach detach_ diag_embed embedding empty
    empty_like empty_permuted empty_strided eq equal exponential_ eye fill fill_ flip floor full
    full_like gather ge gt im2col index index_copy index_copy_ index_fill index_fill_ index_put
    index_put_ index_select isfinite isinf isnan isneginf isposinf item le lift lift_fresh
    lift_fresh_copy logical_and logical_not logical_or logical_xor lt masked_fill masked_fill_
    masked_scatter masked_select ne new_empty new_empty_strided new_full
    new_ones new_zeros nonzero normal normal_ ones ones_like pin_memory pixel_shuffle
    pixel_unshuffle rand rand_like randint randint_like randn randn_like randperm
    reflection_pad1d reflection_pad2d reflection_pad3d repeat repeat_interleave replication_pad1d
    replication_pad2d replication_pad3d resize_ roll round rot90 scalar_tensor scatter scatter_
    searchsorted select_scatter set_ sign slice_scatter sort split_with_sizes_copy stack
    sym_numel sym_size topk tril tril_ tril_indices triu triu_ triu_indices trunc unbind_copy
    unfold_copy unique_consecutive uniform uniform_ unsafe_chunk unsafe_split
    unsafe_split_with_sizes upsample_nearest1d upsample_nearest2d upsample_nearest3d view_copy where
    zero_ zeros zeros_like
    """.split()
)

_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("normalization", ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")),
    ("activation", ("softmax", "relu", "gelu", "silu", "sigmoid", "tanh", "mish", "elu", "glu")),
    ("pooling", ("pool",)),
    ("elementwise", ("dropout", "addcmul", "addcdiv", "lerp", "pow")),
    ("reduction", ("sum", "mean", "var", "norm", "amax", "amin", "prod", "aminmax")),
)


def reason_uncounted(operator: Any) -> str | None:
    """The kind of an operator without a formula, or None if it multiplies nothing by its nature.

    "no formula" is the kind that deserves a look: it may hide a matrix product.
    """
    name = operator._overloadpacket.__name__
    if operator.namespace == "prim" or operator.is_view or name in _FREE:
        return None
    for kind, parts in _KINDS[:3]:
        if any(part in name for part in parts):
            return kind
    if torch.Tag.pointwise in operator.tags:
        return "elementwise"
    plain = name.strip("_")
    for kind, parts in _KINDS[3:]:
        if any(part in plain.split("_") for part in parts):
            return kind
    return "no formula"
