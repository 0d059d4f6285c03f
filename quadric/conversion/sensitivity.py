"""Where curvature pays: how much the loss would fall if a layer became quadratic.

Converted with eigenvalues zero, a model computes what it computed before, but its eigenvalues
receive a gradient. For the eigenvalue that weighs the square of feature f in output y it is
`sum g_y f^2`, where g_y is the gradient of the loss at y. That number depends on the units of f and
y, so it cannot be compared between layers. It is therefore taken relative to a curvature of natural
size:

    s = std(y) / std(f^2) * sum g_y (f^2 - mean(f^2)),

the derivative of the loss by a relative eigenvalue, which is 1 where the square varies as much as
the linear output does. It does not change if features or outputs are rescaled (a normalization
after the layer does that). The mean of the square is taken out, because a bias can replace it. The
score of a layer is the root of the sum of s^2 over its eigenvalues: to first order, by how much the
loss falls for a step of length 1 in its relative eigenvalues. The first order does not hold for so
long a step: use the order of the layers, not the numbers.

Means run over all elements of all batches that reach the layer; the gradient is that of the mean
loss over the batches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from quadric.conversion.convert import plan_request
from quadric.conversion.selection import ExactNames, Rank, Request, Selection
from quadric.errors import InputError, InputTypeError
from quadric.layers import QuadraticLayer
from quadric.support.checks import check_size
from quadric.support.modules import hooked, restored_eval
from quadric.support.texttable import text_table

NEURONS = ("eigen", "shared", "square")
"""The neurons whose squares are those of the layer's own outputs, so that one pass is enough."""


class Scores(dict[str, float]):
    """The score of each layer, highest first. Prints as a table.

    Args:
        scores: the scores by layer name, in any order.

    Examples:
        >>> scores = Scores({"conv1": 0.5, "conv2": 2.0})
        >>> scores.top(1), scores["conv1"]
        (['conv2'], 0.5)
    """

    def __init__(self, scores: Mapping[str, float]) -> None:
        super().__init__(sorted(scores.items(), key=lambda item: -item[1]))

    def top(self, n: int) -> list[str]:
        """The names of the layers with the highest scores, for `convert_(include=...)`.

        As `include` they mean these layers alone, not others whose names end in the same way.

        Args:
            n: the number of layers.

        Returns:
            The names, the highest score first.

        Raises:
            InputError: if `n` is less than 1.
            InputTypeError: if `n` is not an integer.
        """
        check_size("n", n)
        return ExactNames(list(self)[:n])

    def to_dict(self) -> dict[str, float]:
        """The scores as a plain dictionary, highest first."""
        return dict(self)

    def __str__(self) -> str:
        total = math.fsum(self.values())
        rows = [
            (name, f"{score:.3g}", f"{score / total:.1%}" if total else "")
            for name, score in self.items()
        ]
        return text_table(("layer", "score", "share"), rows, "lrr")

    def __repr__(self) -> str:
        return f"Scores({super().__repr__()})"


def sensitivity(
    model: nn.Module,
    loss_fn: Callable[[nn.Module, Any], Tensor],
    batches: Iterable[Any],
    *,
    neuron: str = "eigen",
    rank: Rank | None = None,
    include: Selection | None = None,
    exclude: Selection | None = None,
    head: bool = False,
) -> Scores:
    """Scores every layer that could become quadratic by what curvature would do for the loss.

    One pass over the batches, in eval mode, after a look at the first: the layers that it does not
    reach, and the head that it shows, are not scored. The model is unchanged afterwards: layers,
    parameters, gradients, buffers and training flags.

    Args:
        model: a plain model, best a trained one.
        loss_fn: a function of the model and a batch that returns the mean loss of the batch.
        batches: arguments of `loss_fn` (a tensor, a tuple, a mapping or anything else); a few
            hundred examples are enough.
        neuron: "eigen", "shared" or "square".
        rank: the neuron's rank, as in `quadric.convert_`.
        include: the layers to score, as in `quadric.convert_`.
        exclude: the layers to leave out, as in `quadric.convert_`.
        head: score the head too.

    Returns:
        The scores by layer name, highest first.

    Raises:
        InputError: if no layer can be scored, there is no batch, or the loss is not one finite
            number with a gradient.
        InputTypeError: if an argument has the wrong type.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 20), nn.Linear(20, 1))
        >>> batches = [(torch.randn(64, 2), torch.randn(64, 1))]
        >>> mse = lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1])
        >>> sorted(sensitivity(model, mse, batches))
        ['0', '2']
    """
    if neuron not in NEURONS:
        raise InputError(
            f"neuron must be one of {', '.join(NEURONS)}, got {neuron!r}: layers that suit one of "
            "them suit the others"
        )
    if not callable(loss_fn):
        raise InputTypeError(
            f"loss_fn must be a function of (model, batch), got {type(loss_fn).__name__}: write "
            "lambda model, batch: ..."
        )
    request, batches = Request(neuron, rank, include, exclude, head=head), iter(batches)
    first = next(batches, _NONE)
    if first is _NONE:
        raise InputError("batches must hold at least one batch, got none: give some data")
    swap, *_ = plan_request(model, request, lambda: _outputs(model, loss_fn, first))
    by_layer = {
        target.name: [_Probe(m) for m in new.modules() if isinstance(m, QuadraticLayer)]
        for target, new in swap.built
    }
    probes = [probe for group in by_layer.values() for probe in group]
    # The new layers share their hooks with the old ones.
    with hooked([probe.layer.register_forward_hook(probe.see) for probe in probes]):
        try:
            with restored_eval(model):
                swap.do()
                model.eval()  # the new layers have the training flags of the old ones
                count = _run(model, loss_fn, itertools.chain([first], batches), probes)
        finally:
            swap.undo()
    scores = {name: sum(p.squared_norm(count) for p in group) for name, group in by_layer.items()}
    return Scores({name: math.sqrt(score) for name, score in scores.items()})


