"""The shared neuron keeps the promises of the eigen neuron; only its memory differs, as stated."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import quadric
from quadric import functional as QF
from tests import reference
from tests.conftest import assert_close
from tests.nn.test_memory import IN_PLACE, each_recompute, retained_bytes, saved_storages
from tests.zoo.cases import F64, KIND_IDS, KINDS, Kind

each_kind = pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)


def shared(kind: Kind, rank: int = 3, std: float = 0.5, **options: Any) -> Any:
    layer: Any = quadric.make_layer(
        kind.plain, *kind.args, **kind.options, dtype=F64, neuron="shared", rank=rank, **options
    )
    nn.init.normal_(layer.eigenvalues, std=std)
    return layer


def group_sizes(layer: Any) -> list[int]:
    """How many outputs each group has, in channel order."""
    groups = getattr(layer, "groups", 1)
    full, rest = divmod(layer.num_outputs // groups, layer.rank)
    return ([layer.rank] * full + ([rest] if rest else [])) * groups


def matrices(layer: Any) -> list[Tensor]:
    """The matrix L of each group: views of the eigenvalues."""
    sizes = group_sizes(layer)
    parts = layer.eigenvalues.split([s * s for s in sizes])
    return [part.reshape(s, s) for part, s in zip(parts, sizes, strict=True)]


def plain_formula(kind: Kind, layer: Any, x: Tensor) -> Tensor:
    """torch's linear layer, then z + L z^2 with the block-diagonal L, in torch's own operators."""
    values = {"weight": layer.weight, "bias": layer.bias}
    z = torch.func.functional_call(kind.make_plain(), values, (x,))
    dim = -1 if kind.plain is nn.Linear else 1
    squares = z.movedim(dim, -1).square() @ torch.block_diag(*matrices(layer)).T
    return z + squares.movedim(-1, dim)


# ------------------------------------------------------------------------------------------------
# What it is: eigen and square are masks of its matrix
# ------------------------------------------------------------------------------------------------


def masked(layer: Any, keep: Callable[[int, int], bool]) -> None:
    """Zeroes the eigenvalues L_ij of every group but those that `keep(i, j)` chooses."""
    with torch.no_grad():
        for matrix in matrices(layer):
            for i, j in itertools.product(range(len(matrix)), repeat=2):
                matrix[i, j] *= keep(i, j)


@each_kind
@pytest.mark.parametrize("k", [2, 3, 5])
def test_its_first_row_without_the_own_square_is_eigen_of_rank_k_minus_1(
    kind: Kind, k: int
) -> None:
    layer = shared(kind, k)
    masked(layer, lambda i, j: i == 0 and j != 0)
    eigen: Any = quadric.make_layer(
        kind.plain, *kind.args, **kind.options, dtype=F64, neuron="eigen", rank=k - 1
    )
    with torch.no_grad():
        eigen.weight.copy_(layer.weight)
        eigen.bias.copy_(layer.bias)
        eigen.eigenvalues.copy_(torch.cat([matrix[0, 1:] for matrix in matrices(layer)]))
    x = kind.input()
    assert_close(layer(x), eigen(x))
    assert not torch.allclose(layer(x), layer.responses(x)[0])


@each_kind
def test_its_diagonal_is_square(kind: Kind) -> None:
    layer = shared(kind, 3)
    masked(layer, lambda i, j: i == j)
    square: Any = quadric.make_layer(
        kind.plain, *kind.args, **kind.options, dtype=F64, neuron="square"
    )
    with torch.no_grad():
        square.weight.copy_(layer.weight)
        square.bias.copy_(layer.bias)
        square.eigenvalues.copy_(torch.cat([matrix.diagonal() for matrix in matrices(layer)]))
    x = kind.input()
    assert_close(layer(x), square(x))
    assert torch.count_nonzero(square.eigenvalues) == layer.num_outputs


@pytest.mark.parametrize(("channels", "rank", "groups"), [(8, 8, 1), (13, 4, 1), (20, 3, 2)])
def test_number_of_eigenvalues(channels: int, rank: int, groups: int) -> None:
    layer: Any = quadric.make_layer(
        nn.Conv1d, 4, channels, 1, groups=groups, neuron="shared", rank=rank
    )
    assert layer.eigenvalues.shape == (reference.shared_eigenvalues(channels, rank, groups),)


def test_every_output_is_a_quadratic_form_over_the_filters_of_its_group() -> None:
    layer = shared(KINDS[0], rank=3, std=1.0)
    with torch.no_grad():
        layer.bias.zero_()
    x = torch.randn(4, dtype=F64)
    for i in range(7):
        group = [j for j in range(7) if j // 3 == i // 3]
        start = (i // 3) * 9 + (i % 3) * len(group)
        row = layer.eigenvalues[start : start + len(group)]
        form = sum(
            lam * torch.outer(layer.weight[j], layer.weight[j])
            for lam, j in zip(row, group, strict=True)
        )
        assert_close(layer(x)[i], x @ form @ x + layer.weight[i] @ x)


def test_functional_form_never_changes_its_argument() -> None:
    out = torch.randn(2, 5, 3, dtype=F64)
    lam = torch.randn(13, dtype=F64)
    before = out.clone()
    mixed = QF.add_shared(out, lam, rank=3)
    torch.testing.assert_close(out, before, rtol=0, atol=0)
    for n in range(2):
        for place in range(3):
            expected = reference.shared(out[n, :, place], torch.eye(5, dtype=F64), None, lam, 3)
            assert_close(mixed[n, :, place], expected)
    with pytest.raises(ValueError, match="vector of length 13 for 5 outputs"):
        QF.add_shared(out, lam[:-1], rank=3)


# ------------------------------------------------------------------------------------------------
# Memory
# ------------------------------------------------------------------------------------------------


def networks(behind: nn.Module, **options: Any) -> tuple[nn.Module, nn.Module, Tensor]:
    conv = nn.Conv2d(4, 16, 3, padding=1)
    layer = quadric.make_layer(conv, neuron="shared", rank=8, **options)
    return nn.Sequential(conv, behind), nn.Sequential(layer, behind), torch.randn(4, 4, 12, 12)


@pytest.mark.parametrize(
    "behind", [nn.BatchNorm2d(16), nn.GELU(), nn.SiLU()], ids=["batch_norm", "gelu", "silu"]
)
@each_recompute
def test_keeps_one_output_more_or_none(behind: nn.Module, recompute: bool) -> None:
    linear, layer, x = networks(behind, recompute=recompute)
    output, lam = layer(x).nbytes, layer[0].eigenvalues.nbytes  # type: ignore[index]
    theirs, ours = saved_storages(lambda: linear(x)), saved_storages(lambda: layer(x))
    more = sum(ours.values()) - sum(theirs.values())
    assert more == lam + (0 if recompute else output)
    kept = retained_bytes(lambda: layer(x)) - retained_bytes(lambda: linear(x))
    assert kept == pytest.approx(0 if recompute else output, abs=output / 8)


@each_recompute
def test_keeps_nothing_without_gradients(recompute: bool) -> None:
    linear, layer, x = networks(nn.Identity(), recompute=recompute)
    with torch.no_grad():
        assert retained_bytes(lambda: layer(x)) == retained_bytes(lambda: linear(x))


# ------------------------------------------------------------------------------------------------
# In-place activations, double backward, checkpoint
# ------------------------------------------------------------------------------------------------


@each_kind
@each_recompute
@pytest.mark.parametrize("name", list(IN_PLACE))
def test_gradients_behind_an_in_place_operation(kind: Kind, name: str, recompute: bool) -> None:
    layer, x = shared(kind, recompute=recompute), kind.input().requires_grad_()
    change, inputs = IN_PLACE[name], [x, *layer.parameters()]
    out, expected_out = change(layer(x)), change(plain_formula(kind, layer, x))
    assert_close(out, expected_out)
    seed = torch.randn_like(out)
    got = torch.autograd.grad(out, inputs, seed)
    for one, other in zip(got, torch.autograd.grad(expected_out, inputs, seed), strict=True):
        assert_close(one, other)


@each_kind
@each_recompute
def test_double_backward(kind: Kind, recompute: bool) -> None:
    layer, x = shared(kind, recompute=recompute), kind.input().requires_grad_()
    inputs = [x, *layer.parameters()]

    def penalty(out: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(out.pow(3).sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(g.pow(2).sum() for g in first), inputs)

    expected = penalty(plain_formula(kind, layer, x).sin())
    for one, other in zip(penalty(layer(x).sin_()), expected, strict=True):
        assert_close(one, other)


@each_recompute
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(recompute: bool, use_reentrant: bool) -> None:
    kind = KINDS[2]
    layer, x = shared(kind, recompute=recompute), kind.input().requires_grad_()
    inputs = [x, *layer.parameters()]
    expected = torch.autograd.grad(F.relu(plain_formula(kind, layer, x)).sum(), inputs)
    checkpoint(lambda x: F.relu(layer(x), True), x, use_reentrant=use_reentrant).sum().backward()
    for tensor, value in zip(inputs, expected, strict=True):
        assert_close(tensor.grad, value)


@each_recompute
@pytest.mark.parametrize("frozen", ["weight", "eigenvalues", "input", "weight and input"])
def test_partly_frozen(frozen: str, recompute: bool) -> None:
    kind = KINDS[1]
    layer, x = shared(kind, recompute=recompute), kind.input()
    tensors = {"input": x, **dict(layer.named_parameters())}
    for name, tensor in tensors.items():
        tensor.requires_grad_(name not in frozen)
    wanted = [tensor for tensor in tensors.values() if tensor.requires_grad]
    got = torch.autograd.grad(layer(x).relu_().sum(), wanted)
    expected = torch.autograd.grad(plain_formula(kind, layer, x).relu().sum(), wanted)
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other)


@each_recompute
def test_compiles_in_one_graph_with_gradients(recompute: bool) -> None:
    torch._dynamo.reset()
    kind = KINDS[2]
    layer, x = shared(kind, recompute=recompute), kind.input().requires_grad_()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    inputs = [x, *layer.parameters()]
    expected = torch.autograd.grad(plain_formula(kind, layer, x).sum(), inputs)
    for one, other in zip(torch.autograd.grad(compiled(x).sum(), inputs), expected, strict=True):
        assert_close(one, other)


def test_vmap_and_jacobian() -> None:
    layer, x = shared(KINDS[0]), torch.randn(4, dtype=F64)
    jacobian = torch.func.jacrev(layer)(x)
    expected = torch.autograd.functional.jacobian(lambda x: plain_formula(KINDS[0], layer, x), x)
    assert_close(jacobian, expected)
    batch = torch.randn(5, 4, dtype=F64)
    assert_close(torch.func.vmap(layer)(batch), layer(batch))


# ------------------------------------------------------------------------------------------------
# Half precision, loading, starts
# ------------------------------------------------------------------------------------------------


@each_recompute
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_squares_are_summed_in_float32(dtype: torch.dtype, recompute: bool) -> None:
    """z^2 = 90,000 does not fit float16, the sums of positive and negative squares do."""
    layer: Any = quadric.make_layer(
        nn.Linear, 1, 4, bias=False, neuron="shared", rank=4, recompute=recompute, dtype=dtype
    )
    with torch.no_grad():
        layer.weight.fill_(300)
        layer.eigenvalues.copy_(torch.tensor([1.0, -1.0, 1.0, -1.0]).repeat(4))
    x = torch.ones(1, 1, dtype=dtype, requires_grad=True)
    out = layer(x)
    torch.testing.assert_close(out, torch.full((1, 4), 300.0, dtype=dtype), rtol=0, atol=0)
    out.sum().backward()
    assert torch.isfinite(x.grad).all()


@each_recompute
def test_autocast(recompute: bool) -> None:
    kind = KINDS[2]
    layer, x = shared(kind, recompute=recompute).float(), kind.input().float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    got = torch.autograd.grad(out.float().sum(), [x, *layer.parameters()])
    exact = torch.autograd.grad(layer(x).sum(), [x, *layer.parameters()])
    for one, other in zip(got, exact, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).abs().max() < 0.05 * (1 + other.abs().max())


def test_starts() -> None:
    made = quadric.make_layer(nn.Linear, 4, 16, neuron="shared", eigenvalue_init="random_sign")
    assert torch.count_nonzero(made.eigenvalues) == made.eigenvalues.numel()  # type: ignore[arg-type]
    linear = quadric.make_layer(
        nn.Linear(4, 16), neuron="shared", eigenvalue_init="random_sign", init="linear"
    )
    assert torch.count_nonzero(linear.eigenvalues) == 0  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="eigenvalue_init"):
        quadric.make_layer(nn.Linear, 4, 16, neuron="shared", eigenvalue_init="nonsense")


@pytest.mark.parametrize("neuron", ["shared", "square"])
def test_eigenvalues_of_the_wrong_length(neuron: str) -> None:
    layer: Any = quadric.make_layer(nn.Linear, 4, 16, neuron=neuron)
    number = layer.eigenvalues.numel()
    layer.eigenvalues = nn.Parameter(torch.zeros(number + 1))
    with pytest.raises(ValueError, match=rf"\b{number}\b.*\b{number + 1}\b"):
        layer(torch.randn(3, 4))


def test_channels_last_is_kept() -> None:
    layer: Any = quadric.make_layer(nn.Conv2d, 4, 16, 3, padding=1, neuron="shared")
    nn.init.normal_(layer.eigenvalues)
    x = torch.randn(2, 4, 6, 6)
    last = layer(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(last, layer(x), rtol=1e-4, atol=1e-4)


def test_learns_what_a_linear_layer_cannot() -> None:
    """Half a second of training: x1*x2, which no linear layer of the same width represents."""
    torch.manual_seed(0)
    x = torch.randn(512, 2)
    target = x[:, :1] * x[:, 1:]

    def error(layer: nn.Module) -> float:
        model = nn.Sequential(layer, nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters(), 0.03)
        for _ in range(200):
            loss = F.mse_loss(model(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    assert error(quadric.make_layer(nn.Linear(2, 4), neuron="shared", rank=4)) < 0.02
    assert error(nn.Linear(2, 4)) > 0.5
