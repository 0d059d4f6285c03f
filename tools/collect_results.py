"""Take the results, or the weights, of finished runs into the repository.

    python tools/collect_results.py runs/* --into results/images
    python tools/collect_results.py runs/tune-* --into results/images --tuning
    python tools/collect_results.py runs/r20-eigen-s0 --weights cifar10-quick --limits "..."

Each run becomes one file, named after its run directory, EXPERIMENT-ARM-sSEED: its result.json with
at most 20 points of its curve, and without paths of the machine that trained it. What `quadric
analyze` wrote of it becomes EXPERIMENT-ARM-sSEED.analysis.json, without pictures of the data. With
--tuning the runs become rows of tuning.csv instead, one file for all of them. A run that was
collected before is replaced; one that is not finished is left out, with a note. Then `make
results`.

With --weights the weights go to quadric/models/weights/NAME/MODEL-NEURON[-kRANK].safetensors, each
with its card beside it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evidence_runs import read_csv, read_piece, without_paths, write_csv

from quadric import models
from quadric.analysis.analyzing import FILE
from quadric.models.trained import FOLDER
from quadric.runs.metrics import METRICS
from quadric.runs.reading import read_runs
from quadric.support import provenance
from quadric.support.writing import whole_file, write_text
from quadric.train import catalog
from quadric.train.directory import RunDirectory

POINTS = 20
TUNED = (
    "lr", "quadratic_lr", "quadratic_weight_decay", "weight_decay", "init", "neuron_options",
    "width", "model_options", "epochs", "validation",
)  # fmt: skip


def thinned(epochs: Sequence[dict[str, Any]], best: int | None = None) -> list[dict[str, Any]]:
    """At most 20 points of a curve: evenly spaced, with the first, the last and the best one."""
    last = len(epochs) - 1
    if last < POINTS:
        return list(epochs)
    kept = {round(i * last / (POINTS - 2)) for i in range(POINTS - 1)}
    kept |= {place for place, point in enumerate(epochs) if point["epoch"] == best}
    return [epochs[place] for place in sorted(kept)]


def portable(value: Any) -> Any:
    """A copy of plain data in which no text holds an absolute path."""
    if isinstance(value, str):
        return without_paths(value)
    if isinstance(value, dict):
        return {portable(key): portable(item) for key, item in value.items()}
    return [portable(item) for item in value] if isinstance(value, list) else value


def published(result: dict[str, Any]) -> dict[str, Any]:
    """A result as it is kept: a thin curve, a command that runs elsewhere, no paths."""
    kept = portable(result)
    kept["epochs"] = thinned(kept.get("epochs") or [], kept.get("best_epoch"))
    # A copy of a recipe that the package has is that recipe.
    named = re.compile(r"\S*?([\w-]+)\.yaml")
    kept["command"] = named.sub(
        lambda word: word[1] if word[1] in catalog.names() else word[0], kept["command"]
    )
    return kept


def tuning_row(name: str, result: dict[str, Any]) -> dict[str, Any]:
    """A run as a row: what was tried, and what the validation part said."""
    settings = result["settings"]
    scores = (result["epochs"] or [{}])[-1]
    for point in result["epochs"]:
        if point["epoch"] == result.get("best_epoch"):
            scores = point
    return {
        "run": name,
        **{
            key: result.get(key) for key in ("recipe", "neuron", "rank", "seed", "status", "params")
        },
        **{key: settings.get(key) for key in TUNED},
        **{key: scores.get(key) for key in ("val_accuracy", "val_bleu", "val_rmse", "val_loss")},
        "seconds": result["seconds"],
        "command": result["command"],
    }


def collect(
    runs: Sequence[Path], folder: Path, tuning: bool = False, experiment: str | None = None
) -> list[Path]:
    """Writes the files of some runs; gives their paths."""
    found, notes = read_runs(runs)
    for note in notes:
        print(note, file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    rows, files = {}, []
    for run in found:
        assert run.path is not None
        name, kept = run.name, published(run.values)
        if experiment is not None:
            name = f"{experiment}-{name.partition('-')[2]}"
        if tuning:
            rows[name] = tuning_row(name, kept)
            continue
        files.append(folder / f"{name}.json")
        provenance.write_json(files[-1], kept)
        measured, beside = run.path / FILE, folder / f"{name}.analysis.json"
        beside.unlink(missing_ok=True)
        if measured.is_file():
            analysis = portable(read_piece(measured))
            analysis.pop("responses", None)
            analysis["command"] = analysis["command"].replace(measured.parent.name, name)
            provenance.write_json(beside, analysis)
            files.append(beside)
    if rows:
        path = folder / "tuning.csv"
        rows = {row["run"]: row for row in read_csv(path)} | rows
        write_csv(path, [rows[name] for name in sorted(rows)])
        files.append(path)
    return files


LIMITS = (
    "Made to try things with, not to be deployed: trained on this one data set, measured on its "
    "test pictures alone, one seed."
)


def card(name: str, result: Mapping[str, Any], limits: str) -> str:
    """What a person should know before using the weights."""
    rank = "" if result["rank"] is None else f", rank={result['rank']}"
    neuron = f'neuron="{result["neuron"]}"{rank}'
    scores = [f"{m.label} {m.show(result[m.key])}" for m in METRICS.values() if m.key in result]
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


def publish(run: Path, name: str, limits: str) -> Path:
    """Copies the weights of a run into the package and writes their card; gives their path."""
    (found,), _ = read_runs(run)
    result = published(found.values)
    rank = "" if found.rank is None else f"-k{found.rank}"
    path = FOLDER / name / f"{found.model}-{found.neuron}{rank}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        shutil.copyfile(RunDirectory(run).weights_file, partial)
    write_text(path.with_suffix(".md"), card(name, result, limits))
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """Collects the runs that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", help="run directories")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--into", type=Path, help="such as results/images")
    where.add_argument("--weights", metavar="NAME", help="what `pretrained=` takes")
    parser.add_argument("--experiment", help="replaces what stands before the first dash")
    parser.add_argument("--tuning", action="store_true", help="as rows of tuning.csv")
    parser.add_argument("--limits", default=LIMITS, help="the last word of a card")
    given = parser.parse_args(arguments)
    if given.weights is None:
        print(*collect(given.runs, given.into, given.tuning, given.experiment), sep="\n")
        return
    paths = [publish(run, given.weights, given.limits) for run in given.runs]
    for weights in models.pretrained():
        if weights.file in paths:  # loaded as a user would
            models.create(weights.model, weights.neuron, weights.rank, pretrained=weights.name)
            print(f"{weights.file.stat().st_size / 1e6:.2f} MB: {weights}")


if __name__ == "__main__":
    main()
