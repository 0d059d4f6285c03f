"""The scores of translation runs in the layout of the paper's Table II."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from quadric.data.text.scores import SETTINGS
from quadric.support.texttable import markdown_table, text_table
from quadric.train.arms import Arm, varying

_TOKENIZATIONS = {"13a": "13a", "intl": "International"}


def bleu_table(arms: Sequence[Arm], markdown: bool = False) -> str | None:
    """BLEU by tokenization and case, one column per arm, and parameters without embeddings."""
    arms = [arm for arm in arms if _scores(arm, "13a_cased")]
    if not arms:
        return None
    fields = [field for field in varying(arms) if field == "quadratic_lr"]
    several = len({arm.recipe for arm in arms}) > 1

    def title(arm: Arm) -> str:
        rates = [f"{arm.settings[f]:g}" for f in fields if arm.settings.get(f) is not None]
        return " ".join([*([arm.recipe] if several else []), arm.label, *rates])

    rows = []
    for name, settings in SETTINGS.items():
        kind = _TOKENIZATIONS[str(settings["tokenize"])]
        row = [kind, "No" if settings["lowercase"] else "Yes"]
        rows.append([*row, *(_spread(_scores(arm, name)) for arm in arms)])
    first = arms[0].first["params_without_embeddings"]
    sizes = [arm.first["params_without_embeddings"] for arm in arms]
    shares = [f" ({100 * (size / first - 1):+.1f} %)" if size != first else "" for size in sizes]
    rows.append(
        ["params/M", "", *(f"{n / 1e6:.2f}{s}" for n, s in zip(sizes, shares, strict=True))]
    )
    header = ["BLEU, tokenization", "cased", *(title(arm) for arm in arms)]
    table = (markdown_table if markdown else text_table)(header, rows, "ll" + "r" * len(arms))
    return f"{table}\n\nThe parameters are without embeddings, as in Table II."


def _scores(arm: Arm, name: str) -> list[float]:
    found = [run.get("bleu") for run in arm.runs.values()]
    return [float(bleu[name]) for bleu in found if isinstance(bleu, dict)]


def _spread(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.1f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.1f}"
