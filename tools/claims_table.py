"""The paper's claims, one by one, beside what was counted or measured here.

Words and verdicts are ours; every number of the column "here" is counted, or read from results/.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from evidence_runs import read_csv, read_piece
from result_tables import changed, experiment_rows, signed, spread
from results_summary import run_files

from quadric import cost, models
from quadric.data.intervals import mean_difference
from quadric.texttable import markdown_table


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
    """By how many points of accuracy one ResNet-8 is ahead of another, paired by seed."""
    files = run_files(results / "images")
    own, base = (
        {seed: read_piece(path)["test_accuracy"] for seed, path in files["r8", name].items()}
        for name in (arm, other)
    )
    gap = mean_difference([100 * (own[seed] - base[seed]) for seed in own if seed in base])
    return f"{signed(gap.mean)} ± {gap.half_width:.1f}"


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


def rows(results: Path) -> Iterator[list[str]]:
    """Claim, what was found, whether it holds."""
    small, kerv = (experiment_rows(results, f"images/{name}") for name in ("r8", "knn18"))
    analysis = read_piece(results / "images" / "full20-eigen-s0.analysis.json")
    low = analysis["low_frequency"]
    trials = {row["run"]: row for row in read_csv(results / "translation" / "tuning.csv")}
    whole = read_piece(results / "translation" / "multi30k20-linear-s0.json")
    (sixth,) = (point for point in whole["epochs"] if point["epoch"] == 6)
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
        f"ResNet-8 at 16x16, 12 epochs: {changed(small['eigen'])} points against linear; with the "
        f"paper's rate of 1e-4, {changed(small['eigen_paper'])}",
        "not seen in small",
    ]
    yield [
        "ResNet-56: about half of a linear ResNet-110, at a similar accuracy (Fig. 4)",
        f"{fewer('resnet56', 'resnet110', 'eigen')} fewer; accuracy not measured",
        "the size, counted; accuracy open",
    ]
    yield [
        "More accurate than Fan's neuron with 24.4 % fewer parameters (Fig. 5)",
        f"the same ResNet-8, at equal parameters: {ahead(results, 'eigen', 'fan')} points against "
        f"Fan's neuron; linear {ahead(results, 'linear', 'fan')}",
        "in small, yes; linear is, too",
    ]
    yield ["QuadraLib's neuron gets worse with depth (Fig. 5)", "not measured", "open"]
    yield [
        "Kervolution in 11 or 15 layers is unstable, eigen in all layers is not (Fig. 6)",
        f"ResNet-18 in small, {kerv['eigen']['seeds']} seeds: kervolution in 3, 11, 15 layers "
        f"{percent(kerv['knn3'])}, {percent(kerv['knn11'])}, {percent(kerv['knn15'])}; linear "
        f"{percent(kerv['linear'])}; eigen {percent(kerv['eigen'])} (quadratic share "
        f"{kerv['eigen']['quadratic_share']:.3f}), with a larger rate "
        f"{percent(kerv['eigen_large'])} (share {kerv['eigen_large']['quadratic_share']:.2f})",
        "in small, yes",
    ]
    yield [
        "A Transformer 20.3 % smaller, with eigen in the attention: BLEU 25.4 for 25.3 (Table II)",
        "Multi30k, validation loss after 6 epochs: eigen "
        f"{float(trials['tune-attention_eigen-s0']['val_loss']):.3f}, linear "
        f"{sixth['val_loss']:.3f}, one seed",
        "open",
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
    return markdown_table(["the paper says", "here", "holds?"], list(rows(results)), "lll")
