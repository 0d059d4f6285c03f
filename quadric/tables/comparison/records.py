"""The fits of a comparison on disk, so that a killed comparison goes on with what it has.

One line of JSON per fit, written as soon as it is done. A directory belongs to one comparison: the
same data, target, networks and folds.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quadric.errors import InputError
from quadric.support import provenance
from quadric.support.writing import naming


@dataclass(frozen=True)
class Fit:
    """One model on one fold.

    Attributes:
        model: its label.
        fold: counted from 0.
        seed: of its start and order, counted from 0.
        status: "ok" or "diverged".
        error: root mean square error, or the share of wrong classes, on the fold's test rows.
        score: R^2 or accuracy on them.
        params: parameters; None where the word means nothing.
        macs: multiply-accumulates of one prediction of a network.
        seconds: to fit.
        predict_seconds: for 1,000 predictions.
        epochs: of a network.
        widths: of a network's hidden layers.
        quadratic_share: how much of each layer is quadratic, by its name; None without such layers.
        columns: inputs after the preparation.
        peak_memory_bytes: of the process, when the fit was done.
        loss: mean squared error on the standardized target, or log loss.
        balanced: accuracy of a class, averaged over the classes.
        auc: area under the curve of one class against the rest, averaged over the classes.
    """

    model: str
    fold: int
    seed: int
    status: str
    error: float | None = None
    score: float | None = None
    params: int | None = None
    macs: int | None = None
    seconds: float = 0.0
    predict_seconds: float | None = None
    epochs: int | None = None
    widths: Sequence[int] | None = None
    quadratic_share: dict[str, float] | None = None
    columns: int | None = None
    peak_memory_bytes: int | None = None
    loss: float | None = None
    balanced: float | None = None
    auc: float | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        """What identifies it in a comparison."""
        return (self.model, self.fold, self.seed)


class Records:
    """The directory of one comparison."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        name: str,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        text = json.dumps(settings, sort_keys=True)
        short = hashlib.sha256(text.encode()).hexdigest()[:8]
        safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
        self.path = Path(directory or f"runs/compare/{safe}-{short}")
        self.settings = dict(settings)
        marker = self.path / "settings.json"
        if marker.is_file():
            self._check(marker)
        elif self.path.is_dir() and any(self.path.iterdir()):
            raise InputError(
                f"{self.path} holds other files: name an empty directory with --run-dir"
            )
        else:
            provenance.write_json(marker, self.settings)
        self.file = self.path / "fits.jsonl"
        self.fits = self._read()

    def _check(self, marker: Path) -> None:
        try:
            found = json.loads(marker.read_text(encoding="utf-8"))
        except ValueError:
            found = {}
        if found != self.settings:
            differing = [k for k, v in self.settings.items() if found.get(k) != v]
            raise InputError(
                f"{self.path} holds another comparison ({', '.join(differing) or 'settings'} "
                "differ): name another directory with --run-dir"
            )

    def _read(self) -> dict[tuple[str, int, int], Fit]:
        if not self.file.is_file():
            return {}
        fits: dict[tuple[str, int, int], Fit] = {}
        text = self.file.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):  # killed while writing: begin a new line
            with self.file.open("a", encoding="utf-8") as file:
                file.write("\n")
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                fit = Fit(**entry)
            except (ValueError, TypeError):
                continue  # half a line of a killed process: that fit is done again
            fits[fit.key] = fit
        return fits

    def add(self, fit: Fit) -> None:
        """Writes a fit down at once."""
        line = json.dumps(provenance.finite(asdict(fit)), allow_nan=False)
        with naming(self.file), self.file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.fits[fit.key] = fit

    def of(self, model: str) -> list[Fit]:
        """The fits of a model, fold by fold."""
        return sorted((f for f in self.fits.values() if f.model == model), key=lambda f: f.key)
