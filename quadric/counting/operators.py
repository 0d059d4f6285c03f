"""What one operator costs: multiply-accumulates by the shapes of its arguments.

Matrix products, convolutions and attention have a formula: torch's own
(`torch.utils.flop_counter`, which counts two operations for a multiply-accumulate), and a few that
torch does not have. Operators that only move, select or compare cost nothing. All others are not
counted, and `reason_uncounted` says which kind of operator they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry


def _product(a: Tensor, b: Tensor, *_: Any, **__: Any) -> int:
    """Matrix times matrix or vector, or vector times vector."""
    return a.numel() * (b.shape[-1] if b.dim() > 1 else 1)


def _added_product(added: Tensor, a: Tensor, b: Tensor, **_: Any) -> int:
    return _product(a, b)


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """Scores q'k and the weighted sum of the values; a causal mask saves nothing here."""
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    return pairs * (query.shape[-1] + value.shape[-1])


def _bilinear(first: Tensor, weight: Tensor, second: Tensor, *_: Any, **__: Any) -> int:
    """One x'My per output: n^2 + n, as for the general neuron."""
    outputs, rows, columns = weight.shape
    return math.prod(first.shape[:-1]) * outputs * (rows * columns + rows)


def _rnn_layer(input: Tensor, weight: Tensor, recurrent: Tensor, *_: Any, **__: Any) -> int:
    """One layer of a recurrent network, all time steps: (T, N, features)."""
    return math.prod(input.shape[:2]) * (weight.numel() + recurrent.numel())


# By name, because not every version of torch has every operator.
_OWN: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("dot", "vdot", "mv", "_int_mm"), _product),
    **dict.fromkeys(("addmv", "addmv_", "addbmm", "addmm_", "baddbmm_"), _added_product),
    "_addmm_activation": _added_product,
    "_trilinear": _bilinear,
    "mkldnn_rnn_layer": _rnn_layer,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
}


def macs(operator: Any, args: Any, kwargs: Any, out: Any) -> int | None:
    """The multiply-accumulates of one call."""
    packet = getattr(operator, "overloadpacket", None)  # a higher-order operator has none
    if packet in flop_registry:
        operations: int = flop_registry[packet](*args, **kwargs, out_val=out)
        return operations // 2
    formula = _OWN.get(str(operator).removeprefix("aten.").partition(".")[0])
    return None if formula is None else formula(*args, **kwargs)


def name_of(operator: Any) -> str:
    """Its name for a report, without the underscores of private and in-place operators."""
    namespace, dot, rest = str(operator).partition(".")
    name = rest.partition(".")[0].strip("_")
    return name if namespace == "aten" else namespace + dot + name


# Copies, selections, comparisons, constructors, random numbers: no arithmetic on values. Without
# the underscores of private and in-place operators.
_FREE = set(
    """
    alias_copy all any arange argmax argmin argsort bernoulli bitwise_and bitwise_not bitwise_or
    bitwise_xor bucketize cat ceil clone col2im complex constant_pad_nd copy detach diag_embed
    embedding empty empty_like empty_permuted empty_strided eq equal exponential eye fill flip floor
    full full_like gather ge gt im2col index index_copy index_fill index_put index_select isfinite
    isinf isnan isneginf isposinf item le lift lift_fresh lift_fresh_copy local_scalar_dense
    linalg_check_errors logical_and logical_not logical_or logical_xor lt masked_fill
    masked_scatter masked_select ne
    new_empty new_empty_strided new_full new_ones new_zeros nonzero normal ones ones_like pin_memory
    pixel_shuffle pixel_unshuffle rand rand_like randint randint_like randn randn_like randperm
    reflection_pad1d reflection_pad2d reflection_pad3d repeat repeat_interleave replication_pad1d
    replication_pad2d replication_pad3d reshape_copy resize roll round rot90 scalar_tensor scatter
    searchsorted select_scatter set sign slice_scatter sort split_with_sizes_copy stack sym_numel
    sym_size to_copy topk tril tril_indices triu triu_indices trunc unbind_copy unfold_copy uniform
    unique_consecutive unsafe_chunk unsafe_index unsafe_split unsafe_split_with_sizes unsafe_view
    upsample_nearest1d upsample_nearest2d upsample_nearest3d view_copy where zero zeros zeros_like
    """.split()
)

_KINDS = {
    "normalization": ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"),
    "activation": ("softmax", "relu", "gelu", "silu", "sigmoid", "tanh", "mish", "elu", "glu"),
    "pooling": ("pool",),
}
"""Kinds of operators by a part of their name."""

_WORDS = {
    "elementwise": ("dropout", "addcmul", "addcdiv", "lerp", "pow"),
    "reduction": ("sum", "mean", "var", "norm", "amax", "amin", "prod", "aminmax"),
}
"""Kinds of operators by a whole word of their name."""


def reason_uncounted(operator: Any) -> str | None:
    """The kind of an operator that has no formula."""
    if not hasattr(operator, "overloadpacket"):
        return "no formula"
    name = name_of(operator)
    if operator.namespace == "prim" or operator.is_view or name in _FREE:
        return None
    for kind, parts in _KINDS.items():
        if any(part in name for part in parts):
            return kind
    if torch.Tag.pointwise in operator.tags:
        return "elementwise"
    words = name.split("_")
    return next((kind for kind, own in _WORDS.items() if set(own) & set(words)), "no formula")
