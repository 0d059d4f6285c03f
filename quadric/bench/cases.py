"""What is timed: layers and networks of every neuron, on every path, and the linear ones."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from quadric.bench.straightforward import FORMULAS, Straightforward
from quadric.conversion.convert import convert_
from quadric.errors import InputError
from quadric.exporting.checking import tensors_in
from quadric.models.named import build_network, example_inputs
from quadric.ops import native as kernels
from quadric.zoo import get_neuron, make_layer
from quadric.zoo.layers import NeuronLayer

ANCHOR_SHAPES = ((20, 32, 128), (40, 16, 128), (60, 8, 128), (60, 56, 16), (120, 28, 16))
"""Channels, size and batch of the single 3x3 convolutions that are timed by default."""

FUSED = "-fused"
"""What the name of a path ends with on which BatchNorm is folded and activations are fused."""

JOINED = "-joined"
"""What the name of a path ends with on which layers compute the BatchNorm and ReLU behind them."""

BARE = "bare-pass"
"""The path of a linear network that makes one more pass over the output of each convolution."""

BARE_PASS = "linear and a bare pass"
"""What stands in the place of the neuron there."""

PATHS = (
    "plain",
    "kernels",
    "compiled",
    "straightforward",
    "plain-fused",
    "kernels-fused",
    "compiled-fused",
    "kernels-joined",
    "compiled-joined",
    BARE,
)
FORMATS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


class _BarePass(nn.Module):
    """A convolution whose output is multiplied by one, in place."""

    def __init__(self, convolution: nn.Module) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.convolution(input)
        return output.mul_(1.0)


def with_bare_passes(model: nn.Module) -> nn.Module:
    """Puts a bare pass behind every convolution of a linear network."""
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        raise InputError(f"{BARE} needs a network with convolutions, got one without: leave it out")
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Conv2d):
                setattr(module, name, _BarePass(child))
    return model


@dataclass
class Case:
    """One thing to time.

    Attributes:
        group: what it is compared within (a shape, a network).
        neuron: the registry name.
        rank: its rank, None for the neuron's default or a neuron without one.
        path: "plain", "kernels", "compiled", or "straightforward" (one call a map; single layers);
            the first three also with "-fused" (BatchNorm folded, activations fused; inference),
            kernels and compiled with "-joined" (layers compute the BatchNorm and ReLU behind).
            "bare-pass" is the linear network with one more pass behind each convolution.
        format: "nchw" or "channels_last", or "" where there is no choice.
        dtype: "float32" or "bf16" (autocast).
        module: the network or layer.
        inputs: its arguments.
        options: further options of the neuron.
    """

    group: str
    neuron: str
    rank: int | None
    path: str
    format: str
    dtype: str
    module: nn.Module
    inputs: tuple[Tensor, ...]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """Unique among the cases of a run."""
        more = "".join(f" {k}={v}" for k, v in self.options.items())
        rank = f" k={self.rank}" if self.rank is not None else ""
        parts = (self.group, self.neuron + rank + more, self.path, self.format, self.dtype)
        return " | ".join(part for part in parts if part)

    def switch(self) -> None:
        """Puts the process on this case's path."""
        kernels.use_kernels(self.path.split("-")[0] in ("kernels", "compiled"))

    @property
    def for_inference(self) -> bool:
        """Whether it is no longer a network that one would train."""
        return self.path.endswith(FUSED)

    @property
    def kind(self) -> tuple[bool, bool]:
        """Compiled or not, fused or not: it is compared with a linear case of the same kind."""
        return self.path.startswith("compiled"), self.for_inference

    def _context(self) -> torch.autocast:
        device = self.inputs[0].device.type
        return torch.autocast(device, torch.bfloat16, enabled=self.dtype == "bf16")

    def forward(self) -> None:
        """One inference."""
        self.module.eval()
        with torch.no_grad(), self._context():
            self.module(*self.inputs)

    def clear(self) -> None:
        """Forgets all gradients, so that none is added to an old one of another layout."""
        self.module.zero_grad(set_to_none=True)
        for value in self.inputs:
            value.grad = None

    def training_step(self) -> None:
        """One forward and backward pass: what a training step costs, the optimizer aside."""
        self.module.train()
        self.clear()
        with self._context():
            losses = [out.float().square().mean() for out in outputs(self.module(*self.inputs))]
        torch.autograd.backward(losses)


def outputs(result: Any) -> list[Tensor]:
    """What a network can be trained by: the tensors of its result that have a gradient."""
    found = [result] if isinstance(result, Tensor) else tensors_in(result)
    return [value for value in found if value.requires_grad]


