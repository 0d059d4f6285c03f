"""What is timed: layers and networks of every neuron, on every path, and the linear ones."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from quadric.conversion.convert import convert_
from quadric.errors import InputError, explained
from quadric.layers import make_layer
from quadric.models.named import build_network, example_inputs, is_factory
from quadric.ops import gpu
from quadric.ops import native as kernels
from quadric.support.modules import tensors_in

ANCHOR_SHAPES = ((20, 32, 128), (40, 16, 128), (60, 8, 128), (60, 56, 16), (120, 28, 16))
"""Channels, size and batch of the single 3x3 convolutions that are timed by default."""

PATHS = ("plain", "kernels", "compiled")
FORMATS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}
NEURONS = ("eigen", "shared")

Build = Callable[..., nn.Module]
"""Makes a module from a neuron's name and its options."""

Step = Callable[[nn.Module, tuple[Tensor, ...]], Callable[[], object]]
"""Makes the training step of a module on its inputs."""


@dataclass
class Case:
    """One thing to time."""

    group: str  # what it is compared within (a shape, a network)
    neuron: str  # the registry name
    rank: int | None  # the neuron's rank, or None for the neuron's default
    path: str  # one of `PATHS`
    format: str  # "nchw" or "channels_last", or "" where there is no choice
    dtype: str  # "float32" or "bf16" (autocast)
    module: nn.Module  # the network or layer
    inputs: tuple[Tensor, ...]  # its arguments
    # A training step of its own, or None for a forward and backward pass.
    step: Callable[[], object] | None = None

    @property
    def name(self) -> str:
        """Unique among the cases of a run."""
        rank = f" k={self.rank}" if self.rank is not None else ""
        parts = (self.group, self.neuron + rank, self.path, self.format, self.dtype)
        return " | ".join(part for part in parts if part)

    @property
    def compared_as(self) -> tuple[str, bool, str]:
        """Group, compiled or not, and dtype: as those of the linear case it is compared with."""
        return self.group, self.path == "compiled", self.dtype

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.inputs[0].device

    def switch(self) -> None:
        """Puts the process on this case's path."""
        kernels.use_kernels(self.path in ("kernels", "compiled"))

    def _context(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == "bf16")

    def forward(self) -> None:
        """One inference."""
        self.module.eval()
        with torch.no_grad(), self._context():
            self.module(*self.inputs)
        self._wait()

    def _wait(self) -> None:
        """A GPU is given work and computes it later."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def clear(self) -> None:
        """Forgets all gradients, so that none is added to an old one of another layout."""
        self.module.zero_grad(set_to_none=True)
        for value in self.inputs:
            value.grad = None

    def training_step(self) -> None:
        """One training step: by default a forward and backward pass without an optimizer."""
        self.module.train()
        self.clear()
        if self.step is not None:
            self.step()
        else:
            with self._context():
                results = outputs(self.module(*self.inputs))
                losses = [out.float().square().mean() for out in results]
            torch.autograd.backward(losses)
        self._wait()


def outputs(result: Any) -> list[Tensor]:
    """The tensors of a network's result that have a gradient."""
    return [value for value in tensors_in(result) if value.requires_grad]


def _paths(neuron: str, paths: Sequence[str]) -> list[str]:
    """The paths that make a difference to a neuron."""
    if neuron not in NEURONS:  # it has no kernels
        paths = [path.replace("kernels", "plain") for path in paths]
    return list(dict.fromkeys(paths))


def make_cases(
    group: str,
    build: Build,
    inputs: tuple[Tensor, ...],
    neurons: Sequence[str],
    paths: Sequence[str],
    formats: Sequence[str] = ("",),
    dtypes: Sequence[str] = ("float32",),
    options: Mapping[str, Any] | None = None,
    step: Step | None = None,
    device: str = "cpu",
) -> list[Case]:
    """The linear case and those of `neurons`, on each path, in each format and dtype."""
    cases = []
    for neuron in ["linear", *(n for n in neurons if n != "linear")]:
        chosen = dict(options or {}) if neuron != "linear" else {}
        name = neuron + (", recompute" if chosen.get("recompute") else "")
        for path, layout, dtype in itertools.product(_paths(neuron, paths), formats, dtypes):
            torch.manual_seed(0)
            # Their own leaves: else each backward would end in a change of device or layout.
            module = build(neuron, **chosen).to(device)
            args = tuple(x.detach().to(device).requires_grad_(x.requires_grad) for x in inputs)
            draw_eigenvalues_(module, 0.01)  # zeros might cost less
            if layout:
                form: Any = {"memory_format": FORMATS[layout]}
                module = module.to(**form)
                args = tuple(
                    x.detach().contiguous(**form).requires_grad_(x.requires_grad) for x in args
                )
            if path == "compiled":
                module = cast(nn.Module, torch.compile(module))
            own = None if step is None else step(module, args)
            rank = chosen.get("rank")
            cases.append(Case(group, name, rank, path, layout, dtype, module, args, own))
    return cases


