"""The encoder-decoder Transformer of Vaswani et al. 2017, for translation.

Query, key, value and output projections are modules of their own, so that each can be converted.
Source, target and output share one embedding. Dropout is where the paper has it: on each sublayer's
output and on the sums of embeddings and positions, and nowhere else. As in `torch.nn.Transformer`,
which is the test's reference, each stack ends in a LayerNorm.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from quadric.errors import InputError
from quadric.models.activations import make_activation
from quadric.support.checks import check_size

PADDING = 0
"""The token that fills the shorter sentences of a batch."""

ATTENTION = ["query", "key", "value", "out"]
"""Names of the attention projections, as `include` takes them."""

FEEDFORWARD = ["inner", "outer"]
"""Names of the feed-forward layers, as `include` takes them."""

Past = tuple[tuple[Tensor, Tensor], ...]
"""Keys and values of each decoder layer for the tokens so far, (rows, heads, tokens, size)."""


@dataclass(frozen=True)
class Memory:
    """What the decoder reads of the source sentences."""

    keys_values: Past  # keys and values of each decoder layer, (sentences, heads, tokens, size)
    mask: Tensor  # (sentences, 1, 1, tokens), False where a token is padding

    def select(self, index: Tensor) -> Memory:
        """The memory of some of the sentences."""
        pairs = tuple((keys[index], values[index]) for keys, values in self.keys_values)
        return Memory(pairs, self.mask[index])


class Attention(nn.Module):
    """Multi-head attention with four projections of its own."""

    def __init__(self, model_width: int, attention_width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(model_width, attention_width)
        self.key = nn.Linear(model_width, attention_width)
        self.value = nn.Linear(model_width, attention_width)
        self.out = nn.Linear(attention_width, model_width)

    def _split(self, x: Tensor) -> Tensor:
        """(rows, tokens, width) to (rows, heads, tokens, size)."""
        rows: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return rows

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the tokens that are attended to."""
        return self._split(self.key(x)), self._split(self.value(x))

    def forward(
        self,
        x: Tensor,
        keys_values: tuple[Tensor, Tensor],
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """What each token of x reads from the keys and values."""
        query = self._split(self.query(x))
        # On a CPU torch's fused attention takes six times as long in bf16 as its plain one.
        half = query.device.type == "cpu" and query.dtype.itemsize == 2
        with sdpa_kernel(SDPBackend.MATH) if half else nullcontext():
            read = F.scaled_dot_product_attention(query, *keys_values, mask, is_causal=causal)
        out: Tensor = self.out(read.transpose(1, 2).flatten(2))
        return out


def feed_forward(model_width: int, inner_width: int, activation: str | None) -> nn.Sequential:
    """Two layers with an activation between them, applied to each token."""
    layers = OrderedDict[str, nn.Module](inner=nn.Linear(model_width, inner_width))
    layers["activation"] = make_activation(activation)
    layers["outer"] = nn.Linear(inner_width, model_width)
    return nn.Sequential(layers)


class Residual(nn.Module):
    """A sublayer's residual connection and norm, after it or (pre-norm) before it."""

    def __init__(self, model_width: int, dropout: float, norm_first: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(model_width)
        self.dropout = nn.Dropout(dropout)
        self.norm_first = norm_first

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Input x and what the sublayer makes of it, normalized."""
        before: Tensor = self.norm(x) if self.norm_first else x
        out: Tensor = x + self.dropout(sublayer(before))
        return out if self.norm_first else self.norm(out)  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """Self-attention over the source, then the feed-forward layers."""

    def __init__(self, attention: Callable[[], Attention], feedforward: Any, residual: Any) -> None:
        super().__init__()
        self.attention = attention()
        self.feedforward = feedforward()
        self.residuals = nn.ModuleList([residual(), residual()])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """The tokens of the next layer."""
        attention = self.attention
        x = self.residuals[0](x, lambda y: attention(y, attention.keys_values(y), mask))
        out: Tensor = self.residuals[1](x, self.feedforward)
        return out


class DecoderLayer(nn.Module):
    """Self-attention over the tokens so far, attention to the source, feed-forward layers."""

    def __init__(self, attention: Callable[[], Attention], feedforward: Any, residual: Any) -> None:
        super().__init__()
        self.attention = attention()
        self.cross_attention = attention()
        self.feedforward = feedforward()
        self.residuals = nn.ModuleList([residual(), residual(), residual()])

    def forward(
        self,
        x: Tensor,
        memory: tuple[Tensor, Tensor],
        mask: Tensor,
        past: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The tokens of the next layer, and the keys and values that a later step needs."""
        attention, kept = self.attention, []

        def follow(y: Tensor) -> Tensor:
            kept.append(attention.keys_values(y))
            out: Tensor = attention(y, kept[0], causal=True)
            return out

        def step(y: Tensor) -> Tensor:
            assert past is not None
            rows = y.flatten(0, 1).unsqueeze(1)
            new = attention.keys_values(rows)
            kept.append((torch.cat([past[0], new[0]], 2), torch.cat([past[1], new[1]], 2)))
            out: Tensor = attention(rows, kept[0]).view_as(y)
            return out

        x = self.residuals[0](x, follow if past is None else step)
        x = self.residuals[1](x, lambda y: self.cross_attention(y, memory, mask))
        return self.residuals[2](x, self.feedforward), kept[0]


class Transformer(nn.Module):
    """Source and target tokens to the logits of the next target token.

    Examples:
        >>> network = Transformer(10, depth=1, model_width=8, feedforward_width=6, heads=2)
        >>> network(torch.tensor([[4, 5, 2]]), torch.tensor([[1, 6]])).shape
        torch.Size([1, 2, 10])
    """

    def __init__(
        self,
        vocabulary: int = 37_000,
        depth: int = 3,
        model_width: int = 512,
        feedforward_width: int = 1024,
        attention_width: int | None = None,
        heads: int = 8,
        dropout: float = 0.1,
        norm_first: bool = False,
        activation: str | None = "relu",
    ) -> None:
        super().__init__()
        width = model_width if attention_width is None else attention_width
        sizes = {"vocabulary": vocabulary, "depth": depth, "model_width": model_width}
        sizes |= {"heads": heads, "feedforward_width": feedforward_width, "attention_width": width}
        for name, size in sizes.items():
            check_size(name, size)
        if width % heads:
            raise InputError(
                f"attention_width must be a multiple of heads, got {width} for {heads} heads: "
                "choose another width"
            )
        if model_width % 2:
            raise InputError(
                f"model_width must be even, got {model_width}: positions are pairs of sine and "
                "cosine"
            )
        if not 0 <= dropout < 1:
            raise InputError(f"dropout must be in 0 ... 1, got {dropout}: choose 0.1")
        self.depth, self.heads, self.head_width = depth, heads, width // heads
        self.model_width, self.scale = model_width, math.sqrt(model_width)
        self.embedding = nn.Embedding(vocabulary, model_width, padding_idx=PADDING)
        self.dropout = nn.Dropout(dropout)
        parts = (
            lambda: Attention(model_width, width, heads),
            lambda: feed_forward(model_width, feedforward_width, activation),
            lambda: Residual(model_width, dropout, norm_first),
        )
        self.encoder = nn.ModuleList(EncoderLayer(*parts) for _ in range(depth))
        self.encoder_norm = nn.LayerNorm(model_width)
        self.decoder = nn.ModuleList(DecoderLayer(*parts) for _ in range(depth))
        self.decoder_norm = nn.LayerNorm(model_width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights: Glorot's for the layers, deviation width^-1/2 for the embedding."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=1 / self.scale)
        with torch.no_grad():
            self.embedding.weight[PADDING] = 0

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Embeddings times the root of the width, plus sines and cosines of the positions."""
        vectors = self.embedding(tokens)
        # At least in float32: bfloat16 does not know all whole numbers above 256.
        wide = torch.promote_types(vectors.dtype, torch.float32)
        evens = torch.arange(0, self.model_width, 2, dtype=wide, device=tokens.device)
        angles = positions.unsqueeze(-1) * 10_000.0 ** (-evens / self.model_width)
        waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)
        embedded: Tensor = self.dropout(vectors * self.scale + waves.to(vectors.dtype))
        return embedded

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self.decoder_norm(x), self.embedding.weight)

    def encode(self, source: Tensor) -> Memory:
        """Reads source sentences."""
        mask = (source != PADDING)[:, None, None, :]
        x = self._embed(source, torch.arange(source.shape[1], device=source.device))
        for layer in self.encoder:
            x = layer(x, mask)
        x = self.encoder_norm(x)
        decoder: Any = self.decoder
        return Memory(tuple(layer.cross_attention.keys_values(x) for layer in decoder), mask)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The logits of the token after each target token."""
        memory = self.encode(source)
        x = self._embed(target, torch.arange(target.shape[1], device=target.device))
        for layer, keys_values in zip(self.decoder, memory.keys_values, strict=True):
            x, _ = layer(x, keys_values, memory.mask)
        return self._logits(x)

    def empty_past(self, rows: int) -> Past:
        """Keys and values of no tokens."""
        weight = self.embedding.weight
        none = weight.new_empty(rows, self.heads, 0, self.head_width)
        return ((none, none),) * self.depth

    def step(self, tokens: Tensor, past: Past, memory: Memory) -> tuple[Tensor, Past]:
        """Takes one token per beam and gives the logits of the next."""
        position = torch.full_like(tokens, past[0][0].shape[2])
        x = self._embed(tokens, position)
        kept = []
        for layer, before, keys_values in zip(self.decoder, past, memory.keys_values, strict=True):
            x, now = layer(x, keys_values, memory.mask, before)
            kept.append(now)
        return self._logits(x), tuple(kept)
