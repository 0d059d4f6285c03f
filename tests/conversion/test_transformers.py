"""Models of transformers, torchvision and timm: converted from their configurations.

One file, because the import of transformers takes seconds.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadric
from tests.networks import curve_, quadratic_layers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="needs the Hugging Face extras")

transformers.logging.set_verbosity_error()

IDS = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT = {
    "hidden_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 30,
    **NO_DROPOUT,
}
ENCODER_DECODER = {
    "d_model": 20,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 30,
    "decoder_ffn_dim": 30,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "decoder_start_token_id": 1,
}


def tokens(length: int = 6) -> Tensor:
    return torch.randint(3, 50, (2, length))


def bert() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.BertConfig(**IDS, **BERT, num_labels=3)
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    model = transformers.BertForSequenceClassification(config)
    return model, {"input_ids": tokens(), "attention_mask": mask}


def vit() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.ViTConfig(**BERT, image_size=8, patch_size=4, num_channels=1)
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 1, 8, 8)}


def gpt2() -> tuple[nn.Module, dict[str, Any]]:
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(
        **IDS, **none, n_embd=20, n_layer=2, n_head=2, n_positions=16, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens()}


def t5() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.T5Config(
        **IDS,
        d_model=20,
        d_kv=10,
        d_ff=30,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config)
    return model, {"input_ids": tokens(), "decoder_input_ids": tokens(4)}


def bart() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.BartConfig(
        **IDS, **ENCODER_DECODER, max_position_embeddings=16, forced_eos_token_id=None
    )
    model = transformers.BartForConditionalGeneration(config)
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    return model, {"input_ids": tokens(), "attention_mask": mask, "decoder_input_ids": tokens(4)}


def whisper() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.WhisperConfig(
        **IDS,
        **ENCODER_DECODER,
        num_mel_bins=8,
        max_source_positions=10,
        max_target_positions=10,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = transformers.WhisperForConditionalGeneration(config)
    return model, {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": tokens(4)}


def llama() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.LlamaConfig(
        **IDS,
        hidden_size=20,
        intermediate_size=30,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return transformers.LlamaForCausalLM(config), {"input_ids": tokens()}


# The heads that stay linear. Whisper's has another name, and is tied besides: it is converted.
MODELS: dict[str, tuple[Callable[[], tuple[nn.Module, dict[str, Any]]], list[str]]] = {
    "bert": (bert, ["classifier"]),
    "vit": (vit, ["classifier"]),
    "gpt2": (gpt2, ["lm_head"]),
    "t5": (t5, ["lm_head"]),
    "bart": (bart, ["lm_head"]),
    "whisper": (whisper, []),
    "llama": (llama, ["lm_head"]),
}


def build(name: str) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    model, inputs = MODELS[name][0]()
    with torch.no_grad():  # the published starts are so small that little depends on anything
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    return model, inputs


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
    assert [s.name for s in report.skipped] == MODELS[name][1]
    assert report.lossless
    assert "from_pretrained would drop the added parameters: save with quadric.save" in str(report)
    after = run(model, inputs)
    assert len(after) == len(before) >= 3
    for got, expected in zip(after, before, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    converted = dict(model.named_parameters())
    for key, parameter in parameters.items():
        # No weight is copied, not even GPT-2's, which is stored transposed.
        assert converted[key].data_ptr() == parameter.data_ptr(), key
        transposed = name == "gpt2" and key.endswith("weight") and parameter.dim() == 2
        assert converted[key] is parameter or transposed, key


@pytest.mark.parametrize("name", sorted(MODELS))
def test_gradients_reach_every_eigenvalue(name: str) -> None:
    model, inputs = build(name)
    quadric.convert_(model, rank=4)
    model.train()(**inputs).logits.logsumexp(-1).sum().backward()
    layers = quadratic_layers(model)
    assert layers
    for layer_name, layer in layers.items():
        gradient = layer.eigenvalues.grad
        assert gradient is not None, layer_name
        assert gradient.isfinite().all(), layer_name
        dead = (gradient == 0).float().mean()
        assert dead < (0.5 if name == "t5" else 1e-9), layer_name  # T5 has ReLU


@pytest.mark.parametrize("name", sorted(MODELS))
def test_saving_and_loading(name: str, tmp_path: Path) -> None:
    model, inputs = build(name)
    quadric.convert_(model, rank=4)
    curve_(model).eval()
    expected = model(**inputs).logits
    quadric.save(model, tmp_path / "model.safetensors")
    plain, _ = build(name)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.1)
    quadric.load_(plain, tmp_path / "model.safetensors")
    torch.testing.assert_close(plain.eval()(**inputs).logits, expected)
    twin = copy.deepcopy(plain)
    twin.load_state_dict(model.state_dict())
    torch.testing.assert_close(twin(**inputs).logits, expected)
    # The adapter brings the squares to the weights that the plain model has.
    quadric.save(model, tmp_path / "adapter.safetensors", only="quadratic")
    onto, _ = build(name)
    assert (onto.eval()(**inputs).logits - expected).abs().max() > 1e-3
    quadric.load_(onto, tmp_path / "adapter.safetensors")
    torch.testing.assert_close(onto(**inputs).logits, expected)


def test_a_checkpoint_of_gpt2_loads_transposed() -> None:
    trained, inputs = build("gpt2")
    model, _ = build("gpt2")
    quadric.convert_(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    model.load_state_dict(trained.state_dict())
    torch.testing.assert_close(model.eval()(**inputs).logits, trained.eval()(**inputs).logits)
    assert not any(layer.eigenvalues.any() for layer in quadratic_layers(model).values())


def test_gpt2_reverts_to_its_own_layers() -> None:
    model, inputs = build("gpt2")
    expected = run(model, inputs)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    random = torch.get_rng_state()
    quadric.convert_(model)
    quadric.revert_(model)
    assert torch.equal(torch.get_rng_state(), random)
    assert type(model.transformer.h[0].mlp.c_fc).__name__ == "Conv1D"
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key
    for got, value in zip(run(model, inputs), expected, strict=True):
        torch.testing.assert_close(got, value)


def test_frozen_transposed_weights_stay_frozen() -> None:
    model, _ = build("gpt2")
    model.transformer.h[0].mlp.c_fc.weight.requires_grad_(False)
    for change in (quadric.convert_, quadric.revert_):
        change(model)
        mlp = model.transformer.h[0].mlp
        assert (mlp.c_fc.weight.requires_grad, mlp.c_proj.weight.requires_grad) == (False, True)


def test_tied_embeddings_stay_tied_with_a_converted_head() -> None:
    model, inputs = build("gpt2")
    before = run(model, inputs)
    quadric.convert_(model, head=True)
    assert model.lm_head.neuron == "eigen"
    assert model.lm_head.weight is model.transformer.wte.weight
    for got, expected in zip(run(model, inputs), before, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    model.tie_weights()
    assert model.lm_head.weight is model.transformer.wte.weight


def test_headless_models_have_no_head_to_spare() -> None:
    model = transformers.LlamaModel(llama()[0].config)
    report = quadric.convert_(model, example_inputs={"input_ids": tokens()})
    assert not report.skipped
    assert report.macs_after is not None
    assert report.macs_after > report.macs_before
    bare = transformers.BertModel(bert()[0].config)
    assert not quadric.convert_(bare, example_inputs={"input_ids": tokens()}).skipped


def test_generation_still_works() -> None:
    model, _ = build("llama")
    model.eval()
    ids = tokens(3)
    arguments = {"max_new_tokens": 4, "do_sample": False}
    before = model.generate(ids, **arguments)
    quadric.convert_(model)
    assert torch.equal(model.generate(ids, **arguments), before)


def test_from_pretrained_drops_the_eigenvalues_and_load_does_not(tmp_path: Path) -> None:
    model, inputs = build("vit")
    quadric.convert_(model)
    curve_(model).eval()
    expected = model(**inputs).logits
    model.save_pretrained(tmp_path / "pretrained")
    quadric.save(model, tmp_path / "model.safetensors")
    loaded = transformers.ViTForImageClassification.from_pretrained(tmp_path / "pretrained")
    assert not quadratic_layers(loaded)
    assert (loaded.eval()(**inputs).logits - expected).abs().max() > 1e-3
    quadric.load_(loaded, tmp_path / "model.safetensors")
    torch.testing.assert_close(loaded(**inputs).logits, expected)


def test_compile_and_export() -> None:
    model, inputs = build("vit")
    model.eval()
    quadric.convert_(model)
    curve_(model)
    with torch.no_grad():
        expected = model(**inputs).logits
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(**inputs).logits, expected, rtol=1e-4, atol=1e-5)
        exported = torch.export.export(model, (), inputs)
        result = exported.module()(**inputs).logits
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["Bert", "ViT"])
def test_growth_of_full_size_models(name: str) -> None:
    config = getattr(transformers, f"{name}Config")()
    with torch.device("meta"):
        model = getattr(transformers, f"{name}Model")(config)
    report = quadric.convert_(model)
    assert report.params_before > 85_000_000
    assert 0 < report.params_after / report.params_before - 1 < 0.005
    assert len(report.converted) > 70


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
