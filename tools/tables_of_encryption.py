"""Tables of private_predictions.md and polynomial_networks.md in docs/, from results/encrypted/."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from evidence_runs import read_piece
from results_summary import signed
from tables_of_evidence import NO_RUN

from quadric.data.intervals import mean_difference
from quadric.support.texttable import markdown_table


def packings_table(results: Path) -> str:
    """MNIST under encryption in both packings."""
    rows, notes = [], []
    for packing in ("one", "many"):
        file = results / "encrypted" / f"{packing}.json"
        if not file.exists():
            continue
        data = read_piece(file)
        size, seconds = data["bytes"], data["seconds_a_picture"]
        rows.append(
            [
                f"`{packing}`",
                f"{data['pictures']:,}",
                f"{100 * data['test_accuracy']:.2f} %",
                str(data["predictions_that_differ"]),
                f"{data['largest_error']:.2g} of {data['largest_output']:.0f}",
                f"{seconds['run']:.3g} ({data['server_cpu_seconds_a_picture']:.2g})",
                f"{seconds['encrypt'] + seconds['decrypt']:.2g}",
                f"{size['request'] / 2**20:,.1f} / {size['answer'] / 2**20:,.1f} MiB",
                f"{size['server_keys'] / 2**20:,.0f} MiB",
                f"{data['peak_memory'] / 2**30:.1f} GiB",
            ]
        )
        notes.append(f"`{data['command']}`")
    if not rows:
        return NO_RUN
    header = ["packing", "pictures", "accuracy", "predictions that differ", "largest error"]
    header += ["server, s a picture (of processor time)", "client, s a picture"]
    header += ["last request / answer", "server's keys", "peak memory"]
    return markdown_table(header, rows, "lrrrrrrrrr") + f"\n\nMade by {' and '.join(notes)}."


def neurons_table(results: Path) -> str:
    """Polynomial networks of one square, at equal parameters."""
    file = results / "encrypted" / "neurons.json"
    if not file.exists():
        return NO_RUN
    data = read_piece(file)
    rows, plain = [], next(row["seeds"] for row in data["rows"] if row["arm"] == "x²")
    for row in sorted(data["rows"], key=lambda row: -row["test_accuracy"]):
        gap = mean_difference([100 * (row["seeds"][seed] - plain[seed]) for seed in plain])
        shown = f"{signed(gap.mean, 2)} ± {gap.half_width:.2f}"
        accuracy = f"{100 * row['test_accuracy']:.2f} ± {100 * row['std']:.2f}"
        depth = str(row["depth"] or "no polynomial")
        own = "" if row["arm"] == "x²" else shown
        rows.append([row["arm"], f"{row['params']:,}", depth, accuracy, own])
    header = ["network", "parameters", "multiplications in a row", "accuracy, %"]
    header.append("points to x², 95 % interval")
    own = data["settings"]
    note = f"{own['epochs']} epochs of batches of {own['batch']}, one rate for all, no shifts, "
    note += f"{len(data['rows'][0]['seeds'])} seeds. Made by `{data['command']}`."
    return markdown_table(header, rows, "lrrrr") + "\n\n" + note


TABLES_OF_ENCRYPTION: Mapping[str, Callable[[Path], str]] = {
    "encrypted": packings_table,
    "encrypted-neurons": neurons_table,
}
