"""`quadric convert`, called as a user calls it."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import quadric
from quadric.cli.app import app
from tests.networks import quadratic_layers

NETS = """
from torch import nn


def build():
    body = [nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU()]
    return nn.Sequential(*body, nn.Linear(20, 5))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_nets", raising=False)
    return tmp_path


def run(*words: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["convert", *words])
    if code == 0 and result.exception is not None and result.exit_code != 0:
        raise AssertionError(result.output + result.stderr) from result.exception
    assert result.exit_code == code, result.output + result.stderr
    return result


def trained(name: str = "resnet8", **options: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    model = quadric.models.build(name, **options).eval()
    return model, model.state_dict()


def check(out: str, model: nn.Module, name: str = "resnet8", **options: Any) -> nn.Module:
    """Loads what was written into a fresh plain network: it computes what the trained one does."""
    plain = quadric.models.build(name, **options)
    quadric.load_(plain, out)
    x = torch.randn(2, *quadric.models.input_shape(name, **options))
    torch.testing.assert_close(plain.eval()(x), model(x), rtol=1e-5, atol=1e-5)
    return plain


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3, "lr": [0.1]},
        lambda state: {"model_state_dict": state},
        lambda state: {f"module.{key}": value for key, value in state.items()},
        lambda state: {"state_dict": {f"module.model.{k}": v for k, v in state.items()}},
        lambda state: {f"_orig_mod.{key}": value for key, value in state.items()},
    ],
)
def test_state_dicts_as_training_scripts_write_them(folder: Path, wrap: Any) -> None:
    model, state = trained()
    torch.save(wrap(state), "resnet8.pth")
    result = run("resnet8.pth", "--model", "resnet8", "--rank", "4", "-o", "out.safetensors")
    assert "7 layers converted to eigen, 1 left" in result.stdout
    assert "left: the head stays linear" in result.stdout
    assert "MACs: " in result.stdout
    assert result.stdout.endswith("wrote out.safetensors\n")
    plain = check("out.safetensors", model)
    assert {layer.rank for layer in quadratic_layers(plain).values()} == {4}


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.bin"])
def test_safetensors(folder: Path, name: str) -> None:
    model, state = trained()
    safetensors.torch.save_file(state, name)
    run(name, "--model", "resnet8", "-o", "out.safetensors")
    check("out.safetensors", model)


def test_options_of_the_network_and_half_precision(folder: Path) -> None:
    model, state = trained("digits_cnn", num_classes=4)
    torch.save({k: v.bfloat16() if v.is_floating_point() else v for k, v in state.items()}, "d.pt")
    run("d.pt", "--model", "digits_cnn", "--set", "num_classes=4", "-o", "out.safetensors")
    stored = safetensors.torch.load_file("out.safetensors")
    assert stored["conv1.weight"].dtype == torch.bfloat16
    assert stored["conv1.eigenvalues"].dtype == torch.bfloat16
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    check("out.safetensors", model, "digits_cnn", num_classes=4)


def test_choosing_layers(folder: Path) -> None:
    _, state = trained()
    torch.save(state, "r.pth")

    def names(*words: str) -> list[str]:
        result = run("r.pth", "--model", "resnet8", "-o", "o.safetensors", "--json", "-", *words)
        report = json.loads(result.stdout)
        assert report["out"] == "o.safetensors"
        return [layer["name"] for layer in report["converted"]]

    assert names("--first", "3") == ["conv1", "layer1.0.conv1", "layer1.0.conv2"]
    assert names("--include", "layer2.0.conv1", "--include", "fc") == ["layer2.0.conv1", "fc"]
    assert names("--include", "re:layer[12].*", "--exclude", "conv2") == [
        "layer1.0.conv1",
        "layer2.0.conv1",
    ]
    assert names("--include", "re:layer1.*", "--include", "0.conv2") == [
        "layer1.0.conv1",
        "layer1.0.conv2",
        "layer2.0.conv2",
        "layer3.0.conv2",
    ]
    assert names("--head")[-1] == "fc"
    assert names("--neuron", "shared", "--rank", "4", "--include", "fc") == ["fc"]


def test_a_factory_of_the_users(folder: Path) -> None:
    sys.path.insert(0, str(folder))
    from my_nets import build

    model = build()
    torch.save(model.state_dict(), "mine.pt")
    arguments = ("mine.pt", "--model", "my_nets:build", "-o", "out.safetensors", "--json", "r.json")
    result = run(*arguments)
    assert "2 layers converted to eigen, 1 left" in result.stdout
    assert json.loads(Path("r.json").read_text())["macs_before"] is None
    run(*arguments, "--input", "8")
    assert json.loads(Path("r.json").read_text())["macs_before"] == 8 * 20 + 20 * 20 + 20 * 5
    plain = build()
    quadric.load_(plain, "out.safetensors")
    x = torch.randn(3, 8)
    torch.testing.assert_close(plain(x), model(x))


