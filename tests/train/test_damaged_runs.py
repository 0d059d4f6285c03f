"""A run whose files were damaged after it was trained, or between two parts of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import quadric
from quadric.errors import InputError
from quadric.train.evaluation import evaluate
from quadric.train.network import load_run
from quadric.train.runner import train
from tests.train.small import law_run


def test_evaluate_refuses_what_is_damaged(tmp_path: Path) -> None:
    run = law_run(tmp_path / "run")
    train(run)
    file = run.directory.weights_file
    network = load_run(run.directory.path).network
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match="is damaged, its content is not what its checksum says"):
        evaluate(run.directory.path)
    with torch.no_grad():
        next(network.parameters()).fill_(float("nan"))
    quadric.save(network, file)
    with pytest.raises(InputError, match=r"must be finite, got .* nan"):
        evaluate(run.directory.path)


def test_what_others_wrote_into_metrics_is_gone_after_a_resume(tmp_path: Path) -> None:
    run = law_run(tmp_path / "run")
    train(run)
    run.directory.result_file.unlink()
    expected = run.directory.metrics_file.read_text()
    run.directory.metrics_file.write_text(f"{expected}garbage,=1+1\n")
    train(run, resume=True)
    assert run.directory.metrics_file.read_text() == expected
