"""BLEU and chrF of translations, by sacrebleu: the four rows of the paper's Table II."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quadric.errors import InputError
from quadric.support.extras import load_extra

SETTINGS = {
    "13a_cased": ("BLEU, 13a, cased", "13a", False),
    "13a_uncased": ("BLEU, 13a, not cased", "13a", True),
    "intl_cased": ("BLEU, international, cased", "intl", False),
    "intl_uncased": ("BLEU, international, not cased", "intl", True),
}
"""The rows of Table II: in words, and what sacrebleu calls the tokenizer and lower case."""


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
    for name, (_, tokenize, lowercase) in SETTINGS.items():
        metric = metrics.BLEU(tokenize=tokenize, lowercase=lowercase)
        bleu[name] = metric.corpus_score(translations, [references]).score
        signatures[name] = str(metric.get_signature())
    metric = metrics.CHRF()
    chrf = metric.corpus_score(translations, [references]).score
    signatures["chrf"] = str(metric.get_signature())
    return {"bleu": bleu, "chrf": chrf, "signatures": signatures}
