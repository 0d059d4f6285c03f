"""Models of transformers, torchvision and timm: converted from their configurations.

One file, because the import of transformers takes seconds.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadric
from tests.conversion.families import build, tokens
from tests.networks import curve_, quadratic_layers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="needs the Hugging Face extras")

transformers.logging.set_verbosity_error()

# The heads that stay linear.
MODELS = {
    "BERT": ["classifier"],
    "ViT": ["classifier"],
    "GPT-2": ["lm_head"],
    "T5": ["lm_head"],
    "BART": ["lm_head"],
    "Whisper": ["proj_out"],
    "Llama": ["lm_head"],
}


def run(model: nn.Module, inputs: dict[str, Any]) -> list[Tensor]:
    """All tensors that a model puts out, in train, in eval, and in eval without gradients."""
    results: list[Tensor] = []
    for mode, gradients in ((True, True), (False, True), (False, False)):
        model.train(mode)
        with torch.set_grad_enabled(gradients):
            output = model(**inputs)
        results += [value.detach() for value in output.values() if isinstance(value, Tensor)]
    return results


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_same_function_before_and_after(name: str) -> None:
    model, inputs = build(name)
    before = run(model, inputs)
    parameters = dict(model.named_parameters())
    report = quadric.convert_(model)
    assert [s.name for s in report.skipped] == MODELS[name]
    assert report.lossless
    assert "from_pretrained after quadric.use_transformers()" in str(report)
    after = run(model, inputs)
    assert len(after) == len(before) >= 3
    for got, expected in zip(after, before, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    converted = dict(model.named_parameters())
    for key, parameter in parameters.items():
        # No weight is copied, not even GPT-2's, which is stored transposed.
        assert converted[key].data_ptr() == parameter.data_ptr(), key
        transposed = name == "GPT-2" and key.endswith("weight") and parameter.dim() == 2
        assert converted[key] is parameter or transposed, key
    # The gradient reaches every eigenvalue.
    model.train()(**inputs).logits.logsumexp(-1).sum().backward()
    for layer_name, layer in quadratic_layers(model).items():
        gradient = layer.eigenvalues.grad
        assert gradient is not None, layer_name
        assert gradient.isfinite().all(), layer_name
        dead = (gradient == 0).float().mean()
        assert dead < (0.5 if name == "T5" else 1e-9), layer_name  # T5 has ReLU


def test_tied_embeddings_stay_tied_with_a_converted_head() -> None:
    model, inputs = build("GPT-2")
    before = run(model, inputs)
    quadric.convert_(model, head=True)
    assert model.lm_head.neuron == "eigen"
    assert model.lm_head.weight is model.transformer.wte.weight
    for got, expected in zip(run(model, inputs), before, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    model.tie_weights()
    assert model.lm_head.weight is model.transformer.wte.weight


def test_headless_models_have_no_head_to_spare() -> None:
    config = build("Llama")[0].config
    config.use_cache = True  # a cache returns results of other layers as well
    model = transformers.LlamaModel(config)
    report = quadric.convert_(model, example_inputs={"input_ids": tokens()})
    assert not report.skipped
    assert report.macs_after is not None
    assert report.macs_after > report.macs_before
    bare = transformers.BertModel(build("BERT")[0].config)
    assert not quadric.convert_(bare, example_inputs={"input_ids": tokens()}).skipped


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "T5", "ViT"])
@pytest.mark.parametrize("scaled", [True, False])
def test_from_pretrained_keeps_the_eigenvalues(name: str, scaled: bool, tmp_path: Path) -> None:
    model, inputs = build(name)
    quadric.convert_(model, "shared", rank=4)
    curve_(model).eval()
    for layer in quadratic_layers(model).values():
        layer.use_scale_(torch.tensor(0.3)) if scaled else layer.drop_scale_()
    expected = model(**inputs).logits
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(again(**inputs).logits, expected)
    assert list(quadratic_layers(again)) == list(quadratic_layers(model))
    assert not any(layer.awaits_scale for layer in quadratic_layers(again).values())
    # It is an ordinary model, to be trained and saved as any other.
    assert not again.is_quantized
    again.save_pretrained(tmp_path / "second")
    third = type(model).from_pretrained(tmp_path / "second", config=again.config)
    torch.testing.assert_close(third(**inputs).logits, expected)
    quadric.revert_(again, project=True)
    assert "quantization_config" not in again.config.to_dict()


def test_from_pretrained_with_another_head_or_none(tmp_path: Path) -> None:
    model, inputs = build("BERT")
    quadric.convert_(model.bert, head=True)  # the part, whose names have no prefix
    curve_(model).eval()
    expected = model(**inputs).logits
    features = model.bert(inputs["input_ids"]).last_hidden_state
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(again(**inputs).logits, expected)
    bare = transformers.AutoModel.from_pretrained(tmp_path)
    torch.testing.assert_close(bare(inputs["input_ids"]).last_hidden_state, features)


def test_a_plain_model_with_the_config_of_a_converted_one_stays_plain(tmp_path: Path) -> None:
    model, inputs = build("BERT")
    quadric.convert_(model)
    plain = type(model)(model.config).eval()
    plain.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert not quadratic_layers(again)
    torch.testing.assert_close(again(**inputs).logits, plain(**inputs).logits)


def test_load_notes_the_layers_for_save_pretrained(tmp_path: Path) -> None:
    model, inputs = build("BERT")
    quadric.convert_(model)
    curve_(model).eval()
    quadric.save(model, tmp_path / "adapter.safetensors", only="quadratic")
    plain, _ = build("BERT")
    quadric.load_(plain, tmp_path / "adapter.safetensors")
    plain.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(again(**inputs).logits, model(**inputs).logits)


LOADED_ELSEWHERE = """
import sys, warnings
from transformers import BertForSequenceClassification
import quadric
if sys.argv[2] == "yes":
    quadric.use_transformers()
model = BertForSequenceClassification.from_pretrained(sys.argv[1])
print(sum(name.endswith("eigenvalues") for name, _ in model.named_parameters()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("used", "layers"), [("yes", "13"), ("no", "0")])
def test_a_new_process_says_use_transformers(used: str, layers: str, tmp_path: Path) -> None:
    model, _ = build("BERT")
    quadric.convert_(model)
    model.save_pretrained(tmp_path)
    command = [sys.executable, "-c", LOADED_ELSEWHERE, str(tmp_path), used]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [layers]
    assert ("Unknown quantization type, got quadric" in ran.stderr) == (used == "no")


def test_a_billion_parameters_are_converted_without_memory() -> None:
    config = transformers.LlamaConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    parameters = {name: id(p) for name, p in model.named_parameters()}
    report = quadric.convert_(model)
    assert report.params_before > 1_000_000_000
    assert report.params_after / report.params_before - 1 < 0.0005
    after = {name: id(p) for name, p in model.named_parameters()}
    assert all(after[name] == one for name, one in parameters.items())


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_models_of_other_libraries(library: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = __import__(library, fromlist=["models"])
    except Exception as error:  # a broken installation raises all kinds
        pytest.skip(f"{library} does not import here: {type(error).__name__}: {error}")
    if library == "torchvision":
        models = [module.models.resnet18(), module.models.vit_b_32(image_size=64)]
    else:
        models = [module.create_model("resnet18"), module.create_model("convnext_atto")]
    for model in models:
        model.eval()
        x = torch.randn(1, 3, 64, 64)
        with torch.no_grad():
            before = model(x)
            report = quadric.convert_(model)
            torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-4)
        assert report.params_after / report.params_before - 1 < 0.005
