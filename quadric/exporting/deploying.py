"""A network and its linear twin as files, side by side: what `quadric export` measures."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from quadric.errors import InputError
from quadric.exporting.int8 import Int8Report, export_int8
from quadric.exporting.onnx_file import OPSET, export_onnx
from quadric.exporting.program import export_torch
from quadric.exporting.report import ExportReport
from quadric.exporting.timing import latencies
from quadric.texttable import text_table

FORMATS = (".onnx", ".pt2")
LATENCY_BATCHES = (1, 32)
"""Batch sizes whose latency is measured."""


@dataclass(frozen=True)
class Deployable:
    """A trained network and all that its export needs.

    Attributes:
        name: where it comes from.
        neuron: its neurons in words.
        network: the network with its weights.
        linear: the same network with linear neurons and any weights, or None if it is that itself.
        inputs: example inputs.
        calibration: gives batches of at least so many training inputs, where there are data.
        test: gives batches of test inputs and labels, where the network classifies.
        units: what the network takes and gives, in words and numbers.
        tolerance: the largest difference that a file may have, or None for that of its dtype.
    """

    name: str
    neuron: str
    network: nn.Module
    linear: nn.Module | None
    inputs: tuple[Tensor, ...]
    calibration: Callable[[int], list[Tensor]] | None = None
    test: Callable[[], Iterable[tuple[Tensor, Tensor]]] | None = None
    units: dict[str, Any] = field(default_factory=dict)
    tolerance: float | None = None


def deploy(
    what: Deployable,
    out: Path,
    *,
    int8: bool = False,
    calibrate_on: int = 256,
    max_drop: float = 0.02,
    opset: int = OPSET,
    threads: int = 1,
    seconds: float = 2.0,
) -> dict[str, Any]:
    """Writes a network and measures it beside the linear one.

    Args:
        what: the network.
        out: the file; its suffix is the format.
        int8: quantize it.
        calibrate_on: so many training inputs.
        max_drop: the loss of accuracy in int8 above which nothing is written.
        opset: of an ONNX file.
        threads: used while latency is measured.
        seconds: how long latency is measured, for each batch size.

    Returns:
        The report, and under "networks" a row for each file: its size in bytes and its latencies in
        seconds by batch size. Everything is plain values.
    """
    check_format(out, int8)
    if int8 and what.calibration is None:
        raise InputError(
            f"int8 needs inputs to calibrate on, and {what.name} brings none: name the run "
            "directory of quadric train, whose training data is taken"
        )
    if calibrate_on < 1:
        raise InputError(f"calibration must be >= 1, got {calibrate_on}: give some hundred inputs")
    batches = what.calibration(calibrate_on) if int8 and what.calibration else []
    test = list(what.test()) if int8 and what.test is not None else None
    report: ExportReport | Int8Report
    with tempfile.TemporaryDirectory() as folder:
        beside = Path(folder)
        files: dict[str, Path] = {}
        sizes: dict[str, int] = {}
        if int8:
            report = export_int8(
                what.network,
                out,
                *what.inputs,
                calibration=batches,
                test=test,
                max_drop=max_drop,
                opset=opset,
                tolerance=what.tolerance,
            )
            files[f"{what.neuron}, int8"], sizes[f"{what.neuron}, int8"] = out, report.size
        else:
            report = _export(what.network, what, out, opset)
            files[what.neuron], sizes[what.neuron] = out, report.size
        plain = [("linear", what.linear)] if what.linear is not None else []
        if int8:
            plain = [(what.neuron, what.network), *plain]
        for name, network in plain:
            file = beside / f"{len(files)}{out.suffix}"
            if network is not None:
                sizes[name] = _export(network, what, file, opset).size
                files[name] = file
        if int8 and what.linear is not None:
            file = beside / "linear-int8.onnx"
            made = export_int8(what.linear, file, *what.inputs, calibration=batches, opset=opset)
            files["linear, int8"], sizes["linear, int8"] = file, made.size
        times = {
            size: latencies(
                files,
                [value[:1].expand(size, *value.shape[1:]).contiguous() for value in what.inputs],
                threads=threads,
                seconds=seconds,
            )
            for size in LATENCY_BATCHES
        }
    rows = [
        {
            "network": name,
            "size": sizes[name],
            "latency": {str(size): times[size][name] for size in times},
        }
        for name in files
    ]
    return report.to_dict() | {
        "source": what.name,
        "neuron": what.neuron,
        "params": sum(p.numel() for p in what.network.parameters()),
        "threads": threads,
        "units": what.units,
        "text": "\n".join([str(report), *filter(None, [what.units.get("text")])]),
        "networks": rows,
    }


def check_format(out: Path, int8: bool) -> None:
    """Refuses a file whose suffix says no format, and int8 in another format than ONNX."""
    if out.suffix not in FORMATS:
        raise InputError(
            f"out must end in {' or '.join(FORMATS)}, got {str(out)!r}: the suffix is the format"
        )
    if int8 and out.suffix != ".onnx":
        raise InputError(f"int8 is written as .onnx, got {str(out)!r}: choose another suffix")


def _export(network: nn.Module, what: Deployable, out: Path, opset: int) -> ExportReport:
    if out.suffix == ".pt2":
        return export_torch(network, out, *what.inputs, tolerance=what.tolerance)
    return export_onnx(network, out, *what.inputs, opset=opset, tolerance=what.tolerance)


def deployment_table(result: dict[str, Any]) -> str:
    """What `deploy` found, as text: the report, and the networks side by side."""
    rows = result["networks"]
    base = next((row for row in rows if row["network"] == "linear"), rows[0])
    header = ["network", "size"]
    for size in LATENCY_BATCHES:
        header += [f"batch {size}", ""]
    lines = []
    for row in rows:
        line = [row["network"], f"{row['size'] / 1e6:.3f} MB"]
        for size in LATENCY_BATCHES:
            seconds = row["latency"][str(size)]
            ratio = seconds / base["latency"][str(size)]
            line += [f"{1e3 * seconds:.3f} ms", "1" if row is base else f"{ratio:.2f}"]
        lines.append(line)
    threads = result["threads"]
    where = "ONNX Runtime" if result["format"] == "onnx" else "torch"
    note = (
        f"latency in {where} on the CPU with {threads} thread{'s' if threads > 1 else ''}, best of "
        "many interleaved runs, and its ratio to the linear network's"
    )
    table = text_table(header, lines, "l" + "r" * (len(header) - 1))
    return "\n".join([result["text"], "", table, note])
