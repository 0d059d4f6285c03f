"""What QuadraticRegressor and QuadraticClassifier have in common: parameters, fitting, prediction.

Parameters are named and meant as in scikit-learn's MLPRegressor. What differs is said in the
docstrings of the two classes. A fit is three steps, so that several estimators can fit together
(`many.py`): `prepare_fit` makes a job of the data, `training.train` trains its network, `end_fit`
takes the outcome.
"""

from __future__ import annotations

import copy
import math
import numbers
import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.sklearn.losses import Loss
from quadric.sklearn.modules import Scaled, mean_and_scale
from quadric.sklearn.networks import ACTIVATIONS, build_network
from quadric.sklearn.training import AdamState, Job, Outcome, Rows, Settings, train
from quadric.zoo import get_neuron

Self = TypeVar("Self", bound="QuadraticNetwork")

AUTO_STOPPING_ROWS = 100
"""With early_stopping="auto" a fit stops early from so many rows on."""

PREDICT_ROWS = 2**16
"""Rows predicted at once, so that hidden layers of a long table need not fit into memory."""


class QuadraticNetwork(BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Abstract: a network of quadratic neurons with scikit-learn's interface."""

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

    def _encode(self, y: Any, dtype: np.dtype, first: bool) -> np.ndarray:
        """Targets as the loss takes them, before standardization; the first time notes their form.

        Args:
            y: validated targets.
            dtype: of X.
            first: whether a new network will be made.
        """
        raise NotImplementedError

    def _loss(self) -> Loss:
        raise NotImplementedError

    def _outputs(self) -> int:
        """Outputs of the network."""
        raise NotImplementedError

    def _make_module(self, network: nn.Sequential, rows: _Arrays) -> Scaled:
        """The network with the scaling of these rows."""
        raise NotImplementedError

    def _targets(self, targets: np.ndarray) -> Tensor:
        """Encoded targets as the network sees them."""
        raise NotImplementedError

    def _stratify(self, targets: np.ndarray) -> np.ndarray | None:
        return None

    # Fitting.

    def fit(self: Self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fits the network to a table.

        Args:
            X: (rows, columns) numbers, an array or a data frame.
            y: the targets.
            sample_weight: of the rows; a row of weight 0 is as if it were not there.
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
        self._note(outcome, outcome.losses, outcome.scores)
        # Averages of an earlier network say nothing about this one: partial_fit begins anew.
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
        earlier = (self.loss_curve_, self.n_iter_) if continued else ([], 0)
        job = self._prepare(X, y, sample_weight, continued=continued, stopping=False)
        job.optimizer = getattr(self, "_optimizer", None) if continued else None
        job.settings = Settings(
            job.settings.batch_size, 1, self.tol, 1, self.alpha, verbose=bool(self.verbose)
        )
        outcome = train([job])[0]
        self._note(outcome, [*earlier[0], *outcome.losses], [])
        self.best_loss_ = min(self.loss_curve_)
        self.n_iter_ = earlier[1] + 1
        # The optimizer goes on where it stopped; `fit` starts a new one.
        self._optimizer = outcome.optimizer
        return self

    def _note(self, outcome: Outcome, losses: list[float], scores: list[float]) -> None:
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
        self.loss_curve_ = losses
        self.best_loss_ = outcome.best_loss
        self.loss_ = losses[-1]
        self.n_iter_ = len(outcome.losses)
        self.validation_scores_ = scores or None
        self.best_validation_score_ = outcome.best_score if scores else None
        self.module_.eval()

    def _prepare(
        self, X: Any, y: Any, sample_weight: Any, *, continued: bool, stopping: bool
    ) -> Job:
        random_state = check_random_state(self.random_state)
        X, y = self._validate(X, y, reset=not continued)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=X.dtype)
            X, y, weights = _without_zeros(X, y, weights)
        if continued and self.module_.input_mean.dtype != _torch_dtype(X.dtype):
            # The first fit decided in which dtype the network computes.
            X = X.astype(_numpy_dtype(self.module_.input_mean.dtype))
        targets = self._encode(y, X.dtype, first=not continued)
        seeds = [int(random_state.randint(2**31 - 1)) for _ in range(3)]
        rows = _Arrays(X, targets, weights)
        held: _Arrays | None = None
        if stopping and self._stops_early(len(X)):
            rows, held = rows.split(self.validation_fraction, seeds[0], self._stratify(targets))
        if not continued:
            network = build_network(
                X.shape[1],
                self._outputs(),
                self.widths(),
                neuron=self.neuron,
                rank=self.rank,
                activation=self.activation,
                dtype=_torch_dtype(X.dtype),
                seed=seeds[1],
            )
            self.module_ = self._make_module(network, rows)
            self.n_outputs_ = self._outputs()
            self.n_layers_ = len(self.widths()) + 2
            self.n_parameters_ = sum(p.numel() for p in network.parameters())
        else:
            self._check_network(X.shape[1])
        self.module_.to(self.device)
        batch = self.batch_size
        size = min(200, len(rows)) if batch == "auto" else min(int(batch), len(rows))
        quadratic_lr = self.learning_rate_init if self.quadratic_lr is None else self.quadratic_lr
        return Job(
            network=self.module_.network,
            train=self._rows(rows),
            validation=None if held is None else self._rows(held),
            loss=self._loss(),
            settings=Settings(
                batch_size=size,
                max_iter=int(self.max_iter),
                tol=float(self.tol),
                patience=int(min(self.n_iter_no_change, 2**31)),
                alpha=float(self.alpha),
                adaptive=self.learning_rate == "adaptive",
                verbose=bool(self.verbose),
            ),
            lr=float(self.learning_rate_init),
            quadratic_lr=float(quadratic_lr),
            seed=seeds[2],
        )

    def _validate(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError

    def _rows(self, rows: _Arrays) -> Rows:
        device = self.module_.input_mean.device
        inputs = self.module_.standardized(torch.tensor(rows.X, device=device))
        weights = None if rows.weights is None else torch.tensor(rows.weights, device=device)
        return Rows(inputs, self._targets(rows.targets).to(device), weights)

    def _stops_early(self, rows: int) -> bool:
        if self.early_stopping == "auto":
            return rows >= AUTO_STOPPING_ROWS
        return bool(self.early_stopping)

    def widths(self) -> tuple[int, ...]:
        """The widths of the hidden layers."""
        sizes = self.hidden_layer_sizes
        return tuple(int(size) for size in np.atleast_1d(sizes))

    def _check_network(self, columns: int) -> None:
        """Refuses to go on with a network of another form (warm_start, partial_fit)."""
        network = build_network(
            columns,
            self._outputs(),
            self.widths(),
            neuron=self.neuron,
            rank=self.rank,
            activation=self.activation,
            device="meta",
        )
        wanted, have = _form(network), _form(self.module_.network)
        if wanted != have:
            raise InputError(
                f"a network that goes on learning must keep its shape {have}, got {wanted}: fit a "
                "new estimator, or set warm_start=False"
            )

    def _check_device(self) -> None:
        try:
            usable = torch.zeros(1, device=self.device).device.type != "meta"
            reason = ""
        # torch says AssertionError where it was built without the device.
        except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
            usable, reason = False, f" ({str(error).splitlines()[0][:80]})"
        if not usable:
            raise InputError(
                f"device must be one that torch can use here, such as 'cpu', got {self.device!r}"
                f"{reason}"
            )

    def _check_parameters(self) -> None:
        get_neuron(self.neuron)
        self._check_device()
        sizes = self.hidden_layer_sizes
        valid = isinstance(sizes, numbers.Integral) or (
            isinstance(sizes, (Sequence, np.ndarray)) and not isinstance(sizes, str)
        )
        if not valid or any(not _is_whole(size) or size < 1 for size in np.atleast_1d(sizes)):
            raise InputError(
                f"hidden_layer_sizes must be whole numbers >= 1, got {sizes!r}: give for example "
                "(64, 64)"
            )
        if self.activation not in ACTIVATIONS:
            raise InputError(
                f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}"
            )
        batch: Any = self.batch_size
        if batch != "auto" and not (_is_whole(batch) and batch >= 1):
            raise InputError(
                f"batch_size must be 'auto' or a whole number >= 1, got {self.batch_size!r}"
            )
        if not (isinstance(self.early_stopping, (bool, np.bool_)) or self.early_stopping == "auto"):
            raise InputError(
                f"early_stopping must be True, False or 'auto', got {self.early_stopping!r}"
            )
        if self.learning_rate not in ("constant", "adaptive"):
            raise InputError(
                f"learning_rate must be 'constant' or 'adaptive', got {self.learning_rate!r}"
            )
        _check_number("alpha", self.alpha, 0)
        _check_number("learning_rate_init", self.learning_rate_init, 0, open_low=True)
        if self.quadratic_lr is not None:
            _check_number("quadratic_lr", self.quadratic_lr, 0)
        _check_number("tol", self.tol, 0)
        _check_number(
            "validation_fraction", self.validation_fraction, 0, 1, open_low=True, open_high=True
        )
        if not _is_whole(self.max_iter) or self.max_iter < 1:
            raise InputError(f"max_iter must be a whole number >= 1, got {self.max_iter!r}")
        waits = self.n_iter_no_change
        if waits != math.inf and (not _is_whole(waits) or waits < 1):
            raise InputError(
                f"n_iter_no_change must be a whole number >= 1 or infinite, got {waits!r}"
            )

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
        result: np.ndarray = torch.cat(pieces).numpy()
        return result

    def to_torch(self) -> nn.Module:
        """The fitted network as a module of its own, with the scaling inside.

        It takes raw rows as a tensor and gives what `predict` gives (a classifier: what
        `predict_proba` gives). Its dtype is that of the table it was fitted to; `.float()` converts
        it.
        """
        check_is_fitted(self)
        copied = _copy_module(self.module_)
        return copied.requires_grad_().eval()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "module_" in state:  # a pickle must load where there is no such device
            state = {**state, "module_": _copy_module(state["module_"]).cpu()}
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


class _Arrays:
    """Rows as arrays, before they are standardized."""

    def __init__(self, X: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> None:
        self.X, self.targets, self.weights = X, targets, weights

    def __len__(self) -> int:
        return len(self.X)

    def split(
        self, fraction: float, seed: int, stratify: np.ndarray | None
    ) -> tuple[_Arrays, _Arrays]:
        """Two parts, the second with this fraction of the rows."""
        if len(self) < 2:
            raise InputError(
                f"early stopping needs at least 2 samples, got n_samples = {len(self)}: set "
                "early_stopping=False"
            )
        kept, held = train_test_split(
            np.arange(len(self)), test_size=fraction, random_state=seed, stratify=stratify
        )
        return self._take(kept), self._take(held)

    def _take(self, index: np.ndarray) -> _Arrays:
        weights = None if self.weights is None else self.weights[index]
        return _Arrays(self.X[index], self.targets[index], weights)

    def scale_inputs(self, wanted: bool) -> tuple[Tensor, Tensor]:
        return mean_and_scale(self.X, self.weights, wanted)

    def scale_targets(self, wanted: bool) -> tuple[Tensor, Tensor]:
        return mean_and_scale(self.targets, self.weights, wanted)


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


def _copy_module(module: Scaled) -> Scaled:
    return copy.deepcopy(module)


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.float32 if dtype == np.float32 else torch.float64


def _numpy_dtype(dtype: torch.dtype) -> np.dtype:
    return np.dtype(np.float32 if dtype == torch.float32 else np.float64)


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _check_number(
    name: str,
    value: object,
    low: float,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number) and low <= number <= high:
            if not (open_low and number == low) and not (open_high and number == high):
                return
    bounds = f"{'>' if open_low else '>='} {low:g}"
    if high < math.inf:
        bounds += f" and {'<' if open_high else '<='} {high:g}"
    raise InputError(f"{name} must be a finite number {bounds}, got {value!r}")
