"""GPT-2, whose layers (transformers' Conv1D) store their weights transposed.

A square weight read the wrong way round gives no error, only another function. So each of the
layers, and all of them, go through every kind of file, in both directions.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import quadric
from tests.networks import curve_, quadratic_layers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="needs the Hugging Face extras")

transformers.logging.set_verbosity_error()

LAYERS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "lm_head")
SUBSETS = [*((name,) for name in LAYERS), ("attn.c_proj", "lm_head"), LAYERS]


def gpt2() -> Any:
    """One block, in which all weights but c_attn's are square."""
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ids = {"vocab_size": 11, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = transformers.GPT2Config(
        **ids, **none, n_embd=8, n_layer=1, n_head=2, n_inner=8, n_positions=8, use_cache=False
    )
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
    return model.eval()


def converted(layers: tuple[str, ...]) -> Any:
    model = gpt2()
    quadric.convert_(model, rank=3, include=list(layers))
    assert len(quadratic_layers(model)) == len(layers)
    return model


def logits(model: Any) -> Tensor:
    ids = torch.arange(6).reshape(1, 6)
    return model(ids, attention_mask=torch.ones_like(ids)).logits.detach()


def without_squares(state: Mapping[str, Tensor]) -> Any:
    """The dictionary without the eigenvalues, and the metadata that torch keeps beside it."""
    kept = type(state)((k, v) for k, v in state.items() if not k.endswith("eigenvalues"))
    if hasattr(state, "_metadata"):
        kept._metadata = state._metadata  # type: ignore[attr-defined]
    return kept


@pytest.fixture(params=SUBSETS, ids="+".join)
def trained(request: pytest.FixtureRequest) -> tuple[Any, tuple[str, ...], Tensor, Tensor]:
    """A converted model with squares in use, its layers, its logits, and those without squares."""
    torch.manual_seed(0)
    model = converted(request.param)
    linear = logits(model)
    curve_(model, 0.5)
    expected = logits(model)
    assert (expected - linear).abs().max() > 1e-3
    return model, request.param, expected, linear


def test_the_state_dict_has_the_plain_layout(trained: Any) -> None:
    model, layers, expected, linear = trained
    plain = gpt2()
    fit = plain.load_state_dict(model.state_dict(), strict=False)
    assert not fit.missing_keys
    torch.testing.assert_close(logits(plain), linear)
    for key, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key
    # With torch's metadata and, as after a safetensors file, without.
    for keep in (lambda state: state, dict):
        twin = converted(layers)
        twin.load_state_dict(keep(model.state_dict()))
        torch.testing.assert_close(logits(twin), expected)
        other = curve_(converted(layers))
        other.load_state_dict(without_squares(keep(model.state_dict())))
        torch.testing.assert_close(logits(other), linear)


def test_save_pretrained_and_back(trained: Any, tmp_path: Path) -> None:
    model, layers, expected, _ = trained
    model.save_pretrained(tmp_path)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(loaded), expected)
    # The tied head is written once, under the other name.
    state = safetensors.torch.load_file(tmp_path / "model.safetensors")
    twin = converted(layers)
    assert twin.load_state_dict(state, strict=False).missing_keys == ["lm_head.weight"]
    torch.testing.assert_close(logits(twin), expected)


def test_save_and_load(trained: Any, tmp_path: Path) -> None:
    model, layers, expected, _ = trained
    quadric.save(model, tmp_path / "model.safetensors")
    quadric.save(model, tmp_path / "adapter.safetensors", only="quadratic")
    for fresh in (gpt2(), curve_(converted(layers))):
        quadric.load_(fresh, tmp_path / "model.safetensors")
        torch.testing.assert_close(logits(fresh), expected)
    onto = gpt2()
    onto.load_state_dict(model.state_dict(), strict=False)
    quadric.load_(onto, tmp_path / "adapter.safetensors")
    torch.testing.assert_close(logits(onto), expected)
    quadric.revert_(model, project=True)
    quadric.save(model, tmp_path / "linear.safetensors")
    quadric.load_(onto := gpt2(), tmp_path / "linear.safetensors")
    assert torch.equal(logits(onto), logits(model))
