"""Tables of README.md and docs/ that are made from the evidence in results/."""

from __future__ import annotations

import ast
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from evidence_laws import CURVE_ARMS, CURVE_LAWS, WIDTHS, errors, files
from evidence_polynomial import table as polynomial_rows
from evidence_runs import read_csv, read_piece
from evidence_tables import ARMS, OTHERS, PUBLISHED, TABLES
from results_summary import rows as summary_rows
from results_summary import run_files

from quadric import cost, models
from quadric.data import laws
from quadric.data.text.scores import SETTINGS
from quadric.models.registry import SENTENCE
from quadric.support.texttable import markdown_table
from quadric.train import catalog

MINUS = "\N{MINUS SIGN}"
FAILED = 0.3
"""An error, as a share of the target's deviation, above which a network has learned little."""

MEASURES = (32, 64)
"""Widths of the linear networks that the others are measured by, beside the most accurate one."""

Curve = list[tuple[float, float]]
"""Parameters and median errors, from the smallest network to the largest."""


def signed(value: float, digits: int = 1) -> str:
    """A number with its sign, the minus as long as the plus."""
    return f"{value:+.{digits}f}".replace("-", MINUS)


def changed(row: Mapping[str, Any], unit: str = "") -> str:
    """How a row differs from linear, with its interval; bold where the interval leaves 0 out."""
    if row["difference"] == "":
        return ""
    text = signed(float(row["difference"]))
    if row["low"] != "":
        ends = [signed(float(row[end])) for end in ("low", "high")]
        text += f" ({ends[0]} … {ends[1]})"
    text += unit
    return f"**{text}**" if str(row["is_clear"]) == "True" else text


def spread(row: Mapping[str, Any], scale: float = 1, digits: str = "#.3g") -> str:
    """Mean ± standard deviation, and how many runs diverged."""
    if row["mean"] == "":
        return "diverged"
    text = f"{scale * float(row['mean']):{digits}}"
    if row["std"] != "":
        text += f" ± {scale * float(row['std']):{digits}}"
    diverged = int(row.get("diverged") or 0)
    return f"{text}, {diverged} diverged" if diverged else text


def share(row: Mapping[str, Any]) -> str:
    """The quadratic share; empty for a linear network."""
    if row["quadratic_share"] == "":
        return ""
    value = float(row["quadratic_share"])
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1g}"


# ------------------------------------------------------------------------------------------------
# Laws: error against parameters
# ------------------------------------------------------------------------------------------------


def law_curves(results: Path) -> dict[tuple[str, str], Curve]:
    """The curve of each law and neuron."""
    found: dict[tuple[str, str], Curve] = {}
    for data in files(results / "laws", "curve"):
        for law in CURVE_LAWS:
            own = errors(data, law)
            cost = data["cost"][str(len(laws.get(law).variables))]
            point = (cost["params"], statistics.median(own.values()) if own else math.inf)
            found.setdefault((law, data["arm"]), []).append(point)
    return found


def parameters_for(curve: Curve, error: float) -> float | None:
    """The parameters at which a curve comes down to an error; None if it does not.

    Between two networks the curve is a line on logarithmic axes.
    """
    (before, high), *rest = curve
    if high <= error:
        return before
    for params, low in rest:
        if low <= error:
            way = math.log(high / error) / math.log(high / low)
            return math.exp(math.log(before) + way * math.log(params / before))
        if low < high:
            before, high = params, low
    return None


