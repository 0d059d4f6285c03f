"""The function that a small network learned, as a formula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from quadric.analysis.forms import dense_form
from quadric.data.tables import Standardization
from quadric.errors import InputError
from quadric.layers import NeuronLinear, QuadraticLayer
from quadric.support.extras import load_extra
from quadric.support.modules import unwrapped

if TYPE_CHECKING:
    import sympy

MOST_TERMS = 20_000
"""Terms that a polynomial may have before it is refused."""
# In eval mode these hand their input on.
_IDENTITIES = (nn.Identity, nn.Dropout, nn.Flatten)


@dataclass(frozen=True)
class NetworkFormula:
    """What a network computes.

    Attributes:
        symbols: its inputs.
        outputs: one polynomial of the inputs for each output, exact but for rounding; None where
            an activation stands between the layers.
        layers: for each layer by name, its outputs as polynomials of that layer's own inputs
            `x0`, `x1` …; those of the first layer are the network's.
    """

    symbols: tuple[sympy.Symbol, ...]
    outputs: tuple[sympy.Expr, ...] | None
    layers: dict[str, tuple[sympy.Expr, ...]]

    def __str__(self) -> str:
        if self.outputs is not None:
            return "\n".join(map(str, self.outputs))
        rows = [
            f"{name}[{i}] = {expression}"
            for name, expressions in self.layers.items()
            for i, expression in enumerate(expressions)
        ]
        return "\n".join(rows)


def to_sympy(
    model: Any,
    names: Sequence[str] | None = None,
    scale: Standardization | None = None,
    digits: int | None = None,
    *,
    sparse: bool = False,
    rows: tuple[Any, Any] | None = None,
) -> NetworkFormula:
    """The learned function as a formula.

    Exact for a network without activations, a `Sequential` of linear and quadratic layers; the
    squares of squares of several layers are multiplied out. With activations, or in a network
    whose order of layers is not known, layer by layer.

    Args:
        model: a network of linear layers, or a fitted scikit-learn estimator (or its
            `to_torch()`), whose scaling is put in.
        names: the names of the inputs, by default x0, x1 …
        scale: the standardization of the columns that the network was trained on: the formula then
            takes and gives them in their own units.
        digits: the significant digits that each factor is rounded to. A small one stays: its
            column may be large.
        sparse: keep only the monomials of the network that the rows call for: the others are
            eliminated one after another, and what stays is fitted to the rows (by BIC).
        rows: for `sparse`: columns and targets in their own units, as the estimator's `fit` took
            them.

    Returns:
        The formula.

    Raises:
        InputError: if there is no layer, a layer is no polynomial of degree two, the layers are
            convolutions, the polynomial would have too many terms, an estimator presses columns
            together (see `standardize`), or `sparse` has no rows.
        MissingExtraError: if sympy is not installed.

    Examples:
        >>> from quadric.layers import QuadraticLinear
        >>> layer = QuadraticLinear(2, 3, rank=2, bias=False)
        >>> with torch.no_grad():
        ...     _ = layer.weight.copy_(torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, -1.0]]))
        ...     _ = layer.eigenvalues.copy_(torch.tensor([0.25, -0.25]))
        >>> to_sympy(nn.Sequential(layer), names=["a", "b"]).outputs[0]  # 1/4 (a+b)^2 - (a-b)^2
        1.0*a*b + 1.0*a
    """
    sp = load_extra("sympy", "quadric.analysis.to_sympy", "plots")
    if hasattr(model, "prepared_names_"):
        names = model.prepared_names_ if names is None else names
        rows = None if rows is None else (model.prepare(rows[0]), rows[1])
        model = model.module_
    _refuse_pressed(model, names)
    whole = unwrapped(model)
    model, scale = _without_scaling(whole, scale)
    steps, exact = _steps(model)
    linear = [(name, layer) for name, layer in steps if not isinstance(layer, nn.BatchNorm1d)]
    if not linear:
        raise InputError(
            f"a formula needs linear or quadratic layers, got {type(model).__name__} without any: "
            "give a network of those"
        )
    for name, layer in linear:
        if not isinstance(layer, (nn.Linear, NeuronLinear)):
            raise InputError(
                f"a formula needs layers over columns, got {type(layer).__name__} (layer "
                f"{name!r}): give a network of linear layers"
            )
    inputs = int(linear[0][1].in_features)  # type: ignore[arg-type]
    names = [f"x{i}" for i in range(inputs)] if names is None else list(names)
    if len(names) != inputs:
        raise InputError(f"the network has {inputs} inputs, got {len(names)} names: give as many")
    # A name may hold blanks or brackets: a symbol takes it as it is.
    symbols = tuple(sp.Symbol(name, real=True) for name in names)
    outputs = None
    if exact:
        _check_terms(linear, inputs)
        made = [
            [share * output for output in _compose(sp, _steps(part)[0], symbols, scale)]
            for part, share in _parts(whole, model)
        ]
        polynomials = [sum(terms[1:], terms[0]) for terms in zip(*made, strict=True)]
        outputs = _expressions(
            sp, _sparse(sp, polynomials, rows) if sparse else polynomials, digits
        )
    elif sparse:
        raise InputError(
            "a sparse formula needs a network without activations, got one with: fit with "
            "activation='none', or search with quadric.discover.formulas"
        )
    layers = {}
    for place, (name, layer) in enumerate(linear):
        count = int(layer.in_features)  # type: ignore[arg-type]
        own = symbols if place == 0 else sp.symbols(f"x0:{count}", real=True)
        layers[name] = _expressions(sp, _compose(sp, [(name, layer)], own, None), digits)
    return NetworkFormula(symbols, outputs, layers)


def _refuse_pressed(model: Any, names: Sequence[str] | None) -> None:
    if hasattr(model, "transform"):
        raise InputError(
            "the target was transformed before it was learned, so the estimator is no polynomial "
            "of the columns: fit without target_transform"
        )
    pressed = getattr(model, "pressed", ())
    if pressed:
        listed = ", ".join(repr(f"x{i}" if names is None else names[i]) for i in pressed)
        raise InputError(
            f"the estimator presses far-out numbers of {listed} together, so it computes no "
            "polynomial there: fit with standardize='plain'"
        )


def _sparse(sp: Any, polynomials: Sequence[Any], rows: tuple[Any, Any] | None) -> list[Any]:
    """Only the monomials that the rows call for, with the factors of least squares."""
    from quadric.discover.selection import backward, solved

    if rows is None:
        raise InputError("a sparse formula is chosen by rows, got none: give rows=(X, y)")
    X, targets = (np.asarray(part, dtype=np.float64) for part in rows)
    targets = targets.reshape(len(X), -1)
    found = []
    for place, y in enumerate(polynomials):
        powers = [list(monomial) for monomial, factor in y.terms() if factor]
        if len(powers) > len(X) // 2 or targets.shape[1] != len(polynomials):
            raise InputError(
                f"a sparse formula needs twice as many rows as monomials ({len(powers)}) and a "
                f"target for each output, got {len(X)} rows and {targets.shape[1]} targets"
            )
        D = np.column_stack([np.prod(X ** np.array(p), axis=1) for p in powers])
        sets = backward(D, targets[:, place], np.full(len(powers), np.log(len(X))))
        kept, _ = min(sets, key=lambda pair: pair[1], default=([], 0.0))
        answer = solved(D[:, kept], targets[:, place])
        if answer is None:
            raise InputError("the monomials of the network cannot be told apart on these rows")
        terms = {tuple(powers[k]): float(c) for k, c in zip(kept, answer[0], strict=True)}
        found.append(sp.Poly(terms, *y.gens, domain="RR"))
    return found


def has_formula(model: nn.Module) -> bool:
    """Whether a network is a polynomial of its inputs: no activation stands between its layers."""
    return _steps(_without_scaling(unwrapped(model), None)[0])[1]


def _without_scaling(
    model: nn.Module, scale: Standardization | None
) -> tuple[nn.Module, Standardization | None]:
    """An estimator's module as the network in it and its scaling."""
    fields = ("input_mean", "input_scale", "target_mean", "target_scale")
    network = getattr(model, "network", None)
    if not isinstance(network, nn.Module) or (
        getattr(model, "others", False) and not _steps(network)[1]
    ):
        return model, scale
    if not all(isinstance(getattr(model, name, None), Tensor) for name in fields):
        return model, scale
    return network, Standardization(*(getattr(model, name) for name in fields))  # type: ignore[return-value]


