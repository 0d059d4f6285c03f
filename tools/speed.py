"""Measure what the tables of docs/speed.md, deployment.md and tables.md show; each takes long.

    python tools/speed.py suite --paths plain,kernels --repeats 4    # networks, layers, memory
    python tools/speed.py ranks       # a convolution's cost against rank, docs/images/ranks.png
    python tools/speed.py dense       # dense layers at each rank, perceptrons; --before FOLDER
    python tools/speed.py onnx        # latency of exported networks in ONNX Runtime
    python tools/speed.py tables      # fits of tables against scikit-learn's MLPRegressor

Each writes results/bench/NAME.json; `python tools/readme_tables.py` makes the tables of it.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor
from speed_dense import GROUPS, dense
from torch import Tensor, nn

from quadric import models
from quadric.bench.cases import (
    ANCHOR_SHAPES,
    NEURONS,
    Case,
    draw_eigenvalues_,
    layer_cases,
    make_cases,
    network_cases,
    usable_paths,
)
from quadric.bench.comparison import AT_LEAST, compare
from quadric.conversion.convert import convert_
from quadric.exporting import export_onnx, latencies
from quadric.exporting.timing import interleaved
from quadric.support import provenance
from quadric.support.process import keep_freed_memory
from quadric.support.texttable import markdown_table
from quadric.tables.many import fit_many
from quadric.tables.regressor import QuadraticRegressor

ROOT = Path(__file__).resolve().parent.parent
RECOMPUTED = ", recompute"
Rows = Sequence[dict[str, Any]]

# --- suite: whole networks on every path, single layers ------------------------------------------


def adam_step(model: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    """A training step with Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(*inputs).square().mean().backward()
        optimizer.step()

    return step


