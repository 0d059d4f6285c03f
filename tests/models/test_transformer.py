from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from quadric import convert_, models
from quadric.errors import InputError
from quadric.layers import QuadraticLayer
from quadric.models.transformer import ATTENTION, FEEDFORWARD, PADDING, Transformer

SMALL = {"vocabulary": 19, "depth": 2, "model_width": 12, "feedforward_width": 10, "heads": 3}


def small(**options: object) -> Transformer:
    torch.manual_seed(3)
    return Transformer(**{**SMALL, **options}).double().eval()  # type: ignore[arg-type]


def sentences() -> tuple[Tensor, Tensor]:
    source = torch.tensor([[5, 7, 9, 4, 2], [8, 6, 2, PADDING, PADDING]])
    target = torch.tensor([[1, 11, 12, 13], [1, 14, PADDING, PADDING]])
    return source, target


def copy_attention_(theirs: nn.MultiheadAttention, ours: nn.Module) -> None:
    parts = [ours.query, ours.key, ours.value]
    theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
    theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.load_state_dict(ours.out.state_dict())


def torch_transformer(ours: Transformer, norm_first: bool, activation: str) -> nn.Transformer:
    theirs = nn.Transformer(
        12, 3, 2, 2, 10, dropout=0.0, activation=activation, norm_first=norm_first,
        batch_first=True, dtype=torch.float64,
    ).eval()  # fmt: skip
    with torch.no_grad():
        for stack, layers in ((theirs.encoder, ours.encoder), (theirs.decoder, ours.decoder)):
            for one, other in zip(stack.layers, layers, strict=True):
                copy_attention_(one.self_attn, other.attention)
                if stack is theirs.decoder:
                    copy_attention_(one.multihead_attn, other.cross_attention)
                one.linear1.load_state_dict(other.feedforward.inner.state_dict())
                one.linear2.load_state_dict(other.feedforward.outer.state_dict())
                for i, residual in enumerate(other.residuals, start=1):
                    getattr(one, f"norm{i}").load_state_dict(residual.norm.state_dict())
        theirs.encoder.norm.load_state_dict(ours.encoder_norm.state_dict())
        theirs.decoder.norm.load_state_dict(ours.decoder_norm.state_dict())
    return theirs


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize(
    ("norm_first", "activation"), [(False, "relu"), (True, "relu"), (True, "gelu")]
)
def test_torchs_own_transformer_with_the_same_weights(norm_first: bool, activation: str) -> None:
    ours = small(norm_first=norm_first, activation=activation)
    for parameter in ours.parameters():  # biases and norms too, which start at 0 and 1
        nn.init.normal_(parameter, std=0.3)
    theirs = torch_transformer(ours, norm_first, activation)
    source, target = sentences()

    def embed(tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], dtype=torch.float64)
        waves = torch.zeros(tokens.shape[1], 12, dtype=torch.float64)
        for i in range(6):  # the formula of Vaswani et al., 3.5
            waves[:, 2 * i] = (positions / 10_000 ** (2 * i / 12)).sin()
            waves[:, 2 * i + 1] = (positions / 10_000 ** (2 * i / 12)).cos()
        return ours.embedding(tokens) * 12**0.5 + waves

    later = torch.ones(4, 4, dtype=torch.bool).triu(1)
    padding = source == PADDING
    masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
    expected = theirs(embed(source), embed(target), tgt_mask=later, **masks)
    expected = expected @ ours.embedding.weight.T
    found = ours(source, target)
    torch.testing.assert_close(found, expected)


def test_steps_give_the_logits_of_the_whole_sentence() -> None:
    network = small(attention_width=6)
    convert_(network, include=ATTENTION, rank=2)
    for module in network.modules():
        if isinstance(module, QuadraticLayer):
            nn.init.normal_(module.eigenvalues)
    source, target = sentences()
    other = target.flip(0)  # a second beam of each sentence
    memory, past = network.encode(source), network.empty_past(4)
    steps = []
    for i in range(4):
        logits, past = network.step(torch.stack([target[:, i], other[:, i]], 1), past, memory)
        steps.append(logits)
    found = torch.stack(steps, 2)
    torch.testing.assert_close(found[:, 0], network(source, target))
    torch.testing.assert_close(found[:, 1], network(source, other))


