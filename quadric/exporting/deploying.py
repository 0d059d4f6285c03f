"""A network and its linear twin as files, side by side: what `quadric export` does."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from quadric.errors import InputError
from quadric.exporting.export_report import ExportReport
from quadric.exporting.int8 import Int8Report, export_int8
from quadric.exporting.onnx_file import OPSET, export_onnx
from quadric.exporting.program import export_torch
from quadric.exporting.timing import latencies
from quadric.support.checks import check_size
from quadric.support.progress import duration
from quadric.support.texttable import text_table

FORMATS = (".onnx", ".pt2")
LATENCY_BATCHES = (1, 32)
"""Batch sizes whose latency is measured."""


@dataclass(frozen=True)
class Deployable:
    """A trained network and all that its export needs."""

    name: str  # where it comes from
    neuron: str  # its neurons in words
    network: nn.Module  # the network with its weights
    # The same network with linear neurons and any weights, or None if it is that itself.
    linear: nn.Module | None
    inputs: tuple[Tensor, ...]  # example inputs
    # Gives batches of training inputs, together as many as asked for, if there are data.
    calibration: Callable[[int], list[Tensor]] | None = None
    # Gives batches of test inputs and labels, if the network classifies.
    test: Callable[[], Iterable[tuple[Tensor, Tensor]]] | None = None
    # What the network takes and gives, in words and numbers.
    units: dict[str, Any] = field(default_factory=dict)
    # The largest difference that a file may have, or None for that of its dtype.
    tolerance: float | None = None
    # Names of the file's inputs and outputs, or None for those of torch.
    names: tuple[list[str], list[str]] | None = None


def write_network(
    what: Deployable, out: Path, network: nn.Module | None = None, opset: int = OPSET
) -> ExportReport:
    """Writes a network as a checked file."""
    network = what.network if network is None else network
    if out.suffix == ".pt2":
        return export_torch(network, out, *what.inputs, tolerance=what.tolerance)
    inputs, outputs = what.names or (None, None)
    return export_onnx(
        network,
        out,
        *what.inputs,
        opset=opset,
        tolerance=what.tolerance,
        input_names=inputs,
        output_names=outputs,
    )


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
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Writes a network and measures it beside the linear one."""
    check_format(out, int8)
    quantized = _quantization(what, calibrate_on) if int8 else {}
    networks = {what.neuron: what.network}
    if what.linear is not None:
        networks["linear"] = what.linear
    reports: dict[str, ExportReport | Int8Report] = {}
    tell(f"writing {out} and comparing it with the network")
    with tempfile.TemporaryDirectory() as folder:
        # The wanted file comes first; the others are only measured.
        for small, name in itertools.product((True, False) if int8 else (False,), networks):
            file = Path(folder) / f"{len(reports)}{out.suffix}" if reports else out
            if small:
                # Only the wanted file has accuracies: the linear network is not trained.
                tested = {"max_drop": max_drop} if not reports else {"test": None}
                options = quantized | tested | {"opset": opset, "tolerance": what.tolerance}
                made = export_int8(networks[name], file, *what.inputs, **options)
                reports[f"{name}, int8"] = made
            else:
                reports[name] = write_network(what, file, networks[name], opset)
            if len(reports) == 1:
                about = duration(len(LATENCY_BATCHES) * seconds)
                tell(f"{out} is written and compared; timing it beside linear takes {about} more")
        files = {name: report.path for name, report in reports.items()}
        times = {}
        for size in LATENCY_BATCHES:
            inputs = [x[:1].expand(size, *x.shape[1:]).contiguous() for x in what.inputs]
            times[str(size)] = latencies(files, inputs, threads=threads, seconds=seconds)
    report = next(iter(reports.values()))
    return report.to_dict() | {
        "source": what.name,
        "neuron": what.neuron,
        "params": sum(p.numel() for p in what.network.parameters()),
        "threads": threads,
        "units": what.units,
        "text": "\n".join([str(report), *filter(None, [what.units.get("text")])]),
        "networks": [
            {
                "network": name,
                "size": made.size,
                "latency": {size: latency[name] for size, latency in times.items()},
            }
            for name, made in reports.items()
        ],
    }


def _quantization(what: Deployable, calibrate_on: int) -> dict[str, Any]:
    """What int8 needs of the data."""
    if what.calibration is None:
        raise InputError(
            f"int8 needs inputs to calibrate on, and {what.name} brings none: name the run "
            "directory of quadric train, whose training data is taken"
        )
    check_size("calibration", calibrate_on)
    test = None if what.test is None else list(what.test())
    return {"calibration": what.calibration(calibrate_on), "test": test}


def check_format(out: Path, int8: bool) -> None:
    """Refuses a file whose suffix is no format, and int8 in another format than ONNX."""
    if out.suffix not in FORMATS:
        raise InputError(
            f"out must end in {' or '.join(FORMATS)}, got {str(out)!r}: the suffix is the format"
        )
    if int8 and out.suffix != ".onnx":
        raise InputError(f"int8 is written as .onnx, got {str(out)!r}: choose another suffix")


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
