"""Tables of README.md and docs/ that are made from the summaries and runs in results/."""

from __future__ import annotations

import ast
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidence_laws import CURVE_ARMS, CURVE_LAWS, WIDTHS, errors, files
from evidence_runs import read_csv, read_piece
from evidence_tables import ARMS, OTHERS, PUBLISHED, TABLES
from results_summary import (
    ARM,
    COSTS,
    SEEDS,
    SHARE,
    TO_LINEAR,
    Row,
    arms_of,
    changed,
    points,
    run_groups,
    score,
    spread,
    summary_rows,
    table,
    whole,
)

from quadric.data import laws
from quadric.data.intervals import mean_difference
from quadric.data.text.scores import SETTINGS
from quadric.runs.groups import RunGroup, pair
from quadric.runs.tables import spread as over_seeds

FAILED = 0.3
"""An error, as a share of the target's deviation, above which a network has learned little."""
MEASURES = (32, 64)
"""Widths of the linear networks that the others are measured by, beside the most accurate one."""
NO_RUN = "No run is published yet."
Curve = list[tuple[float, float]]
"""Parameters and median errors, from the smallest network to the largest."""


# Laws


def law_table(results: Path) -> str:
    """Every neuron on all physical laws, as factors on the linear network's error."""
    found = read_csv(results / "laws" / "summary.csv")
    rows = []
    for arm in dict.fromkeys(row["arm"] for row in found):
        own = [row for row in found if row["arm"] == arm]
        change = mean_difference([math.log(row["ratio"]) for row in own])
        low, high = (math.exp(change.mean + side * (change.half_width or 0)) for side in (-1, 1))
        clear = [row["ratio"] for row in own if row["is_clear"]]
        shares = [row["quadratic_share"] for row in own if row["quadratic_share"] is not None]
        sizes = [row["params"] for row in own]
        compared = ["1", "", ""] if arm == "linear" else [
            f"{math.exp(change.mean):.2f} ({low:.2f}–{high:.2f})",
            f"{sum(ratio < 1 for ratio in clear)} of {len(own)}",
            f"{sum(ratio > 1 for ratio in clear)} of {len(own)}",
        ]  # fmt: skip
        mean = f"{statistics.fmean(shares):.2f}" if shares else ""
        rows.append([f"`{arm}`", f"{min(sizes):,}–{max(sizes):,}", *compared, mean])
    header = "neuron", "parameters", "error, linear = 1", "clearly lower", "clearly higher"
    seeds, names = max(row["seeds"] for row in found), len({row["law"] for row in found})
    return (
        _plain(rows, *header, "quadratic share")
        + f"\n\nGeometric mean over {names} laws, {seeds} seeds each, paired with linear; "
        "in brackets its 95 % interval over the laws. *Clearly*: the 95 % interval of a law's own "
        "seeds leaves 1 out. `-k4` is the rank. Made by `python "
        "tools/evidence_laws.py`."
    )


def _plain(rows: Sequence[Sequence[object]], *header: str) -> str:
    """Cells that are written already, as a table."""
    return table(rows, *((name, lambda row, i=i: row[i]) for i, name in enumerate(header)))


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
            needed = [parameters_for(curves[law, name], error) for name in names]
            cells.append(" / ".join("-" if n is None else f"{params / n:.1f}" for n in needed))
        rows.append([*cells, f"{best[0]:,}"])
    counts = []
    for name in ("linear", *names):
        runs = [r for d in files(results / "laws", "curve") if d["arm"] == name for r in d["runs"]]
        failed = sum(run["error"] is None or run["error"] > FAILED for run in runs)
        counts.append(f"{name} {failed} of {len(runs)}")
    header = "law", *(f"linear {width}" for width in MEASURES), "best linear", "its parameters"
    return (
        _plain(rows, *header)
        + f"\n\nHow many times fewer parameters reach the error of a linear network: "
        f"{' / '.join(names)}. The linear ones have two hidden layers of width {MEASURES[0]}, "
        f"{MEASURES[1]}, or that of {WIDTHS[0]} to {WIDTHS[-1]} with the lowest error. Read where "
        "a curve first comes down to the error, between the measured widths; medians over 5 seeds; "
        "learning rates chosen again at each width, by one seed; -: not reached. Failed "
        f"(error above {FAILED} of the target's deviation): {', '.join(counts)}. Made by "
        "`python tools/evidence_laws.py`."
    )


