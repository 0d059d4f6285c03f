"""Tables of what is counted by the library itself, and of the paper's claims beside what was found.

Words and verdicts of the claims are ours; every number is counted, or read from results/.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from results_summary import Row, arms_of, changed, run_groups, spread
from tables_of_evidence import ahead, named_group

from quadric import cost, models
from quadric.layers.table import neuron_table
from quadric.models.registry import SENTENCE
from quadric.models.transformer import FEEDFORWARD
from quadric.support.texttable import markdown_table
from quadric.train import catalog


def counted_neurons(_: Path) -> str:
    """Every neuron of the registry."""
    return neuron_table(markdown=True)


def savings(_: Path) -> str:
    """Eigen networks against deeper linear ones, as the paper compares them."""
    rows = []
    for ours, theirs in ((32, 44), (56, 110)):
        with torch.device("meta"):
            x = torch.zeros(1, 3, 32, 32)
            eigen = cost(models.create(f"resnet{ours}", neuron="eigen", rank=9), x)
            same = cost(models.create(f"resnet{ours}"), x)
            deeper = cost(models.create(f"resnet{theirs}"), x)
        base = ["", ""]
        rows.append([f"linear ResNet-{theirs}", f"{deeper.params:,}", f"{deeper.macs:,}", *base])
        for name, report in ((f"linear ResNet-{ours}", same), (f"eigen ResNet-{ours}", eigen)):
            saved = report.compare(deeper)
            fewer = [f"{1 - ratio:.1%}" for ratio in (saved["params_ratio"], saved["macs_ratio"])]
            rows.append([name, f"{report.params:,}", f"{report.macs:,}", *fewer])
    header = ["network", "parameters", "MACs", "fewer parameters", "fewer MACs"]
    return markdown_table(header, rows, "lrrrr")


def transformers(_: Path) -> str:
    """Transformers of the paper's size and small ones, and how the shrunk ones compare."""
    rows = []
    places: dict[str, dict[str, Any]] = {
        "linear": {},
        "eigen in the attention": {"neuron": "eigen"},
        "eigen in the feed-forward layers": {"neuron": "eigen", "include": FEEDFORWARD},
    }
    for name, vocabulary in (("transformer", 37_000), ("transformer_tiny", 8_000)):
        whole = 0
        for preset in (name, f"{name}_shrunk"):
            for place, options in places.items():
                with torch.device("meta"):
                    network = models.create(preset, vocabulary=vocabulary, **options)
                    inputs = models.example_inputs(preset)
                    report = cost(network, *inputs)
                rest = report.params - network.get_parameter("embedding.weight").numel()
                whole = whole or rest
                less = "" if rest == whole else f" ({100 * (rest / whole - 1):+.1f} %)"
                each = report.macs // inputs[0].numel()
                numbers = [f"{report.params:,}", f"{rest:,}{less}", f"{each:,}"]
                rows.append([f"`{preset}`, {place}", *numbers])
    header = ["network", "parameters", "without embeddings", "MACs per token"]
    return markdown_table(header, rows, "lrrr")


# Training pictures of the data sets; a Transformer learns from steps of target tokens.
PICTURES = {"cifar10": 50_000, "cifar100": 50_000, "folders": 1_281_167}
FULL_SIZE = (
    *(f"cifar10-resnet{depth}" for depth in (20, 32, 44, 56, 110)), "cifar10-wide-resnet20",
    "cifar100-resnet20", "imagenet-resnet18", "wmt14-transformer",
)  # fmt: skip


