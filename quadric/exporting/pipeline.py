"""What all exports share: a prepared copy of the model, example inputs, and the comparison."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from quadric.conversion.targets import walk
from quadric.errors import InputError, explained, in_one_line
from quadric.exporting.batchnorm_pairs import is_touched
from quadric.exporting.checking import (
    batch_of,
    check_batch_dim,
    check_difference,
    checked_arguments,
    difference,
    has_numbers,
    tolerance_of,
)
from quadric.exporting.folding import FoldingReport, fold_batchnorm_
from quadric.exporting.onnx_forms import has_onnx_form, onnx_form
from quadric.exporting.report import ExportReport
from quadric.support.modules import tensors_in, unfused, unwrapped
from quadric.support.writing import unfinished

Call = Callable[[Sequence[Tensor]], list[Tensor]]
"""Runs an exported file."""


def copied(model: nn.Module) -> nn.Module:
    """A copy on the CPU, in eval mode, out of its wrappers."""
    return copy.deepcopy(unwrapped(model)).cpu().eval()


def with_onnx_forms(model: nn.Module, report: FoldingReport) -> nn.Module:
    """The model with layers in their ONNX form, which take up the shifts that folding left, too.

    A layer with hooks stays as it is: they would not be called.
    """
    if has_onnx_form(model) and not is_touched(model):
        return onnx_form(model)
    made: dict[int, nn.Module] = {}
    for name, module in list(walk(model)):
        if not has_onnx_form(module) or is_touched(module):
            continue
        if id(module) not in made:
            shift = None
            if name in report.shifts:
                shift = model.get_submodule(report.shifts[name]).get_buffer("shift")
                model.set_submodule(report.shifts[name], nn.Identity())
            made[id(module)] = onnx_form(module, shift)
        model.set_submodule(name, made[id(module)])
    return model


@dataclass(frozen=True)
class Examples:
    """Example inputs, and the batch sizes to check.

    Attributes:
        inputs: the examples, on the CPU.
        names: those of the last inputs that are keyword arguments.
        batch_dim: the dimension of the batch, or None if its size is fixed.
        sizes: the batch sizes at which a file is compared with the model.
    """

    inputs: tuple[Tensor, ...]
    names: tuple[str, ...]
    batch_dim: int | None
    sizes: tuple[int, ...]

    @classmethod
    def check(
        cls,
        args: Sequence[Tensor],
        kwargs: Mapping[str, Tensor],
        dynamic: bool,
        batch_dim: int,
        sizes: Sequence[int],
    ) -> Examples:
        """The examples of an export, or an error."""
        own = tuple(value.detach().cpu() for value in (*args, *kwargs.values()))
        if not dynamic:
            return cls(own, tuple(kwargs), None, (own[0].shape[0] if own[0].dim() else 1,))
        check_batch_dim(own, batch_dim)
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

    def traced(self) -> tuple[Tensor, ...]:
        """What the model is traced with: a batch of one would become a constant."""
        if self.batch_dim is None:
            return self.inputs
        return self.batch(max(2, self.inputs[0].shape[self.batch_dim]))

    def batch(self, size: int, vary: bool = True) -> tuple[Tensor, ...]:
        """Inputs of a batch size."""
        if self.batch_dim is None:
            return self.inputs
        return tuple(batch_of(self.inputs, size, self.batch_dim, size, vary))

    def dynamic_shapes(self, model: nn.Module) -> Any:
        """The sizes that may vary, by the names of the forward's arguments: *args are one tuple."""
        if self.batch_dim is None:
            return None
        batch = {self.batch_dim: torch.export.Dim("batch")}
        args, kwargs = self.arguments(self.inputs)
        given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
        return tree_map(lambda _: batch, dict(given))

    def compare(self, model: nn.Module, call: Call, tolerance: float, runtime: str) -> float:
        """The largest difference between a model and its file."""
        worst = 0.0
        for size in self.sizes:
            inputs, expected = self._expected(model, size)
            remedy = "no file was written; if it depends on the batch size, export it with "
            rule = f"the exported network must run in {runtime} at batch size {size}"
            with explained(rule, remedy + "dynamic_batch=False", alone=True):
                found = difference(expected, call(inputs))
            check_difference(found, tolerance, size, runtime)
            worst = max(worst, found)
        return worst

    def _expected(self, model: nn.Module, size: int) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """Inputs of a batch size, and what the model makes of them."""
        # Noise may lead out of where the model is defined: then the examples as they are.
        for vary in (True, False):
            inputs = self.batch(size, vary)
            remedy = "choose other batch_sizes, or dynamic_batch=False"
            with explained(f"the model must run at batch size {size}", remedy, alone=True):
                expected = self.run(model, inputs)
            if has_numbers(expected):
                return inputs, expected
        raise InputError(
            "the model must give numbers on the example inputs, got NaN or nothing finite at batch "
            f"size {size}: no file was written; give examples like the data, or train it again if "
            "its weights are NaN"
        )


def checked_export(
    who: str,
    model: nn.Module,
    path: Path,
    example_inputs: Sequence[Tensor],
    write: Callable[[nn.Module, Examples, Path], tuple[Call, dict[str, Any]]],
    runtime: str,
    *,
    dynamic_batch: bool,
    batch_dim: int,
    batch_sizes: Sequence[int],
    tolerance: float | None,
    fold: bool,
) -> ExportReport:
    """Prepares a copy of a model, has it written, and compares the file with the model."""
    args, kwargs = checked_arguments(model, example_inputs, who)
    examples = Examples.check(args, kwargs, dynamic_batch, batch_dim, batch_sizes)
    limit = tolerance_of(model, tolerance)
    with unfinished(path) as file:
        prepared = copied(model)
        traced, named = examples.arguments(examples.traced())
        folding = fold_batchnorm_(prepared, named or traced) if fold else FoldingReport()
        call, facts = write(with_onnx_forms(prepared, folding), examples, file)
        worst = examples.compare(copied(model), call, limit, runtime)
        del call  # which may hold the file open
        size = sum(f.stat().st_size for f in file.parent.iterdir())
    return ExportReport(path, path.suffix[1:], size, worst, examples.sizes, folding, **facts)


def program_of(model: nn.Module, examples: Examples) -> torch.export.ExportedProgram:
    """A model as one graph, by torch.export.

    No tracer is tried instead: what depends on values would become a constant there.
    """
    try:
        return _exported(model, examples)
    except Exception as error:
        reason = in_one_line(error)
    fixed, remedy = dataclasses.replace(examples, batch_dim=None), "rewrite that part of it"
    if examples.batch_dim is not None:
        with contextlib.suppress(Exception):
            _exported(model, fixed)
            remedy = "a part of it depends on the batch size: export it with dynamic_batch=False"
    # Alone: torch's own error comes with hundreds of lines, and this is the last thing to read.
    raise InputError(f"the model must be one graph for torch.export, got {reason}: {remedy}")


def _exported(model: nn.Module, examples: Examples) -> torch.export.ExportedProgram:
    with quiet(), torch.no_grad():
        return torch.export.export(
            model,
            *examples.arguments(examples.traced()),
            dynamic_shapes=examples.dynamic_shapes(model),
            strict=False,
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the exporter's and the quantizer's notes, such as those on optional packages.

    Of a model that it refuses, torch prints the graph so far. We raise an error ourselves.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
