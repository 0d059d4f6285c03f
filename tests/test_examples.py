"""Every example runs, says what to expect, and is short."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
# Those that train more than a few seconds, even when they are made short.
SLOW = {"02_convert_gpt2", "03_finetune_vit", "05_compare_neurons"}

# What makes an example short; those not named here are short as they are.
SHORT = {
    "01_convert_your_model": ["--steps", "3"],
    "02_convert_gpt2": ["--steps", "2"],
    "03_finetune_vit": ["--epochs", "0.1"],
    "04_helmholtz": ["--steps", "3"],
    "05_compare_neurons": ["1"],
    "06_encrypted_digits": ["1"],
    "07_burgers": ["--steps", "5"],
}
# What its output must hold even then.
SAYS = {
    "01_convert_your_model": [r"2 layers converted to shared, 1 left", r"conversion: 0\.0\n"],
    "02_convert_gpt2": [
        r"change of a logit: 0\.0\n",
        r"adapter: \d,\d+ bytes",
        r"restored to: \d\.?\d*e-0[5-9]\n",
    ],
    "03_finetune_vit": [r"\d+ layers converted to eigen, 1 left", r"biases alone: 0\.\d+"],
    "04_helmholtz": [
        r"(linear, 1,297 parameters, seed \d: relative error \d\.\d+\n){3}",
        r"(eigen, 1,248 parameters, seed \d: relative error \d\.\d+\n){3}",
    ],
    "05_compare_neurons": [r"\neigen +14528\.0 +0\.0", r"\nshared", r"\nlinear", r"wrote neurons"],
    "07_burgers": [r"known viscosity: mean square of the equation \d", r"from 0\.2: \d\.\d{5}, "],
    "06_encrypted_digits": [r"9\d\.\d% of the digits right", "1 of 1 predictions are the plain"],
}
NEEDS = {
    "02_convert_gpt2": ["transformers"],
    "03_finetune_vit": ["transformers", "accelerate"],
    "06_encrypted_digits": ["tenseal"],
}
# What it leaves behind.
LEAVES = {"05_compare_neurons": {"neurons.png", "runs"}}


def run(path: Path, arguments: list[str], folder: Path) -> str:
    for module in NEEDS.get(path.stem, []):
        pytest.importorskip(module, reason=f"needs {module}")
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FOLDER.parent)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3
    assert set(SHORT) | set(SAYS) <= {path.stem for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_form(path: Path) -> None:
    text = path.read_text()
    assert re.match(r"\d\d_\w+\.py$", path.name)
    assert len(text.splitlines()) < 60
    header = ast.get_docstring(ast.parse(text)) or ""
    assert "Expected:" in header
    assert f"python examples/{path.name}" in header


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in SLOW else [])
        for path in EXAMPLES
    ],
)
def test_every_example_runs(path: Path, tmp_path: Path) -> None:
    output = run(path, SHORT.get(path.stem, []), tmp_path)
    for words in SAYS.get(path.stem, []):
        assert re.search(words, output), output
    assert {entry.name for entry in tmp_path.iterdir()} == LEAVES.get(path.stem, set())


@pytest.mark.slow
def test_what_the_first_example_promises(tmp_path: Path) -> None:
    output = run(FOLDER / "01_convert_your_model.py", [], tmp_path)
    linear, quadratic = (
        float(re.search(rf"trained on, {kind}: +([\d.]+)", output)[1])
        for kind in ("linear", "quadratic")
    )
    assert quadratic < 0.7 * linear


@pytest.mark.slow
def test_what_the_second_example_promises(tmp_path: Path) -> None:
    output = run(FOLDER / "02_convert_gpt2.py", [], tmp_path)
    first, last, same, control = map(float, re.findall(r"loss ([\d.]+)", output))
    assert last < first - 0.2
    assert same == first
    assert control < last  # as the header says: the squares are no better here


@pytest.mark.slow
def test_what_the_third_example_promises(tmp_path: Path) -> None:
    output = run(FOLDER / "03_finetune_vit.py", [], tmp_path)
    numbers = {kind: float(value) for kind, value in re.findall(r"([\w, ]+): (0\.\d+)\n", output)}
    quadratic, control = numbers["trained on, quadratic"], numbers["trained on, linear"]
    assert abs(quadratic - control) < 0.02 < control - numbers["linear"]
    assert numbers["quadratic share"] < 0.01  # as the header says: the squares stay unused
    assert numbers["squares alone"] > 0.02 + max(numbers["biases alone"], numbers["linear"])