def full_size_table(_: Path) -> str:
    """The paper's experiments: what a run computes, counted and not timed."""
    cells = []
    for name in FULL_SIZE:
        for neuron in ("linear", "eigen"):
            recipe = catalog.load(name).with_overrides({"neuron": neuron}).resolved()
            options: dict[str, Any] = {"channels": recipe.channels} if recipe.channels else {}
            if recipe.dataset == "cifar100":
                options["num_classes"] = 100
            with torch.device("meta"):
                network = models.create(recipe.model, neuron, recipe.rank, **options)
                examples = [x.to("meta") for x in models.example_inputs(recipe.model, **options)]
            found = cost(network, *examples)
            if recipe.epoch_steps:  # sentence pairs of 32 tokens
                inputs = recipe.epochs * recipe.epoch_steps * recipe.batch_size / SENTENCE
            else:
                inputs = recipe.epochs * PICTURES[recipe.dataset]
            where = " --data-dir imagenet" if recipe.dataset == "folders" else ""
            cells.append([
                f"`quadric train {name} --neuron {neuron}{where}`", f"{found.params:,}",
                f"{found.macs:,}", str(recipe.epochs), f"{3 * found.macs * inputs:.2g}",
            ])  # fmt: skip
    header = ["command", "parameters", "MACs for one input", "epochs", "MACs of the training"]
    return (
        markdown_table(header, cells, "lrrrr")
        + "\n\nMACs of the training: three times the forward pass, for every "
        "picture of every epoch; for translation, sentence pairs of 32 tokens. A GPU does two "
        "floating-point operations for a MAC, and reaches a part of its peak: divide, then time "
        "one epoch yourself."
    )


def fewer(name: str, base: str, neuron: str) -> str:
    """How many percent fewer parameters and MACs a network has than a linear one."""
    with torch.device("meta"):
        x = torch.zeros(1, 3, 32, 32)
        found = cost(models.create(name, neuron), x).compare(cost(models.create(base), x))
    ratios = (found["params_ratio"], found["macs_ratio"])
    return " / ".join(f"{100 - 100 * ratio:.1f}" for ratio in ratios) + " %"


def percent(row: Row) -> str:
    """An accuracy with its spread."""
    return f"{spread(row, 100, '.1f')} %"


def over_layers(analysis: Mapping[str, Any], part: str) -> str:
    """How much the deviation of a kind of parameters differs between layers, relative to it."""
    found = [layer[part]["std"] for layer in analysis["layers"] if layer["quadratic"]]
    return f"{100 * statistics.stdev(found) / statistics.fmean(found):.0f} %"


def deviations(analysis: Mapping[str, Any]) -> str:
    """What Fig. 7 shows, in numbers."""
    weights, quadratic, true = (
        over_layers(analysis, part) for part in ("weights", "quadratic", "eigenvalues")
    )
    return (
        f"the standard deviation of the weights varies by {weights} over the layers, that of the "
        f"quadratic parameters by {quadratic}, that of the true eigenvalues by {true}"
    )


def analyses(results: Path) -> str:
    """What `quadric analyze` measured on the published networks."""
    runs = (run for group in run_groups(results / "images").values() for run in group.runs)
    return "\n".join(
        f"- {run.neuron}: {deviations(run.analysis)}. {run.analysis['low_frequency']['sentence']}"
        for run in runs
        if run.analysis is not None
    )


