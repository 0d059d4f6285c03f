"""The eigen neuron as a layer: what QuadraticLinear and the quadratic convolutions have in common.

`f = Q'x + b_f` (k features), `y = w'x + b + sum_j lambda_j f_j^2`, output `[y, f_1 … f_k]`, neuron
by neuron (Chen et al., DATE 2024). Departure: the paper has no bias in its features; ours belongs
to its channel.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from quadric.errors import InputError, InputTypeError
from quadric.functional import check_rank
from quadric.layers.eigenvalue_init import EigenvalueInit, check_eigenvalue_init, eigenvalues_
from quadric.layers.layer import QuadraticLayer, check_dtype, check_plain_parameters, uniform_start_
from quadric.layers.tracing import as_node, is_proxy
from quadric.ops import add_squares, reference
from quadric.ops.blocks import Blocks, eigen_blocks
from quadric.ops.linear_ops import LinearOp

Self = TypeVar("Self", bound="EigenLayer")

DENSE_LIMIT = 2**30
"""Bytes above which `to_dense` refuses, unless another limit is given."""


class EigenLayer(QuadraticLayer):
    """Abstract: a layer of eigen neurons over some linear map."""

    neuron = "eigen"
    rank: int
    normalize: bool
    eigenvalue_init: EigenvalueInit
    recompute: bool = False  # also in layers that were pickled before there was such an option
    weight: nn.Parameter
    bias: nn.Parameter | None
    eigenvalues: nn.Parameter

    def _set_neuron(
        self,
        bias: bool,
        rank: int,
        eigenvalue_init: EigenvalueInit,
        normalize: bool,
        recompute: bool,
        device: Any,
        dtype: torch.dtype | None,
    ) -> None:
        check_dtype(dtype)
        self.rank = check_rank(rank)
        self.normalize = bool(normalize)
        self.eigenvalue_init = check_eigenvalue_init(eigenvalue_init)
        self.recompute = bool(recompute)
        factory = {"device": device, "dtype": dtype}
        count = self.blocks.num_eigenvalues
        self.weight = nn.Parameter(torch.empty(self.weight_shape(), **factory))
        self.eigenvalues = nn.Parameter(torch.empty(count, **factory))
        if bias:
            self.bias = nn.Parameter(torch.empty(self.num_outputs, **factory))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weight and bias as torch does for a linear layer, and starts the eigenvalues."""
        uniform_start_(self.weight, self.bias)
        eigenvalues_(self.eigenvalues, self.eigenvalue_init)

    @property
    def blocks(self) -> Blocks:
        return eigen_blocks(self.num_outputs, self.rank, self.linear_op.groups)

    @property
    def neuron_ranks(self) -> tuple[int, ...]:
        """The rank of each neuron, in channel order.

        The last neuron of a convolution group may be smaller; rank 0 is a linear channel.
        """
        return tuple(size - 1 for size in self.blocks.sizes)

    @property
    def num_neurons(self) -> int:
        """m, the number of neurons, each with one y."""
        return len(self.neuron_ranks)

    def quadratic_parameters(self) -> dict[str, nn.Parameter]:
        return {"eigenvalues": self.eigenvalues}

    def effective_eigenvalues(self) -> Tensor:
        """The eigenvalues that multiply f^2: with `normalize`, lambda / |q|^2."""
        if not self.normalize:
            return self.eigenvalues
        filters = self.linear_op.filters(self.weight)[self.blocks.features]
        dtype = torch.promote_types(filters.dtype, torch.float32)
        lengths = filters.to(dtype).square().sum(1)
        scaled = self.eigenvalues / lengths.clamp_min(torch.finfo(dtype).tiny)
        # A filter of zeros has no direction: its constant feature has no square.
        return torch.where(lengths > 0, scaled, 0)

    def fold_normalization_(self: Self) -> Self:
        """Replaces normalized eigenvalues by plain ones that compute the same function."""
        if self.normalize:
            with torch.no_grad():
                self.eigenvalues.copy_(self.effective_eigenvalues())
            self.normalize = False
        return self

    def forward(self, input: Tensor) -> Tensor:
        if is_proxy(input):
            return as_node(self, input)  # type: ignore[no-any-return]
        return self._forward(self.linear_op, input)

    def _forward(self, linear_op: LinearOp, input: Tensor) -> Tensor:
        # The parameters were checked when the layer was made: only the input is left.
        weight = self.weight
        linear_op.check(input, weight)
        blocks = eigen_blocks(linear_op.outputs(weight), self.rank, linear_op.groups)
        eigenvalues = self.effective_eigenvalues()
        ready = linear_op.prepare(input)
        return add_squares(linear_op, blocks, ready, weight, self.bias, eigenvalues, self.recompute)

    def responses(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The parts of the output.

        Returns:
            The linear part w'x + b of each neuron (m channels), its weighted squares (m channels),
            and the features (the other channels): y is the sum of the first two.
        """
        linear_op, blocks = self.linear_op, self.blocks
        linear_op.check(input, self.weight)
        z = linear_op(linear_op.prepare(input), self.weight, self.bias)
        dim = linear_op.channel_dim
        heads, others = (
            torch.tensor(places, dtype=torch.long, device=z.device)
            for places in (blocks.heads, blocks.features)
        )
        linear, features = z.index_select(dim, heads), z.index_select(dim, others)
        # The squares are summed on their own: y minus its linear part would cancel.
        quadratic = reference.quadratic_part(z, self.effective_eigenvalues(), blocks, dim)
        return linear, quadratic.to(z.dtype), features

    @torch.no_grad()
    def to_dense(self, max_bytes: int = DENSE_LIMIT) -> tuple[Tensor, Tensor, Tensor]:
        """The y outputs as general quadratic neurons x'Mx + w'x + b over the n inputs of a neuron.

        A feature's bias enters: (q'x + b_f)^2 adds 2 lambda b_f q to w and lambda b_f^2 to b.

        Args:
            max_bytes: refuse if the matrices would need more memory than this.

        Returns:
            M (m, n, n), w (m, n), b (m).
        """
        n, m = self.num_inputs, self.num_neurons
        size = m * n * n * self.weight.element_size()
        if size > max_bytes:
            raise InputError(
                f"the dense form must fit max_bytes = {max_bytes:,}, but {m} matrices of {n} x "
                f"{n} need {size:,} "
                "bytes: raise max_bytes or use a smaller layer"
            )
        filters = self.linear_op.filters(self.weight)
        lam_all = self.effective_eigenvalues().to(filters.dtype)
        matrices = filters.new_zeros(m, n, n)
        w, b = filters.new_zeros(m, n), filters.new_zeros(m)
        for i, (channel, size, eigen) in enumerate(self.blocks.table):
            lam = lam_all[eigen : eigen + size - 1]
            q = filters[channel + 1 : channel + size]
            matrices[i] = q.T @ (lam.unsqueeze(1) * q)
            w[i] = filters[channel]
            if self.bias is not None:
                b_f = self.bias[channel + 1 : channel + size]
                w[i] += 2 * (lam * b_f) @ q
                b[i] = self.bias[channel] + (lam * b_f * b_f).sum()
        return matrices, w, b

    @classmethod
    def from_linear(
        cls: type[Self],
        module: nn.Module,
        rank: int = 9,
        *,
        normalize: bool = False,
        recompute: bool = False,
    ) -> Self:
        """A layer that computes what `module` computes: its eigenvalues are zero.

        Weight and bias are the same parameter objects.

        Args:
            module: the torch layer of this kind.
            rank: the number of features of a neuron.
            normalize: the layer's option `normalize`.
            recompute: the layer's option `recompute`.

        Returns:
            The new layer, in the training mode of `module`.

        Raises:
            InputTypeError: if `module` is another kind of layer.
        """
        expected = cls.linear_class
        if not isinstance(module, expected):
            raise InputTypeError(
                f"{cls.__name__}.from_linear takes a torch.nn.{expected.__name__}, got "
                f"{type(module).__name__}: use "
                "quadric.make_layer for other layers"
            )
        check_plain_parameters(module)
        weight: nn.Parameter = module.weight  # type: ignore[assignment]
        has_bias = module.bias is not None
        new = cls(
            **cls.geometry_of(module),
            bias=has_bias,
            rank=rank,
            normalize=normalize,
            recompute=recompute,
            device="meta",
            dtype=weight.dtype,
        )
        new.weight = weight
        if has_bias:
            new.bias = module.bias  # type: ignore[assignment]
        zeros = torch.zeros(new.eigenvalues.shape, device=weight.device, dtype=weight.dtype)
        new.eigenvalues = nn.Parameter(zeros)
        new.train(module.training)
        return new

    def is_linear(self) -> bool:
        return not self.eigenvalues.is_meta and not bool(self.eigenvalues.any())

    def linear_start(self, weight: Tensor) -> dict[str, Tensor]:
        shape = self.eigenvalues.shape
        return {"eigenvalues": torch.zeros(shape, device=weight.device, dtype=weight.dtype)}

    def extra_repr(self) -> str:
        text = self.linear_repr() + f", rank={self.rank}, num_neurons={self.num_neurons}"
        if self.eigenvalue_init != "zeros":
            text += f", eigenvalue_init={self.eigenvalue_init!r}"
        if self.normalize:
            text += ", normalize=True"
        if self.recompute:
            text += ", recompute=True"
        return text