def draw_eigenvalues_(module: nn.Module, std: float) -> None:
    """Gives a fresh network eigenvalues that are not zero."""
    for name, parameter in module.named_parameters():
        if name.endswith("eigenvalues"):
            nn.init.normal_(parameter, std=std)


def layer_cases(
    neurons: Sequence[str] = NEURONS,
    shapes: Sequence[tuple[int, int, int]] = ANCHOR_SHAPES,
    paths: Sequence[str] = ("plain", "kernels"),
    formats: Sequence[str] = ("nchw", "channels_last"),
    dtypes: Sequence[str] = ("float32",),
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> list[Case]:
    """Single 3x3 convolutions with as many outputs as inputs."""
    cases = []
    for channels, size, batch in shapes:
        group = f"conv {channels}x{size}x{size}, batch {batch}"
        inputs = (torch.randn(batch, channels, size, size).requires_grad_(),)
        conv = functools.partial(nn.Conv2d, channels, channels, 3, padding=1, bias=False)
        build = functools.partial(make_layer, conv)
        common: dict[str, Any] = {"options": options, "device": device}
        cases += make_cases(group, build, inputs, neurons, paths, formats, dtypes, **common)
    return cases


def network_cases(
    name: str,
    neurons: Sequence[str] = NEURONS,
    paths: Sequence[str] = ("plain", "kernels"),
    formats: Sequence[str] = ("nchw", "channels_last"),
    dtypes: Sequence[str] = ("float32",),
    batch: int | None = None,
    inputs: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> list[Case]:
    """A whole network: a name of `quadric.models`, "transformer", or module:factory."""
    if name == "transformer":
        if inputs:
            raise InputError("the transformer has its own inputs: leave --input out")
        size, make = batch or 64, _transformer
        batches = [torch.randn(25, size, 512) for _ in range(2)]
    else:
        size, make = batch or 128, functools.partial(build_network, name)
        batches = [_of_batch(example, size) for example in example_inputs(name, inputs)]
        _check_network(name, make(), batches)

    def build(neuron: str, **options: Any) -> nn.Module:
        model = make()
        if neuron != "linear":
            # Our own networks have heads that go by their names.
            examples = tuple(batches) if is_factory(name) else None
            convert_(model, neuron, example_inputs=examples, **options)
        return model

    layouts = formats if len(batches) == 1 and batches[0].dim() == 4 else ("",)
    group = f"{name}, batch {size}"
    common: dict[str, Any] = {"options": options, "device": device}
    return make_cases(group, build, tuple(batches), neurons, paths, layouts, dtypes, **common)


def _of_batch(example: Tensor, size: int) -> Tensor:
    shape = (size, *example.shape[1:])
    make = torch.randn if example.is_floating_point() else torch.zeros
    return make(shape, dtype=example.dtype)


def _check_network(name: str, model: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Refuses a network that does not take these inputs, or that nothing can be learned in."""
    shapes = ", ".join("x".join(map(str, value.shape[1:])) for value in inputs)
    rule = f"{name} must run on inputs of shape {shapes}"
    with explained(rule, "give its own shapes, --input once for each input"):
        with torch.no_grad():
            model.eval()(*inputs)
        result = model.train()(*inputs)
    if not outputs(result):
        raise InputError(
            f"{name} must give tensors that have a gradient, got none: a training step is timed; "
            "have some parameters that are not frozen, and return tensors, or lists, tuples or "
            "dictionaries of them"
        )


def _transformer() -> nn.Module:
    """An nn.Transformer of width 512 with 3 + 3 layers and feed-forward 1024."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="enable_nested_tensor is True")
        return nn.Transformer(512, 8, 3, 3, 1024)


def usable_paths(paths: Sequence[str], device: str = "cpu") -> tuple[list[str], str | None]:
    """The paths that this machine can take, and what to say about the kernels."""
    if "compiled" in paths:
        rule = "paths may hold compiled only where torch finds a C++ compiler"
        with explained(rule, "install one, or leave compiled out", alone=True):
            torch.compile(lambda x: x.sin() + 1)(torch.zeros(3, device=device))
    if list(paths) == ["plain"]:
        return list(paths), None
    if device == "cpu":
        place, reason = "the CPU", None if kernels.use_kernels(True) else kernels.reason()
    else:
        place, reason = torch.cuda.get_device_name(device), gpu.reason(torch.device(device))
    if reason is None:
        return list(paths), f"fused kernels are on, on {place}"
    plain = dict.fromkeys(path.replace("kernels", "plain") for path in paths)
    return list(plain), f"fused kernels are off: {reason}"
