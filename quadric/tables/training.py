"""The fitting loop: Adam on minibatches, early stopping, for one network or a stack of them.

Minibatches are slices of tensors that are shuffled once an epoch. The networks of a stack have
their own data, order, learning rate and stopping epoch; a network that has stopped leaves the
stack. Stacks of small networks run side by side, one per core. Folds may differ in their number of
rows: the shorter ones are padded with rows of weight zero at the end, so that each network sees
exactly the minibatches of its own fit.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from quadric.layers import QuadraticLayer
from quadric.solve.starts import ridge
from quadric.support.process import one_thread
from quadric.tables.adam import FlatAdam, flatten
from quadric.tables.jobs import AdamState, FitRecord, Job, Rows
from quadric.tables.losses import SQUARED, Loss
from quadric.tables.stacks import make_stack, stack_parameters

# The data of a stack is copied and shuffled: no more networks at once than fit into this.
STACK_BYTES = 2**28

# scikit-learn's adaptive learning rate: divided by 5 at each standstill. It goes down to 1e-6; with
# Adam nothing is gained after the third time.
DECAY, DECAYS = 0.2, 3

# Some networks stand on a plateau for a while, where they know little more than a straight line.
# One whose held-out loss is not below this share of the line's gets so many times the patience, but
# nothing above that share counts any more: a little less would be chance. The line takes at most so
# many columns, and about so many rows.
LITTLE, PLATEAU, LINE_COLUMNS, LINE_ROWS = 0.75, 4, 500, 20_000

# A held-out row counts no more than this number of times what a prediction of 0 costs in 19 of 20
# rows. So one row that is far out neither ends a fit nor chooses its epoch.
CAP, CAPPED = 9.0, 0.95

# Rows of a large table that are scaled, or judged, at once.
FORWARD_ROWS = 2**13

# Columns are pulled to zero less and less: by a factor e in this number of steps.
SHRINKING_STEPS = 200


Finished = Callable[[int, FitRecord], None]
EpochDone = Callable[[int, int], None]


def train(
    jobs: Sequence[Job],
    on_finish: Finished | None = None,
    on_epoch: EpochDone | None = None,
    max_stack: int | None = None,
) -> list[FitRecord]:
    """Trains networks, those of one shape together."""
    records: dict[int, FitRecord] = {}
    lock = threading.Lock()
    stop = threading.Event()

    def finish(position: int, record: FitRecord) -> None:
        with lock:
            records[position] = record
            if on_finish is not None:
                on_finish(position, record)

    def epoch_done(epoch: int, left: int) -> None:
        if on_epoch is not None:
            with lock:
                on_epoch(epoch, left)

    begin = time.perf_counter()

    def run(chunk: list[int]) -> None:
        _Stack([_Member(jobs[p], p) for p in chunk], finish, epoch_done, stop).run(begin)

    small = all(job.is_small() for job in jobs)
    workers = torch.get_num_threads() if small else 1
    chunks = list(_chunks(jobs, max_stack, workers))
    with one_thread(small):
        if len(chunks) == 1 or workers == 1:
            for chunk in chunks:
                run(chunk)
        else:
            _in_threads(run, chunks, workers, stop)
    return [records[position] for position in range(len(jobs))]


def _in_threads(
    run: Callable[[list[int]], None], chunks: list[list[int]], workers: int, stop: threading.Event
) -> None:
    """Runs stacks side by side, one per core; an error or an interrupt ends them all."""
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


def _chunks(jobs: Sequence[Job], max_stack: int | None, workers: int) -> Iterator[list[int]]:
    """The positions of the jobs of each stack."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for position, job in enumerate(jobs):
        groups.setdefault(job.shape_key(), []).append(position)
    for positions in groups.values():
        rows = [jobs[p].train for p in positions]
        largest = max(part.inputs.nbytes + part.targets.nbytes for part in rows)
        count = min(max(1, STACK_BYTES // max(1, largest)), max_stack or len(positions))
        # Chunks of nearly equal size, one for each core: the last one should not run alone.
        number = max(-(-len(positions) // count), min(workers, len(positions)))
        for i in range(number):
            yield positions[i * len(positions) // number : (i + 1) * len(positions) // number]


@torch.no_grad()
def find_caps(loss: Loss, rows: Rows, outputs: int) -> Tensor:
    """What a held-out row of each network counts at most, (networks, 1)."""
    inputs, targets, weights = rows
    nothing = inputs.new_zeros(*inputs.shape[:2], outputs)
    costs = loss.rows(nothing, targets).masked_fill(weights == 0, math.nan)
    caps = CAP * costs.nanquantile(CAPPED, dim=1, keepdim=True)
    return caps.where(caps > 0, math.inf)


def held_out_losses(loss: Loss, outputs: Tensor, rows: Rows, caps: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each network on its held-out rows, and its score."""
    _, targets, weights = rows
    weights = weights / weights.sum(1, keepdim=True)
    losses = (loss.rows(outputs, targets).minimum(caps) * weights).sum(1)
    return losses, loss.score(outputs, targets, weights)


def _padded(parts: Sequence[Rows]) -> Rows:
    """The rows of several networks, each filled up with zeros, so also with weights of zero."""
    if len(parts) == 1:  # no copy of a table that may be large
        return Rows(*(tensor.unsqueeze(0) for tensor in parts[0]))
    columns = zip(*parts, strict=True)
    return Rows(*(nn.utils.rnn.pad_sequence(list(c), batch_first=True) for c in columns))


@dataclass
class _Member:
    """A network of a stack, and how far it is."""

    job: Job
    position: int
    record: FitRecord = field(default_factory=FitRecord)
    best_loss: float = math.inf
    waited: int = 0
    decays: int = 0
    line: float = math.inf  # the held-out loss of a straight line, asked for at a standstill

    def __post_init__(self) -> None:
        self.order = torch.Generator().manual_seed(self.job.seed)


class _Stack:
    """Networks that train together until each has stopped."""

    def __init__(
        self,
        members: list[_Member],
        on_finish: Finished,
        on_epoch: EpochDone,
        stop: threading.Event,
    ) -> None:
        self.members, self.on_finish, self.on_epoch, self.stop = members, on_finish, on_epoch, stop
        jobs = [member.job for member in members]
        self.loss, self.settings, self.steps = jobs[0].loss, jobs[0].settings, jobs[0].steps()
        self.stack = make_stack(jobs[0].network)
        self.data = _padded([job.train for job in jobs])
        held = [job.validation for job in jobs if job.validation is not None]
        self.validation = _padded(held) if held else None
        self.optimizer = _make_optimizer(jobs)
        self.best = self.optimizer.flat.clone()
        self.caps = self.best.new_full((len(members), 1), math.inf)
        if self.validation is not None:
            rows = self.validation
            outputs = self._forward(rows.inputs[:, :1]).shape[-1]
            self.caps = find_caps(self.loss, rows, outputs)
        columns = self.data.inputs.shape[-1]
        first, _ = next(jobs[0].network.named_children())
        self.first = [
            name
            for name, parameter in self.optimizer.parameters.items()
            if name.startswith(f"{first}.")
            and parameter.dim() == 3
            and parameter.shape[-1] == columns
        ]

    @torch.no_grad()  # gradients are computed by hand, or switched on where they are not
    def run(self, begin: float) -> None:
        limit = self.settings.max_time  # of all stacks together
        end = math.inf if limit is None else begin + limit
        for epoch in range(1, self.settings.max_iter + 1):
            start = time.perf_counter()
            losses = self._epoch()
            scored = self._validate()
            share = (time.perf_counter() - start) / len(self.members)
            for member in self.members:
                member.record.seconds += share
            last = epoch == self.settings.max_iter or time.perf_counter() >= end
            ready = self._judge(epoch, losses, scored, last)
            self.on_epoch(epoch, len(self.members) - len(ready))
            if ready:
                self._release(ready)
            if not self.members or self.stop.is_set():
                return

    def _epoch(self) -> list[float]:
        """One pass over the rows; returns the mean loss of each network."""
        networks, rows = self.data.weights.shape
        order = torch.arange(rows).repeat(networks, 1)
        for i, member in enumerate(self.members):  # padding stays at the end
            count = len(member.job.train.weights)
            order[i, :count] = torch.randperm(count, generator=member.order)
        order += torch.arange(networks).unsqueeze(1) * rows
        order = order.flatten().to(self.data.inputs.device)
        shuffled = [t.flatten(0, 1).index_select(0, order).view(t.shape) for t in self.data]
        total = self.data.weights.new_zeros(networks)
        for step in range(self.steps):
            part = slice(step * self.settings.batch_size, (step + 1) * self.settings.batch_size)
            total += self._step(*(tensor[:, part] for tensor in shuffled))
        return (total / self.data.weights.sum(1)).tolist()

    def _step(self, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """One minibatch; returns the weighted sum of the losses of its rows, for each network."""
        summed = weights

        def output_gradient(outputs: Tensor) -> Tensor:
            nonlocal summed
            summed = (self.loss.rows(outputs, targets) * weights).sum(1)
            share = weights / weights.sum(1, keepdim=True)
            return self.loss.gradient(outputs, targets).mul_(share.unsqueeze(-1))

        optimizer = self.optimizer
        self.stack.backward(optimizer.parameters, optimizer.gradients, inputs, output_gradient)
        rate = self.settings.rate
        optimizer.step(1.0 if rate is None else rate(optimizer.steps))
        self._shrink()
        return summed

    def _shrink(self) -> None:
        """Pulls the weights of each column to zero; those of a useless column get there.

        This is the proximal step of a group lasso (Yuan and Lin 2006) on the first layer. The pull
        is a share of what Adam can move a column in one step. It fades, so that it chooses columns
        at first and does not bias the fit in the end.
        """
        optimizer = self.optimizer
        share = self.settings.shrinkage * math.exp(-optimizer.steps / SHRINKING_STEPS)
        if share < 1e-4:
            return
        for name in self.first:
            weight = optimizer.parameters[name]
            rate = optimizer.views(optimizer.lr)[name][:, :1, :1]
            pull = share * math.sqrt(weight.shape[1]) * rate
            size = torch.linalg.vector_norm(weight, dim=1, keepdim=True)
            weight.mul_((1 - pull / size.clamp_min(1e-30)).clamp_(min=0))

    def _forward(self, inputs: Tensor) -> Tensor:
        """The outputs for many rows, some at a time: hidden layers may be wider than the table."""
        pieces = inputs.split(FORWARD_ROWS, 1)
        return torch.cat([self.stack.forward(self.optimizer.parameters, p) for p in pieces], 1)

    def _validate(self) -> list[tuple[float, float]] | None:
        """Loss and score of each network on its validation rows."""
        if self.validation is None:
            return None
        outputs = self._forward(self.validation.inputs)
        losses, scores = held_out_losses(self.loss, outputs, self.validation, self.caps)
        judged = list(zip(losses.tolist(), scores.tolist(), strict=True))
        for i, member in enumerate(self.members):
            job = member.job
            if job.judge is not None and job.validation is not None and math.isfinite(judged[i][0]):
                judged[i] = job.judge(outputs[i, : len(job.validation.weights)])
        return judged

    def _judge(
        self,
        epoch: int,
        losses: list[float],
        scored: list[tuple[float, float]] | None,
        last: bool,
    ) -> list[int]:
        """Notes the epoch, keeps the best parameters, and says which networks are ready."""
        ready: list[int] = []
        for i, (member, loss) in enumerate(zip(self.members, losses, strict=True)):
            judged, score = (loss, None) if scored is None else scored[i]
            record = member.record
            record.losses.append(loss)
            if score is not None:
                record.scores.append(score)
            if self.settings.verbose:
                network = f"network {member.position}, " if len(self.members) > 1 else ""
                said = "" if score is None else f", validation score = {score:.6f}"
                print(f"Iteration {epoch}, {network}loss = {loss:.8f}{said}")
            if not (math.isfinite(judged) and math.isfinite(loss)):
                record.diverged_at = epoch
                # The parameters of an earlier epoch are good if a validation part chose them.
                record.usable = scored is not None and math.isfinite(member.best_loss)
                ready.append(i)
                continue
            record.best_loss = min(record.best_loss, loss)
            if min(judged, member.best_loss) > LITTLE * member.line:
                judged = math.inf
            # As in scikit-learn the best is kept even where the improvement is too small to count.
            if score is not None and judged < member.best_loss:
                record.best_score = score
                self.best[i] = self.optimizer.flat[i]
            stands_still = judged >= member.best_loss * (1 - self.settings.tol)
            member.waited = member.waited + 1 if stands_still else 0
            member.best_loss = min(member.best_loss, judged)
            if member.waited > self._patience(i):
                if self.settings.adaptive and member.decays < DECAYS:
                    self.optimizer.lr[i] *= DECAY
                    member.decays, member.waited = member.decays + 1, 0
                else:
                    record.stopped = True
            if record.stopped or last:
                ready.append(i)
        return ready

    def _patience(self, i: int) -> int:
        """Epochs without improvement that a network may take."""
        member, settings, held = self.members[i], self.settings, self.validation
        asked = self.loss is SQUARED and member.job.judge is None and not settings.adaptive
        if member.waited <= settings.patience or not asked or held is None:
            return settings.patience
        if member.line == math.inf and held.inputs.shape[-1] <= LINE_COLUMNS:
            member.line = self._line(i, held)
        return settings.patience * (PLATEAU if member.best_loss > LITTLE * member.line else 1)

    def _line(self, i: int, held: Rows) -> float:
        """The held-out loss of ridge regression on the rows of a network."""
        train = self.members[i].job.train
        step = -(-len(train.targets) // LINE_ROWS)
        inputs, targets = (part[::step].double() for part in train[:2])
        targets = targets.view(len(targets), -1)
        weight, bias, _ = ridge(inputs, targets)
        one = Rows(*(tensor[i : i + 1] for tensor in held))
        outputs = (one.inputs.double() @ weight.T + bias).to(one.targets)
        return float(held_out_losses(self.loss, outputs, one, self.caps[i : i + 1])[0])

    def _release(self, ready: list[int]) -> None:
        """Writes the parameters of ready networks back and takes them out of the stack."""
        optimizer = self.optimizer
        kept = optimizer.views(optimizer.flat if self.validation is None else self.best)
        averages, squares = optimizer.views(optimizer.average), optimizer.views(optimizer.square)
        for i in ready:
            member = self.members[i]
            for name, parameter in member.job.network.named_parameters():
                parameter.copy_(kept[name][i])
            member.record.optimizer = AdamState(
                {name: tensor[i].clone() for name, tensor in averages.items()},
                {name: tensor[i].clone() for name, tensor in squares.items()},
                optimizer.steps,
            )
            self.on_finish(member.position, member.record)
        left = [i for i in range(len(self.members)) if i not in ready]
        self.members = [self.members[i] for i in left]
        if left:
            index = torch.tensor(left, device=self.best.device)
            self.data = self.data.take(index)
            self.validation = None if self.validation is None else self.validation.take(index)
            self.best, self.caps = self.best[index], self.caps[index]
            optimizer.keep(index)


def _make_optimizer(jobs: Sequence[Job]) -> FlatAdam:
    """Adam for the networks of these jobs, going on where an earlier one stopped."""
    quadratic_names = {
        f"{name}.{local}"
        for name, layer in jobs[0].network.named_modules()
        if isinstance(layer, QuadraticLayer)
        for local in layer.quadratic_parameters()
    }
    parameters = stack_parameters([job.network for job in jobs])
    flat = flatten(parameters)

    def marked(chosen: Callable[[str], bool]) -> Tensor:
        """Whether each number of a network belongs to a chosen parameter."""
        parts = [torch.full((t[0].numel(),), chosen(name)) for name, t in parameters.items()]
        return torch.cat(parts).to(flat.device)

    quadratic = marked(lambda name: name in quadratic_names)
    bias = marked(lambda name: name.endswith("bias"))
    rate, quadratic_rate, penalty = flat.new_tensor(
        [[job.lr, job.quadratic_lr, job.penalty()] for job in jobs]
    ).split(1, 1)
    lr = torch.where(quadratic, quadratic_rate, rate)
    optimizer = FlatAdam(parameters, lr, penalty * ~(quadratic | bias))
    states = [job.optimizer for job in jobs if job.optimizer is not None]
    if states:
        averages = {name: torch.stack([s.average[name] for s in states]) for name in parameters}
        squares = {name: torch.stack([s.square[name] for s in states]) for name in parameters}
        optimizer.average, optimizer.square = flatten(averages), flatten(squares)
        optimizer.steps = states[0].steps
    return optimizer
