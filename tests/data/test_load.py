from __future__ import annotations

from pathlib import Path

import pytest

from quadric import data
from tests.data import test_uci


def test_names_load(tmp_path: Path) -> None:
    assert {"digits", "cifar10", "cifar100", "folders", "law:lorentz", "uci:kin8nm"} <= set(
        data.names()
    )
    assert data.load("digits").name == "digits"
    assert data.load("digits", tmp_path, augment=True).augmentation is not None
    law = data.load("law:lorentz", train_size=10, test_size=5)
    assert isinstance(law, data.TableData)
    assert law.train_size == 10
    test_uci.write(tmp_path / "toy")
    assert data.load("uci:toy", tmp_path, split=1).name == "uci:toy"


@pytest.mark.parametrize("name", ["cifar", "law", "law:", "uci:", "uci", ":", "", "digits:x"])
def test_unknown_name(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"unknown data set '.*': choose from digits, mnist, cifar10"
    ):
        data.load(name)


def test_unknown_option() -> None:
    with pytest.raises(ValueError, match=r"unknown option 'resize' .* 'digits': it has augment"):
        data.load("digits", resize=16)
    match = "unknown option 'size' for data set 'cifar10': it has resize, augment"
    with pytest.raises(ValueError, match=match):
        data.load("cifar10", size=16)
    with pytest.raises(ValueError, match="unknown option 'law'"):
        data.load("law:lorentz", law="snell", n=3)


@pytest.mark.parametrize("name", ["folders", "uci:kin8nm"])
def test_directory_needed(name: str) -> None:
    with pytest.raises(ValueError, match=f"data set '{name}' needs a data directory"):
        data.load(name)


def test_the_directory_reaches_the_loader(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no CIFAR-100 in"):
        data.load("cifar100", tmp_path)
    with pytest.raises(ValueError, match=r"train must be a directory, but there is none"):
        data.load("folders", tmp_path)
