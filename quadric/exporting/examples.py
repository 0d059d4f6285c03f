"""Example inputs, and batches of any size that are made of them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from quadric.errors import InputError, InputTypeError
from quadric.support.modules import call_arguments, check_model, tensors_in, unfused

BATCH_SIZES = (1, 2, 5)
"""At which an exported network is compared with the model."""


@dataclass(frozen=True)
class Examples:
    """Example inputs, and the batch sizes to check."""

    inputs: tuple[Tensor, ...]  # the examples, on the CPU
    names: tuple[str, ...]  # those of the last inputs that are keyword arguments
    batch_dim: int | None  # the dimension of the batch, or None if its size is fixed
    sizes: tuple[int, ...]  # the batch sizes at which a file is compared with the model

    @classmethod
    def check(
        cls,
        model: nn.Module,
        inputs: Sequence[Any],
        who: str,
        dynamic: bool,
        batch_dim: int,
        sizes: Sequence[int],
    ) -> Examples:
        """The examples of an export, or an error for what cannot be exported.

        Keyword arguments come in the order of the forward's own, which is that of a file's inputs.
        """
        check_model(model)
        if not inputs:
            raise InputError(
                f"{who} must see example inputs, got none: give the arguments of model.forward, "
                "such as torch.randn(1, 3, 32, 32)"
            )
        args, kwargs = call_arguments(model, inputs[0]) if len(inputs) == 1 else (inputs, {})
        order = [name for name in inspect.signature(model.forward).parameters if name in kwargs]
        kwargs = {name: kwargs[name] for name in [*order, *kwargs]}
        for value in (*args, *kwargs.values()):
            if not isinstance(value, Tensor):
                raise InputTypeError(
                    f"example inputs must be tensors, got {type(value).__name__}: fix other "
                    "arguments in a module of your own around the model"
                )
        meta = next((name for name, p in model.named_parameters() if p.is_meta), None)
        if meta is not None:
            raise InputError(
                f"the model must have its numbers, got {meta!r} on the meta device: load weights "
                "first"
            )
        own = tuple(value.detach().cpu() for value in (*args, *kwargs.values()))
        if not dynamic:
            return cls(own, tuple(kwargs), None, (own[0].shape[0] if own[0].dim() else 1,))
        _check_batch_dim(own, batch_dim)
        if not sizes or min(sizes) < 1:
            raise InputError(
                f"batch_sizes must be numbers >= 1, got {list(sizes)}: give at least one"
            )
        return cls(own, tuple(kwargs), batch_dim, tuple(dict.fromkeys(sizes)))

    def arguments(self, inputs: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Inputs as the positional and keyword arguments of the model."""
        count = len(inputs) - len(self.names)
        return tuple(inputs[:count]), dict(zip(self.names, inputs[count:], strict=True))

    @torch.no_grad()
    def run(self, model: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of a model, without torch's fused Transformer paths."""
        args, kwargs = self.arguments(inputs)
        with unfused():
            return [t.clone() for t in tensors_in(model(*args, **kwargs))]

    def traced(self) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """What the model is traced with: a batch of one would become a constant."""
        if self.batch_dim is None:
            return self.arguments(self.inputs)
        return self.arguments(self.batch(max(2, self.inputs[0].shape[self.batch_dim])))

    def batch(self, size: int, vary: bool = True) -> tuple[Tensor, ...]:
        """The examples repeated to a batch size, and real ones varied.

        Examples are often zeros or ones, at which a wrong network may look right: noise of their
        own spread is added to numbers, while indices and masks stay what they are.
        """
        dim = self.batch_dim
        if dim is None:
            return self.inputs
        generator = torch.Generator().manual_seed(size)
        made = []
        for value in self.inputs:
            rows = value.index_select(dim, torch.arange(size) % value.shape[dim])
            made.append(rows + _noise(value, rows.shape, dim, generator) if vary else rows)
        return tuple(made)

    def dynamic_shapes(self, model: nn.Module) -> Any:
        """The sizes that may vary, by the names of the forward's arguments: *args are one tuple."""
        if self.batch_dim is None:
            return None
        batch = {self.batch_dim: torch.export.Dim("batch")}
        args, kwargs = self.arguments(self.inputs)
        given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
        return tree_map(lambda _: batch, dict(given))


def _check_batch_dim(inputs: Sequence[Tensor], dim: int) -> None:
    """Refuses inputs that do not agree on the size of their batch."""
    for value in inputs:
        if not 0 <= dim < value.dim():
            raise InputError(
                f"batch_dim must be a dimension of every input, got {dim} for an input of shape "
                f"{tuple(value.shape)}: choose another one, or dynamic_batch=False"
            )
    sizes = {value.shape[dim] for value in inputs}
    if len(sizes) != 1 or 0 in sizes:
        raise InputError(
            f"the inputs must have one batch size >= 1, got {sorted(sizes)} in dimension {dim}: "
            "give other examples, or dynamic_batch=False"
        )


def _noise(value: Tensor, shape: torch.Size, dim: int, generator: torch.Generator) -> Tensor:
    """Noise for a tensor of numbers, zero for any other.

    Its spread is that of each place over the examples, because the columns of a table differ in
    scale. With one example, or equal ones, it is the spread of all places.
    """
    if not value.is_floating_point() or not bool(torch.isfinite(value).all()):
        return torch.zeros((), dtype=value.dtype)
    numbers = value.double()
    spread = numbers.std(dim, correction=0, keepdim=True)
    if not bool(spread.any()):
        spread = numbers.std(correction=0) if value.numel() else numbers.new_zeros(())
        spread = torch.where(spread == 0, 1.0, spread)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (spread * noise).to(value.dtype)
