"""The data of a recipe: parts, limits, and what each process sees."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from quadric.train import catalog
from quadric.train.data import SampleRunData, TableRunData, load_data
from quadric.train.network import build_network
from quadric.train.recipe import Recipe


def recipe(name: str = "digits", **overrides: Any) -> Recipe:
    return catalog.load(name).with_overrides(overrides).resolved()


def rows(batches: Any) -> torch.Tensor:
    return torch.cat([inputs.flatten(1) for inputs, _ in batches])


def test_a_limit_keeps_so_many_samples_of_each_part_whatever_the_seed() -> None:
    parts = [load_data(recipe(limit=100, seed=seed, shuffle=False)) for seed in (0, 1)]
    for part in parts:
        assert len(rows(part.train(0, 1))) == 100
        assert len(rows(part.test(0, 1))) == 100
    torch.testing.assert_close(rows(parts[0].train(0, 1)), rows(parts[1].train(0, 1)))
    whole = load_data(recipe(limit=10**6))
    assert len(rows(whole.train(0, 1))) == 1438


def test_a_validation_part_is_taken_from_the_training_part() -> None:
    whole = load_data(recipe(shuffle=False))
    parts = load_data(recipe(validation=0.25, shuffle=False))
    held = parts.validation(0, 1)
    assert held is not None
    assert whole.validation(0, 1) is None
    kept, held_rows = rows(parts.train(0, 1)), rows(held)
    assert len(kept) + len(held_rows) == 1438
    assert len(held_rows) / 1438 == pytest.approx(0.25, abs=0.01)
    together = torch.cat([kept, held_rows])
    assert sorted(map(tuple, together.tolist())) == sorted(
        map(tuple, rows(whole.train(0, 1)).tolist())
    )
    torch.testing.assert_close(rows(parts.test(0, 1)), rows(whole.test(0, 1)))


def test_a_perceptron_takes_pictures_as_rows() -> None:
    flat = recipe(model="mlp", hidden=[8])
    data = load_data(flat)
    assert data.input_shape == (64,)
    inputs, _ = next(iter(data.train(0, 1)))
    assert inputs.shape == (64, 64)
    assert build_network(flat, data)(inputs).shape == (64, 10)


def test_laws_are_standardized_by_their_training_rows() -> None:
    law = recipe("law-lorentz", samples=400)
    data = load_data(law)
    assert isinstance(data, TableRunData)
    inputs = rows(data.train(0, 1))
    torch.testing.assert_close(inputs.mean(0), torch.zeros(5), atol=1e-5, rtol=0)
    torch.testing.assert_close(inputs.std(0, correction=0), torch.ones(5), atol=1e-4, rtol=0)
    assert data.task.target_std == pytest.approx(  # type: ignore[attr-defined]
        float(data.data.train_targets.std(correction=0))
    )


def test_the_validation_part_of_a_table_is_left_out_of_its_scaling() -> None:
    data = load_data(recipe("law-lorentz", samples=400, validation=0.5))
    held = data.validation(0, 1)
    assert held is not None
    assert len(rows(held)) == 200
    torch.testing.assert_close(rows(data.train(0, 1)).mean(0), torch.zeros(5), atol=1e-5, rtol=0)
    assert float(rows(held).mean(0).abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("imagenet-resnet18", {}, "needs a data directory with train and val folders: name it"),
        ("uci-yacht", {}, "needs the directory of the UCI tables: name it with --data-dir"),
        ("digits", {"resize": 4}, "resize has no meaning for the data set 'digits', got 4"),
        ("law-lorentz", {"model": "resnet20", "hidden": None}, "needs a network for tables"),
        ("digits", {"dataset": "emnist"}, "unknown data set 'emnist'"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        load_data(recipe(name, **overrides))


def test_the_seed_decides_the_weights_and_nothing_else_does() -> None:
    small = recipe(neuron="eigen")
    data = load_data(small)
    assert isinstance(data, SampleRunData)
    torch.manual_seed(123)
    first = build_network(small, data).state_dict()
    after = torch.rand(1)
    second = build_network(small, data).state_dict()
    other = build_network(recipe(neuron="eigen", seed=1), data).state_dict()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=0)
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])
    # And the global generator is left alone.
    torch.manual_seed(123)
    assert torch.equal(after, torch.rand(1))
