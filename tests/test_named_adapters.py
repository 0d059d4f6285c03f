"""Several adapters by name on one network."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import quadric
from tests.conftest import assert_close
from tests.networks import curve_, quadratic_layers
from tests.refusals import Check, refusals

X = torch.linspace(-2, 2, 24).reshape(3, 8)


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 2)
    )


def adapter(path: Path, seed: int, **options: object) -> Tensor:
    """Writes an adapter for the plain network, and says what the network computes with it."""
    model = plain()
    quadric.convert_(model, **options)
    torch.manual_seed(seed)
    curve_(model, 0.2)
    quadric.save(model, path, only="quadratic")
    return model(X).detach()


@pytest.fixture
def files(tmp_path: Path) -> tuple[list[Path], list[Tensor]]:
    paths = [tmp_path / "law", tmp_path / "art"]
    return paths, [adapter(path, seed) for seed, path in enumerate(paths)]


def loaded(paths: list[Path]) -> nn.Sequential:
    model = plain()
    for path in paths:
        quadric.load_(model, path, name=path.name)
    return model


def test_switching_gives_each_adapters_function(files: tuple[list[Path], list[Tensor]]) -> None:
    paths, (law, art) = files
    model = loaded(paths)
    assert quadric.adapters(model) == {"law": False, "art": True}
    assert_close(model(X), art)
    parameters = list(model.parameters())
    for name, expected in (("law", law), (None, plain()(X)), ("art", art), ("art", art)):
        quadric.use_adapter_(model, name)
        assert_close(model(X), expected)
        assert quadric.adapters(model) == {k: k == name for k in ("law", "art")}
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    other = copy.deepcopy(model)
    quadric.use_adapter_(other, "law")
    assert_close(model(X), art)
    assert_close(other(X), law)


def test_training_belongs_to_the_adapter_in_use(
    files: tuple[list[Path], list[Tensor]], tmp_path: Path
) -> None:
    paths, (law, _) = files
    model = loaded(paths)
    optimizer = torch.optim.Adam(quadric.param_groups(model, 1e-2, only="quadratic"))
    for _ in range(3):
        optimizer.zero_grad()
        model(X).square().sum().backward()
        optimizer.step()
    trained = model(X).detach()
    assert any(layer.eigenvalue_scale != 1 for layer in quadratic_layers(model).values())
    quadric.use_adapter_(model, "law")
    assert_close(model(X), law)
    quadric.save(model, tmp_path / "saved", only="quadratic")  # what is in use
    quadric.use_adapter_(model, "art")
    assert_close(model(X), trained)
    again = plain()
    quadric.load_(again, tmp_path / "saved")
    assert_close(again(X), law)
    assert quadric.adapters(again) == {}


def test_averaging_and_dropping(files: tuple[list[Path], list[Tensor]]) -> None:
    paths, (_, art) = files
    models = []
    for path in paths:
        models.append(plain())
        quadric.load_(models[-1], path)
    expected = plain()
    quadric.convert_(expected)
    with torch.no_grad():
        for name, layer in quadratic_layers(expected).items():
            one, two = (quadratic_layers(m)[name].effective_eigenvalues() for m in models)
            layer.eigenvalues.copy_(0.25 * one + 0.5 * two)
    model = loaded(paths)
    quadric.average_adapters_(model, {"law": 0.25, "art": 0.5}, "mix")
    assert quadric.adapters(model) == {"law": False, "art": False, "mix": True}
    assert_close(model(X), expected(X))
    quadric.drop_adapter_(model, "law")
    assert_close(model(X), expected(X))
    quadric.drop_adapter_(model, "mix")
    assert_close(model(X), plain()(X))
    quadric.use_adapter_(model, "art")
    assert_close(model(X), art)


def test_what_stood_there_before_the_first_adapter_comes_back(tmp_path: Path) -> None:
    """A curved network, and adapters of some of its layers and of others."""
    some, others = tmp_path / "some", tmp_path / "others"
    adapter(some, 1, include=["0"])
    adapter(others, 2, include=["2"])
    model = plain()
    quadric.convert_(model, include=["0"])
    curve_(model, 0.1)
    before = model(X).detach()
    quadric.load_(model, some, name="some")
    first = model(X).detach()
    assert quadric.load_(model, others, name="others") == ["2"]
    quadric.use_adapter_(model, None)
    assert_close(model(X), before)
    quadric.average_adapters_(model, {"some": 1.0}, "the same")
    assert_close(model(X), first)
    quadric.use_adapter_(model, "some")
    assert_close(model(X), first)
    expected = plain()
    quadric.convert_(expected, include=["0"])
    expected[0].load_state_dict(model[0].state_dict())
    assert_close(expected(X), first)


def test_a_file_that_does_not_fit_changes_nothing(
    files: tuple[list[Path], list[Tensor]], tmp_path: Path
) -> None:
    paths, (_, art) = files
    model = loaded(paths)
    adapter(tmp_path / "rank", 3, rank=4)
    whole = copy.deepcopy(model)
    quadric.save(whole, tmp_path / "whole")
    for file, words in (("rank", "must agree"), ("whole", "holds a whole model")):
        with pytest.raises(ValueError, match=words):
            quadric.load_(model, tmp_path / file, name="new")
        assert quadric.adapters(model) == {"law": False, "art": True}
        assert_close(model(X), art)
    quadric.revert_(model, project=True)
    with pytest.raises(ValueError, match=r"0\.eigenvalues, 2\.eigenvalues changed since"):
        quadric.use_adapter_(model, "law")


@refusals(
    (lambda: quadric.use_adapter_(plain(), "law"), ValueError, "got 'law' of none: load it with"),
    (lambda: quadric.drop_adapter_(plain(), None), TypeError, "must be a string, got None"),
    (lambda: quadric.average_adapters_(plain(), {}, "mix"), ValueError, "at least one adapter"),
    (lambda: quadric.average_adapters_(plain(), {"law": 1}, "mix"), ValueError, "got 'law'"),
)
def test_refusals(check: Check) -> None:
    check()


def test_weights_must_be_finite(files: tuple[list[Path], list[Tensor]]) -> None:
    model = loaded(files[0])
    with pytest.raises(ValueError, match="finite, got nan for 'law'"):
        quadric.average_adapters_(model, {"law": float("nan")}, "mix")
    assert quadric.adapters(model) == {"law": False, "art": True}