def claims(results: Path) -> Iterator[list[str]]:
    """Claim, what was found, whether it holds."""
    small, deep, kerv = (arms_of(results, f"images/{name}") for name in ("r8", "r20", "knn18"))
    texts = arms_of(results, "translation/multi30k10")
    small_texts = (f"translation/multi30k10-{a}" for a in ("eigen_shrunk", "linear_shrunk"))
    gap = ahead(results, *small_texts)
    analysis = named_group(results, "images/full20-eigen").first.analysis
    assert analysis is not None
    low = analysis["low_frequency"]
    yield [
        "n + k/(k+1) parameters and n + 2k/(k+1) MACs for an output (Table I)",
        "the same, counted in every layer",
        "yes",
    ]
    yield [
        "ResNet-32: 29.3 / 28.3 % fewer parameters / operations than a linear ResNet-44 (Fig. 4)",
        f"{fewer('resnet32', 'resnet44', 'eigen')}; a linear ResNet-32 saves "
        f"{fewer('resnet32', 'resnet44', 'linear')}",
        "yes, counted",
    ]
    yield [
        "... at a better accuracy (Fig. 4)",
        f"ResNet-8 and -20 at 16x16, 12 epochs: {changed(small['eigen'])} and "
        f"{changed(deep['eigen'])} points against linear; ResNet-8 with the paper's rate of 1e-4, "
        f"{changed(small['eigen_paper'])}. A ResNet-14, {fewer('resnet14', 'resnet20', 'eigen')} "
        "smaller, against a linear ResNet-20: eigen "
        f"{ahead(results, 'images/r14-eigen', 'images/r20-linear')}, linear "
        f"{ahead(results, 'images/r14-linear', 'images/r20-linear')}",
        "not seen in small networks",
    ]
    yield [
        "ResNet-56: about half of a linear ResNet-110, at a similar accuracy (Fig. 4)",
        f"{fewer('resnet56', 'resnet110', 'eigen')} fewer; accuracy not measured",
        "the size, counted; accuracy open",
    ]
    yield [
        "More accurate than Fan's neuron with 24.4 % fewer parameters (Fig. 5)",
        "the same ResNet-8, at equal parameters, against Fan's neuron: eigen "
        f"{ahead(results, 'images/r8-eigen', 'images/r8-fan')}, linear "
        f"{ahead(results, 'images/r8-linear', 'images/r8-fan')}",
        "in small networks, yes; linear is, too",
    ]
    yield [
        "QuadraLib's neuron gets worse with depth (Fig. 5)",
        f"ResNet-8 and -20 at 16x16, at equal parameters: {changed(small['quadralib'])} and "
        f"{changed(deep['quadralib'])} points against linear",
        "in small networks, yes, at one choice of rates",
    ]
    yield [
        "Kervolution in 11 or 15 layers is unstable, eigen in all layers is not (Fig. 6)",
        f"a small ResNet-18, {kerv['eigen']['seeds']} seeds: kervolution in 3, 11, 15 layers "
        f"{percent(kerv['knn3'])}, {percent(kerv['knn11'])}, {percent(kerv['knn15'])}; linear "
        f"{percent(kerv['linear'])}; eigen {percent(kerv['eigen'])} (quadratic share "
        f"{kerv['eigen']['quadratic_share']:.3f}), with a larger rate "
        f"{percent(kerv['eigen_large'])} (share {kerv['eigen_large']['quadratic_share']:.2f})",
        "in small networks, yes",
    ]
    yield [
        "A Transformer 20.3 % smaller, with eigen in the attention: BLEU 25.4 for 25.3 (Table II)",
        f"Multi30k, 10 epochs, a linear Transformer: BLEU {spread(texts['linear'], 1, '.1f')}; "
        "a fifth smaller without embeddings: linear "
        f"{spread(texts['linear_shrunk'], 1, '.1f')}, eigen "
        f"{spread(texts['eigen_shrunk'], 1, '.1f')}, that is {gap} points, at a quadratic share of "
        f"{texts['eigen_shrunk']['quadratic_share']:.4f}",
        "not seen in small networks",
    ]
    yield [
        "Quadratic parameters differ more between layers than linear ones (Fig. 7)",
        f"ResNet-20 on CIFAR-10: {deviations(analysis)}",
        "no for the parameters; open for the eigenvalues",
    ]
    yield [
        "Quadratic responses hold lower frequencies than linear ones (Fig. 8)",
        f"the same network: clearly in {low['more']} of {low['layers']} layers, clearly the "
        f"opposite in {low['less']}",
        "not in this network",
    ]


def claims_table(results: Path) -> str:
    """The claims as a table."""
    return (
        markdown_table(["the paper says", "here", "holds?"], list(claims(results)), "lll")
        + "\n\nPoints: the difference, paired by seed, with its 95 % interval in brackets, "
        "**bold** where that leaves 0 out. ±: standard deviation over seeds. Pairs of percent: "
        "parameters / MACs."
    )


COUNTED_TABLES: Mapping[str, Callable[[Path], str]] = {
    "neurons": counted_neurons,
    "savings": savings,
    "transformers": transformers,
    "full-size": full_size_table,
    "claims": claims_table,
    "analyses": analyses,
}
