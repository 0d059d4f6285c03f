"""What is printed at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from quadric.texttable import text_table
from quadric.train.directory import RunDirectory


def rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A result as a short table of names and values."""
    rank = "" if result.get("rank") is None else f", rank {result['rank']}"
    found = [
        ("recipe", f"{result['recipe']}, seed {result['seed']}"),
        ("neuron", f"{result['neuron']}{rank}"),
        ("parameters", f"{result['params']:,}"),
        ("MACs for one input", f"{result['macs']:,}"),
    ]
    if "test_accuracy" in result:
        found.append(("test accuracy", _percent(result["test_accuracy"])))
        if "test_top5" in result:
            found.append(("test top-5 accuracy", _percent(result["test_top5"])))
    if "test_rmse" in result:
        found.append(("test RMSE", _number(result["test_rmse"])))
    found.append(("test loss", _number(result.get("test_loss"))))
    if result.get("largest_activation_layer"):
        largest = _number(result["largest_activation"])
        found.append(("largest activation", f"{largest} in {result['largest_activation_layer']}"))
    shares = result.get("quadratic_share")
    if shares:
        found.append(("quadratic share", f"{sum(shares.values()) / len(shares):.3f} (mean)"))
    if result.get("epochs"):
        count = len(result["epochs"])
        found.append(("epochs", f"{count} in {result['seconds']:.1f} s"))
    if result.get("best_epoch"):
        found.append(("best epoch", f"{result['best_epoch']}, chosen on the validation part"))
    return found


def final_report(directory: RunDirectory, result: Mapping[str, Any], command: str) -> str:
    """The table of a run and the next useful command.

    Args:
        directory: of the run.
        result: of the run.
        command: that made it.
    """
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


def _percent(value: float | None) -> str:
    return "not finite" if value is None else f"{100 * value:.2f} %"


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
