"""export_onnx: a checked ONNX file."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quadric.errors import InputError, explained, in_one_line
from quadric.exporting.checking import Call
from quadric.exporting.examples import BATCH_SIZES, Examples
from quadric.exporting.export_report import ExportReport
from quadric.exporting.pipeline import checked_export, program_of, quiet
from quadric.support.extras import require

OPSET = 20
"""The version of ONNX's operators that is written unless another one is asked for."""

LARGE = 1 << 30
"""Bytes of weights from which they are written beside the file: a file holds 2 GiB."""


def export_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    *example_inputs: Any,
    opset: int = OPSET,
    dynamic_batch: bool = True,
    batch_dim: int = 0,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    tolerance: float | None = None,
    fold: bool = True,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> ExportReport:
    """Writes a model as an ONNX file of standard operators, checked against the model.

    The model is copied and stays as it is. In the file, each BatchNorm is folded into the layer
    before it, exactly, and a quadratic layer is a product, a 1x1 convolution or matrix product, and
    an addition. The file is checked by `onnx.checker`, run in ONNX Runtime at several batch sizes,
    and compared with the model in eval mode. It gets its name only if all checks pass.

    Args:
        model: the network.
        path: the file; one that exists is replaced.
        *example_inputs: the arguments of `model.forward`, all of them tensors: one or several, or
            a tuple, or a mapping of keyword arguments.
        opset: the version of ONNX's operators.
        dynamic_batch: whether the file takes any batch size, or that of the examples alone.
        batch_dim: the dimension of the inputs that is the batch.
        batch_sizes: the sizes at which model and file are compared; a fixed batch is the only one.
        tolerance: the largest allowed difference, relative to the model's largest output; by
            default 1e-4 for float32.
        fold: whether to fold BatchNorm.
        input_names: names for the file's inputs.
        output_names: names for the file's outputs.

    Returns:
        What was written, and how it was checked.

    Raises:
        InputError: if the model cannot be exported, or the file computes something else.
        MissingExtraError: if the ONNX packages are not installed.

    Examples:
        >>> import pathlib, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = pathlib.Path(folder.name, "model.onnx")
        >>> export_onnx(nn.Linear(3, 2), path, torch.zeros(1, 3)).operators
        {'Gemm': 1}
        >>> folder.cleanup()
    """
    who = "quadric.export_onnx"
    require("onnx", who)
    _check_opset(opset)

    def write(network: nn.Module, examples: Examples, file: Path) -> tuple[Call, dict[str, Any]]:
        if input_names is not None and len(input_names) != len(examples.inputs):
            raise InputError(
                f"input_names must be one for each of {len(examples.inputs)} inputs, got "
                f"{list(input_names)}: give as many as example inputs"
            )
        program = program_of(network, examples)
        shapes = examples.dynamic_shapes(network)  # names the dimension
        options = {"input_names": input_names, "output_names": output_names}
        session, operators = write_onnx(program, (), shapes, file, opset, model, **options)
        return functools.partial(run_session, session), {"opset": opset, "operators": operators}

    return checked_export(
        who,
        model,
        Path(path),
        example_inputs,
        write,
        "ONNX Runtime",
        dynamic_batch=dynamic_batch,
        batch_dim=batch_dim,
        batch_sizes=batch_sizes,
        tolerance=tolerance,
        fold=fold,
    )


def _check_opset(opset: int) -> None:
    import onnx

    newest = onnx.defs.onnx_opset_version()
    if not 1 <= opset <= newest:
        raise InputError(
            f"opset must be from 1 to {newest}, the newest one that is installed, got {opset}: "
            f"leave it at {OPSET}, which every runtime of today has"
        )


def _accepted(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Turns what a checker or a runtime has against a file into one error."""
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    other = sorted(str(d).removeprefix("torch.") for d in dtypes - {torch.float32})
    remedy = f"export the {' and '.join(other)} model in float32, or " if other else ""
    return explained(
        "the file must pass onnx.checker and open in ONNX Runtime",
        f"no file was written; {remedy}give another opset",
        alone=True,
    )


def write_onnx(
    program: Any,
    inputs: tuple[Any, ...],
    shapes: Any,
    file: Path,
    opset: int,
    model: nn.Module,
    **names: Any,
) -> tuple[Any, dict[str, int]]:
    """Writes a program or module as a file; gives its session and operators."""
    import onnx

    try:
        # Attention is taken apart as it was traced: with gradients torch chooses other strides.
        with quiet(), torch.no_grad():
            made: Any = torch.onnx.export(
                program,
                inputs,
                dynamo=True,
                verbose=False,
                opset_version=opset,
                dynamic_shapes=shapes,
                **names,
            )
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise InputError(
            f"the model must consist of operators that ONNX has, got {in_one_line(cause)}: replace "
            "that part of the model, or give a later opset"
        ) from None
    # The exporter notes where in which module each node comes from: half the size of a small file.
    for node in made.model.graph:
        node.metadata_props.clear()
        node.doc_string = None
    weights = list(made.model.graph.initializers.values())
    for value in weights:
        value.metadata_props.clear()
    made.save(file, external_data=sum(value.const_value.nbytes for value in weights) > LARGE)
    with _accepted(model):
        onnx.checker.check_model(str(file), full_check=True)
    operators = _standard_operators(file, opset)
    with _accepted(model):
        return open_session(file), operators


def _standard_operators(file: Path, opset: int) -> dict[str, int]:
    """How often each operator stands in a file; all must be standard ones."""
    import onnx

    graph = onnx.load(str(file), load_external_data=False)
    versions = {entry.domain: entry.version for entry in graph.opset_import}
    nodes = graph.graph.node
    others = {f"{n.domain}.{n.op_type}" for n in nodes if n.domain not in ("", "ai.onnx")}
    names = sorted(others) or [function.name for function in graph.functions]
    if names:
        raise InputError(
            f"an exported network must consist of ONNX's standard operators, got {names[0]}: "
            "replace that part of the model"
        )
    if versions.get("", opset) != opset:
        raise InputError(
            f"opset {opset} cannot be written, got {versions['']} from torch: give opset="
            f"{versions['']}"
        )
    return dict(sorted(Counter(node.op_type for node in nodes).items()))


def open_session(file: Path, threads: int | None = None) -> Any:
    """Opens a file in ONNX Runtime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    if threads is not None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def run_session(session: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Runs a session."""
    names = [value.name for value in session.get_inputs()]
    if len(names) != len(inputs):
        raise InputError(f"the network takes {len(names)} input tensors, got {len(inputs)}")
    given = {name: value.detach().cpu().numpy() for name, value in zip(names, inputs, strict=True)}
    return [torch.from_numpy(value) for value in session.run(None, given)]