def _paths(neuron: str, paths: Sequence[str]) -> list[str]:
    """The paths that make a difference: only eigen and shared have kernels, only neurons of several
    maps another way to write them.
    """
    found = [path for path in paths if path != "straightforward" or neuron in FORMULAS]
    found = [path for path in found if path != BARE or neuron == "linear"]
    if neuron not in ("eigen", "shared"):
        found = [path.replace("kernels", "plain").removesuffix(JOINED) for path in found]
    return list(dict.fromkeys(found)) or ["plain"]


def _bend(module: nn.Module) -> None:
    """Makes eigenvalues as if they had learned: where they are all zero, less may be computed."""
    for name, parameter in module.named_parameters():
        if name.split(".")[-1] == "eigenvalues":
            nn.init.normal_(parameter, std=0.01)


def make_cases(
    group: str,
    build: Callable[[str, dict[str, Any]], nn.Module],
    inputs: tuple[Tensor, ...],
    neurons: Sequence[str],
    paths: Sequence[str],
    formats: Sequence[str],
    dtypes: Sequence[str],
    options: dict[str, Any] | None = None,
) -> list[Case]:
    """The linear case and those of `neurons`, on each path, in each format and dtype.

    Args:
        group: what they are compared within.
        build: makes the module, from a neuron's name and its options.
        inputs: its arguments.
        neurons: registry names.
        paths: of `PATHS`.
        formats: of `FORMATS`, or an empty string where there is no choice.
        dtypes: of `DTYPES`.
        options: of the neurons that know them.
    """
    cases = []
    for neuron in ["linear", *(n for n in neurons if n != "linear")]:
        chosen = {k: v for k, v in (options or {}).items() if k in get_neuron(neuron).options}
        for path in _paths(neuron, paths):
            for layout in formats:
                for dtype in dtypes:
                    torch.manual_seed(0)
                    module = build(neuron, chosen)
                    _bend(module)
                    args = inputs
                    if layout:
                        memory_format = FORMATS[layout]
                        module = module.to(memory_format=memory_format)  # type: ignore[call-overload]
                        # Leaves of their own: else each backward would end in a change of layout.
                        args = tuple(
                            x.detach()
                            .contiguous(memory_format=memory_format)
                            .requires_grad_(x.requires_grad)
                            for x in inputs
                        )
                    if path == "straightforward":
                        module = Straightforward(cast(NeuronLayer, module))
                    if path.startswith("compiled"):
                        module = torch.compile(module)  # type: ignore[assignment]
                    name, way = neuron, path
                    if path == BARE:  # a case of its own, which nothing is compared with
                        module, name, way = with_bare_passes(module), BARE_PASS, "plain"
                    rank = chosen.get("rank")
                    cases.append(Case(group, name, rank, way, layout, dtype, module, args, {}))
    return cases


def layer_cases(
    neurons: Sequence[str] = ("eigen", "shared"),
    shapes: Sequence[tuple[int, int, int]] = ANCHOR_SHAPES,
    paths: Sequence[str] = ("plain", "kernels"),
    formats: Sequence[str] = ("nchw", "channels_last"),
    dtypes: Sequence[str] = ("float32",),
) -> list[Case]:
    """Single 3x3 convolutions of these shapes (channels, size, batch)."""
    cases = []
    for channels, size, batch in shapes:
        group = f"conv {channels}x{size}x{size}, batch {batch}"
        conv = functools.partial(nn.Conv2d, channels, channels, 3, padding=1, bias=False)
        inputs = (torch.randn(batch, channels, size, size).requires_grad_(),)

        def build(neuron: str, options: dict[str, Any], conv: Any = conv) -> nn.Module:
            return make_layer(conv, neuron=neuron, **options)

        cases += make_cases(group, build, inputs, neurons, paths, formats, dtypes)
    return cases


