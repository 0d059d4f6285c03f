"""What a comparison says: a table, paired differences, one plain sentence, and the same as JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from quadric.data.intervals import Difference, mean_difference
from quadric.data.user_table import UserTable
from quadric.support import provenance
from quadric.support.texttable import text_table
from quadric.tables.comparison.fit_log import FitLog
from quadric.tables.comparison.measures import ACCURACY, choose_measure, guess_loss, is_blow_up
from quadric.tables.comparison.plan import LINEAR, ComparisonPlan, Network
from quadric.tables.linear import LOGISTIC_REGRESSION, RIDGE

UNSURE = 25.0
"""With a wider interval there may well be a difference, which these folds do not show."""

PAIRS = 5
"""Folds below which differences are shown one by one, without an interval."""

_LISTED = 40
_PACKAGES = ("scikit-learn", "pandas", "numpy")
_MEANS = ("score", "balanced", "auc", "loss", "params", "macs", "seconds", "predict_seconds")


class TableComparison:
    """What `compare` found.

    Attributes:
        table: the table, its columns of their final type.
        fits: a frame with a row for each fit.
        errors: a frame of what models are judged by, models by folds, averaged over starts; NaN
            for a fold with a fit that diverged or has no such measure.
        summary: a frame with a row for each model: means over fits, `error` and its `spread` over
            folds, and how many fits diverged and blew up.
        differences: of each quadratic network to the linear one, by its label.
        measure: what models are judged by.
        written: lines that say which files were written.
    """

    def __init__(self, table: UserTable, plan: ComparisonPlan, log: FitLog) -> None:
        self.table, self.plan, self.log = table, plan, log
        self.measure = choose_measure(table.task, table.target)
        self.written: list[str] = []
        self.networks = {network.label: network for network in plan.networks}
        labels = list(plan.starts())
        frame = log.frame()
        self.fits = frame[frame["model"].isin(labels)].reset_index(drop=True)
        self.fits["blew_up"] = self._blow_ups()
        judged = self.fits.groupby(["model", "fold"])[self.measure.field]
        means = judged.agg(lambda values: values.mean(skipna=False)).unstack()
        self.errors = means.reindex(index=labels, columns=range(plan.folds))
        models = self.fits.groupby("model")
        self.summary = models[list(_MEANS)].mean().reindex(labels)
        self.summary["error"] = self.errors.mean(axis=1, skipna=False)
        self.summary["spread"] = self.errors.std(axis=1, skipna=False)
        self.summary["fits"] = models.size()
        self.summary["diverged"] = models["status"].agg(lambda status: int((status != "ok").sum()))
        self.summary["blew_up"] = models["blew_up"].sum()
        self.differences = {
            label: self._difference(label) for label in self.networks if label != LINEAR
        }

    @property
    def is_regression(self) -> bool:
        """Whether a number is predicted, not a class."""
        return self.table.task == "regression"

    def _blow_ups(self) -> list[bool]:
        """The fits that went wrong so far that a mean over fits says nothing."""
        values, scores = self.fits[self.measure.field], self.fits["score"]
        if self.measure is ACCURACY:
            return [False] * len(values)
        usual = values.groupby(self.fits["fold"]).transform("median")
        # R² is 1 minus the square of the error by that of the mean.
        guess = (
            values / np.sqrt((1 - scores).clip(lower=1e-12))
            if self.is_regression
            else pd.Series(guess_loss(self.table.target), values.index)
        )
        return list(map(is_blow_up, values, guess, usual))

    def _difference(self, label: str) -> Difference | None:
        """To the linear network: percent of its error, averaged as ratios, or points of accuracy.

        Fewer than `PAIRS` folds have no interval.
        """
        linear, other = self.errors.loc[LINEAR], self.errors.loc[label]
        relative = self.measure.relative
        if linear.isna().any() or other.isna().any():
            return None
        if relative and min(linear.min(), other.min()) <= 0:
            return None
        gaps = np.log(other / linear) if relative else 100 * (linear - other)
        found = mean_difference(gaps.tolist(), self.plan.split.test_share(self.plan.folds))
        if len(gaps) < PAIRS:
            found = replace(found, half_width=None)
        if not relative:
            return found
        mean = 100 * math.expm1(found.mean)
        if found.half_width is None:
            return replace(found, mean=mean)
        low, high = (100 * math.expm1(min(end, 700.0)) for end in found.ends)
        return Difference(mean, (high - low) / 2, found.pairs, low, high)

    def best_network(self) -> Network | None:
        """The network with the lowest error, linear or not, that did not blow up."""
        own = self.summary.loc[list(self.networks)]
        errors = own.loc[own["blew_up"] == 0, "error"].dropna()
        return None if errors.empty else self.networks[str(errors.idxmin())]

    def verdict(self) -> str:
        """A few plain sentences: the networks, what went wrong, and the best model of all."""
        blown = [self._blow_up(label) for label in self.summary.index[self.summary["blew_up"] > 0]]
        return " ".join(filter(None, [self._networks(), *blown, self._best_of_all()]))

    def _networks(self) -> str:
        """What quadratic networks do beside the linear one."""
        blew_up = self.summary["blew_up"] > 0
        if blew_up[LINEAR]:
            return "no verdict on networks of equal size: the linear one blew up."
        known = {k: d for k, d in self.differences.items() if d is not None and not blew_up[k]}
        if not known:
            if blew_up[list(self.differences)].any():
                return "no quadratic network is of use on this table."
            reason = "training diverged" if self.summary["diverged"].any() else "no error"
            return f"no verdict: {reason} for the linear or every quadratic network."
        sign = -1 if self.measure.relative else 1  # of an improvement
        better = [label for label, d in known.items() if d.is_clear and d.mean * sign > 0]
        worse = [label for label, d in known.items() if d.is_clear and d.mean * sign < 0]
        if better:
            best = max(better, key=lambda label: known[label].mean * sign)
            sentence = f"{best} {self._words(best, known[best])} at equal size"
            others = [label for label in (*better, *worse) if label != best]
            if others:
                sentence += "; " + ", ".join(
                    f"{label} {self._words(label, known[label])}" for label in others
                )
        elif worse and len(worse) == len(known):
            sentence = "; ".join(f"{label} {self._words(label, known[label])}" for label in worse)
            sentence += " at equal size: stay with linear here"
        else:
            wide = max(math.inf if d.half_width is None else d.half_width for d in known.values())
            wide = wide > UNSURE
            what = "gain" if worse else "clear difference" if wide else "difference"
            sentence = f"no {what} on this table: " + ", ".join(
                f"{label} {self._words(label, d) if label in worse else self._signed(label, d)}"
                for label, d in known.items()
            )
        return sentence + "."

    def _words(self, label: str, d: Difference) -> str:
        verb = "raises" if d.mean > 0 else "lowers"
        unit = " %" if self.measure.relative else " points"
        ends = sorted(map(abs, d.ends))
        interval = f" ({_short(ends[0])} to {_short(ends[1])})"
        return f"{verb} the {self.measure.word} by {_short(abs(d.mean))}{unit}{interval}"

    def _signed(self, label: str, d: Difference) -> str:
        unit = " %" if self.measure.relative else " points"
        if d.half_width is not None:
            low, high = d.ends
            return f"{_sign(d.mean)}{unit} ({_sign(low)} to {_sign(high)})"
        return f"{_sign(d.mean)}{unit} (folds {', '.join(map(_sign, fold_gaps(self, label)))})"

    def _blow_up(self, label: str) -> str:
        """A sentence for a model that went wrong in some fits."""
        fits = self.fits[self.fits["model"] == label]
        bad = fits[fits["blew_up"]]
        if self.is_regression:
            worst = f"R² {bad['score'].min():.1f}".replace("-", "−")
        else:
            worst = f"log loss {bad['loss'].max():.2f}"
        count = f"{len(bad)} of {len(fits)} fits"
        return f"{label} blew up in {count} ({worst} at worst): do not trust it here."

    def _best_of_all(self) -> str:
        errors = self.summary["error"].dropna()
        if errors.empty:
            return ""
        most = "lowest" if self.measure.relative else "highest"
        value = self.measure.shown(errors.min())
        shown = format_error(value) if self.measure.relative else f"{value:.3f}"
        return f"{errors.idxmin()} has the {most} {self.measure.word} of all ({shown})."

    def line(self, label: str) -> str:
        """A model in one line, for those who wait for the others."""
        cells = [f"{name} {cell}" for name, cell in self._measures(label).items() if cell != "-"]
        seconds = _format(self.summary["seconds"][label], ".2f")
        return f"{label}: {', '.join(cells)}, {seconds} s to fit"

    def table_text(self) -> str:
        """The table that is printed."""
        cells = []
        for label, row in self.summary.iterrows():
            difference = self.differences.get(str(label))
            beside = "" if difference is None else self._signed(str(label), difference)
            cells.append(
                [
                    str(label),
                    _format(row["params"], ",.0f"),
                    *self._measures(str(label)).values(),
                    "blew up" if row["blew_up"] > 0 else beside,
                    _format(row["seconds"], ".2f"),
                    _format(row["predict_seconds"], ".4f"),
                ]
            )
        names = list(self._measures(LINEAR))
        header = ["model", "parameters", *names, "to linear", "s to fit", "s / 1,000 rows"]
        return text_table(header, cells, "l" + "r" * (len(header) - 1))

    def _measures(self, label: str) -> dict[str, str]:
        """The measures of a model by name; the one it is judged by has its spread over folds."""
        row, judged = self.summary.loc[label], "-"
        if row["diverged"] > 0:
            judged = f"diverged ({row['diverged']:.0f} of {row['fits']:.0f})"
        elif not np.isnan(row["error"]):
            value = self.measure.shown(row["error"])
            digits = _digits(value) if self.measure.relative else 4
            spread = "" if np.isnan(row["spread"]) else f" ± {row['spread']:.{digits}f}"
            judged = f"{value:.{digits}f}{spread}"
        if self.is_regression:
            return {"RMSE": judged, "R²": "-" if row["diverged"] else _format(row["score"], ".4f")}
        names = {"accuracy": "score", "balanced": "balanced", "AUC": "auc", "log loss": "loss"}
        cells = {name: _format(row[field], ".4f") for name, field in names.items()}
        return {**cells, self.measure.name: judged}

    def __str__(self) -> str:
        table, plan = self.table, self.plan
        title = (
            f"{table.name}: {len(table.target):,} rows, {table.inputs.shape[1]} columns, "
            f"{table.task} of {table.target.name}, {plan.folds} folds, {plan.seeds} "
            f"start{'s' if plan.seeds > 1 else ''} per network"
        )
        notes = [f"  {note}" for note in self.notes()]
        columns = _columns_text(table.facts)
        notes += ["", *columns] if columns else []
        closing = (
            "± is the standard deviation over folds; differences to linear are paired, "
            + ("with their 95 % interval" if plan.folds >= PAIRS else "fold by fold")
            + f".\n{self.verdict()}"
        )
        return "\n".join([title, *notes, "", self.table_text(), "", closing])

    def notes(self) -> list[str]:
        """What was dropped, assumed, warned of, or made shorter, a line each."""
        notes = [*self.table.notes, *self.plan.notes(len(self.table.target))]
        split = self.plan.split
        most = self.plan.epochs(self.plan.training_rows(len(self.table.target)))
        if self.plan.large and split.kind != "time":  # by time folds differ in epochs
            for label in self.networks:
                epochs = self.fits.loc[self.fits["model"] == label, "epochs"]
                ended = int((epochs >= most).sum())
                if ended:
                    notes.append(
                        f"{label} used up its epochs in {ended} of {len(epochs)} fits: with more "
                        "--epochs its error may be lower"
                    )
        rival = RIDGE if self.is_regression else LOGISTIC_REGRESSION
        for label in self.networks:
            fits = self.fits[self.fits["model"] == label]
            linear = sum(widths == [] for widths in fits["widths"])
            if linear:
                said = f"{rival} took the place of {label}, no better on the held-out rows,"
                notes.append(f"{said} in {linear} of {len(fits)} fits")
        if split.kind == "time":
            notes.append(f"{self.plan.folds} folds by time: each is tested on what comes after it")
        elif split.kind == "group":
            notes.append(f"folds by {split.column!r}: tested on groups that were not learned from")
        if not self.is_regression:
            shares = self.table.target.value_counts(normalize=True)
            uneven = "" if not self.measure.relative else ": uneven, so judged by log loss"
            notes.append(
                f"{len(shares)} classes; the largest, {shares.index[0]!r}, has "
                f"{100 * shares.iloc[0]:.1f} % of the rows, the smallest "
                f"{100 * shares.iloc[-1]:.1f} %{uneven}"
            )
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data: what compare.json holds."""
        return {
            "dataset": self.table.name,
            "task": self.table.task,
            "target": str(self.table.target.name),
            "rows": len(self.table.target),
            "columns": dict(self.table.kinds),
            "read": self.table.facts,
            "notes": self.notes(),
            "judged_by": self.measure.name,
            "split": str(self.plan.split),
            "verdict": self.verdict(),
            "differences": {
                label: None if d is None else d.to_dict() for label, d in self.differences.items()
            },
            "results": [self.result(label) for label in self.summary.index],
            "settings": self.log.settings,
            **provenance.stamp(*_PACKAGES),
        }

    def result(self, label: str) -> dict[str, Any]:
        """A model in the format of the project's result files."""
        network, settings = self.networks.get(label), self.log.settings
        row = {k: None if np.isnan(v) else float(v) for k, v in self.summary.loc[label].items()}
        fits = [fit for fit in self.log.fits.values() if fit["model"] == label]
        fits.sort(key=lambda fit: (fit["fold"], fit["seed"]))
        shares = [fit["quadratic_share"] for fit in fits if fit["quadratic_share"]]
        identity = {
            "dataset": self.table.name,
            "model": label if network is None else "mlp",
            "neuron": None if network is None else network.neuron,
            "rank": None if network is None else network.resolved_rank,
            "seed": self.plan.seed,
        }
        measured = {"test_rmse": row["error"]}
        if not self.is_regression:
            names = {"accuracy": "score", "balanced_accuracy": "balanced", "auc": "auc"}
            measured = {
                f"test_{name}": None if row["diverged"] else row[field]
                for name, field in names.items()
            }
        # By table: networks of different tables are not to be compared.
        recipe = f"compare {self.table.name}"
        decisive = ("data", "hidden", "activation", "solver", "folds", "seeds", "target", "task")
        shown = (
            "fold", "seed", "status", "error", "score", "loss", "params", "widths", "epochs",
            "seconds",
        )  # fmt: skip
        return {
            "recipe": recipe,
            **identity,
            "status": "diverged" if row["diverged"] else "ok",
            "params": None if row["params"] is None else round(row["params"]),
            "macs": None if row["macs"] is None else round(row["macs"]),
            **measured,
            "test_loss": row["loss"],
            "quadratic_share": pd.DataFrame(shares).mean().to_dict() or None,
            "epochs": [],
            "seconds": row["seconds"],
            "peak_memory_bytes": max((f["peak_memory_bytes"] or 0 for f in fits), default=0)
            or None,
            "predict_seconds": row["predict_seconds"],
            "folds": [{name: fit[name] for name in shown} for fit in fits],
            **provenance.stamp(*_PACKAGES),
            "settings": {"name": recipe, **identity, **{key: settings[key] for key in decisive}},
        }

    def write(self) -> None:
        """Writes compare.json, and a result.json for each network, into the directory."""
        directory = self.log.path
        provenance.write_json(directory / "compare.json", self.to_dict())
        self.written.append(f"{directory / 'compare.json'}: all numbers")
        for label in self.summary.index:
            result = self.result(label)
            if label not in self.networks:
                result["neuron"] = label  # what tables of results tell runs apart by
                if result["status"] != "ok" or self.summary["fits"].isna()[label]:
                    continue
            name = re.sub(r"[^\w.-]+", "-", label.replace("[", "-k")).strip("-")
            provenance.write_json(directory / name / "result.json", result)


