"""export_torch: a checked torch.export program, for C++, mobile and ahead-of-time compilation."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from quadric.exporting.checking import BATCH_SIZES, check_arguments, tolerance_of
from quadric.exporting.preparing import (
    Examples,
    copied,
    prepared,
    program_of,
    quiet,
    run,
    unfinished,
)
from quadric.exporting.report import ExportReport


def export_torch(
    model: nn.Module,
    path: str | os.PathLike[str],
    *example_inputs: Tensor,
    dynamic_batch: bool = True,
    batch_dim: int = 0,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    tolerance: float | None = None,
    fold: bool = True,
) -> ExportReport:
    """Writes a model as a `.pt2` file of torch.export, reloaded and compared with the model.

    Args:
        model: the network; it stays as it is.
        path: the file; one that exists is replaced.
        *example_inputs: the arguments of `model.forward`, tensors all of them.
        dynamic_batch: whether the program takes any batch size, or that of the examples alone.
        batch_dim: the dimension of the inputs that is the batch.
        batch_sizes: at which model and program are compared; with a fixed batch only that.
        tolerance: the largest allowed difference, relative to the model's largest output.
        fold: whether to fold BatchNorm.
    """
    check_arguments(model, example_inputs, "quadric.exporting.export_torch")
    examples = Examples.check(example_inputs, dynamic_batch, batch_dim, batch_sizes)
    limit = tolerance_of(model, tolerance)
    path = Path(path)
    with unfinished(path) as file:
        lean, folding = prepared(copied(model), examples.traced(), fold)
        program = program_of(lean, examples)
        with quiet():
            torch.export.save(program, file)
            reloaded = torch.export.load(file).module()
        worst = examples.compare(
            copied(model), functools.partial(run, reloaded), limit, "torch.export"
        )
        size = file.stat().st_size
    return ExportReport(path, "pt2", size, worst, examples.sizes, folding)
