"""What `quadric.cost` counts, that it changes nothing, and what it says when it cannot."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quadric
from quadric import cost, models


def macs(model: nn.Module, *args: Any, **kwargs: Any) -> int:
    return cost(model, *args, **kwargs).macs


# ------------------------------------------------------------------------------------------------
# Plain layers and operators, against formulas written here
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (nn.Linear(5, 7), (5,), 35),
        (nn.Linear(5, 7), (3, 4, 5), 12 * 35),
        (nn.Conv1d(4, 6, 3, groups=2), (2, 4, 10), 2 * 8 * 6 * 2 * 3),
        (nn.Conv2d(3, 8, 3, padding=1, bias=False), (1, 3, 6, 5), 30 * 8 * 27),
        (nn.Conv2d(8, 8, 3, groups=8, stride=2), (1, 8, 9, 9), 16 * 8 * 9),
        (nn.Conv3d(2, 4, 2, dilation=2), (1, 2, 5, 5, 5), 27 * 4 * 2 * 8),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (1, 4, 5, 5), 25 * 4 * 3 * 9),
        (nn.LSTM(3, 4), (5, 2, 3), 5 * 2 * 4 * 4 * (3 + 4)),
        (nn.GRU(3, 4, num_layers=2), (5, 2, 3), 5 * 2 * 3 * 4 * (3 + 4 + 4 + 4)),
        (nn.BatchNorm2d(3), (1, 3, 4, 4), 0),
    ],
)
def test_plain_layers(layer: nn.Module, shape: tuple[int, ...], expected: int) -> None:
    report = cost(layer, torch.zeros(shape))
    assert report.macs == expected
    assert report.params == sum(p.numel() for p in layer.parameters())
    assert report.quadratic_macs == 0
    assert report.device == "meta"


class Products(nn.Module):
    """Products of raw parameters, which counters that look for layers miss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))
        self.form = nn.Parameter(torch.randn(3, 4, 5))

    def forward(self, x: Tensor, how: str) -> Tensor:
        if how == "matmul":
            return x @ self.weight.T
        if how == "einsum":
            return torch.einsum("bi,oi->bo", x, self.weight)
        if how == "vector":
            return self.weight @ x[0]
        if how == "dot":
            return x[0] @ x[1]
        if how == "bilinear":
            return F.bilinear(x, x.new_zeros(len(x), 5), self.form)
        return x * x


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("matmul", 2 * 6 * 4),
        ("einsum", 2 * 6 * 4),
        ("vector", 6 * 4),
        ("dot", 4),
        ("bilinear", 2 * 3 * (4 * 5 + 4)),
        ("elementwise", 0),
    ],
)
def test_products_of_raw_parameters(how: str, expected: int) -> None:
    assert macs(Products(), torch.zeros(2, 4), how) == expected


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape == k.shape)


@pytest.mark.parametrize("length", [7, 5])
def test_attention_products(length: int) -> None:
    q, k, v = torch.zeros(2, 3, length, 4), torch.zeros(2, 3, 7, 4), torch.zeros(2, 3, 7, 6)
    assert macs(Attention(), q, k, v) == 2 * 3 * length * 7 * (4 + 6)


