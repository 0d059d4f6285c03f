"""What is printed at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from quadric.data.text.scores import TITLES
from quadric.support.texttable import text_table
from quadric.train.directory import RunDirectory
from quadric.train.tasks import METRICS


def rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A result as a short table of names and values."""
    rank = "" if result.get("rank") is None else f", rank {result['rank']}"
    found = [
        ("recipe", f"{result['recipe']}, seed {result['seed']}"),
        ("neuron", f"{result['neuron']}{rank}"),
        ("parameters", f"{result['params']:,}"),
        ("MACs for one input", f"{result['macs']:,}"),
    ]
    if "params_without_embeddings" in result:
        found.insert(3, ("without embeddings", f"{result['params_without_embeddings']:,}"))
        found.append(("MACs per token", f"{result['macs_per_token']:,}"))
    bleu = result.get("bleu") or {}
    for name in bleu:
        found.append((TITLES[name], f"{bleu[name]:.2f}  {result['signatures'][name]}"))
    if bleu:
        found.append(("chrF", f"{result['chrf']:.2f}  {result['signatures']['chrf']}"))
    found += _tested(result)
    if result.get("largest_activation_layer"):
        largest = _number(result["largest_activation"])
        found.append(("largest activation", f"{largest} in {result['largest_activation_layer']}"))
    shares = result.get("quadratic_share")
    if shares:
        found.append(("quadratic share", f"{sum(shares.values()) / len(shares):.3f} (mean)"))
    if result.get("epochs"):
        count = f"{len(result['epochs'])} in {result['seconds']:.1f} s"
        if result.get("stopped_early"):
            count += f", stopped: none was better for {result['settings']['patience']}"
        found.append(("epochs", count))
    if result.get("best_epoch"):
        found.append(("best epoch", f"{result['best_epoch']}, chosen on the validation part"))
    return found


def _tested(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was measured on the test part."""
    # A translation has no BLEU where it has no test files, or diverged.
    if result.get("bleu", "") is None and result.get("status") != "diverged":
        return [("test", "none, as there are no test files")]
    found = []
    for metric in METRICS.values():
        if f"test_{metric.name}" in result and metric.name != "bleu":
            shown = metric.show(result[f"test_{metric.name}"])
            found.append((f"test {metric.label}", shown))
    if "test_top5" in result:
        found.append(("test top-5 accuracy", METRICS["accuracy"].show(result["test_top5"])))
    return [*found, ("test loss", _number(result.get("test_loss")))]


def final_report(directory: RunDirectory, result: Mapping[str, Any], command: str) -> str:
    """The table of a run and the next useful command."""
    lines = [text_table(["", str(directory.path)], rows(result))]
    if result["status"] == "diverged":
        lines.append(f"diverged: {result['diverged']['message']}")
    elif result["recipe"].endswith("-quick"):
        lines.append("This was the quick variant: its numbers are not the paper's experiment.")
    siblings = [
        path
        for path in directory.path.parent.glob(f"{result['recipe']}-*/result.json")
        if path.parent != directory.path
    ]
    if siblings:
        pattern = f"{result['recipe']}-*"
        named = "" if directory.path.match(pattern) else f"{quote(str(directory.path))} "
        # The star is for the shell.
        where = "" if directory.path.parent == Path() else f"{quote(str(directory.path.parent))}/"
        lines.append(f"next: quadric results {named}{where}{pattern}")
    elif result["neuron"] == "linear":
        lines.append(f"next, the same network with quadratic neurons: {command} --neuron eigen")
    else:
        lines.append(f"next: quadric evaluate {quote(str(directory.path))}")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
