"""Files that hold only a part of what an exported network adds to the linear one: they compute
nothing of use, and their latency is a bound for any file with that part.
"""

from __future__ import annotations

from pathlib import Path

PARTS = {"product": "only the product", "convolution": "only the 1x1 convolution"}
"""What is left of the squares in the files that bound the others."""


def reduced(file: Path, out: Path, part: str) -> bool:
    """Writes a file in which only a part of the squares behind convolutions is left, and no sum.

    Args:
        file: an ONNX file of `export_onnx`.
        out: the new file.
        part: a key of `PARTS`: the product z z, or the 1x1 convolution (or two of them), of z
            itself.

    Returns:
        Whether there were any squares.
    """
    import onnx

    model = onnx.load(file)
    graph = model.graph
    maker = {output: node for node in graph.node for output in node.output}
    gone, renamed = [], {}
    for node in graph.node:
        if node.op_type != "Add":
            continue
        steps, square = [], maker.get(node.input[0])
        while square is not None and square.op_type == "Conv":
            steps.append(square)
            square = maker.get(square.input[0])
        linear = node.input[1]
        if not steps or square is None or square.op_type != "Mul":
            continue
        if set(square.input) != {linear}:
            continue
        if part == "product":
            renamed[node.output[0]] = square.output[0]
            gone += [*steps, node]
        else:
            renamed[node.output[0]] = steps[0].output[0]
            steps[-1].input[0] = linear
            gone += [square, node]
    for node in gone:
        graph.node.remove(node)
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = renamed.get(name, name)
    onnx.save(model, out)
    return bool(gone)
