"""Classify digits without any activation function, and write what came out.

    python tools/evidence_polynomial.py             # tunes, trains, tests; goes on where it was
    python tools/evidence_polynomial.py --summary   # sums up what is there

Perceptrons with three hidden layers, at most the parameters of a linear one with 32 neurons each.
Without activations the squares are the only non-linearity, and the network is a polynomial of
degree 8, as inference on encrypted data needs it. Squares of squares can explode; what helps:

- lowrate: the quadratic parameters learn with a tenth of the learning rate;
- clip: gradients are clipped at norm 1;
- norm: a batch normalization after each hidden layer, which is affine in use.

ARM.json has five seeds on the test pictures. The learning rate (three values) is chosen for each
arm on a fifth of the training pictures with another seed.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from evidence_runs import (
    Arm,
    mean_and_std,
    parser_of,
    read_piece,
    scores_of,
    share_and_seconds,
    write_csv,
    write_piece,
)
from torch import Tensor, nn
from torch.nn import functional as F

from quadric import models, param_groups, quadratic_share
from quadric.data import digits
from quadric.data.intervals import mean_difference
from quadric.layers import QuadraticLayer
from quadric.models import SizedNetwork
from quadric.train.schedule import make_schedule

HIDDEN, BATCH, RATES = (32, 32, 32), 64, (3e-3, 1e-2, 3e-2)
SEEDS, TUNING_SEED = range(10, 15), 0
SQUARED = "x²"


class Square(nn.Module):
    """x², the activation function of the first networks on encrypted data."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x


@dataclass(frozen=True)
class Network:
    """One arm: its neuron, what stands after each hidden layer, and its cure."""

    arm: Arm
    activation: str = "none"
    cure: str = "none"

    @property
    def name(self) -> str:
        after = {"none": "", SQUARED: "-then-square"}.get(self.activation, f"-{self.activation}")
        return f"{self.arm.name}{after}" + ("" if self.cure == "none" else f"-{self.cure}")

    def fit(self) -> SizedNetwork:
        """The widest perceptron with no more parameters than the linear one."""
        plain: dict[str, Any] = {"in_features": 64, "out_features": 10, "hidden": HIDDEN}
        plain["activation"] = "none" if self.activation == SQUARED else self.activation
        with torch.device("meta"):
            budget = sum(p.numel() for p in models.build("mlp", **plain).parameters())
        return models.fit("mlp", params=budget, **plain, **self.arm.options())

    def make(self, seed: int) -> nn.Sequential:
        """A new network."""
        fit = self.fit()
        network = models.create(fit.name, **fit.options, seed=seed)
        assert isinstance(network, nn.Sequential)
        for name, layer in list(network.named_children()):
            if name.startswith("activation") and self.activation == SQUARED:
                network.set_submodule(name, Square())
            if name.startswith("hidden") and self.cure == "norm":
                width = fit.options["hidden"][0]
                network.set_submodule(name, nn.Sequential(layer, nn.BatchNorm1d(width)))
        return network


LINEAR = Arm("linear")
NETWORKS = [
    *(Network(LINEAR, after, cure) for after in ("none", "relu") for cure in ("none", "norm")),
    *(Network(LINEAR, SQUARED, cure) for cure in ("none", "clip", "norm")),
    *(
        Network(arm, cure=cure)
        for arm in (Arm("square"), Arm("eigen", 3), Arm("shared", 4))
        for cure in ("none", "lowrate", "clip", "norm")
    ),
]  # fmt: skip