def test_padding_changes_nothing() -> None:
    network = small()
    source, target = sentences()
    alone = network(source[1:, :3], target[1:, :2])
    torch.testing.assert_close(network(source, target)[1:, :2], alone)


def test_dropout_is_on_sublayers_and_embeddings() -> None:
    network = small(dropout=0.5).train()
    source, target = sentences()
    assert not torch.equal(network(source, target), network(source, target))
    assert sum(isinstance(m, nn.Dropout) for m in network.modules()) == 1 + 2 * 2 + 2 * 3


def parameters(network: nn.Module) -> tuple[int, int]:
    """All parameters, and those without the embedding."""
    count = sum(p.numel() for p in network.parameters())
    return count, count - network.embedding.weight.numel()


def test_the_presets_have_the_papers_sizes() -> None:
    with torch.device("meta"):
        linear = models.create("transformer")
        quadratic = models.create("transformer_shrunk", neuron="eigen")
        control = models.create("transformer_shrunk")
        inside = models.create("transformer_shrunk", neuron="eigen", include=FEEDFORWARD)
    weights = [p.numel() for n, p in linear.named_parameters() if p.dim() == 2 and "emb" not in n]
    assert sum(weights) == 15_728_640  # 15.7M, as in Table II
    assert parameters(linear) == (34_717_696, 15_773_696)
    assert parameters(quadratic) == (31_511_656, 12_567_656)
    assert round(100 * (1 - 12_567_656 / 15_773_696), 1) == 20.3
    assert parameters(control)[1] == 12_551_096
    assert parameters(inside)[1] == 12_556_556
    assert sum(isinstance(m, QuadraticLayer) for m in quadratic.modules()) == 36
    assert sum(isinstance(m, QuadraticLayer) for m in inside.modules()) == 12
    with torch.device("meta"):
        everywhere = models.create("transformer", neuron="shared", include=".*")
    assert not any(isinstance(m, nn.Linear) for m in everywhere.modules())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"heads": 5}, "attention_width must be a multiple of heads, got 12 for 5"),
        ({"model_width": 9}, "model_width must be even, got 9"),
        ({"dropout": 1.0}, r"dropout must be in 0 \.\.\. 1, got 1.0"),
        ({"depth": 0}, "depth must be >= 1, got 0"),
    ],
)
def test_widths_that_do_not_fit(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        small(**options)


def test_gated_feedforward_layers_and_activations_that_do_not_exist() -> None:
    layer = models.create(
        "transformer_tiny", "glu", include=["inner"], activation=None, vocabulary=9
    ).encoder[0].feedforward  # fmt: skip
    x, inner = torch.randn(5, 128), layer.inner
    gate = F.silu(F.linear(x, inner.weight2, inner.bias2))
    swiglu = layer.outer(gate * F.linear(x, inner.weight, inner.bias))
    torch.testing.assert_close(layer(x), swiglu)
    with pytest.raises(InputError, match="activation must be None or one of"):
        small(activation="swish")


def test_positions_are_right_in_bfloat16() -> None:
    tokens, positions = torch.zeros(1, 600, dtype=torch.int64), torch.arange(600)
    network = small()  # the token of padding has an embedding of zeros: what is left are waves
    exact = network._embed(tokens, positions)
    half = network.bfloat16()._embed(tokens, positions)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), exact, rtol=0, atol=2**-8)


class Operators(TorchDispatchMode):
    """Writes down the names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.add(operator.name())
        return operator(*args, **(kwargs or {}))


def test_attention_in_bfloat16_trains_without_torchs_slow_kernel() -> None:
    network, pair = small(), sentences()
    exact = network(*pair)
    with torch.autocast("cpu", torch.bfloat16), Operators() as seen:
        half = network.float()(*pair)
        half.float().logsumexp(-1).sum().backward()
    assert not [name for name in seen.names if "flash_attention" in name]
    torch.testing.assert_close(half.double(), exact, rtol=0, atol=0.05)
