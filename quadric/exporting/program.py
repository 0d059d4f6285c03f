"""export_torch: a checked torch.export program, for C++, mobile and ahead-of-time compilation."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quadric.exporting.checking import Call
from quadric.exporting.examples import BATCH_SIZES, Examples
from quadric.exporting.export_report import ExportReport
from quadric.exporting.pipeline import checked_export, program_of, quiet


def export_torch(
    model: nn.Module,
    path: str | os.PathLike[str],
    *example_inputs: Any,
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
        *example_inputs: the arguments of `model.forward`, all of them tensors: one or several, or
            a tuple, or a mapping of keyword arguments.
        dynamic_batch: whether the program takes any batch size, or that of the examples alone.
        batch_dim: the dimension of the inputs that is the batch.
        batch_sizes: the sizes at which model and program are compared; a fixed batch is the only
            one.
        tolerance: the largest allowed difference, relative to the model's largest output.
        fold: whether to fold BatchNorm.

    Returns:
        What was written, and how it was checked.

    Raises:
        InputError: if the model cannot be exported, or the file computes something else.

    Examples:
        >>> import pathlib, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = pathlib.Path(folder.name, "model.pt2")
        >>> export_torch(nn.Linear(3, 2), path, torch.zeros(1, 3)).format
        'pt2'
        >>> folder.cleanup()
    """
    return checked_export(
        "quadric.exporting.export_torch",
        model,
        Path(path),
        example_inputs,
        _write,
        "torch.export",
        dynamic_batch=dynamic_batch,
        batch_dim=batch_dim,
        batch_sizes=batch_sizes,
        tolerance=tolerance,
        fold=fold,
    )


def _write(model: nn.Module, examples: Examples, file: Path) -> tuple[Call, dict[str, Any]]:
    program = program_of(model, examples)
    with quiet():
        # Not into the file itself: on a full disk torch would end the process.
        content = io.BytesIO()
        torch.export.save(program, content)
        file.write_bytes(content.getbuffer())
        return functools.partial(examples.run, torch.export.load(file).module()), {}
