"""export_int8: a convolutional network in 8-bit integers for ONNX Runtime, with measured accuracy.

Weights and activations of the convolutions and matrix products are quantized statically (QDQ
format, one scale for each output channel of a weight), with ranges taken from a calibration set,
and such that the file gives the same on every processor.

The square of an 8-bit number needs 16 bits, so the squares may have to stay in float. Quantized
squares are faster. They are quantized where that moves the outputs hardly more than quantizing the
rest does, which is measured on the calibration set.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quadric.errors import InputError, InputTypeError, explained
from quadric.exporting.export_report import ExportReport
from quadric.exporting.onnx_file import export_onnx, open_session, run_session
from quadric.exporting.pipeline import quiet
from quadric.support.extras import require
from quadric.support.modules import check_model
from quadric.support.writing import whole_file

Batch = Tensor | Sequence[Tensor]

EXCESS = 1.5
"""The squares are quantized if the outputs then move by no more than this, relative to what they
move by with the squares in float."""


@dataclass(frozen=True)
class Int8Report:
    """An int8 file beside the float file it was made from.

    Attributes:
        path: the int8 file.
        size: the bytes of the file.
        float_report: the float file, which was checked against the model.
        calibrated_on: the number of inputs that the ranges were taken from.
        squares: "int8" if they are quantized too, or "float".
        float_accuracy: share of the test inputs that the float file classifies correctly.
        int8_accuracy: share of the test inputs that the int8 file classifies correctly.
        difference: mean difference of the outputs on the calibration set, relative to their spread.
    """

    path: Path
    size: int
    float_report: ExportReport
    calibrated_on: int
    squares: str
    float_accuracy: float | None
    int8_accuracy: float | None
    difference: float

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        own = {k: v for k, v in vars(self).items() if k != "float_report"}
        plain = self.float_report.to_dict() | {"path": None}
        return own | {"path": str(self.path), "format": "onnx", "float": plain}

    def __str__(self) -> str:
        lines = [
            f"{self.path}: ONNX int8, squares in {self.squares}, calibrated on "
            f"{self.calibrated_on:,} inputs",
            f"size {self.size:,} bytes, in float {self.float_report.size:,}",
            f"mean difference to float {self.difference:.1e} of the outputs' spread",
        ]
        if self.int8_accuracy is not None and self.float_accuracy is not None:
            lines.append(
                f"test accuracy {100 * self.int8_accuracy:.2f} %, in float "
                f"{100 * self.float_accuracy:.2f} %"
            )
        return "\n".join(lines)


def export_int8(
    model: nn.Module,
    path: str | os.PathLike[str],
    *example_inputs: Any,
    calibration: Iterable[Batch],
    test: Iterable[tuple[Tensor, Tensor]] | None = None,
    max_drop: float = 0.02,
    squares: str = "auto",
    **options: Any,
) -> Int8Report:
    """Writes a convolutional network in int8, with its accuracy before and after.

    Args:
        model: the network; it stays as it is.
        path: the ONNX file; one that exists is replaced.
        *example_inputs: the arguments of `model.forward`.
        calibration: batches of inputs like those of the training set; a few hundred inputs are
            enough.
        test: batches of inputs and labels to measure the accuracy on, before and after.
        max_drop: if the accuracy falls by more than this, the export fails and leaves no file.
        squares: "int8", "float", or "auto" for int8 where that hardly moves the outputs.
        **options: those of `export_onnx`.

    Returns:
        What was written, with accuracies where there is a test set.

    Raises:
        InputError: if the model, the calibration set or the test set does not fit, or the accuracy
            falls too far.
        MissingExtraError: if the ONNX packages are not installed.
    """
    require("onnx", "quadric.exporting.export_int8")
    if squares not in ("auto", "int8", "float"):
        raise InputError(f"squares must be 'auto', 'int8' or 'float', got {squares!r}")
    if not max_drop >= 0:
        raise InputError(f"max_drop must be >= 0, got {max_drop}: give a share such as 0.02")
    check_model(model)
    _check_kind(model)
    batches, tested = _as_lists(calibration, test)
    path = Path(path)
    with whole_file(path) as file, tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "float.onnx"
        report = export_onnx(model, plain, *example_inputs, **options)
        before = open_session(plain)
        expected = [_outputs(before, batch, "calibration") for batch in batches]
        was = None if tested is None else _accuracy(before, tested)
        gaps: dict[str, float] = {}
        for kind in ("int8", "float") if squares == "auto" else (squares,):
            made = Path(folder) / f"squares-{kind}.onnx"
            _quantize(plain, made, batches, kind == "int8")
            gaps[kind] = _mean_difference(expected, open_session(made), batches)
        quantize = gaps.get("int8", math.inf) <= EXCESS * gaps.get("float", math.inf)
        chosen = "int8" if quantize else "float"
        shutil.copyfile(Path(folder) / f"squares-{chosen}.onnx", file)
        now = None if tested is None else _accuracy(open_session(file), tested)
        if was is not None and now is not None and was - now > max_drop:
            raise InputError(
                f"the accuracy in int8 may fall by {max_drop:.3f} at most, but fell from "
                f"{was:.4f} to {now:.4f}: no file was written; calibrate on more inputs, or "
                "raise max_drop"
            )
        size = file.stat().st_size
    count = sum(len(batch[0]) for batch in batches)
    return Int8Report(path, size, report, count, chosen, was, now, gaps[chosen])


def _check_kind(model: nn.Module) -> None:
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()} - {torch.float32}
    if dtypes:
        others = " and ".join(sorted(map(str, dtypes)))
        raise InputError(f"int8 is made of float32 networks, got {others}: use model.float() first")
    if not any(hasattr(m, "kernel_size") for m in model.modules()):
        raise InputError(
            f"int8 is for convolutional networks, got {type(model).__name__} without a "
            "convolution: export it in float"
        )


def _as_lists(
    calibration: Iterable[Batch], test: Iterable[tuple[Tensor, Tensor]] | None
) -> tuple[list[list[Tensor]], list[tuple[Tensor, Tensor]] | None]:
    """Both data sets as lists. Whether the network takes them, its float file says."""
    if isinstance(calibration, Tensor):
        raise InputTypeError("calibration must be batches, got one tensor: give [tensor]")
    batches = [[b] if isinstance(b, Tensor) else list(b) for b in calibration]
    tested = None if test is None else list(test)
    for name, data in (("calibration", batches), ("test", tested)):
        if data is not None and not data:
            raise InputError(
                f"{name} must hold at least one batch, got none: give some of the data"
            )
    return batches, tested


def _outputs(session: Any, batch: Sequence[Tensor], name: str) -> list[Tensor]:
    """What the float file makes of a batch of a user's."""
    with explained(
        f"every batch of {name} must hold what the network takes",
        "prepare it as for training, in the shape of the example inputs, without labels",
        alone=True,
    ):
        outputs = run_session(session, batch)
    if not all(bool(value.isfinite().all()) for value in (*batch, *outputs)):
        raise InputError(f"{name} must be finite, as what the network makes of it: clean the data")
    return outputs


