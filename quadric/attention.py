"""Multi-head attention whose four projections are layers of quadratic neurons.

The paper's Transformer replaces "all linear projection operators in the multi-head attention
blocks". Query, key, value and output projections are made by :func:`quadric.make_layer`, so that
any neuron of the registry will do; everything between them is `nn.MultiheadAttention`'s. With
eigenvalues zero, as at the start, both compute the same function.

Departure in form: torch packs three projections into one `in_proj_weight`; here they are the
submodules `q_proj`, `k_proj` and `v_proj`, and a packed checkpoint is taken apart while it loads.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quadric.errors import InputError, InputTypeError
from quadric.nn.layer import check_size
from quadric.zoo import make_layer

Self = TypeVar("Self", bound="QuadraticMultiheadAttention")

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


class _NoPackedWeight:
    """What stands where torch looks for the packed weight: it makes torch's fused paths refuse.

    `nn.TransformerEncoder` and its layers ask whether any of the weights they are about to fuse
    overrides torch functions, and if so call the attention itself. None would not do: the encoder
    reads `requires_grad` of each.
    """

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise InputTypeError(
            "a packed in_proj_weight is needed here, got a QuadraticMultiheadAttention: its "
            "projections are the modules q_proj, k_proj and v_proj, to be called one by one."
        )

    def __repr__(self) -> str:
        return "<no packed weight>"


class QuadraticMultiheadAttention(nn.Module):
    """Attention with quadratic projections in place of `nn.MultiheadAttention`.

    Its arguments, masks, shapes and return values are those of `nn.MultiheadAttention`, its state
    dict loads (the eigenvalues are then zero), and `nn.TransformerEncoderLayer`,
    `nn.TransformerDecoderLayer` and `nn.TransformerEncoder` take it as their attention: torch's
    fused paths, which would pass the neurons by, refuse it.

    Args:
        embed_dim: width of the model.
        num_heads: number of heads; divides `embed_dim`.
        dropout: probability of dropping an attention weight in training.
        bias: whether the projections have biases.
        add_bias_kv: append a learned key and value to every sequence.
        add_zero_attn: append a key and a value of zeros to every sequence.
        kdim: width of the keys, `embed_dim` by default.
        vdim: width of the values, `embed_dim` by default.
        batch_first: whether batched input is (N, L, E) and not (L, N, E).
        device: where the parameters live.
        dtype: their type.
        rank: the rank of the neuron; None for its default.
        neuron: its name in the registry.
        neuron_options: its other options, as :func:`quadric.make_layer` takes them.

    Shape:
        Query (L, N, E), key (S, N, kdim), value (S, N, vdim); with `batch_first` N comes first;
        without a batch there is no N. Output like the query. Weights (N, L, S), or
        (N, num_heads, L, S) with ``average_attn_weights=False``.

    Attributes:
        q_proj: the query projection, a layer of the neuron.
        k_proj: the key projection.
        v_proj: the value projection.
        out_proj: the output projection.
        bias_k: the appended key (1, 1, E), or None.
        bias_v: the appended value (1, 1, E), or None.

    Examples:
        >>> attention = QuadraticMultiheadAttention(20, 4, batch_first=True, rank=4)
        >>> x = torch.randn(2, 7, 20)
        >>> output, weights = attention(x, x, x)
        >>> output.shape, weights.shape
        (torch.Size([2, 7, 20]), torch.Size([2, 7, 7]))
        >>> attention.q_proj.num_neurons
        4
    """

    # Read by nn.TransformerEncoderLayer and nn.TransformerEncoder, which then call forward.
    in_proj_weight = _NoPackedWeight()
    in_proj_bias = None
    _qkv_same_embed_dim = False

    bias_k: nn.Parameter | None
    bias_v: nn.Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        rank: int | None = None,
        neuron: str = "eigen",
        **neuron_options: Any,
    ) -> None:
        super().__init__()
        kdim = embed_dim if kdim is None else kdim
        vdim = embed_dim if vdim is None else vdim
        for name, size in (
            ("embed_dim", embed_dim),
            ("num_heads", num_heads),
            ("kdim", kdim),
            ("vdim", vdim),
        ):
            check_size(name, size)
        if embed_dim % num_heads:
            raise InputError(
                f"embed_dim must be divisible by num_heads, got embed_dim={embed_dim} and "
                f"num_heads={num_heads}: choose a number of heads that divides the width."
            )
        if not 0.0 <= dropout <= 1.0:
            raise InputError(
                f"dropout must be a probability, 0 to 1, got {dropout}: 0 drops nothing."
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.kdim = kdim
        self.vdim = vdim
        self.dropout = dropout
        self.batch_first = batch_first
        self.add_zero_attn = add_zero_attn
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        layer: dict[str, Any] = {"neuron": neuron, "rank": rank, **neuron_options, **factory}
        self.q_proj = make_layer(nn.Linear, embed_dim, embed_dim, bias=bias, **layer)
        self.k_proj = make_layer(nn.Linear, kdim, embed_dim, bias=bias, **layer)
        self.v_proj = make_layer(nn.Linear, vdim, embed_dim, bias=bias, **layer)
        self.out_proj = make_layer(nn.Linear, embed_dim, embed_dim, bias=bias, **layer)
        if add_bias_kv:
            self.bias_k = nn.Parameter(torch.empty(1, 1, embed_dim, **factory))
            self.bias_v = nn.Parameter(torch.empty(1, 1, embed_dim, **factory))
        else:
            self.register_parameter("bias_k", None)
            self.register_parameter("bias_v", None)
        self._start_as_torch()

    @property
    def neuron(self) -> str:
        """The registry name of the neuron of the projections (of the query's, if they differ)."""
        neuron: str = getattr(self.q_proj, "neuron", "linear")
        return neuron

    @property
    def rank(self) -> int | None:
        """The rank of the projections; None for a neuron that has none."""
        rank: int | None = getattr(self.q_proj, "rank", None)
        return rank

    def reset_parameters(self) -> None:
        """Draws all parameters anew: linear parts as `nn.MultiheadAttention`, others as their
        neuron."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            projection.reset_parameters()  # type: ignore[operator]
        self._start_as_torch()

    def _start_as_torch(self) -> None:
        # Torch draws the packed (3E, E) matrix as one: Xavier's bound then has 4E, not 2E.
        packed = self.kdim == self.vdim == self.embed_dim
        for name in _PROJECTIONS:
            weight = getattr(self, name).weight
            # A neuron without a linear part has no weight.
            if weight is not None:
                nn.init.xavier_uniform_(weight, gain=2**-0.5 if packed else 1.0)
        for name in (*_PROJECTIONS, "out_proj"):
            bias = getattr(self, name).bias
            if bias is not None:
                nn.init.zeros_(bias)
        for appended in (self.bias_k, self.bias_v):
            if appended is not None:
                nn.init.xavier_normal_(appended)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from the queries to the keys, as `nn.MultiheadAttention` does.

        Args:
            query: where from.
            key: where to.
            value: what is fetched.
            key_padding_mask: (N, S), or (S) without a batch. Boolean: True keys are ignored.
                Floating: added to the scores.
            need_weights: return the weights too, which is slower.
            attn_mask: (L, S) or (N * num_heads, L, S). Boolean: True pairs are forbidden. Floating:
                added to the scores.
            average_attn_weights: return one mean over the heads, not a weight for each.
            is_causal: a hint that `attn_mask` is the causal one.

        Returns:
            The output, and the weights or None.
        """
        self._check_inputs(query, key, value, key_padding_mask, attn_mask)
        if is_causal and attn_mask is None:
            raise InputError(
                "is_causal is a hint about attn_mask, which must be given too, got None: "
                "pass attn_mask=nn.Transformer.generate_square_subsequent_mask(L)."
            )
        batched = query.dim() == 3
        q = self._heads(self.q_proj(query))  # (N, H, L, D)
        k = self._heads(self.k_proj(key))  # (N, H, S, D)
        v = self._heads(self.v_proj(value))
        dropout = self.dropout if self.training else 0.0
        # As in torch, the hint replaces the mask only where nothing else is masked or returned.
        is_causal = is_causal and key_padding_mask is None and not need_weights
        # The hint hides what is appended below, which the mask does not: it must stay a hint then.
        appended = self.bias_k is not None or self.add_zero_attn
        written_out = need_weights or (
            dropout > 0.0 and _torch_writes_out(q) and not (is_causal and appended)
        )
        is_causal = is_causal and not written_out
        mask = None if is_causal else self._merge(attn_mask, key_padding_mask, q)
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self._appended(self.bias_k, k)], dim=2)
            v = torch.cat([v, self._appended(self.bias_v, v)], dim=2)
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        if mask is not None:
            # What was appended is visible to all.
            mask = F.pad(mask, (0, k.shape[2] - key.shape[self._length_dim(key)]))

        returned: Tensor | None = None
        if written_out:
            softmax = torch.softmax if need_weights else _softmax_or_zeros
            weights = softmax(_scores(q, k, mask), dim=-1)
            if dropout > 0.0:
                weights = F.dropout(weights, dropout)
            mixed = weights @ v
            if need_weights:
                returned = weights.mean(dim=1) if average_attn_weights else weights
                returned = returned if batched else returned.squeeze(0)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal)
        # (N, H, L, D) -> the layout of the query
        if not batched:
            mixed = mixed.squeeze(0).transpose(0, 1)
        elif self.batch_first:
            mixed = mixed.transpose(1, 2)
        else:
            mixed = mixed.permute(2, 0, 1, 3)
        return self.out_proj(mixed.flatten(-2)), returned

    def _length_dim(self, tensor: Tensor) -> int:
        return 1 if tensor.dim() == 3 and self.batch_first else 0

    def _heads(self, projected: Tensor) -> Tensor:
        """Split a projection into heads: (N, H, length, D), whatever the layout was."""
        split: Tensor = projected.unflatten(-1, (self.num_heads, self.head_dim))
        if split.dim() == 3:
            return split.transpose(0, 1).unsqueeze(0)
        return split.transpose(1, 2) if self.batch_first else split.permute(1, 2, 0, 3)

    def _appended(self, bias: Tensor, like: Tensor) -> Tensor:
        heads = bias.view(1, self.num_heads, 1, self.head_dim).to(like.dtype)
        return heads.expand(like.shape[0], -1, -1, -1)

    def _merge(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor
    ) -> Tensor | None:
        """One mask to be added to the scores, of shape (N or 1, H or 1, L or 1, S)."""
        mask: Tensor | None = None
        if attn_mask is not None:
            mask = _additive(attn_mask, q.dtype)
            if mask.dim() == 3:
                mask = mask.unflatten(0, (-1, self.num_heads))
            else:
                mask = mask[None, None]
        if key_padding_mask is not None:
            padding = _additive(key_padding_mask, q.dtype)
            padding = padding[:, None, None] if padding.dim() == 2 else padding[None, None, None]
            mask = padding if mask is None else mask + padding
        return mask

    def _check_inputs(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
    ) -> None:
        if query.is_nested or key.is_nested or value.is_nested:
            raise InputError(
                "query, key and value must be plain tensors, got a nested tensor: pad it and give "
                "a key_padding_mask (in nn.TransformerEncoder: enable_nested_tensor=False)."
            )
        if query.dim() not in (2, 3) or not query.dim() == key.dim() == value.dim():
            raise InputError(
                "query, key and value must all be 3-D, or all 2-D without a batch, got shapes "
                f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}: "
                "add or remove the batch dimension."
            )
        for name, tensor, width, argument in (
            ("query", query, self.embed_dim, "embed_dim"),
            ("key", key, self.kdim, "kdim"),
            ("value", value, self.vdim, "vdim"),
        ):
            if tensor.shape[-1] != width:
                raise InputError(
                    f"the last dimension of {name} must be {argument} = {width}, got shape "
                    f"{tuple(tensor.shape)}: build the attention with {argument}="
                    f"{tensor.shape[-1]}."
                )
        if key.shape[:-1] != value.shape[:-1]:
            raise InputError(
                "key and value must have the same length and batch, got shapes "
                f"{tuple(key.shape)} and {tuple(value.shape)}: give one value per key."
            )
        length_dim = self._length_dim(query)
        if query.dim() == 3 and query.shape[1 - length_dim] != key.shape[1 - length_dim]:
            layout = "(N, L, E)" if self.batch_first else "(L, N, E)"
            raise InputError(
                "query and key must have the same batch size, got shapes "
                f"{tuple(query.shape)} and {tuple(key.shape)}: with "
                f"batch_first={self.batch_first} the layout is {layout}."
            )
        target, source = query.shape[length_dim], key.shape[length_dim]
        batch = (query.shape[1 - length_dim],) if query.dim() == 3 else ()
        pairs = math.prod(batch) * self.num_heads
        if key_padding_mask is not None:
            _check_mask("key_padding_mask", key_padding_mask, [(*batch, source)])
        if attn_mask is not None:
            _check_mask("attn_mask", attn_mask, [(target, source), (pairs, target, source)])

    @classmethod
    def from_mha(
        cls: type[Self],
        module: nn.MultiheadAttention,
        neuron: str = "eigen",
        rank: int | None = None,
        **neuron_options: Any,
    ) -> Self:
        """An attention that computes what `module` computes, if the neuron can be linear.

        The packed projections are copied, as they are taken apart; other parameters are the same
        objects.

        Args:
            module: torch's attention.
            neuron: the neuron of the projections. One that cannot represent a linear layer starts
                afresh.
            rank: its rank; None for its default.
            neuron_options: its other options.
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise InputTypeError(
                f"{cls.__name__}.from_mha takes a torch.nn.MultiheadAttention, got "
                f"{type(module).__name__}: use quadric.make_layer for linear layers."
            )
        if type(module).forward is not nn.MultiheadAttention.forward:
            raise InputTypeError(
                f"the attention must compute as torch.nn.MultiheadAttention does, got "
                f"{type(module).__name__} with a forward of its own: build a "
                f"{cls.__name__} and copy the parameters that correspond."
            )
        packed = module._parameters.get("in_proj_weight")
        separate = [module._parameters.get(f"{name}_weight") for name in _PROJECTIONS]
        parts = separate if packed is None else packed.chunk(3)
        weights = [part for part in parts if part is not None]
        if len(weights) != 3:
            raise InputError(
                "the projections of the attention must be plain parameters, got computed ones (a "
                "parametrization?): remove it with "
                "torch.nn.utils.parametrize.remove_parametrizations first."
            )
        in_bias = module._parameters.get("in_proj_bias")
        biases = [None] * 3 if in_bias is None else list(in_bias.chunk(3))
        new = cls(
            module.embed_dim,
            module.num_heads,
            module.dropout,
            in_bias is not None,
            False,
            module.add_zero_attn,
            module.kdim,
            module.vdim,
            module.batch_first,
            "meta",
            neuron=neuron,
            rank=rank,
            **neuron_options,
        )
        options = {"neuron": neuron, "rank": rank, **neuron_options}
        for name, old, weight, bias in zip(_PROJECTIONS, separate, weights, biases, strict=True):
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
            # A packed part becomes a parameter of its own; a separate one stays the same object.
            linear.weight = _own(weight) if old is None else old
            if bias is not None:
                linear.bias = _own(bias)
            setattr(new, name, make_layer(linear, **options))
        new.out_proj = make_layer(module.out_proj, **options)
        new.bias_k, new.bias_v = module.bias_k, module.bias_v  # type: ignore[assignment]
        return new.train(module.training)

    def to_mha(self) -> nn.MultiheadAttention:
        """Torch's attention without the squares: the inverse of :meth:`from_mha`.

        Only for neurons that are a linear layer and something more, which is dropped; the others
        are refused.
        """
        linears: list[nn.Linear] = []
        for name in (*_PROJECTIONS, "out_proj"):
            projection = getattr(self, name)
            linears.append(
                projection if isinstance(projection, nn.Linear) else projection.to_linear()
            )
        q, k, v, out = linears
        new = nn.MultiheadAttention(
            self.embed_dim,
            self.num_heads,
            self.dropout,
            q.bias is not None,
            False,
            self.add_zero_attn,
            self.kdim,
            self.vdim,
            self.batch_first,
            "meta",
        )
        if new._qkv_same_embed_dim:
            new.in_proj_weight = _own(q.weight, k.weight, v.weight)
        else:
            for name, linear in zip(_PROJECTIONS, (q, k, v), strict=True):
                setattr(new, f"{name}_weight", linear.weight)
        if q.bias is not None:
            new.in_proj_bias = _own(q.bias, k.bias, v.bias)
        new.out_proj.weight, new.out_proj.bias = out.weight, out.bias
        new.bias_k, new.bias_v = self.bias_k, self.bias_v
        return new.train(self.training)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        # Children load after their parent and see the entries that it puts here.
        assign = local_metadata.get("assign_to_params_buffers", False)
        for old, new in (("in_proj_weight", "weight"), ("in_proj_bias", "bias")):
            targets = [f"{prefix}{name}.{new}" for name in _PROJECTIONS]
            packed = state_dict.get(prefix + old)
            if packed is None or any(target in state_dict for target in targets):
                continue
            del state_dict[prefix + old]
            if packed.dim() == 0 or packed.shape[0] != 3 * self.embed_dim:
                error_msgs.append(
                    f"size mismatch for {prefix}{old}: three projections of embed_dim = "
                    f"{self.embed_dim} rows each are needed, got shape {tuple(packed.shape)}."
                )
                continue
            for target, part in zip(targets, packed.chunk(3), strict=True):
                # An assigned part must not keep the whole packed storage alive.
                state_dict[target] = part.clone() if assign else part
        for name in _PROJECTIONS:
            weight, target = f"{prefix}{name}_weight", f"{prefix}{name}.weight"
            if weight in state_dict and target not in state_dict:
                state_dict[target] = state_dict.pop(weight)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def extra_repr(self) -> str:
        text = f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, neuron={self.neuron!r}"
        if self.dropout:
            text += f", dropout={self.dropout}"
        for name in ("kdim", "vdim"):
            if getattr(self, name) != self.embed_dim:
                text += f", {name}={getattr(self, name)}"
        if self.batch_first:
            text += ", batch_first=True"
        if self.bias_k is not None:
            text += ", add_bias_kv=True"
        if self.add_zero_attn:
            text += ", add_zero_attn=True"
        return text


def _torch_writes_out(q: Tensor) -> bool:
    """Whether torch computes attention with dropout step by step for this tensor, and we can do
    the same with less memory: torch scales queries and keys in copies, which training would keep
    beside ours. In half precision the scaling is what keeps the product finite."""
    return q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64)


def _scores(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    scale = math.sqrt(1.0 / q.shape[-1])
    if q.dtype in (torch.float32, torch.float64):
        scores = (q @ k.mT) * scale
    else:
        scores = (q * scale) @ k.mT  # the product itself might not fit
    return scores if mask is None else scores + mask


def _softmax_or_zeros(scores: Tensor, dim: int) -> Tensor:
    """Softmax, and zeros where everything is masked: what torch's attention without weights does,
    while that with weights gives NaN."""
    weights: Tensor = torch.ops.aten._safe_softmax(scores, dim)
    return weights


def _own(*parts: Tensor) -> nn.Parameter:
    """The parts as one new parameter with its own storage, trained if any of them was."""
    joined = torch.cat([part.detach() for part in parts])
    return nn.Parameter(joined, requires_grad=any(part.requires_grad for part in parts))


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))


def _check_mask(name: str, mask: Tensor, shapes: list[tuple[int, ...]]) -> None:
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
