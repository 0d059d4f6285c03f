"""The quadratic form of each neuron: its matrix, the true eigenvalues of that and their number.

The parameters that are called eigenvalues multiply squares of features q'x whose q were trained,
too, and are neither orthogonal nor of unit length. So the eigenvalues of a neuron's matrix
M = sum_j lambda_j q_j q_j' are other numbers. They are computed here.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.layers import NeuronConv, QuadraticLayer

LIMIT = 3e10
"""Multiply-accumulates above which the eigenvalues of full matrices are not computed: outputs times
the cube of the inputs. They take about a minute on one core."""
_CHUNK = 1 << 24  # numbers in the matrices that are held at once


def dense_form(layer: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs of a layer as polynomials x'Mx + w'x + b of the inputs of one position."""
    kind = getattr(layer, "neuron", type(layer).__name__)
    return polynomial(
        *_neuron_function(layer), f"a layer must compute {{}}, got the neuron {kind!r}"
    )


def polynomial(
    function: Callable[[Tensor], Tensor], inputs: int, refusal: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs of a function of one vector as x'Mx + w'x + b, all in float64."""
    zero = torch.zeros(inputs, dtype=torch.float64)
    matrices = torch.cat(list(_matrices(function, inputs)))
    weights, biases = torch.func.jacrev(function)(zero).detach(), function(zero).detach()
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(inputs, generator=draw, dtype=torch.float64) - 0.5
    expected = (matrices @ x) @ x + weights @ x + biases
    if not torch.allclose(function(x), expected, rtol=1e-8, atol=1e-10):
        what = refusal.format("a polynomial of degree two")
        raise InputError(f"{what}, which does not: there is no such formula")
    return matrices, weights, biases


@torch.no_grad()
def true_eigenvalues(layer: QuadraticLayer) -> list[Tensor]:
    """The eigenvalues of each quadratic neuron's matrix that need not be zero.

    For a neuron of another degree the matrix is that of the second derivatives at zero, halved.
    """
    if layer.blocks is not None:
        return _of_blocks(layer)
    function, inputs = _neuron_function(layer)
    outputs = layer.num_outputs
    if outputs * inputs**3 > LIMIT:
        raise InputError(
            f"the eigenvalues of {outputs} matrices of {inputs} x {inputs} would take minutes: "
            "choose a smaller layer"
        )
    spectra = []
    for matrices in _matrices(function, inputs):
        for values in torch.linalg.eigvalsh(matrices):
            floor = values.abs().max() * inputs * torch.finfo(values.dtype).eps
            spectra.append(values[values.abs() > floor])
    return spectra


def effective_rank(eigenvalues: Tensor) -> float:
    """How many eigenvalues matter: e to the entropy of their magnitudes (Roy and Vetterli 2007).

    Examples:
        >>> effective_rank(torch.tensor([2.0, -2.0, 0.0]))
        2.0
    """
    sizes = eigenvalues.abs().double()
    total = float(sizes.sum())
    if not total:
        return 0.0
    shares = sizes[sizes > 0] / total
    return math.exp(-float((shares * shares.log()).sum()))


def _of_blocks(layer: QuadraticLayer) -> list[Tensor]:
    """Of z + S z^2: with Q = U R, the eigenvalues of Q L Q' are those of the small R L R'."""
    blocks = layer.blocks
    assert blocks is not None
    weight: Tensor = layer.weight  # type: ignore[assignment]
    filters = layer.linear_op.filters(weight).detach().cpu().double()
    eigenvalues = layer.effective_eigenvalues().detach().cpu().double()
    star = blocks.shape == "star"
    spectra: list[Tensor] = []
    for channel, size, first in blocks.table:
        features = size - 1 if star else size
        if not features:
            continue
        q = filters[channel + size - features : channel + size]
        rows = eigenvalues[first : first + features * (1 if star else size)].view(-1, features)
        upper = torch.linalg.qr(q.T, mode="r").R
        small = upper @ (rows.unsqueeze(-1) * upper.T)
        spectra += list(torch.linalg.eigvalsh(small))
    return spectra


def _neuron_function(layer: nn.Module) -> tuple[Callable[[Tensor], Tensor], int]:
    """The layer at one position: a function of one vector, in float64; and its length."""
    twin = copy.deepcopy(layer).cpu().double().eval()
    if not isinstance(twin, (NeuronConv, nn.modules.conv._ConvNd)):
        return twin, int(twin.in_features)  # type: ignore[arg-type]
    if twin.transposed:
        raise InputError("a transposed convolution has no neuron at one position: choose another")
    # The kernel laid once upon an input of its own size.
    spatial = len(twin.kernel_size)
    twin.padding, twin.dilation, twin.padding_mode = (0,) * spatial, (1,) * spatial, "zeros"
    shape = (twin.in_channels, *twin.kernel_size)

    def function(x: Tensor) -> Tensor:
        out: Tensor = twin(x.view(shape))
        return out.flatten()

    return function, math.prod(shape)


def second_derivative(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """By reverse mode alone: not every operator, such as silu's derivative, has the other one."""
    return torch.func.jacrev(torch.func.jacrev(function))


def _matrices(function: Callable[[Tensor], Tensor], inputs: int) -> Iterator[Tensor]:
    """Half the second derivatives of some outputs at a time, (outputs, n, n) each."""
    zero = torch.zeros(inputs, dtype=torch.float64)
    outputs = function(zero).numel()
    step = max(1, _CHUNK // (inputs * inputs))
    for start in range(0, outputs, step):
        part = slice(start, start + step)
        with warnings.catch_warnings():  # full forms of convolutions have no faster way in torch
            warnings.filterwarnings("ignore", "There is a performance drop")
            second = second_derivative(lambda x, part=part: function(x)[part])(zero)
        yield second.detach() / 2
