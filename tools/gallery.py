"""Draw the pictures of docs/gallery.md that no other tool draws, from results, into docs/images/.

    python tools/gallery.py             # draws from results/
    python tools/gallery.py --measure   # finds the law and reads the digit anew, seconds

`--measure` writes results/gallery.json: a law found in noisy readings, and a digit of scikit-learn
that a server classified under encryption (extras `discover` and `encrypted`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence_functions import GRIDS
from evidence_runs import read_piece, write_piece
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from quadric import discover, encrypted, make_layer
from quadric.data import digits
from quadric.support.writing import whole_file

ROOT = Path(__file__).resolve().parent.parent
RESULTS, IMAGES = ROOT / "results", ROOT / "docs" / "images"
BLUE, ORANGE, GREEN, PURPLE, GRAY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
# How far a car goes until it stops: its speed in m/s, the friction of the road; the driver's
# seconds of reaction, and half the inverse of gravity.
CAR = {"v": (5.0, 40.0), "mu": (0.2, 0.9)}
REACTION, BRAKES = 1.2, 1 / (2 * 9.81)
READINGS, NOISE, TABLES = 200, 0.05, 20
BYTES = 64 * 64


def find_law(seed: int) -> dict[str, Any]:
    """How far a car goes until it stops, from one table of noisy readings."""
    draw = np.random.default_rng(seed)
    low, high = zip(*CAR.values(), strict=True)
    rows = draw.uniform(low, high, (READINGS, len(CAR)))
    v, mu = rows.T
    way = REACTION * v + BRAKES * v**2 / mu
    readings = way + NOISE * way.std() * draw.normal(size=READINGS)
    begin = time.process_time()
    best = discover.formulas(rows, readings, names=list(CAR), target="d").formula.to_dict()
    return {
        "formula": best["formula"],
        "terms": {
            term["term"]: [term["coefficient"], term["standard_error"]] for term in best["terms"]
        },
        "seconds": time.process_time() - begin,
        "readings": np.column_stack((rows, readings)).tolist() if seed == 0 else [],
    }


def read_digit() -> dict[str, Any]:
    """One digit, its ciphertext, and the scores that came back."""
    data = digits.load()
    train, test = (data.normalization(x).flatten(1) for x in (data.train_images, data.test_images))
    torch.manual_seed(0)
    square = make_layer(nn.Linear(64, 32), "square")
    model = nn.Sequential(square, nn.BatchNorm1d(32), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        rows = torch.randperm(len(train))[:256]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(train[rows]), data.train_labels[rows]).backward()
        optimizer.step()
    plain = model.eval()(test[:1]).detach()[0]
    client, server = encrypted.compile(model, train[:500])
    begin = time.process_time()
    request = client.encrypt(test[:1])
    answer = server.run(request)
    decrypted = client.decrypt(answer)[0]
    middle = len(request) // 2  # past what describes the file
    return {
        "pixels": data.test_images[0, 0].tolist(),
        "label": int(data.test_labels[0]),
        "ciphertext": request[middle : middle + BYTES].hex(),
        "bytes": {"request": len(request), "answer": len(answer)},
        "plain": plain.tolist(),
        "decrypted": decrypted.tolist(),
        "seconds": time.process_time() - begin,
    }


def draw_kan() -> Figure:
    """Error and seconds on each published function that pykan fitted, too."""
    fits = [fit for fit in read_piece(RESULTS / "functions.json")["fits"] if fit["seed"] == 0]
    names = [fit["function"] for fit in fits if fit["model"] == "pykan"]
    looks = {
        "pykan": (f"KAN (pykan, best grid of {len(GRIDS)})", PURPLE, "s"),
        "MLPRegressor, adam": ("MLPRegressor (scikit-learn)", GRAY, "v"),
        "linear, lm": ("linear, second order (quadric)", BLUE, "o"),
        "shared, lm": ("shared, second order (quadric)", ORANGE, "D"),
    }
    figure = Figure(figsize=(8.6, 1.6 + 0.95 * len(names)), layout="constrained")
    axes = figure.subplots()
    for number, (model, (label, color, marker)) in enumerate(looks.items()):
        by_name = {fit["function"]: fit for fit in fits if fit["model"] == model}
        shown = [by_name[name] for name in names]
        places = [place + 0.27 - 0.18 * number for place in range(len(names))]
        errors = [fit["error"] for fit in shown]
        axes.scatter(errors, places, s=52, c=color, marker=marker, label=label, zorder=3)
        for fit, place in zip(shown, places, strict=True):
            text = f"{fit['seconds']:.1f} s, {fit['params']} parameters"
            axes.annotate(
                text, (fit["error"], place), (8, -3), textcoords="offset points", fontsize=8,
                color=color,
            )  # fmt: skip
    labels = [f"Feynman {name}" if name.startswith("I") else name for name in names]
    axes.set_yticks(range(len(names)), labels)
    axes.set_ylim(-0.5, len(names) - 0.5)
    axes.set_xscale("log")
    axes.set_xlim(right=3.0)
    axes.set_xlabel("error on 1,000 new rows, as a share of the function's deviation")
    axes.grid(visible=True, axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, fontsize=9, frameon=False)
    return figure


def _car(axes: Axes, law: dict[str, Any]) -> None:
    """The readings of one table, and the formula found in them for three roads."""
    speeds, roads, ways = np.array(law["readings"]).T
    shown = axes.scatter(speeds, ways, c=roads, cmap="viridis", s=14)
    axes.figure.colorbar(shown, ax=axes, label="friction of the road, mu")
    (first, _), (second, _) = law["terms"]["v"], law["terms"]["v**2/mu"]
    v = np.linspace(*CAR["v"], 100)
    for mu in (0.2, 0.4, 0.8):
        axes.plot(v, first * v + second * v**2 / mu, color=shown.to_rgba(np.array(mu)), linewidth=2)
    axes.set(xlabel="speed v, m/s", ylabel="distance d until it stops, m")
    axes.set_title(f"d = {first:.3f} v + {second:.4f} v² / mu", color=ORANGE)


def _intervals(axes: Axes, found: list[list[float]], truth: float, name: str) -> None:
    """One coefficient in each table, with its interval."""
    inside = [abs(value - truth) < 1.96 * error for value, error in found]
    for place, ((value, error), held) in enumerate(zip(found, inside, strict=True)):
        color = BLUE if held else ORANGE
        axes.errorbar(value, place, xerr=1.96 * error, fmt="o", color=color, ms=3, lw=1.2)
    axes.axvline(truth, color=GRAY, linestyle="--", linewidth=1)
    axes.set(yticks=[], xlabel=f"coefficient of {name}")
    axes.set_title(f"{sum(inside)} of {len(found)} hold\nthe true {truth:.4g}", fontsize=10)
    axes.locator_params(axis="x", nbins=4)


def draw_formula() -> Figure:
    """The readings and the law in them; its coefficients in other tables of readings."""
    laws = read_piece(RESULTS / "gallery.json")["laws"]
    found = [law["terms"] for law in laws if set(law["terms"]) == {"v", "v**2/mu"}]
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    left, *right = figure.subplots(1, 3, width_ratios=[2.3, 1, 1])
    _car(left, laws[0])
    for panel, (term, truth) in zip(right, (("v", REACTION), ("v**2/mu", BRAKES)), strict=True):
        _intervals(panel, [terms[term] for terms in found], truth, term.replace("**2", "²"))
    figure.suptitle(
        f"{READINGS} readings with {NOISE:.0%} noise; this form was found in {len(found)} of "
        f"{len(laws)} such tables, in at most {max(law['seconds'] for law in laws):.0f} s"
    )
    return figure


def draw_digit() -> Figure:
    """What the client has, what the server sees, and what comes back."""
    digit = read_piece(RESULTS / "gallery.json")["digit"]
    figure = Figure(figsize=(9.6, 3.5), layout="constrained")
    client, server, scores = figure.subplots(1, 3)
    client.imshow(digit["pixels"], cmap="gray_r")
    client.set_title("the client's picture")
    seen = np.frombuffer(bytes.fromhex(digit["ciphertext"]), np.uint8).reshape(64, 64)
    server.imshow(seen, cmap="gray_r")
    server.set_title(f"what the server sees\n(4 of {digit['bytes']['request'] / 1024:.0f} kB)")
    for panel in (client, server):
        panel.set(xticks=[], yticks=[])
    numbers = np.arange(10)
    colors = [ORANGE if n == np.argmax(digit["decrypted"]) else BLUE for n in numbers]
    scores.bar(numbers, digit["decrypted"], color=colors, label="decrypted by the client")
    scores.plot(numbers, digit["plain"], "k_", markersize=14, label="the network in plain sight")
    scores.set(xticks=numbers, xlabel="digit", ylabel="score")
    scores.set_title(f"what the client decrypts\n({digit['seconds']:.2f} s of a processor in all)")
    gap = max(abs(a - b) for a, b in zip(digit["plain"], digit["decrypted"], strict=True))
    scores.annotate(
        f"black: without encryption\nfarthest apart: {gap:.1g}", (0.03, 0.88),
        xycoords="axes fraction", fontsize=8,
    )  # fmt: skip
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "gallery_kan.png": draw_kan,
    "gallery_formula.png": draw_formula,
    "gallery_digit.png": draw_digit,
}


def main() -> None:
    """Measures if told to, and draws."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", action="store_true", help="measure anew first")
    if parser.parse_args().measure:
        facts = {"laws": [find_law(seed) for seed in range(TABLES)], "digit": read_digit()}
        write_piece(RESULTS / "gallery.json", facts, "sympy", "tenseal")
    for name, draw in PICTURES.items():
        with whole_file(IMAGES / name) as file:
            draw().savefig(file, format="png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
