"""What happens after each epoch: a record, its row in metrics.csv, its line, its checkpoint."""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path
from typing import Any, TextIO

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.loggers import Logger
from torch import Tensor

from quadric.data import FolderBatches
from quadric.layers import QuadraticLayer
from quadric.runs.metrics import METRICS
from quadric.share import quadratic_share
from quadric.support.progress import duration
from quadric.support.texttable import csv_cell
from quadric.support.writing import whole_file
from quadric.train.directory import RunDirectory
from quadric.train.loggers import log_numbers, log_settings
from quadric.train.recipe import Recipe
from quadric.train.step import TrainingModule
from quadric.train.tasks import Task
from quadric.watchdog import Watch, watch

TRIAL, BETWEEN = 5.0, 60.0
"""Seconds of steps before the whole is estimated, and between lines within a long epoch."""


class EpochRecords(Callback):
    """Keeps one record per epoch, in the checkpoint too: a continued run has them all."""

    def __init__(self, directory: RunDirectory, screen: TextIO | None) -> None:
        self.directory = directory
        self.screen = screen
        self.records: list[dict[str, Any]] = []
        # Pictures that were skipped, by path; None if the data is one that cannot have such.
        self.broken: set[str] | None = None
        self.rates: dict[str, float] = {}
        self.started = 0.0
        # Batches since the first one of this process, and when that was done.
        self.batches, self.since = 0, 0.0
        self.told = False
        self.next_line = 0.0
        # Of the records, the one whose epoch is the best on the validation part.
        self.best = 0
        # The mean of the last weights, with `average`.
        self.mean: dict[str, Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        broken = sorted(self.broken or ())
        return {"records": self.records, "broken": broken, "best": self.best, "mean": self.mean}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes back what a checkpoint kept."""
        self.records = list(state_dict["records"])
        self.broken = set(state_dict["broken"]) or None
        self.best = state_dict["best"]
        self.mean = state_dict["mean"]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Tells the loggers what is trained."""
        assert isinstance(pl_module, TrainingModule)
        for logger in trainer.loggers:
            log_settings(logger, pl_module.recipe)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock and notes the learning rates."""
        self.started = time.perf_counter()
        # Those that the epoch begins with; at its end the schedule is at the next one's.
        for group in trainer.optimizers[0].param_groups:
            name = "quadratic_lr" if group["name"] == "quadratic" else "lr"
            self.rates[name] = float(group["lr"])

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Says how long it will take; where lines are kept, how far a long epoch is."""
        if self.screen is None or not trainer.is_global_zero:
            return
        now, total = time.monotonic(), trainer.num_training_batches
        if not self.since:  # the first step is slower than the others
            self.since, self.next_line = now, now + BETWEEN
            return
        assert isinstance(pl_module, TrainingModule)
        self.batches += 1
        if not self.told and (now - self.since > TRIAL or batch_idx + 1 == total):
            self.told = True
            epochs = pl_module.recipe.epochs - trainer.current_epoch
            left = (now - self.since) / self.batches * total * epochs
            self._print(trainer, f"{epochs} epochs, about {duration(left)}")
        elif now > self.next_line and not self.screen.isatty():
            self.next_line = now + BETWEEN
            where = f"epoch {trainer.current_epoch + 1}/{pl_module.recipe.epochs}"
            self._print(trainer, f"{where}: {batch_idx + 1:,} of {total:,} steps")

    def seconds_in_epoch(self) -> float:
        """Since the epoch began."""
        return time.perf_counter() - self.started

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Makes the record of the epoch, writes and prints it."""
        assert isinstance(pl_module, TrainingModule)
        # With all processes, before the others leave.
        sums = pl_module.total(pl_module.train_sums)
        trained = pl_module.task.metrics(sums)
        broken = broken_pictures(trainer)
        if broken is not None:
            self.broken = (self.broken or set()) | broken
        with pl_module.whole_network():
            share = shares(pl_module) if trainer.is_global_zero else None
        evaluated = pl_module.task.metrics(pl_module.eval_sums)
        part = pl_module.data.evaluated_part
        record: dict[str, Any] = {"epoch": trainer.current_epoch + 1}
        record |= {f"train_{name}": value for name, value in trained.items()}
        record |= {f"{part}_{name}": value for name, value in evaluated.items()}
        record |= self.rates
        largest = pl_module.activations.largest()
        if largest is not None:
            record["largest_activation"], record["largest_activation_layer"] = largest
        record["quadratic_share"] = share
        record["seconds"] = self.seconds_in_epoch()
        if pl_module.task.samples == "tokens":
            record["tokens_per_second"] = float(sums[0]) / record["seconds"]
        self.records.append(record)
        judged = f"{part}_{pl_module.task.metric}"
        if _is_better(record[judged], self.records[self.best][judged], pl_module.task):
            self.best = len(self.records) - 1
        if trainer.is_global_zero:
            write_metrics(self.directory.metrics_file, self.records)
            self._log(trainer.loggers, record, pl_module.recipe, judged)
            self._print(trainer, epoch_line(record, pl_module.recipe.epochs, pl_module.task))
        self._save(trainer, pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the records of the checkpoint: what the file held may be damaged."""
        if trainer.is_global_zero:
            self.directory.metrics_file.unlink(missing_ok=True)
            if self.records:
                write_metrics(self.directory.metrics_file, self.records)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stops at once a run that had stopped, and was killed before its result was written."""
        assert isinstance(pl_module, TrainingModule)
        self._stop_if_none_is_better(trainer, pl_module.recipe)

    def _stop_if_none_is_better(self, trainer: Trainer, recipe: Recipe) -> None:
        waited = len(self.records) - 1 - self.best
        if recipe.patience is not None and waited >= recipe.patience:
            trainer.should_stop = True

    def _save(self, trainer: Trainer, module: TrainingModule) -> None:
        """Writes the checkpoints of an epoch; all processes take part.

        `last` after the others, so that whoever finds it finds what else belongs to that epoch.
        """
        recipe, directory, epoch = module.recipe, self.directory, len(self.records)
        if recipe.average is not None:
            self._take_mean(module, epoch - max(0, recipe.epochs - recipe.average))
        if recipe.keep_every is not None and epoch % recipe.keep_every == 0:
            trainer.save_checkpoint(directory.checkpoints / f"epoch-{epoch:04d}.ckpt")
        if recipe.validation and self.best == epoch - 1:
            trainer.save_checkpoint(directory.best_checkpoint)
        trainer.save_checkpoint(directory.last_checkpoint)
        self._stop_if_none_is_better(trainer, recipe)

    def _take_mean(self, module: TrainingModule, count: int) -> None:
        """Takes the weights of an epoch into the mean, as the last of so many."""
        if count < 1:
            return
        for name, value in module.evaluated.state_dict().items():
            new = value.cpu().double()
            before = self.mean.get(name, new)
            self.mean[name] = before + (new - before) / count

    def _print(self, trainer: Trainer, line: str) -> None:
        """Prints a line, above the bar if there is one."""
        if self.screen is None:
            return
        bar = trainer.progress_bar_callback
        if isinstance(bar, TQDMProgressBar):
            bar.train_progress_bar.write(line, file=self.screen)
        else:
            print(line, file=self.screen, flush=True)

    def _log(
        self, loggers: list[Logger], record: dict[str, Any], recipe: Recipe, metric: str
    ) -> None:
        numbers = {k: v for k, v in flat(record).items() if isinstance(v, int | float)}
        for logger in loggers:
            if record["epoch"] == 1:
                log_settings(logger, recipe, {metric: numbers[metric]})
            log_numbers(logger, numbers, record["epoch"])


class CurvatureWatch(Callback):
    """Watches the first steps of a run, and keeps the warning if there was one."""

    def __init__(self) -> None:
        self._watch: Watch | None = None
        self._earlier: str | None = None

    @property
    def warning(self) -> str | None:
        """What was warned of, before a restart too."""
        return self._earlier if self._watch is None else self._watch.warning

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"warning": self.warning}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes back what a checkpoint kept."""
        self._earlier = state_dict["warning"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins to watch; a compiled network cannot be looked into."""
        assert isinstance(pl_module, TrainingModule)
        quadratic = any(isinstance(m, QuadraticLayer) for m in pl_module.network.modules())
        starts = trainer.is_global_zero and trainer.global_step == 0
        if quadratic and starts and not pl_module.recipe.compile:
            self._watch = watch(pl_module.network)

    def end(self) -> None:
        """Takes the hooks off the network."""
        if self._watch is not None:
            self._watch.remove()


def broken_pictures(trainer: Trainer) -> set[str] | None:
    """What all processes have skipped so far."""
    parts = [trainer.train_dataloader, trainer.val_dataloaders]
    mine = [part.broken for part in parts if isinstance(part, FolderBatches)]
    if not mine:
        return None
    seen: list[Any] = [sorted(set().union(*mine))]
    if trainer.world_size > 1:
        seen = seen * trainer.world_size
        torch.distributed.all_gather_object(seen, seen[0])
    return {path for paths in seen for path in paths}


def shares(module: TrainingModule) -> dict[str, float] | None:
    """The quadratic share of each layer on a part of an evaluation batch; None without layers."""
    network = module.evaluated
    if module.sample is None or not any(isinstance(m, QuadraticLayer) for m in network.modules()):
        return None
    with module.trainer.precision_plugin.forward_context():
        report = quadratic_share(network, [(module.sample,)])
    return {name: layer.share for name, layer in report.items()}


def _is_better(value: float, best: float, task: Task) -> bool:
    """Whether a metric is better than the best so far; one that is not finite never is."""
    if not math.isfinite(value):
        return False
    return not math.isfinite(best) or (value > best if task.higher_is_better else value < best)


def flat(record: dict[str, Any]) -> dict[str, Any]:
    """A record with the shares of layers as fields of their own, their mean first."""
    fields = {key: value for key, value in record.items() if key != "quadratic_share"}
    by_layer = record["quadratic_share"]
    if by_layer:
        fields["quadratic_share"] = sum(by_layer.values()) / len(by_layer)
        fields |= {f"quadratic_share/{name}": value for name, value in by_layer.items()}
    return fields


def write_metrics(path: Path, records: list[dict[str, Any]]) -> None:
    """Writes all records again: a row that a killed process left never appears twice."""
    rows = [flat(record) for record in records]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with whole_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(map(csv_cell, columns))
        writer.writerows([csv_cell(row.get(column)) for column in columns] for row in rows)


def epoch_line(record: dict[str, Any], epochs: int, task: Task) -> str:
    """One epoch in one line."""
    part = "val" if f"val_{task.metric}" in record else "test"
    words = [f"epoch {record['epoch']:>{len(str(epochs))}}/{epochs}"]
    for name in ("train", part):
        shown = METRICS[task.metric].show(record[f"{name}_{task.metric}"])
        words.append(f"{name} loss {record[f'{name}_loss']:.4g}, {task.metric} {shown}")
    words.append(f"{record['seconds']:.1f} s")
    if "tokens_per_second" in record:
        words.append(f"{record['tokens_per_second']:,.0f} tokens/s")
    return "  ".join(words)
