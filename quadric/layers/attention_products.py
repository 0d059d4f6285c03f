"""What multi-head attention does between its projections: checks, masks, the product of heads.

Everything here is as in `nn.MultiheadAttention`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from quadric.errors import InputError, InputTypeError


def check_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    num_heads: int,
    batch_first: bool,
) -> None:
    """Checks that inputs and masks fit each other and the attention."""
    inputs = {"query": query, "key": key, "value": value}
    if any(tensor.is_nested for tensor in inputs.values()):
        raise InputError(
            "query, key and value must be plain tensors, got a nested tensor: pad it and give a "
            "key_padding_mask (in nn.TransformerEncoder: enable_nested_tensor=False)."
        )
    shapes = [tuple(tensor.shape) for tensor in inputs.values()]
    if query.dim() not in (2, 3) or not query.dim() == key.dim() == value.dim():
        raise InputError(
            "query, key and value must all be 3-D, or all 2-D without a batch, got shapes "
            f"{shapes[0]}, {shapes[1]} and {shapes[2]}: add or remove the batch dimension."
        )
    if shapes[1][:-1] != shapes[2][:-1]:
        raise InputError(
            f"key and value must have the same length and batch, got shapes {shapes[1]} and "
            f"{shapes[2]}: give one value per key."
        )
    batched = query.dim() == 3
    at = 1 if batched and batch_first else 0  # the dimension of the length
    if batched and query.shape[1 - at] != key.shape[1 - at]:
        layout = "(N, L, E)" if batch_first else "(L, N, E)"
        raise InputError(
            f"query and key must have the same batch size, got shapes {shapes[0]} and {shapes[1]}: "
            f"with batch_first={batch_first} the layout is {layout}."
        )
    lengths = (query.shape[at], key.shape[at])
    batch = (query.shape[1 - at],) if batched else ()
    _check_mask("key_padding_mask", key_padding_mask, [(*batch, lengths[1])])
    heads = math.prod(batch) * num_heads
    _check_mask("attn_mask", attn_mask, [lengths, (heads, *lengths)])


def _check_mask(name: str, mask: Tensor | None, shapes: list[tuple[int, ...]]) -> None:
    if mask is None:
        return
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise InputTypeError(
            f"{name} must be boolean or floating, got {mask.dtype}: "
            "use mask.bool(), where True means masked."
        )
    if tuple(mask.shape) not in shapes:
        raise InputError(
            f"{name} must have shape {' or '.join(str(shape) for shape in shapes)}, got "
            f"{tuple(mask.shape)}: L and S are the lengths of query and key."
        )


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    appended: int,
    dropout: float,
    is_causal: bool,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Mixes the values of every head."""
    # The hint replaces the mask only where nothing else is masked or returned.
    is_causal = is_causal and key_padding_mask is None and not need_weights
    # Torch computes attention with dropout step by step on a CPU. Here the same takes less memory:
    # torch scales copies of queries and keys, which training would keep. In half precision that
    # scaling keeps the product finite. The hint hides appended keys, which the mask would not.
    in_steps = dropout > 0.0 and q.device.type == "cpu" and q.dtype in _WIDE
    written_out = need_weights or (in_steps and not (is_causal and appended))
    is_causal = is_causal and not written_out
    mask = None if is_causal else _merged(attn_mask, key_padding_mask, q)
    if mask is not None:
        mask = F.pad(mask, (0, appended))
    if not written_out:
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal), None
    scale = math.sqrt(1.0 / q.shape[-1])
    # In half precision the product itself might not fit.
    scores = (q @ k.mT) * scale if q.dtype in _WIDE else (q * scale) @ k.mT
    scores = scores if mask is None else scores + mask
    # Where everything is masked torch gives NaN with weights and zeros without.
    nothing = None if mask is None or need_weights else mask.isneginf().all(-1, keepdim=True)
    if nothing is not None:
        scores = scores.masked_fill(nothing, 0.0)
    weights = F.dropout(torch.softmax(scores, dim=-1), dropout)
    if need_weights:
        return weights @ v, weights
    return weights @ v if nothing is None else (weights @ v).masked_fill(nothing, 0.0), None


_WIDE = (torch.float32, torch.float64)


def _merged(attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor) -> Tensor | None:
    """One mask to be added to the scores, of shape (N or 1, H or 1, L or 1, S)."""
    mask: Tensor | None = None
    if attn_mask is not None:
        mask = _additive(attn_mask, q.dtype)
        mask = mask[None, None] if mask.dim() == 2 else mask.unflatten(0, (-1, q.shape[1]))
    if key_padding_mask is not None:
        padding = _additive(key_padding_mask, q.dtype)
        padding = padding[:, None, None] if padding.dim() == 2 else padding[None, None, None]
        mask = padding if mask is None else mask + padding
    return mask


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
