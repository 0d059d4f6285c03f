"""Write the tables of README.md and of pages in docs/ from result files and the library itself.

    python tools/readme_tables.py           # rewrite what stands between the markers
    python tools/readme_tables.py --check   # change nothing, exit with 1 if a table is out of date

A table stands between the lines `<!-- table: NAME -->` and `<!-- /table -->`; NAME is a key of
`TABLES`, which says from which files in results/, or from which function, it is made. So no number
in these tables is typed.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from effects import power_table
from evidence_equations import equations_table, speed_table
from evidence_error_bars import error_bars_table
from evidence_estimators import estimators_table
from evidence_formulas import formulas_table, opponents_table
from evidence_fresh import fresh_table
from evidence_functions import functions_table
from evidence_perceptrons import perceptrons_table
from evidence_reading import reading_table
from evidence_real import errors_table, summary_table
from evidence_runs import read_piece
from evidence_solvers import map_table, solvers_table
from gpu_resources import resources_table
from real_networks import networks_table
from results_summary import MINUS, ROOT, table, whole
from speed import RECOMPUTED, latency_summary, summary
from speed_dense import dense_table, published, rank_table
from table_of_findings import findings_table, sure_table
from tables_of_counts import COUNTED_TABLES
from tables_of_encryption import TABLES_OF_ENCRYPTION
from tables_of_evidence import TABLES_OF_EVIDENCE

from quadric.bench.cases import NEURONS, PATHS
from quadric.demo.table import demo_table
from quadric.support.texttable import markdown_table

RATIOS = "medians, in brackets the best,"


def _demo(results: Path) -> str:
    return demo_table(read_piece(results / "demo.json"), markdown=True)


def _compared(results: Path) -> str:
    """What `quadric compare` found: networks of equal size, and the best of the other models."""
    rows = []
    for file in sorted((results / "compare").glob("*.json")):
        data = read_piece(file)
        if ".csv" in data["command"]:  # in a table of their own
            continue
        regression = data["task"] == "regression"
        measure = "test_rmse" if regression else "test_accuracy"
        errors = {r["neuron"] or r["model"]: r[measure] for r in data["results"]}
        networks = ("linear", "eigen", "shared")
        unit = "%" if regression else "points"
        cells = [f"{errors['linear']:#.4g}"]
        for neuron in networks[1:]:
            gap = data["differences"][neuron]
            change = f"{gap['mean']:+.1f} ± {gap['half_width']:.1f} {unit}".replace("-", MINUS)
            cells.append(f"{errors[neuron]:#.4g} ({change})")
        others = {name: error for name, error in errors.items() if name not in networks}
        best = (min if regression else max)(others, key=lambda name: others[name])
        rows.append(
            [f"`{data['command']}`", f"{data['rows']:,}", *cells, f"{best} {others[best]:#.4g}",
             data["verdict"]]
        )  # fmt: skip
    header = ["command", "rows", "linear", "eigen", "shared", "best other model", "verdict"]
    return markdown_table(header, rows, "lrrrrll")


EXAMPLES = ("houses", "churn", "beans", "sensors", "sensors-time")
# Models that have another name for classes.
BOTH = {
    "MLPRegressor": "MLPRegressor / -Classifier", "MLPClassifier": "MLPRegressor / -Classifier",
    "SVR (RBF)": "SVR / SVC (RBF)", "SVC (RBF)": "SVR / SVC (RBF)",
    "ridge": "ridge / logistic regression", "logistic regression": "ridge / logistic regression",
}  # fmt: skip


def _examples(results: Path) -> Iterator[dict[str, Any]]:
    """What `quadric compare` found on the files of tools/example_tables.py."""
    for name in EXAMPLES:
        file = results / "compare" / f"{name}.json"
        if file.is_file():
            yield read_piece(file)


def _compared_files(results: Path) -> str:
    """Every model on the example files: the measure it is judged by, and the seconds of a fit."""
    header, columns = ["model"], []
    for data in _examples(results):
        header.append(f"`{data['command'].split()[2]}`, {data['split']}: {data['judged_by']}")
        measure = "test_rmse" if data["task"] == "regression" else "test_loss"
        cells = {}
        for result in data["results"]:
            model = result["neuron"] or BOTH.get(result["model"], result["model"])
            value = result[measure]
            shown = "-" if value is None else f"{value:,.0f}" if value > 1e4 else f"{value:#.4g}"
            cells[model] = f"{shown} ({result['seconds']:.2f} s)"
        columns.append(cells)
    models = dict.fromkeys(model for cells in columns for model in cells)
    rows = [[model, *(cells.get(model, "") for cells in columns)] for model in models]
    return markdown_table(header, rows, "l" + "r" * len(columns))


def _compared_verdicts(results: Path) -> str:
    """What was said about each of the example files."""
    return table(
        _examples(results),
        ("command", lambda data: f"`{data['command']}`"),
        ("rows", whole("rows")),
        ("verdict|", lambda data: data["verdict"]),
    )


def _table_fits(results: Path) -> str:
    """Fits against MLPRegressor, stacks against fits one by one."""
    data = read_piece(results / "bench" / "tables.json")
    first = f"| MLPRegressor | {data['seconds']['MLPRegressor']:.2f} | 1 |  |  |"
    header, rule, *rest = table(
        data["rows"],
        ("fit", lambda row: row["neuron"]),
        ("seconds", lambda row: f"{row['seconds']:.2f}"),
        ("of MLPRegressor's", lambda row: f"{row['ratio']:.2f}"),
        ("wanted at most", lambda row: f"{row['limit']:.1f}"),
        (
            f"{data['settings']['networks']} together, to one by one",
            lambda row: f"{row['speedup']:.1f} times as fast",
        ),
    ).splitlines()
    return "\n".join([header, rule, first, *rest])


def _calibration(results: Path) -> str:
    """How far the classifiers' probabilities are from shares that come true."""
    data = read_piece(results / "calibration.json")

    def mean(key: str) -> Callable[[Any], str]:
        return lambda row: f"{row[key]:.3f} ± {row[f'{key}_std']:.3f}"

    return (
        table(
            data["rows"],
            ("table", lambda row: row["table"]),
            ("rows", whole("rows")),
            ("classes", whole("classes")),
            ("model|", lambda row: row["model"]),
            ("calibration error", mean("calibration_error")),
            ("log loss", mean("log_loss")),
        )
        + "\n\nOne network of 100 neurons, defaults else; "
        f"{data['folds']} folds, {data['bins']} bins, mean and standard deviation of "
        f"{data['seeds']} seeds; churn is a generated table: `{data['command']}`."
    )