def network_cases(
    name: str,
    neurons: Sequence[str] = ("eigen", "shared"),
    paths: Sequence[str] = ("plain", "kernels"),
    formats: Sequence[str] = ("nchw", "channels_last"),
    dtypes: Sequence[str] = ("float32",),
    batch: int | None = None,
    inputs: Sequence[str] | None = None,
) -> list[Case]:
    """A whole network: a name of `quadric.models`, "transformer", or module:factory.

    Args:
        name: the network.
        neurons: the neurons to compare with linear.
        paths: which of plain, kernels and compiled.
        formats: the memory formats of image networks.
        dtypes: float32, bf16 or both.
        batch: the batch size; by default 128 (64 sentences for the transformer).
        inputs: shapes of one input in words, such as "3x32x32" or "128:int64"; by default those of
            the network. Numbers are random, indices zero.
    """
    if name == "transformer":
        if inputs:
            raise InputError("the transformer has its own inputs: leave --input out")
        return transformer_cases(neurons, paths, dtypes, batch)
    size = batch or 128
    examples = example_inputs(name, inputs)
    batches = tuple(_of_batch(example, size) for example in examples)

    def build(neuron: str, options: dict[str, Any]) -> nn.Module:
        return build_network(name, neuron, options.get("rank"), example_inputs=batches)

    _check_network(name, build_network(name), batches)
    images = len(examples) == 1 and examples[0].dim() == 4
    group = f"{name}, batch {size}"
    return make_cases(group, build, batches, neurons, paths, formats if images else ("",), dtypes)


def _of_batch(example: Tensor, size: int) -> Tensor:
    shape = (size, *example.shape[1:])
    if example.is_floating_point():
        return torch.randn(shape, dtype=example.dtype)
    return torch.zeros(shape, dtype=example.dtype)


def _check_network(name: str, model: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Refuses a network that does not take these inputs, or that nothing can be learned in."""
    shapes = ", ".join("x".join(map(str, value.shape[1:])) for value in inputs)
    try:
        with torch.no_grad():
            model.eval()(*inputs)
        result = model.train()(*inputs)
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise InputError(
            f"{name} must run on inputs of shape {shapes}, got {type(error).__name__}: {text}: "
            "give its own shapes, --input once for each input"
        ) from error
    if not outputs(result):
        raise InputError(
            f"{name} must give tensors that have a gradient, got none: a training step is timed; "
            "have some parameters that are not frozen, and return tensors, or lists, tuples or "
            "dictionaries of them"
        )


def transformer_cases(
    neurons: Sequence[str] = ("eigen", "shared"),
    paths: Sequence[str] = ("plain", "kernels"),
    dtypes: Sequence[str] = ("float32",),
    batch: int | None = None,
    dropout: float = 0.1,
) -> list[Case]:
    """nn.Transformer of width 512 with 3 + 3 layers and feed-forward 1024, on 64 sentences of 25
    tokens.

    Args:
        neurons: the neurons to convert it to.
        paths: which of plain, kernels and compiled.
        dtypes: float32, bf16 or both.
        batch: the number of sentences, if not 64.
        dropout: torch's own default; 0 for none.
    """
    size = batch or 64
    inputs = tuple(torch.randn(25, size, 512) for _ in range(2))
    group = f"transformer{'' if dropout else ' without dropout'}, batch {size}"
    build = functools.partial(make_transformer, dropout=dropout)
    return make_cases(group, build, inputs, neurons, paths, ("",), dtypes)


def make_transformer(neuron: str, options: dict[str, Any], dropout: float) -> nn.Module:
    """The Transformer that is timed, converted to a neuron."""
    with warnings.catch_warnings():
        # Sentences come first in the second dimension here; torch says that nested tensors, which
        # nobody asked for, want them in the first.
        warnings.filterwarnings("ignore", message="enable_nested_tensor is True")
        model = nn.Transformer(512, 8, 3, 3, 1024, dropout)
    if neuron != "linear":
        convert_(model, neuron, **options)
    return model


def rank_cases(
    ranks: Sequence[int] = (1, 3, 7, 15, 31, 63),
    neurons: Sequence[str] = ("eigen", "shared"),
    path: str = "kernels",
    shape: tuple[int, int, int] = (64, 16, 64),
) -> list[Case]:
    """One convolution with 64 outputs at growing rank: what does the rank cost?"""
    channels, size, batch = shape
    group = f"conv {channels}x{size}x{size}, batch {batch}"
    conv = functools.partial(nn.Conv2d, channels, channels, 3, padding=1, bias=False)
    inputs = (torch.randn(batch, channels, size, size).requires_grad_(),)

    def build(neuron: str, options: dict[str, Any]) -> nn.Module:
        return make_layer(conv, neuron=neuron, **options)

    cases = make_cases(group, build, inputs, (), ("plain",), ("nchw",), ("float32",))
    for neuron in neurons:
        for rank in ranks:
            made = make_cases(
                group, build, inputs, (neuron,), (path,), ("nchw",), ("float32",), {"rank": rank}
            )
            cases += made[1:]  # without another linear
    return cases
