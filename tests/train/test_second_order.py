"""`solver: lm`: a run that goes on to second order after its last epoch."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from quadric.errors import InputError
from quadric.train.evaluation import evaluate
from quadric.train.runner import plan_run, train
from tests.train.small import law_result, law_run


def test_a_run_goes_on_to_second_order(tmp_path: Path) -> None:
    plain = law_result(tmp_path / "plain", validation=0.2)
    run, screen = law_run(tmp_path / "lm", validation=0.2, solver="lm", hidden=[6]), io.StringIO()
    result = train(run, screen=screen)
    assert result is not None
    assert result["test_rmse"] < plain["test_rmse"] / 5
    more = result["second_order"]
    assert more["steps"] > 10
    assert 0 < more["seconds"] < result["seconds"]
    assert f"second order: {more['steps']} steps" in screen.getvalue()
    # What is saved is what was measured.
    assert evaluate(run.directory.path)["test_rmse"] == pytest.approx(result["test_rmse"])
    assert "--solver lm" in result["command"]


@pytest.mark.parametrize(
    ("recipe", "fields", "words"),
    [
        ("digits", {}, "fits numbers by least squares, got the data set 'digits'"),
        ("law-lorentz", {"hidden": [900, 900]}, "is for small networks, got"),
        ("law-lorentz", {"loss": "torch.nn.functional:l1_loss"}, "minimizes squares alone"),
        ("law-lorentz", {"precision": "bf16-true"}, "needs one process and precision"),
        ("law-lorentz", {"devices": 2}, "needs one process and precision"),
    ],
)
def test_it_is_refused_where_it_cannot_work(
    recipe: str, fields: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        train(plan_run(recipe, {"solver": "lm", **fields}, run_dir=tmp_path / "run"))
    assert not (tmp_path / "run").exists()