# UCI tables


def equal_table(results: Path) -> str:
    """UCI tables at equal parameters, and the best of what people use instead."""
    arms = [arm.name for arm in ARMS["equal"]]
    rows: list[tuple[str, dict[str, dict[str, Any]]]] = []
    for name in TABLES:
        found = arms_of(results, f"tables/equal/{name}")
        if "linear" in found:
            rows.append((name.partition("-")[0], found))
    sizes = [own[arm]["params"] for _, own in rows for arm in arms if arm in own]

    def change(arm: str) -> Callable[[Any], str]:
        return lambda row: changed(row[1][arm]) if arm in row[1] else ""

    def best_other(row: Any) -> str:
        others = [row[1][name] for name in OTHERS if name in row[1]]
        best = min(others, key=lambda other: other["mean"], default=None)
        return "" if best is None else f"{best['arm']}, {changed(best)}"

    return (
        table(
            rows,
            ("table", lambda row: row[0]),
            ("splits", lambda row: row[1]["linear"]["seeds"]),
            ("linear, RMSE", lambda row: spread(row[1]["linear"])),
            *((f"{arm}, %", change(arm)) for arm in arms[1:]),
            ("best other, %|", best_other),
        )
        + "\n\nChange of the test error against linear, paired by split, with its 95 % interval "
        "(corrected for overlapping splits); **bold** where it leaves 0 out; less is better. Two "
        f"hidden layers, {min(sizes):,} to {max(sizes):,} parameters, SiLU. Other models have "
        "their defaults. Made by `python tools/evidence_tables.py --data-dir UCI_Datasets`."
    )


def literature_table(results: Path) -> str:
    """One hidden layer, as in the literature, beside published numbers."""
    arms = [arm.name for arm in ARMS["literature"]]
    rows = []
    more: dict[str, list[float]] = {arm: [] for arm in arms[1:]}
    for place, name in enumerate(TABLES):
        found = arms_of(results, f"tables/literature/{name}")
        if found:
            for arm in more.keys() & found.keys():
                ratio = found[arm]["params"] / found["linear"]["params"]
                more[arm].append(100 * ratio - 100)
            own = [spread(found[arm]) if arm in found else "" for arm in arms]
            published = (f"{column[place]:.2f}" for column in PUBLISHED.values())
            rows.append([name.partition("-")[0], *published, *own])
    return (
        _plain(rows, "table", *PUBLISHED, *arms)
        + "\n\nTest RMSE. Published, as printed: the first three from Lakshminarayanan et al. "
        "2017, Table 1 (one hidden layer of 50, 100 for protein, ReLU, 40 epochs; 20 splits, 5 "
        "for protein); the grid from github.com/yaringal/DropoutUncertaintyExps (ten times the "
        "epochs). Ours: the same width and epochs, one network, learning rate tuned; 20 splits, "
        "5 for tables of more than 2,000 rows. At that width "
        + " and ".join(f"{a} has {min(m):.0f} to {max(m):.0f} %" for a, m in more.items())
        + " more parameters than linear; the table before has equal ones. Made by `python "
        "tools/evidence_tables.py --data-dir UCI_Datasets`."
    )


# Runs: without activation, on pictures, of translation


