"""What functions that take a whole network need: checks, wrappers, parameters, quiet runs."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from quadric.errors import InputError, InputTypeError


def check_model(model: Any) -> None:
    """Checks that an argument is a network."""
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}: give the network "
            "itself, not its parameters or its name"
        )


def check_initialized(module: nn.Module, name: str = "") -> None:
    """Checks that a network or layer has no lazy parameters."""
    for kind in (module.named_parameters, module.named_buffers):
        for key, tensor in kind(prefix=name):
            if is_lazy(tensor):
                raise InputError(
                    f"every parameter must be initialized, got {key!r} without a shape: run one "
                    "forward pass first"
                )


def check_not_distributed() -> None:
    """Refuses to measure a batch of which each process has another part."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        if distributed.get_world_size() > 1:
            raise InputError(
                "the scale of the eigenvalues must be the same in all processes, but each has a "
                "batch of its own: call quadric.calibrate_(model, batch) with one batch before the "
                "model is wrapped"
            )


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside torch.compile, DataParallel and DistributedDataParallel."""
    wrappers = {"OptimizedModule": "_orig_mod"}
    wrappers |= {"DataParallel": "module", "DistributedDataParallel": "module"}
    while type(model).__name__ in wrappers:
        model = model.get_submodule(wrappers[type(model).__name__])
    return model


def call_arguments(model: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a model's forward that example inputs stand for, wherever they are given.

    A tensor is the only argument, a tuple holds several, a mapping holds keyword arguments. If the
    forward takes fewer arguments, or none of these names, the tuple or mapping itself is the only
    argument.
    """
    parameters = inspect.signature(model.forward).parameters.values()
    if isinstance(inputs, tuple) and takes(model, *inputs):
        return inputs, {}
    if hasattr(inputs, "keys"):
        names = {p.name for p in parameters}
        if names & set(inputs.keys()) or any(p.kind is p.VAR_KEYWORD for p in parameters):
            return (), {key: inputs[key] for key in inputs.keys()}
    return (inputs,), {}


def takes(model: nn.Module, *args: Any, **kwargs: Any) -> bool:
    """Whether a model's forward can be called with these arguments, by their number and names."""
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def count_parameters(module: nn.Module) -> int:
    """The number of parameters. Shared ones count once, lazy ones (of no size yet) not at all."""
    return sum(p.numel() for p in module.parameters() if not is_lazy(p))


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in arguments or a result, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = list(vars(value).values())
    elif not isinstance(value, (tuple, list)):
        return []
    return [tensor for inner in value for tensor in tensors_in(inner)]


def storage_of(tensor: Tensor) -> int:
    """What views of one tensor have in common; on the meta device there are no addresses."""
    return int(tensor.untyped_storage()._cdata)


def random_state_kept(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """A context after which the random state of the CPU and of the model's GPUs is as before."""
    devices = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    kept: contextlib.AbstractContextManager[None] = torch.random.fork_rng(devices=sorted(devices))
    return kept


@contextlib.contextmanager
def unfused() -> Iterator[None]:
    """A context without torch's fused attention, which calls no submodules."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextlib.contextmanager
def restored_eval(model: nn.Module) -> Iterator[None]:
    """Eval mode, after which flags, buffers and the random state are as they were."""
    flags = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        model.eval()
        with random_state_kept(model):
            yield
    finally:
        for module, training in flags:
            module.training = training
        with torch.no_grad():
            for module, name, buffer, value in buffers:
                module._buffers[name] = buffer
                if not buffer.is_meta and not torch.equal(buffer, value):
                    buffer.copy_(value)


@contextlib.contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """A context after which these hooks are removed."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def watched(
    layers: Iterable[tuple[str, nn.Module]], see: Callable[[str, Any, Any, Any], Any]
) -> Iterator[None]:
    """Calls `see(name, layer, arguments, output)` after each call of some layers."""
    with hooked([layer.register_forward_hook(partial(see, name)) for name, layer in layers]):
        yield
