"""Measuring a network on data: parameters, responses and couplings, in one pass over the data.

Nothing here draws, and nothing trains.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quadric.analysis.couplings import couplings
from quadric.analysis.distributions import parameters
from quadric.analysis.frequencies import CUTOFF, Frequencies, verdict
from quadric.analysis.samples import Samples
from quadric.errors import InputError
from quadric.layers import NeuronConv, QuadraticLayer
from quadric.runs.reading import ANALYSIS_VERSION
from quadric.share import QuadraticShare, quadratic_share
from quadric.support.modules import check_model, restored_eval, unwrapped, watched

SHOWN_LAYERS = 4
LARGEST_MAP = 48
"""Pixels per side of a picture that is kept; larger ones are averaged down."""

Progress = Callable[[int, str, int], None]


def measure(
    model: nn.Module,
    data: Samples,
    *,
    shown: Tensor | None = None,
    layers: Sequence[str] | None = None,
    cutoff: float = CUTOFF,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measures what the neurons of a network learned."""
    check_model(model)
    model = unwrapped(model)
    named = {name: module for name, module in model.named_modules() if _has_weights(module)}
    quadratic = {n: m for n, m in named.items() if isinstance(m, QuadraticLayer)}
    maps = {n: m for n, m in quadratic.items() if isinstance(m, NeuronConv)}
    chosen = _chosen(maps, layers) if shown is not None else []
    steps = -(-data.count // 64)
    total = len(named) + steps + (data.columns is not None) + bool(chosen)

    def told(what: str, done: int = 1) -> None:
        if progress is not None:
            progress(done, what, total)

    frequencies = {name: Frequencies(cutoff) for name in maps}
    order: dict[str, int] = {}

    def see(name: str, layer: Any, args: Any, output: Any) -> None:
        order.setdefault(name, len(order))
        if name in maps:
            frequencies[name].see(layer, *layer.responses(args[0])[:2])

    def batches() -> Iterator[Any]:
        for batch in data.batches():
            yield batch
            told("running the network")

    told("running the network", 0)
    shares = QuadraticShare({}, {})
    if quadratic:
        with watched(named.items(), see):
            shares = quadratic_share(model, batches())
    measured = []
    for name in sorted(named, key=lambda name: order.get(name, len(order))):
        told(f"parameters of {name}")
        layer = named[name]
        facts: dict[str, Any] = {"name": name, "neuron": getattr(layer, "neuron", "linear")}
        facts |= {"rank": getattr(layer, "rank", None), **parameters(layer)}
        share = shares.get(name)
        facts |= {key: getattr(share, key, None) for key in ("share", "correlation")}
        if name in shares.unmeasured:
            facts["notes"].append(f"no quadratic share: {shares.unmeasured[name]}")
        if name in frequencies:
            facts["low_frequency"] = frequencies[name].to_dict()
        measured.append(facts)
    result: dict[str, Any] = {
        "version": ANALYSIS_VERSION,
        "samples": data.count,
        "layers": measured,
    }
    if maps:
        result["low_frequency"] = {"cutoff": cutoff, **verdict(frequencies)}
    if data.columns is not None:
        told("couplings")
        result["couplings"] = couplings(model, data)
    if chosen and shown is not None:
        told("responses")
        result["responses"] = _responses(model, shown, {n: maps[n] for n in chosen}, shares, data)
    return result


def _has_weights(module: nn.Module) -> bool:
    return isinstance(module, (QuadraticLayer, nn.Linear, nn.modules.conv._ConvNd))


def _chosen(maps: Mapping[str, nn.Module], wanted: Sequence[str] | None) -> list[str]:
    if wanted is None:
        names = list(maps)
        count = min(SHOWN_LAYERS, len(names))
        return [names[i * (len(names) - 1) // max(count - 1, 1)] for i in range(count)]
    for name in wanted:
        if name not in maps:
            raise InputError(
                f"there is no convolutional layer {name!r} with a quadratic part: choose from "
                f"{', '.join(maps) or 'none'}"
            )
    return list(wanted)


def _responses(
    model: nn.Module,
    shown: Tensor,
    layers: Mapping[str, nn.Module],
    shares: QuadraticShare,
    data: Samples,
) -> dict[str, Any]:
    """The responses of some layers to some pictures, as small pictures of bytes."""
    parts: dict[str, tuple[Tensor, ...]] = {}

    def see(name: str, layer: Any, args: Any, output: Any) -> None:
        parts[name] = tuple(part.float() for part in layer.responses(args[0])[:2])

    with restored_eval(model), torch.no_grad(), torch.compiler.set_stance("force_eager"):
        with watched(layers.items(), see):
            model(shown.to(next(model.parameters()).device))
    kept = []
    for name in layers:
        # A layer may not be called; of sounds and volumes there is no picture.
        if name in parts and parts[name][0].dim() == 4:
            neuron = _most_quadratic(shares, name)
            linear, quadratic = ([_picture(p[neuron]) for p in part] for part in parts[name])
            about = {"name": name, "neuron": neuron}
            kept.append(about | {"linear": linear, "quadratic": quadratic})
    return {"pictures": [_input_picture(p, data) for p in shown.float()], "layers": kept}


def _most_quadratic(shares: QuadraticShare, name: str) -> int:
    """The neuron of a layer whose variation is the most quadratic."""
    if name not in shares:
        return 0
    values = shares[name].shares
    return max(range(len(values)), key=lambda i: values[i])


def _shrunk(maps: Tensor) -> Tensor:
    """(channels, height, width) with sides of at most `LARGEST_MAP` pixels."""
    height, width = (min(side, LARGEST_MAP) for side in maps.shape[-2:])
    if maps.shape[-2:] == (height, width):
        return maps
    return nn.functional.adaptive_avg_pool2d(maps, (height, width))


def _picture(response: Tensor) -> dict[str, Any]:
    """A response around zero: byte 128 is 0, 255 and 1 are plus and minus `scale`."""
    small = _shrunk(response[None])[0].cpu()
    scale = float(small.abs().max())
    if not scale > 0 or scale == float("inf"):
        scale = 1.0
    levels = (small.nan_to_num() / scale * 127).round().clamp(-127, 127) + 128
    return {"scale": scale, **_bytes(levels[None])}


def _input_picture(picture: Tensor, data: Samples) -> dict[str, Any]:
    """An input as it looked before it was normalized, as far as that is known."""
    picture = picture.cpu()
    if data.normalization is not None:
        known = data.normalization
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (known.mean, known.std))
        picture = (picture * std + mean).clamp(0, 1)
    else:
        low, high = float(picture.min()), float(picture.max())
        picture = (picture - low) / ((high - low) or 1.0)
    small = _shrunk(picture)
    return _bytes((small[:3] if len(small) >= 3 else small[:1]) * 255)


def _bytes(levels: Tensor) -> dict[str, Any]:
    """(channels, height, width) of numbers from 0 to 255 as base64, pixel by pixel."""
    channels, height, width = levels.shape
    flat = levels.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).flatten()
    content = base64.b64encode(bytes(flat.tolist())).decode()
    return {"height": height, "width": width, "channels": channels, "bytes": content}
