"""From a dense quadratic form to eigenvectors and eigenvalues, and back.

Section III-A of the paper in three steps. Lemma 1: ``x'Mx = x'Sx`` with ``S = (M + M')/2``, so
only the symmetric part of M matters. Spectral theorem: ``S = Q L Q'`` with orthonormal Q. Top-k:
keep the k eigenvalues of largest magnitude; by Eckart-Young-Mirsky no matrix of rank k is nearer to
S in the Frobenius norm.

The error is measured on S, not on M: the antisymmetric part of M never reaches an output.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from quadric.errors import InputError, InputTypeError
from quadric.support.checks import check_size


class Decomposition(NamedTuple):
    """The best rank-k approximation ``Q diag(eigenvalues) Q'`` of a quadratic form.

    Attributes:
        basis: Q, orthonormal columns, of shape ``(*, n, k)``.
        eigenvalues: largest magnitude first, of shape ``(*, k)``.
        error: Frobenius norm of what was dropped from the symmetric part, of shape ``(*)``.
    """

    basis: Tensor
    eigenvalues: Tensor
    error: Tensor

    @property
    def relative_error(self) -> Tensor:
        """The error as a fraction of the symmetric part's norm, 0 to 1 (0 for the zero form)."""
        # In an orthonormal basis, norm(S)^2 is the sum of all squared eigenvalues.
        parts = torch.cat([self.eigenvalues, self.error.unsqueeze(-1)], dim=-1)
        # Relative to the largest part first, so that no square overflows or vanishes.
        scale = parts.detach().abs().amax(dim=-1, keepdim=True)
        parts = parts / torch.where(scale > 0, scale, 1)
        norm = torch.linalg.vector_norm(parts, dim=-1)
        return parts[..., -1] / torch.where(norm > 0, norm, 1)


def decompose(M: Tensor, rank: int) -> Decomposition:
    """Approximate quadratic forms by their `rank` eigenvalues of largest magnitude.

    Computed in float64 and returned in the dtype of `M`, or in float32 if that is a half-precision
    dtype. The sign of an eigenvector is free; here its largest component is positive, so that
    features are the same on every machine. Differentiable as ``torch.linalg.eigh`` is: where the
    eigenvalues are distinct.

    Args:
        M: quadratic forms of shape ``(*, n, n)``, symmetric or not.
        rank: the number of eigenvalues to keep, 1 to n.

    Examples:
        >>> M = torch.tensor([[2.0, 2.0], [0.0, 2.0]])  # 2 x0^2 + 2 x0 x1 + 2 x1^2
        >>> basis, eigenvalues, error = decompose(M, rank=1)
        >>> eigenvalues, error
        (tensor([3.]), tensor(1.))
        >>> reconstruct(basis, eigenvalues)
        tensor([[1.5000, 1.5000],
                [1.5000, 1.5000]])
    """
    _check_form(M)
    _check_rank(rank, M.shape[-1])
    # MPS has no float64.
    work = M.to("cpu" if M.device.type == "mps" else M.device, torch.float64)
    symmetric = 0.5 * work + 0.5 * work.mT
    values, vectors = torch.linalg.eigh(symmetric)
    # Stable, so that eigenvalues of equal magnitude always come in the same order.
    order = values.detach().abs().sort(dim=-1, descending=True, stable=True).indices
    values = values.gather(-1, order)
    kept = order[..., :rank].unsqueeze(-2).expand(*M.shape[:-1], rank)
    basis = vectors.gather(-1, kept)
    largest = basis.detach().abs().argmax(dim=-2, keepdim=True)
    basis = basis * torch.where(basis.detach().gather(-2, largest) < 0, -1.0, 1.0)
    error = torch.linalg.vector_norm(values[..., rank:], dim=-1)
    target = {"device": M.device, "dtype": torch.promote_types(M.dtype, torch.float32)}
    return Decomposition(basis.to(**target), values[..., :rank].to(**target), error.to(**target))


def reconstruct(basis: Tensor, eigenvalues: Tensor) -> Tensor:
    """Multiply out ``Q diag(eigenvalues) Q'``: the inverse of :func:`decompose`, up to its rank.

    Args:
        basis: Q of shape ``(*, n, k)``; its columns need not be orthonormal.
        eigenvalues: a tensor ``(*, k)``; leading dimensions broadcast against those of `basis`.

    Returns:
        Symmetric matrices of shape ``(*, n, n)``.
    """
    for name, tensor in (("basis", basis), ("eigenvalues", eigenvalues)):
        if not isinstance(tensor, Tensor):
            raise InputTypeError(
                f"{name} must be a tensor, got {type(tensor).__name__}: "
                "pass the parts of decompose(M, rank)."
            )
    rows, columns = basis.shape[:-2], eigenvalues.shape[:-1]
    leading = zip(reversed(rows), reversed(columns), strict=False)
    fits = basis.dim() >= 2 and eigenvalues.dim() >= 1 and basis.shape[-1] == eigenvalues.shape[-1]
    if not fits or any(one != other and 1 not in (one, other) for one, other in leading):
        raise InputError(
            "basis must be (*, n, k) and eigenvalues (*, k), with leading dimensions that "
            f"broadcast, got shapes {tuple(basis.shape)} and {tuple(eigenvalues.shape)}: pass the "
            "parts of decompose(M, rank)."
        )
    return (basis * eigenvalues.unsqueeze(-2)) @ basis.mT


def _check_form(M: Tensor) -> None:
    if not isinstance(M, Tensor):
        raise InputTypeError(
            f"M must be a tensor, got {type(M).__name__}: convert it with torch.as_tensor(M)."
        )
    if not M.is_floating_point():
        kind = "complex" if M.is_complex() else "integer"
        remedy = "use M.real" if M.is_complex() else "use M.float()"
        raise InputTypeError(f"M must have a real floating dtype, got {kind} {M.dtype}: {remedy}.")
    if M.dim() < 2 or M.shape[-1] != M.shape[-2] or M.shape[-1] == 0:
        raise InputError(
            f"M must hold square matrices in its last two dimensions, got shape {tuple(M.shape)}: "
            "give one n x n matrix per neuron, n >= 1."
        )
    if not bool(torch.isfinite(M).all()):
        bad = int((~torch.isfinite(M)).sum())
        raise InputError(
            f"M must be finite, got {bad} NaN or infinite of {M.numel()} entries: "
            "mend them first, for example with torch.nan_to_num(M)."
        )


def _check_rank(rank: int, n: int) -> None:
    if check_size("rank", rank) > n:
        raise InputError(
            f"rank must be <= n = {n}, the size of M, got {rank}: "
            f"rank={n} reproduces M's symmetric part exactly."
        )
