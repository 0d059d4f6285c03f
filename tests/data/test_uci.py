from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quadric.data import uci

ROWS = [[0.5, 2.0, 10.0], [1.5, 3.0, 20.0], [2.5, 4.0, 30.0], [3.5, 5.0, 40.0]]


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "data": "\n".join(" ".join(map(str, row)) for row in ROWS) + "\n\n",
        "index_features": "0\n2\n",
        "index_target": "1\n",
        "n_splits": "2\n",
        "index_train_0": "0\n1\n3\n",
        "index_test_0": "2\n",
        # The original files hold floats.
        "index_train_1": "3.000000000000000000e+00\n2.000000000000000000e+00\n",
        "index_test_1": "0.000000000000000000e+00\n1.000000000000000000e+00\n",
    }
    for name, text in (content | files).items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def test_splits(tmp_path: Path) -> None:
    write(tmp_path / "toy")
    assert uci.num_splits("toy", tmp_path) == 2
    table = uci.load("toy", tmp_path)
    assert table.name == "uci:toy"
    assert table.train_inputs.tolist() == [[0.5, 10.0], [1.5, 20.0], [3.5, 40.0]]
    assert table.train_targets.tolist() == [[2.0], [3.0], [5.0]]
    assert table.test_inputs.tolist() == [[2.5, 30.0]]
    assert table.test_targets.tolist() == [[4.0]]
    assert table.train_inputs.dtype == torch.float32
    second = uci.load("toy", tmp_path, split=1, dtype=torch.float64)
    assert second.train_targets.tolist() == [[5.0], [4.0]]
    assert second.test_targets.tolist() == [[2.0], [3.0]]
    assert second.train_inputs.dtype == torch.float64


def test_the_layout_of_the_original_repository(tmp_path: Path) -> None:
    write(tmp_path / "toy" / "data")
    write(tmp_path / "other")
    (tmp_path / "results").mkdir()
    assert uci.available(tmp_path) == ["other", "toy"]
    assert uci.load("toy", tmp_path).train_targets.tolist() == [[2.0], [3.0], [5.0]]


def test_published_tables() -> None:
    assert len(uci.names()) == 8
    assert sum(uci.ROWS.values()) == 79_129


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({"data": "1 2 3\n4 5\n"}, r"data\.txt line 2 has 2 numbers, expected 3: get the"),
        ({"data": "1 2 3\n4 x 6\n"}, r"data\.txt line 2 must be numbers, got '4 x 6'"),
        ({"data": "1 2 nan\n"}, r"data\.txt line 1 holds a value that is not finite"),
        ({"data": "\n"}, r"data\.txt is empty"),
        ({"index_features": "0 3"}, r"index_features\.txt names column 3, but data.txt has 3 col"),
        ({"index_target": "0 1"}, r"index_target\.txt must name one column, got 2"),
        ({"index_target": "y"}, r"index_target\.txt line 1 must be numbers, got 'y'"),
        ({"index_train_0": "0.5"}, r"index_train_0\.txt must hold whole numbers"),
        ({"index_train_0": "0 4"}, r"index_train_0\.txt names row 4, but data.txt has 4 rows"),
        ({"index_train_0": "-1"}, r"index_train_0\.txt names row -1"),
        ({"index_train_0": ""}, r"index_train_0\.txt is empty"),
        ({"index_train_0": "0 2"}, "has row 2 in training and in test"),
        ({"n_splits": "1\n2"}, r"n_splits\.txt must hold the number of splits, got \[1, 2\]"),
    ],
)
def test_wrong_files(tmp_path: Path, files: dict[str, str], match: str) -> None:
    write(tmp_path / "toy", **files)
    with pytest.raises(ValueError, match=match):
        uci.load("toy", tmp_path)


def test_missing_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "toy")
    with pytest.raises(
        ValueError, match=r"missing file .*yacht/data.txt \(tables found there: toy"
    ):
        uci.load("yacht", tmp_path)
    (folder / "index_test_0.txt").unlink()
    with pytest.raises(ValueError, match=r"missing file .*index_test_0.txt: get .*https://"):
        uci.load("toy", tmp_path)
    with pytest.raises(ValueError, match="must be a directory, but there is none"):
        uci.load("toy", tmp_path / "nowhere")


def test_truncated_published_table(tmp_path: Path) -> None:
    write(tmp_path / "yacht")
    with pytest.raises(ValueError, match=r"data.txt is truncated .*4 rows, expected 308"):
        uci.load("yacht", tmp_path)


def test_not_a_text_file(tmp_path: Path) -> None:
    (write(tmp_path / "toy") / "data.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"data.txt is not a text file"):
        uci.load("toy", tmp_path)


@pytest.mark.parametrize("split", [-1, 2])
def test_bad_split(tmp_path: Path, split: int) -> None:
    write(tmp_path / "toy")
    with pytest.raises(ValueError, match=rf"split must be in 0 \.\.\. 1 .*'toy', got {split}"):
        uci.load("toy", tmp_path, split=split)