def _quantize(source: Path, target: Path, batches: list[list[Tensor]], squares: bool) -> None:
    import onnx
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    graph = onnx.load(str(source))
    names = [value.name for value in graph.graph.input]
    rest = (
        {name: value.detach().cpu().numpy() for name, value in zip(names, batch, strict=True)}
        for batch in batches
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Any] | None:
            return next(rest, None)

    with quiet():
        quantize_static(
            graph,
            str(target),
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            # Weights of 7 bits: processors without instructions for 8-bit sums add up pairs of
            # products in 16 bits, which 8 bits would exceed without an error.
            reduce_range=True,
            nodes_to_exclude=[] if squares else square_nodes(graph),
            extra_options={"TensorQuantOverrides": {name: [{}] for name in _stacked(graph)}},
        )
    onnx.checker.check_model(str(target), full_check=True)


def _stacked(graph: Any) -> list[str]:
    """The weights of products that are a stack of matrices: ONNX Runtime has one scale for all."""
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.graph.initializer}
    inputs = [name for node in graph.graph.node if node.op_type == "MatMul" for name in node.input]
    return [name for name in dict.fromkeys(inputs) if ranks.get(name, 0) > 2]


def square_nodes(graph: Any) -> list[str]:
    """The nodes that make squares and mix them."""
    readers: dict[str, list[Any]] = {}
    for node in graph.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    squares: list[str] = []
    for node in graph.graph.node:
        if node.op_type != "Mul" or node.input[0] != node.input[1]:
            continue
        squares.append(node.name)
        after = node
        while len(readers.get(after.output[0], [])) == 1:
            after = readers[after.output[0]][0]
            squares.append(after.name)
            # Gemm adds z itself.
            if after.op_type not in ("Conv", "MatMul", "Mul", "Reshape", "Transpose"):
                break
    return list(dict.fromkeys(squares))


def _mean_difference(
    expected: list[list[Tensor]], session: Any, batches: list[list[Tensor]]
) -> float:
    total = spread = 0.0
    for outputs, batch in zip(expected, batches, strict=True):
        for a, b in zip(outputs, run_session(session, batch), strict=True):
            if not bool(b.isfinite().all()):
                raise InputError(
                    "the int8 network must give finite outputs on the calibration set, and does "
                    "not: no file was written; calibrate on inputs like those of training"
                )
            total += (a - b).abs().sum().item()
            spread += (a - a.mean()).abs().sum().item()
    return total / max(spread, 1e-30)


def _accuracy(session: Any, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The share of inputs whose largest output is their label."""
    right = count = 0
    for batch in batches:
        inputs, labels = batch if len(batch) == 2 else (batch[0], None)
        if not isinstance(labels, Tensor) or labels.dim() != 1 or labels.is_floating_point():
            raise InputError(
                "every batch of test must be a pair of inputs and a vector of class numbers, got "
                f"{labels if labels is None else (labels.dtype, tuple(labels.shape))}: give "
                "(inputs, labels)"
            )
        guesses = _outputs(session, [inputs], "test")[0].argmax(1)
        if len(labels) != len(guesses):
            raise InputError(
                f"test must have one label for each input, got {len(labels)} for {len(guesses)}: "
                "give all of them"
            )
        right += int((guesses == labels.cpu()).sum())
        count += len(labels)
    return right / max(count, 1)