def _bench(
    file: str, rows_table: Callable[..., str], times: str = "times are the best"
) -> Callable[[Path], str]:
    """A table of times, with the machine it was made on."""

    def made(results: Path) -> str:
        data = read_piece(results / "bench" / file)
        machine = data["machine"]
        # Of short cases there are more than were asked for; older files do not say how many.
        counts = {r.get("training_runs") for r in data["rows"]} - {None, 0}
        counts = counts or {data["repeats"] * data["rounds"]}
        more = f" (of short ones up to {max(counts)})" if len(counts) > 1 else ""
        torch_version = data["versions"]["torch"]
        rounds = f" in {data['rounds']} rounds" if data["rounds"] > 1 else ""
        note = (
            f"{machine['cpu']}, {machine['cores']} cores, torch {torch_version}; {times} of "
            f"{min(counts)} runs{more}{rounds}, interleaved: `{data['command']}`."
        )
        current = [row for row in data["rows"] if row["path"] in PATHS]  # older files have others
        return f"{rows_table(current)}\n\n{note}"

    return made


def _groups(layers: bool) -> Callable[[Sequence[dict[str, Any]]], str]:
    """The rows of single layers, or of networks."""
    return lambda rows: summary([r for r in rows if r["group"].startswith("conv") is layers])


def _memory(rows: Sequence[dict[str, Any]]) -> str:
    """The peak memory of a training step of each network, in its best format and path."""
    known = [r for r in rows if r["peak_memory_bytes"] and not r["group"].startswith("conv")]
    known = [r for r in known if r["path"] != "compiled"]
    lines = []
    for group in dict.fromkeys(row["group"] for row in known):
        for neuron in ("linear", *NEURONS, *(n + RECOMPUTED for n in NEURONS)):
            found = [r for r in known if (r["group"], r["neuron"]) == (group, neuron)]
            if found:
                # Of equal ratios the least memory: formats differ a little.
                best = min(found, key=lambda r: (round(r["memory"], 3), r["peak_memory_bytes"]))
                size = f"{best['peak_memory_bytes'] / 2**20:,.1f}"
                lines.append([group, neuron, size, f"{best['memory']:.3f}"])
    return markdown_table(["network", "neuron", "peak, MiB", "of linear's"], lines, "llrr")