class Evil:
    """What a pickle can do: anything."""

    def __reduce__(self) -> Any:
        return os.system, ("touch owned",)


def bad_files() -> None:
    _, state = trained("digits_cnn")
    torch.save(state, "good.pt")
    whole = Path("good.pt").read_bytes()
    Path("cut.pt").write_bytes(whole[: len(whole) // 2])
    Path("empty.pt").write_bytes(b"")
    Path("text.pt").write_text("this is not a checkpoint")
    Path("evil.pt").write_bytes(pickle.dumps(Evil()))
    torch.save({"state_dict": state, "x": Evil()}, "evil2.pt")
    torch.save([1, 2, 3], "list.pt")
    torch.save({}, "nothing.pt")
    torch.save({"conv1.weight": "text"}, "words.pt")
    torch.save({k: v for k, v in state.items() if k != "fc.bias"}, "missing.pt")
    torch.save({**state, "more": torch.ones(1)}, "more.pt")
    torch.save({**state, "fc.bias": torch.ones(7)}, "shape.pt")
    safetensors.torch.save_file(state, "good.safetensors")
    whole = Path("good.safetensors").read_bytes()
    Path("cut.safetensors").write_bytes(whole[:-10])
    model = quadric.models.create("digits_cnn", neuron="eigen")
    quadric.save(model, "ours.safetensors")


BAD = {
    "absent.pt": r"No such file or directory: absent.pt",
    "cut.pt": r"cut.pt must be a state dict .*damaged or foreign",
    "empty.pt": r"empty.pt must be a state dict",
    "text.pt": r"text.pt must be a state dict",
    "evil.pt": r"evil.pt must be a state dict that torch.save wrote, tensors and nothing else",
    "evil2.pt": r"evil2.pt must be a state dict",
    "list.pt": r"list.pt must hold a state dict, tensors by name, got a list",
    "nothing.pt": r"nothing.pt must hold a state dict, tensors by name, got an empty one",
    "words.pt": r"words.pt must hold a state dict, tensors by name, got 'conv1.weight' of type str",
    "missing.pt": r"the tensors of missing.pt must be .*, got 'fc.bias' missing",
    "more.pt": r"more.pt must be .*, got 'more' unknown to the model",
    "shape.pt": r"got 'fc.bias' of shape \(7,\), not \(10,\): .* options \(such as num_classes\)",
    "cut.safetensors": r"cut.safetensors must be a safetensors file, got a truncated, damaged",
    "ours.safetensors": r"ours.safetensors must be a linear checkpoint, got one that quadric.save",
}


def test_bad_files(folder: Path) -> None:
    bad_files()
    for name, words in BAD.items():
        result = run(name, "--model", "digits_cnn", "-o", "out.safetensors", code=2)
        lines = result.stderr.strip().splitlines()
        assert len(lines) == 1, result.stderr
        assert lines[0].startswith("Error: ")
        with pytest.raises(ValueError, match=words):
            raise ValueError(lines[0])
        assert not result.stdout
        assert not Path("out.safetensors").exists()
    assert not Path("owned").exists()


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--model", "resnet14"], "must be those of the model"),
        (["--model", "resnet8", "--include", "nope"], "at least one layer must match"),
        (["--model", "resnet8", "--include", "re:("], "include must be a valid regular expression"),
        (["--model", "resnet8", "--first", "99"], "first must be at most"),
        (["--model", "resnet8", "--set", "num_classes"], "--set must be name=value"),
        (["--model", "resnet8", "--set", "size=3"], "unknown option 'size'"),
        (
            ["--model", "my_nets:build", "--set", "size=3"],
            "options must be for a network of quadric.models",
        ),
        (
            ["--model", "no_nets:build"],
            "the module 'no_nets' of 'no_nets:build' must be importable",
        ),
        ([], "Missing option '--model'"),
    ],
)
def test_bad_words(folder: Path, words: list[str], match: str) -> None:
    torch.save(trained()[1], "r.pth")
    result = run("r.pth", "-o", "out.safetensors", *words, code=2)
    assert match in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not Path("out.safetensors").exists()


def test_a_checkpoint_that_stores_shared_weights_once() -> None:
    from quadric.models.weight_files import fill_

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    state = {name: torch.full_like(value, 2) for name, value in model.state_dict().items()}
    del state["1.weight"]
    fill_(model, state, "model.safetensors")
    assert model[1].weight is model[0].weight
    assert float(model[1].weight.detach().sum()) == 32
