"""What runs are judged by: the one table of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A number that runs are judged by."""

    name: str  # in records; `test_<name>` in a result
    label: str  # in tables
    higher_is_better: bool  # whether a larger one is better
    scale: float = 1.0  # what it is multiplied by when it is shown
    digits: str = ".4g"  # how it is shown, a format
    unit: str = ""  # what is shown behind it
    curve: str = ""  # the metric whose curve is shown beside the loss, if it is another one

    @property
    def key(self) -> str:
        """Its name in a result."""
        return f"test_{self.name}"

    def show(self, value: float | None) -> str:
        """The number as a person reads it."""
        if value is None:
            return "not finite"
        return f"{self.scale * value:{self.digits}}{self.unit}"


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", True, 100, ".2f", " %"),
        Metric("rmse", "RMSE", False),
        # No epoch is translated.
        Metric("bleu", "BLEU", True, 1, ".2f", curve="perplexity"),
        Metric("perplexity", "perplexity", False),
    )
}
"""What a result is judged by, by name: the first that a result has."""


def metric_of(result: Mapping[str, Any]) -> Metric | None:
    """What a result is judged by."""
    return next((metric for metric in METRICS.values() if metric.key in result), None)