def _ranks(rows: Sequence[dict[str, Any]]) -> str:
    """Cost against rank, as ratios to the linear layer; times are medians within one turn."""
    lines = []
    for rank in dict.fromkeys(row["rank"] for row in rows if row["rank"] is not None):
        cells: list[object] = [rank]
        for neuron in NEURONS:
            row = next(r for r in rows if (r["neuron"], r["rank"]) == (neuron, rank))
            cells += [f"{row[k]:.2f}" for k in ("training_turns", "inference_turns", "memory")]
        lines.append(cells)
    kinds = ("training", "inference", "memory")
    header = ["rank", *(f"{neuron}: {kind}" for neuron in NEURONS for kind in kinds)]
    return markdown_table(header, lines, "r" * len(header))


def _each_way(rows: Sequence[dict[str, Any]]) -> str:
    """A few cases: the best of many, and the medians of the ratios within a turn."""

    def ratios(suffix: str) -> Callable[[Any], str]:
        def cell(row: Any) -> str:
            pair = (row[f"training{suffix}"], row[f"inference{suffix}"])
            return " / ".join("-" if ratio is None else f"{ratio:.2f}" for ratio in pair)

        return cell

    return table(
        [row for row in rows if row["neuron"] != "linear"],
        ("network", lambda row: row["group"]),
        *((f"{key}|", lambda row, key=key: row[key]) for key in ("neuron", "path", "dtype")),
        ("best of many", ratios("")),
        ("medians in turn", ratios("_turns")),
    )


def _onnx(results: Path) -> str:
    """Latency in ONNX Runtime."""
    data = read_piece(results / "bench" / "onnx.json")
    machine, threads = data["machine"], data["threads"]
    note = (
        f"{machine['cpu']}, {machine['cores']} cores, {threads} of them used, ONNX Runtime "
        f"{data['versions']['onnxruntime']}; best of many runs in {data['rounds']} rounds, "
        f"interleaved, as ratios to linear, in brackets those of the rounds: `{data['command']}`."
    )
    return f"{latency_summary(data['rows'])}\n\n{note}"


def _families(results: Path) -> str:
    """What was tried with every family of networks, and what could not be."""
    data = read_piece(results / "families.json")
    columns = list(next(iter(data["families"].values())))
    rows = [[name, *row.values()] for name, row in data["families"].items()]
    rows += [[library, *["not run here"] * len(columns)] for library in ("torchvision", "timm")]
    versions = " and ".join(f"{name} {number}" for name, number in data["versions"].items())
    text = markdown_table(["family", *columns], rows, "l" * (len(columns) + 1))
    return f"{text}\n\nWith {versions}: `python tools/family_results.py`."


def _defaults(part: str) -> Callable[[Path], str]:
    """Errors of the estimators with earlier and present defaults, beside scikit-learn's models."""

    def made(results: Path) -> str:
        data = read_piece(results / "defaults.json")[part]
        models = ("before", "after", "MLP", "HistGradientBoosting")
        rows, ratios = [], []
        seconds = [0.0] * len(models)
        for name, entry in data.items():
            runs = [entry["models"].get(model, {}) for model in models]
            shared = sorted(set.intersection(*(set(run) for run in runs)))
            if not shared:
                continue
            errors = [statistics.fmean(run[seed]["error"] for seed in shared) for run in runs]
            best = errors.index(min(errors))
            cells = [f"**{e:.3f}**" if i == best else f"{e:.3f}" for i, e in enumerate(errors)]
            rows.append([name, f"{entry['rows']:,} x {entry['columns']}", *cells, str(len(shared))])
            ratios.append([math.log(error / errors[0]) for error in errors])
            for i, run in enumerate(runs):
                seconds[i] += statistics.fmean(run[seed]["seconds"] for seed in shared)
        means = [math.exp(statistics.fmean(column)) for column in zip(*ratios, strict=True)]
        rows.append(["geometric mean, before = 1", "", *(f"{mean:.2f}" for mean in means), ""])
        rows.append(["seconds to fit all once", "", *(f"{total:.0f}" for total in seconds), ""])
        header = ["table", "rows learned x columns", *models, "runs"]
        return markdown_table(header, rows, "lrrrrrr")

    return made


