"""A network of degree two, read: the eigenvectors of each output's quadratic form."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from quadric.analysis.forms import LIMIT, effective_rank, polynomial
from quadric.errors import InputError, InputTypeError
from quadric.support.checks import check_size
from quadric.support.modules import check_model, unwrapped


@dataclass(frozen=True, eq=False, repr=False)
class QuadraticForms:
    """The outputs of a network as x'Mx + w'x + b, with the eigenvectors of each M.

    An eigenvector v with eigenvalue e adds e (v'x)² to its output: whatever looks like v, or like
    its negative, speaks for the output if e is positive, and against it if e is negative.

    Attributes:
        matrices: M of each output, (outputs, n, n), symmetric, in float64.
        weights: w, (outputs, n).
        biases: b, (outputs,).
        shape: the shape of one input, of n numbers.
    """

    matrices: Tensor
    weights: Tensor
    biases: Tensor
    shape: tuple[int, ...]

    @cached_property
    def _decomposed(self) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(self.matrices)
        order = values.abs().argsort(1, descending=True)
        vectors = vectors.mT.gather(1, order[:, :, None].expand_as(vectors))
        # Its sign is free: the largest entry is positive.
        largest = vectors.gather(2, vectors.abs().argmax(2, keepdim=True))
        return values.gather(1, order), vectors * largest.sign()

    @property
    def eigenvalues(self) -> Tensor:
        """Of each output, (outputs, n), the largest magnitudes first."""
        return self._decomposed[0]

    @property
    def eigenvectors(self) -> Tensor:
        """Unit vectors in the shape of an input, (outputs, n, *shape), in the same order."""
        return self._decomposed[1].unflatten(2, self.shape)

    @property
    def effective_ranks(self) -> list[float]:
        """How many eigenvalues of each output matter: e to the entropy of their magnitudes."""
        return [effective_rank(values) for values in self.eigenvalues]

    def __repr__(self) -> str:
        ranks = ", ".join(f"{rank:.1f}" for rank in self.effective_ranks)
        return f"QuadraticForms of inputs {self.shape}, effective ranks {ranks}"

    def strongest(self, output: int, count: int = 1, positive: bool = True) -> Tensor:
        """The eigenvectors with the largest positive, or negative, eigenvalues of an output.

        Args:
            output: its number.
            count: how many, at most: a form may have fewer eigenvalues of that sign.
            positive: False for those that speak against the output.

        Returns:
            The eigenvectors, (count, *shape), the strongest first.

        Raises:
            InputError: if there is no such output, or the count is not positive.
        """
        check_size("count", count)
        if not 0 <= output < len(self.biases):
            last = len(self.biases) - 1
            raise InputError(f"output must be in 0 ... {last}, got {output}: choose one of them")
        values = self.eigenvalues[output]
        return self.eigenvectors[output, (values > 0 if positive else values < 0)][:count]


def quadratic_forms(model: nn.Module, example_input: Tensor) -> QuadraticForms:
    """Reads a network of degree two: one quadratic layer with anything affine around it.

    Exact: the second derivatives of a polynomial of degree two are the same everywhere. The network
    is taken in eval mode, where a batch normalization is affine, and stays as it is.

    Args:
        model: a network that gives a vector of outputs for each input.
        example_input: one input, without a batch dimension: its shape is that of the eigenvectors.

    Returns:
        The forms of all outputs.

    Raises:
        InputError: if the network is no polynomial of degree two, or too large.
        InputTypeError: if an argument has the wrong type.

    Examples:
        >>> import quadric
        >>> layer = quadric.make_layer(nn.Linear(64, 20), neuron="shared")
        >>> model = nn.Sequential(nn.Flatten(), layer, nn.Linear(20, 10))
        >>> forms = quadratic_forms(model, torch.zeros(1, 8, 8))
        >>> forms.eigenvectors.shape
        torch.Size([10, 64, 1, 8, 8])
    """
    check_model(model)
    if not isinstance(example_input, Tensor):
        raise InputTypeError(f"example_input must be a tensor, got {type(example_input).__name__}")
    shape, inputs = tuple(example_input.shape), example_input.numel()

    def function(x: Tensor) -> Tensor:
        out: Any = twin(x.view(1, *shape))
        if not isinstance(out, Tensor) or out.dim() != 2:
            raise InputError("the network must give a vector of outputs for each input: wrap it")
        return out[0]

    try:
        twin = copy.deepcopy(unwrapped(model)).cpu().double().eval()
        with torch.no_grad():
            outputs = function(torch.zeros(inputs, dtype=torch.float64)).numel()
    except (RuntimeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"the network must take one input of shape {shape}, got {type(error).__name__} "
            f"({error}): give an input without its batch dimension"
        ) from None
    if outputs * inputs**3 > LIMIT:
        raise InputError(
            f"the eigenvectors of {outputs} matrices of {inputs} x {inputs} would take minutes: "
            "take smaller inputs"
        )
    refusal = "a network must compute {} of its inputs, got one with another nonlinearity"
    return QuadraticForms(*polynomial(function, inputs, refusal), shape)
