"""QuadraticClassifier: a network of quadratic neurons for two or more classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.tables.estimators import QuadraticNetwork
from quadric.tables.inputs import Arrays
from quadric.tables.losses import LOGISTIC, SOFTMAX, Loss
from quadric.tables.modules import Scaled, TableClassifier, input_scaling
from quadric.tables.parameters import ParameterCheck, is_finite


@dataclass(eq=False, repr=False)
class QuadraticClassifier(ClassifierMixin, QuadraticNetwork):  # type: ignore[misc]
    """Classification with a small network of quadratic neurons.

    Labels may be numbers, strings or anything else that sorts. Two classes have one output, more
    have one each. Parameters are those of `QuadraticRegressor`, which describes them, without
    `loss`, `quantile` and `target_transform`, but with `class_weight`. Early stopping keeps the
    epoch with the lowest log loss on the rows that are held out (scikit-learn: the highest
    accuracy, which moves in jumps where these rows are few); they have the same share of every
    class.

    Args:
        class_weight: Weights of the classes, which multiply those of the rows: a mapping from
            labels to numbers (1 where a class is not in it), or "balanced": all classes weigh the
            same together. None: all rows count the same. Probabilities are then those of the
            weighted rows.

    Attributes:
        classes_: the labels, sorted.
        validation_scores_: accuracy, or `scoring`, on the part that was held out, each epoch;
            None without. The other attributes are those of `QuadraticRegressor`.

    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(400, 2))
        >>> y = np.where((X**2).sum(1) < 1.4, "inside", "outside")
        >>> model = QuadraticClassifier((16,), max_iter=1000, random_state=0).fit(X, y)
        >>> [str(label) for label in model.classes_]
        ['inside', 'outside']
    """

    class_weight: Mapping[Any, float] | str | None = None
    _given_classes = False

    def _encode(self, y: np.ndarray, dtype: np.dtype, first: bool) -> np.ndarray:
        mixed = {isinstance(v, str): v for v in y.ravel()} if y.dtype == object else {}
        if len(mixed) > 1:
            raise InputError(
                f"y must hold labels of one kind, got {mixed[True]!r} and {mixed[False]!r}: turn "
                "all of them into text, as by y.astype(str)"
            )
        check_classification_targets(y)
        if y.ndim == 2 and y.shape[1] > 1:
            raise InputError(
                f"y must be one column of labels, got shape {y.shape}: fit one classifier per "
                "column (sklearn.multioutput.MultiOutputClassifier)"
            )
        y = column_or_1d(y, warn=True)
        if first:
            if not self._given_classes:
                self.classes_ = np.unique(y)
            if len(self.classes_) < 2:
                raise InputError(
                    f"y must have at least 2 classes, got 1 class, "
                    f"{self.classes_[0]!s}: give rows of another one"
                )
            self.n_outputs_ = 1 if len(self.classes_) == 2 else len(self.classes_)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InputError(
                f"y must hold the labels {self.classes_.tolist()} of the first call, got "
                f"{unknown.tolist()}: name all labels in the first partial_fit(..., classes=), fit "
                "a new estimator, or leave them out of the eval_set"
            )
        return np.searchsorted(self.classes_, y)

    def _class_weights(self, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
        wanted, number = self.class_weight, len(self.classes_)
        if wanted is None:
            return np.ones(number)
        if isinstance(wanted, str):  # "balanced": all classes weigh the same
            sums = np.bincount(targets, weights, number)
            return np.divide(weights.sum(), number * sums, out=np.zeros(number), where=sums > 0)
        labels = self.classes_.tolist()
        unknown = [label for label in wanted if label not in labels]
        if unknown:
            raise InputError(
                f"class_weight must name classes of y, {labels}, got {unknown}: correct the labels"
            )
        return np.asarray([wanted.get(label, 1.0) for label in labels], dtype=np.float64)

    def _checks(self) -> list[ParameterCheck]:
        wanted = self.class_weight
        right = wanted is None or (isinstance(wanted, str) and wanted == "balanced")
        if isinstance(wanted, Mapping):
            weights = list(wanted.values())
            right = all(is_finite(weight) and weight > 0 for weight in weights)
        rule = "None, 'balanced' or a mapping from labels to finite numbers > 0"
        return [*super()._checks(), ("class_weight", right, rule)]

    def _loss(self) -> Loss:
        return LOGISTIC if len(self.classes_) == 2 else SOFTMAX

    def _make_module(self, network: nn.Sequential, rows: Arrays) -> Scaled:
        X, _, weights = rows
        inputs = input_scaling(X, weights, self.standardize)
        return TableClassifier(network, inputs, len(self.classes_))

    def _targets(self, targets: np.ndarray, module: Scaled) -> Tensor:
        if len(self.classes_) == 2:
            return torch.tensor(targets, dtype=module.input_mean.dtype)
        return torch.tensor(targets, dtype=torch.int64)

    def _truth(self, targets: np.ndarray) -> np.ndarray:
        return np.asarray(self.classes_[targets])

    def _stratify(self, targets: np.ndarray) -> np.ndarray | None:
        counts = np.bincount(targets, minlength=len(self.classes_))
        counts = counts[counts > 0]
        held = int(np.ceil(self.validation_fraction * len(targets)))
        # A class of one row cannot be in both parts, and each part must have room for all classes.
        if counts.min() < 2 or min(held, len(targets) - held) < len(counts):
            return None
        return targets

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predicts the probability of each class.

        Args:
            X: (rows, columns).

        Returns:
            (rows, classes), in the order of `classes_`.
        """
        return self._forward(X)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Predicts the logarithm of the probability of each class.

        Args:
            X: (rows, columns).

        Returns:
            (rows, classes), in the order of `classes_`.
        """
        return np.asarray(np.log(self.predict_proba(X)))

    def predict(self, X: Any) -> np.ndarray:
        """Predicts the most probable label of each row.

        Args:
            X: (rows, columns).

        Returns:
            (rows,) labels.
        """
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(1)])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of the predictions.

        Args:
            X: (rows, columns).
            y: the targets, written as in `fit`.
            sample_weight: a weight for each row.

        Returns:
            The score.
        """
        return float(super().score(X, self._read_target(y), sample_weight))

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> QuadraticClassifier:
        """Learns these rows for one epoch, without early stopping.

        The first call fixes the scaling and names all classes.

        Args:
            X: (rows, columns).
            y: their labels.
            classes: all labels of this and later calls; needed in the first call.
            sample_weight: a weight for each row.

        Returns:
            The estimator.

        Raises:
            InputError: if the classes are missing in the first call, or differ in a later one.
        """
        if self.class_weight == "balanced":
            raise InputError(
                "class_weight='balanced' needs all rows at once, which partial_fit does not have: "
                "give the weights as a mapping, or sample_weight"
            )
        fresh = self._copied()
        if not hasattr(self, "module_"):
            if classes is None:
                raise InputError("classes must be passed on the first call to partial_fit.")
            fresh.classes_ = unique_labels(classes)
            fresh._given_classes = True
        elif classes is not None and not np.array_equal(self.classes_, unique_labels(classes)):
            raise InputError(
                f"classes must be those of the first call, {self.classes_.tolist()}, got "
                f"{list(classes)}: fit a new estimator"
            )
        fresh._partial_fit(X, y, sample_weight)
        fresh._given_classes = False
        return self._become(fresh)
