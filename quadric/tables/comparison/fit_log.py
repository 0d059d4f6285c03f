"""The fits of a comparison in their directory: one line of JSON each."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from quadric.errors import InputError
from quadric.runs.reading import number
from quadric.support import provenance
from quadric.support.checks import file_name
from quadric.support.writing import naming

FORMAT = 5
"""Of settings.json and fits.jsonl."""

FIELDS = (
    "model", "fold", "seed", "status", "error", "score", "params", "macs", "seconds",
    "predict_seconds", "epochs", "widths", "quadratic_share", "columns", "peak_memory_bytes",
    "loss", "balanced", "auc",
)  # fmt: skip
"""Of a fit: `error` is the root mean square error or the share of wrong classes on the fold's test
rows, `score` R^2 or accuracy, `loss` the mean squared error on the standardized target or log loss,
`predict_seconds` the time of 1,000 predictions, `quadratic_share` by layer."""

_NUMBERS = tuple(f for f in FIELDS if f not in ("model", "status", "widths", "quadratic_share"))

Key = tuple[str, int, int]


class FitLog:
    """The fits in a directory: one line of JSON each, written as soon as it is done."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        name: str,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        text = json.dumps(settings, sort_keys=True)
        short = hashlib.sha256(text.encode()).hexdigest()[:8]
        self.path = Path(directory or f"runs/compare/{file_name(name)}-{short}")
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
        self.fits = self.read()

    def _check(self, marker: Path) -> None:
        try:
            earlier = json.loads(marker.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            earlier = {}
        earlier = earlier if isinstance(earlier, dict) else {}
        if earlier != self.settings:
            differing = [k for k, v in self.settings.items() if earlier.get(k) != v]
            raise InputError(
                f"{self.path} holds another comparison ({', '.join(differing) or 'settings'} "
                "differ): name another directory with --run-dir"
            )

    def read(self) -> dict[Key, dict[str, Any]]:
        """The fits that the file holds."""
        if not self.file.is_file():
            return {}
        text = self.file.read_text(encoding="utf-8", errors="replace")
        if text and not text.endswith("\n"):  # killed while writing: begin a new line
            with self.file.open("a", encoding="utf-8") as file:
                file.write("\n")
        fits: dict[Key, dict[str, Any]] = {}
        for line in text.splitlines():
            try:
                fit = json.loads(line)
            except (ValueError, RecursionError):
                continue  # half a line of a killed process: that fit is done again
            if _is_fit(fit):
                fits[fit["model"], fit["fold"], fit["seed"]] = fit
        return fits

    def add(self, **fit: Any) -> None:
        """Writes a fit down at once."""
        fit = provenance.finite(dict.fromkeys(FIELDS) | fit)
        line = json.dumps(fit, allow_nan=False)
        with naming(self.file), self.file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.fits[fit["model"], fit["fold"], fit["seed"]] = fit

    def frame(self) -> pd.DataFrame:
        """All fits, a row each, in the order of folds and seeds."""
        frame = pd.DataFrame(list(self.fits.values()), columns=list(FIELDS))
        frame[list(_NUMBERS)] = frame[list(_NUMBERS)].apply(pd.to_numeric)
        return frame.sort_values(["fold", "seed"], kind="stable", ignore_index=True)


def _is_fit(fit: Any) -> bool:
    """Whether a line of the file is what `FitLog.add` writes."""
    if not isinstance(fit, dict) or fit.keys() != set(FIELDS):
        return False
    share, widths = fit["quadratic_share"], fit["widths"]
    return (
        isinstance(fit["model"], str)
        and fit["status"] in ("ok", "diverged")
        and all(isinstance(fit[key], int) for key in ("fold", "seed"))
        and all(fit[key] is None or number(fit[key]) is not None for key in _NUMBERS)
        and (widths is None or isinstance(widths, list))
        and (share is None or (isinstance(share, dict) and None not in map(number, share.values())))
    )
