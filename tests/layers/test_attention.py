"""QuadraticMultiheadAttention against nn.MultiheadAttention, and inside torch's Transformer."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from quadric.layers import QuadraticLayer, QuadraticLinear, QuadraticMultiheadAttention, neurons
from tests.layers.test_memory import saved_storages

E, H, N, L, S = 12, 4, 3, 5, 7
CAN_BE_LINEAR = sorted(name for name, row in neurons().items() if row.can_be_linear)


def _pair(
    dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[nn.MultiheadAttention, QuadraticMultiheadAttention]:
    """Torch's attention with biases that are not zero, and ours from its checkpoint."""
    theirs = nn.MultiheadAttention(E, H, dtype=dtype, **options)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.normal_()
    ours = QuadraticMultiheadAttention(E, H, dtype=dtype, rank=2, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def _inputs(
    batch_first: bool = False,
    batched: bool = True,
    kdim: int = E,
    vdim: int = E,
    lengths: tuple[int, int] = (L, S),
    batch: int = N,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    made = []
    for length, width in ((lengths[0], E), (lengths[1], kdim), (lengths[1], vdim)):
        shape = (length, batch, width) if batched else (length, width)
        if batched and batch_first:
            shape = (batch, length, width)
        made.append(torch.randn(shape, dtype=dtype))
    return made


def _bend_(model: nn.Module) -> None:
    """Gives every quadratic parameter a value."""
    for layer in model.modules():
        if isinstance(layer, QuadraticLayer):
            for parameter in layer.quadratic_parameters().values():
                nn.init.normal_(parameter, std=0.5)


def _assert_same(ours: Any, theirs: Any) -> None:
    assert_close(ours[0], theirs[0], equal_nan=True)
    assert ours[0].shape == theirs[0].shape
    if theirs[1] is None:
        assert ours[1] is None
    else:
        assert_close(ours[1], theirs[1], equal_nan=True)


# Built once: (attention mask, key padding mask) by name, for a batch and without one.
def _masks(batched: bool) -> dict[str, dict[str, Tensor]]:
    pairs = N * H if batched else H
    padding_shape = (N, S) if batched else (S,)
    generator = torch.Generator().manual_seed(4)

    def random_bool(*shape: int) -> Tensor:
        mask = torch.rand(shape, generator=generator) < 0.4
        mask[..., 0] = False  # at least one key is left to look at
        return mask

    def random_float(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    causal = nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64)
    two, three = random_bool(L, S), random_bool(pairs, L, S)
    padding = random_bool(*padding_shape)
    return {
        "none": {},
        "bool2d": {"attn_mask": two},
        "bool3d": {"attn_mask": three},
        "float2d": {"attn_mask": random_float(L, S)},
        "float3d": {"attn_mask": random_float(pairs, L, S)},
        "padding": {"key_padding_mask": padding},
        "float_padding": {"key_padding_mask": random_float(*padding_shape)},
        "bool2d+padding": {"attn_mask": two, "key_padding_mask": padding},
        "bool3d+padding": {"attn_mask": three, "key_padding_mask": padding},
        "float3d+padding": {
            "attn_mask": random_float(pairs, L, S),
            "key_padding_mask": random_float(*padding_shape),
        },
        "a whole row": {"attn_mask": torch.arange(L).unsqueeze(1).expand(L, S) == 1},
        "causal": {"attn_mask": causal, "is_causal": True},
        "causal+padding": {
            "attn_mask": causal,
            "is_causal": True,
            "key_padding_mask": random_float(*padding_shape)[..., :L],
        },
    }


@pytest.mark.parametrize("masks", list(_masks(True)))
@pytest.mark.parametrize("layout", ["seq_first", "batch_first", "unbatched"])
def test_zero_eigenvalues_equal_torch_under_every_mask(masks, layout):
    batched = layout != "unbatched"
    for extra in ({}, {"add_zero_attn": True, "add_bias_kv": True}):
        theirs, ours = _pair(batch_first=layout == "batch_first", **extra)
        lengths = (L, L) if masks.startswith("causal") else (L, S)
        inputs = _inputs(layout == "batch_first", batched, lengths=lengths)
        for need_weights, average in ((True, True), (True, False), (False, True)):
            options = {
                **_masks(batched)[masks],
                "need_weights": need_weights,
                "average_attn_weights": average,
            }
            _assert_same(ours(*inputs, **options), theirs(*inputs, **options))


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("need_weights", [True, False])
def test_empty_and_single_batches(batch, need_weights):
    theirs, ours = _pair(batch_first=True)
    inputs = _inputs(True, batch=batch)
    _assert_same(
        ours(*inputs, need_weights=need_weights), theirs(*inputs, need_weights=need_weights)
    )


def test_mask_kinds_may_be_mixed_and_of_another_precision():
    _, ours = _pair(dtype=torch.float32)
    inputs = _inputs(dtype=torch.float32)
    padding = torch.zeros(N, S, dtype=torch.bool)
    padding[:, -1] = True
    as_float = torch.zeros(N, S).masked_fill(padding, float("-inf"))
    attention = torch.randn(L, S, dtype=torch.float64)
    for need_weights in (True, False):
        options = {"attn_mask": attention, "need_weights": need_weights}
        mixed = ours(*inputs, key_padding_mask=padding, **options)[0]
        same = ours(*inputs, key_padding_mask=as_float, **options)[0]
        assert_close(mixed, same)
        assert mixed.dtype is torch.float32


@pytest.mark.parametrize("appended", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}])
@pytest.mark.parametrize("masks", ["none", "bool2d", "bool3d+padding", "causal", "a whole row"])
@pytest.mark.parametrize("layout", ["seq_first", "batch_first", "unbatched"])
def test_dropout_without_weights_is_as_in_torch_under_one_seed(masks, layout, appended):
    """Values and gradients, which torch keeps free of NaN where a row sees nothing."""
    batched = layout != "unbatched"
    options = _masks(batched)[masks]
    theirs, ours = _pair(dropout=0.4, batch_first=layout == "batch_first", **appended)
    lengths = (L, L) if masks == "causal" else (L, S)
    inputs = _inputs(layout == "batch_first", batched, lengths=lengths)
    results = []
    for attention in (ours, theirs):
        given = [x.clone().requires_grad_() for x in inputs]
        torch.manual_seed(3)
        output, weights = attention(*given, need_weights=False, **options)
        assert weights is None
        results.append([output, *torch.autograd.grad(output.square().sum(), given)])
    for mine, expected in zip(*results, strict=True):
        assert torch.all(torch.isfinite(expected))
        assert_close(mine, expected)


