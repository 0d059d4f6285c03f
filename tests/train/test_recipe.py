"""Recipes: strict, with one spelling, and one directory name for what computes the same."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from quadric.cli.train import train, with_fields
from quadric.train import catalog
from quadric.train.recipe import FIELDS, OPTIONS, Recipe, option_words
from quadric.train.runner import plan_run

BASE = catalog.load("cifar10-resnet20")


def resolved(base: Recipe = BASE, **overrides: Any) -> Recipe:
    return base.with_overrides(overrides).resolved()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"epocs": 3}, "unknown field 'epocs': did you mean 'epochs'?"),
        ({"colour": 3}, "unknown field 'colour': the fields are name, title"),
        ({"epochs": 0}, "epochs must be greater than or equal to 1, got 0"),
        ({"epochs": "3"}, "epochs must be integer, got '3'"),
        ({"epochs": 2.5}, "epochs must be integer, got 2.5"),
        ({"lr": -0.1}, "lr must be greater than or equal to 0, got -0.1"),
        ({"lr": float("nan")}, "lr must be"),
        ({"schedule": "linear"}, "schedule must be 'constant', 'step', 'cosine', 'onecycle'"),
        ({"first": 0}, "first must be greater than or equal to 1, got 0"),
        ({"validation": 1.0}, "validation must be less than 1"),
        ({"milestones": [5, 2]}, "milestones must be ascending, got [5, 2]"),
        ({"milestones": []}, "schedule 'step' needs milestones"),
        ({"width": 2.0, "channels": [1, 2, 3]}, "width and channels exclude each other"),
        ({"precision": "8"}, "precision must be"),
        ({"seed": -1}, "seed must be"),
        ({"quadratic_lr": "small"}, "quadratic_lr must be"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        BASE.with_overrides(overrides)
    assert str(caught.value).startswith("recipe cifar10-resnet20: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"neuron": "cubic"}, "neuron must be one of linear, eigen"),
        ({"neuron": "linear", "rank": 3}, "neuron 'linear' has no rank, got rank=3"),
        ({"neuron": "fan", "rank": 3}, "neuron 'fan' has no rank"),
        ({"quadratic_lr": {"cubic": 0.1}}, "quadratic_lr names the neuron 'cubic'"),
        ({"quadratic_scale": {"cubic": False}}, "quadratic_scale names the neuron 'cubic'"),
    ],
)
def test_a_wrong_neuron_is_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        resolved(**overrides)


def test_what_depends_on_the_neuron_is_put_in() -> None:
    eigen = resolved(neuron="eigen")
    # The paper's rule is for eigenvalues as they are; with a scale the rate needs no margin.
    assert (eigen.rank, eigen.quadratic_lr, eigen.quadratic_scale) == (9, 1e-4, False)
    shared, fan, quadralib = (resolved(neuron=name) for name in ("shared", "fan", "quadralib"))
    assert (shared.quadratic_lr, shared.quadratic_scale) == (0.9, True)
    assert (fan.quadratic_lr, fan.quadratic_scale) == (1e-4, None)
    assert (quadralib.quadratic_lr, quadralib.quadratic_scale) == (0.1, None)
    given = resolved(neuron="eigen", quadratic_lr=0.5, quadratic_scale=True)
    assert (given.quadratic_lr, given.quadratic_scale) == (0.5, True)
    assert given.resolved() == given
    assert resolved(neuron="shared", rank=4).rank == 4


def test_another_neuron_does_not_inherit_the_rank() -> None:
    wide = catalog.load("cifar10-wide-resnet20")
    assert (wide.neuron, wide.rank) == ("eigen", 9)
    assert resolved(wide, neuron="fan").rank is None
    assert resolved(wide, neuron="shared").rank == 8
    assert resolved(wide, rank=3).rank == 3


def test_fields_that_cannot_matter_make_no_difference() -> None:
    plain = resolved()
    assert resolved(quadratic_lr=0.3).identity() == plain.identity()
    assert resolved(quadratic_weight_decay=0.3, first=3).identity() == plain.identity()
    assert resolved(lr=1).identity() == resolved(lr=1.0).identity()
    assert resolved(strategy="ddp").identity() == plain.identity()
    cosine = resolved(schedule="cosine", milestones=[3])
    assert cosine.identity() == resolved(schedule="cosine").identity()


def name_of(recipe: Recipe) -> str:
    return recipe.directory_name(resolved(neuron=recipe.neuron))


def test_the_directory_is_named_by_recipe_neuron_rank_overrides_and_seed() -> None:
    assert name_of(resolved()) == "cifar10-resnet20-linear-s0"
    eigen = resolved(neuron="eigen", rank=9, seed=4)
    assert name_of(eigen) == "cifar10-resnet20-eigen-k9-s4"
    assert name_of(resolved(neuron="fan")) == "cifar10-resnet20-fan-s0"
    short = name_of(resolved(neuron="eigen", epochs=12))
    assert re.fullmatch(r"cifar10-resnet20-eigen-k9-[0-9a-f]{8}-s0", short)
    # What is given but not changed is no override.
    assert name_of(resolved(epochs=180, workers=None)) == "cifar10-resnet20-linear-s0"
    spellings = {name_of(resolved(data_dir=text)) for text in ("d", "d/", "./d")}
    assert len(spellings) == 1


def test_arms_that_differ_in_any_field_have_different_directories() -> None:
    values: dict[str, Any] = {
        "dataset": "cifar100", "resize": 16, "augment": False, "shuffle": False,
        "validation": 0.1, "limit": 7, "split": 1, "samples": 5, "data_seed": 1,
        "on_broken": "refuse", "model": "resnet32", "width": 2.0, "channels": [1, 2, 3],
        "hidden": [3], "shortcut": "B", "activation": "silu", "neuron": "shared", "rank": 3,
        "neuron_options": {"normalize": True}, "init": "linear", "include": "conv1",
        "exclude": ["conv1"], "first": 3, "head": True, "epochs": 3, "batch_size": 3,
        "drop_last": True, "optimizer": "adam", "lr": 0.2, "momentum": 0.8, "nesterov": True,
        "weight_decay": 0.2, "decay_bias_and_norm": False, "quadratic_lr": 0.2,
        "quadratic_scale": True, "quadratic_weight_decay": 0.2, "schedule": "cosine",
        "quadratic_schedule": "constant",
        "milestones": [3], "gamma": 0.5, "warmup": 1.0, "label_smoothing": 0.1, "clip": 1.0,
        "seed": 1, "precision": "bf16-mixed", "devices": 2, "nodes": 2, "compile": True,
        "strategy": "fsdp", "data_dir": "/data", "workers": 3, "accelerator": "cpu",
        "kernels": False, "memory_format": "contiguous", "dataset_options": {"a": 1},
        "model_options": {"a": 1}, "loss": "a:b", "ema": 0.9, "patience": 2, "code": ["a.py"],
        "checksums": {"a": "0"}, "keep_every": 2, "logger": "csv", "source": "fr", "target": "fr",
        "pass_tokens": 5, "epoch_steps": 5, "average": 2, "betas": [0.8, 0.9], "eps": 0.1,
        "warmup_steps": 5, "solver": "lm",
    }  # fmt: skip
    assert set(values) == set(FIELDS) - {"name", "title", "reproduces"}
    # Fields that matter only beside another one.
    beside: dict[str, dict[str, Any]] = {
        "patience": {"validation": 0.2},
        "betas": {"optimizer": "adam"},
        "eps": {"optimizer": "adam"},
        "warmup_steps": {"schedule": "inverse_sqrt"},
    }
    names = {
        field: resolved(**{"neuron": "eigen", field: value} | beside.get(field, {})).directory_name(
            resolved(neuron="eigen")
        )
        for field, value in values.items()
    }
    names[""] = resolved(neuron="eigen").directory_name(resolved(neuron="eigen"))
    assert len(set(names.values())) == len(values) + 1, names


def test_the_command_has_what_decides_the_recipe_and_nothing_else() -> None:
    overrides = {"seed": 2, "neuron": "eigen", "rank": 9, "lr": 0.05, "channels": [8, 16, 32]}
    run = plan_run("cifar10-resnet20", overrides | {"schedule": "onecycle", "momentum": 0.9})
    assert run.command == (
        "quadric train cifar10-resnet20 --set 'channels=[8, 16, 32]' --neuron eigen --rank 9 "
        "--lr 0.05 --schedule onecycle --seed 2"
    )
    # A value that follows from the recipe's own learning rate does not follow from another one.
    run = plan_run("cifar10-resnet20", {"neuron": "shared", "lr": 0.05, "quadratic_lr": 0.01})
    assert run.command.endswith("--neuron shared --lr 0.05 --quadratic-lr 0.01")


def test_fields_with_a_help_are_options_of_the_command() -> None:
    parameters = inspect.signature(with_fields(train, OPTIONS)).parameters
    assert set(OPTIONS) == set(parameters) - set(inspect.signature(train).parameters)
    kinds = {name: parameters[name].annotation for name in OPTIONS}
    assert kinds["quadratic_lr"] == float | None
    assert kinds["include"] == list[str] | None
    assert kinds["compile"] == bool | None
    assert "step, cosine" in parameters["schedule"].default.help
    assert option_words("quadratic_lr", 1e-5) == ["--quadratic-lr", "1e-05"]
    assert option_words("resize", None) == ["--set", "resize=null"]
    assert option_words("code", ["a.py", "b"]) == ["--code", "a.py", "--code", "b"]
    assert option_words("compile", True) == ["--set", "compile=true"]


def test_a_name_cannot_lead_out_of_the_folder_of_runs(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("base: law-lorentz\nname: ../../../x\n")
    with pytest.raises(ValueError, match=r"must be fit for a folder, .* got '../../../x'"):
        plan_run(str(file))


def test_the_command_can_be_pasted(tmp_path: Path) -> None:
    file = tmp_path / "my recipe.yaml"
    file.write_text("base: law-lorentz\ntitle: mine\n")
    overrides = {"data_dir": "my data/it's", "hidden": [3, 4], "optimizer": "adamw"}
    run = plan_run(str(file), overrides)
    words = shlex.split(run.command)
    assert words[:3] == ["quadric", "train", str(file)]
    assert words[words.index("--data-dir") + 1] == "my data/it's"
    sets = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    again = catalog.parse_assignments(sets) | {"data_dir": "my data/it's"}
    other = plan_run(str(file), again)
    assert (other.recipe, other.directory.path) == (run.recipe, run.directory.path)
    assert other.command == run.command


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"strategy": "ring"}, "strategy must be 'auto', 'ddp' or 'fsdp', got 'ring'"),
        ({"strategy": "fsdp", "precision": "64-true"}, "does not work with precision '64-true'"),
        ({"strategy": "fsdp", "compile": True}, "does not work with compile"),
    ],
)
def test_strategies(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        BASE.with_overrides(overrides)


def test_a_written_recipe_reads_back() -> None:
    recipe = resolved(neuron="eigen", quadratic_lr=1e-5, include=["conv1", "layer1.0.conv1"])
    text = recipe.to_yaml("quadric train this")
    assert text.splitlines()[0] == "# quadric train this"
    assert Recipe.model_validate(catalog.parse(text, "the text")) == recipe
