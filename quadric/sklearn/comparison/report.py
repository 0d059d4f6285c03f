"""What a comparison says: a table, paired differences, one plain sentence, and the same as JSON."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from quadric import provenance
from quadric.data.columns import UserTable
from quadric.data.intervals import Difference, mean_difference
from quadric.sklearn.comparison.models import LINEAR, Contender, Plan
from quadric.sklearn.comparison.records import Fit, Records
from quadric.texttable import text_table

_PACKAGES = ("scikit-learn", "pandas", "numpy")


@dataclass(frozen=True)
class Row:
    """A model over all folds.

    Attributes:
        model: its label.
        fits: one per fold and seed.
        errors: one per fold, averaged over seeds; empty if a fit diverged.
        contender: the network; None for one of scikit-learn's models.
    """

    model: str
    fits: tuple[Fit, ...]
    errors: tuple[float, ...]
    contender: Contender | None

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

    Args:
        table: what was learned from.
        plan: what was compared.
        records: the fits.

    Attributes:
        rows: one for each model.
        differences: of each quadratic network to the linear one, by its label.
        written: lines that say which files were written.
    """

    def __init__(self, table: UserTable, plan: Plan, records: Records) -> None:
        self.table, self.plan, self.records = table, plan, records
        self.written: list[str] = []
        networks = {c.label: c for c in plan.contenders}
        self.rows = [self._row(label, networks.get(label)) for label in plan.starts()]
        self.differences = {
            row.model: self._difference(row) for row in self.rows if row.is_quadratic
        }

    @property
    def is_regression(self) -> bool:
        """Whether a number is predicted, not a class."""
        return self.table.task == "regression"

    def _row(self, label: str, contender: Contender | None) -> Row:
        fits = tuple(self.records.of(label))
        folds = [[fit.error for fit in fits if fit.fold == i] for i in range(self.plan.folds)]
        known = [[error for error in errors if error is not None] for errors in folds]
        whole = all(folds) and known == folds
        return Row(label, fits, tuple(map(statistics.fmean, known)) if whole else (), contender)

    def row(self, label: str) -> Row:
        """The row of a model."""
        return next(row for row in self.rows if row.model == label)

    def _difference(self, row: Row) -> Difference | None:
        """To the linear network: percent of its error, or points of accuracy."""
        linear = self.row(LINEAR).errors
        if not row.errors or not linear or (self.is_regression and min(linear) == 0):
            return None
        pairs = zip(linear, row.errors, strict=True)
        values = [100 * (b / a - 1 if self.is_regression else a - b) for a, b in pairs]
        return mean_difference(values, test_share=1 / (self.plan.folds - 1))

    def best_quadratic(self) -> Row | None:
        """The quadratic network with the lowest error."""
        rows = [row for row in self.rows if row.is_quadratic and row.errors]
        return min(rows, key=lambda row: row.error or 0.0, default=None)

    def verdict(self) -> str:
        """One or two plain sentences."""
        known = {label: d for label, d in self.differences.items() if d is not None}
        if not known:
            reason = "training diverged" if any(r.diverged for r in self.rows) else "no error"
            return f"no verdict: {reason} for the linear or every quadratic network."
        sign = -1 if self.is_regression else 1  # of an improvement
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
            sentence = f"no {'gain' if worse else 'difference'} on this table: " + ", ".join(
                f"{label} {self._words(d) if label in worse else self._signed(d)}"
                for label, d in known.items()
            )
        return sentence + "." + self._best_of_all()

    def _amount(self, d: Difference) -> str:
        unit = " %" if self.is_regression else " points"
        return f"{_short(abs(d.mean))}{unit} ± {_short(d.half_width or 0.0)}"

    def _words(self, d: Difference) -> str:
        what = "error" if self.is_regression else "accuracy"
        return f"{'raises' if d.mean > 0 else 'lowers'} the {what} by {self._amount(d)}"

    def _signed(self, d: Difference) -> str:
        return f"{'+' if d.mean > 0 else '−'}{self._amount(d)}"

    def _best_of_all(self) -> str:
        known = [row for row in self.rows if row.error is not None]
        best = min(known, key=lambda row: row.error or 0.0)
        if best.contender is not None:
            return ""
        if self.is_regression:
            return f" {best.model} has the lowest error of all ({format_error(best.error)})."
        return f" {best.model} has the highest accuracy of all ({1 - (best.error or 0):.3f})."

    def table_text(self) -> str:
        """The table that is printed."""
        metric = ["RMSE", "R²"] if self.is_regression else ["accuracy", "error"]
        header = ["model", "parameters", *metric]
        header += ["difference to linear", "s to fit", "s / 1,000 predictions"]
        cells = []
        for row in self.rows:
            difference = self.differences.get(row.model)
            cells.append(
                [
                    row.model,
                    _format(row.mean("params"), ",.0f"),
                    *self._metric_cells(row),
                    "" if difference is None else self._signed(difference),
                    _format(row.mean("seconds"), ".2f"),
                    _format(row.mean("predict_seconds"), ".4f"),
                ]
            )
        return text_table(header, cells, "lrrrrrr")

    def _metric_cells(self, row: Row) -> tuple[str, str]:
        if row.error is None:
            return f"diverged ({row.diverged} of {len(row.fits)})", "-"
        digits = _digits(row.error) if self.is_regression else 4
        spread = "" if row.spread is None else f" ± {row.spread:.{digits}f}"
        if self.is_regression:
            return f"{row.error:.{digits}f}{spread}", _format(row.mean("score"), ".4f")
        return f"{1 - row.error:.4f}{spread}", f"{row.error:.4f}"

    def __str__(self) -> str:
        table, plan = self.table, self.plan
        title = (
            f"{table.name}: {len(table.target):,} rows, {table.inputs.shape[1]} columns, "
            f"{table.task} of {table.target.name}, {plan.folds} folds, {plan.seeds} "
            f"start{'s' if plan.seeds > 1 else ''} per network"
        )
        notes = [f"  {note}" for note in table.notes]
        closing = (
            "± is the standard deviation over folds; differences are paired, with their 95 % "
            f"interval.\n{self.verdict()}"
        )
        return "\n".join([title, *notes, "", self.table_text(), "", closing])

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data: what compare.json holds."""
        return {
            "dataset": self.table.name,
            "task": self.table.task,
            "target": str(self.table.target.name),
            "rows": len(self.table.target),
            "columns": dict(self.table.kinds),
            "notes": list(self.table.notes),
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
        error = row.error if self.is_regression or row.error is None else 1 - row.error
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
            "fold", "seed", "status", "error", "score", "params", "widths", "epochs", "seconds",
        )  # fmt: skip
        return {
            "recipe": recipe,
            **identity,
            "status": "diverged" if row.diverged else "ok",
            "params": None if params is None else round(params),
            "macs": None if macs is None else round(macs),
            "test_rmse" if self.is_regression else "test_accuracy": error,
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
        rows = round(len(self.table.target) * (1 - 1 / self.plan.folds))
        return (
            f"{kind}({tuple(best.fits[0].widths or ())}, neuron={best.contender.neuron!r}"
            + ("" if rank is None else f", rank={rank}")
            + ("" if activation == "silu" else f", activation={activation!r}")
            + f", learning_rate='adaptive', max_iter={self.plan.epochs(rows)}, "
            f"n_iter_no_change={self.plan.patience(rows)})"
        )


def _format(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


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
