"""Compile the GPU's kernels for GPUs that are not there, and note what they need of a processor.

    python tools/gpu_resources.py          # results/gpu_resources.json; takes some minutes
    python tools/readme_tables.py          # the table of docs/gpus.md

Triton compiles them with its own ptxas; registers, stack and shared memory are read from the
machine code. It says nothing about speed: for that, run `quadric bench` on a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from quadric.ops import gpu
from quadric.ops.blocks import Blocks, eigen_blocks, shared_blocks
from quadric.support import provenance
from quadric.support.texttable import markdown_table

OUT = Path(__file__).resolve().parent.parent / "results" / "gpu_resources.json"
ARCHITECTURES = (80, 90, 100)
RANKS = (2, 9, 16, 63)
LAYOUTS: dict[str, tuple[tuple[int, ...], int]] = {
    "rows": ((1024, 512), -1),
    "rows, odd": ((1001, 501), -1),
    "planes": ((128, 64, 32, 32), -3),
    "planes, odd": ((127, 63, 7, 7), -3),
}
"""Shapes and channel dimensions. Where 16 divides a number, Triton makes other code of it."""

BOUNDS = {
    direction: {"registers": registers, "shared": 16384}
    for direction, registers in gpu.REGISTERS.items()
}
"""What a kernel may need at most: registers of a thread, bytes of shared memory.

A processor has 65,536 registers: with 64 for each of 256 threads 4 programs run on it at once, with
128 there are 2. Nothing may be spilled.
"""

_POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}


class Variant(NamedTuple):
    """One kernel for one layer, dtype and memory layout."""

    blocks: Blocks
    dtype: torch.dtype
    layout: str
    direction: str  # forward or backward


def variants(
    ranks: Iterable[int] = RANKS, dtypes: Iterable[torch.dtype] = gpu.DTYPES
) -> Iterator[Variant]:
    """Every combination."""
    for make, rank in itertools.product((eigen_blocks, shared_blocks), ranks):
        for layout, dtype, direction in itertools.product(LAYOUTS, dtypes, BOUNDS):
            shape, dim = LAYOUTS[layout]
            yield Variant(make(shape[dim], rank), dtype, layout, direction)


def plan_of(variant: Variant) -> gpu.Launch:
    """How the kernel would go over a tensor."""
    shape, dim = LAYOUTS[variant.layout]
    z = torch.empty(shape, dtype=variant.dtype, device="meta")
    return gpu.plan(z, variant.blocks, dim, backward=variant.direction == "backward")


def source(variant: Variant, plan: gpu.Launch) -> Any:
    """The kernel as a call of it would specialize it."""
    from triton.compiler import ASTSource

    from quadric.ops import triton_kernels

    kernel: Any = getattr(triton_kernels, variant.direction)
    numbers = plan.layout._asdict() | {
        "num_tiles": plan.tiles,
        "num_eigenvalues": variant.blocks.num_eigenvalues,
    }
    types = {"table": "*i32", "totals": "*fp32", "eigenvalues": "*fp32"}
    signature, constants, attributes = {}, {}, {}
    for i, name in enumerate(kernel.arg_names):
        number = plan.constants.get(name, numbers.get(name))
        if name in plan.constants or number == 1:
            signature[name], constants[(i,)] = "constexpr", number
            continue
        signature[name] = types.get(name, _POINTERS[variant.dtype]) if number is None else "i32"
        if number is None or number % 16 == 0:
            attributes[(i,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constants, attributes)


def compiled(variant: Variant, architecture: int) -> Any:
    """The kernel for a GPU of one architecture."""
    import triton
    from triton.backends.compiler import GPUTarget

    plan, target = plan_of(variant), GPUTarget("cuda", architecture, 32)
    return triton.compile(source(variant, plan), target=target, options=plan.options)


def resources(variant: Variant, architecture: int) -> dict[str, Any]:
    """What the machine code needs."""
    import triton

    kernel = compiled(variant, architecture)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", told)}
    blocks = variant.blocks
    return {
        "neuron": "eigen" if blocks.shape == "star" else "shared",
        "rank": blocks.size - (blocks.shape == "star"),
        "dtype": str(variant.dtype).removeprefix("torch."),
        "layout": variant.layout,
        "direction": variant.direction,
        "architecture": f"sm{architecture}",
        "registers": used["REG"],
        "spilled": used["STACK"] + used["LOCAL"],
        "shared": kernel.metadata.shared,
    }


_KEYS = ("architecture", "neuron", "rank", "direction")
_NEEDS = ("registers", "spilled", "shared")


def summed_up(rows: Iterable[dict[str, Any]], keys: Sequence[str] = _KEYS) -> list[dict[str, Any]]:
    """The most that any variant needs, for rows that agree in `keys`."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [
        dict(zip(keys, key, strict=True))
        | {"variants": sum(row.get("variants", 1) for row in own)}
        | {need: max(row[need] for row in own) for need in _NEEDS}
        for key, own in groups.items()
    ]


def faults(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that need more than `BOUNDS` allows."""
    return [
        row
        for row in rows
        if row["spilled"] or any(row[key] > most for key, most in BOUNDS[row["direction"]].items())
    ]


def resources_table(results: Path) -> str:
    """The most that each kernel needs, over ranks, dtypes and layouts."""
    data = json.loads((results / OUT.name).read_text(encoding="utf-8"))
    lines = []
    for row in summed_up(data["rows"], ("architecture", "neuron", "direction")):
        bounds = data["bounds"][row["direction"]]
        cells = [f"{row[need]:,} (of {bounds[need]:,})" for need in ("registers", "shared")]
        kind = [row["architecture"], row["neuron"], row["direction"], row["variants"]]
        lines.append([*kind, cells[0], row["spilled"], cells[1]])
    header = ["compiled for", "neuron", "pass", "variants", "registers", "spilled", "shared memory"]
    version = data["versions"]["triton"]
    table = markdown_table(header, lines, "lllrrrr")
    return f"{table}\n\nTriton {version}, no GPU: `{data['command']}`."


def main(arguments: Sequence[str] | None = None) -> None:
    """Compiles all and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    given = parser.parse_args(arguments)
    rows = []
    for architecture in ARCHITECTURES:
        rows += [resources(variant, architecture) for variant in variants(given.ranks)]
        print(f"sm{architecture}: done", flush=True)
    data = {"bounds": BOUNDS, "rows": summed_up(rows)} | provenance.stamp("triton")
    data["command"] = "python tools/gpu_resources.py"
    provenance.write_json(given.out, data)
    if wrong := faults(rows):
        raise SystemExit(f"{len(wrong)} kernels need more than they may, the first: {wrong[0]}")


if __name__ == "__main__":
    main()