def curve_table(results: Path) -> str:
    """How many times smaller a quadratic network may be for the error of a linear one."""
    curves = law_curves(results)
    names = [arm.name for arm in CURVE_ARMS[1:]]
    rows = []
    for law in CURVE_LAWS:
        linear = curves[law, "linear"]
        best = min(linear, key=lambda point: point[1])
        cells = [law]
        for params, error in (*(linear[WIDTHS.index(width)] for width in MEASURES), best):
            found = [parameters_for(curves[law, name], error) for name in names]
            cells.append(" / ".join("-" if n is None else f"{params / n:.1f}" for n in found))
        rows.append([*cells, f"{best[0]:,}"])
    header = [*(f"linear {width}" for width in MEASURES), "best linear", "its parameters"]
    counts = []
    for name in ("linear", *names):
        runs = [r for d in files(results / "laws", "curve") if d["arm"] == name for r in d["runs"]]
        failed = sum(run["error"] is None or run["error"] > FAILED for run in runs)
        counts.append(f"{name} {failed} of {len(runs)}")
    return (
        markdown_table(["law", *header], rows, "l" + "r" * len(header))
        + f"\n\nHow many times fewer parameters reach the error of a linear network: "
        f"{' / '.join(names)}. The linear ones have two hidden layers of width {MEASURES[0]}, "
        f"{MEASURES[1]}, or that of {WIDTHS[0]} to {WIDTHS[-1]} with the lowest error. Read where "
        "a curve first comes down to the error, between the measured widths; medians over 5 seeds; "
        "learning rates chosen again at each width, by one seed; -: not reached. Failed "
        f"(error above {FAILED} of the target's deviation): {', '.join(counts)}. Made by "
        "`python tools/evidence_laws.py`."
    )


# ------------------------------------------------------------------------------------------------
# Tables
# ------------------------------------------------------------------------------------------------


def experiment_rows(results: Path, experiment: str) -> dict[str, dict[str, Any]]:
    """The arms of an experiment, from the summary of all."""
    found = summary_rows(results)
    return {row["arm"]: row for row in found if row["experiment"] == experiment}


def equal_table(results: Path) -> str:
    """UCI tables at equal parameters, and the best of what people use instead."""
    arms = [arm.name for arm in ARMS["equal"]]
    cells, sizes = [], []
    for table in TABLES:
        found = experiment_rows(results, f"tables/equal/{table}")
        if "linear" not in found:
            continue
        others = {name: found[name] for name in OTHERS if name in found}
        best = min(others, key=lambda name: float(others[name]["mean"]), default=None)
        cells.append([
            table.partition("-")[0], str(found["linear"]["seeds"]), spread(found["linear"]),
            *(changed(found[arm]) if arm in found else "" for arm in arms[1:]),
            "" if best is None else f"{best}, {changed(others[best])}",
        ])  # fmt: skip
        sizes += [int(found[arm]["params"]) for arm in arms if arm in found]
    header = ["table", "splits", "linear, RMSE", *(f"{a}, %" for a in arms[1:]), "best other, %"]
    return (
        markdown_table(header, cells, "lrr" + "r" * (len(arms) - 1) + "l")
        + "\n\nChange of the test error against linear, paired by split, with its 95 % interval "
        "(corrected for overlapping splits); **bold** where it leaves 0 out; less is better. Two "
        f"hidden layers, {min(sizes):,} to {max(sizes):,} parameters, SiLU. Other models have "
        "their defaults. Made by `python tools/evidence_tables.py --data-dir UCI_Datasets`."
    )


def literature_table(results: Path) -> str:
    """One hidden layer, as in the literature, beside published numbers."""
    arms = [arm.name for arm in ARMS["literature"]]
    cells = []
    more: dict[str, list[float]] = {arm: [] for arm in arms[1:]}
    for place, table in enumerate(TABLES):
        found = experiment_rows(results, f"tables/literature/{table}")
        if found:
            linear = int(found["linear"]["params"])
            for arm in more.keys() & found.keys():
                more[arm].append(100 * int(found[arm]["params"]) / linear - 100)
            own = [spread(found[arm]) if arm in found else "" for arm in arms]
            name = table.partition("-")[0]
            cells.append([name, *(f"{c[place]:.2f}" for c in PUBLISHED.values()), *own])
    return (
        markdown_table(["table", *PUBLISHED, *arms], cells, "l" + "r" * 7)
        + "\n\nTest RMSE. Published, as printed: the first three from Lakshminarayanan et al. "
        "2017, Table 1 (one hidden layer of 50, 100 for protein, ReLU, 40 epochs; 20 splits, 5 "
        "for protein); the grid from github.com/yaringal/DropoutUncertaintyExps (ten times the "
        "epochs). Ours: the same width and epochs, one network, learning rate tuned; 20 splits, "
        "5 for tables of more than 2,000 rows. At that width "
        + " and ".join(f"{a} has {min(m):.0f} to {max(m):.0f} %" for a, m in more.items())
        + " more parameters than linear; the table before has equal ones. Made by `python "
        "tools/evidence_tables.py --data-dir UCI_Datasets`."
    )


