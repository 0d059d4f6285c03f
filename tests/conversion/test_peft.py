"""Converting a model that peft has adapted: LoRA matrices stay, merging is right or refused."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadric
from tests.conversion.families import build
from tests.networks import curve_, quadratic_layers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peft = pytest.importorskip("peft", reason="needs peft")

TARGETS = {"Llama": ["q_proj", "v_proj"], "GPT-2": ["c_attn", "c_proj"], "BERT": ["query", "dense"]}


def adapted(name: str, **options: Any) -> tuple[Any, dict[str, Tensor]]:
    """A model with LoRA matrices that do something."""
    model, inputs = build(name)
    if name == "GPT-2":
        options["fan_in_fan_out"] = True
    config = peft.LoraConfig(r=3, target_modules=TARGETS[name], lora_dropout=0.0, **options)
    with warnings.catch_warnings():  # of peft, about names in transformers
        warnings.simplefilter("ignore", FutureWarning)
        model = peft.get_peft_model(model, config).eval()
    for key, parameter in model.named_parameters():
        if "lora_B" in key:
            nn.init.normal_(parameter, std=0.1)
    return model, inputs


@pytest.mark.parametrize("name", TARGETS)
def test_converted_after_peft(name: str) -> None:
    model, inputs = adapted(name)
    before = model(**inputs).logits
    report = quadric.convert_(model, rank=4)
    left = {s.name: s.reason for s in report.skipped if "lora" in s.name}
    assert len(left) == sum("lora_" in key for key, _ in model.named_parameters())
    assert set(left.values()) == {
        "it belongs to an adapter around another layer (LoRA and the like)"
    }
    assert any(name.endswith("base_layer") for name in report.names)
    torch.testing.assert_close(model(**inputs).logits, before, rtol=1e-5, atol=1e-5)
    # All that was trained before is trained still, and the eigenvalues are, too.
    model(**inputs).logits.square().mean().backward()
    trained = {key for key, p in model.named_parameters() if p.grad is not None}
    assert trained == {k for k, _ in model.named_parameters() if "lora" in k or "eigenv" in k}


@pytest.mark.parametrize("name", TARGETS)
def test_merging_is_right_while_the_squares_have_weight_zero(name: str) -> None:
    model, inputs = adapted(name)
    quadric.convert_(model, rank=4)
    before = model(**inputs).logits
    model.merge_adapter()
    torch.testing.assert_close(model(**inputs).logits, before, rtol=1e-4, atol=1e-4)
    model.unmerge_adapter()
    torch.testing.assert_close(model(**inputs).logits, before, rtol=1e-4, atol=1e-4)
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged(**inputs).logits, before, rtol=1e-4, atol=1e-4)
    assert quadratic_layers(merged)
    plain, _ = build(name)
    plain.load_state_dict(merged.state_dict(), strict=False)
    torch.testing.assert_close(plain.eval()(**inputs).logits, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", TARGETS)
def test_merging_is_refused_while_squares_are_in_use(name: str) -> None:
    model, inputs = adapted(name)
    quadric.convert_(model, rank=4)
    curve_(model, 0.01)
    model = copy.deepcopy(model)
    before = model(**inputs).logits
    for merge in (model.merge_adapter, model.merge_and_unload):
        with pytest.raises(ValueError, match="must not be merged into a layer whose squares are"):
            merge()
        assert torch.equal(model(**inputs).logits, before)
    quadric.revert_(model, project=True)
    before = model(**inputs).logits
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged(**inputs).logits, before, rtol=1e-4, atol=1e-4)


def test_the_head_that_peft_copies_stays_a_head() -> None:
    model, inputs = adapted("BERT", modules_to_save=["classifier"])
    report = quadric.convert_(model)
    assert not any("classifier" in name for name in report.names)
    before = model(**inputs).logits
    quadric.revert_(model)
    torch.testing.assert_close(model(**inputs).logits, before)


def test_a_low_rank_adapter_written_by_hand() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(12, 12)
            self.lora_down, self.lora_up = nn.Linear(12, 2), nn.Linear(2, 12)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) + self.lora_up(self.lora_down(x))

    assert quadric.convert_(nn.Sequential(Adapted(), nn.ReLU())).names == ["0.linear"]
    # One that is asked for all the same is refused with the reason.
    with pytest.raises(ValueError, match="belongs to an adapter"):
        quadric.convert_(nn.Sequential(Adapted()), include=["lora_down"])


def test_attention_inside_of_an_adapter_is_left() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True))
    config = peft.LoraConfig(r=2, target_modules=["self_attn"])
    model = peft.get_peft_model(model, config).eval()
    x = torch.randn(2, 3, 8)
    before = model(x)
    report = quadric.convert_(model, rank=3)
    assert sum("reads its weights itself" in s.reason for s in report.skipped) == 1
    torch.testing.assert_close(model(x), before)
