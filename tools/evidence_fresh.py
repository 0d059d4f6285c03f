"""Choose the rate of the eigenvalues of networks that start from random weights; judge it apart.

    python tools/evidence_fresh.py             # goes on where it was
    python tools/evidence_fresh.py --summary   # prints the table of docs/choosing.md

Two hidden layers with no more parameters than a linear network of 32 and 32 neurons, SiLU, 2,000
rows of a law, Adam with a cosine schedule, 800 steps of 128 rows. On seven laws `linear` and `glu`
choose one of four rates; the quadratic neurons take the rate of `linear`, and choose one factor for
the eigenvalues of all, of four; `shared` also without the scale. What was chosen is then judged on
twelve other laws and on digits, with other seeds. The error is the root mean square on 2,000
other rows as a share of their deviation; of digits the cross-entropy on 797 pictures.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from evidence_runs import (
    Arm,
    as_factor,
    fitted,
    make_network,
    parser_of,
    read_piece,
    run_cells,
    scaled,
)
from sklearn.datasets import load_digits
from torch import Tensor

import quadric
from quadric.data import laws
from quadric.data.intervals import mean_difference
from quadric.layers.scale import ScaledEigenvalues
from quadric.support.texttable import markdown_table

ROWS, TEST_ROWS, WIDTH, STEPS, BATCH = 2_000, 2_000, 32, 800, 128
PLAIN, SQUARES = (Arm("linear"), Arm("glu")), (Arm("shared", 8), Arm("eigen", 9), Arm("square"))
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
FACTORS = {True: (3.0, 9.0, 27.0, 81.0), False: (0.1, 0.3, 1.0, 3.0)}  # with the scale, without
CHOICE = [(law, 0) for law in laws.names()[::4]]
JUDGED = {
    "twelve laws": [(law, 10) for law in (*laws.names()[1::4], *laws.names()[2::4])],
    "digits, cross-entropy": [("digits", seed) for seed in (10, 11, 12)],
}

WAYS = [(arm, True) for arm in (*PLAIN, *SQUARES)] + [(arm, False) for arm in SQUARES[:1]]
KEY = ("arm", "task", "seed", "rate", "factor", "scale")

Fit = dict[str, Any]


def table(task: str, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows to learn from and rows to judge by, standardized by the first ones."""
    if task == "digits":
        X, y = load_digits(return_X_y=True)
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        inputs, targets = torch.tensor(X)[order].float() / 8 - 1, torch.tensor(y)[order]
        return inputs[:1000], targets[:1000], inputs[1000:], targets[1000:]
    data = laws.table(task, ROWS, TEST_ROWS, seed=seed, dtype=torch.float64)
    columns = ((data.train_inputs, data.test_inputs), (data.train_targets, data.test_targets))
    (X, X_test), (y, y_test) = (
        [scaled(part, pair[0]).float() for part in pair] for pair in columns
    )
    return X, y, X_test, y_test


def measure(arm: Arm, task: str, seed: int, rate: float, factor: float, scale: bool) -> Fit:
    """The error of one network on rows that it has not seen, and the seconds."""
    X, y, X_test, y_test = table(task, seed)
    network = make_network(fitted(arm, X.shape[1], WIDTH, 10 if task == "digits" else 1), seed)
    for layer in network:
        if isinstance(layer, ScaledEigenvalues) and not scale:
            layer.drop_scale_()
    begin = time.process_time()
    optimizer = torch.optim.Adam(quadric.param_groups(network, rate, factor * rate))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    cost = F.cross_entropy if task == "digits" else F.mse_loss
    draw = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        rows = torch.randint(len(X), (BATCH,), generator=draw)
        optimizer.zero_grad()
        cost(network(X[rows]), y[rows]).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        error = cost(network(X_test), y_test).item()
    if task != "digits":
        error = math.sqrt(error) / float(y_test.std())
    return {"error": error, "seconds": round(time.process_time() - begin, 2)}