# ------------------------------------------------------------------------------------------------
# Without activation; runs of `quadric train`
# ------------------------------------------------------------------------------------------------


def polynomial_table(results: Path) -> str:
    """Digits without activation functions."""
    found: list[dict[str, Any]] = []
    for row in read_csv(results / "polynomial" / "summary.csv"):
        words = ("arm", "neuron", "activation", "cure", "command")
        found.append({k: v if k in words else _number(v) for k, v in row.items()})
    return (
        polynomial_rows(found)
        + "\n\nDigits of 8x8 pixels, three hidden layers, mean ± standard deviation over "
        f"{found[0]['seeds']:.0f} seeds. Made by `{found[0]['command']}`."
    )


def _number(text: str) -> Any:
    if text in ("", "True", "False"):
        return None if text == "" else text == "True"
    return int(text) if text.isdecimal() else float(text)


def runs_table(part: str, scale: float, digits: str, *experiments: str) -> Callable[[Path], str]:
    """Runs of `quadric train`: one row an arm.

    Args:
        part: the folder of the runs.
        scale: of the score, such as 100 for percent.
        digits: how the score is written.
        *experiments: those to show; all if none is named.
    """
    wanted = {f"{part}/{name}" for name in experiments}

    def made(results: Path) -> str:
        rows = [r for r in summary_rows(results) if r["experiment"].startswith(f"{part}/")]
        found = [row for row in rows if not wanted or row["experiment"] in wanted]
        return arm_rows(found, scale, digits) if found else "No run is published yet."

    return made


def arm_rows(found: Sequence[Mapping[str, Any]], scale: float, digits: str) -> str:
    """Rows of the summary as a table; one of one experiment does not name it in every row."""
    header = [
        "experiment", "arm", "parameters", "MACs", found[0]["metric"], "seeds", "to linear, points",
        "quadratic share",
    ]  # fmt: skip
    cells = []
    for row in found:
        cells.append([
            row["experiment"].partition("/")[2], row["arm"], f"{int(row['params']):,}",
            f"{int(row['macs']):,}", spread(row, scale, digits), str(row["seeds"]),
            "" if row["arm"] == "linear" else changed(row), share(row),
        ])  # fmt: skip
    if len({row["experiment"] for row in found}) == 1:
        header, cells = header[1:], [row[1:] for row in cells]
    return markdown_table(header, cells, "llrrrrrr"[-len(header) :])


SIZES = {
    "w8": "ResNet-8, from 8 channels",
    "w12": "ResNet-8, from 12 channels",
    "r8": "ResNet-8, from 16 channels",
    "r14": "ResNet-14",
    "r20": "ResNet-20",
}
"""Experiments on CIFAR-10 at 16x16 that differ in the size of the network alone."""


