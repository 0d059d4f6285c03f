"""The weights that come with the package."""

from __future__ import annotations

import re

import pytest
import torch

import quadric
from quadric import models
from quadric.data import load
from quadric.data.images import ImageData
from quadric.errors import InputError
from quadric.models import trained

WEIGHTS = models.pretrained()


@pytest.mark.parametrize("weights", WEIGHTS, ids=lambda w: f"{w.name}-{w.file.stem}")
def test_each_file_loads_and_has_its_card(weights: models.Weights) -> None:
    network = models.create(weights.model, weights.neuron, pretrained=weights.name).eval()
    with torch.no_grad():
        outputs = network(*models.example_inputs(weights.model))
    assert outputs.isfinite().all()
    text = weights.card.read_text(encoding="utf-8")
    for word in ("Data:", "Training:", "Test: accuracy", "Command:", "Limits:"):
        assert word in text
    params = sum(p.numel() for p in network.parameters())
    assert f"{params:,} parameters" in text
    assert weights.file.stat().st_size < 2e6


@pytest.mark.parametrize("neuron", ["linear", "eigen", "shared"])
def test_the_accuracy_is_that_of_the_card(neuron: str) -> None:
    network = models.create("digits_cnn", neuron, pretrained="digits").eval()
    data = load("digits")
    assert isinstance(data, ImageData)
    with torch.no_grad():
        outputs = network(data.normalization(data.test_images))
    right = (outputs.argmax(1) == data.test_labels).double().mean().item()
    text = trained.find("digits", "digits_cnn", neuron).card.read_text(encoding="utf-8")
    found = re.search(r"accuracy ([\d.]+) %", text)
    assert found is not None
    assert f"{100 * right:.2f}" == found[1]


def test_the_rank_is_that_of_the_weights() -> None:
    (weights,) = [w for w in WEIGHTS if (w.name, w.neuron) == ("digits", "eigen")]
    given = models.create("digits_cnn", "eigen", weights.rank, pretrained="digits")
    taken = models.create("digits_cnn", "eigen", pretrained="digits", seed=3)
    assert [p.tolist() for p in given.parameters()] == [p.tolist() for p in taken.parameters()]
    assert quadric.cost(taken, *models.example_inputs("digits_cnn")).params == 14_528


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pretrained": "imagenet"}, r"no trained weights pretrained='imagenet' of digits_cnn with "
         r"neuron='eigen': choose .*pretrained=\"digits\" of digits_cnn with neuron=\"linear\""),
        ({"neuron": "fan"}, "of digits_cnn with neuron='fan': choose"),
        ({"rank": 3}, "with neuron='eigen', rank=3: choose"),
        ({"pretrained": "../digits"}, "no trained weights pretrained='../digits'"),
        ({"num_classes": 5}, r"must be those of the model, got 'fc.bias' of shape \(10,\)"),
        ({"first": 1}, "decides which layers are quadratic, and how, got first"),
        ({"normalize": True}, "got normalize"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_clear_error(options: dict[str, object], message: str) -> None:
    given = {"neuron": "eigen", "pretrained": "digits", **options}
    with pytest.raises(InputError, match=message):
        models.create("digits_cnn", **given)  # type: ignore[arg-type]
