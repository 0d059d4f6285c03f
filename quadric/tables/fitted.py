"""A fitted estimator: predictions, the network alone, and pickles."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import nn

from quadric.support.extras import load_extra
from quadric.tables.estimator_files import save_estimator
from quadric.tables.inputs import TableInput, as_pandas
from quadric.tables.jobs import AdamState
from quadric.tables.modules import Scaled

if TYPE_CHECKING:
    from quadric.tables.explaining import Explanation

PREDICT_ROWS = 2**16
"""Rows predicted at once, so that hidden layers of a long table need not fit into memory."""


class FittedNetwork(TableInput):
    """Abstract: what an estimator has, and can do, after a fit."""

    device: str
    module_: Scaled
    loss_curve_: list[float]
    n_iter_: int
    n_outputs_: int
    n_parameters_: int
    target_name_: Any
    solver_reason_: str
    best_validation_score_: float | None
    fallback_: str | None
    network_share_: float
    _optimizer: list[AdamState | None] | None
    _error_bars: Any = None
    _gaps: np.ndarray | None = None

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "module_")

    def _forward(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = self.prepare(X)
        mean = self.module_.input_mean
        pieces = []
        with torch.no_grad():
            for start in range(0, len(X), PREDICT_ROWS):
                rows = torch.tensor(X[start : start + PREDICT_ROWS])
                pieces.append(self.module_(rows.to(mean.device, mean.dtype)).cpu())
        return torch.cat(pieces).numpy()

    def to_torch(self) -> nn.Module:
        """The fitted network as a module of its own, with the scaling inside.

        It takes rows as a tensor and gives what `predict` gives (a classifier: what `predict_proba`
        gives). The columns are those of `fit` if all of them are numbers, holes as NaN; of a frame
        with categories, text or dates they are those of `prepare`. Its dtype is that of the table
        it was fitted to; `.float()` converts it.

        Returns:
            A copy; training it leaves the estimator as it is.
        """
        check_is_fitted(self)
        module: nn.Module = copy.deepcopy(self.module_).requires_grad_()
        front = None if self._preparation is None else self._preparation.exported()
        return (module if front is None else nn.Sequential(front, module)).eval()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the fitted estimator to one file, which takes the frame that `fit` took.

        The file holds the reader of columns, the scaling and the network, with a checksum, and
        nothing that could run. `quadric.sklearn.load` and `quadric predict` take it.

        Args:
            path: the file; one that exists is replaced when the new one is complete.

        Raises:
            InputError: if a parameter or a label is no plain value.
        """
        check_is_fitted(self)
        save_estimator(self, path)

    def explain(self, X: Any, y: Any) -> Explanation:
        """Measures what was learned of each column: importance, effect curves and couplings.

        The importance is scikit-learn's permutation importance, by original column. An effect is
        the mean prediction with one value in every row. A coupling says how far the effect of one
        column depends on another one. Rows that were not learned from say most.

        Args:
            X: (rows, columns) as `fit` took them.
            y: their targets.

        Returns:
            The explanation: print it, take its frames `importance`, `effects` and `couplings`, or
            `save("page.html")`.

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        check_is_fitted(self)
        load_extra("pandas", "explain", "tables")
        from quadric.tables.explaining import explain

        return explain(self, as_pandas(X), y)

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
