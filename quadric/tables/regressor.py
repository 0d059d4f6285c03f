"""QuadraticRegressor: a network of quadratic neurons for one or several targets."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import d2_pinball_score
from sklearn.model_selection import KFold
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.tables.estimators import QuadraticNetwork
from quadric.tables.inputs import Arrays, as_pandas, refuse_large
from quadric.tables.jobs import Job
from quadric.tables.linear import LinearPart
from quadric.tables.losses import SQUARED, Loss, pinball
from quadric.tables.modules import Scaled, TableRegressor, input_scaling, mean_and_scale
from quadric.tables.parameters import ParameterCheck, is_finite
from quadric.tables.scoring import worse_than_ridge
from quadric.tables.second_order import SOLVERS, MemberBars, choose_
from quadric.tables.target_transforms import TRANSFORMS, TransformedRegressor, make_transform

LOSSES = ("squared_error", "absolute_error", "quantile")


@dataclass(eq=False, repr=False)
class QuadraticRegressor(RegressorMixin, MultiOutputMixin, QuadraticNetwork):  # type: ignore[misc]
    """Regression with a small network of quadratic neurons.

    Parameters are named and meant as in `sklearn.neural_network.MLPRegressor`. What differs:
    `solver`, `activation`, `learning_rate_init`, `max_iter` and `n_iter_no_change` have
    other defaults, chosen on many tables (docs/defaults.md); `early_stopping` is "auto"; inputs and
    target are standardized; and `tol` is a fraction of the loss (on smooth data the error keeps
    falling long after an absolute tolerance would have stopped).

    Args:
        hidden_layer_sizes: width of each hidden layer.
        neuron: the neuron of the hidden layers, a name of `quadric.neurons()`; "linear" for an
            ordinary network.
        rank: the neuron's rank; None for the neuron's own default.
        neuron_options: further options of the neuron, such as {"act": "gelu"} of glu.
        members: networks that learn side by side, each from its own start and with other rows held
            out; predictions are their mean.
        activation: "silu", "relu", "tanh", "gelu", "sigmoid", "none" or another name of
            `quadric.models.activations.ACTIVATIONS`.
        loss: the loss to minimize: "squared_error" predicts the mean, "absolute_error" the median,
            "quantile" a quantile.
        quantile: the quantile to predict, between 0 and 1, or several in their order, such as
            (0.05, 0.5, 0.95), which never cross: each has an output, and outputs are sorted. None
            without `loss="quantile"`.
        target_transform: for skewed targets, undone in `predict`: "log" (all targets above 0);
            "quantile", a curve that makes them normal; "auto": "log" where a target is positive
            and strongly skewed (above 1, and at most half of that as a logarithm), else nothing.
            The network learns the mean of the transformed target, which lies below that of the
            target itself.
        alpha: L2 penalty of the weights, divided by the rows of a minibatch; quadratic parameters
            and biases have none.
        shrinkage: the strength that pulls the weights of each column to zero at the start of `fit`,
            as a share of what Adam can move them. The pull fades within some hundred steps. It
            keeps useless columns out; 0 for none.
        batch_size: rows of a minibatch; "auto" is min(200, rows).
        learning_rate: "constant", or "adaptive": when the loss no longer falls, the learning rate
            does, to a fifth, three times, before the fit stops. Costs two to three times the
            epochs and lowers the error.
        learning_rate_init: learning rate of Adam.
        quadratic_lr: learning rate of the quadratic parameters; None for the same. A tenth of it
            nearly removes the gain.
        max_iter: the most epochs to train.
        max_time: seconds of training, after which the epoch is the last one; None: no limit.
        tol: the fraction by which the loss must fall to count as an improvement.
        early_stopping: hold a part of the rows out, stop when its loss no longer falls and keep
            the best epoch. "auto": from 100 rows on.
        validation_fraction: the part that is held out.
        scoring: the scorer, a name of scikit-learn, whose best epoch early stopping keeps, measured
            in the unit of the target; None: the loss.
        n_iter_no_change: epochs without improvement before it stops; four times as many for a
            network that is hardly better than ridge regression on the held-out rows.
        standardize: give inputs and targets mean 0 and deviation 1, weighted by `sample_weight`;
            press inputs together that lie far from the median (`modules.Scaled`). "plain": without
            that, so that products and powers also hold far out. False: neither.
        solver: "adam"; "lm" goes on with Levenberg-Marquardt after Adam, from there and from other
            starts: a lower error on smooth functions and error bars, for seconds up to some
            thousand parameters; "auto" does so where about 10 seconds are enough (squared loss,
            small table and network), and ends it after about 2 where nothing is gained.
        random_state: the seed of the start, the order of the rows and the part that is held out.
        warm_start: `fit` goes on with the network and the scaling that are there.
        verbose: print the loss of each epoch.
        device: the device on which the network learns and predicts.
        na_values: cells of a frame that stand for a hole, besides empty ones and, among numbers and
            dates, words such as "n.a.", "-" and "?".
        linear_fallback: let ridge regression (or logistic regression) take the network's place
            where the network's error on the held-out rows is not lower. Both learn the same rows.
            Without held-out rows, with `warm_start`, for losses that are no squares and for more
            than 500 prepared columns the network stays.

    Attributes:
        module_: the fitted network with its scaling; `to_torch()` gives a copy.
        loss_curve_: training loss of each epoch, on standardized targets, without the penalty.
        best_loss_: the lowest of them.
        validation_scores_: R^2 on the part that was held out, each epoch (of the transformed
            target; for losses that are no squares minus the loss; with `scoring` that score); None
            without.
        best_validation_score_: the validation score of the epoch that was kept.
        n_iter_: the number of epochs, and of second-order steps.
        solver_: "adam" or "lm".
        solver_reason_: why that one, how it went, and the held-out errors of the network and of
            the linear model.
        fallback_: the linear model in the network's place, "ridge regression" or "logistic
            regression"; None where the network stays.
        n_features_in_: the number of columns.
        feature_names_in_: the names of the columns, where X had any.
        prepared_names_: the columns that the network takes, made of those by `prepare`.
        columns_: a frame: how each column is read, its holes, how many prepared columns it
            becomes, and why it is dropped.
        dropped_columns_: columns of a frame that nothing can be learned from, with the reason.
        n_outputs_: the number of targets.
        n_layers_: the number of layers, input and output included.
        n_parameters_: parameters of the network.

    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).uniform(1, 3, (500, 2))
        >>> y = X[:, 0] * X[:, 1]
        >>> model = QuadraticRegressor((16,), max_iter=1000, random_state=0).fit(X, y)
        >>> bool(model.score(X, y) > 0.99)
        True
    """

    loss: str = "squared_error"
    quantile: float | Sequence[float] | None = None
    target_transform: str | None = None
    solver: str = "auto"

    def _encode(self, y: np.ndarray, dtype: np.dtype, first: bool) -> np.ndarray:
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        targets = np.asarray(y.reshape(len(y), -1), dtype=dtype)
        refuse_large(targets, [f"y[{i}]" for i in range(targets.shape[1])])
        levels = self._levels()
        if len(levels) > 1:
            if targets.shape[1] > 1:
                raise InputError(
                    f"several quantiles are of one target, got y with {targets.shape[1]} columns: "
                    "fit an estimator for each"
                )
            targets = np.repeat(targets, len(levels), 1)
        if first:
            self._flat = y.ndim == 1 and len(levels) < 2
            self.n_outputs_ = targets.shape[1]
        if targets.shape[1] != self.n_outputs_:
            raise InputError(
                f"y must have {self.n_outputs_} columns like the first one, got "
                f"{targets.shape[1]}: fit a new estimator"
            )
        return targets

    def _loss(self) -> Loss:
        return SQUARED if self.loss == "squared_error" else pinball(*(self._levels() or (0.5,)))

    def _levels(self) -> tuple[float, ...]:
        """The quantiles to predict."""
        if self.loss != "quantile":
            return ()
        return tuple(float(level) for level in np.atleast_1d(np.asarray(self.quantile)))

    def _checks(self) -> list[ParameterCheck]:
        names, given = LOSSES, self.quantile
        right, rule = given is None, "None unless loss='quantile'"
        if self.loss == "quantile":
            levels = list(given) if isinstance(given, Sequence | np.ndarray) else [given]
            right = all(is_finite(level) and 0 < float(level) < 1 for level in levels)  # type: ignore[arg-type]
            right = right and bool(levels) and levels == sorted(set(levels))  # type: ignore[type-var]
            rule = "a number > 0 and < 1, or several of them that rise"
        transforms = self.target_transform in TRANSFORMS
        return [
            *super()._checks(),
            ("loss", self.loss in names, f"one of {', '.join(names)}"),
            ("quantile", right, rule),
            ("solver", self.solver in SOLVERS, f"one of {', '.join(SOLVERS)}"),
            ("target_transform", transforms, f"one of {', '.join(map(str, TRANSFORMS))}"),
        ]

    def _make_module(self, network: nn.Sequential, rows: Arrays) -> Scaled:
        X, targets, weights = rows
        wanted = bool(self.standardize)
        inputs = input_scaling(X, weights, self.standardize)
        transform = make_transform(self.target_transform, targets, weights)
        if transform is not None:
            targets = transform.straighten(targets)
        scale = mean_and_scale(targets, weights, wanted)
        if transform is None:
            module = TableRegressor(network, inputs, scale, self._flat)
        else:
            module = TransformedRegressor(network, inputs, scale, self._flat, transform)
        module.ordered = len(self._levels()) > 1
        return module

    def _targets(self, targets: np.ndarray, module: Scaled) -> Tensor:
        assert isinstance(module, TableRegressor)
        if isinstance(module, TransformedRegressor):
            targets = module.transform.straighten(targets)
        values = torch.tensor(targets, device=module.target_mean.device)
        return (values - module.target_mean) / module.target_scale

    def _choose_solver(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            choose_(job, self.solver, len(jobs))
        self._error_bars = MemberBars(jobs) if jobs[0].solver == "lm" else None

    def _truth(self, targets: np.ndarray) -> np.ndarray:
        return targets.ravel() if self._flat else targets

    def predict(
        self, X: Any, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predicts targets.

        Args:
            X: (rows, columns).
            return_std: also the standard deviation of each new target, noise included, as
                scikit-learn's BayesianRidge gives it. Only a fit by Levenberg-Marquardt has it.

        Returns:
            (rows,), or (rows, targets) if there are several targets or quantiles; with `return_std`
            two such arrays.

        Raises:
            InputError: for `return_std` without a fit by Levenberg-Marquardt.
        """
        return (self._forward(X), self._std(X)) if return_std else self._forward(X)

    def _measure_gaps(self, jobs: Sequence[Job], part: LinearPart) -> np.ndarray | None:
        if self.loss == "squared_error" and not part.name:
            worse = [worse_than_ridge(job.network, job.train, job.validation) for job in jobs]
            if max(worse) > 1:
                warnings.warn(
                    f"the fit ends with {max(worse):.1f} times the squared error of ridge "
                    "regression: try another random_state, several members, or ridge itself",
                    ConvergenceWarning,
                    stacklevel=5,
                )
        if not part.outputs or self.loss == "quantile":
            return None
        answer = self.module_.answer
        held = [job.validation.targets for job in jobs if job.validation is not None]
        gaps = [answer(own) - answer(truth) for own, truth in zip(part.outputs, held, strict=True)]
        return torch.cat(gaps).abs().cpu().numpy()

    def calibrate(self, X: Any, y: Any, cv: int = 5) -> QuadraticRegressor:
        """Measures how far predictions lie from targets that were not learned from, for intervals.

        Copies of the estimator are fitted to all parts but one of the rows. That takes `cv` fits,
        and makes intervals of few rows, or of several members, as wide as they should be.

        Args:
            X: (rows, columns), such as those of `fit`.
            y: their targets.
            cv: the number of parts.

        Returns:
            The estimator; the network stays as it is.
        """
        check_is_fitted(self)
        X, y = as_pandas(X), np.asarray(self._read_target(y), dtype=np.float64)
        gaps = []
        for rest, part in KFold(cv, shuffle=True, random_state=0).split(y):
            apart = clone(self)
            if self.early_stopping == "auto":  # as the fit did, though these rows are fewer
                apart.set_params(early_stopping=self.validation_scores_ is not None)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                apart.fit(_take(X, rest), y[rest])
            gaps.append(np.abs(apart.predict(_take(X, part)) - y[part]))
        self._gaps = np.concatenate(gaps)
        return self

    def predict_interval(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Predicts an interval for each target: a share `coverage` of new targets lies inside.

        The interval reaches from the prediction as far as the held-out targets lay from theirs
        (split conformal prediction), so it has one width. The rows are those that early stopping
        held out, or all rows after `calibrate`. New rows must be like the ones that were learned
        from; members make the first kind too wide, as each holds out rows of its own.

        Args:
            X: (rows, columns).
            coverage: the share, between 0 and 1.

        Returns:
            (rows, 2): low and high; with several targets (rows, targets, 2).

        Raises:
            InputError: if no rows, or too few for this coverage, were held out.
        """
        check_is_fitted(self)
        width = self._interval_width(coverage)
        middle = self._forward(X)
        return np.stack([middle - width, middle + width], axis=-1)

    def _interval_width(self, coverage: float) -> np.ndarray:
        """How far an interval reaches to either side."""
        if not 0 < coverage < 1:
            raise InputError(f"coverage must be a number > 0 and < 1, got {coverage}: 0.9 is usual")
        count = 0 if self._gaps is None else len(self._gaps)
        place = math.ceil((count + 1) * coverage - 1e-9)
        if self._gaps is None or place > count:
            raise InputError(
                f"intervals of coverage {coverage} need at least "
                f"{math.ceil(coverage / (1 - coverage) - 1e-9)} rows that were held out, got "
                f"{count}: call calibrate(X, y), or fit with early stopping"
            )
        return np.asarray(np.sort(self._gaps, axis=0)[place - 1])

    def _std(self, X: Any) -> np.ndarray:
        """The error bars of predictions, in the unit of the target."""
        check_is_fitted(self)
        module = self.module_
        assert isinstance(module, TableRegressor)
        if isinstance(module, TransformedRegressor):
            raise InputError(
                f"error bars need a target as it is, got target_transform={self.target_transform!r}"
                ": fit without"
            )
        if self._error_bars is None and self.solver_ == "lm":
            raise InputError("a loaded estimator has no error bars: use predict_interval")
        if self._error_bars is None or self.solver_ != "lm":
            raise InputError(
                f"return_std needs a fit by Levenberg-Marquardt, got one by Adam "
                f"({self.solver_reason_}): fit with solver='lm'"
            )
        rows = torch.tensor(self.prepare(X)).to(module.input_mean)
        with torch.no_grad():
            std = self._error_bars.std(module.networks, module.standardized(rows))
        std = (std * module.target_scale).to(module.target_scale.dtype).cpu()
        return (std.squeeze(-1) if module.flat else std).numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of the predictions; of several quantiles the share of the pinball loss that is saved.

        Args:
            X: (rows, columns).
            y: the targets, written as in `fit`.
            sample_weight: a weight for each row.

        Returns:
            The score.
        """
        y, levels = self._read_target(y), self._levels()
        if len(levels) < 2:
            return float(super().score(X, y, sample_weight))
        pairs = zip(self.predict(X).T, levels, strict=True)  # type: ignore[union-attr]
        scores = [d2_pinball_score(y, q, sample_weight=sample_weight, alpha=a) for q, a in pairs]
        return float(np.mean(scores))

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> QuadraticRegressor:
        """Learns these rows for one epoch, without early stopping.

        The first call fixes the scaling.

        Args:
            X: (rows, columns).
            y: their targets.
            sample_weight: a weight for each row.

        Returns:
            The estimator.
        """
        fresh = self._copied()
        fresh._partial_fit(X, y, sample_weight)
        return self._become(fresh)


def _take(X: Any, rows: np.ndarray) -> Any:
    return X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows]