@pytest.mark.parametrize("need_weights", [False, True])
def test_eval_drops_nothing(need_weights):
    theirs, ours = (attention.eval() for attention in _pair(dropout=0.4))
    inputs = _inputs(False)
    expected, _ = theirs(*inputs, need_weights=need_weights)
    assert_close(ours(*inputs, need_weights=need_weights)[0], expected)


def test_training_with_dropout_keeps_less_than_torch_does():
    """The projections' outputs are kept for the squares: scaled copies of them would come on top,
    and torch's attention, which has only the copies, would need two outputs less."""
    theirs = nn.MultiheadAttention(64, 4, dropout=0.1)
    ours = QuadraticMultiheadAttention.from_mha(theirs)
    x = torch.randn(8, 16, 64, requires_grad=True)
    kept = [
        sum(saved_storages(lambda m=m: m(x, x, x, need_weights=False)).values())
        for m in (ours, theirs)
    ]
    assert kept[0] <= kept[1] - x.nbytes + 64 * 4 * 4


# --- the neurons count ----------------------------------------------------------------------------


def test_both_paths_agree_with_a_written_out_reference():
    _, ours = _pair(batch_first=True)
    _bend_(ours)
    query, key, value = _inputs(True)
    q, k, v = ours.q_proj(query), ours.k_proj(key), ours.v_proj(value)
    heads = []
    for h in range(H):
        part = slice(h * E // H, (h + 1) * E // H)
        scores = q[..., part] @ k[..., part].mT / (E / H) ** 0.5
        heads.append(scores.softmax(-1) @ v[..., part])
    expected = ours.out_proj(torch.cat(heads, -1))
    assert_close(ours(query, key, value)[0], expected)
    assert_close(ours(query, key, value, need_weights=False)[0], expected)


def test_gradcheck():
    ours = QuadraticMultiheadAttention(4, 2, rank=1, dtype=torch.float64, add_bias_kv=True)
    _bend_(ours)
    names = [name for name, _ in ours.named_parameters()]
    x = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)

    def run(need_weights: bool):
        def function(x: Tensor, *parameters: Tensor) -> Tensor:
            state = dict(zip(names, parameters, strict=True))
            options = {"need_weights": need_weights}
            return torch.func.functional_call(ours, state, (x, x, x), options)[0]

        return function

    parameters = [p.detach().clone().requires_grad_() for p in ours.parameters()]
    for need_weights in (True, False):
        assert torch.autograd.gradcheck(run(need_weights), (x, *parameters))


