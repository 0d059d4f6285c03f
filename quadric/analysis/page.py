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

from quadric.analysis.arms import arms
from quadric.analysis.couplings import ranked_list
from quadric.analysis.reading import RunResult, by_dataset, curve, number, read
from quadric.analysis.style import neuron_styles, unit_text
from quadric.errors import InputError
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
    runs, found = read(results)
    content = page(runs, title, [*notes, *found])
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
    groups = {id(run): name for name, alike in by_dataset(runs).items() for run in alike}
    places = {id(run): place for place, run in enumerate(runs)}
    styles = neuron_styles(run.neuron for run in runs)
    count = len(set(groups.values()))
    diverged = sum(run.diverged for run in runs)
    summary = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    summary += f" on {count} data set{'s' if count > 1 else ''}"
    return {
        "summary": summary + (f", {diverged} diverged" if diverged else ""),
        "notes": list(notes),
        "styles": {
            name: {"light": color, "dark": _lighter(color), "marker": marker}
            for name, (color, marker) in styles.items()
        },
        "runs": [_run(run, groups[id(run)]) for run in runs],
        "arms": [
            {
                "line": arm.line,
                "neuron": arm.first.neuron,
                "params": arm.first.params,
                "macs": arm.first.macs,
                "mean": _short(arm.mean),
                "runs": [places[id(run)] for run in arm.runs],
            }
            for arm in arms(runs)
        ],
    }


def _lighter(color: str) -> str:
    """A color for a dark background: half way to white."""
    levels = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{(level + 255) // 2:02x}" for level in levels)


def _short(value: float | None) -> float | None:
    """A number of six digits: what a plot can show."""
    return None if value is None else float(f"{value:.6g}")


def _run(run: RunResult, group: str) -> dict[str, Any]:
    result = run.result
    share = result.get("quadratic_share")
    values = share.values() if isinstance(share, Mapping) else [share]
    shares = [value for value in map(number, values) if value is not None]
    versions, diverged = result.get("versions"), result.get("diverged")
    known = versions.items() if isinstance(versions, Mapping) else ()
    return {
        "name": run.name,
        "group": group,
        "dataset": run.dataset,
        "model": run.model,
        "neuron": run.neuron,
        "label": run.label,
        "seed": run.seed,
        "status": run.status,
        "diverged": run.diverged,
        "message": str(diverged.get("message", "")) if isinstance(diverged, Mapping) else "",
        "params": run.params,
        "macs": run.macs,
        "score": run.score,
        "scoreLabel": run.score_label,
        "higher": run.metric.higher_is_better,
        "curveLabel": run.curve_label,
        "curveFalls": run.curve_falls,
        "loss": number(result.get("test_loss")),
        "share": sum(shares) / len(shares) if shares else None,
        "seconds": number(result.get("seconds")),
        "versions": ", ".join(f"{name} {value}" for name, value in known if value),
        "command": run.command,
        "recipeText": "\n".join(_setting(*item) for item in run.settings.items()),
        "curves": {
            f"{part}_{what}": [[x, _short(y)] for x, y in curve(run, part, what)]
            for part in ("train", "test")
            for what in ("score", "loss")
        },
        "analysis": None if run.analysis is None else _analysis(run.analysis),
    }


def _setting(key: str, value: Any) -> str:
    """A field as a line of YAML, of which JSON is a part."""
    return f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}"


def _analysis(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of an analysis; a part that is not as expected is left out."""
    layers = [layer for layer in found["layers"] if isinstance(layer, Mapping)]
    kinds = {
        "weights": "linear weights",
        "quadratic": "quadratic parameters",
        "eigenvalues": "true eigenvalues",
        "effective_rank": "effective rank",
    }
    distributions = []
    for key, title in kinds.items():
        boxes = [_quantiles(layer.get(key)) for layer in layers]
        if any(boxes):
            distributions.append({"title": title, "boxes": boxes})
    low, formula = found.get("low_frequency"), found.get("formula")
    lines = formula.get("text") if isinstance(formula, Mapping) else None
    return {
        "layers": [str(layer.get("name")) for layer in layers],
        "distributions": distributions,
        "sentence": str(low.get("sentence", "")) if isinstance(low, Mapping) else "",
        "couplings": _couplings(found.get("couplings")),
        "formula": "\n".join(map(str, lines)) if isinstance(lines, list) else "",
        "responses": _responses(found.get("responses")),
    }


def _quantiles(found: Any) -> list[float | None] | None:
    values = found.get("quantiles") if isinstance(found, Mapping) else None
    if not isinstance(values, list) or len(values) != 7 or None in map(number, values):
        return None
    return [_short(value) for value in values]


def _couplings(found: Any) -> dict[str, Any] | None:
    try:
        key = str(found["ranked_by"])
        rows = ranked_list(found, MOST_PAIRS)
        unit = unit_text(str(found["target_unit"]))
        how = "its quadratic forms couple" if key == "strength" else "the network couples"
        caption = (
            f"How strongly {how} two columns: {found['target']}{f' ({unit})' if unit else ''} "
            "per standard deviation of both."
        )
        pairs = [
            {
                "columns": row[0],
                "size": float(entry[key]),
                "text": f"{row[1]}"
                + (f", factor of the product {unit_text(row[-1])}" if len(row) > 2 else ""),
            }
            for row, entry in zip(rows, found["pairs"], strict=False)
        ]
        matrix = [[_short(float(value)) for value in row] for row in found[key]]
        names = [str(name) for name in found["names"]]
        return {"caption": caption, "names": names, "matrix": matrix, "pairs": pairs}
    except (TypeError, KeyError, ValueError, IndexError):
        return None


_PICTURE = ("height", "width", "channels", "bytes")


def _responses(found: Any) -> dict[str, Any] | None:
    try:
        layers = [
            {"name": str(layer["name"])}
            | {part: [_picture(p) for p in layer[part]] for part in ("linear", "quadratic")}
            for layer in found["layers"]
        ]
        return {"pictures": [_picture(p) for p in found["pictures"]], "layers": layers}
    except (TypeError, KeyError, ValueError):
        return None


def _picture(found: Mapping[str, Any]) -> dict[str, Any]:
    height, width, channels, content = (found[key] for key in _PICTURE)
    pixels = int(height) * int(width) * int(channels)
    if not isinstance(content, str) or not 0 < pixels <= 3 * len(content) // 4:
        raise InputError("a picture must hold its pixels, got fewer bytes: analyze the run again")
    return dict(zip(_PICTURE, (int(height), int(width), int(channels), content), strict=True))
