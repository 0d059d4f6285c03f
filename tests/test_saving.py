"""save and load_: files that load into the plain model, and errors that change nothing."""

from __future__ import annotations

import copy
import json
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import quadric
from quadric.errors import FileError
from quadric.layers import QuadraticLinear, QuadraticMultiheadAttention, make_layer
from quadric.support.tensor_files import write_tensors
from tests.networks import NETWORKS, assert_untouched, curve_, quadratic_layers, snapshot


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 2))


def curved(build: Callable[[], nn.Module] = small, **options: Any) -> nn.Module:
    model = build()
    quadric.convert_(model, **options)
    return curve_(model, 0.02).eval()


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return file.metadata()


# --- round trips ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(NETWORKS))
@pytest.mark.parametrize("neuron", ["eigen", "shared"])
def test_a_file_loads_into_the_plain_model(name: str, neuron: str, tmp_path: Path) -> None:
    build, make_inputs = NETWORKS[name]
    model, inputs = curved(build, neuron=neuron, rank=4), make_inputs()
    expected = model(*inputs)
    quadric.save(model, tmp_path / "model.safetensors")
    plain = build()
    converted = quadric.load_(plain, tmp_path / "model.safetensors")
    layers = json.loads(metadata(tmp_path / "model.safetensors")["quadric"])["layers"]
    assert converted == list(layers)
    assert list(quadratic_layers(plain)) == list(quadratic_layers(model))
    torch.testing.assert_close(plain.eval()(*inputs), expected)
    # A second time the layers are there already.
    again = copy.deepcopy(model)
    curve_(again)
    assert quadric.load_(again, tmp_path / "model.safetensors") == []
    torch.testing.assert_close(again(*inputs), expected)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_an_adapter_brings_the_squares_to_other_weights(name: str, tmp_path: Path) -> None:
    build, make_inputs = NETWORKS[name]
    inputs = make_inputs()
    torch.manual_seed(5)
    model = curved(build, rank=4)
    quadric.save(model, tmp_path / "adapter.safetensors", only="quadratic")
    torch.manual_seed(5)
    plain = build().eval()
    weights = {key: value.clone() for key, value in plain.state_dict().items()}
    assert (plain(*inputs) - model(*inputs)).abs().max() > 1e-4
    quadric.load_(plain, tmp_path / "adapter.safetensors")
    torch.testing.assert_close(plain(*inputs), model(*inputs))
    for key, value in plain.state_dict().items():
        if key in weights:
            assert torch.equal(value, weights[key]), key
    with safe_open(tmp_path / "adapter.safetensors", framework="pt") as file:
        assert all(key.endswith(".eigenvalues") for key in file.keys())


@pytest.mark.parametrize("neuron", sorted(set(quadric.neurons()) - {"linear"}))
def test_every_neuron(neuron: str, tmp_path: Path) -> None:
    model, x = curved(neuron=neuron), torch.randn(3, 4)
    quadric.save(model, tmp_path / "model.safetensors")
    plain, random = small(), torch.get_rng_state()
    quadric.load_(plain, tmp_path / "model.safetensors")
    assert torch.equal(torch.get_rng_state(), random)
    torch.testing.assert_close(plain.eval()(x), model(x))
    adapter = tmp_path / "adapter.safetensors"
    if not quadric.neurons()[neuron].can_be_linear:
        with pytest.raises(ValueError, match=f"an adapter needs .*{neuron}.*save the whole model"):
            quadric.save(model, adapter, only="quadratic")
        assert not adapter.exists()
        return
    quadric.save(model, adapter, only="quadratic")
    base = small()
    base.load_state_dict({k: v for k, v in model.state_dict().items() if k in base.state_dict()})
    quadric.load_(base, adapter)
    torch.testing.assert_close(base.eval()(x), model(x))
    assert set(quadratic_layers(base)) == {"0"}


