"""Time single dense layers, perceptrons, ResNet-20 and a Transformer layer, beside another version.

    python tools/speed.py dense --before FOLDER

FOLDER holds another checkout. Both versions take turns, group by group, each in a process of its
own on one thread; a time is always judged by the linear twin in its own turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from quadric import models
from quadric.bench.cases import Case, make_cases, network_cases, usable_paths
from quadric.bench.comparison import compare
from quadric.conversion.convert import convert_
from quadric.exporting import timing
from quadric.layers import make_layer
from quadric.support import provenance
from quadric.support.process import keep_freed_memory
from quadric.support.texttable import markdown_table

ROOT = Path(__file__).resolve().parent.parent
RANKS = (2, 3, 4, 7, 8, 9, 16)
WIDTHS = (64, 256, 512, 1024)
BATCHES = (128, 1024, 4096)
KINDS = ("inference", "training")
VERSIONS = ("now", "before")


def fused_adam_step(model: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    """A training step with the fused Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        model(*inputs).square().mean().backward()
        optimizer.step()

    return step


def _each_rank(
    group: str,
    build: Any,
    inputs: tuple[Tensor, ...],
    ranks: Sequence[tuple[str, int]],
    **more: Any,
) -> list[Case]:
    """The linear case, and one for each neuron and rank."""
    cases = make_cases(group, build, inputs, (), ("kernels",), **more)[:1]
    for neuron, rank in ranks:
        options = {"rank": rank}
        cases += make_cases(group, build, inputs, (neuron,), ("kernels",), options=options, **more)[
            1:
        ]
    return cases


class _OnePass(torch.autograd.Function):
    """A linear layer whose output is read and written once more, and so is its gradient."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        z = nn.functional.linear(input, weight, bias).mul_(1.0)
        ctx.save_for_backward(input, weight, z)
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        input, weight, z = ctx.saved_tensors
        back = grad * z
        return back.mm(weight), back.t().mm(input), back.sum(0)


class OnePass(nn.Linear):
    """What no layer with squares can be faster than, if the product leaves its output in memory."""

    def forward(self, input: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return super().forward(input).mul_(1.0)
        out: Tensor = _OnePass.apply(input, self.weight, self.bias)
        return out


def dense_layers(width: int, batch: int, dtype: str = "float32") -> list[Case]:
    """A layer with as many outputs as inputs, at each rank."""
    build = partial(make_layer, partial(nn.Linear, width, width))
    inputs = (torch.randn(batch, width).requires_grad_(),)
    ranks = [(neuron, rank) for neuron in ("eigen", "shared") for rank in RANKS]
    ending = "" if dtype == "float32" else f", {dtype}"
    group = f"layer {width}, batch {batch}{ending}"
    cases = _each_rank(group, build, inputs, ranks, dtypes=(dtype,))
    if dtype == "float32":
        once = OnePass(width, width)
        cases.append(Case(group, "one pass", None, "kernels", "", dtype, once, inputs))
    return cases


def perceptrons(width: int, batch: int) -> list[Case]:
    """A perceptron of two hidden layers, with a step of Adam."""
    hidden = (width, width)
    build = partial(models.create, "mlp", in_features=8, hidden=hidden, activation="relu")
    ranks = (("eigen", 7), ("shared", 4), ("shared", 8))
    inputs = (torch.randn(batch, 8),)
    group = f"perceptron 8-{width}-{width}-1, batch {batch}"
    return _each_rank(group, build, inputs, ranks, step=fused_adam_step)


def encoder_layers(dtype: str) -> list[Case]:
    """A layer of a Transformer of width 512 on 16 sentences of 25 tokens, without dropout."""

    def build(neuron: str, rank: int | None = None) -> nn.Module:
        model = nn.Sequential(nn.TransformerEncoderLayer(512, 8, 2048, 0.0, batch_first=True))
        if neuron != "linear":
            convert_(model, neuron, rank)
        return model

    inputs = (torch.randn(16, 25, 512).requires_grad_(),)
    ranks = (("eigen", 7), ("shared", 8))
    return _each_rank(f"transformer layer 512, {dtype}", build, inputs, ranks, dtypes=(dtype,))


def pictures() -> list[Case]:
    """ResNet-20 at the neurons' own ranks."""
    return network_cases("resnet20", paths=("kernels",), formats=("channels_last",))


