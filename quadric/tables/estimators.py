"""What QuadraticRegressor and QuadraticClassifier have in common: parameters, fitting, prediction.

Parameters are named and meant as in scikit-learn's MLPRegressor; the docstring of
QuadraticRegressor describes them. A fit is three steps, so that several estimators can fit together
(`many.py`): the data become jobs, a fitter (`training.train`) trains their networks, and the
estimator takes the records.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from torch import Tensor, nn

from quadric.errors import InputError
from quadric.layers import get_neuron
from quadric.layers.scale import ScaledEigenvalues
from quadric.models import create
from quadric.tables.fitted import FittedNetwork
from quadric.tables.inputs import Arrays, pair, split_rows, weighted
from quadric.tables.jobs import FitRecord, Job, Rows, Settings, merge
from quadric.tables.linear import UNLEARNED, LinearPart, beside, linear_network
from quadric.tables.losses import Loss
from quadric.tables.modules import Scaled, in_words
from quadric.tables.parameters import (
    ParameterCheck,
    check_device,
    check_parameters,
    shared_checks,
)
from quadric.tables.scoring import Judge
from quadric.tables.second_order import fit_jobs
from quadric.tables.training import FORWARD_ROWS, train

Self = TypeVar("Self", bound="QuadraticNetwork")

AUTO_STOPPING_ROWS = 100
"""With early_stopping="auto" a fit stops early from this number of rows on."""


@dataclass(eq=False, repr=False)
class QuadraticNetwork(FittedNetwork):
    """Abstract: a network of quadratic neurons with scikit-learn's interface."""

    hidden_layer_sizes: int | Sequence[int] = (64, 64)
    _: KW_ONLY
    neuron: str = "shared"
    rank: int | None = None
    neuron_options: Mapping[str, Any] | None = None
    members: int = 4
    activation: str = "silu"
    alpha: float = 1e-4
    shrinkage: float = 0.4
    batch_size: int | str = "auto"
    learning_rate: str = "constant"
    learning_rate_init: float = 3e-3
    quadratic_lr: float | None = None
    max_iter: int = 500
    max_time: float | None = None
    tol: float = 1e-4
    early_stopping: bool | str = "auto"
    validation_fraction: float = 0.1
    scoring: str | None = None
    n_iter_no_change: int = 30
    standardize: bool | str = True
    random_state: Any = None
    warm_start: bool = False
    verbose: bool = False
    device: str = "cpu"
    na_values: Sequence[Any] = ()
    linear_fallback: bool = True

    # What the two classes add.

    def _loss(self) -> Loss:
        raise NotImplementedError

    def _make_module(self, network: nn.Sequential, rows: Arrays) -> Scaled:
        """The network with the scaling of these rows."""
        raise NotImplementedError

    def _targets(self, targets: np.ndarray, module: Scaled) -> Tensor:
        """Encoded targets as the network sees them."""
        raise NotImplementedError

    def _truth(self, targets: np.ndarray) -> np.ndarray:
        """Encoded targets as `y` has them."""
        raise NotImplementedError

    def _class_weights(self, targets: np.ndarray, weights: np.ndarray) -> np.ndarray | None:
        """What the weights of rows are multiplied with, for each encoded target."""
        return None

    def _stratify(self, targets: np.ndarray) -> np.ndarray | None:
        """What must have the same shares in the rows that are held out."""
        return None

    def _measure_gaps(self, jobs: Sequence[Job], part: LinearPart) -> np.ndarray | None:
        """How far predictions lie from the targets that were held out, in their unit."""
        return None

    def _choose_solver(self, jobs: Sequence[Job]) -> None:
        """Says how the jobs are solved: Adam, if nothing is said."""

    # Fitting.

    def fit(
        self: Self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        eval_set: tuple[Any, Any] | None = None,
    ) -> Self:
        """Fits the network to a table.

        Args:
            X: (rows, columns): an array of numbers, or a DataFrame, which may hold categories,
                text, booleans, dates and holes as well.
            y: the targets.
            sample_weight: a weight for each row; a row of weight 0 is as if it were not there.
            eval_set: (X, y) of rows to stop early by; no others are held out.

        Returns:
            The estimator.

        Raises:
            InputError: if a parameter does not fit, or the training does not stay finite.
        """
        fresh = self._copied()
        fresh._take_records(fit_jobs(fresh._make_jobs(X, y, sample_weight, eval_set)))
        return self._become(fresh)

    def _copied(self: Self) -> Self:
        """The estimator that a fit works on: one that fails, or is interrupted, changes no other.

        What it shares with this one is replaced, never changed.
        """
        fresh = object.__new__(type(self))
        fresh.__dict__ = dict(vars(self))
        return fresh

    def _become(self: Self, fresh: Self) -> Self:
        """Takes over what a fit has learned, in one step."""
        self.__dict__ = fresh.__dict__
        return self

    def _make_jobs(
        self, X: Any, y: Any, sample_weight: Any = None, eval_set: tuple[Any, Any] | None = None
    ) -> list[Job]:
        """The first part of `fit`: checks, splits, scales, builds; a job for each member."""
        self._check_parameters()
        if self.early_stopping is False and (eval_set is not None or self.scoring is not None):
            given = "an eval_set" if eval_set is not None else f"scoring={self.scoring!r}"
            raise InputError(
                f"{given} needs early stopping, got early_stopping=False: leave it 'auto'"
            )
        continued = bool(self.warm_start) and hasattr(self, "module_")
        jobs = self._prepare(
            X, y, sample_weight, eval_set=eval_set, continued=continued, stopping=True
        )
        self.target_name_ = getattr(y, "name", None)
        self._jobs = jobs
        return jobs

    def _take_records(self, records: Sequence[FitRecord]) -> None:
        """The last part of `fit`: notes how the training of the members went."""
        settings_max, record = int(self.max_iter), merge(records)
        self._note(record, [])
        jobs = self._jobs
        del self._jobs
        part = self._compare_with_linear(jobs)
        records[0].seconds += part.seconds
        self._gaps = self._measure_gaps(jobs, part)
        # Averages of an earlier network say nothing about this one: partial_fit starts new ones.
        self._optimizer = None
        if record.interrupted:
            warnings.warn("interrupted: the best so far is kept", ConvergenceWarning, stacklevel=3)
        elif not (record.stopped or record.diverged_at) and len(record.losses) >= settings_max:
            warnings.warn(
                f"Maximum iterations ({settings_max}) reached and the optimization hasn't "
                "converged yet: raise max_iter, or tol.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _compare_with_linear(self, jobs: Sequence[Job]) -> LinearPart:
        """Gives a linear model a part in the prediction where the held-out rows say so."""
        # A fit that goes on later must find the network that it left.
        part = beside(jobs, bool(self.linear_fallback) and not self.warm_start)
        module, self.network_share_ = self.module_, part.share
        if part.said:
            self.solver_reason_ = f"{self.solver_reason_}; {part.said}"
            self.best_validation_score_ = part.score
        if part.network is not None:
            if part.share:
                module.add_linear(part.network, part.share)
            else:
                self.fallback_ = part.name
                module.network, module.others = part.network, nn.ModuleList()
            self._count()
        if not part.learned:
            alone = "the mean" if is_regressor(self) else "the shares of classes"
            warnings.warn(UNLEARNED.format(alone), ConvergenceWarning, stacklevel=4)
        return part

    def _count(self) -> None:
        self.n_layers_ = len(self._hidden()) + 2
        self.n_parameters_ = sum(p.numel() for p in self.module_.parameters())

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        self._check_parameters()
        continued = hasattr(self, "module_")
        jobs = self._prepare(X, y, sample_weight, continued=continued, stopping=False)
        earlier = getattr(self, "_optimizer", None) if continued else None
        for job, optimizer in zip(jobs, earlier or [None] * len(jobs), strict=True):
            job.optimizer = copy.deepcopy(optimizer)
            job.settings = dataclasses.replace(job.settings, max_iter=1)
        records = train(jobs)
        self._note(merge(records), self.loss_curve_ if continued else [])
        # The optimizers go on where they stopped; `fit` starts new ones.
        self._optimizer = [record.optimizer for record in records]

    def _note(self, record: FitRecord, earlier: list[float]) -> None:
        """Sets the attributes of a fit that goes on after the earlier losses."""
        if not record.usable:
            raise InputError(
                f"training must stay finite, but the loss of epoch {record.diverged_at} is not: "
                f"lower learning_rate_init (got {self.learning_rate_init}) or quadratic_lr (got "
                f"{self.quadratic_lr}), and leave standardize=True"
            )
        if record.diverged_at is not None:
            warnings.warn(
                f"the loss of epoch {record.diverged_at} is not finite; the best epoch before it "
                "was kept: lower learning_rate_init",
                ConvergenceWarning,
                stacklevel=4,
            )
        self.loss_curve_ = [*earlier, *record.losses]
        self.best_loss_ = min([*earlier, record.best_loss])
        self.loss_ = self.loss_curve_[-1]
        self.n_iter_ = len(self.loss_curve_)
        self.validation_scores_ = record.scores or None
        self.best_validation_score_ = record.best_score
        self.solver_, self.solver_reason_ = record.solver, record.reason
        self.module_.eval()

    def _prepare(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        eval_set: tuple[Any, Any] | None = None,
        continued: bool,
        stopping: bool,
    ) -> list[Job]:
        # For each member: of the part that is held out, of the start, of the order of the rows.
        draw = check_random_state(self.random_state).randint
        seeds = draw(2**31 - 1, size=(self._members() if continued else int(self.members), 3))
        # The first fit decides in which dtype the network computes.
        dtype = self.module_.input_mean.cpu().numpy().dtype if continued else None
        rows, held = self._read(X, y, sample_weight, first=not continued, dtype=dtype), None
        # A scorer needs rows to judge by, however few there are.
        enough = len(rows[0]) >= AUTO_STOPPING_ROWS or self.scoring is not None
        stopping &= enough if self.early_stopping == "auto" else bool(self.early_stopping)
        if eval_set is not None:
            held, stopping = (
                self._read(*pair(eval_set), None, first=False, dtype=rows[0].dtype),
                False,
            )
        columns, computing = rows[0].shape[1], getattr(torch, rows[0].dtype.name)
        same = self._stratify(rows[1])
        parts = [
            split_rows(rows, self.validation_fraction, seed, same) if stopping else (rows, held)
            for seed, _, _ in seeds
        ]
        del rows, X  # a table may fill the memory
        if continued:
            self._check_network(columns)
            module = copy.deepcopy(self.module_)
        else:
            self.fallback_ = None
            networks = [self._build(columns, seed).to(computing) for _, seed, _ in seeds]
            module = self._make_module(networks[0], self._by_class(parts[0][0], parts[0][0]))
            module.note_pressed(parts[0][0][0])
            module.others.extend(networks[1:])
        module.to(self.device)
        jobs = [
            self._job(module, network, *parts.pop(0), int(seed), not continued, own=stopping)
            for network, (_, _, seed) in zip(module.networks, seeds, strict=True)
        ]
        self._choose_solver(jobs)
        self.module_ = module
        self._count()
        return jobs

    def _job(
        self,
        module: Scaled,
        network: nn.Sequential,
        rows: Arrays,
        held: Arrays | None,
        seed: int,
        first: bool,
        own: bool,
    ) -> Job:
        """What one member learns; rows of its own are changed in place."""
        batch: Any = 200 if self.batch_size == "auto" else self.batch_size
        quadratic_lr = self.learning_rate_init if self.quadratic_lr is None else self.quadratic_lr
        job = Job(
            network=network,
            train=self._rows(self._by_class(rows, rows), module, own),
            validation=None
            if held is None
            else self._rows(self._by_class(held, rows), module, own),
            loss=self._loss(),
            settings=Settings(
                batch_size=min(int(batch), len(rows[0])),
                max_iter=int(self.max_iter),
                tol=float(self.tol),
                patience=int(min(self.n_iter_no_change, 2**31)),
                alpha=float(self.alpha),
                adaptive=self.learning_rate == "adaptive",
                verbose=bool(self.verbose),
                max_time=None if self.max_time is None else float(self.max_time),
                shrinkage=float(self.shrinkage) if first else 0.0,
            ),
            lr=float(self.learning_rate_init),
            quadratic_lr=float(quadratic_lr),
            seed=seed,
            held_out=own,
            fresh=first,
        )
        if held is not None and self.scoring is not None:
            job.judge = self._judge(held, job, module)
        return job

    def _by_class(self, rows: Arrays, learned: Arrays) -> Arrays:
        """Rows weighted by the classes of those that are learned."""
        each = self._class_weights(*learned[1:])
        return rows if each is None else weighted(rows, each)

    def _judge(
        self, held: Arrays, job: Job, module: Scaled
    ) -> Callable[[Tensor], tuple[float, float]]:
        """The scorer as the judge of early stopping; it measures predictions in the unit of y."""
        _, targets, weights = held
        classes = getattr(self, "classes_", None)
        judge = Judge(str(self.scoring), self._truth(targets), weights, classes)

        def judged(outputs: Tensor) -> tuple[float, float]:
            return judge(module.answer(outputs).detach().cpu().numpy())

        assert job.validation is not None
        with torch.no_grad():
            judge.check(module.answer(job.network(job.validation.inputs)).cpu().numpy())
        return judged

    def _rows(self, rows: Arrays, module: Scaled, own: bool) -> Rows:
        X, targets, weights = rows
        device = module.input_mean.device
        inputs = torch.from_numpy(X).to(device) if own else torch.tensor(X, device=device)
        for part in inputs.split(FORWARD_ROWS):
            part.copy_(module.standardized(part))
        weight = torch.tensor(weights, device=device)
        return Rows(inputs, self._targets(targets, module).to(device), weight)

    def _widths(self) -> tuple[int, ...]:
        return tuple(int(size) for size in np.atleast_1d(self.hidden_layer_sizes))

    def _hidden(self) -> tuple[int, ...]:
        """The widths of the network that is there."""
        return () if getattr(self, "fallback_", None) else self._widths()

    def _members(self) -> int:
        """The number of networks that are there."""
        return 1 if getattr(self, "fallback_", None) else int(self.members)

    def _build(self, columns: int, seed: int) -> nn.Sequential:
        if not self._hidden():
            return linear_network(columns, self.n_outputs_, seed)
        options: dict[str, Any] = {"in_features": columns, "out_features": self.n_outputs_}
        options |= {"hidden": self._widths(), "activation": self.activation}
        options |= {"neuron": self.neuron, "rank": self.rank, **(self.neuron_options or {})}
        network: Any = create("mlp", seed=seed, **options)
        for layer in network:
            if isinstance(layer, ScaledEigenvalues):
                layer.drop_scale_()  # stacks have rates of their own
        return network

    def _check_network(self, columns: int) -> None:
        """Refuses to go on with a network of another form (warm_start, partial_fit)."""
        wanted = [self._build(columns, seed=0)] * self._members()
        have = self.module_.networks
        if len(have) != len(wanted) or repr(have[0]) != repr(wanted[0]):
            raise InputError(
                f"a network that goes on learning must keep its shape {in_words(have)}, got "
                f"{in_words(wanted)}: fit a new estimator, or set warm_start=False"
            )

    def _checks(self) -> list[ParameterCheck]:
        """What the parameters must be."""
        return shared_checks(self)

    def _check_parameters(self) -> None:
        get_neuron(self.neuron).with_options(rank=self.rank, **(self.neuron_options or {}))
        check_device(self.device)
        check_parameters(self, self._checks())