def sizes(results: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The size of each network, in words, and its row of the summary."""
    for name, words in SIZES.items():
        found = experiment_rows(results, f"images/{name}")
        for arm in ("linear", "linear_wide", "eigen", "shared", "quadralib"):
            if arm in found:
                yield words, found[arm]


def sizes_table(results: Path) -> str:
    """Accuracy of networks of several sizes, and the size of an equally accurate linear one.

    That size is read where the network clearly differs from the linear one beside it.
    """
    found = list(sizes(results))
    linear = sorted(
        (float(row["params"]), 1 - row["mean"]) for _, row in found if "linear" in row["arm"]
    )
    cells = []
    for words, row in found:
        multiple = ""
        if row["is_clear"] and "linear" not in row["arm"]:
            needed, (least, most) = 1 - row["mean"], (linear[0], linear[-1])
            found_at = parameters_for(linear, needed)
            if needed > least[1]:
                multiple = f"under {least[0] / row['params']:.2f}"
            elif found_at is None:
                multiple = f"over {most[0] / row['params']:.2f}"
            else:
                multiple = f"{found_at / row['params']:.2f}"
        cells.append([
            words, row["arm"], f"{int(row['params']):,}", f"{int(row['macs']):,}",
            spread(row, 100, ".2f"), str(row["seeds"]),
            "" if row["arm"] == "linear" else changed(row), share(row), multiple,
        ])  # fmt: skip
    header = [
        "network", "neuron", "parameters", "MACs", "accuracy", "seeds", "to linear, points",
        "quadratic share", "an equally accurate linear network, as a multiple of the parameters",
    ]  # fmt: skip
    return markdown_table(header, cells, "llrrrrrrr")


def extremes_table(experiment: str) -> Callable[[Path], str]:
    """Runs on pictures whose values may explode: the largest of all seeds beside the score."""

    def made(results: Path) -> str:
        files, cells = run_files(results / "images"), []
        for arm, row in experiment_rows(results, f"images/{experiment}").items():
            runs = [read_piece(path) for path in files[experiment, arm].values()]
            losses, peaks = ([r[k] for r in runs] for k in ("test_loss", "largest_activation"))
            cells.append([
                arm, f"{int(row['params']):,}", spread(row, 100, ".2f"), str(row["seeds"]),
                "" if arm == "linear" else changed(row),
                *("not finite" if None in values else f"{max(values):.3g}"
                  for values in (losses, peaks)),
                share(row),
            ])  # fmt: skip
        header = [
            "arm", "parameters", "accuracy", "seeds", "to linear, points", "largest test loss",
            "largest activation", "quadratic share",
        ]  # fmt: skip
        return markdown_table(header, cells, "lrrrrrrr") if cells else "No run is published yet."

    return made


HEADLINES: Mapping[str, tuple[str, float, str, Sequence[str]]] = {
    # experiment: what it is, the score's scale and digits, arms (all if none is named)
    "images/r8": ("CIFAR-10 at 16x16, ResNet-8; accuracy, %", 100, ".2f", ()),
    "images/r20": ("the same, ResNet-20; accuracy, %", 100, ".2f", ()),
    "images/poly8": ("ResNet-8 without activations; accuracy, %", 100, ".2f", ()),
    "polynomial/digits": (
        "digits without activations; accuracy, %", 100, ".2f",
        ("linear", "linear-norm", "linear-relu-norm", "linear-then-square-norm", "eigen-k3-norm",
         "shared-k4-norm"),
    ),
    "tables/equal/power-plant": (
        "UCI power plant; RMSE", 1, "#.3g",
        ("linear", "eigen-k3", "shared-k4", "glu", "LightGBM"),
    ),
    "tables/equal/protein-tertiary-structure": (
        "UCI protein, the largest table; RMSE", 1, "#.3g",
        ("linear", "eigen-k3", "shared-k4", "glu", "LightGBM"),
    ),
    "translation/multi30k10": ("Multi30k, small Transformer, 10 epochs; BLEU", 1, ".2f", ()),
}  # fmt: skip


def headline_table(results: Path) -> str:
    """Pictures, digits and two of the UCI tables, a row an arm."""
    found, costs, cells = summary_rows(results), ("params", "macs"), []
    for experiment, (words, scale, digits, arms) in HEADLINES.items():
        own = [row for row in found if row["experiment"] == experiment]
        own = [row for row in own if not arms or row["arm"] in arms]
        if not own:
            raise ValueError(f"no result of {experiment}: collect its runs")
        for place, row in enumerate(own):
            unit = " %" if row["unit"] == "%" else ""
            cells.append([
                "" if place else words, row["arm"], spread(row, scale, digits),
                "" if row["arm"] == "linear" else changed(row, unit), share(row),
                str(row["seeds"]), *(f"{int(row[key]):,}" if row[key] else "" for key in costs),
                f"`{row['command']}`",
            ])  # fmt: skip
    header = [
        "task", "network", "mean ± std", "against linear", "quadratic share", "seeds",
        "parameters", "MACs", "command of the first",
    ]  # fmt: skip
    return (
        markdown_table(header, cells, "llrrrrrrl")
        + "\n\nAgainst linear: the difference, paired by seed or split, with its 95 % interval; "
        "points of accuracy, or % of the error; **bold** where the interval leaves 0 out."
    )


REVISIT_MMT = 41.02
"""BLEU of a Transformer of `transformer_tiny`'s size, by github.com/LividWo/Revisit-MMT."""


def bleu_runs_table(results: Path) -> str:
    """The four scores of each translation network, beside a public number."""
    cells = [["Revisit-MMT, as published", "", "", "", "", f"{REVISIT_MMT}", "", "", ""]]
    for (experiment, arm), found in run_files(results / "translation").items():
        if not experiment.startswith("multi30k"):
            continue
        runs = [read_piece(path) for path in found.values()]
        scores = [[run["bleu"][name] for run in runs] for name in SETTINGS]
        scores.append([run["chrf"] for run in runs])
        cells.append([
            arm.replace("_", " "), str(runs[0]["settings"]["epochs"]), str(len(runs)),
            f"{runs[0]['params']:,}", *(_mean_spread(values) for values in scores),
        ])  # fmt: skip
    cells[1:] = sorted(cells[1:], key=lambda row: (-int(row[1]), not row[0].startswith("linear")))
    header = ["network", "epochs", "seeds", "parameters", "13a", "13a, lower case", "intl"]
    return (
        markdown_table([*header, "intl, lower case", "chrF"], cells, "lrrrrrrrr")
        + "\n\nMulti30k, English to German, test_2016_flickr: BLEU of sacrebleu, beam 4, plain "
        "text. The public number is of lower-cased, tokenized text, beam 5, the mean of the last "
        "10 checkpoints."
    )


def _mean_spread(values: Sequence[float]) -> str:
    std = statistics.stdev(values) if len(values) > 1 else ""
    return spread({"mean": statistics.fmean(values), "std": std}, digits=".2f")


def translation_checks(results: Path) -> str:
    """Numbers that show that training and decoding work."""
    learned = read_piece(results / "translation" / "overfit-linear-s0.json")
    speed = read_piece(results / "bench" / "decoding.json")
    return (
        f"- Trained on 200 pairs of Multi30k alone, `{learned['model']}` translates these pairs "
        f"with a BLEU of {learned['bleu']['13a_cased']:.1f}: it can learn them by heart.\n"
        f"- {speed['sentences']:,} sentences with {speed['beams']} beams take "
        f"{speed['cached_seconds']:.0f} s of processor time, in batches and with cached keys and "
        f"values. A sentence then takes 1/{speed['ratio']:.0f} of the processor time that it takes "
        f"alone and without the cache; {speed['same_text']} of {speed['sentences_alone']} "
        f"translations are the same to the letter. Made by `{speed['command']}`."
    )


TRIALS = {
    "attention_eigen": "eigen in the attention",
    "feedforward_shared": "shared in the feed-forward layers",
    "shrink_attention": "linear, `attention_width` {attention_width}",
    "shrink_feedforward": "linear, `feedforward_width` {feedforward_width}",
    "shrink_model": "linear, `model_width` {model_width}",
}


def translation_trials(results: Path) -> str:
    """Short trials of a Transformer with narrower layers, or with quadratic ones."""
    folder = results / "translation"
    trials = {row["run"]: row for row in read_csv(folder / "tuning.csv")}
    whole = read_piece(folder / "multi30k20-linear-s0.json")
    epochs = 6
    (start,) = (point for point in whole["epochs"] if point["epoch"] == epochs)
    cells = [["linear", f"{whole['params']:,}", f"{start['val_loss']:.3f}"]]
    for name, words in TRIALS.items():
        row = trials[f"tune-{name}-s0"]
        assert int(row["epochs"]) == epochs
        words = words.format(**ast.literal_eval(row["model_options"]))
        cells.append([words, f"{int(row['params']):,}", f"{float(row['val_loss']):.3f}"])
    return (
        markdown_table(["`transformer_tiny`", "parameters", "validation loss"], cells, "lrr")
        + f"\n\nAfter {epochs} epochs, one seed: the commands are in "
        "`results/translation/tuning.csv`."
    )


# ------------------------------------------------------------------------------------------------
# What the full-size experiments cost
# ------------------------------------------------------------------------------------------------

# Training pictures of the data sets; a Transformer learns from steps of target tokens.
PICTURES = {"cifar10": 50_000, "cifar100": 50_000, "folders": 1_281_167}
FULL_SIZE = (
    *(f"cifar10-resnet{depth}" for depth in (20, 32, 44, 56, 110)), "cifar10-wide-resnet20",
    "cifar100-resnet20", "imagenet-resnet18", "wmt14-transformer",
)  # fmt: skip


def full_size_table(_: Path) -> str:
    """The paper's experiments: what a run computes, counted and not timed."""
    cells = []
    for name in FULL_SIZE:
        for neuron in ("linear", "eigen"):
            recipe = catalog.load(name).with_overrides({"neuron": neuron}).resolved()
            options: dict[str, Any] = {"channels": recipe.channels} if recipe.channels else {}
            if recipe.dataset == "cifar100":
                options["num_classes"] = 100
            with torch.device("meta"):
                network = models.create(recipe.model, neuron, recipe.rank, **options)
                examples = [x.to("meta") for x in models.example_inputs(recipe.model, **options)]
            found = cost(network, *examples)
            if recipe.epoch_steps:  # sentence pairs of 32 tokens
                inputs = recipe.epochs * recipe.epoch_steps * recipe.batch_size / SENTENCE
            else:
                inputs = recipe.epochs * PICTURES[recipe.dataset]
            where = " --data-dir imagenet" if recipe.dataset == "folders" else ""
            cells.append([
                f"`quadric train {name} --neuron {neuron}{where}`", f"{found.params:,}",
                f"{found.macs:,}", str(recipe.epochs), f"{3 * found.macs * inputs:.2g}",
            ])  # fmt: skip
    header = ["command", "parameters", "MACs for one input", "epochs", "MACs of the training"]
    return (
        markdown_table(header, cells, "lrrrr")
        + "\n\nMACs of the training: three times the forward pass, for every "
        "picture of every epoch; for translation, sentence pairs of 32 tokens. A GPU does two "
        "floating-point operations for a MAC, and reaches a part of its peak: divide, then time "
        "one epoch yourself."
    )


TABLES_OF_EVIDENCE: Mapping[str, Callable[[Path], str]] = {
    "law-curves": curve_table,
    "uci": equal_table,
    "uci-literature": literature_table,
    "polynomial": polynomial_table,
    "headlines": headline_table,
    "images-neurons": runs_table("images", 100, ".2f", "r8"),
    "images-sizes": sizes_table,
    "images-full": runs_table("images", 100, ".2f", "full20"),
    "images-converted": runs_table("images", 100, ".2f", "converted"),
    "images-polynomial": extremes_table("poly8"),
    "images-stability": extremes_table("knn18"),
    "images-digits": runs_table("images", 100, ".2f", "digits"),
    "full-size": full_size_table,
    "bleu": bleu_runs_table,
    "translation-trials": translation_trials,
    "translation-checks": translation_checks,
    "translation-runs": runs_table("translation", 1, ".2f"),
}
