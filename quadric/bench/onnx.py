"""Latency of exported networks in ONNX Runtime, beside the linear one's."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quadric import models
from quadric.bench.cases import draw_eigenvalues_
from quadric.conversion.convert import convert_
from quadric.exporting import export_onnx, latencies
from quadric.support import provenance
from quadric.support.texttable import markdown_table, text_table

NEURONS: dict[str, tuple[str, int | None]] = {
    "linear": ("linear", None),
    "eigen": ("eigen", None),
    "eigen, rank 15": ("eigen", 15),
    "shared": ("shared", None),
}
"""Neuron and rank by name. Neurons of 16 channels are what ONNX Runtime's blocks hold."""


@dataclass(frozen=True)
class Network:
    """A network whose latency is measured.

    Attributes:
        name: in words.
        build: makes it with a neuron and its rank.
        shape: of one input.
        batches: the batch sizes.
    """

    name: str
    build: Callable[[str, int | None], nn.Module]
    shape: tuple[int, ...]
    batches: tuple[int, ...] = (1,)


def _encoder(neuron: str, rank: int | None) -> nn.Module:
    layer = nn.TransformerEncoderLayer(512, 8, 1024, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    if neuron != "linear":
        convert_(model, neuron, rank)
    return model


def _created(name: str, **options: Any) -> Callable[[str, int | None], nn.Module]:
    return lambda neuron, rank: models.create(name, neuron=neuron, rank=rank, **options)


NETWORKS = (
    Network("ResNet-20, 32x32", _created("resnet20"), (3, 32, 32), (1, 8, 128)),
    Network("ResNet-18, 224x224", _created("resnet18"), (3, 224, 224)),
    Network("Transformer encoder, width 512, 3 layers, 25 tokens", _encoder, (25, 512)),
    Network("perceptron 8-64-64-1", _created("mlp", in_features=8, hidden=(64, 64)), (8,)),
)
CASE = 20.0
"""Seconds for a network and a batch size, roughly, with the export of its files."""


@dataclass(frozen=True)
class LatencyReport:
    """Latencies by network, batch size and file; prints as a table.

    Attributes:
        rows: one dictionary per file: network, batch, neuron, seconds, and its ratio to linear.
        rounds: how often everything was measured.
        threads: of one run.
    """

    rows: list[dict[str, Any]]
    rounds: int
    threads: int

    def to_dict(self) -> dict[str, Any]:
        """The report with where it comes from, for JSON."""
        origin = provenance.stamp("onnx", "onnxruntime")
        return {"kind": "onnx latency", **vars(self), **origin}

    def __str__(self) -> str:
        return (
            f"{latency_summary(self.rows)}\n\nLatency in ONNX Runtime with {self.threads} "
            f"thread{'s' if self.threads > 1 else ''}, best of many interleaved runs, as a ratio "
            "to the linear network's; in brackets those of the rounds."
        )


def latency_summary(rows: Sequence[dict[str, Any]], markdown: bool = False) -> str:
    """A line for each network and batch size."""
    names = [name for name in NEURONS if name != "linear"]
    lines = []
    for key in dict.fromkeys((row["network"], row["batch"]) for row in rows):
        own = {r["neuron"]: r for r in rows if (r["network"], r["batch"]) == key}
        cells = [_cell(own[name]) if name in own else "" for name in names]
        lines.append([*key, f"{1e3 * own['linear']['seconds']:.3g} ms", *cells])
    table = markdown_table if markdown else text_table
    return table(["network", "batch", "linear", *names], lines, "l" + "r" * (2 + len(names)))


def _cell(row: dict[str, Any]) -> str:
    ratios = row["ratios"]
    spread = f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 else ""
    return f"{row['ratio']:.2f}{spread}"


def bench_onnx(
    networks: Sequence[Network] = NETWORKS,
    *,
    rounds: int = 1,
    seconds: float = 8.0,
    threads: int = 1,
    tick: Callable[[], object] = lambda: None,
) -> LatencyReport:
    """Exports each network with linear, eigen and shared neurons, and times them interleaved."""
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for i, network in enumerate(networks):
            for name, (neuron, rank) in NEURONS.items():
                torch.manual_seed(0)
                model = network.build(neuron, rank).eval()
                draw_eigenvalues_(model, 1e-3)  # with zeros nothing of them would be in the file
                export_onnx(model, Path(folder, f"{i}-{name}.onnx"), torch.randn(1, *network.shape))
        for _ in range(rounds):
            for i, network in enumerate(networks):
                files = {name: Path(folder, f"{i}-{name}.onnx") for name in NEURONS}
                for batch in network.batches:
                    inputs = [torch.randn(batch, *network.shape)]
                    times = latencies(
                        files, inputs, threads=threads, seconds=seconds, repeats=100_000
                    )
                    found.setdefault((network.name, batch), []).append(times)
                    tick()
    rows = []
    for (place, batch), of_rounds in found.items():
        best = {name: min(times[name] for times in of_rounds) for name in NEURONS}
        rows += [
            {
                "network": place,
                "batch": batch,
                "neuron": name,
                "seconds": best[name],
                "ratio": best[name] / best["linear"],
                "ratios": [times[name] / times["linear"] for times in of_rounds],
            }
            for name in NEURONS
        ]
    return LatencyReport(rows, rounds, threads)
