"""quadric encrypted check and compile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import quadric
from quadric.encrypted import load_client, load_server
from tests.command_line import assert_mistake, output
from tests.command_line import quadric as run


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "mlp"
    quadric.save(quadric.models.create("mlp", "square", hidden=(6,), activation="none"), path)
    return path


NETWORK = ("--model", "mlp", "--set", "hidden=[6]")


def test_a_polynomial(weights: Path, tmp_path: Path) -> None:
    text = output("encrypted", "check", weights, *NETWORK, "--set", "activation=none")
    assert "a polynomial: it can be encrypted" in text
    pytest.importorskip("tenseal")
    options = ("--set", "activation=none", "--packing", "many", "--json", "-")
    found = json.loads(output("encrypted", "compile", weights, *NETWORK, *options, "-o", tmp_path))
    client, server = load_client(tmp_path / "client"), load_server(tmp_path / "server")
    assert client.plan.ring == found["ring"]
    answer = client.decrypt(server.run(client.encrypt(torch.zeros(1, 8))))
    assert answer.shape == (1, 1)


def test_a_network_that_is_none(weights: Path) -> None:
    result = run("encrypted", "check", weights, *NETWORK)
    assert result.exit_code == 1
    assert "activation1 (ReLU): take quadric.convert_" in result.stdout


def test_mistakes(weights: Path) -> None:
    assert_mistake(run("encrypted", "decrypt", weights), "check or compile, got 'decrypt'")
    assert_mistake(run("encrypted", "compile", weights), "--out is the folder of compile")
    assert_mistake(run("encrypted", "check", "nowhere"), "no run directory or file nowhere")
    told = run("encrypted", "check", weights.parent, *NETWORK)
    assert_mistake(told, "leave --model, --input and --set out")
