"""Our scores beside those of sacrebleu's own command on the same files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quadric.data.text.scores import SETTINGS, score
from tests.data.text.small import pair

REFERENCES = [f"{pair(i)[1]} – „Ja“, sagt’s, 3.5 %!" for i in range(40)]
TRANSLATIONS = [line.replace("vier", "Vier").replace("sechs", "fünf") for line in REFERENCES]


def test_scores_are_those_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("\n".join(TRANSLATIONS) + "\n", encoding="utf-8")
    (tmp_path / "ref").write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    found = score(TRANSLATIONS, REFERENCES)
    assert list(found["bleu"]) == ["13a_cased", "13a_uncased", "intl_cased", "intl_uncased"]
    assert len(set(found["bleu"].values())) == 4

    def command(*words: str) -> dict[str, object]:
        run = [sys.executable, "-m", "sacrebleu", str(tmp_path / "ref"), "-w", "6", *words]
        run += ["-i", str(tmp_path / "out"), "--format", "json"]
        done = subprocess.run(run, capture_output=True, text=True, check=True)
        read: dict[str, object] = json.loads(done.stdout)
        return read

    for name, (_, tokenize, lowercase) in SETTINGS.items():
        words = ["-m", "bleu", "--tokenize", tokenize]
        theirs = command(*words, *(["--lowercase"] if lowercase else []))
        assert round(found["bleu"][name], 6) == theirs["score"]
        assert found["signatures"][name] == theirs["signature"]
    theirs = command("-m", "chrf")
    assert round(found["chrf"], 6) == theirs["score"]
    assert found["signatures"]["chrf"] == theirs["signature"]


def test_there_must_be_a_reference_for_each() -> None:
    with pytest.raises(ValueError, match="got 2 for 1"):
        score(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="got 0 for 0"):
        score([], [])
