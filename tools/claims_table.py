"""The paper's claims, one by one, beside what was counted or measured here.

Words and verdicts are ours; every number of the column "here" is counted, or read from results/.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from evidence_runs import read_piece
from result_tables import changed, experiment_rows, spread
from results_summary import points, run_files, scores

from quadric import cost, models
from quadric.data.intervals import mean_difference
from quadric.support.texttable import markdown_table
from quadric.train.tasks import Metric

SMALL = "linear_shrunk"
"""The linear Transformer that is a fifth smaller."""


def fewer(name: str, base: str, neuron: str) -> str:
    """How many percent fewer parameters and MACs a network has than a linear one."""
    with torch.device("meta"):
        x = torch.zeros(1, 3, 32, 32)
        found = cost(models.create(name, neuron), x).compare(cost(models.create(base), x))
    ratios = (found["params_ratio"], found["macs_ratio"])
    return " / ".join(f"{100 - 100 * ratio:.1f}" for ratio in ratios) + " %"


def percent(row: Mapping[str, Any]) -> str:
    """An accuracy with its spread."""
    return f"{spread(row, 100, '.1f')} %"


def ahead(results: Path, arm: str, other: str) -> str:
    """By how many points one network is ahead of another, paired by seed, as `changed` writes it.

    Args:
        results: the folder.
        arm: FOLDER/EXPERIMENT-ARM, as its files are named.
        other: the same for the other network.
    """
    (own, metric), (base, _) = (runs_of(results, which) for which in (arm, other))
    gap = mean_difference([own[seed] - base[seed] for seed in sorted(set(own) & set(base))])
    return changed({"is_clear": gap.is_clear, **points(gap, metric.scale)})


def runs_of(results: Path, arm: str) -> tuple[dict[int, float], Metric]:
    """The scores of a network's runs by seed, and what they are."""
    folder, _, name = arm.partition("/")
    experiment, _, name = name.partition("-")
    files = run_files(results / folder)[experiment, name]
    return scores({seed: read_piece(path) for seed, path in files.items()})


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
    lines = []
    for path in sorted((results / "images").glob("*.analysis.json")):
        found = read_piece(path)
        lines.append(
            f"- {found['neuron']}: {deviations(found)}. {found['low_frequency']['sentence']}"
        )
    return "\n".join(lines)


def smaller_transformers(results: Path) -> str:
    """What neurons gain in a Transformer a fifth smaller, over the linear one as small."""
    experiment = "translation/multi30k10"
    gaps = [
        f"{arm.replace('_', ' ')} {ahead(results, f'{experiment}-{arm}', f'{experiment}-{SMALL}')}"
        for arm in experiment_rows(results, experiment)
        if arm not in ("linear", SMALL)
    ]
    return f"BLEU against the small linear network, paired by seed: {', '.join(gaps)}."


def rows(results: Path) -> Iterator[list[str]]:
    """Claim, what was found, whether it holds."""
    small, deep, kerv = (
        experiment_rows(results, f"images/{name}") for name in ("r8", "r20", "knn18")
    )
    texts = experiment_rows(results, "translation/multi30k10")
    small_texts = (f"translation/multi30k10-{arm}" for arm in ("eigen_shrunk", SMALL))
    gap = ahead(results, *small_texts)
    analysis = read_piece(results / "images" / "full20-eigen-s0.analysis.json")
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
        markdown_table(["the paper says", "here", "holds?"], list(rows(results)), "lll")
        + "\n\nPoints: the difference, paired by seed, with its 95 % interval in brackets, "
        "**bold** where that leaves 0 out. ±: standard deviation over seeds. Pairs of percent: "
        "parameters / MACs."
    )