def polynomial_table(results: Path) -> str:
    """Digits without activation functions."""
    rows = read_csv(results / "polynomial" / "summary.csv")

    def finite(key: str, digits: str) -> Callable[[Row], str]:
        return lambda row: "not finite" if row[key] is None else f"{row[key]:{digits}}"

    def accuracy(row: Row) -> str:
        mean, std = row["accuracy_mean"], row["accuracy_std"] or 0
        return "diverged" if mean is None else f"{100 * mean:.2f} ± {100 * std:.2f}"

    def mean_share(row: Row) -> str:
        return "" if row["quadratic_share"] is None else f"{row['quadratic_share']:.2f}"

    return (
        table(
            rows,
            ("neuron", lambda row: row["neuron"]),
            ("after each layer|", lambda row: row["activation"]),
            ("cure|", lambda row: row["cure"]),
            ("parameters", whole("params")),
            ("accuracy, %", accuracy),
            ("test loss", finite("test_loss_mean", ".3g")),
            ("largest output", finite("largest_output", ",.0f")),
            ("quadratic share", mean_share),
            ("diverged", lambda row: f"{row['diverged']} of {row['seeds']}"),
        )
        + "\n\nDigits of 8x8 pixels, three hidden layers, mean ± standard deviation over "
        f"{rows[0]['seeds']} seeds. Made by `{rows[0]['command']}`."
    )


def runs_table(part: str, scale: float, digits: str, *experiments: str) -> Callable[[Path], str]:
    """Runs of `quadric train`, one row an arm; of a whole folder if no experiment is named."""
    wanted = {f"{part}/{name}" for name in experiments}

    def made(results: Path) -> str:
        rows = [r for r in summary_rows(results) if r["experiment"].startswith(f"{part}/")]
        rows = [row for row in rows if not wanted or row["experiment"] in wanted]
        if not rows:
            return NO_RUN
        # One experiment is not named in every row.
        name = ("experiment", lambda row: row["experiment"].partition("/")[2])
        return table(
            rows,
            *([name] if len({row["experiment"] for row in rows}) > 1 else []),
            ARM,
            *COSTS,
            score(rows[0]["metric"], scale, digits),
            SEEDS,
            TO_LINEAR,
            SHARE,
        )

    return made


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
        found = arms_of(results, f"images/{name}")
        for arm in ("linear", "linear_wide", "eigen", "shared", "quadralib"):
            if arm in found:
                yield words, found[arm]


def sizes_table(results: Path) -> str:
    """Accuracy of networks of several sizes, and the size of an equally accurate linear one.

    That size is read where the network clearly differs from the linear one beside it.
    """
    rows = list(sizes(results))
    linear = sorted((row["params"], 1 - row["mean"]) for _, row in rows if "linear" in row["arm"])

    def multiple(row: Row) -> str:
        if not row["is_clear"] or "linear" in row["arm"]:
            return ""
        needed, (least, most) = 1 - row["mean"], (linear[0], linear[-1])
        params = parameters_for(linear, needed)
        if needed > least[1]:
            return f"under {least[0] / row['params']:.2f}"
        if params is None:
            return f"over {most[0] / row['params']:.2f}"
        return f"{params / row['params']:.2f}"

    return table(
        [row | {"words": words} for words, row in rows],
        ("network", lambda row: row["words"]),
        ("neuron|", lambda row: row["arm"]),
        *COSTS,
        score("accuracy", 100, ".2f"),
        SEEDS,
        TO_LINEAR,
        SHARE,
        ("an equally accurate linear network, as a multiple of the parameters", multiple),
    )


def extremes_table(experiment: str) -> Callable[[Path], str]:
    """Runs on pictures whose values may explode: the largest of all seeds beside the score."""

    def made(results: Path) -> str:
        groups = run_groups(results / "images")

        def largest(key: str) -> Callable[[Row], str]:
            def cell(row: Row) -> str:
                values = [run.values[key] for run in groups[experiment, row["arm"]].runs]
                return "not finite" if None in values else f"{max(values):.3g}"

            return cell

        rows = list(arms_of(results, f"images/{experiment}").values())
        if not rows:
            return NO_RUN
        return table(
            rows,
            ARM,
            ("parameters", whole("params")),
            score("accuracy", 100, ".2f"),
            SEEDS,
            TO_LINEAR,
            ("largest test loss", largest("test_loss")),
            ("largest activation", largest("largest_activation")),
            SHARE,
        )

    return made


# Translation


REVISIT_MMT = 41.02
"""BLEU of a Transformer of `transformer_tiny`'s size, by github.com/LividWo/Revisit-MMT."""