class ReadsValues(nn.Module):
    """A forward pass that the meta device cannot run."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        if x.sum() > 1e9:
            return x
        return self.inner(self.norm(x) if x.dim() == 2 else x, *others)


@pytest.mark.parametrize("wrap", [False, True], ids=["meta", "real"])
@pytest.mark.parametrize("training", [True, False])
def test_multihead_attention(training: bool, wrap: bool) -> None:
    length, width = 7, 8
    layer: nn.Module = nn.MultiheadAttention(width, 2, batch_first=True).train(training)
    x = torch.zeros(3, length, width)
    projections, products = 4 * length * width * width, 2 * length * length * width
    report = cost(ReadsValues(layer) if wrap else layer, x, x, x)
    assert report.macs == 3 * (projections + products)
    assert report.device == ("cpu" if wrap else "meta")


def test_transformer_encoder() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    one = 4 * 7 * 64 + 2 * 49 * 8 + 2 * 7 * 8 * 16
    assert macs(model, torch.zeros(1, 7, 8)) == 2 * one
    padded = torch.zeros(1, 7, dtype=torch.bool)
    assert macs(model, torch.zeros(1, 7, 8), src_key_padding_mask=padded) == 2 * one
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("neuron", ["eigen", "fan", "shared"])
def test_quadratic_attention(neuron: str) -> None:
    layer = quadric.QuadraticMultiheadAttention(20, 4, batch_first=True, neuron=neuron)
    x = torch.zeros(1, 5, 20)
    projection = macs(quadric.make_layer(nn.Linear, 20, 20, neuron=neuron), x)
    report = cost(layer, x, x, x)
    assert report.macs == 4 * projection + 2 * 5 * 5 * 20
    by_name = {row.name: row for row in report.by_layer()}
    assert by_name["q_proj"].macs == projection
    assert by_name[""].macs == 2 * 5 * 5 * 20  # the products between the projections


# ------------------------------------------------------------------------------------------------
# Whole networks
# ------------------------------------------------------------------------------------------------

X32 = torch.zeros(1, 3, 32, 32)


@pytest.mark.parametrize(
    ("depth", "params", "millions"),
    [(20, 269_722, 40.55), (32, 464_154, 68.86), (44, 658_586, 97.17), (110, 1_727_962, 252.89)],
)
def test_linear_resnets(depth: int, params: int, millions: float) -> None:
    with torch.device("meta"):
        report = cost(models.create(f"resnet{depth}"), X32)
    assert report.params == params
    assert round(report.macs / 1e6, 2) == millions


@pytest.mark.parametrize(
    ("depth", "params", "millions"),
    [
        (20, 270_330, 40.88),
        (32, 465_158, 69.39),
        (44, 659_986, 97.91),
        (56, 854_814, 126.42),
        (110, 1_731_540, 254.73),
    ],
)
def test_eigen_resnets(depth: int, params: int, millions: float) -> None:
    with torch.device("meta"):
        report = cost(models.create(f"resnet{depth}", neuron="eigen", rank=9), X32)
    assert report.params == params
    assert round(report.macs / 1e6, 2) == millions


def test_widened_eigen_against_fan() -> None:
    """Fig. 5: at least 24.4 percent fewer parameters and 24.1 percent fewer MACs than fan."""
    with torch.device("meta"):
        wide = models.create("resnet20", neuron="eigen", channels=(24, 48, 96))
        fan = models.create("resnet20", neuron="fan")
    saved = cost(wide, X32).compare(cost(fan, X32))
    assert 1 - saved["params_ratio"] >= 0.244
    assert 1 - saved["macs_ratio"] >= 0.241


def test_squares_are_counted_on_top_of_linear() -> None:
    model = models.create("resnet8", neuron="shared", rank=8)
    linear, shared = cost(models.create("resnet8"), X32), cost(model, X32)
    # Groups of 8 outputs: 64 + 8 more a position, for each of C / 8 groups: 9 more an output.
    outputs = sum(
        row.output_shape[1] * row.output_shape[2] * row.output_shape[3]
        for row in shared.by_layer()
        if row.neuron and row.output_shape
    )
    assert shared.macs - linear.macs == 9 * outputs
    assert shared.quadratic_macs == 9 * outputs
    assert shared.quadratic_share == 9 * outputs / shared.macs


@pytest.mark.parametrize(
    ("layer", "linear", "quadratic"),
    [
        # Groups of 5 outputs. eigen of rank 3: a neuron of 4 channels and a linear one, 3 squares.
        # shared of rank 4: 4 * 4 + 1 eigenvalues and 5 squares. 9 positions.
        (quadric.QuadraticConv2d(4, 10, 3, groups=2, rank=3), 9 * 10 * 18, 9 * 2 * 2 * 3),
        (
            quadric.make_layer(nn.Conv2d(4, 10, 3, groups=2), neuron="shared", rank=4),
            9 * 10 * 18,
            9 * 2 * (17 + 5),
        ),
        # Transposed: 25 input pixels meet each tap once, 11 x 11 output pixels are squared.
        (
            quadric.QuadraticConvTranspose2d(4, 10, 3, stride=2, groups=2, rank=3),
            25 * 10 * 18,
            121 * 2 * 2 * 3,
        ),
    ],
)
def test_squares_in_convolution_groups(layer: nn.Module, linear: int, quadratic: int) -> None:
    report = cost(layer, torch.zeros(1, 4, 5, 5))
    assert (report.macs, report.quadratic_macs) == (linear + quadratic, quadratic)


def test_a_layer_that_is_called_twice_costs_twice() -> None:
    layer = quadric.QuadraticLinear(8, 8, rank=3)
    once, twice = (
        cost(layer, torch.zeros(1, 8)),
        cost(nn.Sequential(layer, layer), torch.zeros(1, 8)),
    )
    assert (twice.macs, twice.quadratic_macs) == (2 * once.macs, 2 * once.quadratic_macs)
    assert (twice.params, twice.by_layer()[0].calls) == (once.params, 2)


def test_resnet18_and_its_widths() -> None:
    with torch.device("meta"):
        report = cost(models.create("resnet18"), torch.zeros(1, 3, 224, 224))
    assert report.params == 11_689_512
    assert round(report.macs / 1e9, 3) == 1.814


def test_a_large_network_takes_no_memory() -> None:
    # 300 million parameters: 1.2 GB if anything were allocated.
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(5000, 5000) for _ in range(12)])
    report = cost(model, torch.zeros(4, 5000))
    assert report.params == 12 * 5000 * 5001
    assert report.macs == 4 * 12 * 5000**2


def test_weights_are_never_copied() -> None:
    from torch.profiler import ProfilerActivity, profile

    model = nn.Sequential(nn.Linear(500, 500), quadric.QuadraticLinear(500, 500))
    x = torch.zeros(2, 500)
    cost(model, x)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        cost(model, x)
    events = measured.profiler.kineto_results.events()  # type: ignore[union-attr]
    largest = max((e.nbytes() for e in events if e.name() == "[memory]"), default=0)
    assert largest < 500 * 500


def test_huggingface_models() -> None:
    transformers = pytest.importorskip("transformers")
    ids = torch.zeros(1, 6, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = transformers.GPT2Config(n_layer=1, n_embd=12, n_head=2, vocab_size=30)
        gpt = transformers.GPT2LMHeadModel(config)
        bert = transformers.BertModel(
            transformers.BertConfig(
                num_hidden_layers=1,
                hidden_size=12,
                num_attention_heads=2,
                intermediate_size=24,
                vocab_size=30,
            )
        )
        block = 6 * 12 * (36 + 12 + 48 + 48) + 2 * 6 * 6 * 12
        report = cost(gpt, input_ids=ids)
        assert report.macs == block + 6 * 12 * 30  # the tied head multiplies, the embedding not
        assert report.params == sum(p.numel() for p in gpt.parameters())
        layer = 6 * 12 * (4 * 12 + 2 * 24) + 2 * 6 * 6 * 12
        encoding = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        assert cost(bert, **encoding).macs == layer + 12 * 12
        assert cost(bert, input_ids=ids).macs == layer + 12 * 12


# ------------------------------------------------------------------------------------------------
# Who is charged with what
# ------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """One layer called twice, one weight in two modules, and a product of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = self.first
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.first.weight
        self.unused = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(self.again(self.first(x)))
        return y @ y.T


