"""Whole analyses: of every convolutional neuron, of runs, of what a user brings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quadric
from quadric import analysis
from quadric.data import digits
from quadric.errors import FileError, InputError, InputTypeError
from tests.analysis.made import table_analysis, trained_runs

NEURONS = [name for name in quadric.neurons() if name != "linear"]


def network(neuron: str) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [quadric.make_layer(nn.Conv2d(a, 8, 3, padding=1), neuron=neuron) for a in (3, 8)]
    for layer in layers:
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.2)
    head = (nn.Flatten(), nn.Linear(512, 2))
    return nn.Sequential(layers[0], nn.ReLU(inplace=True), layers[1], *head)


@pytest.mark.parametrize("neuron", NEURONS)
def test_every_convolutional_neuron_is_analyzed(neuron: str) -> None:
    model = network(neuron)
    x = torch.randn(12, 3, 8, 8)
    before = model(x).clone()
    found = analysis.analyze(model, x)
    torch.testing.assert_close(model(x), before)
    first, second, head = found["layers"]
    assert (first["name"], second["name"], head["name"]) == ("0", "2", "4")
    for layer in (first, second):
        assert layer["neuron"] == neuron
        assert 0 < layer["share"] <= 1
        assert layer["eigenvalues"]["count"] > 0
        assert 1 <= layer["effective_rank"]["quantiles"][0]
        low = layer["low_frequency"]
        if neuron == "pure":  # nothing to compare its quadratic part with
            assert low == {"reason": "a part does not vary"}
        else:
            assert 0 < low["quadratic"]["mean"] < 1
            assert low["difference"]["pairs"] == 12
    assert head["quadratic"] is None
    assert [layer["name"] for layer in found["responses"]["layers"]] == ["0", "2"]
    assert found["samples"] == 12


def test_responses_are_those_of_the_layer() -> None:
    import base64

    model = network("shared")
    x = torch.randn(5, 3, 8, 8)
    found = analysis.analyze(model, x, show=[3], layers=["0"])
    (layer,) = found["responses"]["layers"]
    shares = quadric.quadratic_share(model, [x])["0"].shares
    assert shares[layer["neuron"]] == max(shares)  # of eight neurons the most quadratic one
    linear, quadratic, _ = model[0].responses(x[3:4])  # type: ignore[operator]
    for part, expected in (("linear", linear), ("quadratic", quadratic)):
        (picture,) = layer[part]
        levels = torch.tensor(list(base64.b64decode(picture["bytes"]))).view(8, 8)
        values = (levels - 128) / 127 * picture["scale"]
        torch.testing.assert_close(
            values, expected[0, layer["neuron"]].detach(), rtol=0, atol=picture["scale"] / 200
        )


def test_layers_are_in_the_order_they_are_called() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = quadric.QuadraticLinear(4, 4, rank=3)
            self.first = quadric.QuadraticLinear(4, 4, rank=3)
            self.never = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.last(self.first(x))
            return out

    found = analysis.analyze(Backwards(), torch.randn(3, 4))
    assert [layer["name"] for layer in found["layers"]] == ["first", "last", "never"]


def test_a_run_is_analyzed(tmp_path: Path) -> None:
    steps: list[tuple[int, str, int]] = []
    found = analysis.analyze(trained_runs() / "digits", progress=lambda *step: steps.append(step))
    assert [layer["name"] for layer in found["layers"]] == ["conv1", "conv2", "conv3", "fc"]
    assert (found["recipe"], found["neuron"], found["rank"]) == ("digits", "eigen", 3)
    assert found["low_frequency"]["sentence"] in str(found)
    assert sum(done for done, _, _ in steps) == steps[0][2]  # the bar ends full
    found.save(tmp_path / "analysis.json")
    text = (tmp_path / "analysis.json").read_text(encoding="utf-8")
    kept = json.loads(text)
    assert kept["layers"][0]["name"] == "conv1"
    assert set(kept) - set(found) == {"versions", "machine", "command"}


def test_a_run_on_a_law_shows_couplings_in_units() -> None:
    found = analysis.analyze(trained_runs() / "law", count=40)
    assert found["couplings"]["rows"] == 40
    assert found["couplings"]["units"] == ["C", "V m^-1", "T", "m s^-1", "1"]
    text = str(found)
    assert "What the network couples, in force (N) per deviation of both columns" in text
    assert "N / (C · T)" in text


def test_a_network_without_activation_shows_its_formula() -> None:
    from quadric.data import laws

    model = nn.Sequential(quadric.QuadraticLinear(5, 4, rank=3), nn.Linear(4, 1))
    found = analysis.analyze(model, laws.table("lorentz", 50, 50))
    assert "E" in found["formula"]["text"][0]
    assert "The learned function:\n" in str(found)
    assert "has activations" in table_analysis()["formula"]["reason"]


def test_given_pictures(tmp_path: Path) -> None:
    pil = pytest.importorskip("PIL.Image")
    pil.new("RGB", (30, 20), (255, 0, 0)).save(tmp_path / "red.png")
    data = digits.load()
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10))
    quadric.convert_(plain, rank=3)
    found = analysis.analyze(plain, data, count=10, pictures=[tmp_path / "red.png"])
    (picture,) = found["responses"]["pictures"]
    assert (picture["height"], picture["width"], picture["channels"]) == (8, 8, 1)
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(FileError, match=r"text\.png cannot be read as a picture"):
        analysis.analyze(plain, data, count=10, pictures=[tmp_path / "text.png"])
    with pytest.raises(InputError, match="only to a network that takes pictures"):
        analysis.analyze(nn.Linear(2, 1), torch.zeros(3, 2), pictures=[tmp_path / "red.png"])


def test_a_data_frame_names_its_columns() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"height": [1.0, 2.0, 4.0], "age": [3.0, 1.0, 2.0]})
    model = nn.Sequential(quadric.QuadraticLinear(2, 3, rank=2), nn.Linear(3, 1))
    nn.init.ones_(model[0].eigenvalues)  # type: ignore[arg-type]
    found = analysis.analyze(model, frame)
    assert found["couplings"]["pairs"][0]["columns"] == ["height", "age"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((nn.Linear(2, 1),), InputError, "must be analyzed on data, got none"),
        ((3,), InputTypeError, "takes a run directory or a model, got int"),
        ((nn.Linear(2, 1), "rows"), InputTypeError, "got str"),
        ((nn.Linear(2, 1), torch.zeros(0, 2)), InputError, "at least one input, got none"),
        (("quadric",), InputError, "is not a run directory"),
    ],
)
def test_what_cannot_be_analyzed(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        analysis.analyze(*arguments)


def test_options_that_do_not_fit() -> None:
    model, x = network("eigen"), torch.randn(4, 3, 8, 8)
    with pytest.raises(InputError, match=r"one of 0 \.\.\. 3, the ones that are analyzed, got 4"):
        analysis.analyze(model, x, show=[4])
    with pytest.raises(InputError, match=r"no convolutional layer 'fc' .*choose from 0, 2"):
        analysis.analyze(model, x, layers=["fc"])
    with pytest.raises(InputError, match="at least 1 sample, got 0"):
        analysis.analyze(model, x, count=0)


@pytest.mark.parametrize("neuron", ["linear", "eigen"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_an_analysis_of_a_table_prints(neuron: str, outputs: int) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))
    if neuron != "linear":
        quadric.convert_(model, rank=2)
    text = str(analysis.analyze(model, torch.randn(9, 3), names=["a", "b", "c"]))
    assert ("factor of the product" in text) == (outputs == 1)
    assert ("by quadratic forms" in text) == (neuron != "linear")


def test_sentences_are_counted_not_batches() -> None:
    class Pairwise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = quadric.QuadraticLinear(4, 4, rank=3)

        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layer(source + target)
            return out

    batch = (torch.randn(6, 4), torch.randn(6, 4)), torch.zeros(6)
    assert analysis.analyze(Pairwise(), [batch] * 3, count=10)["samples"] == 12
