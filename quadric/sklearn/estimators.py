"""What QuadraticRegressor and QuadraticClassifier have in common: parameters, fitting, prediction.

Parameters are named and meant as in scikit-learn's MLPRegressor. What differs is said in the
docstrings of the two classes. A fit is three steps, so that several estimators can fit together
(`many.py`): `prepare_fit` makes a job of the data, `training.train` trains its network, `end_fit`
takes the outcome.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.sklearn.losses import Loss
from quadric.sklearn.modules import Scaled
from quadric.sklearn.networks import ACTIVATIONS, build_network
from quadric.sklearn.training import AdamState, Job, Outcome, Rows, Settings, train
from quadric.zoo import get_neuron

Self = TypeVar("Self", bound="QuadraticNetwork")

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Inputs, encoded targets and weights of rows, before they are standardized."""

AUTO_STOPPING_ROWS = 100
"""With early_stopping="auto" a fit stops early from this number of rows on."""

PREDICT_ROWS = 2**16
"""Rows predicted at once, so that hidden layers of a long table need not fit into memory."""


class QuadraticNetwork(BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Abstract: a network of quadratic neurons with scikit-learn's interface."""

    neuron_options: Mapping[str, Any] | None = None  # pickles from before it have none
    module_: Scaled
    _optimizer: AdamState | None
    n_iter_: int
    loss_curve_: list[float]

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (100,),
        *,
        neuron: str = "eigen",
        rank: int | None = None,
        neuron_options: Mapping[str, Any] | None = None,
        activation: str = "silu",
        alpha: float = 1e-4,
        batch_size: int | str = "auto",
        learning_rate: str = "constant",
        learning_rate_init: float = 3e-3,
        quadratic_lr: float | None = None,
        max_iter: int = 200,
        tol: float = 1e-4,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        standardize: bool = True,
        random_state: Any = None,
        warm_start: bool = False,
        verbose: bool = False,
        device: str = "cpu",
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.neuron = neuron
        self.rank = rank
        self.neuron_options = neuron_options
        self.activation = activation
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.learning_rate_init = learning_rate_init
        self.quadratic_lr = quadratic_lr
        self.max_iter = max_iter
        self.tol = tol
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.standardize = standardize
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.device = device

    # What the two classes add.

    def _encode(self, y: np.ndarray, dtype: np.dtype, first: bool) -> np.ndarray:
        """Targets as the loss takes them, before standardization.

        The first time it notes their form: `n_outputs_`, and the classes.

        Args:
            y: validated targets.
            dtype: of X.
            first: whether a new network will be made.
        """
        raise NotImplementedError

    def _loss(self) -> Loss:
        raise NotImplementedError

    def _make_module(self, network: nn.Sequential, rows: Arrays) -> Scaled:
        """The network with the scaling of these rows."""
        raise NotImplementedError

    def _targets(self, targets: np.ndarray) -> Tensor:
        """Encoded targets as the network sees them."""
        raise NotImplementedError

    def _stratify(self, targets: np.ndarray) -> np.ndarray | None:
        """What must have the same shares in the rows that are held out."""
        return None

    # Fitting.

    def fit(self: Self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fits the network to a table.

        Args:
            X: (rows, columns) numbers, an array or a data frame.
            y: the targets.
            sample_weight: of the rows; a row of weight 0 is as if it were not there.

        Returns:
            The estimator.

        Raises:
            InputError: if a parameter does not fit, or the training does not stay finite.
        """
        job = self.prepare_fit(X, y, sample_weight)
        self.end_fit(train([job])[0])
        return self

    def prepare_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Job:
        """The first half of `fit`: checks, splits, scales, builds. Then train the job."""
        self._check_parameters()
        continued = bool(self.warm_start) and hasattr(self, "module_")
        return self._prepare(X, y, sample_weight, continued=continued, stopping=True)

    def end_fit(self, outcome: Outcome) -> None:
        """The second half of `fit`: notes how the training went."""
        settings_max = int(self.max_iter)
        self._note(outcome, [])
        # Averages of an earlier network say nothing about this one: partial_fit starts new ones.
        self._optimizer = None
        if not (outcome.stopped or outcome.diverged_at) and len(outcome.losses) == settings_max:
            warnings.warn(
                f"Maximum iterations ({settings_max}) reached and the optimization hasn't "
                "converged yet: raise max_iter, or tol.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _partial_fit(self: Self, X: Any, y: Any, sample_weight: Any) -> Self:
        self._check_parameters()
        continued = hasattr(self, "module_")
        job = self._prepare(X, y, sample_weight, continued=continued, stopping=False)
        job.optimizer = getattr(self, "_optimizer", None) if continued else None
        job.settings = dataclasses.replace(job.settings, max_iter=1)
        outcome = train([job])[0]
        self._note(outcome, self.loss_curve_ if continued else [])
        # The optimizer goes on where it stopped; `fit` starts a new one.
        self._optimizer = outcome.optimizer
        return self

    def _note(self, outcome: Outcome, earlier: list[float]) -> None:
        """Sets the attributes of a fit that goes on after the earlier losses."""
        if not outcome.usable:
            del self.module_
            raise InputError(
                f"training must stay finite, but the loss of epoch {outcome.diverged_at} is not: "
                f"lower learning_rate_init (got {self.learning_rate_init}) or quadratic_lr (got "
                f"{self.quadratic_lr}), and leave standardize=True"
            )
        if outcome.diverged_at is not None:
            warnings.warn(
                f"the loss of epoch {outcome.diverged_at} is not finite; the best epoch before it "
                "was kept: lower learning_rate_init",
                ConvergenceWarning,
                stacklevel=4,
            )
        self.loss_curve_ = [*earlier, *outcome.losses]
        self.best_loss_ = min([*earlier, outcome.best_loss])
        self.loss_ = self.loss_curve_[-1]
        self.n_iter_ = len(self.loss_curve_)
        self.validation_scores_ = outcome.scores or None
        self.best_validation_score_ = outcome.best_score
        self.module_.eval()

    def _prepare(
        self, X: Any, y: Any, sample_weight: Any, *, continued: bool, stopping: bool
    ) -> Job:
        random_state = check_random_state(self.random_state)
        X, y = validate_data(
            self,
            X,
            y,
            dtype=[np.float64, np.float32],
            multi_output=True,
            y_numeric=is_regressor(self),
            reset=not continued,
        )
        weights = _check_sample_weight(sample_weight, X, dtype=X.dtype)
        X, y, weights = _without_zeros(X, y, weights)
        if continued:  # the first fit decided in which dtype the network computes
            dtype = str(self.module_.input_mean.dtype).removeprefix("torch.")
            X, weights = X.astype(dtype, copy=False), weights.astype(dtype, copy=False)
        targets = self._encode(y, X.dtype, first=not continued)
        split_seed, network_seed, order_seed = random_state.randint(2**31 - 1, size=3).tolist()
        rows, held = (X, targets, weights), None
        automatic = self.early_stopping == "auto"
        if stopping and (len(X) >= AUTO_STOPPING_ROWS if automatic else self.early_stopping):
            rows, held = self._split(rows, split_seed)
        if continued:
            self._check_network(X.shape[1])
        else:
            network = self._build(X.shape[1], dtype=getattr(torch, X.dtype.name), seed=network_seed)
            self.module_ = self._make_module(network, rows)
            self.n_layers_ = len(self.widths()) + 2
            self.n_parameters_ = sum(p.numel() for p in network.parameters())
        self.module_.to(self.device)
        batch: Any = 200 if self.batch_size == "auto" else self.batch_size
        quadratic_lr = self.learning_rate_init if self.quadratic_lr is None else self.quadratic_lr
        return Job(
            network=self.module_.network,
            train=self._rows(rows),
            validation=None if held is None else self._rows(held),
            loss=self._loss(),
            settings=Settings(
                batch_size=min(int(batch), len(rows[0])),
                max_iter=int(self.max_iter),
                tol=float(self.tol),
                patience=int(min(self.n_iter_no_change, 2**31)),
                alpha=float(self.alpha),
                adaptive=self.learning_rate == "adaptive",
                verbose=bool(self.verbose),
            ),
            lr=float(self.learning_rate_init),
            quadratic_lr=float(quadratic_lr),
            seed=order_seed,
        )

    def _rows(self, rows: Arrays) -> Rows:
        X, targets, weights = rows
        device = self.module_.input_mean.device
        inputs = self.module_.standardized(torch.tensor(X, device=device))
        weight = torch.tensor(weights, device=device)
        return Rows(inputs, self._targets(targets).to(device), weight)

    def _split(self, rows: Arrays, seed: int) -> tuple[Arrays, Arrays]:
        """The rows to learn from and those that are held out."""
        if len(rows[0]) < 2:
            raise InputError(
                f"early stopping needs at least 2 samples, got n_samples = {len(rows[0])}: set "
                "early_stopping=False"
            )
        X, X_held, targets, targets_held, weights, weights_held = train_test_split(
            *rows,
            test_size=self.validation_fraction,
            random_state=seed,
            stratify=self._stratify(rows[1]),
        )
        return (X, targets, weights), (X_held, targets_held, weights_held)

    def widths(self) -> tuple[int, ...]:
        """The widths of the hidden layers."""
        return tuple(int(size) for size in np.atleast_1d(self.hidden_layer_sizes))

    def _build(self, columns: int, **options: Any) -> nn.Sequential:
        return build_network(
            columns,
            self.n_outputs_,
            self.widths(),
            neuron=self.neuron,
            rank=self.rank,
            neuron_options=self.neuron_options,
            activation=self.activation,
            **options,
        )

    def _check_network(self, columns: int) -> None:
        """Refuses to go on with a network of another form (warm_start, partial_fit)."""
        wanted = _form(self._build(columns, device="meta"))
        have = _form(self.module_.network)
        if wanted != have:
            raise InputError(
                f"a network that goes on learning must keep its shape {have}, got {wanted}: fit a "
                "new estimator, or set warm_start=False"
            )

    def _check_parameters(self) -> None:
        get_neuron(self.neuron)
        _check_device(self.device)
        sizes, batch, waits = self.hidden_layer_sizes, self.batch_size, self.n_iter_no_change
        lr, fraction = self.learning_rate_init, self.validation_fraction
        listed = isinstance(sizes, (numbers.Integral, Sequence, np.ndarray))
        whole = listed and not isinstance(sizes, str) and all(map(_counts, np.atleast_1d(sizes)))
        rates, stops = ("constant", "adaptive"), (True, False, "auto")
        rules = [
            ("hidden_layer_sizes", whole, "whole numbers >= 1, as in (64, 64)"),
            ("activation", self.activation in ACTIVATIONS, f"one of {', '.join(ACTIVATIONS)}"),
            ("batch_size", batch == "auto" or _counts(batch), "'auto' or a whole number >= 1"),
            ("early_stopping", self.early_stopping in stops, "True, False or 'auto'"),
            ("learning_rate", self.learning_rate in rates, "'constant' or 'adaptive'"),
            ("learning_rate_init", _is_finite(lr) and lr > 0, "a finite number > 0"),
            ("alpha", _is_finite(self.alpha), "a finite number >= 0"),
            ("tol", _is_finite(self.tol), "a finite number >= 0"),
            (
                "validation_fraction",
                _is_finite(fraction) and 0 < fraction < 1,
                "a finite number > 0 and < 1",
            ),
            ("max_iter", _counts(self.max_iter), "a whole number >= 1"),
            (
                "quadratic_lr",
                self.quadratic_lr is None or _is_finite(self.quadratic_lr),
                "a finite number >= 0 or None",
            ),
            (
                "n_iter_no_change",
                waits == math.inf or _counts(waits),
                "a whole number >= 1 or infinite",
            ),
        ]
        for name, is_valid, rule in rules:
            if not is_valid:
                raise InputError(f"{name} must be {rule}, got {getattr(self, name)!r}")

    # Predicting.

    def _forward(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        mean = self.module_.input_mean
        pieces = []
        with torch.no_grad():
            for start in range(0, len(X), PREDICT_ROWS):
                rows = torch.tensor(X[start : start + PREDICT_ROWS])
                pieces.append(self.module_(rows.to(mean.device, mean.dtype)).cpu())
        return torch.cat(pieces).numpy()

    def to_torch(self) -> nn.Module:
        """The fitted network as a module of its own, with the scaling inside.

        It takes raw rows as a tensor and gives what `predict` gives (a classifier: what
        `predict_proba` gives). Its dtype is that of the table it was fitted to; `.float()` converts
        it.

        Returns:
            A copy; training it leaves the estimator as it is.
        """
        check_is_fitted(self)
        return copy.deepcopy(self.module_).requires_grad_().eval()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "module_" in state:  # a pickle must load where there is no such device
            state = {**state, "module_": copy.deepcopy(state["module_"]).cpu()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if hasattr(self, "module_") and torch.device(self.device).type == "cuda":
            if torch.cuda.is_available():
                self.module_.to(self.device)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "module_")


def _form(network: nn.Sequential) -> str:
    """Widths, neurons and activations of a network, in words."""
    layers = [layer for layer in network if hasattr(layer, "out_features")]
    widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
    text = "-".join(map(str, widths))
    if len(layers) == 1:
        return text
    names = {kind: name for name, make in ACTIVATIONS.items() for kind in [type(make())]}
    neuron, rank = getattr(layers[0], "neuron", "linear"), getattr(layers[0], "rank", None)
    label = neuron if rank is None else f"{neuron}[{rank}]"
    return f"{text} of {label} neurons with {names[type(network[1])]}"


def _without_zeros(
    X: np.ndarray, y: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if (weights < 0).any():
        raise InputError(f"sample_weight must not be negative, got {weights.min()}: leave rows out")
    kept = weights > 0
    if not kept.any():
        raise InputError("sample_weight must contain a non-zero number, got none: leave it out")
    if kept.all():
        return X, y, weights
    return X[kept], y[kept], weights[kept]


def _counts(value: object) -> bool:
    """Whether a value is a whole number of at least one."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1


def _is_finite(value: object) -> bool:
    """Whether a value is a finite number that is not negative."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and 0 <= float(value) < math.inf  # type: ignore[arg-type]


def _check_device(device: Any) -> None:
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