def test_shared_parameters_count_once_and_calls_add_up() -> None:
    report = cost(Tied(), torch.zeros(2, 4))
    rows = {row.name: row for row in report.by_layer()}
    assert list(rows) == ["", "first", "head", "unused"]
    assert rows["first"].params == 20
    assert rows["first"].macs == 2 * 2 * 16
    assert rows["first"].calls == 2
    assert rows["head"].params == 0
    assert rows["head"].macs == 2 * 16
    assert rows["unused"].params == 15
    assert rows["unused"].calls == 0
    assert rows["unused"].output_shape is None
    assert rows[""].macs == 2 * 2 * 4
    assert report.params == sum(p.numel() for p in Tied().parameters()) == 35
    assert report.macs == 4 * 16 + 32 + 16
    assert rows[""].output_shape == (2, 2)
    assert rows["first"].type == "Linear"


def test_products_inside_a_quadric_layer_are_not_counted_twice() -> None:
    layer = quadric.QuadraticLinear(6, 10, rank=9)
    report = cost(nn.Sequential(layer, nn.ReLU()), torch.zeros(3, 6))
    assert report.macs == 3 * (60 + 18)
    assert [row.name for row in report.by_layer()] == ["0"]
    assert {entry.operator for entry in report.uncounted} == {"relu"}


