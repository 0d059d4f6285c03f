"""Safetensors files that know when they were damaged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import safetensors.torch
import torch

from quadric.errors import InputError
from quadric.support.tensor_files import CHECKSUM, read_tensors, write_tensors

TENSORS = {"weight": torch.arange(6.0).view(2, 3), "count": torch.tensor(3)}
TEXTS = {"format": "pt", "quadric": '{"a": "b"}'}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_tensors(tmp_path / "a.safetensors", TENSORS, TEXTS)
    return tmp_path / "a.safetensors"


def test_a_file_holds_what_was_written(file: Path) -> None:
    tensors, texts = read_tensors(file)
    assert texts == TEXTS
    torch.testing.assert_close(tensors, TENSORS)
    torch.testing.assert_close(safetensors.torch.load_file(file), TENSORS)  # others read it too


def test_no_flipped_bit_goes_unseen(file: Path) -> None:
    content = file.read_bytes()
    draw = random.Random(0)
    for bit in draw.sample(range(8 * len(content)), 300):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        with pytest.raises(InputError, match=r"a\.safetensors (is damaged|must be a safetensors)"):
            read_tensors(file)


def test_a_file_of_ours_without_its_checksum_is_damaged(file: Path) -> None:
    safetensors.torch.save_file(TENSORS, file, TEXTS)
    with pytest.raises(InputError, match="is damaged"):
        read_tensors(file)


def test_a_file_of_others_has_none(file: Path) -> None:
    for texts in (None, {"format": "pt", "sha256": "theirs"}):
        safetensors.torch.save_file(TENSORS, file, texts)
        assert read_tensors(file)[1] == (texts or {})


def test_a_text_that_looks_like_a_checksum_is_a_text(file: Path) -> None:
    texts = TEXTS | {"note": f'"{CHECKSUM}":"{"0" * 64}"'}
    write_tensors(file, TENSORS, texts)
    assert read_tensors(file)[1] == texts
