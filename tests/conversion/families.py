"""Twenty families of networks, small ones: of ours, of torch, of transformers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from quadric import models
from tests.networks import ReadsWeights, UNet, transformer

Family = tuple[nn.Module, Any]
"""A network, and its example inputs: a tensor, a tuple or a mapping."""

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
LLAMA = {
    "hidden_size": 20,
    "intermediate_size": 30,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def tokens(length: int = 6) -> Tensor:
    return torch.randint(3, 50, (2, length))


def _masked() -> dict[str, Tensor]:
    return {"input_ids": tokens(), "attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2])}


def _pictures(size: int, channels: int = 3) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, channels, size, size)}


# Of transformers: the model's class, the arguments of its configuration, its inputs.
HUGGING_FACE: dict[str, tuple[str, dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "BERT": ("BertForSequenceClassification", {**IDS, **BERT, "num_labels": 3}, _masked),
    "DistilBERT": (
        "DistilBertForSequenceClassification",
        {
            **IDS,
            **{"dim": 20, "n_layers": 2, "n_heads": 2, "hidden_dim": 30, "num_labels": 3},
            **{"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0},
        },
        _masked,
    ),
    "ALBERT": (
        "AlbertForSequenceClassification",
        {**IDS, **BERT, "embedding_size": 10, "classifier_dropout_prob": 0.0, "num_labels": 3},
        _masked,
    ),
    "ViT": (
        "ViTForImageClassification",
        {**BERT, "image_size": 8, "patch_size": 4, "num_channels": 1},
        lambda: _pictures(8, 1),
    ),
    "Swin": (
        "SwinForImageClassification",
        {
            **{"image_size": 16, "patch_size": 2, "embed_dim": 12, "depths": [2, 1]},
            **{"num_heads": [2, 2], "window_size": 2, "drop_path_rate": 0.0, **NO_DROPOUT},
        },
        lambda: _pictures(16),
    ),
    "ConvNeXt": (
        "ConvNextForImageClassification",
        {"hidden_sizes": [12, 16, 20, 24], "depths": [1, 1, 1, 1], "drop_path_rate": 0.0},
        lambda: _pictures(64),
    ),
    "SegFormer": (
        "SegformerForSemanticSegmentation",
        {
            **{"hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16},
            **{"num_attention_heads": [1, 2, 2, 2], "drop_path_rate": 0.0},
            **{"classifier_dropout_prob": 0.0, **NO_DROPOUT},
        },
        lambda: _pictures(32),
    ),
    "CLIP": (
        "CLIPModel",
        {
            "text_config": {**IDS, **BERT, "max_position_embeddings": 8},
            "vision_config": {**BERT, "image_size": 8, "patch_size": 4},
            "projection_dim": 12,
        },
        lambda: {**_masked(), **_pictures(8)},
    ),
    "GPT-2": (
        "GPT2LMHeadModel",
        {
            **{**IDS, "n_embd": 20, "n_layer": 2, "n_head": 2, "n_positions": 16},
            **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False},
        },
        lambda: {"input_ids": tokens()},
    ),
    "Llama": (
        "LlamaForCausalLM",
        {**IDS, **LLAMA, "use_cache": False},
        lambda: {"input_ids": tokens()},
    ),
    "Qwen2": (
        "Qwen2ForCausalLM",
        {**IDS, **LLAMA, "use_cache": False, "tie_word_embeddings": True},
        lambda: {"input_ids": tokens()},
    ),
    "T5": (
        "T5ForConditionalGeneration",
        {
            **{**IDS, "d_model": 20, "d_kv": 10, "d_ff": 30, "num_layers": 1, "num_heads": 2},
            **{"dropout_rate": 0.0, "decoder_start_token_id": 0, "use_cache": False},
        },
        lambda: {"input_ids": tokens(), "decoder_input_ids": tokens(4)},
    ),
    "BART": (
        "BartForConditionalGeneration",
        {
            **{**IDS, **ENCODER_DECODER, "max_position_embeddings": 16},
            **{"forced_eos_token_id": None, "use_cache": False},
        },
        lambda: {**_masked(), "decoder_input_ids": tokens(4)},
    ),
    "Whisper": (
        "WhisperForConditionalGeneration",
        {
            **{**IDS, **ENCODER_DECODER, "num_mel_bins": 8, "use_cache": False},
            **{"max_source_positions": 10, "max_target_positions": 10},
            **{"suppress_tokens": None, "begin_suppress_tokens": None},
        },
        lambda: {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": tokens(4)},
    ),
}


def hugging_face(name: str) -> Family:
    """A model of transformers from its configuration. Its numbers are large enough to matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers
    transformers.logging.set_verbosity_error()
    kind, options, make_inputs = HUGGING_FACE[name]
    build = getattr(transformers, kind)
    model = build(build.config_class(**options))
    with torch.no_grad():  # the published starts are so small that little depends on anything
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    return model, make_inputs()


FAMILIES: dict[str, Callable[[], Family]] = {
    "MLP": lambda: (models.build("mlp"), torch.randn(5, 8)),
    "ResNet for CIFAR": lambda: (models.build("resnet8"), torch.randn(2, 3, 32, 32)),
    "ResNet for ImageNet": lambda: (
        models.build("resnet18", width=0.25),
        torch.randn(2, 3, 64, 64),
    ),
    "U-Net": lambda: (UNet(), torch.randn(2, 1, 8, 8)),
    "nn.Transformer": lambda: (transformer(), (torch.randn(2, 6, 20), torch.randn(2, 5, 20))),
    "nn.TransformerEncoder": lambda: (ReadsWeights(), torch.randn(2, 5, 6)),
    **{name: functools.partial(hugging_face, name) for name in HUGGING_FACE},
}


def build(name: str) -> Family:
    """The network of a family, always the same one, with its inputs."""
    torch.manual_seed(0)
    return FAMILIES[name]()


def call(model: nn.Module, inputs: Any) -> Any:
    """Calls a network with inputs as a family has them."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)