def bleu_runs_table(results: Path) -> str:
    """The four scores of each translation network, beside a public number."""
    rows = []
    for (experiment, arm), group in run_groups(results / "translation").items():
        if experiment.startswith("multi30k"):
            runs = [run.values for run in group.runs]
            scores = [[run["bleu"][name] for run in runs] for name in SETTINGS]
            scores.append([run["chrf"] for run in runs])
            epochs = group.first.settings["epochs"]
            rows.append([arm.replace("_", " "), epochs, len(runs), f"{group.first.params:,}",
                         *(over_seeds(values, ".2f") for values in scores)])  # fmt: skip
    rows.sort(key=lambda row: (-row[1], not row[0].startswith("linear")))
    public = ["Revisit-MMT, as published", "", "", "", "", f"{REVISIT_MMT}", "", "", ""]
    header = ["network", "epochs", "seeds", "parameters", "13a", "13a, lower case", "intl"]
    return (
        _plain([public, *rows], *header, "intl, lower case", "chrF")
        + "\n\nMulti30k, English to German, test_2016_flickr: BLEU of sacrebleu, beam 4, plain "
        "text. The public number is of lower-cased, tokenized text, beam 5, the mean of the last "
        "10 checkpoints."
    )


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
    whole_one = read_piece(folder / "multi30k20-linear-s0.json")
    epochs = 6
    (start,) = (point for point in whole_one["epochs"] if point["epoch"] == epochs)
    rows = [{"words": "linear", "params": whole_one["params"], "val_loss": start["val_loss"]}]
    for name, words in TRIALS.items():
        row = trials[f"tune-{name}-s0"]
        assert row["epochs"] == epochs
        rows.append(row | {"words": words.format(**ast.literal_eval(row["model_options"]))})
    return (
        table(
            rows,
            ("`transformer_tiny`", lambda row: row["words"]),
            ("parameters", whole("params")),
            ("validation loss", lambda row: f"{row['val_loss']:.3f}"),
        )
        + f"\n\nAfter {epochs} epochs, one seed: the commands are in "
        "`results/translation/tuning.csv`."
    )


def named_group(results: Path, arm: str) -> RunGroup:
    """The runs of FOLDER/EXPERIMENT-ARM, as their files are named."""
    folder, _, name = arm.partition("/")
    experiment, _, name = name.partition("-")
    return run_groups(results / folder)[experiment, name]


def ahead(results: Path, arm: str, other: str) -> str:
    """By how many points one network is ahead of another, paired by seed."""
    own, base = (named_group(results, which) for which in (arm, other))
    compared = pair(base, own)
    assert compared is not None
    gap = compared.difference
    return changed({"is_clear": gap.is_clear, **points(gap, own.metric.scale)})


def smaller_transformers(results: Path) -> str:
    """What neurons gain in a Transformer a fifth smaller, over the linear one as small."""
    experiment, small = "translation/multi30k10", "linear_shrunk"
    gaps = [
        f"{arm.replace('_', ' ')} {ahead(results, f'{experiment}-{arm}', f'{experiment}-{small}')}"
        for arm in arms_of(results, experiment)
        if arm not in ("linear", small)
    ]
    return f"BLEU against the small linear network, paired by seed: {', '.join(gaps)}."


TABLES_OF_EVIDENCE: Mapping[str, Callable[[Path], str]] = {
    "laws": law_table,
    "law-curves": curve_table,
    "uci": equal_table,
    "uci-literature": literature_table,
    "polynomial": polynomial_table,
    "images-neurons": runs_table("images", 100, ".2f", "r8"),
    "images-sizes": sizes_table,
    "images-full": runs_table("images", 100, ".2f", "full20"),
    "images-converted": runs_table("images", 100, ".2f", "converted"),
    "images-polynomial": extremes_table("poly8"),
    "images-stability": extremes_table("knn18"),
    "bleu": bleu_runs_table,
    "translation-trials": translation_trials,
    "translation-checks": translation_checks,
    "translation-runs": runs_table("translation", 1, ".2f"),
    "translation-small": smaller_transformers,
}