_NONE = object()


def _outputs(
    model: nn.Module, loss_fn: Callable[[nn.Module, Any], Tensor], batch: Any
) -> list[Any]:
    """What the model puts out for a batch: it shows which layer is the head."""
    seen: list[Any] = []
    handle = model.register_forward_hook(lambda module, args, output: seen.append(output))
    with hooked([handle]), restored_eval(model), torch.enable_grad():
        _check_loss(loss_fn(model, batch), 1)
    return seen


def _run(
    model: nn.Module,
    loss_fn: Callable[[nn.Module, Any], Tensor],
    batches: Iterable[Any],
    probes: list[_Probe],
) -> int:
    """Runs all batches and lets the probes add up; returns how many there were."""
    wanted = [tensor for probe in probes for tensor in (probe.layer.eigenvalues, probe.shift)]
    count = 0
    for batch in batches:
        count += 1
        with torch.enable_grad():
            loss = loss_fn(model, batch)
        _check_loss(loss, count)
        gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
        for i, probe in enumerate(probes):
            probe.add(gradients[2 * i], gradients[2 * i + 1])
    return count


def _check_loss(loss: Any, batch: int) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        fault = f"{shape}: return one number, the mean over the batch"
    elif not loss.requires_grad:
        fault = "one without a gradient: call the model that is given, without torch.no_grad"
    elif not bool(torch.isfinite(loss)):
        fault = f"{float(loss.detach())} in batch {batch}: check the data and the model"
    else:
        return
    raise InputError(f"loss_fn must return a finite loss that depends on the model, got {fault}")


class _Probe:
    """Adds up, for one quadratic layer with eigenvalues zero, what its score needs."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        weight = layer.weight
        # Added to the output, so that its gradient is the sum of g at every channel.
        self.shift = weight.new_zeros(layer.num_outputs, requires_grad=True)
        layer.eigenvalues.requires_grad_(True)
        self.elements = 0
        self.moments = torch.zeros_like(self.shift, dtype=torch.float64).repeat(3, 1)
        self.eigenvalue_gradient = torch.zeros_like(layer.eigenvalues, dtype=torch.float64)
        self.output_gradient = torch.zeros_like(self.shift, dtype=torch.float64)

    def see(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """A forward hook that adds up moments of the output, and adds the shift to it."""
        dim = self.layer.linear_op.channel_dim
        with torch.no_grad():
            z = output.detach().movedim(dim, -1).flatten(0, -2).double()
            self.elements += z.shape[0]
            self.moments += torch.stack([z.pow(power).sum(0) for power in (1, 2, 4)])
        shifted: Tensor = output + self.shift.reshape(-1, *(1,) * (-1 - dim)).to(output.dtype)
        return shifted

    def add(self, eigenvalue_gradient: Tensor | None, output_gradient: Tensor | None) -> None:
        """Adds the gradients of one batch; None where the loss does not depend on the layer."""
        if eigenvalue_gradient is not None and output_gradient is not None:
            self.eigenvalue_gradient += eigenvalue_gradient
            self.output_gradient += output_gradient

    def squared_norm(self, batches: int) -> float:
        """The sum of the squared derivatives by the relative eigenvalues."""
        if self.elements == 0:
            return 0.0
        mean, second, fourth = self.moments / self.elements
        output_scale = (second - mean * mean).clamp_min(0).sqrt()
        variance = fourth - second * second
        # A feature that does not vary has no curvature to offer; rounding must not give it one.
        varies = variance > 1e-12 * fourth
        square_scale = torch.where(varies, variance, torch.inf).sqrt()
        device = self.eigenvalue_gradient.device
        y, f = self.layer.blocks.places(device)
        gradient = self.eigenvalue_gradient - second[f] * self.output_gradient[y]
        relative = gradient / batches * output_scale[y] / square_scale[f]
        return float((relative * relative).sum())
