"""What a comparison says: a table, paired differences, one plain sentence, and the same as JSON."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from quadric import provenance
from quadric.data.columns import UserTable
from quadric.sklearn.compare.differences import Difference, corrected_difference
from quadric.sklearn.compare.models import LINEAR
from quadric.sklearn.compare.records import Fit, Records
from quadric.sklearn.compare.run import Options
from quadric.texttable import text_table


@dataclass(frozen=True)
class Row:
    """A model over all folds.

    Attributes:
        model: its label.
        fits: one a fold and seed.
        errors: one a fold, averaged over seeds; empty if a fit diverged.
        is_network: whether it is one of the networks.
    """

    model: str
    fits: tuple[Fit, ...]
    errors: tuple[float, ...]
    is_network: bool

    @property
    def diverged(self) -> int:
        return sum(fit.status != "ok" for fit in self.fits)

    @property
    def error(self) -> float | None:
        return statistics.fmean(self.errors) if self.errors else None

    @property
    def spread(self) -> float | None:
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
        options: what was compared.
        records: the fits.
    """

    def __init__(self, table: UserTable, options: Options, records: Records) -> None:
        self.table, self.options, self.records = table, options, records
        networks = {c.label for c in options.contenders}
        self.rows = [self._row(label, label in networks) for label in options.models()]
        self.differences = {
            row.model: self._difference(row)
            for row in self.rows
            if row.is_network and row.model != LINEAR
        }

    @property
    def is_regression(self) -> bool:
        return self.table.task == "regression"

    def _row(self, label: str, is_network: bool) -> Row:
        fits = tuple(self.records.of(label))
        errors: list[float] = []
        for fold in range(self.options.folds):
            values = [fit.error for fit in fits if fit.fold == fold]
            known = [value for value in values if value is not None]
            if not known or len(known) < len(values):
                errors = []
                break
            errors.append(statistics.fmean(known))
        return Row(label, fits, tuple(errors), is_network)

    def row(self, label: str) -> Row:
        """The row of a model."""
        return next(row for row in self.rows if row.model == label)

    def _difference(self, row: Row) -> Difference | None:
        """To the linear network: percent of its error, or points of accuracy."""
        linear = self.row(LINEAR).errors
        if not row.errors or not linear:
            return None
        share = 1 / (self.options.folds - 1)
        if self.is_regression:
            if min(linear) == 0:
                return None
            values = [100 * (b / a - 1) for a, b in zip(linear, row.errors, strict=True)]
        else:
            values = [100 * (a - b) for a, b in zip(linear, row.errors, strict=True)]
        return corrected_difference(values, share)

    def best_quadratic(self) -> Row | None:
        """The quadratic network with the lowest error."""
        rows = [row for row in self.rows if row.is_network and row.model != LINEAR and row.errors]
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

    def _words(self, d: Difference) -> str:
        unit = " %" if self.is_regression else " points"
        what = "error" if self.is_regression else "accuracy"
        verb = "raises" if d.mean > 0 else "lowers"
        return f"{verb} the {what} by {_short(abs(d.mean))}{unit} ± {_short(d.half_width)}"

    def _signed(self, d: Difference) -> str:
        unit = " %" if self.is_regression else " points"
        return f"{'+' if d.mean > 0 else '−'}{_short(abs(d.mean))}{unit} ± {_short(d.half_width)}"

    def _best_of_all(self) -> str:
        known = [row for row in self.rows if row.error is not None]
        best = min(known, key=lambda row: row.error or 0.0)
        if best.is_network:
            return ""
        if self.is_regression:
            return f" {best.model} has the lowest error of all ({format_error(best.error)})."
        return f" {best.model} has the highest accuracy of all ({1 - (best.error or 0):.3f})."

    def table_text(self) -> str:
        """The table that is printed."""
        metric = "RMSE" if self.is_regression else "accuracy"
        header = ["model", "parameters", metric, "R²" if self.is_regression else "error"]
        header += ["difference to linear", "s to fit", "s / 1,000 predictions"]
        cells = []
        for row in self.rows:
            params, seconds = row.mean("params"), row.mean("seconds")
            predict = row.mean("predict_seconds")
            difference = self.differences.get(row.model)
            cells.append(
                [
                    row.model,
                    "-" if params is None else f"{params:,.0f}",
                    *self._metric_cells(row),
                    "" if difference is None else self._signed(difference),
                    "-" if seconds is None else f"{seconds:.2f}",
                    "-" if predict is None else f"{predict:.4f}",
                ]
            )
        return text_table(header, cells, "lrrrrrr")

    def _metric_cells(self, row: Row) -> tuple[str, str]:
        if row.error is None:
            return f"diverged ({row.diverged} of {len(row.fits)})", "-"
        score = row.mean("score")
        if self.is_regression:
            digits = _digits(row.error)
            spread = "" if row.spread is None else f" ± {row.spread:.{digits}f}"
            return f"{row.error:.{digits}f}{spread}", "-" if score is None else f"{score:.4f}"
        spread = "" if row.spread is None else f" ± {row.spread:.4f}"
        return f"{1 - row.error:.4f}{spread}", f"{row.error:.4f}"

    def __str__(self) -> str:
        rows, columns = len(self.table.target), self.table.inputs.shape[1]
        target = self.table.target.name
        title = (
            f"{self.table.name}: {rows:,} rows, {columns} columns, {self.table.task} of {target}, "
            f"{self.options.folds} folds, {_starts(self.options.seeds)} a network"
        )
        notes = [f"  {note}" for note in self.table.notes]
        closing = (
            f"± is the standard deviation over folds; differences are paired, with their 95 % "
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
            "versions": provenance.versions("scikit-learn", "pandas", "numpy"),
            "machine": provenance.machine(),
            "command": provenance.command(),
        }

    def result(self, row: Row) -> dict[str, Any]:
        """A model in the format of the project's result files."""
        contender = {c.label: c for c in self.options.contenders}.get(row.model)
        params, macs = row.mean("params"), row.mean("macs")
        peaks = [f.peak_memory_bytes for f in row.fits if f.peak_memory_bytes is not None]
        metric = (
            {"test_rmse": row.error}
            if self.is_regression
            else {"test_accuracy": None if row.error is None else 1 - row.error}
        )
        return {
            # By table: networks of different tables are not to be compared.
            "recipe": f"compare {self.table.name}",
            "dataset": self.table.name,
            "model": "mlp" if contender is not None else row.model,
            "neuron": None if contender is None else contender.neuron,
            "rank": None if contender is None else contender.resolved_rank,
            "seed": self.options.seed,
            "status": "diverged" if row.diverged else "ok",
            "params": None if params is None else round(params),
            "macs": None if macs is None else round(macs),
            **metric,
            "test_loss": row.mean("loss"),
            "quadratic_share": row.shares(),
            "epochs": [],
            "seconds": row.mean("seconds"),
            "peak_memory_bytes": max(peaks) if peaks else None,
            "predict_seconds": row.mean("predict_seconds"),
            "folds": [
                {
                    "fold": fit.fold,
                    "seed": fit.seed,
                    "status": fit.status,
                    "error": fit.error,
                    "score": fit.score,
                    "params": fit.params,
                    "widths": None if fit.widths is None else list(fit.widths),
                    "epochs": fit.epochs,
                    "seconds": fit.seconds,
                }
                for fit in row.fits
            ],
            "versions": provenance.versions("scikit-learn", "pandas", "numpy"),
            "machine": provenance.machine(),
            "command": provenance.command(),
            "settings": {
                "name": f"compare {self.table.name}",
                "dataset": self.table.name,
                "model": "mlp" if contender is not None else row.model,
                "neuron": None if contender is None else contender.neuron,
                "rank": None if contender is None else contender.resolved_rank,
                "seed": self.options.seed,
                **{
                    key: self.records.settings[key]
                    for key in ("data", "hidden", "activation", "folds", "seeds", "target", "task")
                },
            },
        }

    def write(self) -> None:
        """Writes compare.json, and a result.json for each network, into the directory."""
        directory = self.records.path
        provenance.write_json(directory / "compare.json", self.to_dict())
        for row in self.rows:
            if row.is_network:
                name = row.model.replace("[", "-k").replace("]", "")
                provenance.write_json(directory / name / "result.json", self.result(row))

    def python_line(self) -> str | None:
        """The best quadratic network, as one would write it in Python."""
        best = self.best_quadratic()
        if best is None:
            return None
        contender = next(c for c in self.options.contenders if c.label == best.model)
        fit = best.fits[0]
        kind = "QuadraticRegressor" if self.is_regression else "QuadraticClassifier"
        rank = "" if contender.rank is None else f", rank={contender.rank}"
        rows = round(len(self.table.target) * (1 - 1 / self.options.folds))
        plan = self.options.plan
        activation = "" if plan.activation == "silu" else f", activation={plan.activation!r}"
        return (
            f"{kind}({fit.widths}, neuron={contender.neuron!r}{rank}{activation}, "
            f"learning_rate='adaptive', "
            f"max_iter={plan.epochs(rows)}, n_iter_no_change={plan.patience(rows)})"
        )


def _digits(value: float) -> int:
    """Decimals that show four digits."""
    digits = 3
    while digits < 8 and value < 10 ** (3 - digits) and value > 0:
        digits += 1
    return digits if value < 1000 else 1


def _starts(count: int) -> str:
    return f"{count} start{'s' if count > 1 else ''}"


def format_error(value: float | None) -> str:
    """An error with four digits."""
    return "-" if value is None else f"{value:.{_digits(value)}f}"


def _short(value: float) -> str:
    """A percentage with one decimal where it is small."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"
