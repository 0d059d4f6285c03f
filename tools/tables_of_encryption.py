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


def cures_table(results: Path) -> str:
    """Deep polynomial networks, one cure at a time."""
    file = results / "encrypted" / "cures.json"
    if not file.exists():
        return NO_RUN
    data = read_piece(file)
    relu = next(row["accuracy"] for row in data["rows"] if row["arm"] == "ReLU")
    rows = []
    for row in sorted(data["rows"], key=lambda row: -row["accuracy"]):
        gap = signed(100 * (row["accuracy"] - relu), 1)
        own = "" if row["arm"] == "ReLU" else gap
        rows.append([row["arm"], f"{100 * row['accuracy']:.1f}", own, f"{row['cpu_seconds']:.0f}"])
    header = ["network", "accuracy, %", "points to ReLU", "processor seconds"]
    own = data["settings"]
    note = f"{own['epochs']} epochs of {own['pictures']:,} pictures, judged by "
    note += f"{own['held_out']:,} others of the training part; one seed, one rate. "
    return markdown_table(header, rows, "lrrr") + f"\n\n{note}Made by `{data['command']}`."


def training_table(results: Path) -> str:
    """CIFAR-10 at ten levels in plain arithmetic."""
    file = results / "encrypted" / "cifar10_training.json"
    if not file.exists():
        return NO_RUN
    data = read_piece(file)
    rows = [
        [
            row["activation"],
            f"{row['params']:,}",
            str(row["epochs"]),
            f"{100 * row['test_accuracy']:.2f}",
            f"{row['test_loss']:.2f}",
        ]
        for row in data["rows"]
    ]
    header = ["activation", "parameters", "epochs", "accuracy, %", "test loss"]
    return markdown_table(header, rows, "lrrrr") + f"\n\nOne seed. Made by `{data['command']}`."


def cifar_table(results: Path) -> str:
    """CIFAR-10 at ten levels: simulated, and encrypted where that was done."""
    file = results / "encrypted" / "cifar10.json"
    if not file.exists():
        return NO_RUN
    data = read_piece(file)
    plan = data["plan"]
    rows = [
        [f"accuracy on {data['tested']:,} in plain", f"{100 * data['plain_accuracy']:.2f} %"],
        ["under simulated encryption", f"{100 * data['simulated_accuracy']:.2f} %"],
        ["predictions that differ", str(data["predictions_that_differ"])],
        ["outputs out of range, which would overflow", str(data["outputs_out_of_range"])],
        ["expected error", f"{data['expected_error']:.2g} of {data['range']:.3g}"],
        ["server's keys", f"{data['server_keys'] / 2**20:.0f} MiB"],
        ["ring", f"{plan['ring']:,}, {len(plan['bits']) - 1} primes and one for the keys"],
    ]
    if "pictures" in data:
        seconds, used = data["seconds_a_picture"], data["cpu_seconds_a_picture"]
        rows += [
            ["encrypted pictures", f"{data['pictures']}, {data['same_predictions']} as in plain"],
            ["their largest error", f"{data['largest_error']:.2g}"],
            ["server, s a picture", f"{seconds:.0f} ({used:.0f} of processor time)"],
            [
                "request / answer",
                f"{data['request'] / 2**20:.2f} / {data['answer'] / 2**20:.2f} MiB",
            ],
            ["peak memory, both ends", f"{data['peak_memory'] / 2**30:.1f} GiB"],
        ]
    table = markdown_table(["", "`cnn5`"], rows, "ll")
    return f"{table}\n\nMade by `{data['command']}`."


TABLES_OF_ENCRYPTION: Mapping[str, Callable[[Path], str]] = {
    "encrypted": packings_table,
    "encrypted-neurons": neurons_table,
    "encrypted-cures": cures_table,
    "encrypted-training": training_table,
    "encrypted-cifar": cifar_table,
}
