"""`quadric.sklearn.compare` as a person calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quadric.errors import InputError
from quadric.sklearn import compare, load_network
from quadric.tables.comparison import compare as module
from quadric.tables.comparison.fit_log import FORMAT

QUICK: dict[str, Any] = {"hidden": [4], "folds": 2, "seeds": 1, "epochs": 2, "baselines": False}


def test_fits_of_another_version_are_refused_and_left_alone(tmp_path: Path) -> None:
    # Its networks had another scaling: their errors must not stand beside new ones.
    compare("diabetes", run_dir=tmp_path, **QUICK)
    file = tmp_path / "settings.json"
    earlier = file.read_text().replace(f'"format": {FORMAT}', f'"format": {FORMAT - 1}')
    file.write_text(earlier)
    with pytest.raises(InputError, match=r"holds another comparison \(format differ\)"):
        compare("diabetes", run_dir=tmp_path, **QUICK)
    assert file.read_text() == earlier


def test_files_and_lines(tmp_path: Path) -> None:
    file = tmp_path / "houses.csv"
    rows = [f"{i % 7},{'xy'[i % 2]},{i % 5},{(i % 7) ** 2}.5" for i in range(40)]
    file.write_text("size;kind;id;price\n".replace(";", ",") + "\n".join(rows))
    found = compare(
        file, target="price", drop=["id"], run_dir=tmp_path / "run", neurons="shared:2",
        save=tmp_path / "model.safetensors", **QUICK,
    )  # fmt: skip
    assert list(found.table.kinds) == ["size", "kind"]
    assert list(found.summary.index) == ["linear", "shared[2]"]
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {"compare.json", "compare.png", "fits.jsonl", "linear", "shared-k2"}
    assert load_network(tmp_path / "model.safetensors").network[0].rank == 2
    said = ["all numbers", "the picture", "refitted on all 40 rows", "as listed there"]
    assert len(found.written) == len(said)
    assert all(text in line for text, line in zip(said, found.written, strict=True))


def test_a_linear_model_in_a_networks_place_is_told_and_saved(tmp_path: Path) -> None:
    file = tmp_path / "line.csv"
    rows = [f"{i % 17},{i % 11},{2 * (i % 17) + i % 11}.5" for i in range(300)]
    file.write_text("a,b,c\n" + "\n".join(rows) + "\n")
    found = compare(
        file, target="c", run_dir=tmp_path / "run", save=tmp_path / "model.safetensors", **QUICK
    )
    assert "ridge regression took the place of linear, no better" in str(found)
    assert any("took the network's place" in line for line in found.written)
    module = load_network(tmp_path / "model.safetensors")
    assert module(torch.tensor([[3.0, 4.0]])).item() == pytest.approx(10.5, abs=0.1)


def test_without_matplotlib_there_is_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    found = compare("diabetes", run_dir=tmp_path / "run", **QUICK)
    assert found.written[1] == "no picture: pip install 'quadric[plots]'"
    assert not (tmp_path / "run" / "compare.png").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": ()}, "hidden must be positive whole numbers"),
        ({"hidden": (8, 0)}, "hidden must be positive whole numbers"),
        ({"seeds": 0}, "seeds must be >= 1, got 0"),
        ({"epochs": -1}, "epochs must be >= 1, got -1"),
        ({"activation": "logistic"}, "activation must be one of none, relu"),
        ({"folds": 1}, "folds must be >= 2"),
        ({"neurons": "linear"}, "one besides linear"),
        ({"save": "model.pt"}, r"\.quadric, \.onnx or \.safetensors"),
    ],
)
def test_mistakes_are_found_before_anything_is_fitted(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        compare("diabetes", run_dir=tmp_path / "run", **{**QUICK, **changes})
    assert not (tmp_path / "run").exists()