def test_options_are_recorded_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model = small()
    model.append(nn.Linear(2, 6)).append(nn.Linear(6, 2))
    start = {"init": "published", "eigenvalue_init": "random_sign"}
    quadric.convert_(model, rank=3, include=["0"], normalize=True, **start)
    quadric.convert_(model, neuron="kervolution", p=2, c=0.5, include=["3"])
    start["eigenvalue_init"] = nn.init.ones_  # a function has no place in a file
    quadric.convert_(model, rank=2, include=["4"], **start)
    quadric.save(model, path)
    header = json.loads(metadata(path)["quadric"])
    assert header["version"] == quadric.__version__
    assert header["neuron"] is None
    assert header["layers"] == {
        "0": {
            "neuron": "eigen",
            "rank": 3,
            "options": {"eigenvalue_init": "random_sign", "normalize": True},
        },
        "3": {"neuron": "kervolution", "rank": None, "options": {"p": 2, "c": 0.5}},
        "4": {"neuron": "eigen", "rank": 2},
    }
    plain = small()
    plain.append(nn.Linear(2, 6)).append(nn.Linear(6, 2))
    quadric.load_(plain, path)
    assert plain[0].normalize
    assert plain[3].rule.p == 2
    x = torch.randn(3, 4)
    torch.testing.assert_close(plain.eval()(x), model.eval()(x))


def test_a_file_of_attention_fits_our_own_attention_too(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"

    class Net(nn.Module):
        def __init__(self, attention: nn.Module) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x)[0]

    x = torch.randn(3, 2, 20)
    model = curved(lambda: Net(nn.MultiheadAttention(20, 4)), rank=4)
    quadric.save(model, path)
    assert metadata(path)["format"] == "pt"
    header = json.loads(metadata(path)["quadric"])
    assert (header["neuron"], header["rank"], header["content"]) == ("eigen", 4, "model")
    assert header["layers"] == {"attention": {"neuron": "eigen", "rank": 4, "attention": True}}
    own = Net(QuadraticMultiheadAttention(20, 4, neuron="linear")).eval()
    quadric.load_(own, path)
    torch.testing.assert_close(own(x), model(x))
    ready = Net(QuadraticMultiheadAttention(20, 4, rank=4)).eval()
    assert quadric.load_(ready, path) == []
    torch.testing.assert_close(ready(x), model(x))


