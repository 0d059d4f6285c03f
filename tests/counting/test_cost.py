"""What `quadric.cost` counts, that it changes nothing, and what it says when it cannot."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quadric
from quadric import cost, models


def macs(model: nn.Module, *args: Any, **kwargs: Any) -> int:
    return cost(model, *args, **kwargs).macs


class Function(nn.Module):
    """A forward pass without parameters."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Tensor:
        return self.function(*args)


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


# ------------------------------------------------------------------------------------------------
# MACs, against formulas written here
# ------------------------------------------------------------------------------------------------

WEIGHT, FORM = torch.randn(6, 4), torch.randn(3, 4, 5)
ENCODER = 4 * 7 * 64 + 2 * 49 * 8 + 2 * 7 * 8 * 16  # a layer of width 8 and 16, 7 tokens


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape == k.shape)


@pytest.mark.parametrize(
    ("model", "shapes", "expected"),
    [
        (nn.Linear(5, 7), [(5,)], 35),
        (nn.Linear(5, 7), [(3, 4, 5)], 12 * 35),
        (nn.Conv1d(4, 6, 3, groups=2), [(2, 4, 10)], 2 * 8 * 6 * 2 * 3),
        (nn.Conv2d(3, 8, 3, padding=1, bias=False), [(1, 3, 6, 5)], 30 * 8 * 27),
        (nn.Conv2d(8, 8, 3, groups=8, stride=2), [(1, 8, 9, 9)], 16 * 8 * 9),
        (nn.Conv3d(2, 4, 2, dilation=2), [(1, 2, 5, 5, 5)], 27 * 4 * 2 * 8),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), [(1, 4, 5, 5)], 25 * 4 * 3 * 9),
        (nn.LSTM(3, 4), [(5, 2, 3)], 5 * 2 * 4 * 4 * (3 + 4)),
        (nn.GRU(3, 4, num_layers=2), [(5, 2, 3)], 5 * 2 * 3 * 4 * (3 + 4 + 4 + 4)),
        (nn.BatchNorm2d(3), [(1, 3, 4, 4)], 0),
        (nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), [(1, 4)], 32),  # refused in training
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)), [(2, 4)], 2 * 20),
        (nn.DataParallel(nn.Linear(4, 3)), [(2, 4)], 24),
        # Products of raw tensors, which counters that look for layers miss.
        (Function(lambda x: x @ WEIGHT.to(x.device).T), [(2, 4)], 2 * 6 * 4),
        (Function(lambda x: torch.einsum("bi,oi->bo", x, WEIGHT.to(x.device))), [(2, 4)], 48),
        (Function(lambda x: WEIGHT.to(x.device) @ x[0]), [(2, 4)], 6 * 4),
        (Function(lambda x: x[0] @ x[1]), [(2, 4)], 4),
        (
            Function(lambda x: F.bilinear(x, x.new_zeros(len(x), 5), FORM.to(x.device))),
            [(2, 4)],
            2 * 3 * (4 * 5 + 4),
        ),
        (Function(lambda x: x * x), [(2, 4)], 0),
        (Function(attend), [(2, 3, 7, 4), (2, 3, 7, 4), (2, 3, 7, 6)], 2 * 3 * 7 * 7 * (4 + 6)),
        (Function(attend), [(2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)], 2 * 3 * 5 * 7 * (4 + 6)),
        (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval(),
            [(1, 7, 8)],
            2 * ENCODER,
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_macs(model: nn.Module, shapes: list[tuple[int, ...]], expected: int) -> None:
    report = cost(model, *map(torch.zeros, shapes))
    assert report.macs == expected
    assert report.params == sum(p.numel() for p in model.parameters())
    assert report.quadratic_macs == 0
    assert report.device == "meta"


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


def test_a_padded_transformer_is_counted_without_its_fused_path() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    padded = torch.zeros(1, 7, dtype=torch.bool)
    assert macs(model, torch.zeros(1, 7, 8), src_key_padding_mask=padded) == 2 * ENCODER
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("neuron", ["eigen", "fan", "shared"])
def test_quadratic_attention(neuron: str) -> None:
    layer = quadric.QuadraticMultiheadAttention(20, 4, batch_first=True, neuron=neuron)
    x = torch.zeros(1, 5, 20)
    projection = macs(quadric.make_layer(nn.Linear, 20, 20, neuron=neuron), x)
    by_name = {row.name: row for row in cost(layer, x, x, x).by_layer()}
    assert by_name["q_proj"].macs == projection
    assert by_name[""].macs == 2 * 5 * 5 * 20  # the products between the projections
    assert sum(row.macs for row in by_name.values()) == 4 * projection + 2 * 5 * 5 * 20


# ------------------------------------------------------------------------------------------------
# Whole networks
# ------------------------------------------------------------------------------------------------

X32 = torch.zeros(1, 3, 32, 32)


@pytest.mark.parametrize(
    ("name", "neuron", "params", "millions"),
    [
        ("resnet20", "linear", 269_722, 40.55),
        ("resnet32", "linear", 464_154, 68.86),
        ("resnet44", "linear", 658_586, 97.17),
        ("resnet110", "linear", 1_727_962, 252.89),
        ("resnet20", "eigen", 270_330, 40.88),
        ("resnet32", "eigen", 465_158, 69.39),
        ("resnet44", "eigen", 659_986, 97.91),
        ("resnet56", "eigen", 854_814, 126.42),
        ("resnet110", "eigen", 1_731_540, 254.73),
        ("resnet18", "linear", 11_689_512, 1814.07),
    ],
)
def test_networks(name: str, neuron: str, params: int, millions: float) -> None:
    size = 224 if name == "resnet18" else 32
    with torch.device("meta"):
        model = models.create(name, neuron=neuron, rank=9 if neuron == "eigen" else None)
        report = cost(model, torch.zeros(1, 3, size, size))
    assert report.params == params
    assert round(report.macs / 1e6, 2) == millions


def test_no_memory_is_needed() -> None:
    """300 million parameters: 1.2 GB if anything were allocated. And weights are never copied."""
    from torch.profiler import ProfilerActivity, profile

    with torch.device("meta"):
        large = nn.Sequential(*[nn.Linear(5000, 5000) for _ in range(12)])
    assert macs(large, torch.zeros(4, 5000)) == 4 * 12 * 5000**2
    model = nn.Sequential(nn.Linear(500, 500), quadric.QuadraticLinear(500, 500))
    x = torch.zeros(2, 500)
    cost(model, x)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        cost(model, x)
    events = measured.profiler.kineto_results.events()  # type: ignore[union-attr]
    largest = max((e.nbytes() for e in events if e.name() == "[memory]"), default=0)
    assert largest < 500 * 500


@pytest.mark.filterwarnings("ignore")
def test_huggingface_models() -> None:
    transformers = pytest.importorskip("transformers")
    ids = torch.zeros(1, 6, dtype=torch.int64)
    config = transformers.GPT2Config(n_layer=1, n_embd=12, n_head=2, vocab_size=30)
    gpt = transformers.GPT2LMHeadModel(config)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    bert = transformers.BertModel(
        transformers.BertConfig(hidden_size=12, vocab_size=30, **sizes),
    )
    block = 6 * 12 * (36 + 12 + 48 + 48) + 2 * 6 * 6 * 12
    report = cost(gpt, input_ids=ids)
    assert report.macs == block + 6 * 12 * 30  # the tied head multiplies, the embedding not
    assert report.params == sum(p.numel() for p in gpt.parameters())
    layer = 6 * 12 * (4 * 12 + 2 * 24) + 2 * 6 * 6 * 12
    encoding = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    assert macs(bert, **encoding) == macs(bert, encoding) == layer + 12 * 12


@pytest.mark.filterwarnings("ignore")
def test_fvcore_agrees_on_plain_networks() -> None:
    """An independent counter, where it can count: it takes one MAC for one operation."""
    fvcore = pytest.importorskip("fvcore.nn")
    model = models.create("resnet20").eval()
    theirs = fvcore.FlopCountAnalysis(model, X32).unsupported_ops_warnings(False).by_operator()
    assert theirs["conv"] + theirs["linear"] == cost(model, X32).macs


# ------------------------------------------------------------------------------------------------
# Who is charged with what, and what is not counted
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
        self.curved = quadric.QuadraticLinear(4, 4, rank=3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.curved(self.curved(self.head(self.again(self.first(x)))))
        return y @ y.T


def test_shared_parameters_count_once_and_calls_add_up() -> None:
    model = Tied()
    report = cost(model, torch.zeros(2, 4))
    rows = {row.name: (row.params, row.macs, row.calls) for row in report.by_layer()}
    assert rows == {
        "": (0, 2 * 2 * 4, 1),
        "first": (20, 2 * 2 * 16, 2),
        "head": (0, 2 * 16, 1),
        "unused": (15, 0, 0),
        "curved": (23, 2 * 2 * (16 + 6), 2),
    }
    assert report.quadratic_macs == 2 * 2 * 6
    assert report.params == sum(p.numel() for p in model.parameters())
    assert [row.output_shape for row in report.by_layer()[::3]] == [(2, 2), None]


def test_a_closed_form_counts_its_layer_and_what_is_beside_it_is_counted_too() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.eye(6))

        def forward(self, weight: Tensor) -> Tensor:
            return weight @ self.turn

    layer = quadric.QuadraticLinear(6, 10, rank=9)
    report = cost(nn.Sequential(layer, nn.ReLU()), torch.zeros(3, 6))
    assert report.macs == 3 * (60 + 18)
    assert [row.name for row in report.by_layer()] == ["0"]
    assert {entry.operator for entry in report.uncounted} == {"relu"}
    nn.utils.parametrize.register_parametrization(layer, "weight", Turned())
    report = cost(layer, torch.zeros(3, 6))
    assert report.macs == 3 * (60 + 18) + 10 * 36
    assert report.params == 60 + 10 + 9 + 36


def test_normalized_eigenvalues_are_listed() -> None:
    report = cost(quadric.QuadraticLinear(6, 10, rank=9, normalize=True), torch.zeros(3, 6))
    assert report.macs == 3 * (60 + 18)
    listed = [(e.operator, e.reason, e.elements) for e in report.uncounted]
    assert listed == [("normalize", "elementwise", 60)]


def test_uncounted_operators_are_listed_with_their_place() -> None:
    odd = Function(lambda x: torch.fft.fft(x).real * torch.linalg.inv(x[:, :4]))
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU(), odd)
    report = cost(model, torch.zeros(4, 4))
    listed = {e.operator: (e.reason, e.elements, e.layers) for e in report.uncounted}
    assert listed == {
        "native_batch_norm": ("normalization", 16, ["1"]),
        "gelu": ("activation", 16, ["2"]),
        "fft_r2c": ("no formula", 16, ["3"]),
        "linalg_inv_ex": ("no formula", 16, ["3"]),
        "mul": ("elementwise", 16, ["3"]),
    }
    assert "not counted: linalg_inv_ex (no formula), 1 calls in 3" in str(report)


