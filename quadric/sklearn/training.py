"""The fitting loop: Adam on minibatches, early stopping, for one network or a stack of them.

Minibatches are slices of tensors that are shuffled once an epoch. Networks of a stack have their
own data, order, learning rate and stopping epoch; one that has stopped leaves the stack. Stacks of
small networks run side by side, one a core. Folds may
differ in their number of rows: the last minibatch of the smaller ones is padded with rows of weight
zero, so that each network sees exactly the minibatches of its own fit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from quadric.nn.layer import QuadraticLayer
from quadric.process import one_thread
from quadric.sklearn.adam import FlatAdam, flatten
from quadric.sklearn.losses import Loss
from quadric.sklearn.stacks import make_stack, stack_parameters

# The data of a stack is copied and shuffled: no more networks at once than fit into this.
STACK_BYTES = 2**28

# Below so many multiply-accumulates of an operation, stacks run side by side on one thread each:
# threads within an operation wait for each other, on a busy machine most of the time.
SMALL_MACS = 2**26

# scikit-learn's adaptive learning rate: divided by 5 at each standstill. It goes down to 1e-6; with
# Adam nothing is gained after the third time.
DECAY, DECAYS = 0.2, 3


@dataclass
class Rows:
    """Rows to learn from or to validate on: inputs (N, columns), targets, and weights or None."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def total_weight(self) -> float:
        """The sum of the weights: the number of rows where there are none."""
        return float(len(self)) if self.weights is None else float(self.weights.sum())


@dataclass(frozen=True)
class Settings:
    """What all networks of a stack have in common.

    Attributes:
        batch_size: rows of a minibatch.
        max_iter: epochs at most.
        tol: what counts as an improvement: a loss lower by this fraction of the best one.
        patience: epochs without improvement after which a network stops.
        alpha: the L2 penalty of weights, as in scikit-learn divided by the rows of a minibatch.
        adaptive: instead of stopping, lower the learning rate to a fifth, three times.
        verbose: print the loss of each epoch.
    """

    batch_size: int
    max_iter: int
    tol: float
    patience: int
    alpha: float
    adaptive: bool = False
    verbose: bool = False


@dataclass
class AdamState:
    """Where an optimizer stopped: its two averages by parameter, and its number of steps."""

    average: dict[str, Tensor]
    square: dict[str, Tensor]
    steps: int


