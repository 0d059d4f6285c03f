"""What a comparison says: a table, paired differences, one plain sentence, and the same as JSON."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from quadric.data.columns import UserTable
from quadric.data.intervals import Difference, mean_difference
from quadric.support import provenance
from quadric.support.texttable import text_table
from quadric.tables.comparison.measures import ACCURACY, choose_measure, guess_loss, is_blow_up
from quadric.tables.comparison.models import LINEAR, Contender, Plan
from quadric.tables.comparison.records import Fit, Records

UNSURE = 25.0
"""With a wider interval there may well be a difference, which these folds do not show."""

_PACKAGES = ("scikit-learn", "pandas", "numpy")


@dataclass(frozen=True)
class Row:
    """A model over all folds.

    Attributes:
        model: its label.
        fits: one per fold and seed.
        errors: what it is judged by, one per fold, averaged over seeds; empty if a fit diverged.
        contender: the network; None for another model.
        blown_up: the fits that went wrong so far that a mean over fits says nothing.
    """

    model: str
    fits: tuple[Fit, ...]
    errors: tuple[float, ...]
    contender: Contender | None
    blown_up: tuple[Fit, ...] = ()

    @property
    def is_quadratic(self) -> bool:
        """Whether it is a network other than the linear one."""
        return self.contender is not None and self.model != LINEAR

    @property
    def diverged(self) -> int:
        """How many fits diverged."""
        return sum(fit.status != "ok" for fit in self.fits)

    @property
    def error(self) -> float | None:
        """The mean error over the folds."""
        return statistics.fmean(self.errors) if self.errors else None

    @property
    def spread(self) -> float | None:
        """The standard deviation of the errors over the folds."""
        return statistics.stdev(self.errors) if len(self.errors) > 1 else None

    def mean(self, name: str) -> float | None:
        """The mean of a number over the fits that have it."""
        values = [v for v in (getattr(fit, name) for fit in self.fits) if v is not None]
        return statistics.fmean(values) if values else None

    def shares(self) -> dict[str, float] | None:
        """The quadratic share of each layer, over the fits that have it."""
        found = [fit.quadratic_share for fit in self.fits if fit.quadratic_share]
        if not found:
            return None
        return {name: statistics.fmean(share[name] for share in found) for name in found[0]}


class Comparison:
    """The outcome of a comparison.

    Attributes:
        rows: one for each model.
        differences: of each quadratic network to the linear one, by its label.
        measure: what models are judged by.
        written: lines that say which files were written.
    """

    def __init__(self, table: UserTable, plan: Plan, records: Records) -> None:
        self.table, self.plan, self.records = table, plan, records
        self.measure = choose_measure(table.task, table.target)
        self.written: list[str] = []
        networks = {c.label: c for c in plan.contenders}
        self._usual = self._medians()
        self._guess = 0.0 if self.is_regression else guess_loss(table.target)
        self.rows = [self._row(label, networks.get(label)) for label in plan.starts()]
        self.differences = {
            row.model: self._difference(row) for row in self.rows if row.is_quadratic
        }

    @property
    def is_regression(self) -> bool:
        """Whether a number is predicted, not a class."""
        return self.table.task == "regression"

    def _judged(self, fit: Fit) -> float | None:
        value: float | None = getattr(fit, self.measure.field)
        return value

    def _medians(self) -> list[float]:
        """The median of all models on each fold."""
        fits = [fit for label in self.plan.starts() for fit in self.records.of(label)]
        known = [(fit.fold, self._judged(fit)) for fit in fits]
        folds = [[v for f, v in known if f == i and v is not None] for i in range(self.plan.folds)]
        return [statistics.median(values) if values else math.nan for values in folds]

    def _row(self, label: str, contender: Contender | None) -> Row:
        fits = tuple(self.records.of(label))
        values = [(fit, self._judged(fit)) for fit in fits]
        folds = [[value for fit, value in values if fit.fold == i] for i in range(self.plan.folds)]
        known = [[error for error in errors if error is not None] for errors in folds]
        whole = all(folds) and known == folds
        blown_up = tuple(fit for fit, value in values if self._is_blow_up(fit, value))
        errors = tuple(map(statistics.fmean, known)) if whole else ()
        return Row(label, fits, errors, contender, blown_up)

    def _is_blow_up(self, fit: Fit, value: float | None) -> bool:
        if value is None or fit.score is None or self.measure is ACCURACY:
            return False
        guess = self._guess
        if self.is_regression:  # R² is 1 minus the square of the error by that of the mean
            guess = value / math.sqrt(max(1 - fit.score, 1e-12))
        return is_blow_up(value, guess, self._usual[fit.fold])

    def row(self, label: str) -> Row:
        """The row of a model."""
        return next(row for row in self.rows if row.model == label)

    def _difference(self, row: Row) -> Difference | None:
        """To the linear network: percent of its error, or points of accuracy."""
        linear, relative = self.row(LINEAR).errors, self.measure.relative
        if not row.errors or not linear or (relative and min(linear) == 0):
            return None
        pairs = zip(linear, row.errors, strict=True)
        values = [100 * (b / a - 1 if relative else a - b) for a, b in pairs]
        return mean_difference(values, self.plan.split.test_share(self.plan.folds))

    def best_quadratic(self) -> Row | None:
        """The quadratic network with the lowest error."""
        rows = [row for row in self.rows if row.is_quadratic and row.errors]
        return min(rows, key=lambda row: row.error or 0.0, default=None)

    def verdict(self) -> str:
        """A few plain sentences: the networks, what went wrong, and the best model of all."""
        parts = [self._networks(), *map(self._blow_up, self.rows), self._best_of_all()]
        return " ".join(filter(None, parts))

    def _networks(self) -> str:
        """What quadratic networks do beside the linear one."""
        linear = self.row(LINEAR)
        if linear.blown_up:
            return "no verdict on networks of equal size: the linear one blew up."
        known = {
            label: d
            for label, d in self.differences.items()
            if d is not None and not self.row(label).blown_up
        }
        if not known:
            if any(row.blown_up for row in self.rows if row.is_quadratic):
                return "no quadratic network is of use on this table."
            reason = "training diverged" if any(r.diverged for r in self.rows) else "no error"
            return f"no verdict: {reason} for the linear or every quadratic network."
        sign = -1 if self.measure.relative else 1  # of an improvement
        better = [label for label, d in known.items() if d.is_clear and d.mean * sign > 0]
        worse = [label for label, d in known.items() if d.is_clear and d.mean * sign < 0]
        if better:
            best = max(better, key=lambda label: known[label].mean * sign)
            sentence = f"{best} {self._words(known[best])} at equal size"
            others = [label for label in (*better, *worse) if label != best]
            if others:
                sentence += "; " + ", ".join(
                    f"{label} {self._words(known[label])}" for label in others
                )
        elif worse and len(worse) == len(known):
            sentence = "; ".join(f"{label} {self._words(known[label])}" for label in worse)
            sentence += " at equal size: stay with linear here"
        else:
            wide = max(d.half_width or 0.0 for d in known.values()) > UNSURE
            what = "gain" if worse else "clear difference" if wide else "difference"
            sentence = f"no {what} on this table: " + ", ".join(
                f"{label} {self._words(d) if label in worse else self._signed(d)}"
                for label, d in known.items()
            )
        return sentence + "."

    def _amount(self, d: Difference) -> str:
        unit = " %" if self.measure.relative else " points"
        return f"{_short(abs(d.mean))}{unit} ± {_short(d.half_width or 0.0)}"

    def _words(self, d: Difference) -> str:
        verb = "raises" if d.mean > 0 else "lowers"
        return f"{verb} the {self.measure.word} by {self._amount(d)}"

    def _signed(self, d: Difference) -> str:
        return f"{'+' if d.mean > 0 else '−'}{self._amount(d)}"

    def _blow_up(self, row: Row) -> str:
        """A sentence for a model that went wrong in some fits; empty for others."""
        if not row.blown_up:
            return ""
        if self.is_regression:
            worst = f"R² {min(fit.score or 0.0 for fit in row.blown_up):.1f}".replace("-", "−")
        else:
            worst = f"log loss {max(fit.loss or 0.0 for fit in row.blown_up):.2f}"
        count = f"{len(row.blown_up)} of {len(row.fits)} fits"
        return f"{row.model} blew up in {count} ({worst} at worst): do not trust it here."

    def _best_of_all(self) -> str:
        known = [row for row in self.rows if row.error is not None]
        if not known:
            return ""
        best = min(known, key=lambda row: row.error or 0.0)
        most = "lowest" if self.measure.relative else "highest"
        shown = self._shown(best)
        return f"{best.model} has the {most} {self.measure.word} of all ({shown})."

    def _shown(self, row: Row) -> str:
        assert row.error is not None
        value = self.measure.shown(row.error)
        return format_error(value) if self.measure.relative else f"{value:.3f}"

    def line(self, label: str) -> str:
        """A model in one line, for those who wait for the others."""
        row = self.row(label)
        header, cells = self._columns(row)
        found = [f"{name} {cell}" for name, cell in zip(header, cells, strict=True) if cell != "-"]
        return f"{label}: {', '.join(found)}, {_format(row.mean('seconds'), '.2f')} s to fit"

    def table_text(self) -> str:
        """The table that is printed."""
        cells = []
        for row in self.rows:
            difference = self.differences.get(row.model)
            beside = "" if difference is None else self._signed(difference)
            metrics, values = self._columns(row)
            cells.append(
                [
                    row.model,
                    _format(row.mean("params"), ",.0f"),
                    *values,
                    "blew up" if row.blown_up else beside,
                    _format(row.mean("seconds"), ".2f"),
                    _format(row.mean("predict_seconds"), ".4f"),
                ]
            )
        header = ["model", "parameters", *metrics, "to linear", "s to fit", "s / 1,000 rows"]
        return text_table(header, cells, "l" + "r" * (len(header) - 1))

    def _columns(self, row: Row) -> tuple[list[str], list[str]]:
        """The measures of a model by name; the one it is judged by has its spread over folds."""
        judged = "-"
        if row.diverged:
            judged = f"diverged ({row.diverged} of {len(row.fits)})"
        elif row.error is not None:
            value = self.measure.shown(row.error)
            digits = _digits(value) if self.measure.relative else 4
            spread = "" if row.spread is None else f" ± {row.spread:.{digits}f}"
            judged = f"{value:.{digits}f}{spread}"
        if self.is_regression:
            return ["RMSE", "R²"], [judged, "-" if row.diverged else _mean(row, "score")]
        found = {
            "accuracy": _mean(row, "score"),
            "balanced": _mean(row, "balanced"),
            "AUC": _mean(row, "auc"),
            "log loss": _mean(row, "loss"),
            self.measure.name: judged,
        }
        return list(found), list(found.values())

    def __str__(self) -> str:
        table, plan = self.table, self.plan
        title = (
            f"{table.name}: {len(table.target):,} rows, {table.inputs.shape[1]} columns, "
            f"{table.task} of {table.target.name}, {plan.folds} folds, {plan.seeds} "
            f"start{'s' if plan.seeds > 1 else ''} per network"
        )
        notes = [f"  {note}" for note in self.notes()]
        closing = (
            "± is the standard deviation over folds; differences to linear are paired, with their "
            f"95 % interval.\n{self.verdict()}"
        )
        return "\n".join([title, *notes, "", self.table_text(), "", closing])

    def notes(self) -> list[str]:
        """What was dropped, assumed, warned of, or made shorter, a line each."""
        notes = [*self.table.notes, *self.plan.notes(len(self.table.target))]
        split = self.plan.split
        most = self.plan.epochs(self.plan.training_rows(len(self.table.target)))
        for row in self.rows if split.kind != "time" else ():  # by time folds differ in epochs
            ended = sum((fit.epochs or 0) >= most for fit in row.fits)
            if row.contender is not None and self.plan.large and ended:
                notes.append(
                    f"{row.model} used up its epochs in {ended} of {len(row.fits)} fits: with more "
                    "--epochs its error may be lower"
                )
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
            "notes": self.notes(),
            "judged_by": self.measure.name,
            "split": str(self.plan.split),
            "verdict": self.verdict(),
            "differences": {
                label: None if d is None else d.to_dict() for label, d in self.differences.items()
            },
            "results": [self.result(row) for row in self.rows],
            "settings": self.records.settings,
            **provenance.stamp(*_PACKAGES),
        }

    def result(self, row: Row) -> dict[str, Any]:
        """A model in the format of the project's result files."""
        contender, settings = row.contender, self.records.settings
        params, macs = row.mean("params"), row.mean("macs")
        identity = {
            "dataset": self.table.name,
            "model": "mlp" if contender is not None else row.model,
            "neuron": None if contender is None else contender.neuron,
            "rank": None if contender is None else contender.resolved_rank,
            "seed": self.plan.seed,
        }
        # By table: networks of different tables are not to be compared.
        recipe = f"compare {self.table.name}"
        decisive = ("data", "hidden", "activation", "folds", "seeds", "target", "task")
        shown = (
            "fold", "seed", "status", "error", "score", "loss", "params", "widths", "epochs",
            "seconds",
        )  # fmt: skip
        return {
            "recipe": recipe,
            **identity,
            "status": "diverged" if row.diverged else "ok",
            "params": None if params is None else round(params),
            "macs": None if macs is None else round(macs),
            **({"test_rmse": row.error} if self.is_regression else self._class_measures(row)),
            "test_loss": row.mean("loss"),
            "quadratic_share": row.shares(),
            "epochs": [],
            "seconds": row.mean("seconds"),
            "peak_memory_bytes": max((f.peak_memory_bytes or 0 for f in row.fits), default=0)
            or None,
            "predict_seconds": row.mean("predict_seconds"),
            "folds": [{name: getattr(fit, name) for name in shown} for fit in row.fits],
            **provenance.stamp(*_PACKAGES),
            "settings": {
                "name": recipe, **identity, **{key: settings[key] for key in decisive},
            },
        }  # fmt: skip

    def _class_measures(self, row: Row) -> dict[str, float | None]:
        names = {"test_accuracy": "score", "test_balanced_accuracy": "balanced", "test_auc": "auc"}
        return {key: None if row.diverged else row.mean(name) for key, name in names.items()}

    def write(self) -> None:
        """Writes compare.json, and a result.json for each network, into the directory."""
        directory = self.records.path
        provenance.write_json(directory / "compare.json", self.to_dict())
        self.written.append(f"{directory / 'compare.json'}: all numbers")
        for row in self.rows:
            if row.contender is not None:
                name = row.model.replace("[", "-k").replace("]", "")
                provenance.write_json(directory / name / "result.json", self.result(row))

    def python_line(self) -> str | None:
        """The best quadratic network, as one would write it in Python."""
        best = self.best_quadratic()
        if best is None or best.contender is None:
            return None
        kind = "QuadraticRegressor" if self.is_regression else "QuadraticClassifier"
        rank, activation = best.contender.rank, self.plan.activation
        rows = self.plan.training_rows(len(self.table.target))
        return (
            f"{kind}({tuple(best.fits[0].widths or ())}, neuron={best.contender.neuron!r}"
            + ("" if rank is None else f", rank={rank}")
            + ("" if activation == "silu" else f", activation={activation!r}")
            + f", learning_rate='adaptive', max_iter={self.plan.epochs(rows)}, "
            f"n_iter_no_change={self.plan.patience(rows)})"
        )


def _format(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _mean(row: Row, name: str) -> str:
    return _format(row.mean(name), ".4f")


def _digits(value: float) -> int:
    """Decimals that show four digits."""
    digits = 3
    while digits < 8 and value < 10 ** (3 - digits) and value > 0:
        digits += 1
    return digits if value < 1000 else 1


def format_error(value: float | None) -> str:
    """An error with four digits."""
    return "-" if value is None else f"{value:.{_digits(value)}f}"


def _short(value: float) -> str:
    """A percentage with one decimal where it is small."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"
