"""A quadratic layer and what follows it, BatchNorm and ReLU, in one pass, for inference.

The squares of a layer cost a pass over its output, and so does a ReLU behind them. `fuse_` folds
each BatchNorm (see `folding`) and lets the layer compute the ReLU in the pass of the squares, so
that a quadratic layer makes no more passes than a linear layer with its activation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor, nn

from quadric._autograd import map_with_squares
from quadric._following import (
    Leaf,
    Pair,
    Place,
    check_eval,
    find_pairs,
    is_touched,
    places_of,
    several_places,
)
from quadric._squares import Finish, SharedSquares, Squares
from quadric.folding import ChannelShift, FoldingReport, fold_batchnorm_
from quadric.joining import fits
from quadric.maps import Map
from quadric.nn import QuadraticLayer
from quadric.nn.eigen import EigenLayer
from quadric.zoo import NeuronLayer
from quadric.zoo.shared import Shared


class FusedLayer(Leaf):
    """A quadratic layer that also adds a shift to each channel and computes a ReLU.

    It has the geometry of the layer under torch's names, and is not one of the layers that
    `convert_`, `cost` or `param_groups` know. Its eigenvalues have another name than the layer's,
    of which they may be a multiple: a checkpoint of the trained network does not load by mistake.

    Args:
        layer: an eigen or a shared layer; its weight and bias are taken as they are.
        shift: one number for each channel, or None.
        relu: whether a ReLU follows.

    Attributes:
        neuron: the layer's.
        rank: likewise.
        linear_map: likewise.
        squares: what is added to the map's output.
        fused_eigenvalues: multiply the squares.
        shift: is added behind them, or None.
        relu: whether a ReLU comes last.

    Shape:
        As the layer's.
    """

    shift: Tensor | None
    weight: nn.Parameter
    bias: nn.Parameter | None
    fused_eigenvalues: nn.Parameter

    def __init__(self, layer: QuadraticLayer, shift: Tensor | None, relu: bool) -> None:
        super().__init__()
        if shift is not None and shift.shape != (layer.num_outputs,):
            raise ValueError(
                f"shift must have one number for each of {layer.num_outputs} outputs, got the "
                f"shape {tuple(shift.shape)}: give a vector"
            )
        self.neuron, self.rank = layer.neuron, layer.rank
        for name, value in layer.geometry().items():
            setattr(self, name, value)
        self.linear_map: Map = layer.linear_map
        self.squares, self.fused_eigenvalues = _squares_of(layer)
        own: Any = layer
        self.weight = own.weight
        self.register_parameter("bias", layer.bias)
        self.register_buffer("shift", shift)
        self.relu = relu
        self._geometry = layer.linear_repr()

    def forward(self, input: Tensor) -> Tensor:
        linear_map = self.linear_map
        linear_map.check(input, self.weight)
        return map_with_squares(
            linear_map,
            self.squares,
            linear_map.prepare(input),
            self.weight,
            self.bias,
            self.fused_eigenvalues,
            finish=Finish(self.shift, self.relu),
        )

    def extra_repr(self) -> str:
        shift = "" if self.shift is None else ", shift"
        relu = ", relu" if self.relu else ""
        return f"{self._geometry}, neuron={self.neuron}, rank={self.rank}{shift}{relu}"


def _squares_of(layer: QuadraticLayer) -> tuple[Squares, nn.Parameter]:
    """The squares of a layer and the eigenvalues that multiply them."""
    if isinstance(layer, EigenLayer):
        if not layer.normalize:
            return layer._squares, layer.eigenvalues
        values = layer.effective_eigenvalues().detach()
        return layer._squares, nn.Parameter(values, layer.eigenvalues.requires_grad)
    assert isinstance(layer, NeuronLayer)
    assert isinstance(layer.rule, Shared)
    linear_map = layer.linear_map
    squares = SharedSquares(layer.rule.rank, linear_map.channel_dim, linear_map.groups)
    return squares, cast(nn.Parameter, layer.parameter("eigenvalues"))


@dataclass(frozen=True)
class FusionReport:
    """What `fuse_` did.

    Attributes:
        folding: of the BatchNorms.
        fused: the layers that became a `FusedLayer`, and the modules that they took up.
    """

    folding: FoldingReport
    fused: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        taken = sum(len(names) for names in self.fused.values())
        return f"{self.folding}\nfused: {len(self.fused)}, with {taken} modules behind them"


def fuse_(model: nn.Module, example_inputs: Any = None) -> FusionReport:
    """Folds BatchNorm, and lets eigen and shared layers compute the ReLU that alone reads their
    output.

    The model computes what it computed, up to the rounding of `fold_batchnorm_`, faster: without a
    pass of its own for a shift or a ReLU. It is for inference in torch, and no longer the network
    that was trained: save, export and count that one. Only a `torch.nn.ReLU` that is called once is
    taken up, behind a linear layer none. What a forward keeps of a layer's output on the side
    (`self.last = self.conv(x)`) is kept behind the ReLU then.

    Args:
        model: in eval mode; changed in place.
        example_inputs: a tensor, a tuple or a mapping, as for `fold_batchnorm_`. What a run with
            them shows is held against what torch.fx says: give them if you can.

    Examples:
        >>> import quadric
        >>> model = nn.Sequential(nn.Conv2d(1, 20, 3), nn.BatchNorm2d(20), nn.ReLU()).eval()
        >>> report = quadric.convert_(model)
        >>> fuse_(model).fused
        {'0': ('2',)}
        >>> model
        Sequential(
          (0): FusedLayer(1, 20, kernel_size=(3, 3), stride=(1, 1), neuron=eigen, rank=9, relu)
          (1): Identity()
          (2): Identity()
        )
    """
    folding = fold_batchnorm_(model, example_inputs)  # which looks at the arguments
    report = FusionReport(folding)
    places = places_of(model)
    if not any(isinstance(place.module, QuadraticLayer) for place in places.values()):
        return report
    check_eval(model, "fuse its layers")
    several = several_places(model)

    def behind(kind: type[nn.Module], *through: type[nn.Module]) -> dict[int, Pair]:
        """The modules of a kind that a layer can take up, by the layer's id."""
        if not any(type(place.module) is kind for place in places.values()):
            return {}
        pairs = find_pairs(
            model, places, example_inputs, (QuadraticLayer,), (kind,), (nn.Identity, *through)
        )
        return {
            id(pair.layer.module): pair
            for pair in pairs.values()
            if not ({id(pair.layer.module), id(pair.reader.module)} & several)
            and fits(pair.layer.module)
            and type(pair.reader.module) is kind
            and not is_touched(pair.reader.module)
        }

    shifts = behind(ChannelShift)
    for key, pair in behind(nn.ReLU, ChannelShift).items():
        # A shift in front of the ReLU that must stay: the ReLU stays, too.
        shift = [shifts[key].reader.module] if key in shifts else []
        if list(pair.between) == shift:
            _take_up(pair.layer, [p for p in (shifts.pop(key, None), pair) if p], report)
    for pair in shifts.values():
        _take_up(pair.layer, [pair], report)
    return report


def _take_up(layer: Place, pairs: list[Pair], report: FusionReport) -> None:
    behind = [pair.reader for pair in pairs]
    modules = [place.module for place in behind]
    shift = next((m.shift for m in modules if isinstance(m, ChannelShift)), None)
    relu = any(isinstance(m, nn.ReLU) for m in modules)
    layer.put(FusedLayer(cast(QuadraticLayer, layer.module), shift, relu).eval())
    for place in behind:
        place.put(nn.Identity().eval())
    report.fused[layer.name] = tuple(place.name for place in behind)