@dataclass
class Job:
    """One network and what it learns.

    Attributes:
        network: trained in place.
        train: the rows to learn from.
        validation: the rows to stop by; None: by the training loss.
        loss: what is minimized.
        settings: how.
        lr: learning rate.
        quadratic_lr: learning rate of the quadratic parameters.
        seed: of the order of the rows.
        optimizer: where an earlier training stopped; None starts anew.
    """

    network: nn.Sequential
    train: Rows
    validation: Rows | None
    loss: Loss
    settings: Settings
    lr: float
    quadratic_lr: float
    seed: int
    optimizer: AdamState | None = None

    def steps(self) -> int:
        """Minibatches of an epoch."""
        return -(-len(self.train) // self.settings.batch_size)

    def shape_key(self) -> tuple[object, ...]:
        """Jobs with the same key can share a stack."""
        validated = None if self.validation is None else True
        weighted = self.train.weights is not None
        fresh = self.optimizer.steps if self.optimizer is not None else 0
        shapes = tuple((k, tuple(p.shape)) for k, p in self.network.named_parameters())
        first = next(self.network.parameters())
        kinds = tuple(repr(layer) for layer in self.network)
        return (
            kinds, shapes, first.dtype, str(first.device), self.steps(), validated, weighted,
            fresh, self.loss.name, self.train.targets.dim(), self.settings,
        )  # fmt: skip


@dataclass
class Outcome:
    """How the training of one network went.

    Attributes:
        losses: mean training loss of each epoch.
        scores: validation score of each epoch, where there is a validation part.
        best_score: the score of the epoch whose parameters were kept.
        best_loss: the lowest training loss.
        stopped: whether it stopped by itself, before the epochs were used up.
        diverged_at: the epoch whose loss was not finite, counted from 1; None if all were.
        usable: whether the network's parameters are finite ones of a trained epoch.
        seconds: of this network alone, on one core: the time of its stack, shared among the
            networks in it.
        optimizer: where the optimizer stopped.
    """

    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    best_score: float | None = None
    best_loss: float = float("inf")
    stopped: bool = False
    diverged_at: int | None = None
    usable: bool = True
    seconds: float = 0.0
    optimizer: AdamState | None = None


Finished = Callable[[int, Outcome], None]
EpochDone = Callable[[int, int], None]


def train(
    jobs: Sequence[Job],
    on_finish: Finished | None = None,
    on_epoch: EpochDone | None = None,
    max_stack: int | None = None,
) -> list[Outcome]:
    """Trains networks, those of one shape together.

    Args:
        jobs: what to train; each job's network is trained in place.
        on_finish: called with a job's position and outcome as soon as its network is ready, by one
            thread at a time.
        on_epoch: called after each epoch of a stack with the epoch and the number of networks left.
        max_stack: networks of a stack at most.
    """
    outcomes: dict[int, Outcome] = {}
    lock = threading.Lock()
    stop = threading.Event()

    def finish(position: int, outcome: Outcome) -> None:
        with lock:
            outcomes[position] = outcome
            if on_finish is not None:
                on_finish(position, outcome)

    def epoch_done(epoch: int, left: int) -> None:
        if on_epoch is not None:
            with lock:
                on_epoch(epoch, left)

    def run(chunk: list[int]) -> None:
        _Stack([jobs[p] for p in chunk], chunk, finish, epoch_done, stop).run()

    groups: dict[tuple[object, ...], list[int]] = {}
    for position, job in enumerate(jobs):
        groups.setdefault(job.shape_key(), []).append(position)
    small = all(_is_small(job) for job in jobs)
    workers = torch.get_num_threads() if small else 1
    chunks = [
        chunk
        for positions in groups.values()
        for chunk in _chunks(jobs, positions, max_stack, workers)
    ]
    with one_thread(small):
        if len(chunks) == 1 or workers == 1:
            for chunk in chunks:
                run(chunk)
        else:
            _in_threads(run, chunks, workers, stop)
    return [outcomes[position] for position in range(len(jobs))]


def _is_small(job: Job) -> bool:
    """Whether threads within an operation would wait for each other longer than they compute."""
    if next(job.network.parameters()).device.type != "cpu":
        return False
    largest = max(parameter.numel() for parameter in job.network.parameters())
    return largest * job.settings.batch_size <= SMALL_MACS


def _in_threads(
    run: Callable[[list[int]], None], chunks: list[list[int]], workers: int, stop: threading.Event
) -> None:
    """Stacks side by side, one a core; an error or an interrupt ends them all."""
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(run, chunk) for chunk in chunks]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stop.set()
            for future in futures:
                future.cancel()
            raise


