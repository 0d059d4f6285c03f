"""decompose and reconstruct: Lemma 1, optimality among rank-k matrices, round trips, refusals."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from quadric.decomposition import Decomposition, decompose, reconstruct
from tests.refusals import Check, refusals


def _forms(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, shape[-1], generator=generator, dtype=torch.float64).to(dtype)


def test_full_rank_computes_the_same_form():
    M = _forms(6)
    x = torch.randn(50, 6, dtype=torch.float64)
    basis, eigenvalues, error = decompose(M, rank=6)
    expected = torch.einsum("bi,ij,bj->b", x, M, x)
    assert_close(((x @ basis) ** 2 * eigenvalues).sum(-1), expected)
    assert error.item() == 0.0


def test_reconstruct_is_the_inverse_up_to_the_symmetric_part():
    M = _forms(3, 2, 5)
    S = (M + M.mT) / 2
    assert_close(reconstruct(*decompose(M, rank=5)[:2]), S)
    # and a matrix that has the rank already comes back from fewer eigenvalues
    low = reconstruct(_forms(5)[:, :2], torch.tensor([2.0, -3.0], dtype=torch.float64))
    again = decompose(low, rank=2)
    assert_close(reconstruct(again.basis, again.eigenvalues), low)
    assert_close(again.error, torch.zeros((), dtype=torch.float64), atol=1e-12, rtol=0)


def test_basis_is_orthonormal_and_eigenvalues_fall_in_magnitude():
    result = decompose(_forms(4, 7), rank=3)
    assert isinstance(result, Decomposition)
    assert result.basis.shape == (4, 7, 3)
    assert result.eigenvalues.shape == (4, 3)
    assert result.error.shape == (4,)
    assert_close(result.basis.mT @ result.basis, torch.eye(3, dtype=torch.float64).expand(4, 3, 3))
    magnitudes = result.eigenvalues.abs()
    assert (magnitudes[:, :-1] >= magnitudes[:, 1:]).all()


def test_largest_magnitude_is_kept_whatever_its_sign():
    M = torch.diag(torch.tensor([1.0, -5.0, 3.0, 0.5]))
    result = decompose(M, rank=2)
    assert_close(result.eigenvalues, torch.tensor([-5.0, 3.0]))
    assert_close(result.basis, torch.eye(4)[:, [1, 2]])
    assert_close(result.error, torch.tensor(1.25).sqrt())


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_error_is_the_distance_to_the_symmetric_part(rank):
    M = _forms(3, 5)
    S = (M + M.mT) / 2
    result = decompose(M, rank)
    distance = torch.linalg.matrix_norm(S - reconstruct(result.basis, result.eigenvalues))
    assert_close(result.error, distance)
    assert_close(result.relative_error, distance / torch.linalg.matrix_norm(S))


def test_antisymmetric_part_does_not_count():
    A = _forms(4)
    result = decompose(A - A.mT, rank=1)
    zero = torch.zeros((), dtype=torch.float64)
    assert_close(result.error, zero, atol=1e-14, rtol=0)
    S = A + A.mT
    assert_close(decompose(S + 10 * (A - A.mT), 2).error, decompose(S, 2).error)


def test_relative_error_is_zero_for_the_zero_form_and_safe_for_extreme_scales():
    assert decompose(torch.zeros(3, 3), 1).relative_error.item() == 0.0
    M = torch.diag(torch.tensor([4.0, 3.0]))
    for scale in (1e-30, 1.0, 1e30):
        assert_close(decompose(scale * M, 1).relative_error, torch.tensor(0.6))


@pytest.mark.parametrize(
    ("dtype", "returned"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_dtype_comes_back_but_never_below_float32(dtype, returned):
    M = _forms(8, dtype=dtype)
    result = decompose(M, 8)
    assert {part.dtype for part in result} == {returned}
    assert result.relative_error.dtype is returned
    rebuilt = reconstruct(result.basis, result.eigenvalues)
    # The result is exact for M as given: only the symmetric part is rounded, and not by us.
    S = (M.double() + M.double().mT) / 2
    assert_close(rebuilt.double(), S, atol=1e-5, rtol=0)


def test_float32_is_decomposed_in_float64():
    # Eigenvalues 1 and 1e-7 in a rotated basis: eigh in float32 would miss the small one.
    Q, _ = torch.linalg.qr(_forms(2))
    M = (Q * torch.tensor([1.0, 1e-7], dtype=torch.float64)) @ Q.mT
    float32 = M.float()
    exact = torch.linalg.eigvalsh(float32.double())
    assert_close(decompose(float32, 2).eigenvalues, exact.flip(0).float(), atol=0, rtol=1e-6)


def test_signs_are_fixed_so_that_features_repeat():
    M = _forms(20, 6)
    basis = decompose(M, 4).basis
    largest = basis.abs().argmax(dim=-2, keepdim=True)
    assert (basis.gather(-2, largest) > 0).all()
    assert_close(decompose(M.flip(0), 4).basis.flip(0), basis)


@pytest.mark.parametrize("rank", [1, 3, 4])
def test_gradients_flow_through_every_part(rank):
    M = _forms(2, 4, seed=8).requires_grad_()

    def parts(form: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = decompose(form, rank)
        rebuilt = reconstruct(result.basis, result.eigenvalues)
        return rebuilt, result.eigenvalues, result.error, result.relative_error

    assert torch.autograd.gradcheck(parts, (M,))
    loss = decompose(M, rank).basis.pow(4).sum()
    (gradient,) = torch.autograd.grad(loss, M)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().sum() > 0


def test_reconstruct_broadcasts_a_shared_basis():
    basis, eigenvalues = _forms(4)[:, :2], _forms(3)[:, :2]
    together = reconstruct(basis, eigenvalues)
    assert together.shape == (3, 4, 4)
    for one, row in zip(together, eigenvalues, strict=True):
        assert_close(one, basis @ torch.diag(row) @ basis.T)


EYE, PAIR = torch.eye(3), torch.ones(2, 1)


@refusals(
    (lambda: decompose([[1.0]], 1), TypeError, "M must be a tensor, got list: .*as_tensor"),
    (lambda: decompose(EYE.long(), 1), TypeError, "got integer torch.int64: use M.float"),
    (lambda: decompose(EYE.cfloat(), 1), TypeError, "got complex torch.complex64: use M"),
    (lambda: decompose(torch.ones(2, 3), 1), ValueError, r"square matrices .* got shape \(2, 3\)"),
    (lambda: decompose(torch.ones(4), 1), ValueError, r"square matrices .* got shape \(4,\)"),
    (lambda: decompose(torch.ones(0, 0), 1), ValueError, r"square matrices .* got shape \(0, 0\)"),
    (lambda: decompose(EYE / 0, 1), ValueError, "M must be finite, got 9 .* of 9 entries: mend"),
    (lambda: decompose(EYE, 0), ValueError, "rank must be >= 1, got 0"),
    (lambda: decompose(EYE, 4), ValueError, "rank must be <= n = 3, .* got 4: rank=3 rep"),
    (lambda: decompose(EYE, True), TypeError, "rank must be .* got True of type bool"),
    (lambda: decompose(EYE, 2.0), TypeError, "rank must be .* got 2.0 of type float"),
    (lambda: reconstruct([[1.0]], PAIR[0]), TypeError, "basis must be a tensor, got list"),
    (lambda: reconstruct(PAIR, 3.0), TypeError, "eigenvalues must be a tensor, got float"),
    (
        lambda: reconstruct(PAIR[0], PAIR[0]),
        ValueError,
        r"basis must be .* shapes \(1,\) and \(1,\)",
    ),
    (
        lambda: reconstruct(PAIR, PAIR.sum()),
        ValueError,
        r"shapes \(2, 1\) and \(\): pass the parts",
    ),
    (lambda: reconstruct(EYE[:, :2], EYE[0]), ValueError, r"shapes \(3, 2\) and \(3,\)"),
    (lambda: reconstruct(EYE.repeat(2, 1, 1), EYE.repeat(4, 1)), ValueError, "that broadcast, got"),
)
def test_refusals(check: Check):
    check()