def choose(fits: list[Fit], arm: Arm, scale: bool = True) -> tuple[float, float]:
    """The rate and factor with the lowest geometric mean of errors on the laws to choose by.

    The quadratic neurons with a scale choose together: a recipe has one factor for all.
    """
    together = {a.name for a in SQUARES} if scale and arm in SQUARES else {arm.name}
    means = defaultdict(list)
    for fit in fits:
        if (
            fit["arm"] in together
            and fit["scale"] == scale
            and (fit["task"], fit["seed"]) in CHOICE
        ):
            means[fit["rate"], fit["factor"]].append(math.log(fit["error"]))
    return min(means, key=lambda trial: statistics.fmean(means[trial]))


def trials(path: Path) -> Iterator[tuple[Any, ...]]:
    """What is fitted, one after another: first what chooses, then what is judged."""
    for arm, rate, (task, seed) in itertools.product(PLAIN, RATES, CHOICE):
        yield arm.name, task, seed, rate, 1.0, True
    rate, _ = choose(read_piece(path)["fits"], PLAIN[0])
    for arm, scale in WAYS[len(PLAIN) :]:
        for factor, (task, seed) in itertools.product(FACTORS[scale], CHOICE):
            yield arm.name, task, seed, rate, factor, scale
    fits = read_piece(path)["fits"]
    for task, seed in itertools.chain(*JUDGED.values()):
        for arm, scale in WAYS:
            yield arm.name, task, seed, *choose(fits, arm, scale), scale


def fresh_table(results: Path) -> str:
    """Errors by the chosen rates on laws and digits that did not choose, beside linear."""
    fits = read_piece(results / "fresh.json")["fits"]
    judged = {(f["arm"], f["scale"], f["task"], f["seed"]): f["error"] for f in fits}
    rows = []
    for arm, scale in WAYS:
        rate, factor = choose(fits, arm, scale)
        tried = ", ".join(_tried(fits, arm, scale, rate))
        cells = [f"`{arm.name}`" + ("" if scale else ", no scale"), tried, f"{rate:g}"]
        cells.append(f"{factor:g}" if arm in SQUARES else "")
        for cells_of in JUDGED.values():
            logs = [
                math.log(judged[arm.name, scale, task, seed] / judged["linear", True, task, seed])
                for task, seed in cells_of
            ]
            mean, low, high = as_factor(mean_difference(logs))
            cells.append("1" if arm == PLAIN[0] else f"{mean:.2f} ({low:.2f}–{high:.2f})")
        rows.append(cells)
    header = ["neuron", "errors of the trials", "rate", "factor", *JUDGED]
    note = (
        "Trials: rates for `linear` and `glu`, factors for the others; geometric means on seven "
        "laws. The last columns are of other tasks and seeds, as a multiple of `linear`; in "
        "brackets the 95 % interval over laws, or over three seeds. Made by `python "
        "tools/evidence_fresh.py`."
    )
    return f"{markdown_table(header, rows, 'llrrrr')}\n\n{note}"


def _tried(fits: list[Fit], arm: Arm, scale: bool, rate: float) -> Iterator[str]:
    """Each trial with its error."""
    for trial in RATES if arm in PLAIN else FACTORS[scale]:
        own = (trial, 1.0) if arm in PLAIN else (rate, trial)
        errors = [
            fit["error"]
            for fit in fits
            if (fit["arm"], fit["scale"], fit["rate"], fit["factor"]) == (arm.name, scale, *own)
            and (fit["task"], fit["seed"]) in CHOICE
        ]
        yield f"{trial:g}: {math.exp(statistics.fmean(map(math.log, errors))):.3f}"


def main() -> None:
    """Fits what is missing."""
    given = parser_of(__doc__, "results/fresh.json").parse_args()
    torch.set_num_threads(1)
    if given.summary:
        print(fresh_table(given.out.parent))
        return
    arms = {arm.name: arm for arm, _ in WAYS}
    run_cells(
        given.out, "fits", KEY, trials(given.out), lambda name, *rest: measure(arms[name], *rest),
        {"rows": ROWS, "steps": STEPS}, "scikit-learn",
    )  # fmt: skip


if __name__ == "__main__":
    main()