def _chunks(
    jobs: Sequence[Job], positions: list[int], max_stack: int | None, workers: int
) -> Iterator[list[int]]:
    def size(job: Job) -> int:
        return job.train.inputs.nbytes + job.train.targets.nbytes

    largest = max(size(jobs[p]) for p in positions)
    count = max(1, STACK_BYTES // max(1, largest))
    count = min(count, max_stack) if max_stack is not None else count
    # Chunks of nearly equal size, one for each core: the last one should not run alone.
    number = max(-(-len(positions) // count), min(workers, len(positions)))
    for i in range(number):
        yield positions[i * len(positions) // number : (i + 1) * len(positions) // number]


@dataclass
class _Padded:
    """Rows of several networks: (B, N, ...), with the number of true rows of each."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor | None
    counts: list[int]

    @classmethod
    def of(cls, parts: Sequence[Rows]) -> _Padded:
        counts = [len(part) for part in parts]
        weights = None
        if parts[0].weights is not None:
            weights = _pad([part.weights for part in parts if part.weights is not None])
        return cls(
            _pad([part.inputs for part in parts]),
            _pad([part.targets for part in parts]),
            weights,
            counts,
        )

    def keep(self, index: Tensor) -> _Padded:
        return _Padded(
            self.inputs[index],
            self.targets[index],
            None if self.weights is None else self.weights[index],
            [self.counts[i] for i in index.tolist()],
        )

    def all_weights(self) -> Tensor:
        """The weights of all rows, 1 where none were given, 0 for padding."""
        x = self.inputs
        rows = torch.arange(x.shape[1], device=x.device)
        present = rows < torch.tensor(self.counts, device=x.device).unsqueeze(1)
        return present.to(x.dtype) if self.weights is None else self.weights * present


def _pad(tensors: Sequence[Tensor]) -> Tensor:
    longest = max(len(tensor) for tensor in tensors)
    padded = tensors[0].new_zeros(len(tensors), longest, *tensors[0].shape[1:])
    for row, tensor in zip(padded, tensors, strict=True):
        row[: len(tensor)] = tensor
    return padded


class _Stack:
    """Networks that train together until each has stopped."""

    def __init__(
        self,
        jobs: Sequence[Job],
        positions: Sequence[int],
        on_finish: Finished,
        on_epoch: EpochDone,
        stop: threading.Event,
    ) -> None:
        self.stop = stop
        self.jobs = list(jobs)
        self.positions = list(positions)
        self.on_finish = on_finish
        self.on_epoch = on_epoch
        first = jobs[0]
        self.loss, self.settings, self.steps = first.loss, first.settings, first.steps()
        self.stack = make_stack(first.network)
        self.outcomes = [Outcome() for _ in jobs]
        self.orders = [torch.Generator().manual_seed(job.seed) for job in jobs]
        self.data = _Padded.of([job.train for job in jobs])
        self.validation: _Padded | None = None
        if first.validation is not None:
            self.validation = _Padded.of([j.validation for j in jobs if j.validation is not None])
            self._validation_weights = _normalized(self.validation.all_weights())
        self.optimizer = self._make_optimizer(stack_parameters([job.network for job in jobs]))
        self.best = self.optimizer.flat.clone()
        self.best_losses = [float("inf")] * len(jobs)
        self.waited = [0] * len(jobs)
        self.decays = [0] * len(jobs)

    def _make_optimizer(self, parameters: dict[str, Tensor]) -> FlatAdam:
        quadratic = {
            f"{name}.{local}"
            for name, layer in self.jobs[0].network.named_modules()
            if isinstance(layer, QuadraticLayer)
            for local in layer.quadratic_parameters()
        }
        rates, penalties = [], []
        for name, tensor in parameters.items():
            is_quadratic = name in quadratic
            penalized = not is_quadratic and not name.endswith("bias")
            rows = [
                (
                    job.quadratic_lr if is_quadratic else job.lr,
                    self._penalty(job) if penalized else 0.0,
                )
                for job in self.jobs
            ]
            columns = torch.tensor(rows, dtype=tensor.dtype, device=tensor.device)
            shape = (-1,) + (1,) * (tensor.dim() - 1)
            rates.append(columns[:, 0].view(shape).expand_as(tensor))
            penalties.append(columns[:, 1].view(shape).expand_as(tensor))
        optimizer = FlatAdam(parameters, flatten(rates), flatten(penalties))
        states = [job.optimizer for job in self.jobs]
        known = [state for state in states if state is not None]
        if known:
            names = list(parameters)
            optimizer.average = flatten(
                [torch.stack([s.average[name] for s in known]) for name in names]
            )
            optimizer.square = flatten(
                [torch.stack([s.square[name] for s in known]) for name in names]
            )
            optimizer.steps = known[0].steps
        return optimizer

    @staticmethod
    def _penalty(job: Job) -> float:
        # scikit-learn divides alpha by the weight of the minibatch.
        mean_weight = job.train.total_weight() / len(job.train)
        return job.settings.alpha / (min(job.settings.batch_size, len(job.train)) * mean_weight)

    def run(self) -> None:
        # Gradients are computed by hand, or switched on where they are not.
        with torch.no_grad():
            self._run()

    def _run(self) -> None:
        for epoch in range(1, self.settings.max_iter + 1):
            start = time.perf_counter()
            losses = self._epoch()
            scored = self._validate()
            share = (time.perf_counter() - start) / len(self.jobs)
            for outcome in self.outcomes:
                outcome.seconds += share
            ready = self._judge(epoch, losses, scored)
            self.on_epoch(epoch, len(self.jobs) - len(ready))
            if ready:
                self._release(ready)
            if not self.jobs or self.stop.is_set():
                return

    def _epoch(self) -> list[float]:
        """One pass over the rows; returns the mean loss of each network."""
        data, batch = self.data, self.settings.batch_size
        rows = data.inputs.shape[1]
        order = torch.arange(rows).repeat(len(self.jobs), 1)
        for i, (generator, count) in enumerate(zip(self.orders, data.counts, strict=True)):
            order[i, :count] = torch.randperm(count, generator=generator)
        order += torch.arange(len(self.jobs)).unsqueeze(1) * rows
        order = order.flatten().to(data.inputs.device)

        def shuffled(tensor: Tensor) -> Tensor:
            return tensor.flatten(0, 1).index_select(0, order).view(tensor.shape)

        inputs, targets = shuffled(data.inputs), shuffled(data.targets)
        padded = min(data.counts) < rows
        weights = shuffled(data.weights) if data.weights is not None else None
        present = _Padded(inputs, targets, weights, data.counts).all_weights()
        total = inputs.new_zeros(len(self.jobs))
        for step in range(self.steps):
            part = slice(step * batch, (step + 1) * batch)
            # Padding stands at the end of the rows, so only the last minibatch can hold any.
            weighted = weights is not None or (padded and step == self.steps - 1)
            total += self._step(
                inputs[:, part], targets[:, part], present[:, part] if weighted else None
            )
        mean: list[float] = (total / present.sum(1)).tolist()
        return mean

    def _step(self, inputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        """One minibatch; returns the sum of the losses of its rows, for each network."""
        summed = inputs.new_empty(0)

        def output_gradient(outputs: Tensor) -> Tensor:
            nonlocal summed
            values = self.loss.rows(outputs, targets)
            gradient = self.loss.gradient(outputs, targets)
            if weights is None:
                summed = values.sum(1)
                return gradient.div_(inputs.shape[1])
            summed = (values * weights).sum(1)
            return gradient.mul_((weights / weights.sum(1, keepdim=True)).unsqueeze(-1))

        optimizer = self.optimizer
        self.stack.backward(optimizer.parameters, optimizer.gradients, inputs, output_gradient)
        optimizer.step()
        return summed

    def _validate(self) -> list[tuple[float, float]] | None:
        """Loss and score of each network on its validation rows."""
        if self.validation is None:
            return None
        part, weights = self.validation, self._validation_weights
        outputs = self.stack.forward(self.optimizer.parameters, part.inputs)
        losses = (self.loss.rows(outputs, part.targets) * weights).sum(1)
        scores = self.loss.score(outputs, part.targets, weights)
        return list(zip(losses.tolist(), scores.tolist(), strict=True))

    def _judge(
        self, epoch: int, losses: list[float], scored: list[tuple[float, float]] | None
    ) -> list[int]:
        """Notes the epoch, keeps the best parameters, and says which networks are ready."""
        ready: list[int] = []
        improved = [False] * len(self.jobs)
        for i, outcome in enumerate(self.outcomes):
            loss = losses[i]
            judged, score = (loss, None) if scored is None else scored[i]
            finite = abs(judged) < float("inf") and abs(loss) < float("inf")
            outcome.losses.append(loss)
            if score is not None:
                outcome.scores.append(score)
            if not finite:
                outcome.diverged_at = epoch
                # The parameters of an earlier epoch are good if a validation part chose them.
                outcome.usable = scored is not None and self.best_losses[i] < float("inf")
                ready.append(i)
                continue
            outcome.best_loss = min(outcome.best_loss, loss)
            if judged < self.best_losses[i]:
                improved[i] = scored is not None
                if score is not None:
                    outcome.best_score = score
            # As in scikit-learn the best is kept even where the improvement is too small to count.
            if judged >= self.best_losses[i] * (1 - self.settings.tol):
                self.waited[i] += 1
            else:
                self.waited[i] = 0
            self.best_losses[i] = min(self.best_losses[i], judged)
            if self.waited[i] > self.settings.patience and not self._slow_down(i):
                outcome.stopped = True
                ready.append(i)
            elif epoch == self.settings.max_iter:
                ready.append(i)
        if any(improved):
            self._keep_best(improved)
        if self.settings.verbose:
            self._print(epoch, losses, scored)
        return ready

    def _slow_down(self, i: int) -> bool:
        """Lowers the learning rate of a network that stands still; False if it should stop."""
        if not self.settings.adaptive or self.decays[i] == DECAYS:
            return False
        self.decays[i] += 1
        for rate in self.optimizer.views(self.optimizer.lr).values():
            rate[i] *= DECAY
        self.waited[i] = 0
        return True

    def _keep_best(self, improved: list[bool]) -> None:
        if all(improved):
            self.best.copy_(self.optimizer.flat)
            return
        best = self.optimizer.views(self.best)
        for name, parameter in self.optimizer.parameters.items():
            for i, is_better in enumerate(improved):
                if is_better:
                    best[name][i] = parameter.detach()[i]

    def _print(
        self, epoch: int, losses: list[float], scored: list[tuple[float, float]] | None
    ) -> None:
        for i, position in enumerate(self.positions):
            network = f"network {position}, " if len(self.positions) > 1 else ""
            score = "" if scored is None else f", validation score = {scored[i][1]:.6f}"
            print(f"Iteration {epoch}, {network}loss = {losses[i]:.8f}{score}")

    def _release(self, ready: list[int]) -> None:
        """Writes the parameters of ready networks back and takes them out of the stack."""
        kept = self.optimizer.flat if self.validation is None else self.best
        parameters = self.optimizer.views(kept)
        averages = self.optimizer.views(self.optimizer.average)
        squares = self.optimizer.views(self.optimizer.square)
        for i in ready:
            for name, parameter in self.jobs[i].network.named_parameters():
                parameter.copy_(parameters[name][i])
            self.outcomes[i].optimizer = AdamState(
                {name: tensor[i].clone() for name, tensor in averages.items()},
                {name: tensor[i].clone() for name, tensor in squares.items()},
                self.optimizer.steps,
            )
            self.on_finish(self.positions[i], self.outcomes[i])
        left = [i for i in range(len(self.jobs)) if i not in ready]
        for attribute in (
            "jobs",
            "positions",
            "outcomes",
            "orders",
            "best_losses",
            "waited",
            "decays",
        ):
            values = getattr(self, attribute)
            setattr(self, attribute, [values[i] for i in left])
        if not left:
            return
        index = torch.tensor(left, device=self.best.device)
        old = self.optimizer
        self.data = self.data.keep(index)
        if self.validation is not None:
            self.validation = self.validation.keep(index)
            self._validation_weights = self._validation_weights[index]

        def select(flat: Tensor) -> Tensor:
            return flatten([tensor[index] for tensor in old.views(flat).values()])

        remaining = {name: tensor.detach()[index] for name, tensor in old.parameters.items()}
        self.optimizer = FlatAdam(remaining, select(old.lr), select(old.decay))
        self.optimizer.average = select(old.average)
        self.optimizer.square = select(old.square)
        self.optimizer.steps = old.steps
        self.best = select(self.best)


def _normalized(weights: Tensor) -> Tensor:
    return weights / weights.sum(1, keepdim=True)