# --- construction ---------------------------------------------------------------------------------


def test_projections_are_layers_of_the_neuron():
    ours = QuadraticMultiheadAttention(E, H, rank=3, normalize=True)
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        layer = getattr(ours, name)
        assert isinstance(layer, QuadraticLinear)
        assert layer.rank == 3
        assert layer.normalize
    assert ours.rank == 3
    assert QuadraticMultiheadAttention(E, H).rank == 9
    assert QuadraticMultiheadAttention(E, H, neuron="fan").rank is None


@pytest.mark.parametrize("neuron", sorted(neurons()))
def test_every_neuron_of_the_registry(neuron):
    ours = QuadraticMultiheadAttention(E, H, neuron=neuron, batch_first=True, dtype=torch.float64)
    assert ours.neuron == neuron
    x = _inputs(True)[0]
    output, weights = ours(x, x, x)
    assert output.shape == x.shape
    assert weights.shape == (N, L, L)
    assert_close(ours(x, x, x, need_weights=False)[0], output)
    output.square().sum().backward()
    assert all(parameter.grad is not None for parameter in ours.parameters())


@pytest.mark.parametrize("neuron", CAN_BE_LINEAR)
@pytest.mark.parametrize("options", [{}, {"kdim": 5, "add_bias_kv": True}, {"bias": False}])
def test_from_mha_is_the_same_function(neuron, options):
    theirs, _ = _pair(batch_first=True, dropout=0.0, add_zero_attn=True, **options)
    theirs.eval()
    ours = QuadraticMultiheadAttention.from_mha(theirs, neuron)
    assert not ours.training
    inputs = _inputs(True, kdim=options.get("kdim", E))
    _assert_same(ours(*inputs), theirs(*inputs))
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float64}


def test_from_mha_takes_rank_options_and_requires_grad():
    theirs, _ = _pair(add_bias_kv=True, dropout=0.25)
    theirs.in_proj_weight.requires_grad_(False)
    ours = QuadraticMultiheadAttention.from_mha(theirs, "eigen", 3, eigenvalue_init="random_sign")
    assert ours.rank == 3
    assert ours.dropout == 0.25
    assert ours.training
    assert not ours.q_proj.weight.requires_grad
    assert ours.q_proj.bias.requires_grad
    assert ours.q_proj.eigenvalues.requires_grad
    assert ours.q_proj.eigenvalues.abs().sum() > 0
    # what was not packed is shared, what was packed is not
    assert ours.out_proj.weight is theirs.out_proj.weight
    assert ours.bias_k is theirs.bias_k
    with torch.no_grad():
        theirs.in_proj_weight.zero_()
    assert ours.q_proj.weight.abs().sum() > 0
    kervolution = QuadraticMultiheadAttention.from_mha(theirs, "kervolution")
    assert kervolution.q_proj.neuron == "kervolution"


