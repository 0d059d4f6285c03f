"""The recipes that ship: each is valid, and has the paper's settings."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from quadric import models
from quadric.data import laws, uci
from quadric.train import catalog

NAMES = catalog.names()


def test_there_is_one_for_every_experiment() -> None:
    expected = {
        "digits",
        "mnist-encrypted",
        "cifar10-encrypted",
        "cifar100-resnet20",
        "imagenet-resnet18",
    }
    expected |= {f"cifar10-resnet{depth}" for depth in (20, 32, 44, 56, 110)}
    expected |= {"cifar10-resnet20-short", "cifar10-resnet8-small"}
    expected |= {f"cifar10-wide-resnet{depth}" for depth in (20, 32, 56, 110)}
    expected |= {f"imagenet-resnet18-knn{n}" for n in (3, 11, 15)}
    expected |= {f"law-{name}" for name in laws.names()}
    expected |= {f"uci-{name}" for name in uci.names()}
    for text in ("multi30k", "wmt14"):
        expected |= {f"{text}-transformer{kind}" for kind in ("", "-shrunk", "-feedforward")}
    assert set(NAMES) == expected
    assert NAMES.index("cifar10-resnet56") < NAMES.index("cifar10-resnet110")


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_and_its_quick_variant_are_valid(name: str) -> None:
    recipe = catalog.load(name)
    assert recipe.name == name
    assert recipe.model in models.names()
    assert (
        recipe.resolved().directory_name(recipe.resolved()).startswith(f"{name}-{recipe.neuron}-")
    )
    quick = catalog.load(name, quick=True)
    assert quick == catalog.load(f"{name}-quick")
    assert quick.name == f"{name}-quick"
    assert "not the paper's" in quick.title
    assert quick.reproduces == ""
    assert quick.epochs < recipe.epochs


@pytest.mark.parametrize("path", sorted(Path(catalog._folder()).glob("*.yaml")), ids=str)
def test_the_first_line_is_a_command_of_that_recipe(path: Path) -> None:
    line = path.read_text().splitlines()[0]
    assert line.startswith("# quadric train ")
    words = shlex.split(line.removeprefix("# "))
    assert words[2] == path.stem or words[2].startswith(f"{path.stem}-")
    options = dict(zip(words[3::2], words[4::2], strict=True))
    overrides = {key.removeprefix("--"): value for key, value in options.items()}
    overrides.pop("data-dir", None)
    rank = {"rank": int(overrides.pop("rank"))} if "rank" in overrides else {}
    assert catalog.load(words[2]).with_overrides({**overrides, **rank}).resolved().epochs


@pytest.mark.parametrize("depth", [20, 32, 44, 56, 110])
def test_cifar10_has_the_papers_settings(depth: int) -> None:
    recipe = catalog.load(f"cifar10-resnet{depth}")
    eigen = recipe.with_overrides({"neuron": "eigen"}).resolved()
    assert (eigen.dataset, eigen.model, eigen.augment) == ("cifar10", f"resnet{depth}", True)
    assert (eigen.epochs, eigen.batch_size, eigen.optimizer, eigen.lr) == (180, 128, "sgd", 0.1)
    assert (eigen.schedule, eigen.milestones, eigen.gamma) == ("step", [90, 135], 0.1)
    assert (eigen.quadratic_lr, eigen.rank, eigen.first, eigen.validation) == (1e-4, 9, None, 0)
    assert (eigen.resize, eigen.limit, eigen.channels, eigen.width) == (None,) * 4


def test_the_other_experiments_have_the_papers_settings() -> None:
    for depth in (20, 32, 56, 110):
        wide = catalog.load(f"cifar10-wide-resnet{depth}").resolved()
        assert (wide.model, wide.channels, wide.neuron) == (
            f"resnet{depth}",
            [24, 48, 96],
            "eigen",
        )
    hundred = catalog.load("cifar100-resnet20").resolved()
    assert (hundred.dataset, hundred.batch_size, hundred.epochs) == ("cifar100", 64, 250)
    imagenet = catalog.load("imagenet-resnet18").resolved()
    assert (imagenet.epochs, imagenet.batch_size, imagenet.lr) == (100, 256, 0.1)
    assert (imagenet.milestones, imagenet.quadratic_lr) == ([30, 60, 90], 1e-5)
    assert (imagenet.neuron, imagenet.rank, imagenet.first) == ("eigen", 9, None)
    for n in (3, 11, 15):
        knn = catalog.load(f"imagenet-resnet18-knn{n}").resolved()
        assert (knn.neuron, knn.first, knn.epochs) == ("kervolution", n, 100)


def test_a_users_file_may_start_from_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("base: digits\ntitle: mine\nlr: 1e-3\nmodel: mlp\nhidden: [8]\n")
    recipe = catalog.load(str(file))
    assert (recipe.name, recipe.lr, recipe.epochs) == ("mine", 0.001, 20)
    assert catalog.load(str(file), quick=True).epochs == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title: [", "is not YAML"),
        ("- 1\n", "must hold a mapping of fields, got list"),
        ("base: digits\nspeed: 3\n", "recipe mine: unknown field 'speed'"),
        ("title: mine\n", "recipe mine: field 'dataset' is missing"),
        ("base: nothing\n", "unknown recipe 'nothing'"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        catalog.load(str(file))


def test_unknown_names_are_answered_with_near_ones() -> None:
    with pytest.raises(ValueError, match="unknown recipe 'cifar10-resnet21': did you mean"):
        catalog.load("cifar10-resnet21")
    with pytest.raises(ValueError, match="`quadric recipes` lists them"):
        catalog.load("zzz")
    with pytest.raises(ValueError, match="unknown recipe 'law-magic'"):
        catalog.load("law-magic")


def test_any_table_of_a_folder_is_a_recipe() -> None:
    assert catalog.load("uci-my-own").dataset == "uci:my-own"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr=1e-4", ("lr", 1e-4)),
        ("lr=.5", ("lr", 0.5)),
        ("epochs=3", ("epochs", 3)),
        ("channels=[8,16,32]", ("channels", [8, 16, 32])),
        ("augment=false", ("augment", False)),
        ("clip=null", ("clip", None)),
        ("activation=none", ("activation", "none")),
        ("include=layer1\\..*", ("include", "layer1\\..*")),
    ],
)
def test_values_are_read_as_in_a_recipe(text: str, expected: object) -> None:
    assert catalog.parse_assignments([text]) == dict([expected])


def test_the_list_has_one_line_for_each() -> None:
    lines = catalog.table().splitlines()
    for name in NAMES:
        assert sum(line.split()[:1] == [name] for line in lines) == 1
    assert any("Fig. 4" in line for line in lines)
    assert catalog.text("digits").splitlines()[0] == "# quadric train digits --neuron eigen"
    assert "resize: 16" in catalog.text("cifar10-resnet20-quick")
    assert {fact["name"] for fact in catalog.facts()} == set(NAMES)