def test_a_parametrization_of_a_quadric_layer_is_counted_beside_it() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.eye(6))

        def forward(self, weight: Tensor) -> Tensor:
            return weight @ self.turn

    layer = quadric.QuadraticLinear(6, 10, rank=9)
    nn.utils.parametrize.register_parametrization(layer, "weight", Turned())
    report = cost(layer, torch.zeros(3, 6))
    assert report.macs == 3 * (60 + 18) + 10 * 36
    assert report.params == 60 + 10 + 9 + 36


def test_normalized_eigenvalues_are_listed() -> None:
    report = cost(quadric.QuadraticLinear(6, 10, rank=9, normalize=True), torch.zeros(3, 6))
    assert report.macs == 3 * (60 + 18)
    assert [(e.operator, e.reason, e.elements) for e in report.uncounted] == [
        ("normalize", "elementwise", 60)
    ]


def test_keyword_inputs_reach_quadric_layers() -> None:
    layer = quadric.make_layer(nn.Linear, 4, 5, neuron="fan")
    assert macs(layer, input=torch.zeros(3, 4)) == macs(layer, torch.zeros(3, 4))


# ------------------------------------------------------------------------------------------------
# What is not counted
# ------------------------------------------------------------------------------------------------


def test_uncounted_operators_are_listed_with_their_place() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(x).real * torch.linalg.inv(x[:, :4])

    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU(), Odd())
    entries = {entry.operator: entry for entry in cost(model, torch.zeros(4, 4)).uncounted}
    assert entries["native_batch_norm"].reason == "normalization"
    assert entries["native_batch_norm"].layers == ["1"]
    assert entries["native_batch_norm"].elements == 16
    assert entries["gelu"].reason == "activation"
    assert entries["gelu"].layers == ["2"]
    assert entries["mul"].reason == "elementwise"
    assert entries["fft_r2c"].reason == "no formula"
    assert entries["linalg_inv_ex"].reason == "no formula"
    assert entries["linalg_inv_ex"].layers == ["3"]
    text = str(cost(model, torch.zeros(4, 4)))
    assert "not counted: linalg_inv_ex (no formula), 1 calls in 3" in text