def _second_order(results: Path) -> str:
    """Adam and second order on the tables where `solver="auto"` chooses it."""
    data = read_piece(results / "defaults.json")
    rows: list[list[str]] = []
    logs: list[float] = []
    for name, entry in (data["development"] | data["uci"]).items():
        adam, auto = (entry["models"].get(model, {}) for model in ("after", "after, auto"))
        chosen = [seed for seed in auto if seed in adam and "squared loss" in auto[seed]["solver"]]
        if not chosen:
            continue
        means = [
            [statistics.fmean(run[seed][what] for seed in chosen) for run in (adam, auto)]
            for what in ("error", "seconds")
        ]
        kept = sum("Adam's is kept" in auto[seed]["solver"] for seed in chosen)
        ratios = [auto[seed]["error"] / adam[seed]["error"] for seed in chosen]
        logs += map(math.log, ratios)
        rows.append(
            [name, f"{entry['rows']:,} x {entry['columns']}", *(f"{e:.2g}" for e in means[0]),
             f"{min(ratios):.2g}–{max(ratios):.2g}", *(f"{s:.1f}" for s in means[1]),
             f"{means[1][1] / means[1][0]:.0f}", f"{kept} of {len(chosen)}"]
        )  # fmt: skip
    header = ["table", "rows x columns", "Adam", "auto", "ratio", "s, Adam", "s, auto"]
    header += ["times Adam", "Adam kept"]
    return (
        f"{markdown_table(header, rows, 'lrrrrrrrr')}\n\nErrors as shares of the target's "
        "deviation at the default width, on the tables where `auto` tries second order. *Adam "
        "kept*: in so many runs its network stayed. Processor seconds on one thread of a busy "
        "machine; *times Adam*: their ratio. Geometric mean of all ratios of errors: "
        f"{math.exp(statistics.fmean(logs)):.2f}. Made by `python tools/evidence_defaults.py`."
    )


TABLES: Mapping[str, Callable[[Path], str]] = {
    "demo": _demo,
    "compared": _compared,
    "compared-files": _compared_files,
    "compared-verdicts": _compared_verdicts,
    "table-fits": _table_fits,
    "calibration": _calibration,
    "real-choosing": summary_table("choosing"),
    "real-judging": summary_table("judging"),
    "real-errors": errors_table,
    "real-networks": networks_table,
    "networks": _bench("suite.json", _groups(layers=False), RATIOS),
    "networks-before": _bench("suite_before.json", _groups(layers=False), RATIOS),
    "bf16": _bench("bf16.json", _each_way),
    "layers": _bench("suite.json", _groups(layers=True), RATIOS),
    "memory": _bench("suite.json", _memory),
    "ranks": _bench("ranks.json", _ranks, "medians"),
    "gpu-resources": resources_table,
    "dense": published(dense_table),
    "dense-ranks": published(rank_table),
    "onnx": _onnx,
    "families": _families,
    "defaults-development": _defaults("development"),
    "defaults-uci": _defaults("uci"),
    "second-order-tables": _second_order,
    "solvers": solvers_table,
    "estimators": estimators_table,
    "fresh": fresh_table,
    "equations": equations_table,
    "equation-speed": speed_table,
    "solver-map": map_table,
    "functions": functions_table,
    "error-bars": error_bars_table,
    "formulas": formulas_table,
    "formulas-opponents": opponents_table,
    "findings": findings_table,
    "sure": sure_table,
    "power": power_table,
    "reading": reading_table,
    "perceptrons": perceptrons_table,
    **COUNTED_TABLES,
    **TABLES_OF_EVIDENCE,
    **TABLES_OF_ENCRYPTION,
}
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- /table -->)", flags=re.DOTALL)
_MARKER = re.compile(r"<!-- (?:table: \S+|/table) -->")


def fill(page: str, results: Path) -> str:
    """The page with each table made from the results."""

    def replace(block: re.Match[str]) -> str:
        name = block.group(2)
        if name not in TABLES:
            raise ValueError(f"unknown table {name!r} in a marker: choose from {', '.join(TABLES)}")
        return f"{block.group(1)}\n{TABLES[name](results).strip()}\n\n{block.group(3)}"

    filled, count = _BLOCK.subn(replace, page)
    # A marker without its partner would leave an old table standing for ever.
    if len(_MARKER.findall(page)) != 2 * count:
        raise ValueError("each <!-- table: NAME --> needs its own <!-- /table --> after it")
    return filled


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite or check the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 if stale")
    parser.add_argument("--page", type=Path, action="append", help="default: all pages")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    options = parser.parse_args(arguments)
    stale = False
    for file in options.page or PAGES:
        page = file.read_text(encoding="utf-8")
        filled = fill(page, options.results)
        if filled == page:
            continue
        stale = True
        if options.check:
            print(f"{file.name} is out of date: run python tools/readme_tables.py")
        else:
            file.write_text(filled, encoding="utf-8")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
