"""Run each command once in an empty folder; what it prints stands on the page of the command line.

    python tools/command_outputs.py    # writes results/commands.json, minutes

The folder has a table of houses and trained weights. `quadric translate` needs a run of hours and
is left out.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from evidence_runs import write_piece

from quadric import models

ROOT = Path(__file__).resolve().parent.parent
RUN = "runs/digits-shared-k8-s0"
# In this order: later ones use what earlier ones wrote.
COMMANDS = {
    "demo": "quadric demo",
    "neurons": "quadric neurons",
    "cost": "quadric cost resnet20 --compare linear,eigen,shared",
    "convert": "quadric convert digits.pth --model digits_cnn -o quadratic.safetensors",
    "recipes": "quadric recipes",
    "train": "quadric train digits --neuron shared",
    "evaluate": f"quadric evaluate {RUN}",
    "sweep": "quadric sweep law-lorentz --neuron linear,shared --seeds 3 --quick",
    "results": "quadric results runs/digits* runs/law*",
    "analyze": f"quadric analyze {RUN}",
    "figures": "quadric figures runs/* --which efficiency,neurons -o figures",
    "report": "quadric report runs/* -o report.html",
    "bench": "quadric bench --shapes 20x16x32 --paths plain --threads 1",
    "compare": "quadric compare houses.csv --target price --folds 3 --seeds 1 --save h.quadric",
    "predict": "quadric predict h.quadric houses.csv -o predicted.csv",
    "discover": "quadric discover feynman:I.12.11",
    "export": f"quadric export {RUN} -o digits.onnx",
    "encrypted": f"quadric encrypted check {RUN}",
}
FAILS = {"encrypted": 1}  # the network has activations: that is what it says


def prepare(folder: Path) -> None:
    """A table and trained weights."""
    draw = random.Random(0)
    with (folder / "houses.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["area", "rooms", "town", "price"])
        for _ in range(300):
            area, town = draw.uniform(40, 200), draw.choice(["north", "south"])
            price = 2 * area * (1.5 if town == "north" else 1) + draw.gauss(0, 5)
            rows.writerow([f"{area:.1f}", draw.randint(1, 6), town, f"{price:.1f}"])
    torch.save(models.create("digits_cnn", pretrained="digits").state_dict(), folder / "digits.pth")


def output(name: str, folder: Path) -> str:
    """What a command prints as its result; what it says while one waits is left out."""
    line = COMMANDS[name].replace("quadric ", f"{sys.executable} -m quadric ", 1)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        line, shell=True, cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode != FAILS.get(name, 0):
        raise RuntimeError(f"{COMMANDS[name]}\n{done.stdout}\n{done.stderr}")
    return done.stdout.rstrip()


def main() -> None:
    """Runs all and writes what they print."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder)
        shown = {}
        for name, line in COMMANDS.items():
            print(line, flush=True)
            shown[name] = {"line": line, "output": output(name, folder)}
    write_piece(ROOT / "results" / "commands.json", {"shown": shown})


if __name__ == "__main__":
    main()