def test_moving_data_is_not_listed() -> None:
    class Mover(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.cat([x.flip(0), x.roll(1)]).repeat(2, 1)[:3].clone().t().contiguous()
            return torch.where(y > 0, y, torch.zeros_like(y)).gather(0, torch.zeros_like(y).long())

    assert cost(Mover(), torch.zeros(3, 4)).uncounted == []


# ------------------------------------------------------------------------------------------------
# The model is left as it was
# ------------------------------------------------------------------------------------------------


class Keeper(nn.Module):
    """A module that keeps what it computes, in every way that modules do."""

    def __init__(self, real: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.norm.train()
        self.register_buffer("count", torch.zeros(()))
        self.scale = torch.ones(4)
        self.cache: dict[str, Tensor] = {}
        self.history: list[Tensor] = []
        self.real = real

    def forward(self, x: Tensor) -> Tensor:
        if self.real and bool(x.sum() > 1e9):
            return x
        x.add_(1)
        self.count += 1
        self.mask = torch.ones(len(x), device=x.device)
        self.cache["x"] = x
        self.history.append(x)
        self.scale.mul_(2)
        return F.relu(F.dropout(self.norm(self.linear(x) * self.scale), training=True), True)


@pytest.mark.parametrize("real", [False, True], ids=["meta", "real"])
def test_the_model_is_left_as_it_was(real: bool) -> None:
    model = Keeper(real).train()
    model.linear.eval()
    model.linear.weight.requires_grad_(False)
    seen: list[str] = []
    model.linear.register_forward_hook(lambda *_: seen.append("hook"))
    before = copy.deepcopy(model.state_dict())
    identities = {name: id(t) for name, t in model.state_dict(keep_vars=True).items()}
    attributes = {name: set(vars(m)) for name, m in model.named_modules()}
    hooks = {name: len(m._forward_hooks) for name, m in model.named_modules()}
    x = torch.randn(3, 4)
    kept, state = x.clone(), torch.get_rng_state()
    report = cost(model, x)
    assert report.device == ("cpu" if real else "meta")
    assert seen == ["hook"]
    torch.testing.assert_close(x, kept, rtol=0, atol=0)
    torch.testing.assert_close(torch.get_rng_state(), state, rtol=0, atol=0)
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert id(tensor) == identities[name], name
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
    assert {name: set(vars(m)) for name, m in model.named_modules()} == attributes
    assert {name: len(m._forward_hooks) for name, m in model.named_modules()} == hooks
    assert model.cache == {}
    assert model.history == []
    torch.testing.assert_close(model.scale, torch.ones(4), rtol=0, atol=0)
    assert model.training
    assert model.norm.training
    assert not model.linear.training
    assert not model.linear.weight.requires_grad
    assert model.linear.weight.device.type == "cpu"
    assert torch.is_grad_enabled()
    model(x).sum().backward()
    assert model.linear.bias.grad is not None


def test_a_failing_pass_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(5, 4)).train()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="'2'"):
        cost(model, torch.randn(3, 4))
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_batch_norm_with_one_sample() -> None:
    """Counted in eval mode: in training this input would be refused."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).train()
    assert macs(model, torch.zeros(1, 4)) == 32


def test_lazy_and_old_style_hooks_and_rnn_weights() -> None:
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))
    assert macs(normed, torch.zeros(2, 4)) == 2 * 20
    model = nn.LSTM(3, 4)
    assert macs(model, torch.zeros(5, 2, 3)) == 5 * 2 * 16 * 7
    out, _ = model(torch.zeros(5, 2, 3))
    assert not out.is_meta
    with pytest.raises(ValueError, match=r"got 'weight' without a shape: run one forward pass"):
        cost(nn.LazyLinear(3), torch.zeros(2, 4))


# ------------------------------------------------------------------------------------------------
# Where it runs
# ------------------------------------------------------------------------------------------------


def test_a_pass_that_reads_values_runs_for_real_and_says_so() -> None:
    report = cost(ReadsValues(quadric.QuadraticLinear(4, 10)), torch.zeros(2, 4))
    assert report.macs == 2 * (40 + 18)
    assert report.device == "cpu"
    assert "ran for real on cpu" in report.note
    assert report.note in str(report)
    assert report.note in report.to_markdown()


def test_a_pass_that_reads_values_on_meta_is_refused() -> None:
    with torch.device("meta"):
        model = ReadsValues(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="must not be on the meta device"):
        cost(model, torch.zeros(2, 4))


@pytest.mark.parametrize("real", [False, True], ids=["meta", "real"])
def test_one_tensor_given_twice_stays_one(real: bool) -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
            if real and bool(x.sum() > 1e9):
                return x
            assert x is y
            assert x is not z
            return x @ y.T

    x = torch.zeros(2, 4)
    assert macs(Asks(), x, x, x.clone()) == 2 * 2 * 4


def test_models_and_inputs_on_meta() -> None:
    model = nn.Sequential(nn.Linear(4, 4), quadric.QuadraticLinear(4, 10))
    expected = macs(model, torch.zeros(2, 4))
    assert macs(model, torch.zeros(2, 4, device="meta")) == expected
    assert macs(model.to("meta"), torch.zeros(2, 4)) == expected


def test_constants_of_the_forward_pass_meet_meta() -> None:
    class Positions(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            places = torch.arange(x.shape[0], dtype=torch.float32)  # on the CPU, whatever x is
            return (x + places[:, None]) @ torch.ones(4, 2)

    report = cost(Positions(), torch.zeros(3, 4))
    assert report.macs == 3 * 4 * 2
    assert report.device == "meta"


def test_half_precision_inference_mode_and_compiled_models() -> None:
    model = nn.Sequential(nn.Linear(4, 4), quadric.QuadraticLinear(4, 10))
    expected = macs(model, torch.zeros(2, 4))
    with torch.inference_mode():
        assert macs(model, torch.zeros(2, 4)) == expected
    assert macs(copy.deepcopy(model).bfloat16(), torch.zeros(2, 4, dtype=torch.bfloat16)) == (
        expected
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert macs(model, torch.zeros(2, 4)) == expected
    compiled = torch.compile(model, backend="eager")
    assert macs(compiled, torch.zeros(2, 4)) == expected  # type: ignore[arg-type]
    model.compile(backend="eager")
    assert macs(model, torch.zeros(2, 4)) == expected
    assert macs(nn.DataParallel(nn.Linear(4, 3)), torch.zeros(2, 4)) == 24


# ------------------------------------------------------------------------------------------------
# Inputs that do not fit
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neuron", ["linear", "eigen", "fan"])
def test_the_layer_that_refuses_an_input_is_named(neuron: str) -> None:
    model = models.create("resnet8", neuron=neuron)
    match = r"layer 'conv1' \(.*Conv2d\) refused an input of shape \(1, 4, 32, 32\)"
    with pytest.raises(ValueError, match=match):
        cost(model, torch.zeros(1, 4, 32, 32))


def test_a_later_layer_that_refuses_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.ReLU(), nn.Linear(6, 3)))
    with pytest.raises(ValueError, match=r"layer '1\.1' \(Linear\) refused.*\(2, 5\)"):
        cost(model, torch.zeros(2, 4))


def test_a_model_whose_own_forward_fails_is_named() -> None:
    with pytest.raises(ValueError, match="Products itself refused an input of shape"):
        cost(Products(), torch.zeros(2, 5), "matmul")
    with pytest.raises(ValueError, match="missing 1 required positional argument: 'how'"):
        cost(Products(), torch.zeros(2, 4))


@pytest.mark.parametrize(
    ("model", "args", "match"),
    [
        (nn.Linear(3, 4), ((1, 3),), r"must hold a tensor, got \(1, 3\).*torch\.zeros"),
        (nn.Linear(3, 4), (), "must hold a tensor, got nothing"),
        (F.relu, (torch.zeros(1),), r"must be a torch\.nn\.Module, got function"),
    ],
)
def test_wrong_arguments(model: Any, args: tuple[Any, ...], match: str) -> None:
    with pytest.raises(TypeError, match=match):
        cost(model, *args)


def test_scripted_modules_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 4)))
    with pytest.raises(TypeError, match="a scripted module cannot be counted"):
        cost(scripted, torch.zeros(1, 3))


def test_warnings_that_are_errors_stay_warnings() -> None:
    class Warns(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            warnings.warn("careful", UserWarning, stacklevel=1)
            return x

    with pytest.raises(UserWarning, match="careful"):
        cost(Warns(), torch.zeros(1))


# ------------------------------------------------------------------------------------------------
# Cross-check
# ------------------------------------------------------------------------------------------------


def test_fvcore_agrees_on_plain_networks() -> None:
    """An independent counter, where it can count: it takes one MAC for one operation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fvcore = pytest.importorskip("fvcore.nn")
        model = models.create("resnet20").eval()
        analysis = fvcore.FlopCountAnalysis(model, X32).unsupported_ops_warnings(False)
        theirs = analysis.by_operator()
    assert theirs["conv"] + theirs["linear"] == cost(model, X32).macs


@pytest.mark.parametrize("neuron", quadric.neurons())
def test_the_products_of_every_neuron_are_counted(neuron: str) -> None:
    layer = quadric.make_layer(nn.Linear, 4, 10, neuron=neuron)
    macs = quadric.neurons()[neuron].with_options().num_macs(4, 10, positions=3, inputs=12)
    assert quadric.cost(layer, torch.zeros(3, 4)).macs == macs
    assert macs > 3 * 4 * 10 or neuron == "linear"