# ------------------------------------------------------------------------------------------------
# The model is left as it was
# ------------------------------------------------------------------------------------------------


class Keeper(nn.Module):
    """A module that keeps what it computes, in every way that modules do, and may fail."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.norm.train()
        self.register_buffer("count", torch.zeros(()))
        self.scale = torch.ones(4)
        self.cache: dict[str, Tensor] = {}
        self.history: list[Tensor] = []
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "real" and bool(x.sum() > 1e9):
            return x
        x.add_(1)
        self.count += 1
        self.mask = torch.ones(len(x), device=x.device)
        self.cache["x"] = x
        self.history.append(x)
        self.scale.mul_(2)
        y = F.relu(F.dropout(self.norm(self.linear(x) * self.scale), training=True), True)
        if self.how == "fails":
            raise RuntimeError("at the end")
        return y


@pytest.mark.parametrize("how", ["meta", "real", "fails"])
def test_the_model_is_left_as_it_was(how: str) -> None:
    model = Keeper(how).train()
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
    if how == "fails":
        with pytest.raises(ValueError, match=r"Keeper itself refused .* at the end"):
            cost(model, x)
    else:
        assert cost(model, x).device == ("cpu" if how == "real" else "meta")
        assert seen == ["hook"]
    assert torch.equal(x, kept)
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert id(tensor) == identities[name], name
        assert torch.equal(tensor, before[name]), name
    assert {name: set(vars(m)) for name, m in model.named_modules()} == attributes
    assert {name: len(m._forward_hooks) for name, m in model.named_modules()} == hooks
    assert model.cache == {}
    assert model.history == []
    assert torch.equal(model.scale, torch.ones(4))
    assert [m.training for m in (model, model.norm, model.linear)] == [True, True, False]
    assert not model.linear.weight.requires_grad
    assert torch.is_grad_enabled()
    assert torch.backends.mha.get_fastpath_enabled()
    if how != "fails":
        model(x).sum().backward()
        assert model.linear.bias.grad is not None


def test_an_rnn_runs_after_it_was_counted() -> None:
    """Its flat weights are in a list of its own."""
    model = nn.LSTM(3, 4)
    cost(model, torch.zeros(5, 2, 3))
    assert not model(torch.zeros(5, 2, 3))[0].is_meta


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


def test_a_constant_on_the_cpu_meets_meta() -> None:
    def forward(x: Tensor) -> Tensor:
        places = torch.arange(x.shape[0], dtype=torch.float32)  # on the CPU, whatever x is
        return (x + places[:, None]) @ torch.ones(4, 2)

    report = cost(Function(forward), torch.zeros(3, 4))
    assert (report.macs, report.device) == (3 * 4 * 2, "meta")


def test_every_kind_of_the_same_model_costs_the_same() -> None:
    model = nn.Sequential(nn.Linear(4, 4), quadric.QuadraticLinear(4, 10))
    x = torch.zeros(2, 4)
    expected = 2 * (16 + 40 + 18)
    assert macs(model, x) == macs(model, x.to("meta")) == expected
    assert macs(copy.deepcopy(model).bfloat16(), x.bfloat16()) == expected
    assert macs(copy.deepcopy(model).to("meta"), x) == expected
    with torch.inference_mode():
        assert macs(model, x) == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert macs(model, x) == expected
    assert macs(torch.compile(model, backend="eager"), x) == expected  # type: ignore[arg-type]
    model.compile(backend="eager")
    assert macs(model, x) == expected


# ------------------------------------------------------------------------------------------------
# Refusals
# ------------------------------------------------------------------------------------------------

X = torch.zeros(2, 4)
NESTED = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.ReLU(), nn.Linear(6, 3)))
REFUSED = r"layer 'conv1' \(.*Conv2d\) refused an input of shape \(1, 4, 32, 32\)"


def refused_by(neuron: str) -> Callable[[], object]:
    return lambda: cost(models.create("resnet8", neuron), torch.zeros(1, 4, 32, 32))


def scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Sequential(nn.Linear(3, 4)))


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        *((refused_by(neuron), ValueError, REFUSED) for neuron in ("linear", "eigen", "fan")),
        (lambda: cost(NESTED, X), ValueError, r"layer '1\.1' \(Linear\) refused.*\(2, 5\)"),
        (
            lambda: cost(Function(lambda x: x @ x), X),
            ValueError,
            r"Function itself refused an input of shape \(2, 4\)",
        ),
        (lambda: cost(nn.Linear(4, 3), X, X, X), ValueError, r"TypeError: .* takes 2 positional"),
        (
            lambda: cost(ReadsValues(nn.Linear(4, 4)).to("meta"), X),
            ValueError,
            "must not be on the meta device",
        ),
        (
            lambda: cost(nn.LazyLinear(3), X),
            ValueError,
            "got 'weight' without a shape: run one forward pass",
        ),
        (
            lambda: cost(nn.Linear(3, 4), (1, 3)),
            TypeError,
            r"must hold a tensor, got \(1, 3\).*torch\.zeros",
        ),
        (lambda: cost(nn.Linear(3, 4)), TypeError, "must hold a tensor, got nothing"),
        (lambda: cost(F.relu, X), TypeError, r"must be a torch\.nn\.Module, got function"),
        (lambda: cost(scripted(), X), TypeError, "a scripted module cannot be counted"),
    ],
)
def test_refusals(call: Callable[[], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_warnings_that_are_errors_stay_warnings() -> None:
    def warn(x: Tensor) -> Tensor:
        warnings.warn("careful", UserWarning, stacklevel=1)
        return x

    with pytest.raises(UserWarning, match="careful"):
        cost(Function(warn), torch.zeros(1))
