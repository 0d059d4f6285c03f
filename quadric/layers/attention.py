"""Multi-head attention whose four projections are layers of quadratic neurons.

The paper's Transformer replaces "all linear projection operators in the multi-head attention
blocks". Here :func:`quadric.make_layer` makes the projections of query, key, value and output, so
that every neuron of the registry can be used. Everything between them is as in
`nn.MultiheadAttention`. With eigenvalues zero, as at the start, both compute the same function.

Torch packs three projections into one `in_proj_weight`. Here they are the submodules `q_proj`,
`k_proj` and `v_proj`, and a packed checkpoint is taken apart while it loads.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quadric.errors import InputError, InputTypeError
from quadric.layers.attention_products import attend, check_inputs
from quadric.layers.make import make_layer
from quadric.layers.tracing import as_node, is_proxy
from quadric.support.checks import check_size

Self = TypeVar("Self", bound="QuadraticMultiheadAttention")

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_ALL_PROJECTIONS = (*_PROJECTIONS, "out_proj")
# The arguments that both attentions keep as attributes.
_COMMON = ("embed_dim", "num_heads", "dropout", "add_zero_attn", "kdim", "vdim", "batch_first")


class _NoPackedWeight:
    """Stands in place of the packed weight, so that torch's fused paths refuse.

    `nn.TransformerEncoder` and its layers call the attention itself if a weight that they are about
    to fuse overrides torch functions. None is not enough: they read its `requires_grad`.
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

    Its arguments, masks, shapes and return values are those of `nn.MultiheadAttention`, whose state
    dict it loads (the eigenvalues are then zero). Torch's Transformer modules take it as their
    attention. Their fused paths, which would leave out the squares, refuse it.

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
        device: the device of the parameters.
        dtype: the dtype of the parameters.
        rank: the rank of the neuron; None for its default.
        neuron: the neuron's name in the registry.
        neuron_options: other options of the neuron, as :func:`quadric.make_layer` takes them.

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
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "kdim": kdim, "vdim": vdim}
        for name, size in sizes.items():
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
        for name in ("bias_k", "bias_v"):
            empty = torch.empty(1, 1, embed_dim, **factory)
            self.register_parameter(name, nn.Parameter(empty) if add_bias_kv else None)
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
        """Draws all parameters again: linear parts as torch's attention, others as their neuron."""
        for name in _ALL_PROJECTIONS:
            getattr(self, name).reset_parameters()
        self._start_as_torch()

    def _start_as_torch(self) -> None:
        # Torch draws the packed (3E, E) matrix as one: Xavier's bound then has 4E, not 2E.
        packed = self.kdim == self.vdim == self.embed_dim
        for name in _ALL_PROJECTIONS:
            projection = getattr(self, name)
            # A neuron without a linear part has no weight.
            if name != "out_proj" and projection.weight is not None:
                nn.init.xavier_uniform_(projection.weight, gain=2**-0.5 if packed else 1.0)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)
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
        """Attends from the queries to the keys, as `nn.MultiheadAttention` does.

        Args:
            query: the sequence that attends.
            key: the sequence that is attended to.
            value: one value per key; the output mixes them.
            key_padding_mask: (N, S), or (S) without a batch. Boolean: True keys are ignored.
                Floating: added to the scores.
            need_weights: return the weights too, which is slower.
            attn_mask: (L, S) or (N * num_heads, L, S). Boolean: True pairs are forbidden. Floating:
                added to the scores.
            average_attn_weights: return one mean over the heads, not a weight for each.
            is_causal: a hint that `attn_mask` is the causal one.

        Returns:
            The output, and the weights or None.

        Raises:
            InputError: if shapes do not fit.
            InputTypeError: if a mask is of another dtype.
        """
        if is_proxy(query):
            options = (key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
            return as_node(self, query, key, value, *options)  # type: ignore[no-any-return]
        masks = (key_padding_mask, attn_mask)
        check_inputs(query, key, value, *masks, self.num_heads, self.batch_first)
        if is_causal and attn_mask is None:
            raise InputError(
                "is_causal is a hint about attn_mask, which must be given too, got None: "
                "pass attn_mask=nn.Transformer.generate_square_subsequent_mask(L)."
            )
        q = self._heads(self.q_proj(query))  # (N, H, L, D)
        k = self._heads(self.k_proj(key))  # (N, H, S, D)
        v = self._heads(self.v_proj(value))
        length = k.shape[2]
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self._appended(self.bias_k, k)], dim=2)
            v = torch.cat([v, self._appended(self.bias_v, v)], dim=2)
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        appended, dropout = k.shape[2] - length, self.dropout if self.training else 0.0
        mixed, weights = attend(
            q, k, v, attn_mask, key_padding_mask, appended, dropout, is_causal, need_weights
        )
        if weights is not None:
            weights = weights.mean(dim=1) if average_attn_weights else weights
            weights = weights if query.dim() == 3 else weights.squeeze(0)
        # (N, H, L, D) -> the layout of the query
        if query.dim() == 2:
            mixed = mixed.squeeze(0).transpose(0, 1)
        elif self.batch_first:
            mixed = mixed.transpose(1, 2)
        else:
            mixed = mixed.permute(2, 0, 1, 3)
        return self.out_proj(mixed.flatten(-2)), weights

    def _heads(self, projected: Tensor) -> Tensor:
        """Splits a projection into heads: (N, H, length, D), whatever the layout was."""
        split: Tensor = projected.unflatten(-1, (self.num_heads, self.head_dim))
        if split.dim() == 3:
            return split.transpose(0, 1).unsqueeze(0)
        return split.transpose(1, 2) if self.batch_first else split.permute(1, 2, 0, 3)

    def _appended(self, bias: Tensor, like: Tensor) -> Tensor:
        heads = bias.view(1, self.num_heads, 1, self.head_dim).to(like.dtype)
        return heads.expand(like.shape[0], -1, -1, -1)

    @classmethod
    def from_mha(
        cls: type[Self],
        module: nn.MultiheadAttention,
        neuron: str = "eigen",
        rank: int | None = None,
        **neuron_options: Any,
    ) -> Self:
        """Makes an attention that computes what `module` computes, if the neuron can be linear.

        The packed projections are copied, because they are taken apart. Other parameters are the
        same objects.

        Args:
            module: torch's attention.
            neuron: the neuron of the projections. One that cannot represent a linear layer starts
                with new weights.
            rank: the neuron's rank; None for its default.
            neuron_options: other options of the neuron.

        Returns:
            The new attention.

        Raises:
            InputError: if the parameters of `module` are computed.
            InputTypeError: if `module` is not torch's attention.
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise InputTypeError(
                f"{cls.__name__}.from_mha takes a torch.nn.MultiheadAttention, got "
                f"{type(module).__name__}: use quadric.make_layer for linear layers."
            )
        if type(module).forward is not nn.MultiheadAttention.forward:
            raise InputTypeError(
                f"the attention must compute as torch.nn.MultiheadAttention does, got "
                f"{type(module).__name__} with its own forward: build a {cls.__name__} and copy "
                "the parameters that correspond."
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
        common: dict[str, Any] = {name: getattr(module, name) for name in _COMMON}
        new = cls(**common, bias=in_bias is not None, device="meta", neuron="linear")
        for name, old, weight, bias in zip(_PROJECTIONS, separate, weights, biases, strict=True):
            linear = getattr(new, name)
            # A packed part becomes a parameter of its own; a separate one stays the same object.
            linear.weight = _own(weight) if old is None else old
            if bias is not None:
                linear.bias = _own(bias)
        new.out_proj = module.out_proj
        for name in _ALL_PROJECTIONS:
            layer = make_layer(getattr(new, name), neuron=neuron, rank=rank, **neuron_options)
            setattr(new, name, layer)
        new.bias_k, new.bias_v = module.bias_k, module.bias_v  # type: ignore[assignment]
        return new.train(module.training)

    def to_mha(self) -> nn.MultiheadAttention:
        """Makes torch's attention without the squares: the inverse of :meth:`from_mha`.

        Returns:
            The new attention, with the parameters of the linear parts.

        Raises:
            InputError: if the neuron has no linear part.
        """
        projections: list[Any] = [getattr(self, name) for name in _ALL_PROJECTIONS]
        q, k, v, out = (p if isinstance(p, nn.Linear) else p.to_linear() for p in projections)
        common: dict[str, Any] = {name: getattr(self, name) for name in _COMMON}
        new = nn.MultiheadAttention(**common, bias=q.bias is not None, device="meta")
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
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *args: Any
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
                args[-1].append(
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
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def extra_repr(self) -> str:
        """What is not the default."""
        text = f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, neuron={self.neuron!r}"
        given = {
            "dropout": self.dropout,
            "kdim": self.kdim if self.kdim != self.embed_dim else None,
            "vdim": self.vdim if self.vdim != self.embed_dim else None,
            "batch_first": self.batch_first,
            "add_bias_kv": self.bias_k is not None,
            "add_zero_attn": self.add_zero_attn,
        }
        return text + "".join(f", {name}={value}" for name, value in given.items() if value)


def _own(*parts: Tensor) -> nn.Parameter:
    """The parts as one new parameter with its own storage, trained if any of them was."""
    joined = torch.cat([part.detach() for part in parts])
    return nn.Parameter(joined, requires_grad=any(part.requires_grad for part in parts))