@pytest.mark.parametrize(
    "options", [{}, {"kdim": 5, "vdim": 6}, {"bias": False}, {"add_bias_kv": True}]
)
def test_to_mha_is_the_inverse(options):
    theirs, ours = _pair(batch_first=True, **options)
    _bend_(ours)
    again = ours.to_mha()
    assert type(again) is nn.MultiheadAttention
    assert again.training
    assert not ours.eval().to_mha().training
    assert list(again.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert_close(again.state_dict()[name], value)
    inputs = _inputs(True, kdim=options.get("kdim", E), vdim=options.get("vdim", E))
    _assert_same(again(*inputs), theirs(*inputs))
    with pytest.raises(ValueError, match=r"got the neuron 'kervolution', which has none"):
        QuadraticMultiheadAttention(E, H, neuron="kervolution").to_mha()


# --- state dicts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"kdim": 5, "vdim": 6}])
def test_a_torch_checkpoint_loads_inside_a_model(options):
    theirs = nn.ModuleDict({"block": nn.ModuleDict({"attention": _pair(**options)[0]})})
    ours = nn.ModuleDict(
        {"block": nn.ModuleDict({"attention": QuadraticMultiheadAttention(E, H, **options)})}
    ).double()
    _bend_(ours)
    state = theirs.state_dict()
    before = list(state)
    result = ours.load_state_dict(state)
    assert not result.missing_keys
    assert not result.unexpected_keys
    assert list(state) == before
    inputs = _inputs(kdim=options.get("kdim", E), vdim=options.get("vdim", E))
    _assert_same(
        ours["block"]["attention"](*inputs),
        theirs["block"]["attention"](*inputs),
    )


def test_a_torch_checkpoint_loads_onto_a_meta_model():
    theirs, _ = _pair(add_bias_kv=True)
    ours = QuadraticMultiheadAttention(E, H, add_bias_kv=True, rank=2, device="meta")
    ours.load_state_dict(theirs.state_dict(), assign=True)
    inputs = _inputs()
    _assert_same(ours(*inputs), theirs(*inputs))
    storage = ours.q_proj.weight.untyped_storage()
    assert storage.nbytes() == ours.q_proj.weight.nbytes
    assert storage.data_ptr() != ours.k_proj.weight.untyped_storage().data_ptr()


def test_a_partial_checkpoint_leaves_the_rest_alone():
    _, ours = _pair()
    _bend_(ours)
    before = copy.deepcopy(ours.state_dict())
    result = ours.load_state_dict({"bias_nothing": torch.ones(1)}, strict=False)
    assert result.unexpected_keys == ["bias_nothing"]
    ours.load_state_dict({"out_proj.bias": torch.ones(E)}, strict=False)
    for name, value in ours.state_dict().items():
        if name != "out_proj.bias":
            assert torch.equal(value, before[name]), name
    ours.load_state_dict({"in_proj_bias": torch.arange(3.0 * E)}, strict=False)
    assert_close(ours.k_proj.bias, torch.arange(E, 2.0 * E).double())
    assert torch.equal(ours.q_proj.eigenvalues, before["q_proj.eigenvalues"])


def test_damaged_checkpoints_are_refused():
    theirs, ours = _pair()
    state = theirs.state_dict()
    short = {**state, "in_proj_weight": state["in_proj_weight"][:-1]}
    with pytest.raises(RuntimeError, match=r"in_proj_weight: three projections .* \(35, 12\)"):
        ours.load_state_dict(short, strict=False)
    missing = {name: value for name, value in state.items() if name != "in_proj_weight"}
    with pytest.raises(RuntimeError, match=r"Missing key.*q_proj.weight"):
        ours.load_state_dict(missing)
    both = {**ours.state_dict(), "in_proj_weight": state["in_proj_weight"]}
    with pytest.raises(RuntimeError, match=r"Unexpected key.*in_proj_weight"):
        ours.load_state_dict(both)
    other = QuadraticMultiheadAttention(E, H, kdim=5).double()
    both = {**other.state_dict(), "k_proj_weight": other.k_proj.weight}
    with pytest.raises(RuntimeError, match=r"Unexpected key.*k_proj_weight"):
        other.load_state_dict(both)
    with pytest.raises(RuntimeError, match=r"size mismatch for k_proj.weight"):
        other.load_state_dict(state)


def test_copies_and_pickles():
    _, ours = _pair(add_bias_kv=True)
    _bend_(ours)
    inputs = _inputs()
    expected = ours(*inputs)
    _assert_same(copy.deepcopy(ours)(*inputs), expected)
    _assert_same(pickle.loads(pickle.dumps(ours))(*inputs), expected)


# --- inside torch's Transformer -------------------------------------------------------------------


def _encoder_layer(**options: Any) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(
        E, H, 16, dropout=0.0, batch_first=True, dtype=torch.float64, **options
    )
    return layer.eval()


_ENCODER_MASKS = {
    "none": {},
    "causal": {"src_mask": nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64)},
    "causal hint": {
        "src_mask": nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64),
        "is_causal": True,
    },
    "padding": {"src_key_padding_mask": torch.arange(L).expand(N, L) >= 3},
    "both": {
        "src_mask": torch.ones(L, L, dtype=torch.bool).triu(1),
        "src_key_padding_mask": torch.arange(L).expand(N, L) >= 3,
    },
}