def _parts(whole: nn.Module, network: nn.Module) -> list[tuple[nn.Module, float]]:
    """The networks that a prediction is the mean of, with their shares."""
    if whole is network:
        return [(network, 1.0)]
    others: Any = whole.others
    networks: Any = [network, *others]
    line: Any = getattr(whole, "linear", None)
    share = 1.0 if line is None else float(whole.share)  # type: ignore[arg-type]
    return [(one, share / len(networks)) for one in networks] + (
        [] if line is None else [(line, 1 - share)]
    )


def _steps(model: nn.Module) -> tuple[list[tuple[str, nn.Module]], bool]:
    """The layers in order, and whether nothing else stands between them."""
    leaves: list[tuple[str, nn.Module]] = []
    known = True

    def walk(name: str, module: nn.Module) -> None:
        nonlocal known
        if isinstance(module, nn.Sequential):
            for child, inner in module.named_children():
                walk(f"{name}.{child}" if name else child, inner)
        elif _is_layer(module) or isinstance(module, nn.BatchNorm1d):
            leaves.append((name, module))
        elif not isinstance(module, _IDENTITIES):
            known = False
            below = ((f"{name}.{n}".strip("."), m) for n, m in module.named_modules())
            leaves.extend((n, m) for n, m in below if _is_layer(m))

    walk("", model)
    return leaves, known


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, (QuadraticLayer, nn.Linear, nn.modules.conv._ConvNd))


