"""Take the results of finished runs into the repository.

    python tools/collect_results.py runs/* --into results/images
    python tools/collect_results.py runs/tune-* --into results/images --tuning

Each run becomes one file, named after its run directory, EXPERIMENT-ARM-sSEED: its result.json with
at most 20 points of its curve, and without paths of the machine that trained it. What `quadric
analyze` wrote of it becomes EXPERIMENT-ARM-sSEED.analysis.json, without pictures of the data. With
--tuning the runs become rows of tuning.csv instead, one file for all of them. A run that was
collected before is replaced; one that is not finished is left out, with a note. Then `make
results`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evidence_runs import read_csv, read_piece, without_paths, write_csv

from quadric.analysis.analyzing import FILE
from quadric.runs.reading import read_runs
from quadric.support import provenance
from quadric.train import catalog

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


def main(arguments: Sequence[str] | None = None) -> None:
    """Collects the runs that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", help="run directories")
    parser.add_argument("--into", type=Path, required=True, help="such as results/images")
    parser.add_argument("--experiment", help="replaces what stands before the first dash")
    parser.add_argument("--tuning", action="store_true", help="as rows of tuning.csv")
    given = parser.parse_args(arguments)
    for path in collect(given.runs, given.into, given.tuning, given.experiment):
        print(path)


if __name__ == "__main__":
    main()
