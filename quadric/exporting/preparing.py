"""A copy of the model as it is exported: in eval mode, BatchNorm folded, layers in lean form."""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quadric.conversion.targets import walk
from quadric.errors import InputError
from quadric.exporting.checking import (
    batch_of,
    check_batch_dim,
    check_difference,
    difference,
    has_numbers,
    tensors_in,
)
from quadric.exporting.folding import FoldingReport, fold_batchnorm_
from quadric.exporting.lean import is_lean, lean_layer
from quadric.nn import QuadraticLayer


def copied(model: nn.Module) -> nn.Module:
    """A copy on the CPU, in eval mode, out of its wrappers."""
    inner = model._modules.get("_orig_mod")  # torch.compile
    if type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
        inner = model._modules.get("module")
    if inner is not None:
        return copied(inner)
    return copy.deepcopy(model).cpu().eval()


def prepared(
    model: nn.Module, inputs: Sequence[Tensor], fold: bool
) -> tuple[nn.Module, FoldingReport]:
    """Folds and rewrites a copy.

    Args:
        model: a copy that may be changed.
        inputs: examples.
        fold: whether BatchNorm is folded.
    """
    report = fold_batchnorm_(model, tuple(inputs)) if fold else FoldingReport()
    return _lean(model, report), report


def _lean(model: nn.Module, report: FoldingReport) -> nn.Module:
    """The model with lean layers, which also take up the shifts that folding left after them."""
    if isinstance(model, QuadraticLayer):
        return lean_layer(model) if is_lean(model) else model
    made: dict[int, nn.Module] = {}
    for name, parent, key, module in list(walk(model)):
        if not isinstance(module, QuadraticLayer) or not is_lean(module):
            continue
        if id(module) not in made:
            shift = None
            if name in report.shifts:
                shift = model.get_submodule(report.shifts[name]).get_buffer("shift")
                model.set_submodule(report.shifts[name], nn.Identity())
            made[id(module)] = lean_layer(module, shift)
        parent._modules[key] = made[id(module)]
    return model


@torch.no_grad()
def run(model: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a model, without torch's fused Transformer paths."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        return [t.clone() for t in tensors_in(model(*inputs))]
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@dataclass(frozen=True)
class Examples:
    """Example inputs, and the batch sizes to check.

    Attributes:
        inputs: the examples, on the CPU.
        batch_dim: the dimension of the batch, or None if its size is fixed.
        sizes: the batch sizes at which a file is compared with the model.
    """

    inputs: tuple[Tensor, ...]
    batch_dim: int | None
    sizes: tuple[int, ...]

    @classmethod
    def check(
        cls, inputs: Sequence[Tensor], dynamic: bool, batch_dim: int, sizes: Sequence[int]
    ) -> Examples:
        """The examples of an export, or an error."""
        own = tuple(value.detach().cpu() for value in inputs)
        if not dynamic:
            return cls(own, None, (own[0].shape[0] if own[0].dim() else 1,))
        check_batch_dim(own, batch_dim)
        if not sizes or min(sizes) < 1:
            raise InputError(
                f"batch_sizes must be numbers >= 1, got {list(sizes)}: give at least one"
            )
        return cls(own, batch_dim, tuple(dict.fromkeys(sizes)))

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
        """What torch.export wants to know: one entry for each argument of the forward, whose *args
        are one argument that is a tuple."""
        if self.batch_dim is None:
            return None
        shapes = [{self.batch_dim: torch.export.Dim("batch")}] * len(self.inputs)
        kinds = [p.kind for p in inspect.signature(model.forward).parameters.values()]
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            fixed = kinds.index(inspect.Parameter.VAR_POSITIONAL)
            return (*shapes[:fixed], tuple(shapes[fixed:]))
        return tuple(shapes)

    def compare(
        self,
        model: nn.Module,
        call: Callable[[Sequence[Tensor]], list[Tensor]],
        tolerance: float,
        runtime: str,
    ) -> float:
        """The largest difference between a model and what came of it; raises above the tolerance.

        Args:
            model: in eval mode.
            call: runs the file.
            tolerance: relative to the largest output.
            runtime: where the file runs, for the error.
        """
        worst = 0.0
        for size in self.sizes:
            # Noise may lead out of where the model is defined: then the examples as they are.
            for vary in (True, False):
                inputs = self.batch(size, vary)
                try:
                    expected = run(model, inputs)
                except Exception as error:
                    raise InputError(
                        f"the model must run at batch size {size}, got {type(error).__name__}: "
                        f"{error}: choose other batch_sizes, or dynamic_batch=False"
                    ) from error
                if has_numbers(expected):
                    break
            else:
                raise InputError(
                    "the model must give numbers on the example inputs, got NaN or nothing finite "
                    f"at batch size {size}: no file was written; give examples like the data, or "
                    "train it again if its weights are NaN"
                )
            try:
                found = difference(expected, call(inputs))
            except Exception as error:
                text = " ".join(str(error).split())[:300]
                raise InputError(
                    f"the exported network must run in {runtime} at batch size {size}, got "
                    f"{type(error).__name__}: {text}: no file was written; if it depends on the "
                    "batch size, export it with dynamic_batch=False"
                ) from error
            check_difference(found, tolerance, size, runtime)
            worst = max(worst, found)
        return worst


def program_of(model: nn.Module, examples: Examples) -> torch.export.ExportedProgram:
    """A model as one graph, by torch.export. No other way is tried: what depends on values would
    become a constant there."""
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(
                model,
                examples.traced(),
                dynamic_shapes=examples.dynamic_shapes(model),
                strict=False,
            )
    except Exception as error:
        text = " ".join(str(error).split())
        text = text if len(text) < 300 else text[:300] + "…"
        raise InputError(
            f"the model must be one graph for torch.export, got {type(error).__name__}: {text}: if "
            "a part of it depends on the batch size, export it with dynamic_batch=False"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the exporter's notes on packages that nobody needs here, and on versions that it
    cannot write, which is an error of our own.
    """
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A place to write a file under its own name; it moves to `path` if nothing goes wrong.

    Files beside it (the weights of a very large network) move along.
    """
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"the folder of {path} must exist, got {folder}: make it first")
    if path.is_dir():
        raise InputError(f"path must be a file, got the folder {path}: add a file name")
    place = Path(tempfile.mkdtemp(prefix=".quadric-", dir=folder))
    try:
        yield place / path.name
        # The file itself last: who sees it sees all of it.
        for file in sorted(place.iterdir(), key=lambda f: f.name == path.name):
            os.replace(file, folder / file.name)
    finally:
        shutil.rmtree(place, ignore_errors=True)