def _check_terms(layers: Sequence[tuple[str, nn.Module]], inputs: int) -> None:
    degree = 2 ** sum(isinstance(layer, QuadraticLayer) for _, layer in layers)
    terms = math.comb(inputs + degree, degree)
    if terms > MOST_TERMS:
        raise InputError(
            f"a polynomial of degree {degree} in {inputs} inputs has up to {terms:,} terms, more "
            f"than {MOST_TERMS:,}: give a smaller network"
        )


def _compose(
    sp: Any,
    steps: Sequence[tuple[str, nn.Module]],
    symbols: Sequence[Any],
    scale: Standardization | None,
) -> list[Any]:
    """All layers one after another, multiplied out as polynomials."""
    values = [sp.Poly(symbol, *symbols, domain="RR") for symbol in symbols]
    if scale is not None:
        pairs = zip(values, scale.input_mean.tolist(), scale.input_std.tolist(), strict=True)
        values = [(x - mean) * (1 / deviation) for x, mean, deviation in pairs]
    for _, layer in steps:
        normal = isinstance(layer, nn.BatchNorm1d)
        values = _normalized(layer, values) if normal else _outputs(sp, layer, values)  # type: ignore[arg-type]
    if scale is not None:
        mean, deviation = scale.target_mean.flatten(), scale.target_std.flatten()
        pairs = zip(values, mean.tolist(), deviation.tolist(), strict=True)
        values = [y * deviation + mean for y, mean, deviation in pairs]
    return values


def _outputs(sp: Any, layer: nn.Module, values: Sequence[Any]) -> list[Any]:
    """The outputs of one layer, its inputs being polynomials."""
    matrices, weights, biases = dense_form(layer)
    products = {
        (i, j): values[i] * values[j]
        for i, j in (matrices.abs().sum(0) > 0).nonzero().tolist()
        if i <= j
    }
    outputs = []
    for m, w, c in zip(matrices.tolist(), weights.tolist(), biases.tolist(), strict=True):
        total = sp.Poly(c, *values[0].gens, domain="RR")
        for factor, value in zip(w, values, strict=True):
            total += value * factor
        for (i, j), product in products.items():
            total += product * ((m[i][j] + m[j][i]) / (2 if i == j else 1))
        outputs.append(total)
    return outputs


def _normalized(layer: nn.BatchNorm1d, values: Sequence[Any]) -> list[Any]:
    if layer.running_mean is None or layer.running_var is None:
        raise InputError(
            "a batch normalization must keep running statistics to be a formula, got one without: "
            "leave it out"
        )
    factor = 1 / (layer.running_var.double() + layer.eps).sqrt()
    if layer.affine:
        factor = factor * layer.weight.double()
    shift = -layer.running_mean.double() * factor
    if layer.affine:
        shift = shift + layer.bias.double()
    rows = zip(values, factor.tolist(), shift.tolist(), strict=True)
    return [value * a + b for value, a, b in rows]


def _expressions(sp: Any, polynomials: Sequence[Any], digits: int | None) -> tuple[Any, ...]:
    """Sums of factors and monomials; each factor rounded to so many significant digits."""

    def term(powers: Sequence[int], factor: Any, symbols: Sequence[Any]) -> Any:
        monomial = sp.prod([x**p for x, p in zip(symbols, powers, strict=True)])
        number = float(factor) if digits is None else float(f"{float(factor):.{digits}g}")
        return (sp.Float(number) if digits is None else sp.Float(number, digits)) * monomial

    return tuple(
        sp.Add(*(term(powers, factor, y.gens) for powers, factor in y.terms() if factor))
        for y in polynomials
    )