def helmholtz_step(model: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    """A step with the loss of u_xx + u_yy + k^2 u, as in examples/04_helmholtz.py."""
    (points,) = inputs

    def step() -> None:
        u = model(points)
        residual = 4.0 * u
        (slope,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        for i in range(points.shape[1]):
            (second,) = torch.autograd.grad(slope[:, i].sum(), points, create_graph=True)
            residual = residual + second[:, i : i + 1]
        residual.square().mean().backward()

    return step


def suite_cases(
    paths: Sequence[str],
    network: str = "resnet20",
    batch: int | None = None,
    sentences: int | None = None,
    shapes: Sequence[tuple[int, int, int]] = ANCHOR_SHAPES,
) -> list[Case]:
    """ResNet-20 on every path; a Transformer, small networks and layers without torch.compile."""
    eager = [path for path in paths if path != "compiled"]
    again: dict[str, Any] = {"paths": eager[-1:], "options": {"recompute": True}}
    images = network_cases(network, ("shared",), formats=("channels_last",), batch=batch, **again)
    sequences = network_cases("transformer", batch=sentences, **again)
    perceptron = partial(models.create, "mlp", in_features=8, hidden=(64, 64), activation="relu")
    equation = partial(models.create, "mlp", in_features=2, hidden=(24,) * 3, activation="tanh")
    rows, points = (torch.randn(256, 8),), (torch.rand(1024, 2).requires_grad_(),)
    small: dict[str, Any] = {"neurons": NEURONS, "paths": eager}
    return [
        *network_cases(network, paths=paths, batch=batch),
        *images[1:],  # without another linear one
        *network_cases("transformer", paths=eager, batch=sentences),
        *sequences[1:],
        *make_cases("perceptron, batch 256", perceptron, rows, **small, step=adam_step),
        *make_cases("helmholtz, 1024 points", equation, points, **small, step=helmholtz_step),
        *layer_cases(shapes=shapes, paths=eager[-1:]),
    ]


def summary(rows: Rows) -> str:
    """The times of each network and path, as ratios to the linear network."""
    lines = []
    for group, path in dict.fromkeys((row["group"], row["path"]) for row in rows):
        mine = [row for row in rows if (row["group"], row["path"]) == (group, path)]
        for suffix in ("", RECOMPUTED):
            cells = [_cell([r for r in mine if r["neuron"] == n + suffix]) for n in NEURONS]
            if any(cells):
                lines.append([group, path + suffix, *cells])
    header = ["network", "path", *(f"{neuron}, training / inference" for neuron in NEURONS)]
    return markdown_table(header, lines, "llrr")


def _cell(rows: Rows) -> str:
    """The better format of each: medians within a turn, and in brackets the best times."""
    if not rows:
        return ""
    texts = []
    for ending in ("_turns", ""):
        best = [min(row[kind + ending] for row in rows) for kind in ("training", "inference")]
        texts.append(" / ".join(f"{ratio:.2f}" for ratio in best))
    return f"{texts[0]} ({texts[1]})"


def suite(given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Times all cases."""
    paths, _ = usable_paths(given.paths.split(","))
    keep_freed_memory()
    report = compare(suite_cases(paths), given.repeats, rounds=given.rounds, at_least=AT_LEAST)
    return summary(report.rows), report.to_dict()


# --- ranks: one convolution at growing rank -------------------------------------------------------


def ranks(given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Times a convolution at each rank, and draws the ratios."""
    paths, _ = usable_paths(["kernels"])
    shape: dict[str, Any] = {"shapes": (tuple(given.shape),), "formats": ("nchw",)}
    cases = layer_cases((), paths=("plain",), **shape)
    for neuron in NEURONS:
        for rank in given.ranks:
            cases += layer_cases((neuron,), paths=paths, options={"rank": rank}, **shape)[1:]
    report = compare(cases, given.repeats, rounds=given.rounds, at_least=AT_LEAST)
    draw(report.rows, given.plot)
    return str(report), report.to_dict()


def draw(rows: Rows, path: Path) -> None:
    """The ratios to linear against the rank: medians within a turn, as differences are small."""
    from matplotlib.figure import Figure

    titles = {"training_turns": "training step", "inference_turns": "inference"}
    titles |= {"memory": "peak memory"}
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    for axis, kind in zip(figure.subplots(1, 3, sharey=True), titles, strict=True):
        for neuron, marker in zip(NEURONS, "os", strict=True):
            shown = sorted((r["rank"], r[kind]) for r in rows if r["neuron"] == neuron)
            axis.plot(*zip(*shown, strict=True), marker=marker, label=neuron)
        axis.axhline(1, color="0.6", linewidth=1, linestyle="--")
        axis.set_xscale("log", base=2)
        axis.set_xticks([rank for rank, _ in shown], [str(rank) for rank, _ in shown])
        axis.minorticks_off()
        axis.set(xlabel="rank k", title=titles[kind])
    figure.axes[0].set(ylabel="ratio to linear", ylim=(0, None))
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


# --- onnx: latency of exported networks -----------------------------------------------------------

EXPORTED: dict[str, tuple[str, int | None]] = {
    "linear": ("linear", None),
    "eigen": ("eigen", None),
    "eigen, rank 15": ("eigen", 15),  # neurons of 16 channels are what ONNX Runtime's blocks hold
    "shared": ("shared", None),
}


def encoder(neuron: str, rank: int | None) -> nn.Module:
    """Three layers of a Transformer encoder."""
    layer = nn.TransformerEncoderLayer(512, 8, 1024, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    if neuron != "linear":
        convert_(model, neuron, rank)
    return model


def created(name: str, **options: Any) -> Callable[[str, int | None], nn.Module]:
    """Makes a network of ours with a neuron and its rank."""
    return lambda neuron, rank: models.create(name, neuron=neuron, rank=rank, **options)


# Name, how it is made with a neuron and its rank, shape of one input, batch sizes.
NETWORKS: list[tuple[str, Callable[..., nn.Module], tuple[int, ...], tuple[int, ...]]] = [
    ("ResNet-20, 32x32", created("resnet20"), (3, 32, 32), (1, 8, 128)),
    ("ResNet-18, 224x224", created("resnet18"), (3, 224, 224), (1,)),
    ("Transformer encoder, width 512, 3 layers, 25 tokens", encoder, (25, 512), (1,)),
    ("perceptron 8-64-64-1", created("mlp", in_features=8, hidden=(64, 64)), (8,), (1,)),
]


def onnx(given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Exports each network with each neuron, and times the files interleaved."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for i, (place, build, shape, batches) in enumerate(NETWORKS):
            files = {name: Path(folder, f"{i}-{name}.onnx") for name in EXPORTED}
            for name, (neuron, rank) in EXPORTED.items():
                torch.manual_seed(0)
                model = build(neuron, rank).eval()
                draw_eigenvalues_(model, 1e-3)  # with zeros nothing of them would be in the file
                export_onnx(model, files[name], torch.randn(1, *shape))
            for batch in batches:
                x = [torch.randn(batch, *shape)]
                limits: dict[str, Any] = {"seconds": given.seconds, "repeats": 100_000}
                times = [latencies(files, x, **limits) for _ in range(given.rounds)]
                least = {name: min(each[name] for each in times) for name in EXPORTED}
                rows += [
                    {
                        "network": place,
                        "batch": batch,
                        "neuron": name,
                        "seconds": least[name],
                        "ratio": least[name] / least["linear"],
                        "ratios": [each[name] / each["linear"] for each in times],
                    }
                    for name in EXPORTED
                ]
    facts = {"kind": "onnx latency", "rounds": given.rounds, "threads": 1, "rows": rows}
    return latency_summary(rows), facts | provenance.stamp("onnx", "onnxruntime")


def latency_summary(rows: Rows) -> str:
    """A line for each network and batch size."""
    names = [name for name in EXPORTED if name != "linear"]
    lines = []
    for key in dict.fromkeys((row["network"], row["batch"]) for row in rows):
        own = {r["neuron"]: r for r in rows if (r["network"], r["batch"]) == key}
        cells = []
        for name in names:
            ratios = own[name]["ratios"]
            spread = f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 else ""
            cells.append(f"{own[name]['ratio']:.2f}{spread}")
        lines.append([*key, f"{1e3 * own['linear']['seconds']:.3g} ms", *cells])
    header = ["network", "batch", "linear", *names]
    return markdown_table(header, lines, "l" + "r" * (2 + len(names)))


# --- tables: fits against MLPRegressor, stacks against one at a time ------------------------------

LIMITS = {"linear": 1.3, "eigen": 2.0, "shared": 2.0}
"""The longest wanted time of a fit by neuron, as a ratio to MLPRegressor's."""


def tables(given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Times single fits, and several networks together and one by one, interleaved."""
    settings = {
        "rows": given.rows, "columns": 8, "hidden": [64, 64], "batch_size": min(200, given.rows),
        "epochs": 10, "networks": given.networks, "repeats": given.repeats, "dtype": "float32",
    }  # fmt: skip
    draws = np.random.default_rng(0)
    X = draws.normal(size=(given.rows, 8)).astype("float32")
    y = (np.sin(X[:, 0] * X[:, 1]) + X[:, 2] ** 2).astype("float32")
    common: dict[str, Any] = {"max_iter": settings["epochs"], "n_iter_no_change": 10**6}

    def make(neuron: str, count: int) -> list[QuadraticRegressor]:
        options = {"neuron": neuron, "members": 1, "early_stopping": False, **common}
        return [QuadraticRegressor((64, 64), random_state=seed, **options) for seed in range(count)]

    cases: dict[str, tuple[int, Callable[[], list[Any]]]] = {
        "MLPRegressor": (
            1,
            lambda: [MLPRegressor(hidden_layer_sizes=(64, 64), random_state=0, **common).fit(X, y)],
        )
    }
    many = given.networks
    for neuron in LIMITS:
        one_by_one = lambda name, n: [model.fit(X, y) for model in make(name, n)]  # noqa: E731
        together = lambda name: fit_many(make(name, many), [(X, y)] * many)  # noqa: E731
        cases[neuron] = 1, partial(one_by_one, neuron, 1)
        cases[f"{neuron} together"] = many, partial(together, neuron)
        cases[f"{neuron} one by one"] = many, partial(one_by_one, neuron, many)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        runs = interleaved({name: fit for name, (_, fit) in cases.items()}, given.repeats)
    seconds = {name: min(runs[name]) / count for name, (count, _) in cases.items()}
    rows = [
        {
            "neuron": neuron,
            "seconds": seconds[neuron],
            "ratio": seconds[neuron] / seconds["MLPRegressor"],
            "speedup": seconds[f"{neuron} one by one"] / seconds[f"{neuron} together"],
            "limit": limit,
        }
        for neuron, limit in LIMITS.items()
    ]
    facts = {"settings": settings, "rows": rows, "seconds": seconds}
    lines = [[f"{v:.2f}" if isinstance(v, float) else v for v in row.values()] for row in rows]
    table = markdown_table(list(rows[0]), lines, "lrrrr")
    return table, facts | provenance.stamp("scikit-learn", "numpy")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["suite", "ranks", "dense", "onnx", "tables"])
    parser.add_argument("--out", type=Path, help="by default results/bench/WHAT.json")
    parser.add_argument("--repeats", type=int, default=4, help="timed runs")
    parser.add_argument("--rounds", type=int, default=2, help="of the whole, for the spread")
    parser.add_argument("--paths", default="plain,kernels", help="suite: also compiled")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 3, 7, 15, 31, 63])
    parser.add_argument("--shape", type=int, nargs=3, default=[64, 16, 64], help="ranks")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs" / "images" / "ranks.png")
    parser.add_argument("--before", type=Path, help="dense: another checkout to time beside")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, help="dense: by default all")
    parser.add_argument("--resume", type=Path, help="dense: a result whose other groups are kept")
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="onnx, dense: at least, of a group"
    )
    parser.add_argument("--rows", type=int, default=7373, help="tables")
    parser.add_argument("--networks", type=int, default=15, help="tables: fitted together")
    given = parser.parse_args(arguments)
    kinds = {"suite": suite, "ranks": ranks, "dense": dense, "onnx": onnx, "tables": tables}
    measure = kinds[given.what]
    text, facts = measure(given)
    print(text)
    out = given.out or ROOT / "results" / "bench" / f"{given.what}.json"
    provenance.write_json(out, facts)


if __name__ == "__main__":
    main()