@pytest.mark.parametrize("masks", list(_ENCODER_MASKS))
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("no_grad", [False, True])
def test_encoder_layer_in_eval_does_not_pass_the_neurons_by(masks, norm_first, no_grad):
    options = _ENCODER_MASKS[masks]
    layer = _encoder_layer(norm_first=norm_first)
    x = torch.randn(N, L, E, dtype=torch.float64)
    seen = slice(0, 3) if "padding" in masks or masks == "both" else slice(None)
    with torch.set_grad_enabled(not no_grad):
        plain = layer(x, **options)[:, seen]
        layer.self_attn = QuadraticMultiheadAttention.from_mha(layer.self_attn, rank=2)
        assert_close(layer(x, **options)[:, seen], plain)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            _bend_(getattr(layer.self_attn, name))
            bent = layer(x, **options)[:, seen]
            assert (bent - plain).abs().max() > 1e-3, name
            plain = bent
        # and what eval gives is what training gives without dropout
        layer.train()
        assert_close(layer(x, **options)[:, seen], plain)


@pytest.mark.parametrize("no_grad", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("mask_check", [False, True])
def test_an_encoder_built_before_takes_no_nested_path(no_grad, masked, mask_check):
    encoder = nn.TransformerEncoder(_encoder_layer(), 2, mask_check=mask_check).eval()
    assert encoder.use_nested_tensor
    x = torch.randn(N, L, E, dtype=torch.float64)
    padding = torch.arange(L) >= torch.tensor([[5], [4], [3]])
    options = {"src_key_padding_mask": padding} if masked else {}
    with torch.set_grad_enabled(not no_grad):
        with warnings.catch_warnings():
            # torch's own path makes a nested tensor, and says that these are a prototype
            warnings.simplefilter("ignore")
            plain = encoder(x, **options)[:, :3]
        for layer in encoder.layers:
            layer.self_attn = QuadraticMultiheadAttention.from_mha(layer.self_attn, rank=2)
        assert_close(encoder(x, **options)[:, :3], plain)
        _bend_(encoder)
        bent = encoder(x, **options)
        assert (bent[:, :3] - plain).abs().max() > 1e-3
        # No padding was cut away and filled with zeros again.
        assert (bent[:, 3:].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("batch_first", [False, True])
def test_decoder_layer_and_whole_transformer(batch_first):
    options = {"dropout": 0.0, "batch_first": batch_first, "dtype": torch.float64}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that norm_first excludes nested tensors
        model = nn.Transformer(E, H, 1, 1, 16, norm_first=True, **options).eval()
    x, y = _inputs(batch_first)[:2]
    causal = model.generate_square_subsequent_mask(S, dtype=torch.float64)
    with torch.no_grad():
        plain = model(x, y, tgt_mask=causal, tgt_is_causal=True)
        blocks = [
            (model.encoder.layers[0], "self_attn"),
            (model.decoder.layers[0], "self_attn"),
            (model.decoder.layers[0], "multihead_attn"),
        ]
        for block, name in blocks:
            old = getattr(block, name)
            setattr(block, name, QuadraticMultiheadAttention.from_mha(old, rank=3))
        assert_close(model(x, y, tgt_mask=causal, tgt_is_causal=True), plain)
        for block, name in blocks:
            _bend_(getattr(block, name))
            bent = model(x, y, tgt_mask=causal, tgt_is_causal=True)
            assert (bent - plain).abs().max() > 1e-4, name
            plain = bent


# --- precision, compilation, export ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision(dtype, need_weights, autocast):
    _, ours = _pair(dtype=torch.float32, add_bias_kv=True)
    _bend_(ours)
    inputs = _inputs(dtype=torch.float32)
    options = {
        "attn_mask": _masks(True)["bool2d"]["attn_mask"],
        "key_padding_mask": _masks(True)["padding"]["key_padding_mask"],
        "need_weights": need_weights,
    }
    expected, _ = ours(*inputs, **options)
    if not autocast:
        ours, inputs = ours.to(dtype), [x.to(dtype) for x in inputs]
    with torch.autocast("cpu", dtype, enabled=autocast):
        output, weights = ours(*inputs, **options)
    assert output.dtype is dtype
    assert weights is None or autocast or weights.dtype is dtype
    scale = expected.abs().max()
    assert_close(output.float() / scale, expected / scale, atol=0.05, rtol=0.05)
    output.float().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in ours.parameters())


def test_compile_inside_an_encoder_layer():
    layer = _encoder_layer()
    layer.self_attn = QuadraticMultiheadAttention.from_mha(layer.self_attn, rank=2)
    _bend_(layer)
    x = torch.randn(N, L, E, dtype=torch.float64)
    with torch.no_grad():
        compiled = torch.compile(layer, fullgraph=True, backend="eager")
        assert_close(compiled(x), layer(x))


def test_export_with_a_free_batch():
    _, ours = _pair(batch_first=True)
    _bend_(ours)
    ours.eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    inputs = tuple(_inputs(True))
    shapes = {name: {0: batch} for name in ("query", "key", "value")}
    program = torch.export.export(ours, inputs, dynamic_shapes=shapes)
    other = _inputs(True, batch=5)
    _assert_same(program.module()(*other), ours(*other))


# --- refusals -------------------------------------------------------------------------------------


def _given(*shapes: tuple[int, ...], **options: Any) -> Any:
    filled = [torch.zeros(shape) for shape in shapes or [(L, N, E), (S, N, E), (S, N, E)]]
    return lambda: QuadraticMultiheadAttention(E, H)(*filled, **options)


def _nested() -> Any:
    x = torch.nested.nested_tensor([torch.zeros(3, E), torch.zeros(5, E)], layout=torch.jagged)
    return QuadraticMultiheadAttention(E, H, batch_first=True)(x, x, x)


Attention = QuadraticMultiheadAttention


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Attention(12, 5), ValueError, r"num_heads, got embed_dim=12 and num_heads=5: ch"),
        (lambda: Attention(0, 1), ValueError, r"embed_dim must be >= 1, got 0"),
        (lambda: Attention(12, 2.0), TypeError, r"num_heads must be an integer >= 1, got 2.0"),
        (lambda: Attention(12, 4, 1.5), ValueError, r"dropout must be a probability, .* got 1.5"),
        (lambda: Attention(12, 4, kdim=-1), ValueError, r"kdim must be >= 1, got -1"),
        (_given((L, N, 11), (S, N, E), (S, N, E)), ValueError, r"= 12, got .*\(5, 3, 11\)"),
        (_given((L, N, E), (S, N, 5), (S, N, E)), ValueError, r"= 12, got .*\(7, 3, 5\)"),
        (
            _given((L, N, E), (S, N, E), (6, N, E)),
            ValueError,
            r"same length .*7, 3, 12\) and \(6",
        ),
        (_given((L, N, E), (S, 2, E), (S, 2, E)), ValueError, r"same batch .*batch_first=False"),
        (_given((L, E), (S, N, E), (S, N, E)), ValueError, r"all be 3-D, or all 2-D .* add or"),
        (_given(*[(1, L, N, E)] * 3), ValueError, r"all be 3-D, or all 2-D"),
        (
            _given(attn_mask=torch.zeros(S, L)),
            ValueError,
            r"\(12, 5, 7\), got \(7, 5\)",
        ),
        (_given(attn_mask=torch.zeros(N, L, S)), ValueError, r"attn_mask must .* got \(3, 5, 7\)"),
        (_given(key_padding_mask=torch.zeros(S, N)), ValueError, r"\(3, 7\), got \(7, 3\)"),
        (
            _given(attn_mask=torch.zeros(L, S).long()),
            TypeError,
            r"boolean or floating, got",
        ),
        (
            _given(is_causal=True),
            ValueError,
            r"is_causal is a hint about .*got None",
        ),
        (_nested, ValueError, "got a nested tensor: pad it"),
    ],
)
def test_refuses(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_starts_as_torch_does():
    """Torch draws the packed projections as one matrix, separate ones each by itself."""
    for kdim, fan in ((64, 4 * 64), (32, 64 + 32)):
        ours = QuadraticMultiheadAttention(64, 4, add_bias_kv=True, kdim=kdim)
        theirs = nn.MultiheadAttention(64, 4, add_bias_kv=True, kdim=kdim)
        packed = theirs.in_proj_weight if kdim == 64 else theirs.k_proj_weight
        for start in range(2):
            for weight in (ours.k_proj.weight, packed):
                assert 0.95 * (6 / fan) ** 0.5 < weight.abs().max() <= (6 / fan) ** 0.5
            assert ours.out_proj.weight.abs().max() <= 1 / 64**0.5
            assert not ours.out_proj.bias.any()
            assert not ours.q_proj.bias.any()
            assert not ours.q_proj.eigenvalues.any()
            assert ours.bias_k.std().item() == pytest.approx(theirs.bias_k.std().item(), rel=0.5)
            if start == 0:
                _bend_(ours)
                ours.reset_parameters()


def test_from_mha_refuses_what_it_cannot_take():
    with pytest.raises(TypeError, match=r"takes a torch.nn.MultiheadAttention, got Linear"):
        QuadraticMultiheadAttention.from_mha(nn.Linear(2, 2))

    class Own(nn.MultiheadAttention):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    with pytest.raises(TypeError, match=r"got Own with its own forward"):
        QuadraticMultiheadAttention.from_mha(Own(E, H))
    theirs = nn.MultiheadAttention(E, H)
    nn.utils.parametrizations.orthogonal(theirs, "in_proj_weight")
    with pytest.raises((TypeError, ValueError), match="plain parameters, got computed ones"):
        QuadraticMultiheadAttention.from_mha(theirs)


def test_torch_cannot_fuse_what_is_not_packed():
    attention = QuadraticMultiheadAttention(E, H)
    # A canary: torch's encoders read these names, and what they hold turns the fused paths off.
    theirs = nn.MultiheadAttention(E, H)
    for name in ("in_proj_weight", "in_proj_bias", "_qkv_same_embed_dim"):
        assert hasattr(theirs, name), f"torch's attention has no {name} any more"
    layer = _encoder_layer()
    layer.self_attn = QuadraticMultiheadAttention(E, H, batch_first=True, dtype=torch.float64)
    with pytest.warns(UserWarning, match="_qkv_same_embed_dim was not True"):
        assert not nn.TransformerEncoder(layer, 1).use_nested_tensor
    with pytest.raises(TypeError, match="a packed in_proj_weight is needed here"):
        torch.add(attention.in_proj_weight, 1)
    assert repr(attention.in_proj_weight) == "<no packed weight>"


def test_repr_names_what_is_not_default():
    assert QuadraticMultiheadAttention(E, H).extra_repr() == (
        "embed_dim=12, num_heads=4, neuron='eigen'"
    )
    full = QuadraticMultiheadAttention(E, H, 0.5, True, True, True, 5, 6, True, neuron="shared")
    assert full.extra_repr() == (
        "embed_dim=12, num_heads=4, neuron='shared', dropout=0.5, kdim=5, vdim=6, "
        "batch_first=True, add_bias_kv=True, add_zero_attn=True"
    )
