"""Take the weights of finished runs into the package, each with its card.

    python tools/publish_weights.py runs/r20-eigen-s0 --name cifar10-quick --limits "..."

Writes quadric/models/weights/NAME/MODEL-NEURON[-kRANK].safetensors and the card beside it, then
loads what it wrote, as a user would.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collect_results import published

from quadric import models
from quadric.models.trained import FOLDER
from quadric.runs.metrics import METRICS
from quadric.runs.reading import read_runs
from quadric.support.writing import whole_file, write_text
from quadric.train.directory import RunDirectory

LIMITS = (
    "Made to try things with, not to be deployed: trained on this one data set, measured on its "
    "test pictures alone, one seed."
)


def card(name: str, result: Mapping[str, Any], limits: str) -> str:
    """What a person should know before using the weights."""
    rank = "" if result["rank"] is None else f", rank={result['rank']}"
    neuron = f'neuron="{result["neuron"]}"{rank}'
    scores = [
        f"{metric.label} {metric.show(result[f'test_{metric.name}'])}"
        for metric in METRICS.values()
        if f"test_{metric.name}" in result
    ]
    shares = list((result.get("quadratic_share") or {}).values())
    share = f"{sum(shares) / len(shares):.3f} (mean of {len(shares)} layers)" if shares else "none"
    settings, versions, machine = (result[key] for key in ("settings", "versions", "machine"))
    recipe = (
        f"recipe `{result['recipe']}`, {settings['epochs']} epochs, seed {result['seed']}, "
        f"{result['seconds'] / 60:.1f} minutes on {machine['cpu']}, torch {versions['torch']}"
    )
    lines = [
        f"# {result['model']}, {result['neuron']}: `{name}`",
        f'`quadric.models.create("{result["model"]}", {neuron}, pretrained="{name}")`',
        f"- Data: {result['dataset']}, inputs normalized as `quadric.data.load` does.",
        f"- Training: {recipe}.",
        f"- Test: {', '.join(scores)}, loss {result['test_loss']:.4g}.",
        f"- Cost: {result['params']:,} parameters, {result['macs']:,} MACs for one input.",
        f"- Quadratic share: {share}.",
        f"- Command: `{result['command']}`",
        f"- Limits: {limits}",
        "- License: as the package. The pictures are not part of it.",
    ]
    return "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:]) + "\n"


def publish(run: Path, name: str, limits: str, folder: Path = FOLDER) -> Path:
    """Copies the weights of a run, writes their card; gives the path of the weights."""
    (found,), _ = read_runs(run)
    result = published(found.values)
    rank = "" if result["rank"] is None else f"-k{result['rank']}"
    path = folder / name / f"{result['model']}-{result['neuron']}{rank}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        shutil.copyfile(RunDirectory(run).weights_file, partial)
    write_text(path.with_suffix(".md"), card(name, result, limits))
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """Publishes the runs that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", help="run directories")
    parser.add_argument("--name", required=True, help="what `pretrained=` takes")
    parser.add_argument("--limits", default=LIMITS, help="the card's last word")
    given = parser.parse_args(arguments)
    for run in given.runs:
        path = publish(run, given.name, given.limits)
        for weights in models.pretrained():
            if weights.file == path:
                models.create(weights.model, weights.neuron, weights.rank, pretrained=weights.name)
                print(f"{path.stat().st_size / 1e6:.2f} MB: {weights}")


if __name__ == "__main__":
    main()