def fold_gaps(comparison: TableComparison, label: str) -> list[float]:
    """The differences of a network to the linear one, fold by fold, as they are shown."""
    linear, other = comparison.errors.loc[LINEAR], comparison.errors.loc[label]
    gaps = other / linear - 1 if comparison.measure.relative else linear - other
    return [100 * float(gap) for gap in gaps]


def _columns_text(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of which there is something to say: read in a special way, filled or dropped."""
    cells = []
    for fact in facts:
        holes = f"{fact['holes']:,}" if fact["holes"] else ""
        dropped = fact["dropped"] and f"dropped: {fact['dropped']}"
        if holes or fact["how"] or dropped:
            cells.append([fact["column"], fact["read as"], holes, dropped or fact["how"]])
    if not cells:
        return []
    more = len(cells) - _LISTED
    text = text_table(["column", "read as", "holes", ""], cells[:_LISTED], "llrl")
    lines = [line.rstrip() for line in text.splitlines()]
    lines += [f"and {more:,} more columns: see compare.json"] if more > 0 else []
    if any(fact["holes"] for fact in facts):
        lines.append(
            "holes: numbers get the median of the training part and a column that marks the hole, "
            "categories one of their own"
        )
    return lines


def _format(value: float, form: str) -> str:
    return "-" if np.isnan(value) else format(value, form)


def _digits(value: float) -> int:
    """Decimals that show four digits."""
    digits = 3
    while digits < 8 and value < 10 ** (3 - digits) and value > 0:
        digits += 1
    return digits if value < 1000 else 1


def format_error(value: float) -> str:
    """An error with four digits."""
    return f"{value:.{_digits(value)}f}"


def _sign(value: float) -> str:
    """A difference with its sign."""
    return f"{'+' if value > 0 else '−'}{_short(abs(value))}"


def _short(value: float) -> str:
    """A percentage with one decimal where it is small."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"
