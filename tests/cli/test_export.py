"""quadric export: from a run directory or a file to a checked file, with sizes and latencies."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import quadric
from quadric.cli.app import app
from quadric.saving import load_, save
from quadric.train.data import load_data
from quadric.train.directory import RunDirectory
from quadric.train.network import build_network
from quadric.train.runner import plan_run, train
from tests.command_line import assert_mistake
from tests.command_line import quadric as run_command
from tests.exporting.networks import small_cnn


def run(*args: object) -> Any:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of one epoch."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    train(plan_run("digits", {"neuron": "eigen", "epochs": 1}, run_dir=folder))
    return folder


def network_of(folder: Path) -> torch.nn.Module:
    recipe = RunDirectory(folder).recipe()
    network = build_network(recipe, load_data(recipe))
    load_(network, folder / "weights.safetensors")
    return network.eval()


def test_a_run(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.onnx"
    done = run_command("export", digits, "-o", out)
    assert done.exit_code == 0, done.output
    assert re.fullmatch(
        rf"writing {out} and comparing it with the network\n"
        rf"{out} is written and compared; timing it beside linear takes .+ more\n",
        done.stderr,
    )
    assert f"{out}: ONNX, opset 20" in done.stdout
    assert "3 BatchNorm folded, 0 kept" in done.stdout
    assert "takes (pixel / 16 - mean) / std, with mean 0.30" in done.stdout
    rows = re.findall(
        r"^(eigen, rank 9|linear) +0\.\d+ MB +\d+\.\d+ ms +(\S+) +\d+\.\d+ ms +(\S+)$",
        done.stdout,
        re.MULTILINE,
    )
    assert [row[0] for row in rows] == ["eigen, rank 9", "linear"]
    assert rows[1][1:] == ("1", "1")
    assert 0.2 < float(rows[0][1]) < 20
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    x = torch.randn(3, 1, 8, 8)
    got = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
    with torch.no_grad():
        torch.testing.assert_close(got, network_of(digits)(x), rtol=1e-3, atol=1e-4)


def test_int8_of_a_run(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.onnx"
    result = run_command("export", digits, "-o", out, "--int8", "--calibration", 100, "--json", "-")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["calibrated_on"] == 100
    assert abs(found["int8_accuracy"] - found["float_accuracy"]) < 0.03
    reported = json.loads((digits / "result.json").read_text())["test_accuracy"]
    assert found["float_accuracy"] == pytest.approx(reported, abs=0.004)
    names = [row["network"] for row in found["networks"]]
    assert names == ["eigen, rank 9, int8", "linear, int8", "eigen, rank 9", "linear"]
    sizes = {row["network"]: row["size"] for row in found["networks"]}
    assert sizes["eigen, rank 9, int8"] == out.stat().st_size < sizes["eigen, rank 9"]
    assert all(0 < row["latency"]["1"] < row["latency"]["32"] for row in found["networks"])


def test_a_file_of_weights(tmp_path: Path) -> None:
    model = small_cnn("shared", num_classes=7)
    save(model, tmp_path / "weights.safetensors")
    out = tmp_path / "model.onnx"
    args = ["export", tmp_path / "weights.safetensors", "-o", out, "--model", "digits_cnn"]
    result = run_command(*args, "--set", "num_classes=7")
    assert result.exit_code == 0, result.output
    assert "shared, rank 8" in result.stdout
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    x = torch.randn(2, 1, 8, 8)
    got = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
    with torch.no_grad():
        torch.testing.assert_close(got, model(x), rtol=1e-3, atol=1e-4)


def test_a_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 2))
    quadric.convert_(model)
    save(model, tmp_path / "weights.safetensors")
    (tmp_path / "exported_factory.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    args = ["export", "weights.safetensors", "-o", "model.pt2", "--model", "exported_factory:make"]
    assert_mistake(run_command(*args), "add --input with its shape")
    assert_mistake(
        run_command(*args, "--input", "3", "--set", "a=1"),
        "options must be for a network of quadric.models",
    )
    result = run_command(*args, "--input", "3")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "model.pt2").is_file()


def test_mistakes(digits: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    save(small_cnn(), weights)
    onnx_file = tmp_path / "model.onnx"
    cases: list[tuple[list[object], str]] = [
        ([digits, "-o", tmp_path / "model.tf"], "out must end in .onnx or .pt2"),
        ([digits, "-o", tmp_path / "model.pt2", "--int8"], "int8 is written as .onnx"),
        ([digits, "-o", onnx_file, "--model", "resnet20"], "leave --model, --input and --set out"),
        ([weights, "-o", onnx_file], "name it with --model"),
        ([weights, "-o", onnx_file, "--model", "resnet20"], "resnet20"),
        ([weights, "-o", onnx_file, "--model", "digits_cnn", "--int8"], "inputs to calibrate on"),
        ([tmp_path, "-o", onnx_file], "is not a run directory"),
        ([tmp_path / "none.safetensors", "-o", onnx_file, "--model", "mlp"], "none.safetensors"),
        ([tmp_path / "none", "-o", onnx_file], "there is no run directory or file"),
        ([digits, "-o", onnx_file, "--opset", 14], "opset 14 cannot be written"),
        ([digits, "-o", onnx_file, "--opset", 99], "opset must be from 1 to"),
        ([digits, "-o", onnx_file, "--json", tmp_path / "no" / "facts.json"], "no directory"),
        ([digits, "-o", tmp_path / "no" / "model.onnx"], "there is no directory"),
        ([digits, "-o", onnx_file, "--int8", "--calibration", 0], "calibration must be >= 1"),
    ]
    for args, message in cases:
        if "resnet20" in args and weights in args:
            result = run_command("export", *args)
            assert result.exit_code == 2, result.output
            assert result.stderr.count("\n") == 1
        else:
            assert_mistake(run_command("export", *args), message)
    assert not onnx_file.exists()


def test_a_table_in_its_own_units(tmp_path: Path) -> None:
    folder, out = tmp_path / "law", tmp_path / "law.onnx"
    changes = {"neuron": "eigen", "epochs": 1, "samples": 500}
    train(plan_run("law-lorentz", changes, run_dir=folder))
    result = run_command("export", folder, "-o", out, "--json", tmp_path / "facts.json")
    assert result.exit_code == 0, result.output
    recipe = RunDirectory(folder).recipe()
    data: Any = load_data(recipe)
    x, y = data.data.test_inputs, data.data.test_targets
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["units"]["inputs"] == list(data.data.input_names)
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    got = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
    with torch.no_grad():
        expected = data.scale.restore_targets(network_of(folder)(data.scale.inputs(x)))
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3 * float(y.std()))
    reported = json.loads((folder / "result.json").read_text())["test_rmse"]
    assert float((got - y).square().mean().sqrt()) == pytest.approx(reported, rel=1e-3)


def test_a_run_that_diverged_is_not_exported(digits: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "diverged", tmp_path / "model.onnx"
    shutil.copytree(digits, folder)
    network = network_of(digits)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(float("nan"))
    save(network, folder / "weights.safetensors")
    for more in ([], ["--int8"]):
        result = run_command("export", folder, "-o", out, *more)
        assert_mistake(result, "must give numbers on the example inputs")
    assert not out.exists()
