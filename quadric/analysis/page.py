"""The report page: any runs as one file of HTML that opens from disk and loads nothing.

The page is made from result.json and analysis.json alone. What comes from a file goes into a block
of JSON in which no letter can end it, and the page's script puts it in as text. The plots are SVG
drawn by that script, so that the page is as large as its runs and not megabytes of a library.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from quadric.analysis.couplings import ranked, ranked_list
from quadric.analysis.style import curve_label, neuron_styles, score_label, unit_text
from quadric.runs.groups import by_dataset, in_lines
from quadric.runs.reading import RunResult, read_runs
from quadric.support.writing import write_text

MOST_PAIRS = 10
SECONDS = 0.005
"""What a run takes, roughly."""


def report(
    results: Iterable[Any],
    path: str | Path,
    *,
    title: str = "Quadric runs",
    notes: Sequence[str] = (),
) -> Path:
    """Writes a page of runs: table, plots, curves, analyses, recipes and commands.

    Args:
        results: run directories, folders of them, result files, or results that were read already.
        path: the page.
        title: the title of the page.
        notes: more to say about what could not be read.

    Returns:
        The path.

    Raises:
        InputError: if there is no result to show.
    """
    runs, left_out = read_runs(results)
    content = page(runs, title, [*notes, *left_out])
    write_text(path, content)
    return Path(path)


def page(runs: Sequence[RunResult], title: str, notes: Sequence[str]) -> str:
    """The page as text."""
    assets = resources.files("quadric.analysis").joinpath("assets")
    parts = {
        "TITLE": html.escape(title),
        "STYLE": assets.joinpath("page.css").read_text(encoding="utf-8"),
        "SCRIPT": assets.joinpath("page.js").read_text(encoding="utf-8"),
        "DATA": _embedded(_payload(runs, notes)),
    }
    pieces = assets.joinpath("page.html").read_text(encoding="utf-8").split("@")
    # Every other piece is a name; what is put in is not looked at again.
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def _embedded(data: Any) -> str:
    """JSON that can stand in a script element: no `<`, and nothing but ASCII."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _payload(runs: Sequence[RunResult], notes: Sequence[str]) -> dict[str, Any]:
    datasets = {id(run): name for name, alike in by_dataset(runs).items() for run in alike}
    places = {id(run): place for place, run in enumerate(runs)}
    styles = neuron_styles(run.neuron for run in runs)
    count = len(set(datasets.values()))
    diverged = sum(run.diverged for run in runs)
    summary = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    summary += f" on {count} data set{'s' if count > 1 else ''}"
    return {
        "summary": summary + (f", {diverged} diverged" if diverged else ""),
        "styles": {
            name: {"light": color, "dark": _lighter(color), "marker": marker}
            for name, (color, marker) in styles.items()
        },
        "runs": [_run(run, datasets[id(run)]) for run in runs],
        "groups": [
            {
                "line": each.line,
                "neuron": each.first.neuron,
                "params": each.first.params,
                "macs": each.first.macs,
                "mean": _short(each.mean),
                "runs": [places[id(run)] for run in each.runs],
            }
            for each in in_lines(runs)
        ],
        "notes": list(notes),
    }


def _lighter(color: str) -> str:
    """A color for a dark background: half way to white."""
    levels = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{(level + 255) // 2:02x}" for level in levels)


def _short(value: float | None) -> float | None:
    """A number of six digits: what a plot can show."""
    return None if value is None else float(f"{value:.6g}")


def _run(run: RunResult, group: str) -> dict[str, Any]:
    result = run.values
    versions = result.get("versions", {}).items()
    return {
        **{key: getattr(run, key) for key in ("name", "dataset", "model", "neuron", "label")},
        **{key: getattr(run, key) for key in ("seed", "diverged", "params", "macs", "score")},
        "group": group,
        "status": result["status"],
        "message": result.get("diverged", {}).get("message", ""),
        "scoreLabel": score_label(run),
        "higher": run.metric.higher_is_better,
        "curveLabel": curve_label(run),
        "curveFalls": not run.curve_metric.higher_is_better,
        "loss": result.get("test_loss"),
        "share": run.quadratic_share,
        "seconds": result.get("seconds"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions if version),
        "command": result.get("command", ""),
        "recipeText": "\n".join(_setting(*item) for item in run.settings.items()),
        "curves": {
            f"{part}_{what}": [[x, _short(y)] for x, y in run.curve(part, what)]
            for part in ("train", "test")
            for what in ("score", "loss")
        },
        "analysis": None if run.analysis is None else _analysis(run.analysis),
    }


def _setting(key: str, value: Any) -> str:
    """A field as a line of YAML, of which JSON is a part."""
    return f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}"


def _analysis(content: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of an analysis."""
    kinds = {
        "weights": "linear weights",
        "quadratic": "quadratic parameters",
        "eigenvalues": "true eigenvalues",
        "effective_rank": "effective rank",
    }
    distributions = []
    for key, title in kinds.items():
        values = [layer.get(key) for layer in content["layers"]]
        boxes = [[_short(value) for value in box["quantiles"]] if box else None for box in values]
        if any(boxes):
            distributions.append({"title": title, "boxes": boxes})
    coupled = content.get("couplings")
    return {
        "layers": [layer["name"] for layer in content["layers"]],
        "distributions": distributions,
        "sentence": content.get("low_frequency", {}).get("sentence", ""),
        "couplings": _couplings(coupled) if coupled else None,
        "formula": "\n".join(content.get("formula", {}).get("text", [])),
        "responses": content.get("responses"),
    }


def _couplings(coupled: Mapping[str, Any]) -> dict[str, Any]:
    key, unit = coupled["ranked_by"], unit_text(coupled["target_unit"])
    how = "its quadratic forms couple" if key == "strength" else "the network couples"
    caption = (
        f"How strongly {how} two columns: {coupled['target']}{f' ({unit})' if unit else ''} per "
        "standard deviation of both."
    )
    pairs = []
    rows = ranked_list(coupled, MOST_PAIRS)
    for row, entry in zip(rows, ranked(coupled, MOST_PAIRS), strict=True):
        factor = f", factor of the product {unit_text(row[-1])}" if len(row) > 2 else ""
        pairs.append({"columns": row[0], "size": entry[key], "text": f"{row[1]}{factor}"})
    matrix = [[_short(value) for value in row] for row in coupled[key]]
    return {"caption": caption, "names": coupled["names"], "matrix": matrix, "pairs": pairs}
