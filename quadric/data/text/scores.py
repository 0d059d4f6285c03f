"""BLEU and chrF of translations, by sacrebleu: the four rows of the paper's Table II."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quadric.errors import InputError
from quadric.support.extras import load_extra

SETTINGS = {
    "13a_cased": {"tokenize": "13a", "lowercase": False},
    "13a_uncased": {"tokenize": "13a", "lowercase": True},
    "intl_cased": {"tokenize": "intl", "lowercase": False},
    "intl_uncased": {"tokenize": "intl", "lowercase": True},
}
"""The rows of Table II, and what sacrebleu calls them."""

TITLES = {
    "13a_cased": "BLEU, 13a, cased",
    "13a_uncased": "BLEU, 13a, not cased",
    "intl_cased": "BLEU, international, cased",
    "intl_uncased": "BLEU, international, not cased",
}
"""The rows in words."""


def score(translations: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Scores translations."""
    if not references or len(translations) != len(references):
        raise InputError(
            "there must be one reference for each translation, got "
            f"{len(references):,} for {len(translations):,}"
        )
    metrics = load_extra("sacrebleu.metrics", "BLEU", "text")
    bleu: dict[str, float] = {}
    signatures: dict[str, str] = {}
    for name, settings in SETTINGS.items():
        metric = metrics.BLEU(**settings)
        bleu[name] = metric.corpus_score(translations, [references]).score
        signatures[name] = str(metric.get_signature())
    metric = metrics.CHRF()
    chrf = metric.corpus_score(translations, [references]).score
    signatures["chrf"] = str(metric.get_signature())
    return {"bleu": bleu, "chrf": chrf, "signatures": signatures}
