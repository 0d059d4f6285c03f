"""Commands on neurons and networks: `quadric neurons`, `cost` and `convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Argument, Option

from quadric.cli import options


def neurons(markdown: options.Markdown = False, json_file: options.JsonFile = None) -> None:
    """List the neurons: source, formula, parameters and MACs per output.

    Where the paper prints other counts than the exact ones, both are shown, and why they differ.

    Example: quadric neurons
    """
    from quadric.layers import neuron_facts, neuron_table

    options.show(neuron_table(markdown), neuron_facts(), json_file)


def cost(
    name: str = Argument(help="A network of quadric.models, or module:factory."),
    neuron: options.Neuron = "linear",
    rank: options.Rank = None,
    compare: str | None = Option(None, help="Neurons side by side, such as linear,eigen,fan."),
    input: options.Inputs = None,
    first: options.First = None,
    markdown: options.Markdown = False,
    json_file: options.JsonFile = None,
) -> None:
    """Count the parameters and MACs of a network, layer by layer, or of several neurons in it.

    Counts are for one input, and nothing is computed: the network runs on the meta device.

    Example: quadric cost resnet20 --neuron eigen --rank 9
    """
    from quadric.models.named import compare_neurons, comparison_table, network_cost

    if compare is None:
        report = network_cost(name, neuron, rank, first, input)
        options.show(report.to_markdown() if markdown else report, report.to_dict(), json_file)
    else:
        rows: Any = compare_neurons(name, options.words(compare), rank, first, input)
        options.show(comparison_table(rows, markdown), rows, json_file)


def convert(
    checkpoint: Path = Argument(help="A torch state dict or safetensors file."),
    model: str = Option(..., help="A network of quadric.models, or module:factory."),
    out: Path = Option(..., "--out", "-o", help="The safetensors file to write."),
    neuron: options.Neuron = "eigen",
    rank: options.Rank = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    first: options.First = None,
    head: bool = Option(False, "--head", help="Convert the last layer too."),
    input: options.Inputs = None,
    set_: options.NetworkOptions = None,
    json_file: options.JsonFile = None,
) -> None:
    """Make a trained network quadratic without changing what it computes.

    The file written loads with quadric.load_ into the plain network, which it converts. Torch files
    are read without unpickling anything but tensors.

    Example: quadric convert resnet18.pth --model resnet18 --rank 9 -o quadratic.safetensors
    """
    from quadric.models.weight_files import convert_checkpoint

    report = convert_checkpoint(
        checkpoint, out, model, neuron, rank, include, exclude, first, head, input, set_
    )
    options.show(f"{report}\nwrote {out}", report.to_dict() | {"out": str(out)}, json_file)
