"""Neurons over a matrix product, drop-ins for `nn.Linear`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from quadric.decomposition import decompose
from quadric.errors import InputError, InputTypeError
from quadric.layers.eigen_layer import EigenLayer, arguments_of
from quadric.layers.layer import QuadraticLayer
from quadric.layers.squares import EigenvalueInit
from quadric.ops.linear_ops import DenseOp


class NeuronLinear(QuadraticLayer):
    """A layer of the neuron `neuron` in place of `nn.Linear`.

    It takes torch's arguments, then `neuron`, its options, `init` ("published", "linear" or another
    start of the neuron), `device` and `dtype`.
    """

    linear_class = nn.Linear
    geometry_names = ("in_features", "out_features")

    in_features: int
    out_features: int

    def _make_linear_op(self) -> DenseOp:
        return DenseOp()

    @property
    def num_outputs(self) -> int:
        return self.out_features

    @property
    def num_inputs(self) -> int:
        return self.in_features

    def weight_shape(self, filters: int | None = None) -> tuple[int, ...]:
        return (self.out_features if filters is None else filters, self.in_features)


class QuadraticLinear(EigenLayer, NeuronLinear):
    """A layer of eigen neurons in place of `nn.Linear`.

    Outputs come neuron by neuron, `[y_0, f_01 … f_0k, y_1, …]` with `f = Q'x + b_f` and `y = w'x +
    b + sum_j lambda_j f_j^2`. There are ceil(out_features / (rank + 1)) neurons; the last takes the
    outputs that are left, at a smaller rank. With eigenvalues zero, as at the start, the layer is
    exactly `nn.Linear`.

    Args:
        in_features: size of each input.
        out_features: size of each output, y and features together.
        bias: whether each output has a bias; that of a feature lies inside the square.
        rank: k, the number of features of a neuron.
        eigenvalue_init: "zeros", "random_sign", or a function that fills the eigenvalues in place.
        normalize: divide each square by |q|^2, so that the eigenvectors count as unit vectors, as
            in the paper's derivation; weight decay on q then no longer shrinks the quadratic part.
        recompute: compute the linear map again in backward instead of keeping the output: less
            memory where what follows does not keep it anyway (ReLU, a residual sum), more time.
            Under torch.compile it is the compiler that chooses.
        device: the device of the parameters.
        dtype: the dtype of the parameters.

    Shape:
        Input `(*, in_features)`, output `(*, out_features)`.

    Attributes:
        weight: (out_features, in_features), rows w and Q, neuron by neuron; a linear checkpoint
            loads.
        bias: (out_features) or None.
        eigenvalues: one for each feature output, in order.

    Examples:
        >>> layer = QuadraticLinear(2, 3, rank=2)
        >>> layer.num_neurons, layer.neuron_ranks
        (1, (2,))
        >>> layer(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        rank: int = 9,
        eigenvalue_init: EigenvalueInit = "zeros",
        normalize: bool = False,
        recompute: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(**arguments_of(locals()))

    @classmethod
    def from_dense(
        cls, M: Tensor, w: Tensor, b: Tensor | None = None, rank: int | None = None
    ) -> QuadraticLinear:
        """A layer whose y outputs are the quadratic neurons x'Mx + w'x + b.

        Each neuron is cut to its top `rank` eigenpairs.

        Args:
            M: (m, n, n), one matrix for each neuron, or (n, n) for one; only the symmetric part
                counts.
            w: (m, n) or (n).
            b: (m) or a scalar; None for a layer without bias.
            rank: the number of eigenpairs to keep; by default n, all of them.

        Returns:
            A layer of m neurons with `rank` features each.

        Raises:
            InputError: if the shapes do not fit each other, or a number is not finite.
        """
        for name, tensor in (("M", M), ("w", w), ("b", b)):
            if not isinstance(tensor, Tensor) and not (name == "b" and tensor is None):
                raise InputTypeError(
                    f"{name} must be a tensor, got {type(tensor).__name__}: convert it with "
                    f"torch.as_tensor({name})"
                )
            if name != "M" and tensor is not None and not bool(torch.isfinite(tensor).all()):
                raise InputError(f"{name} must be finite, got NaN or infinite entries: mend them")
        if M.dim() == 2:
            M, w = M.unsqueeze(0), w.unsqueeze(0) if w.dim() == 1 else w
            b = b.unsqueeze(0) if b is not None and b.dim() == 0 else b
        if M.dim() != 3:
            raise InputError(
                f"M must have shape (neurons, n, n) or (n, n), got {tuple(M.shape)}: stack one "
                "matrix for each neuron"
            )
        m, n = M.shape[0], M.shape[-1]
        parts = decompose(M, n if rank is None else rank)
        k = parts.eigenvalues.shape[-1]
        if w.shape != (m, n) or (b is not None and b.shape != (m,)):
            got = f"w {tuple(w.shape)}" + (f", b {tuple(b.shape)}" if b is not None else "")
            raise InputError(
                f"w and b must have shapes {(m, n)} and {(m,)} for M of shape {tuple(M.shape)}, "
                f"got {got}: give one row for each neuron"
            )
        layer = cls(n, m * (k + 1), bias=b is not None, rank=k, device=M.device, dtype=M.dtype)
        with torch.no_grad():
            rows = torch.cat([w.unsqueeze(1), parts.basis.transpose(-1, -2)], 1)
            layer.weight.copy_(rows.flatten(0, 1))
            layer.eigenvalues.copy_(parts.eigenvalues.flatten())
            if b is not None and layer.bias is not None:
                nn.init.zeros_(layer.bias)
                layer.bias[:: k + 1] = b
        return layer
