"""Files that hold only a part of what an exported network adds to the linear one: they compute
nothing of use, and their latency is a bound for any file with that part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

PARTS = {"squares": "only the squares", "mixing": "only their mixing"}
"""What is left in the files that bound the others: z z, or its product with the eigenvalues."""


def reduced(file: Path, out: Path, part: str) -> bool:
    """Writes a file in which only a part is left of what stands behind the linear maps.

    Behind a convolution that is a product z z, one or two 1x1 convolutions and a sum, which no part
    has; behind a matrix product the same with matrix products, of which the last one adds z itself.

    Args:
        file: an ONNX file of `export_onnx`.
        out: the new file.
        part: a key of `PARTS`.

    Returns:
        Whether there were any squares.
    """
    import onnx

    model = onnx.load(file)
    graph = model.graph
    maker = {output: node for node in graph.node for output in node.output}
    gone, renamed = [], {}
    for node in graph.node:
        steps = _steps(node, maker)
        if not steps:
            continue
        square = maker[steps[-1].input[0]]
        if part == "squares":
            renamed[node.output[0]] = square.output[0]
            gone += [step for step in steps if step is not node] + [node]
        else:
            steps[-1].input[0] = square.input[0]
            gone.append(square)
            if steps[0] is not node:
                renamed[node.output[0]] = steps[0].output[0]
                gone.append(node)
    for node in gone:
        graph.node.remove(node)
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = renamed.get(name, name)
    onnx.save(model, out)
    return bool(gone)


def _steps(node: Any, maker: dict[str, Any]) -> list[Any]:
    """What mixes the squares that a node adds to the output they are squares of, the last first."""
    if node.op_type == "Add":
        linear, kind, steps = node.input[1], "Conv", []
        before = maker.get(node.input[0])
    elif node.op_type == "Gemm" and len(node.input) == 3:
        linear, kind, steps = node.input[2], "MatMul", [node]
        before = maker.get(node.input[0])
    else:
        return []
    while before is not None and before.op_type == kind:
        steps.append(before)
        before = maker.get(before.input[0])
    if before is None or before.op_type != "Mul" or set(before.input) != {linear}:
        return []
    return steps
