"""What the parameters of an estimator must be, checked when `fit` is called."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.metrics import get_scorer_names

from quadric.errors import InputError
from quadric.models.activations import ACTIVATIONS

ParameterCheck = tuple[str, bool, str]
"""The name of a parameter, whether it is right, and what it must be."""


def shared_checks(model: Any) -> list[ParameterCheck]:
    """The checks of both estimators."""
    sizes, batch, waits = model.hidden_layer_sizes, model.batch_size, model.n_iter_no_change
    lr, fraction, seconds = model.learning_rate_init, model.validation_fraction, model.max_time
    listed = isinstance(sizes, (numbers.Integral, Sequence, np.ndarray))
    whole = listed and not isinstance(sizes, str) and all(map(counts, np.atleast_1d(sizes)))
    rates, stops = ("constant", "adaptive"), (True, False, "auto")
    plain = isinstance(model.standardize, str) and model.standardize == "plain"
    scorer = model.scoring is None or model.scoring in get_scorer_names()
    return [
        ("hidden_layer_sizes", whole, "whole numbers >= 1, as in (64, 64)"),
        ("members", counts(model.members), "a whole number >= 1"),
        ("activation", model.activation in ACTIVATIONS, f"one of {', '.join(ACTIVATIONS)}"),
        ("batch_size", batch == "auto" or counts(batch), "'auto' or a whole number >= 1"),
        ("early_stopping", model.early_stopping in stops, "True, False or 'auto'"),
        ("standardize", plain or is_switch(model.standardize), "True, False or 'plain'"),
        ("warm_start", is_switch(model.warm_start), "True or False"),
        ("linear_fallback", is_switch(model.linear_fallback), "True or False"),
        ("random_state", seeds(model.random_state), "None, a RandomState or 0 <= seed < 2**32"),
        ("learning_rate", model.learning_rate in rates, "'constant' or 'adaptive'"),
        ("learning_rate_init", is_finite(lr) and lr > 0, "a finite number > 0"),
        ("alpha", is_finite(model.alpha), "a finite number >= 0"),
        ("shrinkage", is_finite(model.shrinkage), "a finite number >= 0"),
        ("tol", is_finite(model.tol), "a finite number >= 0"),
        (
            "validation_fraction",
            is_finite(fraction) and 0 < fraction < 1,
            "a finite number > 0 and < 1",
        ),
        ("max_iter", counts(model.max_iter), "a whole number >= 1"),
        (
            "max_time",
            seconds is None or (is_finite(seconds) and seconds > 0),
            "a finite number of seconds > 0 or None",
        ),
        (
            "quadratic_lr",
            model.quadratic_lr is None or is_finite(model.quadratic_lr),
            "a finite number >= 0 or None",
        ),
        ("n_iter_no_change", waits == math.inf or counts(waits), "a whole number >= 1 or infinite"),
        ("scoring", scorer, "None or a name of sklearn.metrics.get_scorer_names()"),
    ]


def check_parameters(model: Any, checks: Iterable[ParameterCheck]) -> None:
    """Raises an InputError that names the first parameter that is not right."""
    for name, is_right, wanted in checks:
        if not is_right:
            raise InputError(f"{name} must be {wanted}, got {getattr(model, name)!r}")


def counts(value: object) -> bool:
    """Whether a value is a whole number of at least one."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1


def is_switch(value: object) -> bool:
    """Whether a value is True or False."""
    return isinstance(value, bool | np.bool_)


def seeds(value: object) -> bool:
    """Whether scikit-learn takes a value as the source of random numbers."""
    if isinstance(value, numbers.Integral):
        return 0 <= int(value) < 2**32
    return value is None or value is np.random or isinstance(value, np.random.RandomState)


def is_finite(value: object) -> bool:
    """Whether a value is a finite number that is not negative."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and 0 <= float(value) < math.inf  # type: ignore[arg-type]


def check_device(device: Any) -> None:
    """Refuses a device that torch cannot use here."""
    reason = ""
    try:
        if torch.zeros(1, device=device).device.type != "meta":
            return
    # torch raises AssertionError if it was built without the device.
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = f" ({str(error).splitlines()[0][:80]})"
    raise InputError(
        f"device must be one that torch can use here, such as 'cpu', got {device!r}{reason}"
    )
