"""Runs as tables: one row per group with the paired differences below, one row per run, one run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from quadric.data.text.scores import SETTINGS
from quadric.runs.groups import RunGroup, RunPair, compare, group, varying
from quadric.runs.metrics import METRICS
from quadric.runs.reading import RunResult, number
from quadric.support.texttable import markdown_table, text_table

_TOKENIZATIONS = {"13a": "13a", "intl": "International"}


def spread(values: Sequence[float], digits: str, scale: float = 1) -> str:
    """Mean ± standard deviation."""
    if not values:
        return "-"
    mean = format(scale * statistics.fmean(values), digits)
    if len(values) < 2:
        return mean
    return f"{mean} ± {format(scale * statistics.stdev(values), digits)}"


def run_rows(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """One row per run: what it is, in what the runs differ, how good it is."""
    fields = varying(group(runs))
    tests = dict.fromkeys(key for run in runs for key in run.values if key.startswith("test_"))
    return [
        {key: run.values.get(key) for key in ("recipe", "neuron", "rank", "seed")}
        | {key: run.settings.get(key) for key in fields}
        | {key: run.values.get(key) for key in ("status", "params", "macs", *tests, "seconds")}
        | {"path": str(run.path)}
        for run in runs
    ]


def group_table(groups: Sequence[RunGroup], markdown: bool = False) -> str:
    """One row per group, mean ± standard deviation over seeds, and the paired differences."""
    fields = varying(groups)
    recipes = [each.first.recipe for each in groups]
    several = len(set(recipes)) > 1
    metrics = [metric for metric in METRICS.values() if any(g.metric == metric for g in groups)]
    header = [*(["recipe"] if several else []), "neuron", *fields, "seeds", "params", "MACs"]
    header += [f"test {metric.label}{metric.unit}" for metric in metrics]
    header += ["test loss", "quadratic share", "s/epoch"]
    rows = []
    for each in groups:
        first = each.first
        seeds = f"{len(each.runs)}" + (f" ({each.diverged} diverged)" if each.diverged else "")
        row = [*([first.recipe] if several else []), first.label]
        row += [_cell(each.settings.get(name)) for name in fields]
        row += [seeds, _cell(first.params, ","), _cell(first.macs, ",")]
        row += [spread(list(each.values(m.key).values()), m.digits, m.scale) for m in metrics]
        row.append(spread(list(each.values("test_loss").values()), ".4g"))
        row += [spread(each.shares, ".3f"), spread(_epoch_seconds(each), ".1f")]
        rows.append(row)
    right = "l" * (1 + several) + "r" * (len(header) - 1 - several)
    table = (markdown_table if markdown else text_table)(header, rows, right)
    lines = [_in_words(each, fields) for each in compare(groups)]
    if markdown:
        lines = [f"- {line}" for line in lines]
    name = "" if several else f"{recipes[0]}\n\n"
    return name + table + ("\n\n" + "\n".join(lines) if lines else "")


def _epoch_seconds(each: RunGroup) -> list[float]:
    known = [[number(record.get("seconds")) for record in run.epochs] for run in each.runs]
    numbers = [[value for value in values if value is not None] for values in known]
    return [statistics.fmean(values) for values in numbers if values]


def _cell(value: Any, how: str = "") -> str:
    return "-" if value is None else format(value, how) if how else str(value)


def _in_words(compared: RunPair, fields: Sequence[str]) -> str:
    first, second, gap = compared.first, compared.second, compared.difference
    differing = [f for f in fields if first.settings.get(f) != second.settings.get(f)]

    def name(each: RunGroup) -> str:
        shown = {key: each.settings.get(key) for key in differing}
        words = ", ".join(f"{key}={value}" for key, value in shown.items() if value is not None)
        return each.first.label + (f" ({words})" if words else "")

    recipe, other = first.first.recipe, second.first.recipe
    text = f"{recipe}: {name(second)} minus {name(first)}: "
    if recipe != other:
        text = f"{other} {name(second)} minus {recipe} {name(first)}: "
    metric = first.metric
    unit = " points" if metric.name == "accuracy" else ""
    digits = ".2f" if unit else ".4g"
    text += format(metric.scale * gap.mean, "+" + digits)
    if gap.half_width is None:
        return f"{text}{unit} {metric.name} (one seed: no interval)"
    text += f" ± {format(metric.scale * gap.half_width, digits)}{unit} {metric.name}"
    word = "clear" if gap.doubt is None else f"not clear: {gap.doubt}"
    return f"{text} (95 % interval, {gap.pairs} paired seeds; {word})"


def to_json(groups: Sequence[RunGroup]) -> dict[str, Any]:
    """The table of groups as plain data."""
    fields = varying(groups)
    return {
        "groups": [
            {
                **{key: each.first.values.get(key) for key in ("recipe", "neuron", "rank")},
                **{name: each.settings.get(name) for name in fields},
                "seeds": each.seeds,
                "diverged": each.diverged,
                "params": each.first.params,
                "macs": each.first.macs,
                each.metric.key: _summary(list(each.values().values())),
                "test_loss": _summary(list(each.values("test_loss").values())),
                **_all_bleu(each),
            }
            for each in groups
        ],
        "differences": [
            {
                "recipe": compared.first.first.recipe,
                "first": compared.first.first.label,
                "second": compared.second.first.label,
                **{name: compared.second.settings.get(name) for name in fields},
                "metric": compared.first.metric.key,
                **{k: getattr(compared.difference, k) for k in ("mean", "half_width", "pairs")},
            }
            for compared in compare(groups)
        ],
    }


def _summary(values: list[float]) -> dict[str, Any]:
    return {
        "mean": statistics.fmean(values) if values else None,
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "values": values,
    }


def _all_bleu(each: RunGroup) -> dict[str, Any]:
    if not _bleu(each, "13a_cased"):
        return {}
    return {"bleu": {name: _summary(_bleu(each, name)) for name in SETTINGS}}


def _bleu(each: RunGroup, name: str) -> list[float]:
    scores = [run.values.get("bleu") for run in each.runs]
    return [float(bleu[name]) for bleu in scores if bleu]


def bleu_table(groups: Sequence[RunGroup], markdown: bool = False) -> str | None:
    """BLEU by tokenization and case, one column per group, and parameters without embeddings.

    The layout of the paper's Table II; None if no run was scored.
    """
    groups = [each for each in groups if _bleu(each, "13a_cased")]
    if not groups:
        return None
    fields = [name for name in varying(groups) if name == "quadratic_lr"]
    several = len({each.first.recipe for each in groups}) > 1

    def title(each: RunGroup) -> str:
        rates = [_cell(each.settings[f]) for f in fields if each.settings.get(f) is not None]
        return " ".join([*([each.first.recipe] if several else []), each.first.label, *rates])

    rows = []
    for name, (_, tokenize, lowercase) in SETTINGS.items():
        row = [_TOKENIZATIONS[tokenize], "No" if lowercase else "Yes"]
        rows.append([*row, *(spread(_bleu(each, name), ".1f") for each in groups)])
    sizes = [each.first.values["params_without_embeddings"] for each in groups]
    shares = [f" ({100 * (n / sizes[0] - 1):+.1f} %)" if n != sizes[0] else "" for n in sizes]
    millions = (f"{n / 1e6:.2f}{share}" for n, share in zip(sizes, shares, strict=True))
    rows.append(["params/M", "", *millions])
    header = ["BLEU, tokenization", "cased", *map(title, groups)]
    table = (markdown_table if markdown else text_table)(header, rows, "ll" + "r" * len(groups))
    return f"{table}\n\nThe parameters are without embeddings, as in Table II."


def facts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """One result as a short table of names and values."""
    rank = "" if result.get("rank") is None else f", rank {result['rank']}"
    rows = [
        ("recipe", f"{result['recipe']}, seed {result['seed']}"),
        ("neuron", f"{result['neuron']}{rank}"),
        ("parameters", f"{result['params']:,}"),
        ("MACs for one input", f"{result['macs']:,}"),
    ]
    if "params_without_embeddings" in result:
        rows.insert(3, ("without embeddings", f"{result['params_without_embeddings']:,}"))
        rows.append(("MACs per token", f"{result['macs_per_token']:,}"))
    bleu = result.get("bleu") or {}
    for name in bleu:
        rows.append((SETTINGS[name][0], f"{bleu[name]:.2f}  {result['signatures'][name]}"))
    if bleu:
        rows.append(("chrF", f"{result['chrf']:.2f}  {result['signatures']['chrf']}"))
    rows += _tested(result)
    if result.get("largest_activation_layer"):
        largest = _number(result["largest_activation"])
        rows.append(("largest activation", f"{largest} in {result['largest_activation_layer']}"))
    shares = result.get("quadratic_share")
    if shares:
        rows.append(("quadratic share", f"{sum(shares.values()) / len(shares):.3f} (mean)"))
    if result.get("epochs"):
        count = f"{len(result['epochs'])} in {result['seconds']:.1f} s"
        if result.get("stopped_early"):
            count += f", stopped: none was better for {result['settings']['patience']}"
        rows.append(("epochs", count))
    if result.get("second_order"):
        more = result["second_order"]
        rows.append(("second order", f"{more['steps']} steps in {more['seconds']:.1f} s"))
    if result.get("best_epoch"):
        rows.append(("best epoch", f"{result['best_epoch']}, chosen on the validation part"))
    return rows


def _tested(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    # A translation has no BLEU where it has no test files, or diverged.
    if result.get("bleu", "") is None and result.get("status") != "diverged":
        return [("test", "none, as there are no test files")]
    rows = [
        (f"test {metric.label}", metric.show(result[metric.key]))
        for metric in METRICS.values()
        if metric.key in result and metric.name != "bleu"
    ]
    if "test_top5" in result:
        rows.append(("test top-5 accuracy", METRICS["accuracy"].show(result["test_top5"])))
    return [*rows, ("test loss", _number(result.get("test_loss")))]


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def final_report(path: Path, result: Mapping[str, Any], command: str) -> str:
    """What is printed at the end of a run: its table, and the next useful command."""
    lines = [text_table(["", str(path)], facts(result))]
    if result["status"] == "diverged":
        lines.append(f"diverged: {result['diverged']['message']}")
    elif result["recipe"].endswith("-quick"):
        lines.append("This was the quick variant: its numbers are not the paper's experiment.")
    pattern = f"{result['recipe']}-*"
    siblings = [file.parent for file in path.parent.glob(f"{pattern}/result.json")]
    if any(sibling != path for sibling in siblings):
        named = "" if path.match(pattern) else f"{quote(str(path))} "
        # The star is for the shell.
        where = "" if path.parent == Path() else f"{quote(str(path.parent))}/"
        lines.append(f"next: quadric results {named}{where}{pattern}")
    elif result["neuron"] == "linear":
        lines.append(f"next, the same network with quadratic neurons: {command} --neuron eigen")
    else:
        lines.append(f"next: quadric evaluate {quote(str(path))}")
    return "\n".join(lines)
