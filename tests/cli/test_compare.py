"""`quadric compare` as a user types it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from quadric.runs.reading import read_runs
from quadric.support import progress
from tests.command_line import assert_mistake, output, quadric

QUADRIC = Path(sys.executable).parent / "quadric"
FAST = ["--folds", "2", "--seeds", "1", "--epochs", "3", "--hidden", "6"]


@pytest.fixture
def houses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table with categories, dates, holes, a constant and an identifier."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    rows = 60
    frame = pd.DataFrame(
        {
            "id": np.arange(rows),
            "area": draw.uniform(30, 200, rows),
            "town": draw.choice(["Ulm", "Bern", "Graz"], rows),
            "sold": pd.date_range("2020-01-01", periods=rows).strftime("%Y-%m-%d"),
            "country": "none",
        }
    )
    frame["price"] = frame["area"] ** 2 / 100 + frame["town"].map({"Ulm": 5, "Bern": 80, "Graz": 9})
    frame.loc[::7, "area"] = np.nan
    frame.loc[3::11, "town"] = None
    path = tmp_path / "houses.csv"
    frame.to_csv(path, index=False, sep=";")
    return path


def test_a_file(houses: Path) -> None:
    result = quadric("compare", "houses.csv", "--target", "price", *FAST, "--json", "out.json")
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert "houses: 60 rows, 3 columns, regression of price, 2 folds" in text
    assert re.search("^id +number +dropped: an identifier: a number for each row$", text, re.M)
    assert re.search("^country +category +dropped: constant$", text, re.M)
    assert re.search("^area +number +9$", text, re.M)
    for model in ("linear", "eigen", "shared", "HistGradientBoosting", "MLPRegressor", "ridge"):
        assert re.search(rf"^{model} ", text, re.MULTILINE)
    assert re.search(r"(lowers the error|no (clear )?difference|stay with linear)", text)
    (folder,) = Path("runs/compare").iterdir()
    assert (folder / "compare.png").stat().st_size > 10_000
    written = json.loads(Path("out.json").read_text())
    kept = json.loads((folder / "compare.json").read_text())
    assert written["results"] == kept["results"]
    assert written["columns"] == {"area": "number", "town": "category", "sold": "date"}
    assert (folder / "eigen" / "result.json").is_file()


def test_only_json_goes_to_stdout(houses: Path) -> None:
    result = quadric(
        "compare", "houses.csv", "--target", "price", *FAST, "--no-baselines", "--neurons",
        "eigen:2", "--json", "-",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [entry["neuron"] for entry in found["results"]] == ["linear", "eigen"]
    assert found["results"][1]["rank"] == 2


def test_the_saved_network_takes_the_raw_file(houses: Path) -> None:
    saved = ("--save", "model.quadric", "--html", "page.html", "--run-dir", "c")
    text = output("compare", "houses.csv", "--target", "price", *FAST, *saved)
    assert "model.quadric: the " in text
    assert "quadric predict model.quadric FILE -o OUT" in text
    assert output("predict", "model.quadric", "houses.csv", "-o", "out.csv") == "out.csv: 60 rows\n"
    made = pd.read_csv("out.csv")
    assert np.corrcoef(made["price"], made["price_predicted"])[0, 1] > 0.3
    page = Path("page.html").read_text()
    for model in ("linear", "HistGradientBoosting", "ridge", "has the lowest error of all"):
        assert model in page
    runs, notes = read_runs("c")
    assert {"eigen", "ridge", "HistGradientBoosting"} <= {run.neuron for run in runs}
    assert len(notes) == 1  # the verdict


def test_the_best_network_is_saved_as_onnx(houses: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    result = quadric(
        "compare", "houses.csv", "--target", "price", *FAST, "--no-baselines", "--drop",
        "sold,town", "--save", "model.onnx",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "refitted on all 60 rows" in result.stdout
    facts = json.loads(Path("model.json").read_text())
    assert facts["inputs"] == ["area"]
    assert facts["takes"] == "the columns of the table, NaN for a hole"
    session = onnxruntime.InferenceSession("model.onnx")
    (found,) = session.run(None, {"input": np.array([[50.0], [60.0], [np.nan]], "float32")})
    assert found.shape == (3,)
    assert np.isfinite(found).all()


def test_the_list() -> None:
    result = quadric("compare", "--list")
    assert result.exit_code == 0
    assert "law:lorentz" in result.stdout
    assert "q (E + B v sin(t))" in result.stdout
    assert "breast_cancer" in result.stdout
    facts = json.loads(quadric("compare", "--list", "--json", "-").stdout)
    assert len([fact for fact in facts if fact["name"].startswith("law:")]) >= 19


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


NUMBERS = "".join(f"{i % 9},{i * 1.5}\n" for i in range(30))


@pytest.mark.parametrize(
    ("content", "args", "message"),
    [
        ("a,price\n" + NUMBERS, ["--target", "prise"], "did you mean 'price'?"),
        ("a,price\n" + NUMBERS, [], "to predict with --target"),
        ("a,price\nx5,1\n" + NUMBERS, ["--target", "price"], "row 1 is 'x5'"),
        ("a,price\n" + NUMBERS, ["--target", "price", "--task", "sort"], "task must be one of"),
        ("a,price\n" + NUMBERS, ["--target", "price", "--neurons", "cubic"], "neuron must be"),
        ("a,price\n" + NUMBERS, ["--target", "price", "--hidden", "x"], "hidden must be"),
        ("a,price\n" + NUMBERS, ["--target", "price", "--save", "m.pt"], "--save must end in"),
        ("a,price\n" + NUMBERS, ["--target", "price", "--rows", "0"], "--rows"),
        ("a,price\n" + NUMBERS, ["--target", "price", "--opponents", "forest"], "got 'forest'"),
        ("a,price\n" + NUMBERS, ["--target", "price", "--split", "week"], "split must be random"),
        ("a,price\n" + NUMBERS, ["--target", "price", "--split", "group:b"], "no column 'b'"),
        ("a,price\n" + "1,x\n2,x\n" * 12 + "3,once\n", ["--target", "price"],
         "got 24 of 'x', 1 of 'once'"),
        ("a,price\n" + NUMBERS, ["--target", "price", "--save", "m.onnx", "--json", "m.json"],
         "name another file with --json"),
        ("a,price\n" + NUMBERS, ["--target", "price", "--json", "no/m.json"],
         "there is no directory no: make it"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, args: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "t.csv", content)
    assert_mistake(quadric("compare", file, *args), message)
    assert not Path("runs").exists()


def test_a_class_with_one_row_is_left_out_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i % 7},{'pq'[i % 2]}\n" for i in range(40))
    file = write(tmp_path / "t.csv", "a,kind\n" + rows + "3,once\n")
    result = quadric("compare", file, "--target", "kind", *FAST, "--no-baselines")
    assert result.exit_code == 0, result.output
    assert "1 rows of classes with fewer than 2 rows are left out: 'once'" in result.stdout


def test_progress_without_a_terminal(houses: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST", 0.0)
    monkeypatch.setattr(progress, "LATER", 0.0)
    result = quadric("compare", "houses.csv", "--target", "price", *FAST, "--no-baselines")
    lines = result.stderr.splitlines()
    assert any(
        re.fullmatch(r"eigen networks, epoch 3, \d left: 2 of 6, about .* left", x) for x in lines
    )
    assert any(re.match(r"shared: RMSE [\d.]+ ± [\d.]+, R² ", line) for line in lines)
    assert "shared: RMSE" not in result.stdout


def test_mistakes_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_mistake(quadric("compare"), "name a table")
    assert_mistake(quadric("compare", "t.csv", "--target", "a"), "no such file")
    assert_mistake(quadric("compare", "nothing"), "no such file or data set")
    Path("large.csv").touch()
    os.truncate("large.csv", 2 * 2**30)
    assert_mistake(quadric("compare", "large.csv", "--target", "a"), "2.0 GB")
    Path("picture.csv").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00")
    assert_mistake(quadric("compare", "picture.csv", "--target", "a"), "binary file")


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on(tmp_path: Path) -> None:
    # Many short fits, one after the other, so that a kill hits between two of them.
    command = [
        str(QUADRIC), "compare", "law:torque", "--rows", "400", "--folds", "3", "--seeds", "1",
        "--epochs", "40", "--hidden", "8", "--run-dir", "run", "--neurons", "eigen",
    ]  # fmt: skip
    fits = tmp_path / "run" / "fits.jsonl"
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while not (fits.is_file() and fits.read_text().count("\n") >= 4):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.communicate()
    before = fits.read_text()
    done = before.count("\n")
    total = 2 * 3 + 5 * 3
    assert 4 <= done < total
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "law:torque: 400 rows" in again.stdout
    after = fits.read_text()
    assert after.startswith(before)
    kept = [json.loads(line) for line in after.splitlines() if line.endswith("}")]
    assert len({(fit["model"], fit["fold"], fit["seed"]) for fit in kept}) == len(kept) == total