def pictures() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test pictures as rows, and their labels."""
    data = digits.load()
    norm = data.normalization
    images = [norm(part).flatten(1) for part in (data.train_images, data.test_images)]
    return images[0], data.train_labels, images[1], data.test_labels


def train(network: Network, seed: int, lr: float, epochs: int, tuning: bool) -> dict[str, Any]:
    """One network, and what it says of the test pictures, or of those held out."""
    inputs, labels, tests, answers = pictures()
    if tuning:
        held = len(inputs) // 5
        tests, answers, inputs, labels = inputs[:held], labels[:held], inputs[held:], labels[held:]
    begin = time.process_time()
    model = network.make(seed)
    factor = 0.1 if network.cure == "lowrate" else 1.0
    optimizer = torch.optim.Adam(param_groups(model, lr, quadratic_lr=factor * lr))
    per_epoch = -(-len(inputs) // BATCH)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, make_schedule("onecycle", per_epoch, epochs)
    )
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs), generator=order).split(BATCH):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs[batch]), labels[batch])
            loss.backward()
            if network.cure == "clip":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
    model.eval()
    with torch.no_grad():
        outputs = model(tests)
    share = None
    if any(isinstance(layer, QuadraticLayer) for layer in model.modules()):
        share = quadratic_share(model, [tests]).mean
    finite = bool(outputs.isfinite().all())
    return {
        "seed": seed, "lr": lr, "status": "ok" if finite else "diverged",
        "accuracy": float((outputs.argmax(1) == answers).double().mean()) if finite else None,
        "test_loss": float(F.cross_entropy(outputs, answers)),
        "largest_output": float(outputs.abs().max()),
        "quadratic_share": share if finite else None,
        "seconds": time.process_time() - begin,
    }  # fmt: skip


def measure(out: Path, network: Network, epochs: int) -> None:
    """Tunes, trains and tests one arm, unless its file is there."""
    path = out / f"{network.name}.json"
    if path.exists():
        return
    trials = [train(network, TUNING_SEED, lr, epochs, True) for lr in RATES]
    scores = [math.inf if t["accuracy"] is None else -t["accuracy"] for t in trials]
    lr = RATES[scores.index(min(scores))]
    runs = [train(network, seed, lr, epochs, False) for seed in SEEDS]
    fit = network.fit()
    facts = {
        "neuron": network.arm.neuron, "rank": network.arm.rank, "activation": network.activation,
        "cure": network.cure, "settings": {"epochs": epochs, "batch_size": BATCH},
        "cost": {"hidden": fit.options["hidden"], "params": fit.params, "macs": fit.macs},
        "tuning": trials, "runs": runs,
    }  # fmt: skip
    write_piece(path, facts)
    print(f"{network.name}: {len(runs)} seeds", file=sys.stderr, flush=True)


def rows(out: Path) -> Iterator[dict[str, Any]]:
    """One row an arm; differences of accuracy are to linear without activation, by seed."""
    linear: dict[int, float] = {}
    for network in NETWORKS:
        path = out / f"{network.name}.json"
        if not path.exists():
            continue
        data = read_piece(path)
        runs = data["runs"]
        own = scores_of(runs, "seed", "accuracy")
        linear = linear or own
        both = sorted(set(own) & set(linear))
        gap = mean_difference([own[s] - linear[s] for s in both]) if both else None
        losses = [run["test_loss"] for run in runs if run["test_loss"] is not None]
        largest = [run["largest_output"] for run in runs if run["largest_output"] is not None]
        yield {
            "arm": network.name, "neuron": network.arm.name, "activation": network.activation,
            "cure": network.cure, "params": data["cost"]["params"], "macs": data["cost"]["macs"],
            "lr": runs[0]["lr"], "seeds": len(runs), "diverged": len(runs) - len(own),
            **mean_and_std(own, "accuracy"),
            "difference": gap and gap.mean, "half_width": gap and gap.half_width,
            "is_clear": gap is not None and gap.is_clear,
            "test_loss_mean": statistics.fmean(losses) if losses else None,
            "largest_output": max(largest, default=None),
            **share_and_seconds(runs), "command": data["command"],
        }  # fmt: skip


def summarize(out: Path) -> None:
    """Writes summary.csv."""
    write_csv(out / "summary.csv", list(rows(out)))


def main() -> None:
    """Runs the arms that are not there yet, and sums up what is."""
    parser = parser_of(__doc__, "results/polynomial")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--arms", nargs="*", help="such as shared-k4-norm; all by default")
    given = parser.parse_args()
    for network in NETWORKS:
        if not given.summary and (not given.arms or network.name in given.arms):
            measure(given.out, network, given.epochs)
    summarize(given.out)


if __name__ == "__main__":
    main()