GROUPS: dict[str, tuple[Callable[[], list[Case]], int]] = {
    **{
        f"layer-{width}-{batch}": (
            partial(dense_layers, width, batch),
            max(3, min(40, 40 * 2**20 // (width * width * batch) * 8)),
        )
        for width in WIDTHS
        for batch in BATCHES
    },
    "bf16-64-1024": (partial(dense_layers, 64, 1024, "bf16"), 20),
    "bf16-512-1024": (partial(dense_layers, 512, 1024, "bf16"), 5),
    "perceptron-64": (partial(perceptrons, 64, 256), 60),
    "perceptron-256": (partial(perceptrons, 256, 1024), 20),
    "transformer-float32": (partial(encoder_layers, "float32"), 4),
    "transformer-bf16": (partial(encoder_layers, "bf16"), 4),
    "resnet20": (pictures, 5),
}
"""What is timed together, and how many training steps of each case."""


def work(seconds: float) -> None:
    """Times the groups that are named on the standard input, line by line."""
    torch.set_num_threads(1)
    # The processor's time: what else the machine does would count too.
    vars(timing)["time"] = SimpleNamespace(perf_counter=time.process_time)
    keep_freed_memory()
    usable_paths(["kernels"])
    for line in sys.stdin:
        make, repeats = GROUPS[line.strip()]
        torch.manual_seed(0)
        report = compare(make(), repeats, memory=False, at_least=seconds)
        print(json.dumps(report.rows), flush=True)


def _worker(folder: Path, seconds: float) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), str(seconds)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def _times(worker: subprocess.Popen[str], group: str) -> list[dict[str, Any]]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(group, file=worker.stdin, flush=True)
    rows: list[dict[str, Any]] = json.loads(worker.stdout.readline())
    return rows


def _commit(folder: Path | None) -> str | None:
    """The commit of the other version."""
    if folder is None:
        return None
    command = ["git", "-C", str(folder), "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def dense(given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Times all groups in both versions by turns."""
    folders = {"now": ROOT} | ({"before": given.before.resolve()} if given.before else {})
    workers = {name: _worker(folder, given.seconds) for name, folder in folders.items()}
    kept = {} if not given.resume else json.loads(given.resume.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = kept.get("rows", [])
    for group in given.groups or GROUPS:
        found = {name: _times(worker, group) for name, worker in workers.items()}
        rows = [row for row in rows if row["key"] != group]
        for i, row in enumerate(found["now"]):
            own = {k: row[k] for k in ("group", "neuron", "rank", "dtype")} | {"key": group}
            for kind in KINDS:
                for name, each in found.items():
                    own[f"{kind}_{name}"] = each[i][f"{kind}_turns"]
                own[f"{kind}_seconds"] = row[f"{kind}_median_seconds"]
                own[f"{kind}_runs"] = row[f"{kind}_runs"]
            rows.append(own)
        print(dense_table([row for row in rows if row["key"] == group]), flush=True)
        rows.sort(key=lambda row: list(GROUPS).index(row["key"]))
        facts = {"kind": "dense", "rows": rows, "before": _commit(given.before)}
        facts |= provenance.stamp() | {"command": "python tools/speed.py dense --before FOLDER"}
        if given.out:  # a run that is cut keeps what it has
            provenance.write_json(given.out, facts)
    for worker in workers.values():
        worker.communicate()
    return dense_table(rows), facts


def dense_table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each group: inference / training of each neuron, least and most of its ranks."""
    lines = []
    for key in dict.fromkeys(row["key"] for row in rows):
        line = [next(row["group"] for row in rows if row["key"] == key)]
        for neuron, versions in (("eigen", VERSIONS), ("shared", VERSIONS), ("one pass", ("now",))):
            own = [row for row in rows if (row["key"], row["neuron"]) == (key, neuron)]
            line += [" / ".join(_range(own, f"{kind}_{v}") for kind in KINDS) for v in versions]
        lines.append(line)
    header = ["work", "eigen", "before", "shared", "before", "one pass"]
    return markdown_table(header, lines, "lrrrrr")


def rank_table(rows: Sequence[dict[str, Any]], batch: int = 1024) -> str:
    """A line for each neuron and rank, a column for each width."""
    lines = []
    for neuron in ("eigen", "shared"):
        for rank in RANKS:
            line: list[object] = [neuron, rank]
            for width in WIDTHS:
                wanted = (f"layer-{width}-{batch}", neuron, rank)
                own = [r for r in rows if (r["key"], r["neuron"], r["rank"]) == wanted]
                for version in VERSIONS:
                    line.append(" / ".join(_range(own, f"{kind}_{version}") for kind in KINDS))
            lines.append(line)
    widths = [name for width in WIDTHS for name in (f"width {width}", "before")]
    return markdown_table(["neuron", "rank", *widths], lines, "lr" + "r" * len(widths))


def _range(rows: Sequence[dict[str, Any]], key: str) -> str:
    values = [f"{row[key]:.2f}" for row in rows if row.get(key) is not None]
    least, most = (min(values), max(values)) if values else ("-", "-")
    return least if least == most else f"{least}-{most}"


def published(rows_table: Callable[[Sequence[dict[str, Any]]], str]) -> Callable[[Path], str]:
    """A table of a page, with the machine it was made on."""

    def made(results: Path) -> str:
        data = json.loads((results / "bench" / "dense.json").read_text(encoding="utf-8"))
        note = (
            f"{data['machine']['cpu']}, one thread, torch {data['versions']['torch']}; processor "
            "time, medians of the ratios to linear within a turn, inference / training; before: "
            f"commit {data['before']}, by turns with this one: `{data['command']}`."
        )
        return f"{rows_table(data['rows'])}\n\n{note}"

    return made


if __name__ == "__main__":
    work(float(sys.argv[1]))
