"""What all exports share: prepare a copy, write a file, run it, compare it with the model."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quadric.conversion.targets import walk
from quadric.errors import InputError, in_one_line
from quadric.exporting.batchnorm_pairs import is_touched
from quadric.exporting.checking import Call, compare, tolerance_of
from quadric.exporting.examples import Examples
from quadric.exporting.export_report import ExportReport
from quadric.exporting.folding import FoldingReport, fold_batchnorm_
from quadric.exporting.onnx_forms import has_onnx_form, onnx_form
from quadric.support.modules import unwrapped
from quadric.support.writing import whole_file


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


def checked_export(
    who: str,
    model: nn.Module,
    path: Path,
    example_inputs: Sequence[Any],
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
    examples = Examples.check(model, example_inputs, who, dynamic_batch, batch_dim, batch_sizes)
    limit = tolerance_of(model, tolerance)
    with whole_file(path) as file:
        prepared = copied(model)
        args, kwargs = examples.traced()
        folding = fold_batchnorm_(prepared, kwargs or args) if fold else FoldingReport()
        call, facts = write(with_onnx_forms(prepared, folding), examples, file)
        worst = compare(copied(model), call, examples, limit, runtime)
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
    shapes = examples.dynamic_shapes(model)
    with quiet(), torch.no_grad():
        return torch.export.export(model, *examples.traced(), dynamic_shapes=shapes, strict=False)


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