def test_layers_built_by_hand_count_as_well(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"

    def build() -> nn.Module:
        return nn.Sequential(
            QuadraticLinear(4, 20, rank=4), nn.ReLU(), nn.Linear(20, 20), nn.Tanh()
        )

    model = curved(build, rank=3)
    quadric.save(model, path)
    other = build()
    assert quadric.load_(other, path) == ["2"]
    x = torch.randn(3, 4)
    torch.testing.assert_close(other(x), model(x))
    layer = curve_(nn.Sequential(QuadraticLinear(3, 4, rank=3)))[0]
    quadric.save(layer, path)
    single = QuadraticLinear(3, 4, rank=3)
    assert quadric.load_(single, path) == []
    assert torch.equal(single.eigenvalues, layer.eigenvalues)


def test_shared_tensors_are_written_once(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model = curved(NETWORKS["shared"][0], rank=3)
    quadric.save(model, path)
    stored = safetensors.torch.load_file(path)
    aliases = json.loads(metadata(path)["quadric"])["aliases"]
    assert aliases["b.weight"] == "a.weight"
    assert aliases["decode.weight"] == "embed.weight"
    assert "b.weight" not in stored
    names = {name for name in model.state_dict() if not name.endswith("eigenvalue_scale")}
    assert set(stored) | set(aliases) == names


def test_strided_tensors_and_parts_of_a_storage(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model = small()
    whole = torch.randn(8, 40)
    model[0].weight = nn.Parameter(whole[:4, ::2].T)
    model[3].weight = nn.Parameter(whole[4].view(2, 20))
    model[3].bias = nn.Parameter(whole[4, 19:21])  # overlaps the weight
    quadric.convert_(model)
    assert not model[0].weight.is_contiguous()
    state = model.state_dict().items()
    expected = {key: value.clone() for key, value in state if not key.endswith("_scale")}
    quadric.save(model, path)
    assert path.stat().st_size < 4 * (sum(v.numel() for v in expected.values()) + 1000)
    stored = safetensors.torch.load_file(path)
    for key, value in expected.items():
        assert torch.equal(stored[key], value), key
    assert not model[0].weight.is_contiguous()  # the model's own stays as it is
    other = small()
    quadric.load_(other, path)
    assert torch.equal(other[0].weight, expected["0.weight"])


def test_dtype_and_frozen_weights_of_the_model_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    quadric.save(curved(), path)
    model = small().bfloat16()
    model[0].requires_grad_(False)
    weight = model[0].weight
    quadric.load_(model, path)
    assert model[0].weight is weight
    assert not weight.requires_grad
    assert model[0].eigenvalues.dtype == torch.bfloat16
    stored = safetensors.torch.load_file(path)
    assert torch.equal(model[0].weight, stored["0.weight"].bfloat16())
    assert model[1].num_batches_tracked.dtype == torch.int64


def test_wrapped_models_are_saved_and_loaded_as_what_is_inside(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model = curved()
    compiled = torch.compile(nn.DataParallel(model), backend="eager")
    quadric.save(compiled, path)
    other = small()
    quadric.load_(other, path)
    curve_(other)
    quadric.load_(torch.compile(other, backend="eager"), path)
    assert torch.equal(other[0].eigenvalues, model[0].eigenvalues)


def test_ddp_is_filled_but_not_converted(tmp_path: Path) -> None:
    path, again = tmp_path / "model.safetensors", tmp_path / "again.safetensors"
    model = curved()
    quadric.save(model, path)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        plain = nn.parallel.DistributedDataParallel(small())
        for change in (lambda: quadric.load_(plain, path), lambda: quadric.convert_(plain)):
            with pytest.raises(ValueError, match="must not be wrapped for distributed training y"):
                change()
        ready = nn.parallel.DistributedDataParallel(curved())
        quadric.load_(ready, path)
        quadric.save(ready, again)
    finally:
        torch.distributed.destroy_process_group()
    loaded = small()
    quadric.load_(loaded, again)
    assert torch.equal(loaded[0].eigenvalues, model[0].eigenvalues)


# --- writing --------------------------------------------------------------------------------------


def test_a_file_is_replaced_only_when_the_new_one_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    quadric.save(curved(), path)
    before = path.read_bytes()
    broken = curved()
    broken[0].eigenvalues = nn.Parameter(torch.empty(18, device="meta"))
    with pytest.raises(ValueError, match=r"got '0.eigenvalues' on the meta device"):
        quadric.save(broken, path)

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device", target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        quadric.save(curved(), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_others_may_read_what_the_user_lets_them(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        quadric.save(curved(), tmp_path / "model.safetensors")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == 0o644


class WithExtraState(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"step": 3}

    def set_extra_state(self, state: Any) -> None:
        pass


def sparse() -> nn.Module:
    model = nn.Module()
    model.register_buffer("graph", torch.eye(3).to_sparse())
    return model


def parametrized() -> nn.Module:
    model = curved()
    parametrizations.weight_norm(model[0])
    return model


def odd_option() -> nn.Module:
    return nn.Sequential(make_layer(nn.Linear(3, 4), neuron="kervolution", c=torch.tensor(2.0)))


@pytest.mark.parametrize(
    ("build", "options", "error", "match"),
    [
        (list, {}, TypeError, r"model must be a torch.nn.Module, got list"),
        (curved, {"only": "linear"}, ValueError, r"only must be None or 'quadratic', got 'linear'"),
        (small, {"only": "quadratic"}, ValueError, r"got Sequential without any: convert the mod"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), {}, ValueError, r"got '0.weight' without a sha"),
        (lambda: WithExtraState(2, 2), {}, ValueError, r"got '_extra_state' of type dict"),
        (sparse, {}, ValueError, r"got 'graph' as a Tensor with layout torch.sparse_coo"),
        (parametrized, {}, ValueError, r"got a parametrization in '0': remove it"),
        (odd_option, {}, ValueError, r"must be plain values to be saved, got c=.*layer '0'"),
    ],
)
def test_what_cannot_be_saved(
    build: Any, options: dict[str, Any], error: type[Exception], match: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=match):
        quadric.save(build(), tmp_path / "model.safetensors", **options)
    assert not list(tmp_path.iterdir())


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="nowhere"):
        quadric.save(small(), tmp_path / "nowhere" / "model.safetensors")
    with pytest.raises(FileNotFoundError, match=r"nothing\.safetensors"):
        quadric.load_(small(), tmp_path / "nothing.safetensors")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ValueError, match="safetensors file, got a folder, a pipe or a device"):
            quadric.load_(small(), path)


# --- bad files ------------------------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], None]) -> None:
    """Writes a file of ours again with another header or other tensors."""
    header = json.loads(metadata(path)["quadric"])
    tensors = {key: value.clone() for key, value in safetensors.torch.load_file(path).items()}
    change(header, tensors)
    write_tensors(path, tensors, {"format": "pt", "quadric": json.dumps(header)})


def edit(**entries: Any) -> Callable[[dict[str, Any], dict[str, Tensor]], None]:
    return lambda header, tensors: header.update(entries)


def layer(name: str = "0", **entries: Any) -> Callable[[dict[str, Any], dict[str, Tensor]], None]:
    return lambda header, tensors: header["layers"].setdefault(name, {}).update(entries)


def tensor(name: str, value: Tensor | None) -> Callable[[dict[str, Any], dict[str, Tensor]], None]:
    def change(header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value

    return change


DAMAGED = "has a damaged header "
BAD = "does not fit the model: "
OTHER = "must be those of the model, got "

# The change to a file; what it says for a plain model, and for a converted one if that differs.
DAMAGES: list[tuple[Any, str, str]] = [
    (lambda header, tensors: header.pop("layers"), DAMAGED + r"\(KeyError", ""),
    (edit(layers="x"), DAMAGED + r"\(AttributeError", ""),
    (layer(options="x"), DAMAGED + r"\(TypeError", ""),
    (layer(name="x", depth=2), DAMAGED + r"\(TypeError.*depth", ""),
    (edit(aliases={"x": "not there"}), DAMAGED + r"\(TypeError: its parts do not", ""),
    (edit(content="everything"), DAMAGED + r"\(TypeError: its parts", ""),
    (edit(format=2, version="9.9"), r"was written by Quadric 9.9 in format 2, .*: update qua", ""),
    (layer(rank="9"), BAD + "rank must be an integer", "and eigen, rank 9 in the file"),
    (layer(neuron=5), BAD + "neuron must be one of", "and 5, rank 9 in the file"),
    (layer(neuron="quintic"), BAD + ".*got 'quintic'", "and quintic, rank 9 in the file"),
    (layer("nowhere", neuron="eigen", rank=2), BAD + ".*nowhere, not found", ""),
    (layer(rank=0), BAD + "rank must be", "rank 9 in the model and eigen, rank 0 in the file"),
    (layer(options={"depth": 2}), BAD + ".* no option 'depth'", "rank 9, depth=2 in the file"),
    (layer(rank=4), OTHER + r"'0.eigenvalues' of shape \(18,\), not \(16,\)", "rank 4 in the f"),
    (tensor("0.weight", None), OTHER + "'0.weight' missing", ""),
    (tensor("extra", torch.ones(1)), OTHER + "'extra' unknown to the model", ""),
    (tensor("3.bias", torch.ones(3)), OTHER + r"'3.bias' of shape \(3,\), not \(2,\)", ""),
    (tensor("3.bias", torch.ones(2).long()), "'3.bias' as torch.int64 for torch.float32", ""),
    (tensor("1.num_batches_tracked", torch.ones(())), "as torch.float32 for torch.int64", ""),
]


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize(("change", "plain", "other"), DAMAGES)
def test_damaged_files_change_nothing(
    change: Any, plain: str, other: str, converted: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    quadric.save(curved(), path)
    rewrite(path, change)
    assert_refused(curved() if converted else small(), path, (converted and other) or plain)


def assert_refused(model: nn.Module, path: Path, match: str) -> None:
    """Loading fails with one line that names the file, and changes nothing."""
    before = snapshot(model)
    with pytest.raises(ValueError, match=match) as caught:
        quadric.load_(model, path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert_untouched(model, before)


def write_bytes(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def cut(share: float) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        quadric.save(curved(), path)
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * share)])

    return write


def flip(path: Path) -> None:
    """Damages the JSON of the header."""
    quadric.save(curved(), path)
    content = bytearray(path.read_bytes())
    length = struct.unpack("<Q", content[:8])[0]
    content[8 + length // 2] = 0
    path.write_bytes(content)


FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (write_bytes(b""), "truncated, damaged or foreign"),
    "text": (write_bytes(b"hello, this is not a model" * 10), "truncated, damaged or foreign"),
    "half": (cut(0.5), "truncated, damaged or foreign"),
    "almost whole": (cut(0.999), "truncated, damaged or foreign"),
    "header cut": (cut(0.01), "truncated, damaged or foreign"),
    "flipped": (flip, "damaged"),
    "pickle": (
        lambda path: torch.save({"a": torch.ones(2)}, path),
        "truncated, damaged or foreign",
    ),
    "plain safetensors": (
        lambda path: safetensors.torch.save_file(small().state_dict(), path),
        r"without its header: .*model.load_state_dict\(safetensors.torch.load_file",
    ),
    "other metadata": (
        lambda path: write_tensors(path, {"a": torch.ones(2)}, {"quadric": "{"}),
        "damaged header",
    ),
    "a list for a header": (
        lambda path: write_tensors(path, {"a": torch.ones(2)}, {"quadric": "[]"}),
        "damaged header",
    ),
}


@pytest.mark.parametrize("kind", sorted(FOREIGN))
def test_foreign_files_change_nothing(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write, match = FOREIGN[kind]
    write(path)
    assert_refused(small(), path, match)


def test_models_that_do_not_agree(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    quadric.save(curved(), path)
    for options, match in (
        ({"rank": 4}, r"'0' is eigen, rank 4 in the model and eigen, rank 9 in the file"),
        ({"neuron": "shared"}, r"'0' is shared, rank 8 in the model and eigen, rank 9 in the file"),
        ({"normalize": True}, r"'0' is eigen, rank 9, normalize=True in the model"),
        ({"head": True}, r"'3' is eigen, rank 9 in the model and linear in the file: load the fi"),
    ):
        assert_refused(curved(**options), path, match)
    # How the eigenvalues started, and whether backward recomputes, makes no difference.
    quadric.load_(curved(eigenvalue_init="random_sign", init="published"), path)
    quadric.load_(curved(recompute=True), path)
    # Another architecture.
    wide = nn.Sequential(nn.Linear(4, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 2))
    assert_refused(wide, path, r"'0.bias' of shape \(20,\), not \(30,\)")
    quadric.save(curved(), path, only="quadratic")
    assert_refused(wide, path, r"'0.eigenvalues' of shape \(18,\), not \(27,\)")


def test_meta_models_need_storage_first(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model = curved()
    quadric.save(model, path)
    with torch.device("meta"):
        other = small()
    with pytest.raises(ValueError, match=r"on the meta device: call model.to_empty"):
        quadric.load_(other, path)
    assert type(other[0]) is nn.Linear
    other.to_empty(device="cpu")
    quadric.load_(other, path)
    x = torch.randn(2, 4)
    torch.testing.assert_close(other.eval()(x), model(x))


def test_tensors_that_the_model_ties_must_be_equal_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    build = NETWORKS["shared"][0]
    untied = build()
    untied.decode.weight = nn.Parameter(torch.randn(7, 10))
    quadric.save(curved(lambda: untied, rank=3), path)
    words = "values for 'decode.weight' and 'embed.weight', which the model shares"
    assert_refused(build(), path, words)


def test_a_failure_while_loading_takes_the_conversion_back(tmp_path: Path) -> None:
    class Picky(nn.Linear):
        def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
            raise RuntimeError("not today")

    path = tmp_path / "model.safetensors"
    quadric.save(curved(), path)
    model = small()
    model[3] = Picky(20, 2)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="not today"):
        quadric.load_(model, path)
    assert type(model[0]) is nn.Linear
    for name, value in model.state_dict().items():  # the first layer was filled already
        assert torch.equal(value, before[name]), name
