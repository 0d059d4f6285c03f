"""The training step, for lightning: loss, optimizer, schedule, and sums of what is reported.

The optimizer has the quadratic parameters in their own group. Nothing in a step waits for the
device or logs: sums are kept on the device and read once per epoch.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.optim.swa_utils import get_ema_multi_avg_fn

from quadric.data.batches import Batches, make_generator
from quadric.optim import param_groups
from quadric.train.data import RunData
from quadric.train.monitors import LargestActivation, first_not_finite
from quadric.train.network import memory_format
from quadric.train.recipe import Recipe
from quadric.train.schedule import make_schedule

# A look at the loss waits for the device: on a CPU it costs nothing, elsewhere it is taken rarely.
LOOK_EVERY = 50
# Inputs kept from the first evaluation batch, on which quadratic shares are measured.
SAMPLE = 128


class DivergedError(Exception):
    """The loss is not finite any more.

    Attributes:
        layer: what was the first to be not finite.
        epoch: counted from 0.
        step: counted from 0 over all epochs.
        loss: its value.
    """

    def __init__(self, layer: str, epoch: int, step: int, loss: float) -> None:
        self.layer = layer
        self.epoch = epoch
        self.step = step
        self.loss = loss
        super().__init__(
            f"training diverged: the loss is {loss} at step {step + 1} (epoch {epoch + 1}), the "
            f"first to be not finite is {layer}: lower lr or quadratic_lr, or clip the gradients "
            "with --set clip=1"
        )


class TrainingModule(LightningModule):
    """A network in training."""

    def __init__(self, network: nn.Module, data: RunData, recipe: Recipe) -> None:
        super().__init__()
        self.network = network
        self.data = data
        self.task = data.task
        self.recipe = recipe
        # The moving average of the weights: a module of its own, so that checkpoints hold it.
        self.average: nn.Module | None = None
        if recipe.ema is not None:
            self.average = copy.deepcopy(network).requires_grad_(False)
        self.batches: Batches | None = None  # until the trainer asks for them
        self.train_sums = self.eval_sums = torch.zeros(0)  # until an epoch starts
        self.sample: Any = None
        self.activations = LargestActivation(network)
        self.suspect: DivergedError | None = None
        # Set by Ctrl-C.
        self.interrupted = False
        self.memory_format = torch.contiguous_format
        self._averaged_step = 0  # the last one whose weights are in the average
        self._watching: Any = None
        # In a list, or nn.Module would register it: the network's names stay as they are.
        self._call: list[Callable[..., Any]] = [network]

    @property
    def evaluated(self) -> nn.Module:
        """The network that is tested and saved: the average of the weights, if there is one."""
        return self.network if self.average is None else self.average

    def configure_model(self) -> None:
        """Shards the network, if the strategy does."""
        mesh = self.device_mesh  # which only the strategy that shards makes
        if mesh is not None and not isinstance(self.network, FSDPModule):
            fully_shard(self.network, mesh=mesh["data_parallel"])

    @contextlib.contextmanager
    def whole_network(self) -> Iterator[None]:
        """Within it this process has all parameters; all processes must enter and leave it."""
        if not isinstance(self.network, FSDPModule):
            yield
            return
        self.network.unshard()
        try:
            yield
        finally:
            # A checkpoint is made of the pieces.
            self.network.reshard()

    def setup(self, stage: str) -> None:
        """Brings the weights into their form, and compiles the network if the recipe says so."""
        device = self.trainer.strategy.root_device
        self.memory_format = memory_format(self.recipe, self.network, device)
        if self.recipe.precision == "64-true":  # before a checkpoint is read, or it is rounded
            self.double()
        for network in (self.network, self.evaluated):
            network.to(memory_format=self.memory_format)  # type: ignore[call-overload]
        if self.recipe.compile:
            self._call = [torch.compile(self.network)]

    def on_after_batch_transfer(
        self, batch: tuple[Any, Tensor], dataloader_idx: int
    ) -> tuple[Any, Tensor]:
        """Arranges a batch of pictures as the weights are."""
        inputs, targets = batch
        if isinstance(inputs, Tensor) and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=self.memory_format)
        return inputs, targets

    def forward(self, *inputs: Any) -> Any:
        """What the network gives, compiled or not."""
        return self._call[0](*inputs)

    # Data: each process its share.

    def train_dataloader(self) -> Batches:
        """This process's share of the training part."""
        self.batches = self.data.train(self.trainer.global_rank, self.trainer.world_size)
        return self.batches

    def val_dataloader(self) -> Batches:
        """The validation part if there is one; else the test part, by which nothing is chosen."""
        share = self.trainer.global_rank, self.trainer.world_size
        held = self.data.validation(*share)
        return self.data.test(*share) if held is None else held

    # Training

    def on_train_epoch_start(self) -> None:
        """Tells the data its epoch, and seeds what draws from the global generator."""
        epoch = self.trainer.current_epoch
        batches: Any = self.trainer.train_dataloader
        batches.set_epoch(epoch)
        self.train_sums = self.task.zeros(self.device)
        self._averaged_step = self.trainer.global_step
        # What draws from the global generator (dropout) draws the same after a restart.
        seed = make_generator(self.recipe.seed, epoch, self.trainer.global_rank).initial_seed()
        torch.manual_seed(seed)

    def training_step(self, batch: tuple[Any, Tensor], batch_idx: int) -> Tensor:
        """The loss of a batch."""
        self._stop_if_interrupted()
        inputs, targets = batch
        outputs = self.task.outputs(self, inputs)
        loss = self.task.loss(outputs, targets)
        self.train_sums += self.task.sums(outputs.detach(), targets)
        if loss.device.type == "cpu" or batch_idx % LOOK_EVERY == 0:
            self._look(loss, inputs)
        return loss * self.data.weight(self.batches, batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Takes the new weights into the average.

        The first steps weigh more, or a short run's average would still be its start.
        """
        if self.average is None or self.recipe.ema is None:
            return
        step = self.trainer.global_step
        if step == self._averaged_step:  # gradients are still being accumulated
            return
        self._averaged_step = step
        blend = get_ema_multi_avg_fn(min(self.recipe.ema, step / (step + 9)))
        with torch.no_grad():
            pairs = list(zip(tensors(self.average), tensors(self.network), strict=True))
            for old, new in pairs:
                if not new.is_floating_point():  # the number of batches that a BatchNorm has seen
                    old.copy_(new)
            floats = [pair for pair in pairs if pair[0].is_floating_point()]
            blend([old for old, _ in floats], [new for _, new in floats], step)

    def _stop_if_interrupted(self) -> None:
        if self.interrupted:
            raise KeyboardInterrupt

    def _look(self, loss: Tensor, inputs: Any) -> None:
        """Stops if the loss is not finite.

        One of several processes must not stop alone, as the others would wait for it. So it goes
        on: gradients are averaged, the parameters of all become not finite, and at their next look
        all processes stop together.
        """
        value = float(loss.detach())
        if abs(value) < float("inf"):  # false for NaN too
            self.suspect = None
            return
        if self.suspect is None:
            layer = first_not_finite(self.network, inputs, self.task.outputs)
            epoch, step = self.trainer.current_epoch, self.trainer.global_step
            self.suspect = DivergedError(layer, epoch, step, value)
        if self.trainer.world_size == 1:
            raise self.suspect
        if not all(bool(p.isfinite().all()) for p in self.network.parameters()):
            seen: list[Any] = [None] * self.trainer.world_size
            mine = self.suspect
            torch.distributed.all_gather_object(
                seen, (mine.step, mine.layer, mine.epoch, mine.loss)
            )
            step, layer, epoch, value = min(seen)
            raise DivergedError(layer, epoch, step, value)

    def configure_optimizers(self) -> Any:
        """The optimizer of the recipe and the schedule of its rates."""
        recipe = self.recipe
        rate = recipe.quadratic_lr
        groups = param_groups(
            self.network,
            recipe.lr,
            rate if isinstance(rate, float) else None,
            recipe.weight_decay,
            recipe.quadratic_weight_decay,
            decay_bias_and_norm=recipe.decay_bias_and_norm,
        )
        optimizer: torch.optim.Optimizer
        if recipe.optimizer == "sgd":
            optimizer = torch.optim.SGD(
                groups, lr=recipe.lr, momentum=recipe.momentum, nesterov=recipe.nesterov
            )
        else:
            kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[recipe.optimizer]
            betas = (recipe.betas[0], recipe.betas[1])
            optimizer = kind(groups, lr=recipe.lr, betas=betas, eps=recipe.eps)
        factor = make_schedule(
            recipe.schedule,
            len(self.data.train(0, self.trainer.world_size)) // self.data.accumulate,
            recipe.epochs,
            milestones=recipe.milestones,
            gamma=recipe.gamma,
            warmup=recipe.warmup,
            warmup_steps=recipe.warmup_steps,
        )
        constant = recipe.quadratic_schedule == "constant"
        factors = [
            (lambda step: 1.0) if constant and group["name"] == "quadratic" else factor
            for group in groups
        ]
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    # Evaluation

    def on_validation_epoch_start(self) -> None:
        """Starts to watch the activations."""
        self.eval_sums = self.task.zeros(self.device)
        self.activations = LargestActivation(self.evaluated)
        self._watching = self.activations.watching()
        self._watching.__enter__()

    def validation_step(self, batch: tuple[Any, Tensor], batch_idx: int) -> None:
        """Adds up the metrics of a batch."""
        self._stop_if_interrupted()
        inputs, targets = batch
        if batch_idx == 0:
            several = isinstance(inputs, tuple | list)
            self.sample = tuple(x[:SAMPLE] for x in inputs) if several else inputs[:SAMPLE]
        # The network itself: a compiled one would not see the hooks.
        self.eval_sums += self.task.sums(self.task.outputs(self.evaluated, inputs), targets)

    def on_validation_epoch_end(self) -> None:
        """Adds up the metrics of all processes."""
        self._watching.__exit__(None, None, None)
        self.eval_sums = self.total(self.eval_sums)
        if self.trainer.world_size > 1 and self.activations.by_layer:
            seen = torch.stack(
                [v.float().to(self.device) for v in self.activations.by_layer.values()]
            )
            torch.distributed.all_reduce(seen, torch.distributed.ReduceOp.MAX)
            self.activations.by_layer = dict(zip(self.activations.by_layer, seen, strict=True))

    def total(self, sums: Tensor) -> Tensor:
        """The sum over all processes."""
        reduced: Tensor = self.trainer.strategy.reduce(sums, reduce_op="sum")  # type: ignore
        return reduced


def tensors(network: nn.Module) -> list[Tensor]:
    """The parameters and buffers of a network, in one order."""
    return [*network.parameters(), *network.buffers()]
